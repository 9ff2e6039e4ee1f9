"""C++ of the host device for what CUDA's mathematical functions compute, operation for operation.

accelrt_log, accelrt_log_double and accelrt_sincospi are the steps that NVRTC writes for logf, log and
sincospi into PTX (without fast math), so they round as a GPU does.  Of log the GPU begins with an approximate
reciprocal (rcp.approx.ftz.f64), which it refines until it is the rounded quotient in nearly all cases; C++
divides.

accelrt_sincos stands for the instructions sin.approx.f32 and cos.approx.f32, whose tables NVIDIA does not
publish: how they compute was found by measuring an H200.  It holds for all 7,080,306 angles of a quadrant
that float32 has in units of 2**-25 turns, and for 4,259,840 angles as a generator makes them.
"""

from __future__ import annotations

HOST_MATH = """\
/* A float times a power of two plus half of it: double holds both exactly, so that the end rounds once. */
accelrt_inline float accelrt_scaled(unsigned int word, float scale, float half) {
    const float rounded = (float)word;
    return (float)((double)rounded * (double)scale + (double)half);
}
accelrt_inline float accelrt_fma(float x, float y, float z) {
    return y == 1.0f && z == 0.0f ? x + z : fmaf(x, y, z);
}
accelrt_inline double accelrt_fma(double x, double y, double z) {
    return y == 1.0 && z == 0.0 ? x + z : fma(x, y, z);
}
#define accelrt_sqrt(x) __builtin_sqrtf(x)
accelrt_inline float accelrt_log(float x) {  /* of (0, 1], where no number is subnormal */
    static const unsigned int factors[] = {
        0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9, 0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000,
    };
    const unsigned int bits = __float_as_uint(x), power = (bits - 0x3F2AAAAB) & 0xFF800000;
    const float rest = __uint_as_float(bits - power) - 1.0f, whole = (float)(int)power * 0x1p-23f;
    float sum = __uint_as_float(0xBE055027);
    for (int i = 0; i < 8; i++)
        sum = fmaf(sum, rest, __uint_as_float(factors[i]));
    return fmaf(whole, __uint_as_float(0x3F317218), fmaf(rest * sum, rest, rest));
}
accelrt_inline double accelrt_log_double(double x) {  /* of (0, 1], where no number is subnormal */
    static const unsigned long long factors[] = {
        0x3ED0EE258B7A8B04, 0x3EF3B2669F02676F, 0x3F1745CBA9AB0956, 0x3F3C71C72D1B5154, 0x3F624924923BE72D,
        0x3F8999999999A3C4, 0x3FB5555555555554,
    };
    const unsigned long long bits = accelrt_bits_as<unsigned long long>(x);
    unsigned int high = ((unsigned int)(bits >> 32) & 0x800FFFFF) | 0x3FF00000;
    int power = (int)(bits >> 52) - 1023;
    if ((int)high >= 1073127583) {
        high -= 0x100000;
        power++;
    }
    const double part = accelrt_bits_as<double>((unsigned long long)high << 32 | (unsigned int)bits);
    const double above = part + 1.0, below = part - 1.0, inverse = 1.0 / above;
    const double once = below * inverse, ratio = fma(below, inverse, once), square = ratio * ratio;
    double sum = accelrt_bits_as<double>(0x3EB1380B3AE80F1E);
    for (int i = 0; i < 7; i++)
        sum = fma(sum, square, accelrt_bits_as<double>(factors[i]));
    const double twice = below - ratio, left = inverse * fma(-ratio, below, twice + twice);
    const double tail = fma(square * sum, ratio, left), log_two = accelrt_bits_as<double>(0x3FE62E42FEFA39EF);
    const double whole = power, large = fma(whole, log_two, ratio);
    const double lost = fma(-whole, log_two, large) - ratio;
    return large + fma(whole, accelrt_bits_as<double>(0x3C7ABC9E3B39803F), tail - lost);
}
accelrt_inline void accelrt_sincospi(double x, double* sine, double* cosine) {  /* of [0, 2] */
    static const unsigned long long of_cosine[] = {
        0x3E21EEA7C1EF8528, 0xBE927E4F8E06E6D9, 0x3EFA01A019DDBCE9, 0xBF56C16C16C15D47, 0x3FA5555555555551,
        0xBFE0000000000000, 0x3FF0000000000000,
    }, of_sine[] = {
        0xBE5AE5F12CB0D246, 0x3EC71DE369ACE392, 0xBF2A01A019DB62A1, 0x3F81111111110818, 0xBFC5555555555554, 0,
    };
    const double quarters = __builtin_rint(x + x), rest = fma(-quarters, 0.5, x);
    const double angle = fma(rest, 0x1.921fb54442d18p+1, rest * accelrt_bits_as<double>(0x3CA1A62633145C07));
    const double square = angle * angle;
    double c = accelrt_bits_as<double>(0xBDA8FF8320FD8164), s = accelrt_bits_as<double>(0x3DE5DB65F9785EBA);
    for (int i = 0; i < 7; i++)
        c = fma(c, square, accelrt_bits_as<double>(of_cosine[i]));
    for (int i = 0; i < 6; i++)
        s = fma(s, square, accelrt_bits_as<double>(of_sine[i]));
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
/* What sin.approx.f32 answers for an angle of turns / 2**25: 64 parts of a quadrant, each with a polynomial
   of the second degree in 17 bits, whose square is summed from products that are cut. */
accelrt_inline float accelrt_wave(unsigned int turns) {
    static const int parts[64][3] = {
        {0, 25737, -14}, {1646926, 25730, -48}, {3292872, 25706, -76}, {4936828, 25668, -110},
        {6577812, 25613, -137}, {8214836, 25544, -171}, {9846906, 25459, -201}, {11473052, 25358, -229},
        {13092282, 25243, -262}, {14703632, 25112, -292}, {16306120, 24966, -322},
        {17898788, 24805, -352}, {19480670, 24629, -381}, {21050826, 24438, -410},
        {22608290, 24233, -441}, {24152140, 24013, -470}, {25681450, 23778, -497},
        {27195286, 23529, -525}, {28692734, 23266, -553}, {30172904, 22989, -581},
        {31634900, 22698, -608}, {33077832, 22394, -637}, {34500844, 22076, -664},
        {35903084, 21744, -688}, {37283680, 21400, -715}, {38641832, 21042, -738},
        {39976700, 20672, -763}, {41287492, 20290, -790}, {42573406, 19895, -812},
        {43833682, 19489, -839}, {45067552, 19070, -859}, {46274276, 18640, -881},
        {47453130, 18199, -904}, {48603396, 17747, -926}, {49724388, 17284, -946},
        {50815422, 16811, -967}, {51875848, 16328, -988}, {52905036, 15834, -1004},
        {53902340, 15332, -1025}, {54867186, 14820, -1043}, {55798976, 14299, -1059},
        {56697166, 13769, -1074}, {57561188, 13232, -1093}, {58390546, 12686, -1107},
        {59184728, 12133, -1123}, {59943264, 11572, -1136}, {60665692, 11004, -1148},
        {61351576, 10430, -1162}, {62000506, 9849, -1172}, {62612084, 9263, -1185},
        {63185948, 8671, -1196}, {63721758, 8073, -1203}, {64219180, 7471, -1213},
        {64677922, 6864, -1220}, {65097690, 6254, -1230}, {65478264, 5639, -1236},
        {65819388, 5021, -1242}, {66120864, 4400, -1247}, {66382514, 3776, -1250},
        {66604174, 3151, -1258}, {66785714, 2523, -1260}, {66927034, 1893, -1260},
        {67028028, 1263, -1263}, {67088652, 632, -1265},
    };
    const unsigned int place = turns >> 23 & 1 ? ~turns & 0x7FFFFF : turns & 0x7FFFFF, rest = place & 0x1FFFF;
    const int* part = parts[place >> 17];
    int square = 0;
    for (int bit = 0; bit < 17; bit++)
        square += (rest >> (18 - bit)) & -(rest >> bit & 1);
    long long sum = ((long long)part[0] << 11) + (long long)part[1] * rest;
    sum += (long long)part[2] * (square >> 1);
    if (sum >> 24) {  /* 24 bits are kept, towards zero */
        const int cut = 40 - __builtin_clzll((unsigned long long)sum);
        sum = sum >> cut << cut;
    }
    const float size = (float)sum * 0x1p-37f;
    return turns >> 24 & 1 ? -size : size;
}
accelrt_inline void accelrt_sincos(float x, float* sine, float* cosine) {  /* of 0 and more */
    /* The angle in turns, rounded towards zero, and again to 2**-25. */
    const double exact = (double)x * (double)__uint_as_float(0x3E22F983);
    float rounded = (float)exact;
    if ((double)rounded > exact)
        rounded = __uint_as_float(__float_as_uint(rounded) - 1);
    const unsigned int turns = (unsigned int)(rounded * 0x1p25f);
    *sine = accelrt_wave(turns);
    *cosine = accelrt_wave(turns + (1u << 23));
}
"""
