"""The host driver's rows between processes: events and plain memory, by handles of 64 bytes that name a file of the
process that exported them.  Like a GPU's driver, they open nothing of this process's own."""
from libc.stdint cimport uintptr_t

from accelrt.driver.host.capture cimport check_unsafe
from accelrt.driver.host.memory cimport close_plain, name_plain, open_plain
from accelrt.driver.host.queue cimport HostEvent, drain_device, lock, unlock
from accelrt.driver.host.shared_event cimport (
    EVENT_FILE, SharedEvent, drop_shared_event, name_file, open_shared_event,
)
from accelrt.driver.host.stream cimport add_event, find_event, gate
from accelrt.driver.table cimport EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, Table
from accelrt.status cimport INVALID_HANDLE

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
    cdef int code = gate(device)
    return code if code else name_plain(device, address, out_ipc)


cdef int ipc_memory_open(int device, const char* handle, uintptr_t* out_address) noexcept nogil:
    cdef int code = gate(device)
    return code if code else open_plain(device, handle, out_address)


cdef int ipc_memory_close(int device, uintptr_t address) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    if code == 0:
        code = drain_device(device)
    unlock()
    return code if code else close_plain(device, address)
