# Who waits for whom within a capture: sets of a graph's nodes, under the queue's lock.
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from accelrt.status cimport NO_HOST_MEMORY

# Nodes that an event, or the next work of a stream, comes after.
cdef struct Frontier:
    int* nodes
    int count
    int capacity


cdef inline void clear_frontier(Frontier* frontier) noexcept nogil:
    free(frontier.nodes)
    memset(frontier, 0, sizeof(Frontier))


cdef inline int add_to_frontier(Frontier* frontier, int node) noexcept nogil:
    cdef int* larger
    cdef int index
    for index in range(frontier.count):
        if frontier.nodes[index] == node:
            return 0
    if frontier.count == frontier.capacity:
        larger = <int*>realloc(frontier.nodes, (2 * frontier.capacity + 4) * sizeof(int))
        if larger == NULL:
            return NO_HOST_MEMORY
        frontier.nodes = larger
        frontier.capacity = 2 * frontier.capacity + 4
    frontier.nodes[frontier.count] = node
    frontier.count += 1
    return 0


cdef inline int join_frontier(Frontier* to, const Frontier* origin) noexcept nogil:
    cdef int index
    cdef int code = 0
    for index in range(origin.count):
        code = code or add_to_frontier(to, origin.nodes[index])
    return code


cdef inline int copy_frontier(Frontier* to, const Frontier* origin) noexcept nogil:
    to.count = 0
    return join_frontier(to, origin)
