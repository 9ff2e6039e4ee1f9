# Graphs of nogil code, for api.pyx.  A graph is named by the address of its record; one that is not, or no longer,
# a graph's answers INVALID_HANDLE.  Any thread, without the GIL; what changes a graph, one thread at a time.
from libc.stdint cimport uint64_t, uintptr_t

cdef enum:  # states
    EMPTY = 0      # its capture failed
    CAPTURING = 1
    CAPTURED = 2
    READY = 3      # to be launched

cdef int begin_graph(int device, uintptr_t stream, int mode, uint64_t id0, uint64_t id1,
                     uintptr_t* out_graph) noexcept nogil
cdef int end_graph(uintptr_t graph) noexcept nogil
cdef int instantiate_graph(uintptr_t graph) noexcept nogil
cdef int launch_graph(uintptr_t graph, uintptr_t stream) noexcept nogil
cdef int read_graph(uintptr_t graph, int* out_state, size_t* out_nodes) noexcept nogil
cdef int read_graph_pool(uintptr_t graph, uint64_t* out_id0, uint64_t* out_id1) noexcept nogil
cdef int read_raw_graph(uintptr_t graph, uintptr_t* out_graph, uintptr_t* out_exec) noexcept nogil
cdef int destroy_graph(uintptr_t graph) noexcept nogil  # in any state
