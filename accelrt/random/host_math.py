"""C of the host device for what CUDA's mathematical functions compute, operation for operation.

accelrt_log, accelrt_log_double and accelrt_sincospi are the steps that NVRTC writes for logf, log and
sincospi into PTX (without fast math), so they round as a GPU does.  Of log the GPU begins with an approximate
reciprocal (rcp.approx.ftz.f64), which it refines until it is the rounded quotient in nearly all cases; C
divides.

accelrt_sincos stands for the instructions sin.approx.f32 and cos.approx.f32, whose tables are NVIDIA's own.
It is the sine of the same reduced angle, and differs from theirs by up to 2**-20 (CUDA C++ Programming Guide,
"Intrinsic Functions").
"""

from __future__ import annotations

__all__ = ["HOST_MATH"]

HOST_MATH = """\
accelrt_inline float accelrt_as_float(unsigned int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
accelrt_inline unsigned int accelrt_as_bits(float value) {
    unsigned int bits;
    memcpy(&bits, &value, 4);
    return bits;
}
accelrt_inline double accelrt_as_double(unsigned long long bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
accelrt_inline unsigned long long accelrt_as_long(double value) {
    unsigned long long bits;
    memcpy(&bits, &value, 8);
    return bits;
}
/* A float times a power of two plus half of it: double holds both exactly, so that the end rounds once. */
accelrt_inline float accelrt_scaled(unsigned int word, float scale, float half) {
    const float rounded = (float)word;
    return (float)((double)rounded * (double)scale + (double)half);
}
accelrt_inline float accelrt_fma_float(float x, float y, float z) {
    return y == 1.0f && z == 0.0f ? x + z : fmaf(x, y, z);
}
accelrt_inline double accelrt_fma_double(double x, double y, double z) {
    return y == 1.0 && z == 0.0 ? x + z : fma(x, y, z);
}
#define accelrt_fma(x, y, z) _Generic((x), float: accelrt_fma_float, double: accelrt_fma_double)(x, y, z)
#define accelrt_sqrt(x) __builtin_sqrtf(x)
accelrt_inline float accelrt_log(float x) {  /* of (0, 1], where no number is subnormal */
    static const unsigned int factors[] = {
        0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9, 0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000,
    };
    const unsigned int bits = accelrt_as_bits(x), power = (bits - 0x3F2AAAAB) & 0xFF800000;
    const float rest = accelrt_as_float(bits - power) - 1.0f, whole = (float)(int)power * 0x1p-23f;
    float sum = accelrt_as_float(0xBE055027);
    for (int i = 0; i < 8; i++)
        sum = fmaf(sum, rest, accelrt_as_float(factors[i]));
    return fmaf(whole, accelrt_as_float(0x3F317218), fmaf(rest * sum, rest, rest));
}
accelrt_inline double accelrt_log_double(double x) {  /* of (0, 1], where no number is subnormal */
    static const unsigned long long factors[] = {
        0x3ED0EE258B7A8B04, 0x3EF3B2669F02676F, 0x3F1745CBA9AB0956, 0x3F3C71C72D1B5154, 0x3F624924923BE72D,
        0x3F8999999999A3C4, 0x3FB5555555555554,
    };
    const unsigned long long bits = accelrt_as_long(x);
    unsigned int high = ((unsigned int)(bits >> 32) & 0x800FFFFF) | 0x3FF00000;
    int power = (int)(bits >> 52) - 1023;
    if ((int)high >= 1073127583) {
        high -= 0x100000;
        power++;
    }
    const double part = accelrt_as_double((unsigned long long)high << 32 | (unsigned int)bits);
    const double above = part + 1.0, below = part - 1.0, inverse = 1.0 / above;
    const double once = below * inverse, ratio = fma(below, inverse, once), square = ratio * ratio;
    double sum = accelrt_as_double(0x3EB1380B3AE80F1E);
    for (int i = 0; i < 7; i++)
        sum = fma(sum, square, accelrt_as_double(factors[i]));
    const double twice = below - ratio, left = inverse * fma(-ratio, below, twice + twice);
    const double tail = fma(square * sum, ratio, left), log_two = accelrt_as_double(0x3FE62E42FEFA39EF);
    const double whole = power, large = fma(whole, log_two, ratio);
    const double lost = fma(-whole, log_two, large) - ratio;
    return large + fma(whole, accelrt_as_double(0x3C7ABC9E3B39803F), tail - lost);
}
accelrt_inline void accelrt_sincospi(double x, double* sine, double* cosine) {  /* of [0, 2] */
    static const unsigned long long of_cosine[] = {
        0x3E21EEA7C1EF8528, 0xBE927E4F8E06E6D9, 0x3EFA01A019DDBCE9, 0xBF56C16C16C15D47, 0x3FA5555555555551,
        0xBFE0000000000000, 0x3FF0000000000000,
    }, of_sine[] = {
        0xBE5AE5F12CB0D246, 0x3EC71DE369ACE392, 0xBF2A01A019DB62A1, 0x3F81111111110818, 0xBFC5555555555554, 0,
    };
    const double quarters = __builtin_rint(x + x), rest = fma(-quarters, 0.5, x);
    const double angle = fma(rest, 0x1.921fb54442d18p+1, rest * accelrt_as_double(0x3CA1A62633145C07));
    const double square = angle * angle;
    double c = accelrt_as_double(0xBDA8FF8320FD8164), s = accelrt_as_double(0x3DE5DB65F9785EBA);
    for (int i = 0; i < 7; i++)
        c = fma(c, square, accelrt_as_double(of_cosine[i]));
    for (int i = 0; i < 6; i++)
        s = fma(s, square, accelrt_as_double(of_sine[i]));
    s = fma(s, angle, angle);
    if ((int)quarters & 1) {
        const double other = -s;
        s = c;
        c = other;
    }
    if ((int)quarters & 2) {
        s = -s;
        c = -c;
    }
    *sine = x == __builtin_trunc(x) ? x * 0.0 : s;
    *cosine = c + 0.0;
}
accelrt_inline void accelrt_sincos(float x, float* sine, float* cosine) {
    /* The angle in turns, rounded towards zero; sine and cosine of it rounded once. */
    const double exact = (double)x * (double)accelrt_as_float(0x3E22F983);
    float turns = (float)exact;
    if ((double)turns > exact)
        turns = accelrt_as_float(accelrt_as_bits(turns) - 1);
    double s, c;
    accelrt_sincospi(2.0 * (double)turns, &s, &c);
    *sine = (float)s;
    *cosine = (float)c;
}
"""
