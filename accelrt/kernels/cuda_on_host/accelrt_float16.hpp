// Floats of 16 bits: numbers that are kept in 16 bits and computed with in float, each operation rounded.
#pragma once

accelrt_inline float accelrt_half_to_float(unsigned short stored) {
    const unsigned int sign = (unsigned int)(stored & 0x8000) << 16, rest = stored & 0x7fff;
    if (rest >= 0x7c00)
        return accelrt_bits_as<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    return accelrt_bits_as<float>(sign | accelrt_bits_as<unsigned int>(accelrt_bits_as<float>(rest << 13) * 0x1p112f));
}
accelrt_inline unsigned short accelrt_float_to_half(float value) {
    const unsigned int bits = accelrt_bits_as<unsigned int>(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return 0x7fff;
    if (size >= 0x477ff000)  // 65520, which rounds to infinity
        return (unsigned short)(sign | 0x7c00);
    if (size < 0x38800000)  // subnormal: adding 0.5 rounds it into the lowest bits
        return (unsigned short)(sign | (accelrt_bits_as<unsigned int>(accelrt_bits_as<float>(size) + 0.5f) - 0x3f000000));
    return (unsigned short)(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}
accelrt_inline float accelrt_bfloat16_to_float(unsigned short stored) { return accelrt_bits_as<float>((unsigned int)stored << 16); }
accelrt_inline unsigned short accelrt_float_to_bfloat16(float value) {
    const unsigned int bits = accelrt_bits_as<unsigned int>(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A type with its pair, conversions, operators and functions; to and from convert it and float.
#define ACCELRT_FLOAT16(type, to, from)                                                                          \
    struct __attribute__((aligned(2))) type##_raw { unsigned short x; };                                         \
    struct __attribute__((aligned(2))) type {                                                                    \
        unsigned short accelrt_bits;                                                                             \
        type() = default;                                                                                        \
        type(const type##_raw& raw) : accelrt_bits(raw.x) {}                                                     \
        type(float value) : accelrt_bits(from(value)) {}                                                         \
        type(double value) : accelrt_bits(from((float)value)) {}                                                 \
        template <class T, class = std::enable_if_t<std::is_integral<T>::value>> type(T value) : accelrt_bits(from((float)value)) {} \
        operator float() const { return to(accelrt_bits); }                                                      \
        operator type##_raw() const { return {accelrt_bits}; }                                                   \
        type& operator+=(type b) { return *this = type((float)*this + (float)b); }                               \
        type& operator-=(type b) { return *this = type((float)*this - (float)b); }                               \
        type& operator*=(type b) { return *this = type((float)*this * (float)b); }                               \
        type& operator/=(type b) { return *this = type((float)*this / (float)b); }                               \
        type operator-() const { type made; made.accelrt_bits = accelrt_bits ^ 0x8000; return made; }            \
        type& operator++() { return *this += type(1.0f); }                                                       \
        type& operator--() { return *this -= type(1.0f); }                                                       \
    };                                                                                                           \
    accelrt_inline type operator+(type a, type b) { return type((float)a + (float)b); }                          \
    accelrt_inline type operator-(type a, type b) { return type((float)a - (float)b); }                          \
    accelrt_inline type operator*(type a, type b) { return type((float)a * (float)b); }                          \
    accelrt_inline type operator/(type a, type b) { return type((float)a / (float)b); }                          \
    accelrt_inline bool operator==(type a, type b) { return (float)a == (float)b; }                              \
    accelrt_inline bool operator!=(type a, type b) { return (float)a != (float)b; }                              \
    accelrt_inline bool operator<(type a, type b) { return (float)a < (float)b; }                                \
    accelrt_inline bool operator>(type a, type b) { return (float)a > (float)b; }                                \
    accelrt_inline bool operator<=(type a, type b) { return (float)a <= (float)b; }                              \
    accelrt_inline bool operator>=(type a, type b) { return (float)a >= (float)b; }                              \
    struct __attribute__((aligned(4))) type##2 { type x, y; };                                                   \
    accelrt_inline type __hadd(type a, type b) { return a + b; }                                                 \
    accelrt_inline type __hsub(type a, type b) { return a - b; }                                                 \
    accelrt_inline type __hmul(type a, type b) { return a * b; }                                                 \
    accelrt_inline type __hdiv(type a, type b) { return a / b; }                                                 \
    accelrt_inline type __hneg(type a) { return -a; }                                                            \
    accelrt_inline type __habs(type a) { return type(__builtin_fabsf(a)); }                                      \
    accelrt_inline type __hfma(type a, type b, type c) { return type((float)((double)(float)a * (float)b + (double)(float)c)); } \
    accelrt_inline bool __heq(type a, type b) { return a == b; }                                                 \
    accelrt_inline bool __hne(type a, type b) { return a != b; }                                                 \
    accelrt_inline bool __hlt(type a, type b) { return a < b; }                                                  \
    accelrt_inline bool __hle(type a, type b) { return a <= b; }                                                 \
    accelrt_inline bool __hgt(type a, type b) { return a > b; }                                                  \
    accelrt_inline bool __hge(type a, type b) { return a >= b; }                                                 \
    accelrt_inline bool __hisnan(type a) { return __builtin_isnan((float)a); }                                   \
    accelrt_inline int __hisinf(type a) { return __builtin_isinf_sign((float)a); }                               \
    accelrt_inline type __hmax(type a, type b) { return type(__builtin_fmaxf(a, b)); }                           \
    accelrt_inline type __hmin(type a, type b) { return type(__builtin_fminf(a, b)); }                           \
    accelrt_inline type hsqrt(type a) { return type(__builtin_sqrtf(a)); }                                       \
    accelrt_inline type hrsqrt(type a) { return type(rsqrtf(a)); }                                               \
    accelrt_inline type hrcp(type a) { return type(1.0f / (float)a); }                                           \
    accelrt_inline type hexp(type a) { return type(__builtin_expf(a)); }                                         \
    accelrt_inline type hexp2(type a) { return type(__builtin_exp2f(a)); }                                       \
    accelrt_inline type hlog(type a) { return type(__builtin_logf(a)); }                                         \
    accelrt_inline type hlog2(type a) { return type(__builtin_log2f(a)); }                                       \
    accelrt_inline type hsin(type a) { return type(__builtin_sinf(a)); }                                         \
    accelrt_inline type hcos(type a) { return type(__builtin_cosf(a)); }                                         \
    accelrt_inline type hfloor(type a) { return type(__builtin_floorf(a)); }                                     \
    accelrt_inline type hceil(type a) { return type(__builtin_ceilf(a)); }                                       \
    accelrt_inline type htrunc(type a) { return type(__builtin_truncf(a)); }                                     \
    accelrt_inline type hrint(type a) { return type(__builtin_rintf(a)); }                                       \
    accelrt_inline type##2 __hadd2(type##2 a, type##2 b) { return {a.x + b.x, a.y + b.y}; }                      \
    accelrt_inline type##2 __hsub2(type##2 a, type##2 b) { return {a.x - b.x, a.y - b.y}; }                      \
    accelrt_inline type##2 __hmul2(type##2 a, type##2 b) { return {a.x * b.x, a.y * b.y}; }                      \
    accelrt_inline type##2 __hfma2(type##2 a, type##2 b, type##2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
