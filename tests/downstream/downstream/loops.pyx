"""What a Cython author does with accelrt: memory, streams, events, copies and graphs in nogil loops."""
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.api cimport (
    NOT_READY, SUCCESS,
    allocate, allocate_pinned, copy, current_device, current_stream, event_create, event_destroy, event_query,
    event_record, event_synchronize, explain_last_refusal, fill, graph_replay, import_accelrt, record_pinned_stream,
    record_stream, release,
    release_pinned, status_name, status_text, stream_query, stream_synchronize, stream_wait_event,
)

import_accelrt()


def churn(int device, uintptr_t stream, int rounds, size_t size):
    """Allocates and frees in a loop without the GIL; returns the bytes that it was given."""
    cdef uintptr_t address
    cdef uint64_t total = 0
    cdef int code = 0
    cdef int index
    with nogil:
        for index in range(rounds):
            code = allocate(device, size + 512 * (index & 3), stream, &address)
            if code:
                break
            total += size + 512 * (index & 3)
            code = release(device, address)
            if code:
                break
    if code:
        raise RuntimeError(status_text(code).decode())
    return total


def place():
    """The thread's current device and stream, as nogil code sees them."""
    cdef int device = -1
    cdef uintptr_t stream = 1
    cdef int code
    with nogil:
        code = current_device(&device)
        if code == SUCCESS:
            code = current_stream(device, &stream)
    return code, device, stream


def ordered_copy(int device, uintptr_t first, uintptr_t second, uintptr_t src, uintptr_t dst, size_t size, int value):
    """Fills on one stream, copies out on another that waits for it; returns a status code."""
    cdef uintptr_t middle = 0, event = 0
    cdef int code
    with nogil:
        code = allocate(device, size, first, &middle)
        if code == 0:
            code = event_create(device, False, &event)
        if code == 0:
            code = copy(device, first, middle, src, size)
        if code == 0:
            code = fill(device, first, middle, value, 1, size // 2)
        if code == 0:
            code = event_record(device, event, first)
        if code == 0:
            code = stream_wait_event(device, second, event)
        if code == 0:
            code = copy(device, second, dst, middle, size)
        if code == 0:
            code = record_stream(device, middle, second)
        if code == 0:
            code = event_synchronize(device, event)
        if code == 0:
            code = event_query(device, event)
        if code == 0:
            code = stream_synchronize(device, second)
        if code == 0:
            code = stream_query(device, second)
        if event:
            event_destroy(device, event)
        release(device, middle)
    return code


def replay(int device, uintptr_t graph, uintptr_t stream, int times):
    """Replays a graph without the GIL and waits; returns a status code."""
    cdef int code = 0
    cdef int _index
    with nogil:
        for _index in range(times):
            code = graph_replay(device, graph, stream)
            if code:
                break
        if code == 0:
            code = stream_synchronize(device, stream)
    return code


def refusals():
    """Names of what bad calls are told: a device that is not, an address that is not."""
    cdef uintptr_t address = 0
    return (
        status_name(allocate(-1, 512, 0, &address)).decode(),
        status_name(allocate(63, 512, 0, &address)).decode(),
        status_name(release(0, 12345)).decode(),
        status_name(NOT_READY).decode(),
    )


def why_refused(int device, size_t size):
    """What nogil code can say of a request that was refused; empty where it was served."""
    cdef char[8192] text
    cdef uintptr_t address
    cdef size_t length = 0
    with nogil:
        if allocate(device, size, 0, &address):
            length = explain_last_refusal(text, sizeof(text))
        else:
            release(device, address)
    return text[:min(length, sizeof(text) - 1)].decode()


def through_pinned(int device, uintptr_t stream, uintptr_t buffer, size_t size, int rounds):
    """Sends page-locked blocks, each filled with its number, to a buffer, and gives each back while its copy may be
    under way; returns a status code and that of giving the last one back again."""
    cdef uintptr_t pinned = 0
    cdef size_t offset
    cdef int code = 0
    cdef int index
    with nogil:
        for index in range(rounds):
            code = allocate_pinned(size, &pinned)
            if code:
                break
            for offset in range(size):
                (<unsigned char*>pinned)[offset] = <unsigned char>index
            code = copy(device, stream, buffer + index * size, pinned, size)
            if code == SUCCESS:
                code = record_pinned_stream(device, pinned + size // 2, stream)
            if code == SUCCESS:
                code = release_pinned(pinned)
            if code:
                break
    return code, release_pinned(pinned)
