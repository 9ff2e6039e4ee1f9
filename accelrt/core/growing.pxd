# Arrays that grow by doubling.
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
