# Copies and fills of Arrays of any strides.
from accelrt.arrays.array cimport Array

# As Array.copy_, from an Array of the same type whose shape can be broadcast.
cdef int copy_array(Array dst, Array src, bint blocking, object stream) except -1
cdef int fill_array(Array dst, object value, object stream) except -1  # as Array.fill_
