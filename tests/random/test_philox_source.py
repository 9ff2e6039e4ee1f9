"""The kernels' CUDA C++, compiled without a GPU."""

import pytest
from nvrtc_found import NVRTC_MISSING

import accelrt
from accelrt.random.philox_source import SPAN, Form, cuda_source

FORMS = [
    Form("uniform", "bfloat16", "float", 2),
    Form("normal", "float32", "float", 0),
    Form("normal", "float64", "double", 3),
    Form("normal", "float64", "double", 0),
    Form("uniform", "float16", "float", 0),
    Form("integers", "bool", "accelrt_word", 0),
    Form("integers", "uint64", "accelrt_long", 1),
    Form("bernoulli", "float16", "float", 0),
    Form("ranked", "float32", "accelrt_long", 1),
    Form("walked", "int16", "accelrt_long", 0),
]


@pytest.mark.skipif(bool(NVRTC_MISSING), reason=NVRTC_MISSING)
def test_every_kernel_compiles_without_a_warning():
    for form in FORMS:
        image = accelrt.compile_image(cuda_source(form), arch="sm_90", name=f"{form.name}.cu")
        assert not image.log, (form, image.log)


@pytest.mark.skipif(bool(NVRTC_MISSING), reason=NVRTC_MISSING)
def test_normal_numbers_use_the_gpus_sines_as_curand_does():
    source = cuda_source(Form("normal", "float32", "float", 0))
    text = bytes(accelrt.compile_image(source, arch="compute_90", kind="ptx")).decode()
    groups = 2 * SPAN
    assert text.count("sin.approx.f32") == text.count("cos.approx.f32") == text.count("sqrt.rn.f32") == groups
    assert text.count("st.global.v4.f32") == 4  # whole vectors
