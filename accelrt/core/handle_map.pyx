"""The map from addresses and handles to records; it knows nothing of either."""
from libc.stdlib cimport calloc, free

from accelrt.status cimport NO_HOST_MEMORY


cdef int map_reserve(AddressMap* map) noexcept nogil:
    if 2 * (map.count + 1) <= map.capacity:
        return 0
    return grow_slow(map)


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


cdef void map_insert(AddressMap* map, uintptr_t key, void* value) noexcept nogil:
    cdef size_t index = home(map, key)
    while map.slots[index].value != NULL:
        index = (index + 1) & (map.capacity - 1)
    map.slots[index].key = key
    map.slots[index].value = value
    map.count += 1


cdef void* map_remove(AddressMap* map, uintptr_t key) noexcept nogil:
    cdef size_t mask = map.capacity - 1
    cdef size_t index, hole
    cdef void* value
    if map.count == 0:
        return NULL
    hole = home(map, key)
    while map.slots[hole].value == NULL or map.slots[hole].key != key:
        if map.slots[hole].value == NULL:
            return NULL
        hole = (hole + 1) & mask
    value = map.slots[hole].value
    # Close the gap: an entry moves back unless its home lies between the hole and itself.
    index = hole
    while True:
        index = (index + 1) & mask
        if map.slots[index].value == NULL:
            break
        if ((index - home(map, map.slots[index].key)) & mask) >= ((index - hole) & mask):
            map.slots[hole] = map.slots[index]
            hole = index
    map.slots[hole].value = NULL
    map.count -= 1
    return value


cdef void map_clear(AddressMap* map) noexcept nogil:
    free(map.slots)
    map.slots = NULL
    map.capacity = map.count = 0
