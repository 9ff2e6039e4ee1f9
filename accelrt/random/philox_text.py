"""C++ and CUDA C++ that the kernels of random numbers are put together of; philox_source puts it together."""

from __future__ import annotations

# Both halves of a product.  NVRTC makes 64-bit operations of what C says, several times as many.
CUDA_PRODUCT = """\
#define accelrt_product(high, low, x, y) \\
    asm("{ .reg .u64 all; mul.wide.u32 all, %2, %3; mov.b64 {%1, %0}, all; }" \\
        : "=r"(high), "=r"(low) : "r"(x), "r"(y))
"""
HOST_PRODUCT = """\
#define accelrt_product(high, low, x, y) do { \\
    const accelrt_long all = (accelrt_long)(x) * (y); \\
    high = (accelrt_word)(all >> 32); \\
    low = (accelrt_word)all; \\
} while (0)
"""
PHILOX = """\
typedef unsigned int accelrt_word;
typedef unsigned long long accelrt_long;
typedef struct { accelrt_word at[4]; } accelrt_words;
typedef struct { accelrt_word low[10], high[10]; } accelrt_keys;  /* of the rounds */
accelrt_inline accelrt_keys accelrt_schedule(accelrt_long key) {
    accelrt_keys keys;
    for (int i = 0; i < 10; i++) {
        keys.low[i] = (accelrt_word)key + i * 0x9E3779B9u;
        keys.high[i] = (accelrt_word)(key >> 32) + i * 0xBB67AE85u;
    }
    return keys;
}
accelrt_inline accelrt_words accelrt_philox(accelrt_long low, accelrt_long high, accelrt_keys keys) {
    accelrt_word a = (accelrt_word)low, b = (accelrt_word)(low >> 32);
    accelrt_word c = (accelrt_word)high, d = (accelrt_word)(high >> 32);
ROUNDS
    accelrt_words drawn;
    drawn.at[0] = a; drawn.at[1] = b; drawn.at[2] = c; drawn.at[3] = d;
    return drawn;
}
"""
ROUND = """\
    {
        accelrt_word one, two, low, next;
        accelrt_product(one, low, a, 0xD2511F53u);
        accelrt_product(two, next, c, 0xCD9E8D57u);
        c = one ^ d ^ keys.high[NUMBER]; d = low;
        a = two ^ b ^ keys.low[NUMBER]; b = next;
    }
"""
WORDS = PHILOX.replace("ROUNDS\n", "".join(ROUND.replace("NUMBER", str(number)) for number in range(10)))

# Of a group: a drawn number in (0, 1] from 32 or 53 bits, each with one rounding after the integer's.
UNIT_FLOAT = """\
accelrt_inline float accelrt_unit(accelrt_word word) { return accelrt_scaled(word, 0x1p-32f, 0x1p-33f); }
"""
UNIT_DOUBLE = """\
accelrt_inline double accelrt_unit(accelrt_word low, accelrt_word high, double scale) {
    return fma((double)((accelrt_long)low ^ (accelrt_long)high << 21), scale, scale / 2);
}
"""
# accelrt_draw turns the words of a group into its numbers.
DRAWS = {
    ("unit", "float"): UNIT_FLOAT
    + """\
accelrt_inline void accelrt_draw(accelrt_words drawn, float* numbers) {
    for (int i = 0; i < 4; i++)
        numbers[i] = accelrt_unit(drawn.at[i]);
}
""",
    ("unit", "double"): UNIT_DOUBLE
    + """\
accelrt_inline void accelrt_draw(accelrt_words drawn, double* numbers) {
    numbers[0] = accelrt_unit(drawn.at[0], drawn.at[1], 0x1p-53);
    numbers[1] = accelrt_unit(drawn.at[2], drawn.at[3], 0x1p-53);
}
""",
    ("normal", "float"): UNIT_FLOAT
    + """\
accelrt_inline void accelrt_draw(accelrt_words drawn, float* numbers) {
    for (int i = 0; i < 4; i += 2) {  /* Box and Muller */
        const float length = accelrt_sqrt(-2.0f * accelrt_log(accelrt_unit(drawn.at[i])));
        const float angle = accelrt_fma((float)drawn.at[i + 1], 0x1.921fb6p-30f, 0x1.921fb6p-31f);
        float sine, cosine;
        accelrt_sincos(angle, &sine, &cosine);
        numbers[i] = sine * length;
        numbers[i + 1] = cosine * length;
    }
}
""",
    ("normal", "double"): UNIT_DOUBLE
    + """\
accelrt_inline void accelrt_draw(accelrt_words drawn, double* numbers) {
    const double length = sqrt(-2.0 * accelrt_log_double(accelrt_unit(drawn.at[0], drawn.at[1], 0x1p-53)));
    double sine, cosine;
    accelrt_sincospi(accelrt_unit(drawn.at[2], drawn.at[3], 0x1p-52), &sine, &cosine);
    numbers[0] = sine * length;
    numbers[1] = cosine * length;
}
""",
    ("words", "accelrt_word"): """\
accelrt_inline void accelrt_draw(accelrt_words drawn, accelrt_word* numbers) {
    for (int i = 0; i < 4; i++)
        numbers[i] = drawn.at[i];
}
""",
    ("words", "accelrt_long"): """\
accelrt_inline void accelrt_draw(accelrt_words drawn, accelrt_long* numbers) {
    numbers[0] = (accelrt_long)drawn.at[0] << 32 | drawn.at[1];
    numbers[1] = (accelrt_long)drawn.at[2] << 32 | drawn.at[3];
}
""",
}
WIDTHS = {"float": 4, "double": 2, "accelrt_word": 4, "accelrt_long": 2}
CUDA_MATH = """\
accelrt_inline float accelrt_scaled(accelrt_word word, float scale, float half) {
    return fmaf((float)word, scale, half);
}
accelrt_inline float accelrt_log(float x) { return logf(x); }
accelrt_inline float accelrt_sqrt(float x) { return sqrtf(x); }
accelrt_inline void accelrt_sincos(float x, float* sine, float* cosine) { __sincosf(x, sine, cosine); }
accelrt_inline double accelrt_log_double(double x) { return log(x); }
accelrt_inline void accelrt_sincospi(double x, double* sine, double* cosine) { sincospi(x, sine, cosine); }
accelrt_inline float accelrt_fma(float x, float y, float z) { return fmaf(x, y, z); }
accelrt_inline double accelrt_fma(double x, double y, double z) { return fma(x, y, z); }
"""

# What an element becomes of a drawn number x; p, q and r are the distribution's parameters.
MIX = """\
accelrt_inline accelrt_word accelrt_mix(accelrt_word x) {
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
"""
RANKED = """\
accelrt_inline accelrt_long accelrt_key(accelrt_long count, accelrt_long thread, accelrt_long seed) {
    const accelrt_words drawn = accelrt_philox(count, thread, accelrt_schedule(seed));
    return (accelrt_long)drawn.at[0] << 32 | drawn.at[1];
}
accelrt_inline accelrt_long accelrt_place(
    accelrt_long i, accelrt_long n, accelrt_long count, accelrt_long seed) {
    const accelrt_long mine = accelrt_key(count, i, seed);
    accelrt_long before = 0;
    for (accelrt_long other = 0; other < n; other++) {
        const accelrt_long theirs = accelrt_key(count, other, seed);
        before += theirs < mine || (theirs == mine && other < i);
    }
    return before;
}
"""
# A Feistel network over the least number of bits that n needs, repeated until the result is below n.
WALKED = (
    MIX
    + """\
accelrt_inline accelrt_long accelrt_place(
    accelrt_long i, accelrt_long n, accelrt_long count, accelrt_long seed) {
    accelrt_word keys[24];
    const accelrt_keys rounds = accelrt_schedule(seed);
    int bits = 2;
    for (int k = 0; k < 6; k++) {
        const accelrt_words drawn = accelrt_philox(count + k, 0, rounds);
        for (int j = 0; j < 4; j++)
            keys[4 * k + j] = drawn.at[j];
    }
    while (bits < 64 && (n - 1) >> bits)
        bits++;
    const int right_bits = bits / 2, left_bits = bits - right_bits;
    const accelrt_word right_mask = (accelrt_word)((1ull << right_bits) - 1);
    const accelrt_word left_mask = (accelrt_word)((1ull << left_bits) - 1);
    do {
        accelrt_word left = (accelrt_word)(i >> right_bits), right = (accelrt_word)i & right_mask;
        for (int k = 0; k < 24; k += 2) {
            left ^= accelrt_mix(right * 0x9E3779B9u + keys[k]) & left_mask;
            right ^= accelrt_mix(left * 0x9E3779B9u + keys[k + 1]) & right_mask;
        }
        i = (accelrt_long)left << right_bits | right;
    } while (i >= n);
    return i;
}
"""
)
