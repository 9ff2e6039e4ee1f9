# Arrays of other libraries, and what NumPy makes arrays of, as Arrays.
from accelrt.arrays.array cimport Array

cdef bint is_foreign(object source) except -1  # memory of its own dtype, which nothing converts
cdef Array take(object array)                  # of a numpy.ndarray
# Without a copy where source is memory; what NumPy has to make an array of gets the dtype.
cdef Array wrap_any(object source, object dtype, object stream)
