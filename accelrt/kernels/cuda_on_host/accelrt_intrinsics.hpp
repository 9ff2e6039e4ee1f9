// CUDA's intrinsic functions: fast forms of mathematical functions, which are the precise ones here, arithmetic with a
// rounding, conversions, bits, and loads with a hint (CUDA Math API; CUDA C++ Programming Guide, "Intrinsic Functions").
#pragma once

// --- fast forms ---------------------------------------------------------------------------------------------------
// The C library declares most of their names for itself.
#define __expf accelrt_fast_expf
#define __exp10f accelrt_fast_exp10f
#define __logf accelrt_fast_logf
#define __log2f accelrt_fast_log2f
#define __log10f accelrt_fast_log10f
#define __sinf accelrt_fast_sinf
#define __cosf accelrt_fast_cosf
#define __tanf accelrt_fast_tanf
#define __tanhf accelrt_fast_tanhf
#define __sincosf accelrt_fast_sincosf
#define __powf accelrt_fast_powf
accelrt_inline float accelrt_fast_expf(float x) { return __builtin_expf(x); }
accelrt_inline float accelrt_fast_exp10f(float x) { return accelrt_exp10f(x); }
accelrt_inline float accelrt_fast_logf(float x) { return __builtin_logf(x); }
accelrt_inline float accelrt_fast_log2f(float x) { return __builtin_log2f(x); }
accelrt_inline float accelrt_fast_log10f(float x) { return __builtin_log10f(x); }
accelrt_inline float accelrt_fast_sinf(float x) { return __builtin_sinf(x); }
accelrt_inline float accelrt_fast_cosf(float x) { return __builtin_cosf(x); }
accelrt_inline float accelrt_fast_tanf(float x) { return __builtin_tanf(x); }
accelrt_inline float accelrt_fast_tanhf(float x) { return __builtin_tanhf(x); }
accelrt_inline void accelrt_fast_sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x); *c = __builtin_cosf(x); }
accelrt_inline float accelrt_fast_powf(float x, float y) { return __builtin_powf(x, y); }
accelrt_inline float __fdividef(float x, float y) { return x / y; }
accelrt_inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }

// --- bits of numbers -----------------------------------------------------------------------------------------------
template <class To, class From> accelrt_inline To accelrt_bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
accelrt_inline int __float_as_int(float x) { return accelrt_bits_as<int>(x); }
accelrt_inline unsigned int __float_as_uint(float x) { return accelrt_bits_as<unsigned int>(x); }
accelrt_inline float __int_as_float(int x) { return accelrt_bits_as<float>(x); }
accelrt_inline float __uint_as_float(unsigned int x) { return accelrt_bits_as<float>(x); }
accelrt_inline long long __double_as_longlong(double x) { return accelrt_bits_as<long long>(x); }
accelrt_inline double __longlong_as_double(long long x) { return accelrt_bits_as<double>(x); }
accelrt_inline int __double2hiint(double x) { return (int)(accelrt_bits_as<unsigned long long>(x) >> 32); }
accelrt_inline int __double2loint(double x) { return (int)accelrt_bits_as<unsigned long long>(x); }
accelrt_inline double __hiloint2double(int high, int low) {
    return accelrt_bits_as<double>((unsigned long long)(unsigned int)high << 32 | (unsigned int)low);
}

// --- arithmetic with a rounding: to nearest, towards zero, up, down ---------------------------------------------------
struct accelrt_rounding {
    int before;
    explicit accelrt_rounding(int mode) : before(fegetround()) { fesetround(mode); }
    ~accelrt_rounding() { fesetround(before); }
};
// Volatile operands keep the operation between the two changes of the mode.
#define ACCELRT_ROUND(suffix, mode)                                                                              \
    accelrt_inline float __fadd_##suffix(float x, float y) { ACCELRT_DO(float, mode, a + b) }                     \
    accelrt_inline float __fsub_##suffix(float x, float y) { ACCELRT_DO(float, mode, a - b) }                     \
    accelrt_inline float __fmul_##suffix(float x, float y) { ACCELRT_DO(float, mode, a * b) }                     \
    accelrt_inline float __fdiv_##suffix(float x, float y) { ACCELRT_DO(float, mode, a / b) }                     \
    accelrt_inline float __frcp_##suffix(float y) { float x = 1; ACCELRT_DO(float, mode, a / b) }                 \
    accelrt_inline float __fsqrt_##suffix(float x) { float y = 0; ACCELRT_DO(float, mode, __builtin_sqrtf(a) + b) } \
    accelrt_inline float __fmaf_##suffix(float x, float y, float z) { ACCELRT_DO(float, mode, __builtin_fmaf(a, b, z)) } \
    accelrt_inline double __dadd_##suffix(double x, double y) { ACCELRT_DO(double, mode, a + b) }                 \
    accelrt_inline double __dsub_##suffix(double x, double y) { ACCELRT_DO(double, mode, a - b) }                 \
    accelrt_inline double __dmul_##suffix(double x, double y) { ACCELRT_DO(double, mode, a * b) }                 \
    accelrt_inline double __ddiv_##suffix(double x, double y) { ACCELRT_DO(double, mode, a / b) }                 \
    accelrt_inline double __drcp_##suffix(double y) { double x = 1; ACCELRT_DO(double, mode, a / b) }             \
    accelrt_inline double __dsqrt_##suffix(double x) { double y = 0; ACCELRT_DO(double, mode, __builtin_sqrt(a) + b) } \
    accelrt_inline double __fma_##suffix(double x, double y, double z) { ACCELRT_DO(double, mode, __builtin_fma(a, b, z)) } \
    accelrt_inline float __double2float_##suffix(double x) { double y = 0; ACCELRT_DO2(float, double, mode, (float)a + 0 * b) } \
    accelrt_inline float __int2float_##suffix(int x) { int y = 0; ACCELRT_DO2(float, int, mode, (float)(a + b)) } \
    accelrt_inline float __uint2float_##suffix(unsigned int x) { unsigned int y = 0; ACCELRT_DO2(float, unsigned int, mode, (float)(a + b)) } \
    accelrt_inline float __ll2float_##suffix(long long x) { long long y = 0; ACCELRT_DO2(float, long long, mode, (float)(a + b)) } \
    accelrt_inline float __ull2float_##suffix(unsigned long long x) { unsigned long long y = 0; ACCELRT_DO2(float, unsigned long long, mode, (float)(a + b)) } \
    accelrt_inline double __ll2double_##suffix(long long x) { long long y = 0; ACCELRT_DO2(double, long long, mode, (double)(a + b)) } \
    accelrt_inline double __ull2double_##suffix(unsigned long long x) { unsigned long long y = 0; ACCELRT_DO2(double, unsigned long long, mode, (double)(a + b)) }
#define ACCELRT_DO(type, mode, expression) ACCELRT_DO2(type, type, mode, expression)
#define ACCELRT_DO2(type, from, mode, expression)                                                                \
    const volatile from first = x, second = y;                                                                   \
    volatile type result;                                                                                        \
    {                                                                                                            \
        accelrt_rounding rounding(mode);                                                                         \
        const from a = first, b = second;                                                                        \
        result = expression;                                                                                     \
    }                                                                                                            \
    return result;
ACCELRT_ROUND(rz, FE_TOWARDZERO)
ACCELRT_ROUND(ru, FE_UPWARD)
ACCELRT_ROUND(rd, FE_DOWNWARD)
#undef ACCELRT_DO
#undef ACCELRT_DO2
#define ACCELRT_DO(type, mode, expression) const type a = x, b = y; (void)b; return expression;
#define ACCELRT_DO2(type, from, mode, expression) const from a = x, b = y; return expression;
ACCELRT_ROUND(rn, FE_TONEAREST)
#undef ACCELRT_DO
#undef ACCELRT_DO2
#undef ACCELRT_ROUND
accelrt_inline float __frsqrt_rn(float x) { return (float)(1.0L / __builtin_sqrtl(x)); }
accelrt_inline double __int2double_rn(int x) { return x; }
accelrt_inline double __uint2double_rn(unsigned int x) { return x; }

// --- numbers to integers: what is out of range becomes the nearest integer, NaN 0, or the sign bit in 64 bits -------------
template <class To> accelrt_inline To accelrt_integer(double x, To of_nan) {
    constexpr To most = (To)-1 < 0 ? (To)((1ULL << (8 * sizeof(To) - 1)) - 1) : (To)-1, least = (To)-1 < 0 ? -most - 1 : 0;
    if (x != x)
        return of_nan;
    const double edge = (To)-1 < 0 ? __builtin_ldexp(1.0, 8 * sizeof(To) - 1) : __builtin_ldexp(1.0, 8 * sizeof(To));
    return x >= edge ? most : x <= (double)least ? least : (To)x;
}
#define ACCELRT_TO(to, type, of_nan)                                                                             \
    accelrt_inline type __float2##to##_rn(float x) { return accelrt_integer<type>(__builtin_nearbyintf(x), of_nan); } \
    accelrt_inline type __float2##to##_rz(float x) { return accelrt_integer<type>(__builtin_truncf(x), of_nan); }    \
    accelrt_inline type __float2##to##_ru(float x) { return accelrt_integer<type>(__builtin_ceilf(x), of_nan); }     \
    accelrt_inline type __float2##to##_rd(float x) { return accelrt_integer<type>(__builtin_floorf(x), of_nan); }    \
    accelrt_inline type __double2##to##_rn(double x) { return accelrt_integer<type>(__builtin_nearbyint(x), of_nan); } \
    accelrt_inline type __double2##to##_rz(double x) { return accelrt_integer<type>(__builtin_trunc(x), of_nan); }   \
    accelrt_inline type __double2##to##_ru(double x) { return accelrt_integer<type>(__builtin_ceil(x), of_nan); }    \
    accelrt_inline type __double2##to##_rd(double x) { return accelrt_integer<type>(__builtin_floor(x), of_nan); }
ACCELRT_TO(int, int, 0)
ACCELRT_TO(uint, unsigned int, 0)
ACCELRT_TO(ll, long long, (long long)(1ULL << 63))
ACCELRT_TO(ull, unsigned long long, 1ULL << 63)
#undef ACCELRT_TO

// --- bits of integers ------------------------------------------------------------------------------------------------
accelrt_inline int __popc(unsigned int x) { return __builtin_popcount(x); }
accelrt_inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
accelrt_inline int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }
accelrt_inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
accelrt_inline int __ffs(int x) { return __builtin_ffs(x); }
accelrt_inline int __ffsll(long long x) { return __builtin_ffsll(x); }
accelrt_inline unsigned long long __brevll(unsigned long long x) {
    x = (x >> 1 & 0x5555555555555555) | (x & 0x5555555555555555) << 1;
    x = (x >> 2 & 0x3333333333333333) | (x & 0x3333333333333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (x & 0x0f0f0f0f0f0f0f0f) << 4;
    return __builtin_bswap64(x);
}
accelrt_inline unsigned int __brev(unsigned int x) { return (unsigned int)(__brevll(x) >> 32); }
accelrt_inline unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int selector) {
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned int chosen = 0;
    for (int k = 0; k < 4; k++) {
        const unsigned int place = selector >> 4 * k & 7;  // a GPU does not look at the fourth bit (seen on an H100)
        chosen |= ((unsigned int)(bytes >> 8 * place) & 0xff) << 8 * k;
    }
    return chosen;
}
accelrt_inline unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int shift) {
    return (unsigned int)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
accelrt_inline unsigned int __funnelshift_lc(unsigned int low, unsigned int high, unsigned int shift) {
    return (unsigned int)(shift >= 32 ? low : ((unsigned long long)high << 32 | low) << shift >> 32);
}
accelrt_inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift) {
    return (unsigned int)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
accelrt_inline unsigned int __funnelshift_rc(unsigned int low, unsigned int high, unsigned int shift) {
    return (unsigned int)(((unsigned long long)high << 32 | low) >> (shift < 32 ? shift : 32));
}

// --- arithmetic of integers --------------------------------------------------------------------------------------------
accelrt_inline int __mul24(int x, int y) { return (int)((unsigned int)((int)((unsigned int)x << 8) >> 8) * (unsigned int)((int)((unsigned int)y << 8) >> 8)); }
accelrt_inline unsigned int __umul24(unsigned int x, unsigned int y) { return (x & 0xffffff) * (y & 0xffffff); }
accelrt_inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
accelrt_inline unsigned int __umulhi(unsigned int x, unsigned int y) { return (unsigned int)((unsigned long long)x * y >> 32); }
accelrt_inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
accelrt_inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
accelrt_inline unsigned int __usad(unsigned int x, unsigned int y, unsigned int z) { return (x > y ? x - y : y - x) + z; }
accelrt_inline unsigned int __sad(int x, int y, unsigned int z) {
    return (x > y ? (unsigned int)x - (unsigned int)y : (unsigned int)y - (unsigned int)x) + z;
}
accelrt_inline int __hadd(int x, int y) { return (int)(((long long)x + y) >> 1); }
accelrt_inline int __rhadd(int x, int y) { return (int)(((long long)x + y + 1) >> 1); }
accelrt_inline unsigned int __uhadd(unsigned int x, unsigned int y) { return (unsigned int)(((unsigned long long)x + y) >> 1); }
accelrt_inline unsigned int __urhadd(unsigned int x, unsigned int y) { return (unsigned int)(((unsigned long long)x + y + 1) >> 1); }
accelrt_inline int __dp4a(int x, int y, int sum) {
    for (int k = 0; k < 32; k += 8)
        sum += (signed char)(x >> k) * (signed char)(y >> k);
    return sum;
}
accelrt_inline unsigned int __dp4a(unsigned int x, unsigned int y, unsigned int sum) {
    for (int k = 0; k < 32; k += 8)
        sum += (x >> k & 0xff) * (y >> k & 0xff);
    return sum;
}

// --- loads and stores with a hint, and questions of where memory is -----------------------------------------------------
template <class T> accelrt_inline T __ldg(const T* at) { return *at; }
template <class T> accelrt_inline T __ldca(const T* at) { return *at; }
template <class T> accelrt_inline T __ldcg(const T* at) { return *at; }
template <class T> accelrt_inline T __ldcs(const T* at) { return *at; }
template <class T> accelrt_inline T __ldlu(const T* at) { return *at; }
template <class T> accelrt_inline T __ldcv(const T* at) { return *(const volatile T*)at; }
template <class T> accelrt_inline void __stwb(T* at, T value) { *at = value; }
template <class T> accelrt_inline void __stcg(T* at, T value) { *at = value; }
template <class T> accelrt_inline void __stcs(T* at, T value) { *at = value; }
template <class T> accelrt_inline void __stwt(T* at, T value) { *at = value; }
accelrt_inline unsigned long long accelrt_nanoseconds() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ULL + now.tv_nsec;
}
accelrt_inline long long clock64() { return (long long)accelrt_nanoseconds(); }
