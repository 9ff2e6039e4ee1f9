# cython: language_level=3
"""Allocation through accelrt's Cython API: a loop without the GIL, compiled by bench_alloc."""
from libc.stdint cimport int64_t, uintptr_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from accelrt.api cimport allocate, import_accelrt, release, status_name

import_accelrt()


cdef int64_t now() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return <int64_t>time.tv_sec * 1000000000 + time.tv_nsec


cdef int pair(int device, size_t size, uintptr_t stream) noexcept nogil:
    cdef uintptr_t address = 0
    cdef int code = allocate(device, size, stream, &address)
    return code if code else release(device, address)


def pairs(int device, size_t size, uintptr_t stream, long count):
    """Allocates and frees count times; answers when it began and ended, in nanoseconds of the monotonic clock."""
    cdef int code = 0
    cdef long _step
    cdef int64_t start, end
    with nogil:
        start = now()
        for _step in range(count):
            code = pair(device, size, stream)
            if code:
                break
        end = now()
    if code:
        raise RuntimeError(f"accelrt answered {status_name(code).decode()}")
    return start, end
