// CUDA's mathematical functions that the C library lacks, and overloads for float (CUDA C++ Programming Guide,
// "Mathematical Functions").  What has no short formula is computed in long double, whose extra bits keep the error
// below that which CUDA states; the functions of float are those of double, rounded.
#pragma once

#define ACCELRT_PI_L 3.14159265358979323846264338327950288L
#define ACCELRT_SQRT_PI_L 1.77245385090551602729816748334114518L
#define ACCELRT_SQRT_HALF_L 0.707106781186547524400844362104849039L

// --- the least and the greatest: of equal types, and of those that CUDA mixes ---------------------------------------
#define ACCELRT_PAIR(type, a, b)                                                                                 \
    accelrt_inline constexpr type min(a x, b y) { return (type)x < (type)y ? (type)x : (type)y; }                \
    accelrt_inline constexpr type max(a x, b y) { return (type)x > (type)y ? (type)x : (type)y; }
#define ACCELRT_MIXED(type, a) ACCELRT_PAIR(type, type, type) ACCELRT_PAIR(type, a, type) ACCELRT_PAIR(type, type, a)
ACCELRT_PAIR(int, int, int)
ACCELRT_MIXED(unsigned int, int)
ACCELRT_PAIR(long, long, long)
ACCELRT_MIXED(unsigned long, long)
ACCELRT_PAIR(long long, long long, long long)
ACCELRT_MIXED(unsigned long long, long long)
#undef ACCELRT_MIXED
#undef ACCELRT_PAIR
#define ACCELRT_PAIR(type, a, b, suffix)                                                                         \
    accelrt_inline type min(a x, b y) { return __builtin_fmin##suffix(x, y); }                                   \
    accelrt_inline type max(a x, b y) { return __builtin_fmax##suffix(x, y); }
ACCELRT_PAIR(float, float, float, f)
ACCELRT_PAIR(double, double, double, )
ACCELRT_PAIR(double, float, double, )
ACCELRT_PAIR(double, double, float, )
#undef ACCELRT_PAIR
accelrt_inline unsigned int umin(unsigned int x, unsigned int y) { return x < y ? x : y; }
accelrt_inline unsigned int umax(unsigned int x, unsigned int y) { return x > y ? x : y; }
accelrt_inline long long llmin(long long x, long long y) { return x < y ? x : y; }
accelrt_inline long long llmax(long long x, long long y) { return x > y ? x : y; }
accelrt_inline unsigned long long ullmin(unsigned long long x, unsigned long long y) { return x < y ? x : y; }
accelrt_inline unsigned long long ullmax(unsigned long long x, unsigned long long y) { return x > y ? x : y; }

// --- roots ------------------------------------------------------------------------------------------------------------
accelrt_inline double rsqrt(double x) { return (double)(1.0L / __builtin_sqrtl(x)); }
accelrt_inline double rcbrt(double x) { return (double)(1.0L / __builtin_cbrtl(x)); }
accelrt_inline float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt(x)); }
accelrt_inline float rcbrtf(float x) { return (float)(1.0 / __builtin_cbrt(x)); }

// No square of a double leaves the range of long double.
accelrt_inline long double accelrt_squares(const double* at, int count) {
    long double sum = 0;
    bool infinite = false;
    for (int k = 0; k < count; k++) {
        infinite |= __builtin_isinf(at[k]) != 0;
        sum += (long double)at[k] * at[k];
    }
    return infinite ? (long double)__builtin_inf() : sum;
}
accelrt_inline double norm(int count, const double* at) { return (double)__builtin_sqrtl(accelrt_squares(at, count)); }
accelrt_inline double rnorm(int count, const double* at) {
    return (double)(1.0L / __builtin_sqrtl(accelrt_squares(at, count)));
}
accelrt_inline double norm3d(double a, double b, double c) { double at[] = {a, b, c}; return norm(3, at); }
accelrt_inline double rnorm3d(double a, double b, double c) { double at[] = {a, b, c}; return rnorm(3, at); }
accelrt_inline double norm4d(double a, double b, double c, double d) { double at[] = {a, b, c, d}; return norm(4, at); }
accelrt_inline double rnorm4d(double a, double b, double c, double d) { double at[] = {a, b, c, d}; return rnorm(4, at); }
accelrt_inline double rhypot(double a, double b) { double at[] = {a, b}; return rnorm(2, at); }
accelrt_inline double accelrt_squares(const float* at, int count) {
    double sum = 0;
    bool infinite = false;
    for (int k = 0; k < count; k++) {
        infinite |= __builtin_isinf(at[k]) != 0;
        sum += (double)at[k] * at[k];
    }
    return infinite ? __builtin_inf() : sum;
}
accelrt_inline float normf(int count, const float* at) { return (float)__builtin_sqrt(accelrt_squares(at, count)); }
accelrt_inline float rnormf(int count, const float* at) {
    return (float)(1.0 / __builtin_sqrt(accelrt_squares(at, count)));
}
accelrt_inline float norm3df(float a, float b, float c) { float at[] = {a, b, c}; return normf(3, at); }
accelrt_inline float rnorm3df(float a, float b, float c) { float at[] = {a, b, c}; return rnormf(3, at); }
accelrt_inline float norm4df(float a, float b, float c, float d) { float at[] = {a, b, c, d}; return normf(4, at); }
accelrt_inline float rnorm4df(float a, float b, float c, float d) { float at[] = {a, b, c, d}; return rnormf(4, at); }
accelrt_inline float rhypotf(float a, float b) { float at[] = {a, b}; return rnormf(2, at); }

// --- circles ------------------------------------------------------------------------------------------------------
// The remainder of 2 is exact, and of it at most a quarter turn is handed on.
accelrt_inline double sinpi(double x) {
    if (__builtin_isinf(x))
        return __builtin_nan("");
    double r = __builtin_remainder(x, 2.0);
    if (r == 0 || r == 1 || r == -1)
        return __builtin_copysign(0.0, x);
    if (__builtin_fabs(r) > 0.5)
        r = __builtin_copysign(1.0, r) - r;
    const long double size = r < 0 ? -(long double)r : (long double)r;
    const long double y = size > 0.25L ? __builtin_cosl(ACCELRT_PI_L * (0.5L - size)) : __builtin_sinl(ACCELRT_PI_L * size);
    return (double)(r < 0 ? -y : y);
}
accelrt_inline double cospi(double x) {
    if (__builtin_isinf(x))
        return __builtin_nan("");
    const double r = __builtin_fabs(__builtin_remainder(x, 2.0));
    if (r == 0.5)
        return 0.0;
    const long double size = r > 0.5 ? 1.0L - r : (long double)r;
    const long double y = size > 0.25L ? __builtin_sinl(ACCELRT_PI_L * (0.5L - size)) : __builtin_cosl(ACCELRT_PI_L * size);
    return (double)(r > 0.5 ? -y : y);
}
accelrt_inline float sinpif(float x) { return (float)sinpi((double)x); }
accelrt_inline float cospif(float x) { return (float)cospi((double)x); }
accelrt_inline void sincospi(double x, double* s, double* c) { *s = sinpi(x); *c = cospi(x); }
accelrt_inline void sincospif(float x, float* s, float* c) { *s = sinpif(x); *c = cospif(x); }
#ifndef __USE_GNU
accelrt_inline void sincos(double x, double* s, double* c) { *s = __builtin_sin(x); *c = __builtin_cos(x); }
accelrt_inline void sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x); *c = __builtin_cosf(x); }
#endif

// --- powers -------------------------------------------------------------------------------------------------------
accelrt_inline double accelrt_exp10(double x) { return (double)__builtin_powl(10.0L, x); }
accelrt_inline float accelrt_exp10f(float x) { return (float)__builtin_pow(10.0, x); }
#define exp10 accelrt_exp10  // the C library's double function would hide the overload for float
#define exp10f accelrt_exp10f
accelrt_inline float fdividef(float x, float y) { return x / y; }
accelrt_inline double fdivide(double x, double y) { return x / y; }

// --- normal distribution and error function -----------------------------------------------------------------------------
accelrt_inline double erfcx(double x) {
    if (x < -27)
        return __builtin_inf();
    if (x < 25) {
        const long double wide = x;
        return (double)(__builtin_expl(wide * wide) * __builtin_erfcl(wide));
    }
    const long double part = 0.5L / ((long double)x * x);  // the asymptotic series
    long double term = 1, sum = 1;
    for (int k = 1; k < 10; k++)
        sum += term *= -(2 * k - 1) * part;
    return (double)(sum / (x * ACCELRT_SQRT_PI_L));
}
accelrt_inline double normcdf(double x) { return (double)(0.5L * __builtin_erfcl(-x * ACCELRT_SQRT_HALF_L)); }

// y with erfc(y) == q, of 0 < q < 0.5.
accelrt_inline long double accelrt_erfcinv_tail(long double q) {
    long double y = __builtin_sqrtl(-__builtin_logl(q));
    for (int k = 0; k < 3; k++) {
        const long double inside = -__builtin_logl(q * ACCELRT_SQRT_PI_L * (y < 0.5L ? 0.5L : y));
        y = inside > 0.25L ? __builtin_sqrtl(inside) : 0.5L;
    }
    for (int k = 0; k < 6; k++) {  // Halley's method
        const long double step = (__builtin_erfcl(y) - q) * ACCELRT_SQRT_PI_L / 2 * __builtin_expl(y * y);
        const long double next = y + step / (1 - y * step);
        if (next == y)
            break;
        y = next;
    }
    return y;
}
// y with erf(y) == p, of |p| <= 0.5.
accelrt_inline long double accelrt_erfinv_middle(long double p) {
    long double y = p * ACCELRT_SQRT_PI_L / 2 * (1 + p * p * (ACCELRT_PI_L / 12));
    for (int k = 0; k < 6 && y != 0; k++) {
        const long double step = (p - __builtin_erfl(y)) * ACCELRT_SQRT_PI_L / 2 * __builtin_expl(y * y);
        const long double next = y + step / (1 - y * step);
        if (next == y)
            break;
        y = next;
    }
    return y;
}
accelrt_inline double erfinv(double x) {
    if (!(x > -1 && x < 1))
        return x == 1 ? __builtin_inf() : x == -1 ? -__builtin_inf() : __builtin_nan("");
    const long double size = x < 0 ? -(long double)x : (long double)x;
    const long double y = size > 0.5L ? accelrt_erfcinv_tail(1 - size) : accelrt_erfinv_middle(size);
    return __builtin_copysign((double)y, x);
}
accelrt_inline double erfcinv(double x) {
    if (!(x > 0 && x < 2))
        return x == 0 ? __builtin_inf() : x == 2 ? -__builtin_inf() : __builtin_nan("");
    if (x < 0.5)
        return (double)accelrt_erfcinv_tail(x);
    return x > 1.5 ? (double)-accelrt_erfcinv_tail(2 - (long double)x) : (double)accelrt_erfinv_middle(1 - (long double)x);
}
accelrt_inline double normcdfinv(double x) {
    if (!(x > 0 && x < 1))
        return x == 0 ? -__builtin_inf() : x == 1 ? __builtin_inf() : __builtin_nan("");
    const long double q = 2 * (long double)x;
    const long double y = q < 0.5L ? accelrt_erfcinv_tail(q) : q > 1.5L ? -accelrt_erfcinv_tail(2 - q) : accelrt_erfinv_middle(1 - q);
    return (double)(y / -ACCELRT_SQRT_HALF_L);
}
accelrt_inline float erfcxf(float x) { return (float)erfcx((double)x); }
accelrt_inline float normcdff(float x) { return (float)normcdf((double)x); }
accelrt_inline float erfinvf(float x) { return (float)erfinv((double)x); }
accelrt_inline float erfcinvf(float x) { return (float)erfcinv((double)x); }
accelrt_inline float normcdfinvf(float x) { return (float)normcdfinv((double)x); }

// --- Bessel functions -----------------------------------------------------------------------------------------------
// Regular modified ones of order 0 and 1: all terms of the series have one sign; from 50 on the asymptotic one is short.
accelrt_inline double accelrt_bessel_i(double x, int order) {
    const long double size = x < 0 ? -(long double)x : (long double)x;
    long double sum = 1, term = 1;
    if (size > 50) {
        if (size > 800)
            return order && x < 0 ? -__builtin_inf() : __builtin_inf();
        for (int k = 1; k < 60; k++) {
            term *= ((2 * k - 1) * (2 * k - 1) - 4.0L * order) / (k * 8 * size);
            sum += term;
        }
        sum *= __builtin_expl(size) / __builtin_sqrtl(2 * ACCELRT_PI_L * size);
    } else {
        const long double quarter = size * size / 4;
        for (int k = 1; k < 200 && term > sum * 1e-22L; k++)
            sum += term *= quarter / ((long double)k * (k + order));
        sum *= order ? size / 2 : 1;
    }
    return (double)(order && x < 0 ? -sum : sum);
}
accelrt_inline double cyl_bessel_i0(double x) { return x != x ? x : accelrt_bessel_i(x, 0); }
accelrt_inline double cyl_bessel_i1(double x) { return x != x ? x : accelrt_bessel_i(x, 1); }
accelrt_inline float cyl_bessel_i0f(float x) { return (float)cyl_bessel_i0(x); }
accelrt_inline float cyl_bessel_i1f(float x) { return (float)cyl_bessel_i1(x); }
// The C library's of float are off by far more than CUDA's near their zeros.
accelrt_inline double accelrt_jn(int n, double x) { return n < 0 ? __builtin_nan("") : __builtin_jn(n, x); }
accelrt_inline double accelrt_yn(int n, double x) { return n < 0 ? __builtin_nan("") : __builtin_yn(n, x); }
accelrt_inline float accelrt_j0f(float x) { return (float)__builtin_j0(x); }
accelrt_inline float accelrt_j1f(float x) { return (float)__builtin_j1(x); }
accelrt_inline float accelrt_y0f(float x) { return (float)__builtin_y0(x); }
accelrt_inline float accelrt_y1f(float x) { return (float)__builtin_y1(x); }
accelrt_inline float accelrt_jnf(int n, float x) { return (float)accelrt_jn(n, x); }
accelrt_inline float accelrt_ynf(int n, float x) { return (float)accelrt_yn(n, x); }
#define j0f accelrt_j0f
#define j1f accelrt_j1f
#define y0f accelrt_y0f
#define y1f accelrt_y1f
#define jnf accelrt_jnf
#define ynf accelrt_ynf
#define jn accelrt_jn
#define yn accelrt_yn

// --- overloads for float --------------------------------------------------------------------------------------------
#define ACCELRT_ONE(name) accelrt_inline float name(float x) { return name##f(x); }
ACCELRT_ONE(rsqrt) ACCELRT_ONE(rcbrt) ACCELRT_ONE(sinpi) ACCELRT_ONE(cospi) ACCELRT_ONE(erfcx) ACCELRT_ONE(normcdf)
ACCELRT_ONE(erfinv) ACCELRT_ONE(erfcinv) ACCELRT_ONE(normcdfinv) ACCELRT_ONE(cyl_bessel_i0) ACCELRT_ONE(cyl_bessel_i1)
#undef ACCELRT_ONE
accelrt_inline float accelrt_exp10(float x) { return accelrt_exp10f(x); }
accelrt_inline float fdivide(float x, float y) { return x / y; }
accelrt_inline float rhypot(float a, float b) { return rhypotf(a, b); }
accelrt_inline float norm(int count, const float* at) { return normf(count, at); }
accelrt_inline float rnorm(int count, const float* at) { return rnormf(count, at); }
accelrt_inline float norm3d(float a, float b, float c) { return norm3df(a, b, c); }
accelrt_inline float rnorm3d(float a, float b, float c) { return rnorm3df(a, b, c); }
accelrt_inline float norm4d(float a, float b, float c, float d) { return norm4df(a, b, c, d); }
accelrt_inline float rnorm4d(float a, float b, float c, float d) { return rnorm4df(a, b, c, d); }
accelrt_inline void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
accelrt_inline void sincos(float x, float* s, float* c) { sincosf(x, s, c); }
