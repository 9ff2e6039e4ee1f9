"""The map from addresses and handles to records; it knows nothing of either."""
from libc.stdlib cimport calloc, free

from accelrt.status cimport NO_HOST_MEMORY


cdef int map_reserve(AddressMap* map) noexcept nogil:
    return map_reserve_more(map, 1)


cdef int map_reserve_more(AddressMap* map, size_t count) noexcept nogil:
    cdef int code = 0
    while code == 0 and 2 * (map.count + count) > map.capacity:
        code = grow_slow(map)
    return code


cdef int grow_slow(AddressMap* map) noexcept nogil:
    cdef AddressMap larger
    cdef size_t index
    larger.capacity = map.capacity * 2 if map.capacity else 64
    larger.shift = map.shift - 1 if map.capacity else 58
    larger.count = 0
    larger.slots = <Slot*>calloc(larger.capacity, sizeof(Slot))
    if larger.slots == NULL:
        return NO_HOST_MEMORY
    for index in range(map.capacity):
        if map.slots[index].value != NULL:
            map_insert(&larger, map.slots[index].key, map.slots[index].value)
    free(map.slots)
    map[0] = larger
    return 0


cdef void map_clear(AddressMap* map) noexcept nogil:
    free(map.slots)
    map.slots = NULL
    map.capacity = map.count = 0
