# The driver's graphs.
from libc.stdint cimport uint64_t, uintptr_t

cdef int instantiate(int ordinal, uintptr_t graph, uintptr_t* out_exec) noexcept nogil  # a status code
cdef int update_exec(uintptr_t exec_, uintptr_t graph) except -1  # raises why it was refused
# KernelParams of a kernel node; kept: what the graph keeps, among it its Kernels
cdef object read_kernel_node(uintptr_t graph, uintptr_t node, list kept)
# Changes a node of the graph, and of its instance unless exec_ is 0; None leaves what there is.
cdef list change_kernel_node(uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, uint64_t capture, list kept,
                             object kernel, object grid, object block, object shared, object arguments)
