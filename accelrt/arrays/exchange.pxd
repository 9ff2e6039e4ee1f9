# Arrays of other libraries by DLPack.
from accelrt.arrays.array cimport Array

cdef Array import_any(object source)  # without a copy; of an object with __dlpack__
