"""The host device's logarithms and sines are, operation for operation, what NVRTC writes for CUDA's."""

import ctypes
from math import cos, log, pi, sin

import numpy as np
import pytest
from nvrtc_found import NVRTC_MISSING
from ptx_steps import run

import accelrt
from accelrt.kernels.elementwise_source import HOST_START
from accelrt.kernels.host_compiler import compile_cpp
from accelrt.random.host_math import HOST_MATH

needs_nvrtc = pytest.mark.skipif(bool(NVRTC_MISSING), reason=NVRTC_MISSING)
CUDA = r"""
extern "C" __global__ void logf_of(const float* x, float* y) { y[0] = logf(x[0]); }
extern "C" __global__ void log_of(const double* x, double* y) { y[0] = log(x[0]); }
extern "C" __global__ void sincospi_of(const double* x, double* y) { sincospi(x[0], y, y + 1); }
"""
HOST = """
extern "C" {
float logf_of(float x) { return accelrt_log(x); }
double log_of(double x) { return accelrt_log_double(x); }
void sincospi_of(double x, double* y) { accelrt_sincospi(x, y, y + 1); }
void sincos_of(float x, float* y) { accelrt_sincos(x, y, y + 1); }
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    path = tmp_path_factory.mktemp("math") / "math.so"
    path.write_bytes(bytes(compile_cpp(HOST_START + HOST_MATH + HOST, "math.cpp", {})))
    library = ctypes.CDLL(str(path))
    library.logf_of.restype, library.logf_of.argtypes = ctypes.c_float, [ctypes.c_float]
    library.log_of.restype, library.log_of.argtypes = ctypes.c_double, [ctypes.c_double]
    library.sincospi_of.argtypes = [ctypes.c_double, ctypes.c_void_p]
    library.sincos_of.argtypes = [ctypes.c_float, ctypes.c_void_p]
    return library


@pytest.fixture(scope="module")
def ptx():
    return bytes(accelrt.compile_image(CUDA, arch="compute_90", kind="ptx")).decode()


def numbers(dtype, least, edges):
    drawn = np.random.default_rng(5).uniform(0, 1, 150)
    small = np.geomspace(least, 0.5, 30)
    return [float(x) for x in np.concatenate([drawn, small, edges]).astype(dtype)]


@needs_nvrtc
def test_the_logarithm_of_a_float(host, ptx):
    edges = [1.0, 1 - 2**-24, 2**-33, 0.66666, 0.66667, 2 / 3, 0.5, 1.5 * 2**-30]
    for x in numbers(np.float32, 2.0**-33, edges):
        assert [host.logf_of(x)] == run(ptx, "logf_of", x, "f32"), x
        assert host.logf_of(x) == pytest.approx(log(x), rel=2e-7)


@needs_nvrtc
def test_the_logarithm_of_a_double(host, ptx):
    edges = [1.0, 1 - 2**-53, 2**-54, 0.70710678, 0.7071067811865476, 0.5]
    for x in numbers(np.float64, 2.0**-54, edges):
        assert [host.log_of(x)] == run(ptx, "log_of", x, "f64"), x
        assert host.log_of(x) == pytest.approx(log(x), rel=4e-16)


@needs_nvrtc
def test_sine_and_cosine_of_half_turns(host, ptx):
    made = np.empty(2)
    edges = [2**-53, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2 - 2**-52]
    for x in [2 * each for each in numbers(np.float64, 2.0**-54, [])] + edges:
        host.sincospi_of(x, made.ctypes.data)
        assert made.tolist() == run(ptx, "sincospi_of", x, "f64"), x


def test_sine_and_cosine_of_an_angle_are_near(host):
    made = np.empty(2, np.float32)
    for x in np.linspace(0, 6.2831, 500).astype(np.float32):
        host.sincos_of(x, made.ctypes.data)
        assert np.abs(made - [sin(x), cos(x)]).max() < 6e-7 + pi * 2**-24


@pytest.mark.parametrize(
    ("angle", "sine", "cosine"),
    [
        (1e-7, 0x00000000, 0x3F800000),
        (0.001, 0x3A83116D, 0x3F7FFFF7),
        (0.5, 0x3EF57740, 0x3F60A940),
        (0.7853982, 0x3F3504F3, 0x3F3504F2),
        (1.5707964, 0x3F800000, 0x00000000),
        (2.0, 0x3F68C7B6, 0xBED51130),
        (4.0, 0xBF41BDCD, 0xBF27552F),
        (5.5, 0xBF349E4B, 0x3F356B5F),
        (6.2831855, 0xB4491200, 0x3F800000),
    ],
)
def test_sine_and_cosine_have_a_gpus_bits(host, angle, sine, cosine):
    made = np.empty(2, np.float32)
    host.sincos_of(angle, made.ctypes.data)
    assert made.view(np.uint32).tolist() == [sine, cosine]
