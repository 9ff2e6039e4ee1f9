# Arrays of other libraries by DLPack.
from accelrt.arrays.array cimport Array
