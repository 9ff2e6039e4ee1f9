// CUDA's qualifiers, vector types and macros for a C++ compiler of the host.
#pragma once

#include "accelrt_macros.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ thread_local  // a block runs on one thread of the host, one block at a time
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline_hint__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __nv_pure__
#define __builtin_assume(condition) ((condition) ? (void)0 : __builtin_unreachable())
#define __nv_isClusterShared_impl(pointer) 0

#define accelrt_inline static inline __attribute__((unused))

// Components as CUDA aligns them (CUDA C++ Programming Guide, "Built-in Vector Types").
#define ACCELRT_VECTORS(name, type, align2, align4)                                                              \
    struct name##1 { type x; };                                                                                  \
    struct __attribute__((aligned(align2))) name##2 { type x, y; };                                              \
    struct name##3 { type x, y, z; };                                                                            \
    struct __attribute__((aligned(align4))) name##4 { type x, y, z, w; };                                        \
    accelrt_inline constexpr name##1 make_##name##1(type x) { return name##1{x}; }                               \
    accelrt_inline constexpr name##2 make_##name##2(type x, type y) { return name##2{x, y}; }                    \
    accelrt_inline constexpr name##3 make_##name##3(type x, type y, type z) { return name##3{x, y, z}; }         \
    accelrt_inline constexpr name##4 make_##name##4(type x, type y, type z, type w) { return name##4{x, y, z, w}; }
ACCELRT_VECTORS(char, signed char, 2, 4)
ACCELRT_VECTORS(uchar, unsigned char, 2, 4)
ACCELRT_VECTORS(short, short, 4, 8)
ACCELRT_VECTORS(ushort, unsigned short, 4, 8)
ACCELRT_VECTORS(int, int, 8, 16)
ACCELRT_VECTORS(uint, unsigned int, 8, 16)
ACCELRT_VECTORS(long, long, 16, 16)
ACCELRT_VECTORS(ulong, unsigned long, 16, 16)
ACCELRT_VECTORS(longlong, long long, 16, 16)
ACCELRT_VECTORS(ulonglong, unsigned long long, 16, 16)
ACCELRT_VECTORS(float, float, 8, 16)
ACCELRT_VECTORS(double, double, 16, 16)
#undef ACCELRT_VECTORS

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 from) : x(from.x), y(from.y), z(from.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;

// What a kernel of the host device is called with for each block (accelrt/kernels/DESIGN.md).
typedef struct {
    unsigned int grid[3], block[3], index[3], shared_bytes;
    void* shared;
    int* failed;
} accelrt_block;
