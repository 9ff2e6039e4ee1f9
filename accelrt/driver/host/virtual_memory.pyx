"""The host driver's rows for virtual memory: reservations, physical handles, and handles mapped into reservations.

A handle may be mapped at several addresses at once, which then show the same bytes.  Memory that other processes may have
comes from a file of its own, whose descriptor is what they get.
"""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.memory cimport (
    MAPPED, PAGE, RESERVED, UNKNOWN_MEMORY, Physical, Range, add_range, containing, drop_range, drop_room, file_of,
    find_room, give_bytes, hide, known_device, last_before, lock_memory, memory, reservations, show, take_bytes, uncharge,
    unlock_memory,
)
from accelrt.driver.host.stream cimport gate, gate_any
from accelrt.driver.table cimport Table
from accelrt.status cimport (
    INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, NO_HOST_MEMORY, OPERATING_SYSTEM, OUT_OF_MEMORY,
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

include "virtual_memory_rows.pxi"


cdef int granularity(int device, size_t* out_size) noexcept nogil:
    out_size[0] = PAGE
    return gate(device)


# --- reservations ------------------------------------------------------------------------------------------

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


# --- physical memory --------------------------------------------------------------------------------------

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


# --- mappings ----------------------------------------------------------------------------------------------

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


cdef int memory_unmap(uintptr_t address, size_t size) noexcept nogil:
    # Holes are no matter, a part of a mapping is.
    cdef Range* found
    cdef int code = gate_any()
    if code or size == 0:
        return code if code else INVALID_VALUE
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
