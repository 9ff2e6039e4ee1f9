"""The host device's memory: one sparse memory file a device, mapped wherever it is asked for, and the addresses in use.

An offset of the file is used once, so that what was mapped there before can never be seen again; its pages
go back to the system when a hole is punched.  Pages that are never touched cost nothing.

What is mapped, and what is reserved for mappings, is a range of addresses; the rows are in memory.pyx.
"""
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.status cimport INVALID_DEVICE, NOT_SUPPORTED, NO_HOST_MEMORY, OUT_OF_MEMORY

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <linux/falloc.h>
    #include <linux/memfd.h>
    #include <pthread.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int accelrt_memory_file(void) {  /* or -errno */
        int file = (int)syscall(SYS_memfd_create, "accelrt", MFD_CLOEXEC), error = errno;
        if (file < 0) return -error;
        if (ftruncate(file, 1L << 60) == 0) return file;
        error = errno;
        close(file);
        return -error;
    }
    static __thread int accelrt_lacks_addresses;  /* why the thread's last refusal for want of memory was one */
    static int accelrt_punch(int file, long offset, long size) {
        return (int)syscall(SYS_fallocate, file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
    }
    """
    int memory_file "accelrt_memory_file"() noexcept nogil
    int close_file "close" (int file) noexcept nogil
    bint lacks_addresses "accelrt_lacks_addresses"
    int punch "accelrt_punch"(int file, long offset, long size) noexcept nogil
    void* mmap(void* address, size_t size, int protection, int flags, int file, long offset) noexcept nogil
    int munmap(void* address, size_t size) noexcept nogil
    enum:
        PROT_NONE
        PROT_READ
        PROT_WRITE
        MAP_SHARED
        MAP_PRIVATE
        MAP_FIXED
        MAP_ANONYMOUS
        MAP_NORESERVE
    void* MAP_FAILED

cdef struct Device:
    int file
    size_t capacity
    size_t used
    long next_offset

cdef pthread_mutex_t lock
cdef Device[MAX_HOST_DEVICES] devices
cdef int device_total = 0
cdef int open_errno = 0   # why no memory file could be made
cdef Range* memory = NULL
cdef Range* reservations = NULL
cdef uint32_t weight_seed = 0x2545F491
cdef size_t[KINDS] alive  # ranges, by kind


cdef int memory_open(int count, size_t capacity) noexcept nogil:
    global device_total, open_errno
    cdef int device
    for device in range(count):
        devices[device].file = memory_file()
        devices[device].capacity = capacity
        if devices[device].file < 0:
            open_errno = -devices[device].file
            close_files(device)
            return NOT_SUPPORTED
    device_total = count
    return 0


cdef void close_files(int count) noexcept nogil:
    cdef int device
    for device in range(count):
        close_file(devices[device].file)


cdef int memory_open_errno() noexcept nogil:
    return open_errno


cdef bint take_lack_of_addresses() noexcept nogil:
    global lacks_addresses
    cdef bint answer = lacks_addresses
    lacks_addresses = False
    return answer


cdef void lock_memory() noexcept nogil:
    pthread_mutex_lock(&lock)


cdef void unlock_memory() noexcept nogil:
    pthread_mutex_unlock(&lock)


# --- ranges ------------------------------------------------------------------------------------------------

cdef Range* last_before(Range* ranges, uintptr_t end) noexcept nogil:
    cdef Range* found = NULL
    while ranges != NULL:
        if ranges.start < end:
            found = ranges
            ranges = ranges.right
        else:
            ranges = ranges.left
    return found


cdef Range* containing(Range* ranges, uintptr_t address) noexcept nogil:
    cdef Range* found = last_before(ranges, address + 1)
    return found if found != NULL and address - found.start < found.size else NULL


cdef uint32_t next_weight() noexcept nogil:
    # xorshift32 (Marsaglia, 2003)
    global weight_seed
    weight_seed ^= weight_seed << 13
    weight_seed ^= weight_seed >> 17
    weight_seed ^= weight_seed << 5
    return weight_seed


cdef int add_range(Range** ranges, const Range* added) noexcept nogil:
    cdef Range* made = <Range*>malloc(sizeof(Range))
    cdef Range** low
    cdef Range** high
    cdef Range* rest
    if made == NULL:
        return NO_HOST_MEMORY
    made[0] = added[0]
    made.weight = next_weight()
    while ranges[0] != NULL and ranges[0].weight >= made.weight:
        ranges = &ranges[0].left if made.start < ranges[0].start else &ranges[0].right
    rest = ranges[0]
    ranges[0] = made
    low, high = &made.left, &made.right
    while rest != NULL:  # split what hung here into what starts below the range and what starts above it
        if rest.start < made.start:
            low[0] = rest
            low = &rest.right
            rest = rest.right
        else:
            high[0] = rest
            high = &rest.left
            rest = rest.left
    low[0] = high[0] = NULL
    alive[added.kind] += 1
    return 0


cdef void drop_range(Range** ranges, Range* dropped) noexcept nogil:
    cdef Range* low = dropped.left
    cdef Range* high = dropped.right
    while ranges[0] != dropped:
        ranges = &ranges[0].left if dropped.start < ranges[0].start else &ranges[0].right
    while low != NULL and high != NULL:  # join the two halves
        if low.weight >= high.weight:
            ranges[0] = low
            ranges = &low.right
            low = low.right
        else:
            ranges[0] = high
            ranges = &high.left
            high = high.left
    ranges[0] = low if low != NULL else high
    alive[dropped.kind] -= 1
    free(dropped)


cdef int owner_of(uintptr_t address, size_t size) noexcept nogil:
    cdef Range* found
    cdef uintptr_t end = address + size
    cdef int owner = UNKNOWN_MEMORY
    pthread_mutex_lock(&lock)
    found = containing(memory, address)
    if found != NULL:
        owner = found.device
    while found != NULL and owner != UNKNOWN_MEMORY:
        if not found.open or found.device != owner:
            owner = UNKNOWN_MEMORY
        elif found.start + found.size >= end:
            break
        else:
            found = containing(memory, found.start + found.size)
            if found == NULL:
                owner = UNKNOWN_MEMORY
    pthread_mutex_unlock(&lock)
    return owner


cdef int device_of(uintptr_t address) noexcept nogil:
    cdef Range* found
    cdef int owner
    pthread_mutex_lock(&lock)
    found = containing(memory, address)
    owner = found.device if found != NULL else UNKNOWN_MEMORY
    pthread_mutex_unlock(&lock)
    return owner


cdef bint is_known(uintptr_t address) noexcept nogil:
    return device_of(address) != UNKNOWN_MEMORY


cdef bint is_reserved(uintptr_t address) noexcept nogil:
    cdef bint answer
    pthread_mutex_lock(&lock)
    answer = containing(reservations, address) != NULL
    pthread_mutex_unlock(&lock)
    return answer


cdef void memory_counts(size_t* counts) noexcept nogil:
    cdef int device
    pthread_mutex_lock(&lock)
    counts[0] = alive[PLAIN] + alive[IMPORTED]
    counts[1] = 0
    for device in range(device_total):
        counts[1] += devices[device].used
    counts[2] = alive[RESERVED]
    counts[3] = alive[PINNED] + alive[REGISTERED]
    pthread_mutex_unlock(&lock)


cdef int known_device(int device) noexcept nogil:
    return device >= 0 and device < device_total


cdef int file_of(int device) noexcept nogil:
    return devices[device].file


cdef int memory_figures(int device, size_t* out_free, size_t* out_total) noexcept nogil:
    if device < 0 or device >= device_total:
        return INVALID_DEVICE
    pthread_mutex_lock(&lock)
    out_free[0] = devices[device].capacity - devices[device].used
    out_total[0] = devices[device].capacity
    pthread_mutex_unlock(&lock)
    return 0


# --- bytes -------------------------------------------------------------------------------------------------

cdef size_t rounded(size_t size, size_t unit) noexcept nogil:
    return (size + unit - 1) & ~(unit - 1)


cdef int take_bytes(int device, size_t size, long* out_offset) noexcept nogil:
    global lacks_addresses
    if size > devices[device].capacity - devices[device].used:
        lacks_addresses = False
        return OUT_OF_MEMORY
    devices[device].used += size
    out_offset[0] = devices[device].next_offset
    devices[device].next_offset += size
    return 0


cdef void give_bytes(int device, long offset, size_t size) noexcept nogil:
    # A hole that cannot be punched costs pages of the host, never correctness.
    punch(devices[device].file, offset, size)
    uncharge(device, size)


cdef void uncharge(int device, size_t size) noexcept nogil:
    devices[device].used -= size


cdef void* find_room(size_t size, size_t alignment) noexcept nogil:
    # Addresses without access, aligned: what is too much at either end goes back.
    cdef size_t padded = size + alignment
    cdef char* start = <char*>mmap(NULL, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    cdef char* aligned
    global lacks_addresses
    if <void*>start == MAP_FAILED:
        lacks_addresses = True
        return NULL
    aligned = <char*>rounded(<size_t>start, alignment)
    if aligned > start:
        munmap(start, aligned - start)
    if start + padded > aligned + size:
        munmap(aligned + size, start + padded - aligned - size)
    return aligned


cdef bint show(void* address, size_t size, int file, long offset, int protection) noexcept nogil:
    global lacks_addresses
    cdef bint shown = mmap(
        address, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, offset) != MAP_FAILED
    if not shown:
        lacks_addresses = True
    return shown


cdef void hide(void* address, size_t size) noexcept nogil:
    mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0)


cdef void drop_room(void* address, size_t size) noexcept nogil:
    munmap(address, size)


cdef void* take_pages(size_t size) noexcept nogil:
    global lacks_addresses
    cdef void* taken = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if taken == MAP_FAILED:
        lacks_addresses = True
        return NULL
    return taken


pthread_mutex_init(&lock, NULL)
