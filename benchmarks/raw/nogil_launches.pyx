# cython: language_level=3
"""Launches, and changes of a graph's node, through accelrt's Cython API: loops without the GIL."""
from libc.stdint cimport int64_t, uintptr_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from accelrt.api cimport check_status, graph_set_kernel, import_accelrt, kernel_launch

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
    check_status(code, b"kernel_launch")
    return end - start


def updates(int device, handles, uintptr_t function, addresses, long count):
    """Gives a kernel node one of two pointers by turns, count times; nanoseconds of the loop.

    Arguments:
        handles: of the graph, its instance and the node.
    """
    cdef uintptr_t graph, graph_exec, node
    cdef uintptr_t[2] pointers
    cdef void* arguments[1]
    cdef int code = 0
    cdef long step
    cdef int64_t start, end
    graph, graph_exec, node = handles
    pointers[0], pointers[1] = addresses
    with nogil:
        start = now()
        for step in range(count):
            arguments[0] = &pointers[step & 1]
            code = graph_set_kernel(device, graph, graph_exec, node, function, 1, 1, 1, 1, 1, 1, 0, arguments)
            if code:
                break
        end = now()
    check_status(code, b"graph_set_kernel")
    return end - start
