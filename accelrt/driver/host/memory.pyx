"""The host driver's rows for memory: plain, page-locked and virtual, and what other processes made.

Virtual memory is reservations, physical handles, and handles mapped into reservations.  A handle may be mapped at
several addresses at once, which then show the same bytes.  Virtual memory that other processes may have comes from a file of
its own, whose descriptor is what they get.  Plain memory they find by the name of the device's file (shared_event.pxd), in
handles of 64 bytes; like a GPU's driver, these rows open nothing of this process's own.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.queue cimport (
    BRANCH, COPY, COPY_3D, FILL, KERNEL, REPLAY, SET, HostStream, Launch, Operation, Plan, Work, drain_device, lock,
    lost_device, unlock, working,
)
from accelrt.driver.host.ranges cimport (
    HOST_MEMORY, IMPORTED, MAPPED, PAGE, PINNED, PLAIN, REGISTERED, RESERVED, UNKNOWN_MEMORY, Physical, Range,
    add_range, containing, device_of, drop_range, drop_room, file_of, find_room, give_bytes, hide, known_device,
    last_before, lock_memory, memory, reservations, rounded, show, take_bytes, take_pages, uncharge, unlock_memory,
)
from accelrt.driver.host.shared_event cimport MEMORY_FILE, FileName, name_file, open_named
from accelrt.driver.host.stream cimport check_unsafe, gate, gate_any
from accelrt.driver.table cimport Table
from accelrt.status cimport (
    HOST_MEMORY_NOT_REGISTERED, HOST_MEMORY_REGISTERED, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, NO_HOST_MEMORY,
    OPERATING_SYSTEM, OUT_OF_MEMORY,
)

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <linux/memfd.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int accelrt_page_file(size_t size) {  /* or -1 */
        int file = (int)syscall(SYS_memfd_create, "accelrt-page", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, (long)size)) {
            close(file);
            file = -1;
        }
        return file;
    }
    static int accelrt_copy_file(int file) { return fcntl(file, F_DUPFD_CLOEXEC, 3); }
    static long accelrt_file_size(int file) {  /* or -1 */
        struct stat found;
        return fstat(file, &found) ? -1 : (long)found.st_size;
    }
    """
    int page_file "accelrt_page_file"(size_t size) noexcept nogil
    int copy_file "accelrt_copy_file"(int file) noexcept nogil
    long file_size "accelrt_file_size"(int file) noexcept nogil
    int close_file "close" (int file) noexcept nogil
    int mprotect(void* address, size_t size, int protection) noexcept nogil
    enum:
        PROT_NONE
        PROT_READ
        PROT_WRITE

# Guarded by the lock of the memory.
cdef AddressMap physicals
cdef uintptr_t next_handle = 0x5000000000  # never reused

include "memory_rows.pxi"


cdef int quiet(int device) noexcept nogil:
    # For what waits until the device's work is done, and is not permitted beside a capture.
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    if code == 0:
        code = drain_device(device)
    unlock()
    return code


cdef int permitted(int device) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    unlock()
    return code


# --- memory that is taken away under queued work -------------------------------------------------------------

cdef size_t takings = 0  # under the queue's lock


cdef inline bint overlap(uintptr_t start, size_t size, uintptr_t other, size_t other_size) noexcept nogil:
    return start < other + other_size and other < start + size


cdef bint is_argument(const Launch* launch, uintptr_t start, size_t size) noexcept nogil:
    # Any aligned word of an argument may be a pointer; another number is hardly ever one of the range's addresses.
    cdef size_t index, at
    cdef uintptr_t word
    for index in range(launch.function.count):
        for at in range(launch.function.sizes[index] // sizeof(word)):
            memcpy(&word, <const char*>launch.arguments[index] + at * sizeof(word), sizeof(word))
            if word - start < size:
                return True
    return False


cdef bint plan_names(const Plan* plan, uintptr_t start, size_t size) noexcept nogil:
    cdef int index
    for index in range(plan.count):
        if work_names(&plan.nodes[index].work, False, start, size):
            return True
    return False


cdef bint work_names(const Work* work, bint staged, uintptr_t start, size_t size) noexcept nogil:
    # staged: of a COPY, its source's bytes were taken when it was queued.
    if work.kind == COPY:
        return overlap(start, size, work.dst, work.size) or (not staged and overlap(start, size, work.src, work.size))
    if work.kind == COPY_3D:
        return overlap(start, size, work.dst, work.to.span) or overlap(start, size, work.src, work.origin.span)
    if work.kind == FILL:
        return overlap(start, size, work.dst, work.size * work.width)
    if work.kind == SET:
        return overlap(start, size, work.src, sizeof(unsigned int))
    if work.kind == KERNEL:
        return is_argument(work.launch, start, size)
    return (work.kind == REPLAY or work.kind == BRANCH) and plan_names(work.plan, start, size)


cdef bint queue_names(uintptr_t start, size_t size) noexcept nogil:
    # The work of a device that is lost is over.
    cdef const HostStream* stream = working
    cdef const Operation* operation
    while stream != NULL:
        operation = stream.head if lost_device() != stream.device + 1 else NULL
        while operation != NULL:
            if work_names(&operation.work, operation.staged != NULL, start, size):
                return True
            operation = operation.next
        stream = stream.after
    return False


cdef void note_unmapping(uintptr_t start, size_t size) noexcept nogil:
    # Counts memory that goes while work under way names it, where a GPU faults.  By the CUDA driver API's pages on memory
    # cuMemFree may wait for work by itself, and cuMemFreeHost is known to: what is left after the wait counts, which is
    # other devices' work.  cuMemUnmap, cuMemHostUnregister and cuIpcCloseMemHandle promise no wait, so there the work before
    # the host device's own wait counts.  cuMemRelease takes nothing that is mapped.
    global takings
    cdef bint whole
    lock()
    if working != NULL:
        lock_memory()
        whole = is_whole(start, size)
        unlock_memory()
        takings += whole and queue_names(start, size)
    unlock()


cdef void note_taking(uintptr_t start, int kind, int device) noexcept nogil:
    # The same of a whole range, unless the row is going to refuse.
    global takings
    cdef const Range* found
    cdef size_t size = 0
    lock()
    if working != NULL:
        lock_memory()
        found = containing(memory, start)
        if found != NULL and found.start == start and found.kind == kind and found.device == device:
            size = found.size
        unlock_memory()
        takings += size > 0 and queue_names(start, size)
    unlock()


cdef size_t count_takings() noexcept nogil:
    return takings


cdef int pointer_device(uintptr_t address, int* out_device) noexcept nogil:
    cdef int code = gate_any()
    cdef int owner = device_of(address)
    out_device[0] = -1
    if code or owner == UNKNOWN_MEMORY:
        return code if code else INVALID_VALUE
    out_device[0] = -1 if owner == HOST_MEMORY else owner
    return 0


# --- plain memory ------------------------------------------------------------------------------------------

cdef int memory_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range made
    cdef size_t unit = PAGE if size >= 1 << 20 else 4096
    cdef int code = permitted(device)
    if code:
        return code
    if size == 0 or size >> 60:
        return INVALID_VALUE if size == 0 else OUT_OF_MEMORY
    made.size = size
    made.charged = rounded(size, unit)
    made.device = device
    made.kind = PLAIN
    made.physical = NULL
    made.open = True
    lock_memory()
    code = take_bytes(device, made.charged, &made.offset)
    if code == 0:
        code = place_plain(&made, unit)
        if code:
            give_bytes(device, made.offset, made.charged)
    unlock_memory()
    out_address[0] = made.start if code == 0 else 0
    return code


cdef int place_plain(Range* made, size_t unit) noexcept nogil:
    cdef void* room = find_room(made.charged, unit)
    cdef int code
    if room == NULL:
        return OUT_OF_MEMORY
    made.start = <uintptr_t>room
    if not show(room, made.charged, file_of(made.device), made.offset, PROT_READ | PROT_WRITE):
        drop_room(room, made.charged)
        return OUT_OF_MEMORY
    code = add_range(&memory, made)
    if code:
        drop_room(room, made.charged)
    return code


cdef int memory_free(int device, uintptr_t address) noexcept nogil:
    cdef Range* found
    cdef int code = quiet(device)
    if code or address == 0:
        return code
    note_taking(address, PLAIN, device)
    lock_memory()
    found = containing(memory, address)
    if found == NULL or found.start != address or found.kind != PLAIN or found.device != device:
        code = INVALID_VALUE
    else:
        drop_room(<void*>address, found.charged)
        give_bytes(device, found.offset, found.charged)
        drop_range(&memory, found)
    unlock_memory()
    return code


# --- page-locked memory ------------------------------------------------------------------------------------

cdef int host_alloc(int device, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range made
    cdef void* room
    cdef int code = permitted(device)
    if code:
        return code
    out_address[0] = 0
    if size == 0:
        return 0
    made.size = rounded(size, 4096)
    made.kind = PINNED
    made.device = HOST_MEMORY
    made.open = True
    room = take_pages(made.size)
    if room == NULL:
        return OUT_OF_MEMORY
    made.start = <uintptr_t>room
    lock_memory()
    code = add_range(&memory, &made)
    unlock_memory()
    if code:
        drop_room(room, made.size)
        return code
    out_address[0] = made.start
    return 0


cdef int host_free(int device, uintptr_t address) noexcept nogil:
    cdef Range* found
    cdef int code = quiet(device)
    if code or address == 0:
        return code
    note_taking(address, PINNED, HOST_MEMORY)
    code = INVALID_VALUE
    lock_memory()
    found = containing(memory, address)
    if found != NULL and found.start == address and found.kind == PINNED:
        drop_room(<void*>address, found.size)
        drop_range(&memory, found)
        code = 0
    unlock_memory()
    return code


cdef int host_register(int device, uintptr_t address, size_t size) noexcept nogil:
    cdef Range made
    cdef const Range* found
    cdef int code = permitted(device)
    if code or address == 0 or size == 0:
        return code if code else INVALID_VALUE
    made.start = address
    made.size = size
    made.kind = REGISTERED
    made.device = HOST_MEMORY
    made.open = True
    lock_memory()
    found = last_before(memory, address + size)
    if found != NULL and found.start + found.size > address:
        code = HOST_MEMORY_REGISTERED if found.kind == REGISTERED else INVALID_VALUE
    else:
        code = add_range(&memory, &made)
    unlock_memory()
    return code


cdef int host_unregister(int device, uintptr_t address) noexcept nogil:
    cdef Range* found
    cdef int code = permitted(device)
    if code == 0:
        note_taking(address, REGISTERED, HOST_MEMORY)
        code = quiet(device)
    if code:
        return code
    code = HOST_MEMORY_NOT_REGISTERED
    lock_memory()
    found = containing(memory, address)
    if found != NULL and found.start == address and found.kind == REGISTERED:
        drop_range(&memory, found)
        code = 0
    elif found != NULL:
        code = INVALID_VALUE
    unlock_memory()
    return code


# --- virtual memory: reservations ---------------------------------------------------------------------------

cdef int granularity(int device, size_t* out_size) noexcept nogil:
    out_size[0] = PAGE
    return gate(device)


cdef int address_reserve(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil:
    cdef Range made
    cdef void* room
    cdef int code = gate_any()
    if code:
        return code
    out_address[0] = 0
    if size == 0 or size % PAGE or alignment & (alignment - 1):
        return INVALID_VALUE
    room = find_room(size, max(alignment, <size_t>PAGE))
    if room == NULL:
        return OUT_OF_MEMORY
    made.start = <uintptr_t>room
    made.size = size
    made.kind = RESERVED
    made.device = UNKNOWN_MEMORY
    made.open = False
    lock_memory()
    code = add_range(&reservations, &made)
    unlock_memory()
    if code:
        drop_room(room, size)
        return code
    out_address[0] = made.start
    return 0


cdef int address_free(uintptr_t address, size_t size) noexcept nogil:
    cdef Range* found
    cdef const Range* mapped
    cdef int code = gate_any()
    if code:
        return code
    lock_memory()
    found = containing(reservations, address)
    mapped = last_before(memory, address + size)
    if found == NULL or found.start != address or found.size != size:
        code = INVALID_VALUE
    elif mapped != NULL and mapped.start >= address:
        code = INVALID_VALUE  # something is mapped in it
    else:
        drop_range(&reservations, found)
        drop_room(<void*>address, size)
    unlock_memory()
    return code


# --- virtual memory: physical handles ----------------------------------------------------------------------

cdef size_t count_physicals() noexcept nogil:
    cdef size_t count
    lock_memory()
    count = physicals.count
    unlock_memory()
    return count


cdef int add_physical(int device, size_t size, int own, bint charged, uintptr_t* out_handle) noexcept nogil:
    # Takes the file where it succeeds.
    global next_handle
    cdef Physical* made = <Physical*>calloc(1, sizeof(Physical))
    cdef int code
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.size = size
    made.own = own
    made.charged = charged
    made.alive = True
    lock_memory()
    code = map_reserve(&physicals)
    if code == 0 and charged:
        code = take_bytes(device, size, &made.offset)
    if code == 0:
        if own >= 0:
            made.offset = 0
        next_handle += 16
        map_insert(&physicals, next_handle, made)
        out_handle[0] = next_handle
    unlock_memory()
    if code:
        free(made)
    return code


cdef int physical_create(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    return create(device, size, False, out_handle)


cdef int physical_create_shared(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    return create(device, size, True, out_handle)


cdef int create(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil:
    cdef int own = -1
    cdef int code = gate(device)
    if code:
        return code
    out_handle[0] = 0
    if size == 0 or size % PAGE:
        return INVALID_VALUE
    if shared:
        own = page_file(size)
        if own < 0:
            return OPERATING_SYSTEM
    code = add_physical(device, size, own, True, out_handle)
    if code and own >= 0:
        close_file(own)
    return code


cdef int physical_export(uintptr_t handle, int* out_file) noexcept nogil:
    cdef const Physical* found
    cdef int code = gate_any()
    if code:
        return code
    code = INVALID_VALUE
    out_file[0] = -1
    lock_memory()
    found = <const Physical*>map_find(&physicals, handle)
    if found != NULL and found.own >= 0:
        out_file[0] = copy_file(found.own)
        code = 0 if out_file[0] >= 0 else OPERATING_SYSTEM
    unlock_memory()
    return code


cdef int physical_import(int device, int file, uintptr_t* out_handle) noexcept nogil:
    cdef long size
    cdef int own
    cdef int code = gate(device)
    if code:
        return code
    out_handle[0] = 0
    size = file_size(file)
    if size <= 0 or size % PAGE:
        return INVALID_VALUE
    own = copy_file(file)
    if own < 0:
        return OPERATING_SYSTEM
    code = add_physical(device, size, own, False, out_handle)
    if code:
        close_file(own)
    return code


cdef void let_go(Physical* physical) noexcept nogil:
    if physical.alive or physical.mappings:
        return
    if physical.own < 0:
        give_bytes(physical.device, physical.offset, physical.size)
    else:
        close_file(physical.own)
        if physical.charged:
            uncharge(physical.device, physical.size)
    free(physical)


cdef int file_of_physical(const Physical* physical) noexcept nogil:
    return physical.own if physical.own >= 0 else file_of(physical.device)


cdef int physical_release(uintptr_t handle) noexcept nogil:
    cdef Physical* found
    cdef int code = gate_any()
    if code:
        return code
    lock_memory()
    found = <Physical*>map_remove(&physicals, handle)
    if found != NULL:
        found.alive = False
        let_go(found)
    unlock_memory()
    return 0 if found != NULL else INVALID_VALUE


# --- virtual memory: mappings ------------------------------------------------------------------------------

cdef bint is_clear(uintptr_t address, size_t size) noexcept nogil:
    # Nothing is mapped in [address, address + size), and a reservation holds it whole.
    cdef const Range* reservation = containing(reservations, address)
    cdef const Range* mapped = last_before(memory, address + size)
    if reservation == NULL or address + size > reservation.start + reservation.size:
        return False
    return mapped == NULL or mapped.start + mapped.size <= address


cdef int memory_map(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil:
    cdef Physical* physical
    cdef Range made
    cdef int code = gate_any()
    if code:
        return code
    lock_memory()
    physical = <Physical*>map_find(&physicals, handle)
    if physical == NULL or size == 0 or size % PAGE or address % PAGE:
        code = INVALID_VALUE
    elif size != physical.size:
        code = NOT_SUPPORTED
    elif not is_clear(address, size):
        code = INVALID_VALUE
    elif not show(<void*>address, size, file_of_physical(physical), physical.offset, PROT_NONE):
        code = OUT_OF_MEMORY
    else:
        made.start = address
        made.size = size
        made.device = physical.device
        made.kind = MAPPED
        made.physical = physical
        made.open = False
        made.open_to = 0
        code = add_range(&memory, &made)
        if code:
            hide(<void*>address, size)
        else:
            physical.mappings += 1
    unlock_memory()
    return code


cdef bint is_mapped(uintptr_t address, size_t size) noexcept nogil:
    # [address, address + size) is a run of whole mappings.
    cdef uintptr_t end = address + size
    cdef Range* found
    while address < end:
        found = containing(memory, address)
        if found == NULL or found.kind != MAPPED or found.start != address or address + found.size > end:
            return False
        address += found.size
    return size > 0


cdef int memory_access(uintptr_t address, size_t size, int device) noexcept nogil:
    cdef uintptr_t at = address
    cdef Range* found
    cdef int code = gate_any()
    if code:
        return code
    if not known_device(device):
        return INVALID_DEVICE
    lock_memory()
    if not is_mapped(address, size):
        code = INVALID_VALUE
    while code == 0 and at < address + size:
        found = containing(memory, at)
        if mprotect(<void*>at, found.size, PROT_READ | PROT_WRITE):
            code = OUT_OF_MEMORY
        found.open = True
        found.open_to |= <uint64_t>1 << device
        at += found.size
    unlock_memory()
    return code


cdef uint64_t devices_with_access(uintptr_t address) noexcept nogil:
    cdef const Range* page
    cdef uint64_t devices = 0
    lock_memory()
    page = containing(memory, address)
    if page != NULL and page.kind == MAPPED:
        devices = page.open_to
    unlock_memory()
    return devices


cdef bint is_whole(uintptr_t address, size_t size) noexcept nogil:
    # Every mapping that [address, address + size) touches lies inside it, and a reservation around it.
    cdef const Range* reservation = containing(reservations, address)
    cdef const Range* mapped = last_before(memory, address + size)
    cdef uintptr_t at = address + size
    if reservation == NULL or address + size > reservation.start + reservation.size:
        return False
    while mapped != NULL and mapped.start + mapped.size > address:
        if mapped.start < address or mapped.start + mapped.size > at:
            return False
        at = mapped.start
        mapped = last_before(memory, at)
    return True


cdef void unmap_one(Range* found) noexcept nogil:
    cdef Physical* physical = found.physical
    hide(<void*>found.start, found.size)
    physical.mappings -= 1
    let_go(physical)
    drop_range(&memory, found)


cdef int memory_unmap(uintptr_t address, size_t size) noexcept nogil:
    # Holes are no matter, a part of a mapping is.
    cdef Range* found
    cdef int code = gate_any()
    if code or size == 0:
        return code if code else INVALID_VALUE
    note_unmapping(address, size)
    lock_memory()
    if not is_whole(address, size):
        code = INVALID_VALUE
    while code == 0:
        found = last_before(memory, address + size)
        if found == NULL or found.start < address:
            break
        unmap_one(found)
    unlock_memory()
    return code


# --- plain memory of other processes ------------------------------------------------------------------------

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


cdef int ipc_memory_close(int device, uintptr_t address) noexcept nogil:
    cdef Range* found
    cdef int code = permitted(device)
    if code == 0:
        note_taking(address, IMPORTED, device)
        code = quiet(device)
    if code:
        return code
    code = INVALID_VALUE
    lock_memory()
    found = containing(memory, address)
    if found != NULL and found.start == address and found.kind == IMPORTED and found.device == device:
        drop_room(<void*>address, found.charged)
        drop_range(&memory, found)
        code = 0
    unlock_memory()
    return code
