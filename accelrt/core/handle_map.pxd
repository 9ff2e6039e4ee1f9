# A map from addresses (or stream handles) to records: open addressing, linear probing, at most half full.
from libc.stdint cimport uintptr_t, uint64_t

cdef struct Slot:
    uintptr_t key
    void* value      # NULL where the slot is empty

cdef struct AddressMap:
    Slot* slots
    size_t capacity  # a power of two, or 0
    size_t count
    int shift        # 64 - log2(capacity)

cdef int map_reserve(AddressMap* map) noexcept nogil  # room for one more; 0, or NO_HOST_MEMORY
cdef void map_insert(AddressMap* map, uintptr_t key, void* value) noexcept nogil  # after map_reserve; key is new
cdef void* map_remove(AddressMap* map, uintptr_t key) noexcept nogil  # NULL where there is none
cdef void map_clear(AddressMap* map) noexcept nogil


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
