"""Whether new windows are worth what they cost.

A window is an investment: it calls the driver once for each of its pages, and costs nothing whenever it is
used again.  Work that repeats makes few, however long it runs; work whose sizes never come again makes one at
nearly every miss.  So windows are paid out of a credit that allocations earn, slowly, and windows that are
used again pay back.  While it is overdrawn, the ladder rather takes more memory, within bounds.  All is
counted, nothing timed: the same requests find the same credit on every device.
"""
from libc.stdint cimport SIZE_MAX, int64_t

from accelrt.memory.block cimport Heap
from accelrt.memory.share cimport made
from accelrt.memory.sizes cimport LARGE, SMALL
from accelrt.memory.stats cimport ALLOCATION

cdef enum:
    MOST = 8192        # of credit, and of debt; an allocation earns 1
    WINDOW_PRICE = 64  # beside 1 a page: windows that are wanted again are far rarer than one in so many


cdef int64_t allocations(const Pool* pool) noexcept nogil:
    cdef const Heap* heap = pool.awake
    cdef int64_t answer = pool.asleep_made
    while heap != NULL:
        answer += made(heap, SMALL, ALLOCATION) + made(heap, LARGE, ALLOCATION)
        heap = heap.next_awake
    return answer


cdef void open_credit(Pool* pool) noexcept nogil:
    pool.credit = MOST
    pool.refused = SIZE_MAX


cdef void earn(Pool* pool) noexcept nogil:
    cdef int64_t count = allocations(pool)
    pool.credit = min(<int64_t>MOST, pool.credit + count - pool.earned)
    pool.earned = count


cdef bint is_overdrawn(Pool* pool) noexcept nogil:
    earn(pool)
    return pool.credit < 0


cdef void forget_earned(Pool* pool) noexcept nogil:
    earn(pool)
    pool.earned = 0


cdef void charge(Pool* pool, size_t pages) noexcept nogil:
    earn(pool)
    pool.credit = max(-<int64_t>MOST, pool.credit - <int64_t>(WINDOW_PRICE + pages))


cdef void repay(Pool* pool, size_t pages) noexcept nogil:
    earn(pool)
    pool.credit = min(<int64_t>MOST, pool.credit + <int64_t>(WINDOW_PRICE + pages))
