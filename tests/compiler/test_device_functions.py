"""CUDA's mathematical functions and intrinsics, on a GPU and on the host device, against exact values.

The bounds are those of the CUDA C++ Programming Guide, "Mathematical Functions", in units of the last place.
"""

import os
from math import erf, erfc, exp, pi, sqrt

import numpy as np
import pytest
from device_arrays import read, to_device

import accelrt

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
pytestmark = [] if ON_HOST else [pytest.mark.nvrtc]

# name: (bound of float, bound of double, (arguments that both types have, value), ...)
ONE = {
    "exp": (1, 1, (-1.5, 0.22313016014842982), (10.25, 28282.541920334977)),
    "exp2": (2, 1, (-3.299999952316284, 0.10153155290033333), (20.700000762939453, 1703417.6383402438)),
    "exp10": (2, 1, (-2.5999999046325684, 0.0025118869830988676), (7.300000190734863, 19952631.912548658)),
    "expm1": (1, 1, (0.0010000000474974513, 0.0010005002142533142), (-2.5, -0.9179150013761012)),
    "log": (1, 1, (0.30000001192092896, -1.2039727645895069), (77.0, 4.343805421853684)),
    "log2": (1, 1, (0.30000001192092896, -1.736965536838657), (77.0, 6.266786540694901)),
    "log10": (2, 1, (0.30000001192092896, -0.5228787280230257), (77.0, 1.8864907251724818)),
    "log1p": (1, 1, (0.0010000000474974513, 0.0009995003805335345), (5.5, 1.8718021769015913)),
    "logb": (0, 0, (0.30000001192092896, -2.0), (77.0, 6.0)),
    "sqrt": (0, 0, (0.30000001192092896, 0.5477225683874355), (77.0, 8.774964387392123)),
    "rsqrt": (2, 1, (0.30000001192092896, 1.825741822076323), (77.0, 0.11396057645963795)),
    "cbrt": (1, 1, (0.30000001192092896, 0.6694329589491279), (77.0, 4.254320865115006)),
    "rcbrt": (1, 1, (0.30000001192092896, 1.4938015623996082), (77.0, 0.23505514316042717)),
    "sin": (2, 2, (-2.0999999046325684, -0.8632094147947462), (30.0, -0.9880316240928618)),
    "cos": (2, 2, (-2.0999999046325684, -0.5048460222777948), (30.0, 0.15425144988758405)),
    "tan": (4, 2, (-2.0999999046325684, 1.7098469170858586), (30.0, -6.405331196646276)),
    "sinpi": (1, 2, (-2.0999999046325684, -0.3090167094330538), (30.375, 0.9238795325112867)),
    "cospi": (1, 2, (-2.0999999046325684, 0.9510566088783399), (30.375, 0.3826834323650898)),
    "asin": (2, 2, (-0.699999988079071, -0.7753974799181138), (0.20000000298023224, 0.2013579238320176)),
    "acos": (2, 2, (-0.699999988079071, 2.3461938067130106), (0.20000000298023224, 1.369438402962879)),
    "atan": (2, 2, (-0.699999988079071, -0.6107259563885851), (20.0, 1.5208379310729538)),
    "sinh": (3, 2, (-0.699999988079071, -0.758583686876753), (8.0, 1490.4788257895502)),
    "cosh": (2, 1, (-0.699999988079071, 1.2551689965879207), (8.0, 1490.479161252178)),
    "tanh": (2, 2, (-0.699999988079071, -0.6043677695504779), (2.0, 0.9640275800758169)),
    "asinh": (3, 3, (-0.699999988079071, -0.6526665563163503), (20.0, 3.6895038689889055)),
    "acosh": (4, 3, (1.2000000476837158, 0.6223625756006803), (20.0, 3.6882538673612966)),
    "atanh": (3, 2, (-0.699999988079071, -0.8673005043196831), (0.20000000298023224, 0.20273255715849078)),
    "erf": (2, 2, (-0.699999988079071, -0.6778011855967799), (2.0, 0.9953222650189527)),
    "erfc": (4, 5, (-0.699999988079071, 1.6778011855967798), (5.0, 1.537459794428035e-12)),
    "erfcx": (
        4,
        4,
        (-0.699999988079071, 2.7387020434029674),
        (6.5, 0.08580567010489461),
        (40.0, 0.014100335983377814),
    ),
    "erfinv": (2, 5, (-0.30000001192092896, -0.2724627261055238), (0.9900000095367432, 1.8213866009002777)),
    "erfcinv": (
        4,
        6,
        (9.999999682655225e-21, 6.601580624732017),
        (0.4000000059604645, 0.5951160739227482),
        (1.7000000476837158, -0.7328691502650534),
    ),
    "normcdf": (5, 5, (-7.5, 3.1908916729108963e-14), (0.4000000059604645, 0.6554217438053852)),
    "normcdfinv": (
        5,
        8,
        (9.999999960041972e-13, -7.0344838258583176),
        (0.30000001192092896, -0.5244004784222137),
        (0.9900000095367432, 2.326348231863753),
    ),
    "tgamma": (5, 10, (-1.5, 2.363271801207355), (7.300000190734863, 1271.4240987446594)),
    "lgamma": (6, 4, (0.30000001192092896, 1.095797953064734), (30.0, 71.25703896716801)),
    "j0": (9, 7, (0.699999988079071, 0.8812008925293401), (7.5, 0.2663396578803784)),
    "j1": (9, 7, (0.699999988079071, 0.32899573663808984), (7.5, 0.1352484275797055)),
    "y0": (9, 7, (0.699999988079071, -0.1906649424891585), (7.5, 0.11731328614820863)),
    "y1": (9, 7, (0.699999988079071, -1.1032498884229638), (7.5, -0.25912851048611624)),
    "cyl_bessel_i0": (6, 6, (0.699999988079071, 1.126303013873658), (60.0, 5.894077055609801e24)),
    "cyl_bessel_i1": (6, 6, (-0.699999988079071, -0.3718796706835036), (60.0, 5.844751588390468e24)),
    "ceil": (0, 0, (-0.699999988079071, 0.0), (2.200000047683716, 3.0)),
    "floor": (0, 0, (-0.699999988079071, -1.0), (2.200000047683716, 2.0)),
    "trunc": (0, 0, (-0.699999988079071, 0.0), (2.700000047683716, 2.0)),
    "rint": (0, 0, (2.5, 2.0), (-0.699999988079071, -1.0)),
    "round": (0, 0, (2.5, 3.0), (-0.699999988079071, -1.0)),
    "fabs": (0, 0, (-0.699999988079071, 0.699999988079071), (2.0, 2.0)),
}
TWO = {
    "pow": (4, 2, (1.5, -2.25, 0.40160089049326436)),
    "atan2": (3, 2, (-1.25, 0.5, -1.1902899496825317)),
    "hypot": (3, 2, (3.5, -1.25, 3.7165171868296265)),
    "rhypot": (2, 1, (3.5, -1.25, 0.269069117598525)),
    "fmod": (0, 0, (7.5, -2, 1.5)),
    "remainder": (0, 0, (7.25, 2, -0.75)),
    "fdim": (0, 0, (3.5, 1.25, 2.25)),
    "copysign": (0, 0, (3.5, -1.0, -3.5)),
    "fmax": (0, 0, (3.5, -1.0, 3.5)),
    "fmin": (0, 0, (3.5, -1.0, -1.0)),
}
EXACT = {
    # float functions of more arguments, and those that write through pointers
    "norm3d(1.0, 2.0, 3.0)": 3.7416573867739413,
    "rnorm4d(1.0, 2.0, 3.0, 4.0)": 0.18257418583505536,
    "jn(3, 2.5)": 0.21660039103911352,
    "yn(3, 2.5)": -0.756055496753671,
    "fma(3.0, 4.0, 0.5)": 12.5,
    "ldexp(0.75, 4)": 12.0,
    "scalbn(0.75, 4)": 12.0,
    "(double)ilogb(77.0)": 6.0,
    "(double)lrint(2.5)": 2.0,
    "(double)llround(2.5)": 3.0,
    "nextafter(1.0, 2.0)": 1.0000000000000002,
    "two(sincos)": 0.8414709848078965 + 2 * 0.5403023058681398,
    "two(sincospi)": 0.0 - 2,
    "parts(7.75)": 0.75 + 20 * 7,
    "mantissa(12.0)": 0.75 + 100 * 4,
    "(double)isnan(NAN)": 1.0,
    "(double)isinf(-INFINITY)": 1.0,
    "(double)signbit(-0.0)": 1.0,
}
INTRINSICS = {
    "__popc(0xF0F0u)": 8,
    "__popcll(0xF0F0F0F000000000ull)": 16,
    "__clz(1)": 31,
    "__clz(0)": 32,
    "__clzll(1ll << 40)": 23,
    "__ffs(0)": 0,
    "__ffs(48)": 5,
    "__ffsll(1ll << 40)": 41,
    "__brev(1u)": 0x80000000,
    "(long long)__brevll(2ull)": 1 << 62,
    "__byte_perm(0x33221100u, 0x77665544u, 0x7250u)": 0x77225500,
    "__byte_perm(0x80u, 0u, 0x8888u)": 0x80808080,
    "__mul24(-3, 5)": -15,
    "__umul24(0xFF000003u, 5u)": 15,
    "__mulhi(-(1 << 30), 12)": -3,
    "__umulhi(1u << 31, 6u)": 3,
    "__mul64hi(-(1ll << 62), 12ll)": -3,
    "(long long)__umul64hi(1ull << 63, 6ull)": 3,
    "__sad(-3, 5, 100u)": 108,
    "__usad(3u, 5u, 100u)": 102,
    "__hadd(7, -2)": 2,
    "__rhadd(7, 2)": 5,
    "__uhadd(0xFFFFFFFFu, 1u)": 0x80000000,
    "__funnelshift_l(0x80000000u, 1u, 4u)": 0x18,
    "__funnelshift_r(0x80000000u, 1u, 4u)": 0x18000000,
    "__dp4a(0x01020304, 0x01010101, 5)": 15,
    "__float_as_int(1.0f)": 0x3F800000,
    "__float_as_uint(-0.0f)": 0x80000000,
    "__int_as_float(0x40490fdb) == 3.14159274f": 1,
    "__double_as_longlong(1.0)": 0x3FF0000000000000,
    "__double2hiint(1.0)": 0x3FF00000,
    "__hiloint2double(0x40000000, 0) == 2.0": 1,
    "__float2int_rn(2.5f)": 2,
    "__float2int_rz(-2.7f)": -2,
    "__float2int_ru(2.1f)": 3,
    "__float2int_rd(-2.1f)": -3,
    "__float2int_rn(1e20f)": 0x7FFFFFFF,
    "__float2int_rn(NAN)": 0,
    "__float2uint_rz(-5.0f)": 0,
    "__double2ll_rn(3.5)": 4,
    "__double2int_ru(-1e300)": -(1 << 31),
    "(long long)__double2ull_rz(9007199254740993.0)": 9007199254740992,
    "__float_as_uint(__int2float_rz(16777217))": 0x4B800000,
    "__float_as_uint(__int2float_ru(16777217))": 0x4B800001,
    "__float_as_uint(__double2float_rd(0.1))": 0x3DCCCCCC,
    "__float_as_uint(__double2float_ru(0.1))": 0x3DCCCCCD,
    "__float_as_uint(__fadd_rd(1.0f, 1e-10f))": 0x3F800000,
    "__float_as_uint(__fadd_ru(1.0f, 1e-10f))": 0x3F800001,
    "__float_as_uint(__fmul_rz(0.1f, 0.1f))": 0x3C23D70A,
    "__float_as_uint(__fdiv_ru(1.0f, 3.0f))": 0x3EAAAAAB,
    "__float_as_uint(__fdiv_rz(1.0f, 3.0f))": 0x3EAAAAAA,
    "__float_as_uint(__frcp_rn(3.0f))": 0x3EAAAAAB,
    "__float_as_uint(__fsqrt_rd(2.0f))": 0x3FB504F3,
    "__float_as_uint(__fsqrt_ru(2.0f))": 0x3FB504F4,
    "__float_as_uint(__fmaf_rn(3.0f, 4.0f, 0.5f))": 0x41480000,
    "__double_as_longlong(__dadd_ru(1.0, 1e-30))": 0x3FF0000000000001,
    "__double_as_longlong(__ddiv_rd(1.0, 3.0))": 0x3FD5555555555555,
    "__double_as_longlong(__fma_ru(1.0, 1.0, 1e-30))": 0x3FF0000000000001,
    "__saturatef(1.5f) == 1.0f && __saturatef(NAN) == 0.0f": 1,
    "min(3, 4u) + max(-5ll, 7ll)": 10,
    "min(2.5f, 3.0) == 2.5 && max(NAN, 1.0f) == 1.0f": 1,
    "abs(-7) + (int)abs(-7.5f) + (int)abs(-1ll << 40 >> 38)": 18,
    "__ldg(at) + 5": 5,
    "(int)sizeof(float4) + (int)alignof(float4) + (int)sizeof(char3) + (int)sizeof(longlong2)": 51,
    "make_int3(1, 2, 3).z + (int)dim3(4, 5).y + (int)dim3(4).z": 9,
}
NEAR = {  # fast forms, which a GPU computes with a larger error
    "__expf(1.5f)": 4.4816890703380645,
    "__exp10f(1.5f)": 31.622776601683793,
    "__logf(7.0f)": 1.9459101490553132,
    "__log2f(7.0f)": 2.807354922057604,
    "__log10f(7.0f)": 0.8450980400142568,
    "__sinf(0.5f)": 0.479425538604203,
    "__cosf(0.5f)": 0.8775825618903728,
    "__tanf(0.5f)": 0.5463024898437905,
    "__powf(1.5f, 2.5f)": 2.7556759606310752,
    "__fdividef(7.0f, 2.0f)": 3.5,
    "fdividef(7.0f, 2.0f)": 3.5,
    "__frsqrt_rn(4.0f)": 0.5,
}
SUPPORT = """
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#define INFINITY __int_as_float(0x7f800000)
#endif
__device__ double two(void (*f)(double, double*, double*)) {
    double s, c;
    f(1.0, &s, &c);
    return s + 2 * c;
}
__device__ double parts(double x) {
    double whole;
    const double rest = modf(x, &whole);
    return rest + 20 * whole;
}
__device__ double mantissa(double x) {
    int power;
    const double rest = frexp(x, &power);
    return rest + 100 * power;
}
"""


def ulps(found, value, dtype):
    """How far a number is from a value, in units of the last place of the value."""
    return abs(float(found) - value) / float(np.spacing(dtype(abs(value))))


@pytest.fixture(scope="module")
def tables():
    """The functions of one and of two arguments at all of their arguments, by (name, type)."""
    lines, wanted = [], []
    for word, suffix in (("float", "f"), ("double", "")):
        for name, given in ((name, given) for name, (_, _, *cases) in (ONE | TWO).items() for given in cases):
            numbers = ", ".join(f"({word}){number!r}" for number in given[:-1])
            # By the name of C, and by the name that C++ overloads.
            for called in {name + suffix, name}:
                lines.append(f"    at[{len(wanted)}] = {called}({numbers});")
                wanted.append((name, word, given))
    kernel = 'extern "C" __global__ void k(double* at) {\n' + "\n".join(lines) + "\n}\n"
    out = to_device(np.zeros(len(wanted)))
    with accelrt.compile(SUPPORT + kernel) as module:
        module.function("k")[1, 1](out)
    return list(zip(wanted, read(out).tolist(), strict=True))


@pytest.mark.parametrize("word", ["float", "double"])
def test_functions_are_as_near_as_cuda_states(tables, word):
    dtype = np.float32 if word == "float" else np.float64
    far = []
    for (name, of, given), found in tables:
        bound = (ONE.get(name) or TWO[name])[0 if word == "float" else 1]
        off = ulps(found, given[-1], dtype)
        if of == word and off > bound + 0.5:  # the value itself is rounded for float
            far.append((name, given, found, off))
    assert far == []


def test_more_than_52_functions_are_known():
    assert len(ONE) + len(TWO) + len(EXACT) > 52
    assert len(INTRINSICS) + len(NEAR) > 52


def written(expressions, word, dtype):
    lines = "\n".join(f"    out[{number}] = {each};" for number, each in enumerate(expressions))
    source = f'{SUPPORT}extern "C" __global__ void k({word}* out, const int* at) {{\n{lines}\n}}\n'
    out = to_device(np.zeros(len(expressions), dtype))
    with accelrt.compile(source) as module:
        module.function("k")[1, 1](out, to_device(np.zeros(4, np.int32)))
    return dict(zip(expressions, read(out).tolist(), strict=True))


def test_functions_of_other_shapes():
    found = written(list(EXACT), "double", np.float64)
    assert found == {name: pytest.approx(value, rel=2e-15) for name, value in EXACT.items()}


def test_intrinsics_have_a_gpus_bits():
    assert written(list(INTRINSICS), "long long", np.int64) == INTRINSICS


def test_fast_forms_are_near():
    found = written(list(NEAR), "double", np.float64)
    assert found == {name: pytest.approx(value, rel=2e-6) for name, value in NEAR.items()}


@pytest.mark.host
def test_inverses_are_right_over_the_whole_range():
    """By the functions that they invert, which the C library has."""
    kernel = accelrt.elementwise(
        "T p", "T a, T b, T c", "a = erfinv(2 * p - 1); b = erfcinv(2 * p); c = normcdfinv(p)"
    )
    p = np.concatenate(
        [10.0 ** -np.arange(1, 300, 7.0), np.linspace(0.01, 0.99, 99), 1 - 10.0 ** -np.arange(2, 16)]
    )
    a, b, c = (read(each) for each in kernel(to_device(p)))
    for q, inverse, normal in zip(p, b, c, strict=True):
        # A step of the inverse's last place moves the function by its slope.
        step = 2 / sqrt(pi) * exp(-inverse * inverse) * abs(np.spacing(inverse))
        assert abs(erfc(inverse) - 2 * q) <= 6 * step + 4 * np.spacing(2 * q)
        assert normal == pytest.approx(-sqrt(2) * inverse, rel=1e-15, abs=1e-300)
    for q, inverse in zip(p, a, strict=True):
        if abs(2 * q - 1) == 1:
            assert inverse == np.copysign(np.inf, 2 * q - 1)
            continue
        step = 2 / sqrt(pi) * exp(-inverse * inverse) * abs(np.spacing(inverse))
        assert abs(erf(inverse) - (2 * q - 1)) <= 6 * step + 4 * np.spacing(abs(2 * q - 1))


@pytest.mark.host
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ends_and_what_is_no_number(dtype):
    operation = """
        a = erfinv(x); b = erfcinv(x); c = normcdfinv(x); d = rsqrt(x); e = sinpi(x); f = erfcx(x);
        g = cyl_bessel_i0(x);
    """
    kernel = accelrt.elementwise("T x", ", ".join(f"T {name}" for name in "abcdefg"), operation)
    x = np.array([0, 1, 2, -1, -3, np.inf, -np.inf, np.nan], dtype)
    nan, inf = np.nan, np.inf
    found = [read(each) for each in kernel(to_device(x))]
    expected = [
        [0, inf, nan, -inf, nan, nan, nan, nan],
        [inf, 0, -inf, nan, nan, nan, nan, nan],
        [-inf, inf, nan, nan, nan, nan, nan, nan],
        [inf, 1, 2**-0.5, nan, nan, 0, nan, nan],
        [0, 0, 0, 0, 0, nan, nan, nan],
    ]
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-7)
    assert found[5][5:7].tolist() == [0, inf]
    assert found[6][5:7].tolist() == [inf, inf]


TYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", TYPES)
def test_texts_in_the_style_of_cpp_compile_for_every_type(dtype):
    operation = """
        constexpr T three = T(3);
        auto t = x;
        const auto next = [](T value) { return static_cast<T>(value + T(1)); };
        y = next(t);
        z = t > three ? t : T(0);
    """
    kernel = accelrt.elementwise("T x", "T y, T z", operation, name="styled")
    x = np.array([0, 1, 5, 100]).astype(dtype)
    y, z = map(read, kernel(to_device(x)))
    one = np.ones(4, bool) if dtype == "bool" else x + 1
    assert (y == one).all()
    assert (z == np.where(x > 3, x, 0).astype(dtype)).all()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_absolute_values_are_those_of_the_type(dtype):
    x = np.array([-3.5, 0.25, 2.75, -100]).astype(dtype)
    if dtype == "int64":
        x[0] = -(1 << 40)
    y, z = accelrt.elementwise("T x", "T y, T z", "y = abs(x); z = min(x, T(2)) + max(x, T(1))", name="size")(
        to_device(x)
    )
    assert (read(y) == abs(x)).all()
    assert (read(z) == np.minimum(x, x.dtype.type(2)) + np.maximum(x, x.dtype.type(1))).all()


@pytest.mark.parametrize("misspelt", ["rsqrtt(x)", "nothing", "__expff(x)", "std::absolute(x)"])
def test_a_misspelt_name_is_a_compile_error_with_its_place(misspelt):
    kernel = accelrt.elementwise("T x", "T y", f"y = x;\n  y += {misspelt};", name="misspelt")
    place = r"operation of misspelt, line 2, column \d+" if ON_HOST else "error"
    with pytest.raises(accelrt.CompileError, match=place):
        kernel(to_device(np.ones(3, np.float32)))
