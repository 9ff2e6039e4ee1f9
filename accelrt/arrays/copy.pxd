# Copies, for the modules that copy what they have read themselves.
from libc.stdint cimport uintptr_t

from accelrt.arrays.operand cimport Operand, View
from accelrt.streams.stream cimport Stream

# size bytes from one side to the other, of which one is on a device; stream and blocking as of copy().  dst to view_origin
# are what has to live as long as a wait that was interrupted.
cdef int copy_operands(Operand* to, uintptr_t dst_address, Operand* origin, uintptr_t src_address, size_t size,
                       object stream, bint blocking, object dst, object src, View view_to, View view_origin) except -1
cdef Stream worker_for(object stream, int ordinal)  # of that device; None is its current stream
