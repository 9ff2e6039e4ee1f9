"""The streams that live as long as the process, so that the allocator may ask them at any time."""
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_reserve
from accelrt.core.locks cimport spin_lock, spin_unlock

cdef AddressMap trusted  # under the lock; forks inherit it, which is harmless: handles of a child are its own
cdef int trusting = 0


cdef int trust_stream(uintptr_t stream) noexcept nogil:
    cdef int code = 0
    spin_lock(&trusting)
    if map_find(&trusted, stream) == NULL:
        code = map_reserve(&trusted)
        if code == 0:
            map_insert(&trusted, stream, &trusted)  # any value but NULL: the map is a set
    spin_unlock(&trusting)
    return code


cdef bint is_trusted(uintptr_t stream) noexcept nogil:
    # 0 and 1 are the legacy default stream; 2, the thread's own, is another one for each who asks.
    cdef bint answer
    spin_lock(&trusting)
    answer = stream < 2 or map_find(&trusted, stream) != NULL
    spin_unlock(&trusting)
    return answer
