# The host device's conditions and the bodies that they govern.  All under the queue's lock.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.host_queue cimport Graph, HostStream, Work

cdef Graph* find_body(uintptr_t handle) noexcept nogil  # NULL where it is none
cdef void keep_body(Graph* body) noexcept nogil  # of a node that was added; prepare_branch made room for it
cdef void forget_body(const Graph* body) noexcept nogil  # the caller frees it

# Of the graph that the stream captures into, and of those that it is within.  What is prepared is the caller's to
# add, or where that fails to free.
cdef int new_condition(HostStream* stream, uint64_t* out_condition) noexcept nogil
cdef int prepare_set(HostStream* stream, uint64_t condition, uintptr_t address, Work* out_work) noexcept nogil
cdef int prepare_branch(HostStream* stream, uint64_t condition, bint repeats, Work* out_work) noexcept nogil
