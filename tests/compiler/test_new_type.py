"""A type that kernels take needs a row of core/dtypes.py alone."""

import pytest
from child import run_code
from nvrtc_found import NVRTC_MISSING

from accelrt.runtime import init

pytestmark = pytest.mark.own_process

# float8_e4m3fn, which kernels do not take without it.
ROW = """
from accelrt.core import dtypes
CONVERSIONS = '''
accelrt_inline float accelrt_load_float8_e4m3fn(unsigned char stored) {
    const unsigned int sign = (unsigned int)(stored & 0x80) << 24, rest = stored & 0x7f;
    if (rest == 0x7f)
        return __uint_as_float(sign | 0x7fc00000);
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 20) * 0x1p120f));
}
accelrt_inline unsigned char accelrt_store_float8_e4m3fn(float value) {
    const unsigned int bits = __float_as_uint(value), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x43e80000)
        return sign | 0x7f;
    if (size < 0x3c800000)
        return sign | (__float_as_uint(__uint_as_float(size) + 16384.0f) - 0x46800000);
    return sign | ((size - 0x3c000000 + 0x7ffff + (size >> 20 & 1)) >> 20);
}
'''
row = dtypes.BY_NAME["float8_e4m3fn"]._replace(
    stored="unsigned char", words="__nv_fp8_e4m3|float8_e4m3fn", precision=4, conversions=CONVERSIONS
)
dtypes.BY_NAME[row.name] = row
dtypes.DTYPES = tuple(dtypes.BY_NAME.values())
"""
USES = """
import ml_dtypes, numpy as np
import accelrt
kind = ml_dtypes.float8_e4m3fn
every = np.arange(256, dtype=np.uint8).view(kind)
x = accelrt.asarray(every)
wide = accelrt.elementwise("float8_e4m3fn x", "float32 z", "z = x")(x).numpy()
assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)
drawn = np.random.default_rng(1)
values = np.concatenate([drawn.normal(0, size, 20000) for size in (1e-4, 1e-2, 1, 100, 300)]).astype("f4")
narrow = accelrt.elementwise("float32 x", "T z", "z = x")(accelrt.asarray(values), dtypes={"T": kind}).numpy()
assert np.array_equal(narrow.view(np.uint8) & 0x7f, values.astype(kind).view(np.uint8) & 0x7f)
strided = accelrt.elementwise("T x, T y", "T z", "z = x * y")(x[8:40:2], 2.0).numpy()
assert np.array_equal(strided, (every[8:40:2].astype(np.float32) * 2).astype(kind))
out = accelrt.zeros(100, "float8_e4m3fn")
generator = accelrt.random.Generator(0).manual_seed(1)
assert sorted(generator.permutation(out[:16]).numpy().astype(int)) == list(range(16))
assert 0 <= generator.uniform(out).numpy().astype(float).min()
assert {*generator.integers(out, 0, 5).numpy().astype(int)} == {0, 1, 2, 3, 4}
kernel = accelrt.compile(
    'extern "C" __global__ void k(const unsigned char* x, unsigned char* y) { *y = *x; }'
).function("k", "const float8_e4m3fn* x, __nv_fp8_e4m3* y")
kernel[1, 1](x[56:57], out)
assert out.numpy()[0] == every[56]
print("done")
"""


@pytest.mark.skipif(init.chosen_driver() != "host" and bool(NVRTC_MISSING), reason=NVRTC_MISSING)
def test_kernels_random_numbers_and_signatures_take_it():
    pytest.importorskip("ml_dtypes")
    assert run_code(ROW + USES, ACCELRT_DRIVER=init.chosen_driver()).split() == ["done"]


@pytest.mark.skipif(bool(NVRTC_MISSING), reason=NVRTC_MISSING)
def test_the_kernels_of_a_gpu_compile():
    code = """
import accelrt
from accelrt.kernels.elementwise_source import Operand, Text, cuda_source
from accelrt.random.philox_source import Form
from accelrt.random.philox_source import cuda_source as random_source
operands = tuple(Operand(name, "float8_e4m3fn", True, name == "z") for name in "xz")
texts = [cuda_source(Text("k", operands, {}, "z = x;", ""), 0, 16, False)]
texts += [random_source(Form("uniform", "float8_e4m3fn", "float", 0))]
for text in texts:
    assert not accelrt.compile_image(text, arch="sm_90").log
print("done")
"""
    assert run_code(ROW + code, ACCELRT_DRIVER="host").split() == ["done"]
