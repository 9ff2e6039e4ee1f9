"""The streams that live as long as the process, so that the allocator may query them at any time."""
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock

cdef AddressMap trusted  # under the lock below.  A forked child inherits it: harmless, as its handles are others
cdef int trusting = 0  # the spin lock of the map; no lock is taken under it


cdef int trust_stream(uintptr_t stream) noexcept nogil:
    # Adds a stream once; 0 or NO_HOST_MEMORY.
    cdef int code = 0
    spin_lock(&trusting)
    if map_find(&trusted, stream) == NULL:
        code = map_reserve(&trusted)
        if code == 0:
            map_insert(&trusted, stream, &trusted)  # any value but NULL: the map is a set
    spin_unlock(&trusting)
    return code


cdef bint is_trusted(uintptr_t stream) noexcept nogil:
    # 0 and 1 are the legacy default stream; 2, the per-thread default stream, is a different stream on each thread.
    cdef bint answer
    spin_lock(&trusting)
    answer = stream < 2 or map_find(&trusted, stream) != NULL
    spin_unlock(&trusting)
    return answer
