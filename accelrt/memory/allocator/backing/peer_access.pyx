"""Which devices may use a pool's pages beside its own.

Mapped pages are open to a device only where cuMemSetAccess says so; cuCtxEnablePeerAccess, which libraries call, opens plain
segments alone.  Once connect_peers was called, the pages of each pool are open to every device that has a pool and can reach
them.  A device without a pool would get a context by it, and is left out until its pool is made.
"""
from libc.stdint cimport uint64_t

from accelrt.core.locks cimport pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.memory.allocator.types cimport Page, Slot

cdef enum:
    DEVICES = 64

cdef Pool* joined[DEVICES]  # all pools with pages; they are never freed
cdef bint connected
cdef pthread_mutex_t joining  # guards both; the growth locks are taken under it


cdef int open_range(Pool* pool, uintptr_t address, size_t size, long* calls) noexcept nogil:
    # calls is raised by the driver's calls.
    cdef int device
    cdef int code = pool.table.memory_access(address, size, pool.device)
    calls[0] += 1
    for device in range(DEVICES if pool.peers else 0):
        if code == 0 and pool.peers >> device & 1:
            code = pool.table.memory_access(address, size, device)
            calls[0] += 1
    return code


cdef int grant(Pool* pool, int device) noexcept nogil:
    # Takes the growth lock, under which nobody maps or unmaps.
    cdef const Page* page
    cdef const Slot* slot
    cdef int can = 0
    cdef int code = pool.table.can_access_peer(device, pool.device, &can)
    if code or not can:
        return code
    pthread_mutex_lock(&pool.growth)
    page = pool.first_page if not pool.peers >> device & 1 else NULL
    while page != NULL and code == 0:
        slot = page.slots
        while slot != NULL and code == 0:
            if slot.mapped:
                code = pool.table.memory_access(slot.address, slot.size, device)
            slot = slot.after
        page = page.after
    if code == 0:
        pool.peers |= <uint64_t>1 << device
    pthread_mutex_unlock(&pool.growth)
    return code


cdef int connect(Pool* pool) noexcept nogil:
    # With each other pool, both ways.
    cdef Pool* other
    cdef int device
    cdef int code = 0
    for device in range(DEVICES):
        other = joined[device]
        if code == 0 and other != NULL and other != pool:
            code = grant(pool, other.device)
            if code == 0:
                code = grant(other, pool.device)
    return code


cdef int join_peers(Pool* pool) noexcept nogil:
    cdef int code = 0
    pthread_mutex_lock(&joining)
    if connected:
        code = connect(pool)
    if code == 0:
        joined[pool.device] = pool
    pthread_mutex_unlock(&joining)
    return code


cdef int connect_peers() noexcept nogil:
    global connected
    cdef int device
    cdef int code = 0
    pthread_mutex_lock(&joining)
    connected = True
    for device in range(DEVICES):
        if code == 0 and joined[device] != NULL:
            code = connect(joined[device])
    pthread_mutex_unlock(&joining)
    return code
