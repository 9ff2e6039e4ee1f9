"""Sums, products, minima, maxima and means of several ranks' elements, as the host backend computes them.

All ranks' elements are taken in the order of the ranks, so that all ranks get the same bits.  Half precision is
computed in single precision and rounded once; a mean of integers is rounded towards zero.
"""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline float accelrt_half_to_float(uint16_t half) {
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023, bits;
        float value;
        if (exponent == 0) {  /* zero and what is below the least normal number: so many times 2**-24 */
            value = (float)fraction * 0x1p-24f;
            return sign ? -value : value;
        }
        bits = sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | fraction << 13;
        memcpy(&value, &bits, 4);
        return value;
    }
    static inline uint16_t accelrt_float_to_half(float value) {
        uint32_t bits, sign, rest, shift, kept, lost, halfway;
        int exponent;
        memcpy(&bits, &value, 4);
        sign = bits >> 16 & 0x8000;
        rest = bits & 0x7fffffff;
        if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
        if (rest >= 0x47800000) return (uint16_t)(sign | 0x7c00);
        exponent = (int)(rest >> 23) - 127;
        if (exponent < -25) return (uint16_t)sign;
        shift = exponent < -14 ? (uint32_t)(-1 - exponent) : 13u;
        kept = (rest & 0x7fffff) | 0x800000;
        lost = kept & ((1u << shift) - 1);
        halfway = 1u << (shift - 1);
        kept >>= shift;
        if (exponent >= -14) kept += (uint32_t)(exponent + 14) << 10;
        if (lost > halfway || (lost == halfway && (kept & 1))) kept++;
        return (uint16_t)(sign | kept);
    }
    static inline float accelrt_brain_to_float(uint16_t brain) {
        uint32_t bits = (uint32_t)brain << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    static inline uint16_t accelrt_float_to_brain(float value) {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    """
    float half_to_float "accelrt_half_to_float"(uint16_t half) noexcept nogil
    uint16_t float_to_half "accelrt_float_to_half"(float value) noexcept nogil
    float brain_to_float "accelrt_brain_to_float"(uint16_t brain) noexcept nogil
    uint16_t float_to_brain "accelrt_float_to_brain"(float value) noexcept nogil

ctypedef fused Number:
    int8_t
    uint8_t
    int32_t
    uint32_t
    int64_t
    uint64_t
    float
    double

ctypedef float (*widening)(uint16_t) noexcept nogil
ctypedef uint16_t (*narrowing)(float) noexcept nogil


cdef size_t size_of(int datatype) noexcept nogil:
    if datatype == INT8 or datatype == UINT8:
        return 1
    if datatype == FLOAT16 or datatype == BFLOAT16:
        return 2
    if datatype == INT32 or datatype == UINT32 or datatype == FLOAT32:
        return 4
    if datatype == INT64 or datatype == UINT64 or datatype == FLOAT64:
        return 8
    return 0


cdef inline Number joined(Number one, Number other, int op) noexcept nogil:
    if op == PROD:
        return <Number>(one * other)
    if op == MAX:
        return other if other > one else one
    if op == MIN:
        return other if other < one else one
    return <Number>(one + other)


cdef void reduce_numbers(Number* out, const char** summands, int ranks, size_t count, int op) noexcept nogil:
    cdef Number total, next
    cdef size_t index
    cdef int rank
    for index in range(count):
        memcpy(&total, summands[0] + index * sizeof(Number), sizeof(Number))
        for rank in range(1, ranks):
            memcpy(&next, summands[rank] + index * sizeof(Number), sizeof(Number))
            total = joined(total, next, op)
        if op == AVG:
            total = <Number>(total / <Number>ranks)
        memcpy(<char*>out + index * sizeof(Number), &total, sizeof(Number))


cdef void reduce_halves(char* out, const char** summands, int ranks, size_t count, int op, widening widen,
                        narrowing narrow) noexcept nogil:
    cdef uint16_t read
    cdef float total
    cdef size_t index
    cdef int rank
    for index in range(count):
        memcpy(&read, summands[0] + 2 * index, 2)
        total = widen(read)
        for rank in range(1, ranks):
            memcpy(&read, summands[rank] + 2 * index, 2)
            total = joined(total, widen(read), op)
        read = narrow(total / <float>ranks if op == AVG else total)
        memcpy(out + 2 * index, &read, 2)


cdef void reduce_elements(char* out, const char** summands, int ranks, size_t count, int datatype, int op) noexcept nogil:
    if datatype == INT8:
        reduce_numbers(<int8_t*>out, summands, ranks, count, op)
    elif datatype == UINT8:
        reduce_numbers(<uint8_t*>out, summands, ranks, count, op)
    elif datatype == INT32:
        reduce_numbers(<int32_t*>out, summands, ranks, count, op)
    elif datatype == UINT32:
        reduce_numbers(<uint32_t*>out, summands, ranks, count, op)
    elif datatype == INT64:
        reduce_numbers(<int64_t*>out, summands, ranks, count, op)
    elif datatype == UINT64:
        reduce_numbers(<uint64_t*>out, summands, ranks, count, op)
    elif datatype == FLOAT32:
        reduce_numbers(<float*>out, summands, ranks, count, op)
    elif datatype == FLOAT64:
        reduce_numbers(<double*>out, summands, ranks, count, op)
    elif datatype == FLOAT16:
        reduce_halves(out, summands, ranks, count, op, half_to_float, float_to_half)
    elif datatype == BFLOAT16:
        reduce_halves(out, summands, ranks, count, op, brain_to_float, float_to_brain)
