"""The types of elements: one row for each, from which every table by type is made.

What a new type needs is a row here.  Elementwise kernels and random numbers take it once `stored` says how a
kernel stores it, with `conversions` where it computes with it in float; collectives once `nccl` is its
number, and signatures by its `words`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class DType(NamedTuple):
    """One type of elements.

    Attributes:
        name: str, of NumPy's dtype, or of ml_dtypes' where of_ml_dtypes.
        kind: str, "bool", "signed", "unsigned", "float" or "complex".
        bits: int, of an element; one of less than 8 has a byte of its own in an array.
        dlpack: int, a DLDataTypeCode (dlpack.h).
        stored: str, the type of C++ as which a kernel stores an element, or "" where kernels do not take it.
        words: str, how signatures may call it, in C, CUDA and NumPy, with | between.
        nccl: int, an ncclDataType_t (nccl.h), or None where NCCL does not reduce it.
        precision: int, a float's significant bits: all integers up to 2**precision are exact; else 0.
        of_ml_dtypes: bool, whether the type is of ml_dtypes.
        conversions: str, C++ of GPUs and of the host device that defines accelrt_load_NAME, from what is
            stored to float, and accelrt_store_NAME back; "" where kernels compute with what is stored.
    """

    name: str
    kind: str
    bits: int
    dlpack: int
    stored: str = ""
    words: str = ""
    nccl: int | None = None
    precision: int = 0
    of_ml_dtypes: bool = False
    conversions: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of an element in an array."""
        return (self.bits + 7) // 8

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the greatest integer; None where it is of no integers."""
        if self.kind == "bool":
            return 0, 1
        if self.kind == "unsigned":
            return 0, (1 << self.bits) - 1
        return (-1 << self.bits - 1, (1 << self.bits - 1) - 1) if self.kind == "signed" else None


def _of_ml_dtypes(*row: Any, **more: Any) -> DType:
    return DType(*row, **more)._replace(of_ml_dtypes=True)


_TO_FLOAT16 = """\
#ifdef __ACCELRT_HOST_DEVICE__
#include "accelrt_float16.hpp"
#define accelrt_load_float16 accelrt_half_to_float
#define accelrt_store_float16 accelrt_float_to_half
#else
accelrt_inline float accelrt_load_float16(unsigned short stored) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return value;
}
accelrt_inline unsigned short accelrt_store_float16(float value) {
    unsigned short stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(value));
    return stored;
}
#endif
"""
_TO_BFLOAT16 = """\
accelrt_inline float accelrt_load_bfloat16(unsigned short stored) {
    return __uint_as_float((unsigned int)stored << 16);
}
accelrt_inline unsigned short accelrt_store_bfloat16(float value) {
    const unsigned int bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""
_INT64 = (
    "long|long int|long long|long long int|signed long|signed long long|ssize_t|ptrdiff_t|intptr_t|"
    "int64_t|int64"
)
_UINT64 = (
    "unsigned long|unsigned long int|unsigned long long|unsigned long long int|size_t|uintptr_t|"
    "uint64_t|uint64|ulong"
)
_UINT16 = "unsigned short|unsigned short int|uint16_t|uint16|ushort"
_UINT32 = "unsigned|unsigned int|uint32_t|uint32|uint"
_FLOAT16 = "half|__half|float16"
_BFLOAT16 = "__nv_bfloat16|bfloat16"
_COMPLEX64 = "complex64|complex<float>|float complex|float2"
_COMPLEX128 = "complex128|complex<double>|double complex|double2"

# In the order in which texts list them.
DTYPES = (
    DType("bool", "bool", 8, 6, "bool", "bool|_Bool"),
    DType("int8", "signed", 8, 0, "signed char", "signed char|int8_t|int8", nccl=0),
    DType("int16", "signed", 16, 0, "short", "short|short int|signed short|int16_t|int16"),
    DType("int32", "signed", 32, 0, "int", "int|signed|signed int|int32_t|int32", nccl=2),
    DType("int64", "signed", 64, 0, "long long", _INT64, nccl=4),
    DType("uint8", "unsigned", 8, 1, "unsigned char", "char|unsigned char|uint8_t|uint8|uchar", nccl=1),
    DType("uint16", "unsigned", 16, 1, "unsigned short", _UINT16),
    DType("uint32", "unsigned", 32, 1, "unsigned int", _UINT32, nccl=3),
    DType("uint64", "unsigned", 64, 1, "unsigned long long", _UINT64, nccl=5),
    DType("float16", "float", 16, 2, "unsigned short", _FLOAT16, 6, 11, conversions=_TO_FLOAT16),
    _of_ml_dtypes("bfloat16", "float", 16, 4, "unsigned short", _BFLOAT16, 9, 8, conversions=_TO_BFLOAT16),
    DType("float32", "float", 32, 2, "float", "float|float32", nccl=7, precision=24),
    DType("float64", "float", 64, 2, "double", "double|float64", nccl=8, precision=53),
    DType("complex64", "complex", 64, 5, "accelrt_complex64", _COMPLEX64),
    DType("complex128", "complex", 128, 5, "accelrt_complex128", _COMPLEX128),
    _of_ml_dtypes("float8_e3m4", "float", 8, 7),
    _of_ml_dtypes("float8_e4m3", "float", 8, 8),
    _of_ml_dtypes("float8_e4m3b11fnuz", "float", 8, 9),
    _of_ml_dtypes("float8_e4m3fn", "float", 8, 10, nccl=10),
    _of_ml_dtypes("float8_e4m3fnuz", "float", 8, 11),
    _of_ml_dtypes("float8_e5m2", "float", 8, 12, nccl=11),
    _of_ml_dtypes("float8_e5m2fnuz", "float", 8, 13),
    _of_ml_dtypes("float8_e8m0fnu", "float", 8, 14),
    _of_ml_dtypes("float6_e2m3fn", "float", 6, 15),
    _of_ml_dtypes("float6_e3m2fn", "float", 6, 16),
    _of_ml_dtypes("float4_e2m1fn", "float", 4, 17),
    _of_ml_dtypes("int4", "signed", 4, 0),
    _of_ml_dtypes("uint4", "unsigned", 4, 1),
    _of_ml_dtypes("int2", "signed", 2, 0),
    _of_ml_dtypes("uint2", "unsigned", 2, 1),
)
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
