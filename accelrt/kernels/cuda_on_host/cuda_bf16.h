// Numbers of bfloat16 by the names of CUDA's cuda_bf16.h.
#pragma once
#ifndef accelrt_scan

#include "accelrt_float16.hpp"

ACCELRT_FLOAT16(__nv_bfloat16, accelrt_bfloat16_to_float, accelrt_float_to_bfloat16)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
accelrt_inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
accelrt_inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
accelrt_inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
accelrt_inline float __bfloat162float(__nv_bfloat16 x) { return (float)x; }
accelrt_inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.accelrt_bits; }
accelrt_inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16(__nv_bfloat16_raw{x}); }
accelrt_inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
accelrt_inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
accelrt_inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
accelrt_inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {(float)x.x, (float)x.y}; }

#endif
