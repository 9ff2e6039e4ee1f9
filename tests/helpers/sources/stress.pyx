"""Threads that allocate, hand over and free without the GIL, through accelrt's Cython API."""
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from accelrt.api cimport (
    allocate, allocate_pinned, import_accelrt, record_pinned_stream, record_stream, release, release_pinned, status_text,
)

cdef extern from *:
    """
    /* Relaxed, so that a hand-over orders nothing: whatever the allocator needs, it has to order itself. */
    #define swap_relaxed(place, value) __atomic_exchange_n(place, value, __ATOMIC_RELAXED)
    #define load_relaxed(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #include <sched.h>
    """
    uintptr_t swap "swap_relaxed" (uintptr_t* place, uintptr_t value) noexcept nogil
    uintptr_t load "load_relaxed" (uintptr_t* place) noexcept nogil
    int sched_yield() noexcept nogil

import_accelrt()

cdef enum:
    HELD = 24      # most blocks that a thread holds
    BOXES = 64     # in which threads leave blocks for one another

cdef uintptr_t boxes[2][BOXES]  # of the device's memory, and of page-locked memory

cdef uintptr_t started = 1      # whether churn goes on at once

cdef struct Worker:
    int device
    uintptr_t own         # the stream that only this thread uses
    uintptr_t shared      # one that all of them use
    uint32_t chance
    int64_t allocations
    int64_t bytes
    uintptr_t[HELD] held


cdef uint32_t draw(Worker* worker, uint32_t below) noexcept nogil:
    # xorshift32 (Marsaglia, 2003)
    worker.chance ^= worker.chance << 13
    worker.chance ^= worker.chance >> 17
    worker.chance ^= worker.chance << 5
    return worker.chance % below


cdef size_t draw_size(Worker* worker) noexcept nogil:
    # Mostly what one segment serves many times over, now and then what takes a segment for itself.
    cdef uint32_t kind = draw(worker, 64)
    if kind == 0:
        return 1 + draw(worker, 12 << 20)
    if kind < 8:
        return 1 + draw(worker, 2 << 20)
    return 1 + draw(worker, 20_000)


cdef int take(Worker* worker, bint pinned, uintptr_t* out_address) noexcept nogil:
    cdef size_t size = draw_size(worker)
    cdef uintptr_t stream = worker.own if draw(worker, 2) else worker.shared
    cdef int code
    if pinned:
        code = allocate_pinned(size, out_address)
    else:
        code = allocate(worker.device, size, stream, out_address)
    if code == 0:
        worker.allocations += 1
        worker.bytes += size
    return code


cdef int share(Worker* worker, bint pinned, uintptr_t address) noexcept nogil:
    # Another stream is said to use the block, which is then pending for a while once it is given back.
    cdef uintptr_t stream = worker.shared if draw(worker, 2) else worker.own
    if pinned:
        return record_pinned_stream(worker.device, address, stream)
    return record_stream(worker.device, address, stream)


cdef int put(Worker* worker, bint pinned, uintptr_t address) noexcept nogil:
    # Every fourth block is left to the thread that looks into the box next, and what lay there is freed instead.
    if draw(worker, 4) == 0:
        address = swap(&boxes[pinned][draw(worker, BOXES)], address)
    return release_pinned(address) if pinned else release(worker.device, address)


cdef int step(Worker* worker, bint pinned) noexcept nogil:
    cdef uint32_t place = draw(worker, HELD)
    cdef uintptr_t address = worker.held[place]
    cdef int code = 0
    worker.held[place] = 0
    if address == 0:
        return take(worker, pinned, &worker.held[place])
    if draw(worker, 32) == 0:
        code = share(worker, pinned, address)
    return code if code else put(worker, pinned, address)


cdef int run(Worker* worker, bint pinned, int rounds) noexcept nogil:
    cdef int index, _round, code
    while not load(&started):
        sched_yield()
    for _round in range(rounds):
        code = step(worker, pinned)
        if code:
            return code
    for index in range(HELD):
        code = put(worker, pinned, worker.held[index])
        if code:
            return code
    return 0


def churn(int device, uintptr_t own, uintptr_t shared, uint32_t seed, int rounds, bint pinned=False):
    """Takes and frees blocks at random; returns how many were taken, and the bytes that were asked for.

    Some are left for other threads, who free them; empty_boxes() frees the last ones.
    """
    cdef Worker worker
    cdef int code, index
    worker.device, worker.own, worker.shared, worker.chance = device, own, shared, seed
    worker.allocations = worker.bytes = 0
    for index in range(HELD):
        worker.held[index] = 0
    with nogil:
        code = run(&worker, pinned, rounds)
    if code:
        raise RuntimeError(status_text(code).decode())
    return worker.allocations, worker.bytes


def empty_boxes(int device):
    """Frees what no thread took out of the boxes."""
    cdef int index, code = 0
    with nogil:
        for index in range(BOXES):
            code = code or release(device, swap(&boxes[0][index], 0))
            code = code or release_pinned(swap(&boxes[1][index], 0))
    if code:
        raise RuntimeError(status_text(code).decode())


def hold():
    """Makes every churn wait, without the GIL, for go()."""
    swap(&started, 0)


def go():
    """Lets every churn go on; another thread learns nothing else by that."""
    swap(&started, 1)
