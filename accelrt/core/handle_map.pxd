# A map from addresses (or stream handles) to records: open addressing, linear probing, at most half full.
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.status cimport NO_HOST_MEMORY

cdef struct Slot:
    uintptr_t key
    void* value      # NULL where the slot is empty

cdef struct AddressMap:
    Slot* slots
    size_t capacity  # a power of two, or 0
    size_t count
    int shift        # 64 - log2(capacity)


cdef inline size_t home(const AddressMap* map, uintptr_t key) noexcept nogil:
    # Fibonacci hashing: the top bits of the product depend on every bit of the key.
    return (<uint64_t>key * 0x9E3779B97F4A7C15ULL) >> map.shift


cdef inline void* map_find(const AddressMap* map, uintptr_t key) noexcept nogil:
    cdef size_t index
    if map.count == 0:
        return NULL
    index = home(map, key)
    while map.slots[index].value != NULL:
        if map.slots[index].key == key:
            return map.slots[index].value
        index = (index + 1) & (map.capacity - 1)
    return NULL


cdef inline void map_insert(AddressMap* map, uintptr_t key, void* value) noexcept nogil:
    # After map_reserve, for a key that is not in it.
    cdef size_t index = home(map, key)
    while map.slots[index].value != NULL:
        index = (index + 1) & (map.capacity - 1)
    map.slots[index].key = key
    map.slots[index].value = value
    map.count += 1


cdef inline int grow_slow(AddressMap* map) noexcept nogil:
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


cdef inline int map_reserve_more(AddressMap* map, size_t count) noexcept nogil:
    # Makes room for so many more: 0, or NO_HOST_MEMORY.
    cdef int code = 0
    while code == 0 and 2 * (map.count + count) > map.capacity:
        code = grow_slow(map)
    return code


cdef inline int map_reserve(AddressMap* map) noexcept nogil:
    return map_reserve_more(map, 1)


cdef inline void* map_remove(AddressMap* map, uintptr_t key) noexcept nogil:
    # The record, or NULL where there is none.
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


cdef inline void map_clear(AddressMap* map) noexcept nogil:
    free(map.slots)
    map.slots = NULL
    map.capacity = map.count = 0
