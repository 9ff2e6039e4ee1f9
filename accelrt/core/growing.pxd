# Arrays that grow by doubling, and places in those whose items are in order.
from libc.stdint cimport uintptr_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from accelrt.status cimport NO_HOST_MEMORY


cdef inline int ensure_room(void* array, size_t count, size_t* capacity, size_t item_size) noexcept nogil:
    # Makes room for one item behind count; array is where the pointer to memory of malloc's, or NULL, is.  0, or
    # NO_HOST_MEMORY, with everything as it was.
    cdef size_t room = 2 * capacity[0] + 16
    cdef void* items
    if count < capacity[0]:
        return 0
    memcpy(&items, array, sizeof(void*))
    items = realloc(items, room * item_size)
    if items == NULL:
        return NO_HOST_MEMORY
    memcpy(array, &items, sizeof(void*))
    capacity[0] = room
    return 0


cdef inline size_t count_to(const uintptr_t* first, size_t count, size_t item_size, uintptr_t most) noexcept nogil:
    # How many of so many addresses in ascending order, one in each item, are at most that.
    cdef size_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if (<const uintptr_t*>(<const char*>first + middle * item_size))[0] <= most:
            low = middle + 1
        else:
            high = middle
    return low
