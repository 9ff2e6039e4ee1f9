// Complex numbers by the names of CUDA's cuComplex.h.
#pragma once
#ifndef accelrt_scan

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

// One set of functions: for float their names end in f.
#define ACCELRT_COMPLEX(type, part, suffix, made)                                                                \
    accelrt_inline part cuCreal##suffix(type z) { return z.x; }                                                  \
    accelrt_inline part cuCimag##suffix(type z) { return z.y; }                                                  \
    accelrt_inline type made(part x, part y) { type z; z.x = x; z.y = y; return z; }                             \
    accelrt_inline type cuConj##suffix(type z) { return made(z.x, -z.y); }                                       \
    accelrt_inline type cuCadd##suffix(type a, type b) { return made(a.x + b.x, a.y + b.y); }                    \
    accelrt_inline type cuCsub##suffix(type a, type b) { return made(a.x - b.x, a.y - b.y); }                    \
    accelrt_inline type cuCmul##suffix(type a, type b) { return made(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); } \
    accelrt_inline type cuCdiv##suffix(type a, type b) {                                                         \
        const part scale = (part)1 / ((b.x < 0 ? -b.x : b.x) + (b.y < 0 ? -b.y : b.y));                          \
        const part ax = a.x * scale, ay = a.y * scale, bx = b.x * scale, by = b.y * scale, size = bx * bx + by * by; \
        return made((ax * bx + ay * by) / size, (ay * bx - ax * by) / size);                                     \
    }                                                                                                            \
    accelrt_inline part cuCabs##suffix(type z) { return __builtin_hypot##suffix(z.x, z.y); }
ACCELRT_COMPLEX(cuFloatComplex, float, f, make_cuFloatComplex)
ACCELRT_COMPLEX(cuDoubleComplex, double, , make_cuDoubleComplex)
#undef ACCELRT_COMPLEX
accelrt_inline cuComplex make_cuComplex(float x, float y) { return make_cuFloatComplex(x, y); }
accelrt_inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex z) { return make_cuDoubleComplex(z.x, z.y); }
accelrt_inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex z) { return make_cuFloatComplex((float)z.x, (float)z.y); }
accelrt_inline cuComplex cuCfmaf(cuComplex a, cuComplex b, cuComplex c) {
    return make_cuComplex(__builtin_fmaf(a.x, b.x, c.x) - a.y * b.y, __builtin_fmaf(a.x, b.y, c.y) + a.y * b.x);
}
accelrt_inline cuDoubleComplex cuCfma(cuDoubleComplex a, cuDoubleComplex b, cuDoubleComplex c) {
    return make_cuDoubleComplex(__builtin_fma(a.x, b.x, c.x) - a.y * b.y, __builtin_fma(a.x, b.y, c.y) + a.y * b.x);
}

#endif
