"""Page-locked memory of the driver's: its own (cuMemHostAlloc), or the operating system's, touched by several
threads and then registered (cuMemHostRegister), which is faster where pages are slow to come.

Both are refused beside a capture, and break it, unless the caller is relaxed.  Giving back waits for the
device's work, so callers do it outside captures only.
"""
from libc.stdint cimport uintptr_t

from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.driver.capture_guard cimport go_relaxed, restore_mode
cimport accelrt.driver.registry as registry
from accelrt.memory.host.block cimport PinnedSettings
from accelrt.memory.host.heap cimport attach, doom, drop_segment, new_segment, remove
from accelrt.memory.host.sizes cimport PAGE
from accelrt.memory.host.stats cimport time_call
from accelrt.status cimport NO_HOST_MEMORY, OUT_OF_MEMORY

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t* thread, void* attributes, void* (*run)(void*) noexcept, void* argument)
    int pthread_join(pthread_t thread, void** result)

cdef extern from "<sys/mman.h>" nogil:
    enum: PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void* address, size_t length, int protection, int flags, int file, long offset)
    int munmap(void* address, size_t length)

cdef extern from *:
    """
    #include <time.h>
    static inline long long accelrt_microseconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
    }
    """
    long long microseconds "accelrt_microseconds" () noexcept nogil

cdef enum:
    MAX_THREADS = 128

cdef struct Part:       # of a range whose pages are touched
    volatile char* start
    size_t size
    pthread_t thread
    bint started


cdef void* touch(void* data) noexcept nogil:
    cdef Part* part = <Part*>data
    cdef size_t offset = 0
    while offset < part.size:
        part.start[offset] = 0
        offset += PAGE
    return NULL


cdef void touch_all(uintptr_t address, size_t size, int threads) noexcept nogil:
    # A thread that cannot be started leaves its part to this one.
    cdef Part[MAX_THREADS] parts
    cdef size_t pages = size // PAGE, first, last
    cdef int index
    for index in range(threads):
        first, last = pages * index // threads, pages * (index + 1) // threads
        parts[index].start = <volatile char*>(address + first * PAGE)
        parts[index].size = (last - first) * PAGE
        parts[index].started = False
        if index and first < last:
            parts[index].started = pthread_create(&parts[index].thread, NULL, touch, &parts[index]) == 0
    for index in range(threads):
        if parts[index].started:
            pthread_join(parts[index].thread, NULL)
        else:
            touch(&parts[index])


cdef int map_and_register(int device, size_t size, int threads, uintptr_t* out_address) noexcept nogil:
    cdef void* room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef int code
    if room == MAP_FAILED:
        return OUT_OF_MEMORY
    touch_all(<uintptr_t>room, size, threads)
    code = registry.active().host_register(device, <uintptr_t>room, size)
    if code:
        munmap(room, size)
        return code
    out_address[0] = <uintptr_t>room
    return 0


cdef int unregister_and_unmap(int device, uintptr_t address, size_t size, bint used) noexcept nogil:
    # Unregistering does not promise to wait as freeing does, and the pages must not go under a copy.
    cdef int code = registry.active().device_synchronize(device) if used else 0
    if code == 0:
        code = registry.active().host_unregister(device, address)
    if code == 0:
        munmap(<void*>address, size)
    return code


cdef int take_relaxed(int device, size_t size, PinnedSettings* settings, uintptr_t* out_address) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    if settings.use_register:
        code = map_and_register(device, size, settings.register_threads, out_address)
    else:
        code = registry.active().host_alloc(device, size, out_address)
    restore_mode(registry.active(), mode)
    return code


cdef int take_memory(PinnedPool* pool, int device, size_t size, int kind, PinnedSegment** out_segment) noexcept nogil:
    cdef PinnedSettings settings
    cdef PinnedSegment* segment
    cdef uintptr_t address = 0
    cdef long long start
    cdef int code = 0
    if device < 0:
        code = registry.active().current_device(&device)
        device = max(device, 0)
    if code:
        return code
    spin_lock(&pool.lock)
    settings = pool.settings
    spin_unlock(&pool.lock)
    segment = new_segment(0, size, kind)  # first: with the memory in hand nothing may fail
    if segment == NULL:
        return NO_HOST_MEMORY
    start = microseconds()
    code = take_relaxed(device, size, &settings, &address)
    if code:
        drop_segment(segment)
        return code
    segment.address = address
    segment.device = device
    segment.registered = settings.use_register
    spin_lock(&pool.lock)
    time_call(&pool.stats.take, microseconds() - start)
    spin_unlock(&pool.lock)
    out_segment[0] = segment
    return 0


cdef int give_relaxed(PinnedSegment* segment, bint used) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    if segment.registered:
        code = unregister_and_unmap(segment.device, segment.address, segment.size, used)
    else:
        code = registry.active().host_free(segment.device, segment.address)
    restore_mode(registry.active(), mode)
    return code


cdef void take_back(PinnedPool* pool, PinnedSegment* segment) noexcept nogil:
    # As if it had never been detached.  attach finds the record that detach put back; should another thread have
    # used it up and the host have no more, the memory is lost to the cache.
    if attach(pool, segment):
        return
    pool.stats.segments.allocated -= 1
    pool.stats.segments.freed -= 1
    pool.stats.segment_bytes.allocated -= segment.size
    pool.stats.segment_bytes.freed -= segment.size
    if segment.uncached:
        remove(pool, segment.first)
        doom(pool, segment.first)


cdef int give_memory(PinnedPool* pool, PinnedSegment* segments) noexcept nogil:
    return give_segments(pool, segments, True)


cdef int give_unused(PinnedPool* pool, PinnedSegment* segments) noexcept nogil:
    return give_segments(pool, segments, False)


cdef int give_segments(PinnedPool* pool, PinnedSegment* segments, bint used) noexcept nogil:
    cdef PinnedSegment* segment
    cdef long long start
    cdef int code = 0
    while segments != NULL:
        segment = segments
        segments = segment.next
        start = microseconds()
        if code == 0:
            code = give_relaxed(segment, used)
            if code == 0:
                spin_lock(&pool.lock)
                time_call(&pool.stats.give, microseconds() - start)
                spin_unlock(&pool.lock)
                drop_segment(segment)
                continue
        spin_lock(&pool.lock)
        take_back(pool, segment)
        spin_unlock(&pool.lock)
    return code
