"""The host driver's rows between processes: events and plain memory, by handles of 64 bytes that name a file of the
process that exported them.  Like a GPU's driver, they open nothing of this process's own."""
from libc.stdint cimport uintptr_t

from accelrt.driver.host.capture cimport check_unsafe
from accelrt.driver.host.event cimport add_event, find_event
from accelrt.driver.host.memory cimport (
    IMPORTED, PAGE, PLAIN, Range, add_range, containing, drop_range, drop_room, file_of, find_room, lock_memory, memory,
    show, unlock_memory,
)
from accelrt.driver.host.queue cimport HostEvent, drain_device, lock, unlock
from accelrt.driver.host.shared_event cimport (
    EVENT_FILE, MEMORY_FILE, FileName, SharedEvent, drop_shared_event, name_file, open_named, open_shared_event,
)
from accelrt.driver.host.stream cimport gate
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, Table
from accelrt.status cimport INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY

cdef extern from * nogil:
    """
    #include <sys/mman.h>
    #include <unistd.h>
    """
    int close_file "close" (int file) noexcept
    enum:
        PROT_READ
        PROT_WRITE

include "ipc_rows.pxi"


cdef int ipc_event_export(int device, uintptr_t event, char* out_ipc) noexcept nogil:
    cdef HostEvent* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_event(event)
    if found == NULL or found.device != device or found.shared == NULL:
        code = INVALID_HANDLE
    else:
        code = name_file(found.shared.file, EVENT_FILE, 0, 0, out_ipc)
    unlock()
    return code


cdef int ipc_event_open(int device, const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef SharedEvent* shared = NULL
    cdef int code = gate(device)
    if code == 0:
        code = open_shared_event(handle, &shared)
    if code == 0:
        code = add_event(device, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS, shared, out_event)
        if code:
            lock()
            drop_shared_event(shared)
            unlock()
    return code


cdef int ipc_memory_export(int device, uintptr_t address, char* out_ipc) noexcept nogil:
    cdef const Range* found
    cdef int code = gate(device)
    if code:
        return code
    code = INVALID_VALUE
    lock_memory()
    found = containing(memory, address)
    if found != NULL and found.start == address and found.kind == PLAIN and found.device == device:
        code = name_file(file_of(device), MEMORY_FILE, found.offset, found.charged, out_ipc)
    unlock_memory()
    return code


cdef int ipc_memory_open(int device, const char* handle, uintptr_t* out_address) noexcept nogil:
    # Not charged: the process that made it pays for it.
    cdef FileName name
    cdef Range made
    cdef void* room
    cdef int file = -1
    cdef int code = gate(device)
    if code:
        return code
    out_address[0] = 0
    code = open_named(handle, MEMORY_FILE, &name, &file)
    if code:
        return code
    room = find_room(name.size, PAGE)
    made.size = made.charged = name.size
    made.offset = name.offset
    made.physical = NULL
    made.device = device
    made.kind = IMPORTED
    made.open = True
    made.start = <uintptr_t>room
    if room == NULL:
        code = OUT_OF_MEMORY
    elif not show(room, name.size, file, name.offset, PROT_READ | PROT_WRITE):
        code = OUT_OF_MEMORY
    else:
        lock_memory()
        code = add_range(&memory, &made)
        unlock_memory()
    close_file(file)
    if code and room != NULL:
        drop_room(room, name.size)
    if code == 0:
        out_address[0] = made.start
    return code


cdef int close_opened(int device, uintptr_t address) noexcept nogil:
    cdef Range* found
    cdef int code = INVALID_VALUE
    lock_memory()
    found = containing(memory, address)
    if found != NULL and found.start == address and found.kind == IMPORTED and found.device == device:
        drop_room(<void*>address, found.charged)
        drop_range(&memory, found)
        code = 0
    unlock_memory()
    return code


cdef int ipc_memory_close(int device, uintptr_t address) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    if code == 0:
        code = drain_device(device)
    unlock()
    return code if code else close_opened(device, address)
