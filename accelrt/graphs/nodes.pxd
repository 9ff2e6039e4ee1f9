# The driver's graphs.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.kernels.kernel cimport Kernel
from accelrt.runtime.capture_record cimport Record

cdef int instantiate(int ordinal, uintptr_t graph, uintptr_t* out_exec) noexcept nogil  # a status code
cdef int update_exec(uintptr_t exec_, uintptr_t graph) except -1  # raises why it was refused

cdef class NodeChange:       # of a kernel node: what it launches now, and what that uses
    cdef Kernel kernel
    cdef list things         # for each argument a list of what it uses: objects, each with its Side, and PoolUses
    cdef list sides          # the Sides among them, and the kernel's
    cdef NodeChange before   # where the graph refused what its instance took: what the graph's node still uses; or None

    cdef int gather(self, Record record) except -1
    cdef list foreign(self, int device, uintptr_t stream, NodeChange after)

cdef dict kernels_in(list kept)  # by the driver's handle
# KernelParams of a kernel node; kernels: those of the graph's capture; change: the node's last one, or None
cdef object read_kernel_node(uintptr_t graph, uintptr_t node, dict kernels, NodeChange change)
# Changes a node of the graph, and of its instance unless exec_ is 0; None leaves what there is.  change is the node's last
# one, or None; made is filled.  Where it raises and out_begun is set, the instance launches the new values nevertheless.
cdef int change_kernel_node(uintptr_t graph, uintptr_t exec_, uintptr_t node, int ordinal, uint64_t capture, dict kernels,
                            NodeChange change, NodeChange made, bint* out_begun, object kernel, object grid, object block,
                            object shared, object arguments) except -1
