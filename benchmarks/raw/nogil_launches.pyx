# cython: language_level=3
"""Launches through accelrt's Cython API: a loop without the GIL, compiled by bench_launch."""
from libc.stdint cimport int64_t, uintptr_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from accelrt.api cimport import_accelrt, kernel_launch, status_name

import_accelrt()


cdef int64_t now() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return <int64_t>time.tv_sec * 1000000000 + time.tv_nsec


def launches(int device, uintptr_t stream, uintptr_t function, uintptr_t address, long count):
    """Launches a kernel of one pointer count times; nanoseconds of the loop."""
    cdef void* arguments[1]
    cdef int code = 0
    cdef long _step
    cdef int64_t start, end
    arguments[0] = &address
    with nogil:
        start = now()
        for _step in range(count):
            code = kernel_launch(device, stream, function, 1, 1, 1, 1, 1, 1, 0, arguments)
            if code:
                break
        end = now()
    if code:
        raise RuntimeError(f"accelrt answered {status_name(code).decode()}")
    return end - start
