# Sums, products, minima, maxima and means of several ranks' elements, as the host backend computes them.
from libc.stdint cimport uint64_t

cdef enum Datatype:  # ncclDataType_t
    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9

cdef enum Reduction:  # ncclRedOp_t
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4

cdef size_t size_of(int datatype) noexcept nogil  # bytes of an element; 0 where it is not reduced here
# out may be one of the summands.  They may lie at any address, and are taken in the order that they are in.
cdef void reduce_elements(char* out, const char** summands, int ranks, size_t count, int datatype, int op) noexcept nogil
