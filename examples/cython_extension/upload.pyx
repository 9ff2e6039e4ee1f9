"""Brings an array to the device in chunks, through two page-locked slots, without the GIL.

While one slot's chunk is on its way, the next chunk is put into the other slot.
"""
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from accelrt.api cimport (
    allocate, allocate_pinned, check_status, copy, event_lease, event_record, event_return, event_synchronize,
    import_accelrt, release, release_pinned, stream_lease, stream_return, stream_synchronize,
)

import_accelrt()  # compares versions

cdef struct Slot:
    uintptr_t host     # page-locked
    uintptr_t sent     # event: the chunk has left the slot
    bint is_used


cdef int take_slots(int device, Slot* slots, size_t chunk) noexcept nogil:
    cdef int index, code = 0
    for index in range(2):
        if code == 0:
            code = allocate_pinned(chunk, &slots[index].host)
        if code == 0:
            code = event_lease(device, False, True, &slots[index].sent)
    return code


cdef void give_slots(int device, Slot* slots) noexcept nogil:
    cdef int index
    for index in range(2):
        if slots[index].sent:
            event_return(device, slots[index].sent)
        release_pinned(slots[index].host)


cdef int send(int device, uintptr_t stream, uintptr_t memory, const unsigned char* data, size_t size, size_t chunk,
              Slot* slots) noexcept nogil:
    cdef size_t offset = 0, part
    cdef Slot* slot
    cdef int code = 0
    while offset < size and code == 0:
        slot = &slots[(offset // chunk) & 1]
        part = min(chunk, size - offset)
        if slot.is_used:
            code = event_synchronize(device, slot.sent)
        if code == 0:
            memcpy(<void*>slot.host, data + offset, part)
            code = copy(device, stream, memory + offset, slot.host, part)
        if code == 0:
            code = event_record(device, slot.sent, stream)
        slot.is_used = True
        offset += part
    return code


cdef int round_trip(int device, const unsigned char* data, unsigned char* out, size_t size, size_t chunk) noexcept nogil:
    cdef Slot[2] slots = [Slot(0, 0, False), Slot(0, 0, False)]
    cdef uintptr_t stream = 0, memory = 0
    cdef int waited, code = stream_lease(device, 0, &stream)
    if code == 0:
        code = allocate(device, size, stream, &memory)
    if code == 0:
        code = take_slots(device, slots, chunk)
    if code == 0:
        code = send(device, stream, memory, data, size, chunk, slots)
    if code == 0:
        code = copy(device, stream, <uintptr_t>out, memory, size)
    if stream:
        waited = stream_synchronize(device, stream)  # before anything that its work uses goes back
        code = code if code else waited
    give_slots(device, slots)
    release(device, memory)
    if stream:
        stream_return(device, stream)
    return code


def there_and_back(int device, const unsigned char[::1] data, unsigned char[::1] out, size_t chunk):
    """Copies data to the device, in chunks of so many bytes, and back to out.

    Raises:
        ValueError: out is shorter than data, or there is nothing to copy.
        CudaError: what accelrt's functions raise in Python.
    """
    if data.shape[0] == 0 or out.shape[0] < data.shape[0] or chunk == 0:
        raise ValueError(f"{data.shape[0]} bytes in chunks of {chunk} cannot go into {out.shape[0]}")
    cdef const unsigned char* source = &data[0]
    cdef unsigned char* target = &out[0]
    with nogil:
        check_status(round_trip(device, source, target, data.shape[0], chunk), b"there_and_back")
