"""The host device's virtual memory: reservations, physical handles, and handles mapped into reservations.

A handle may be mapped at several addresses at once, which then show the same bytes.
"""
from libc.stdlib cimport calloc, free

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.memory cimport (
    MAPPED, PAGE, RESERVED, UNKNOWN_MEMORY, Physical, Range,
    add_range, containing, drop_range, drop_room, file_of, find_room, give_bytes, hide, known_device, last_before,
    lock_memory, memory, show, take_bytes, unlock_memory,
)
from accelrt.status cimport INVALID_DEVICE, INVALID_VALUE, NO_HOST_MEMORY, NOT_SUPPORTED, OUT_OF_MEMORY

cdef extern from "<sys/mman.h>" nogil:
    int mprotect(void* address, size_t size, int protection)
    enum:
        PROT_NONE
        PROT_READ
        PROT_WRITE

# Guarded by the lock of memory.pyx.
cdef Range* reservations = NULL
cdef AddressMap physicals
cdef uintptr_t next_handle = 0x5000000000  # never reused


cdef size_t count_physicals() noexcept nogil:
    cdef size_t count
    lock_memory()
    count = physicals.count
    unlock_memory()
    return count


cdef int reserve(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil:
    cdef Range made
    cdef void* room
    cdef int code
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


cdef int unreserve(uintptr_t address, size_t size) noexcept nogil:
    cdef Range* found
    cdef const Range* mapped
    cdef int code = 0
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


cdef bint is_reserved(uintptr_t address) noexcept nogil:
    cdef bint answer
    lock_memory()
    answer = containing(reservations, address) != NULL
    unlock_memory()
    return answer


cdef int create(int device, size_t size, uintptr_t* out_handle) noexcept nogil:
    global next_handle
    cdef Physical* made
    cdef int code
    out_handle[0] = 0
    if size == 0 or size % PAGE:
        return INVALID_VALUE
    made = <Physical*>calloc(1, sizeof(Physical))
    if made == NULL:
        return NO_HOST_MEMORY
    made.device = device
    made.size = size
    made.alive = True
    lock_memory()
    code = map_reserve(&physicals)
    if code == 0:
        code = take_bytes(device, size, &made.offset)
    if code == 0:
        next_handle += 16
        map_insert(&physicals, next_handle, made)
        out_handle[0] = next_handle
    unlock_memory()
    if code:
        free(made)
    return code


cdef void let_go(Physical* physical) noexcept nogil:
    if physical.alive or physical.mappings:
        return
    give_bytes(physical.device, physical.offset, physical.size)
    free(physical)


cdef int release(uintptr_t handle) noexcept nogil:
    cdef Physical* found
    lock_memory()
    found = <Physical*>map_remove(&physicals, handle)
    if found != NULL:
        found.alive = False
        let_go(found)
    unlock_memory()
    return 0 if found != NULL else INVALID_VALUE


cdef bint is_clear(uintptr_t address, size_t size) noexcept nogil:
    # Nothing is mapped in [address, address + size), and a reservation holds it whole.
    cdef const Range* reservation = containing(reservations, address)
    cdef const Range* mapped = last_before(memory, address + size)
    if reservation == NULL or address + size > reservation.start + reservation.size:
        return False
    return mapped == NULL or mapped.start + mapped.size <= address


cdef int map_pages(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil:
    cdef Physical* physical
    cdef Range made
    cdef int code = 0
    lock_memory()
    physical = <Physical*>map_find(&physicals, handle)
    if physical == NULL or size == 0 or size % PAGE or address % PAGE:
        code = INVALID_VALUE
    elif size != physical.size:
        code = NOT_SUPPORTED
    elif not is_clear(address, size):
        code = INVALID_VALUE
    elif not show(<void*>address, size, file_of(physical.device), physical.offset, PROT_NONE):
        code = OUT_OF_MEMORY
    else:
        made.start = address
        made.size = size
        made.device = physical.device
        made.kind = MAPPED
        made.physical = physical
        made.open = False
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


cdef int open_pages(uintptr_t address, size_t size, int device) noexcept nogil:
    cdef uintptr_t at = address
    cdef Range* found
    cdef int code = 0
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
        at += found.size
    unlock_memory()
    return code


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


cdef int unmap_pages(uintptr_t address, size_t size) noexcept nogil:
    # Holes are no matter, a part of a mapping is.
    cdef Range* found
    cdef int code = 0
    if size == 0:
        return INVALID_VALUE
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
