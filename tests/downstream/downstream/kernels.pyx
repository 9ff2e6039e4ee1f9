"""Kernels from a Cython author: launched without the GIL, and written for the host device."""
from libc.stdint cimport uint32_t, uintptr_t

from accelrt.api cimport (
    KernelBlock, check_status, graph_replay, graph_set_copy, graph_set_fill, graph_set_kernel, import_accelrt, kernel_launch,
    stream_synchronize,
)

import_accelrt()


cdef void add(const KernelBlock* where, void** arguments) noexcept nogil:
    # Each thread adds a number to its element.
    cdef uint32_t* at = (<uint32_t**>arguments[0])[0]
    cdef uint32_t number = (<uint32_t*>arguments[1])[0]
    cdef unsigned int thread
    for thread in range(where.block[0]):
        at[where.index[0] * where.block[0] + thread] += number


def address_of_add():
    """The address of a kernel of the host device: void add(uint32_t* at, uint32_t number)."""
    return <uintptr_t>&add


def launch(int device, uintptr_t stream, uintptr_t function, uintptr_t at, uint32_t number, int blocks, int rounds):
    """Launches a kernel so often, with blocks of 64 threads, waits, and returns the first status that is not 0."""
    cdef int code = 0, _index
    cdef void* arguments[2]
    arguments[0], arguments[1] = &at, &number
    with nogil:
        for _index in range(rounds):
            if code == 0:
                code = kernel_launch(device, stream, function, blocks, 1, 1, 64, 1, 1, 0, arguments)
        if code == 0:
            code = stream_synchronize(device, stream)
    return code


def launch_checked(int device, uintptr_t stream, uintptr_t function, uintptr_t at):
    """The same, once, with an exception for a status that is not 0."""
    cdef uint32_t number = 1
    cdef void* arguments[2]
    arguments[0], arguments[1] = &at, &number
    with nogil:
        check_status(kernel_launch(device, stream, function, 1, 1, 1, 1, 1, 1, 0, arguments), b"kernel_launch")


def replay_changed(
    int device, uintptr_t stream, uintptr_t graph, uintptr_t graph_exec, nodes, uintptr_t function, uintptr_t spare,
    uintptr_t at, uintptr_t to, uint32_t number,
):
    """Replays a fill, a kernel of (at, number) and a copy otherwise than they were captured, without the GIL.

    The fill is of 4 elements of 5 at `spare`, the kernel is launched with one block of 4 threads, and the copy is of 16
    bytes from `at` to `to`.

    Returns:
        the status codes of the three changes, and of the replay.
    """
    cdef uintptr_t fill, kernel, copy
    cdef void* arguments[2]
    cdef int[4] codes
    fill, kernel, copy = nodes
    arguments[0], arguments[1] = &at, &number
    with nogil:
        codes[0] = graph_set_fill(device, graph, graph_exec, fill, spare, 5, 4, 4)
        codes[1] = graph_set_kernel(device, graph, graph_exec, kernel, function, 1, 1, 1, 4, 1, 1, 0, arguments)
        codes[2] = graph_set_copy(device, graph, graph_exec, copy, to, at, 16)
        codes[3] = graph_replay(device, graph_exec, stream)
        if codes[3] == 0:
            codes[3] = stream_synchronize(device, stream)
    return list(codes)
