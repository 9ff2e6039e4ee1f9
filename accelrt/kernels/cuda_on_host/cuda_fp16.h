// Numbers of IEEE's 16 bits by the names of CUDA's cuda_fp16.h.
#pragma once
#ifndef accelrt_scan

#include "accelrt_float16.hpp"

ACCELRT_FLOAT16(__half, accelrt_half_to_float, accelrt_float_to_half)
typedef __half half;
typedef __half2 half2;
accelrt_inline __half __float2half(float x) { return __half(x); }
accelrt_inline __half __float2half_rn(float x) { return __half(x); }
accelrt_inline __half __double2half(double x) { return __half(x); }
accelrt_inline __half __int2half_rn(int x) { return __half((float)x); }
accelrt_inline float __half2float(__half x) { return (float)x; }
accelrt_inline int __half2int_rn(__half x) { return __float2int_rn((float)x); }
accelrt_inline int __half2int_rz(__half x) { return __float2int_rz((float)x); }
accelrt_inline unsigned short __half_as_ushort(__half x) { return x.accelrt_bits; }
accelrt_inline short __half_as_short(__half x) { return (short)x.accelrt_bits; }
accelrt_inline __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
accelrt_inline __half __short_as_half(short x) { return __half(__half_raw{(unsigned short)x}); }
accelrt_inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
accelrt_inline __half2 __half2half2(__half x) { return {x, x}; }
accelrt_inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
accelrt_inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
accelrt_inline __half2 make_half2(__half x, __half y) { return {x, y}; }
accelrt_inline __half __low2half(__half2 x) { return x.x; }
accelrt_inline __half __high2half(__half2 x) { return x.y; }
accelrt_inline float __low2float(__half2 x) { return (float)x.x; }
accelrt_inline float __high2float(__half2 x) { return (float)x.y; }
accelrt_inline float2 __half22float2(__half2 x) { return {(float)x.x, (float)x.y}; }

#endif
