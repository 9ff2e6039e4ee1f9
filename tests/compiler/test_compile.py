"""Kernels compiled and linked without a device."""

import pickle

import pytest
from child import in_own_process
from nvrtc_found import NVRTC_MISSING

import accelrt
from accelrt.kernels import nvrtc
from accelrt.kernels.image import arch_name
from accelrt.kernels.jitlink import input_kind

pytestmark = pytest.mark.nvrtc
SCALE = 'extern "C" __global__ void scale(float* x, float a) { x[threadIdx.x] *= a; }\n'
TEMPLATE = "template <class T> __global__ void fill(T* x, T a) { x[threadIdx.x] = a; }\n"
CALLS = "__device__ float half_of(float); __global__ void run(float* x) { *x = half_of(*x); }\n"
CALLED = "__device__ float half_of(float x) { return x / 2; }\n"


@pytest.mark.parametrize(
    ("arch", "kind", "made"),
    [
        ("sm_90", None, "cubin"),
        ("sm_90a", None, "cubin"),
        (80, None, "cubin"),
        ((8, 6), None, "cubin"),
        ("9.0", "ptx", "ptx"),
        ("compute_80", None, "ptx"),
        ("sm_90", "ltoir", "ltoir"),
    ],
)
def test_an_image_is_of_the_kind_and_for_the_architecture_asked_for(arch, kind, made):
    image = accelrt.compile_image(SCALE, arch=arch, kind=kind)
    assert (image.kind, image.arch) == (made, arch_name(arch))
    assert input_kind(image.data) == made
    assert (made == "ltoir") or b"scale" in image.data
    assert image.compiler.startswith("NVRTC 1")
    assert bytes(image) == image.data
    assert len(image) == len(image.data)
    assert repr(image) == f"<accelrt.ModuleImage {made} for {arch_name(arch)}, {len(image)} bytes>"


def test_ptx_names_its_architecture_and_ends_as_a_c_string():
    data = accelrt.compile_image(SCALE, arch="compute_80").data
    assert b".target sm_80" in data
    assert data.endswith(b"\0")


@pytest.mark.parametrize(
    ("arch", "name"),
    [("sm_100f", "sm_100f"), (120, "sm_120"), ((12, 1), "sm_121"), ("10.3", "sm_103"), ("7.5", "sm_75")],
)
def test_the_names_of_architectures(arch, name):
    assert arch_name(arch) == name


def test_name_expressions_are_instantiated_and_their_names_told():
    wanted = ("fill<float>", "fill<unsigned char>")
    image = accelrt.compile_image(TEMPLATE, arch=90, name_expressions=wanted)
    assert tuple(image.names) == wanted
    assert image.names["fill<float>"] == "_Z4fillIfEvPT_S0_"
    assert all(lowered.encode() in image.data for lowered in image.names.values())


def test_options_reach_the_compiler():
    guarded = "#if FACTOR != 3\n#error no factor\n#endif\n" + SCALE
    accelrt.compile_image(guarded, arch=90, options=["-D", "FACTOR=3"])
    accelrt.compile_image(guarded, arch=90, options=["-DFACTOR=3", "--std=c++17"])
    with pytest.raises(accelrt.CompileError, match="no factor"):
        accelrt.compile_image(guarded, arch=90)


def test_headers_come_from_a_mapping_before_files(tmp_path):
    (tmp_path / "factor.h").write_text("#error the file\n")
    source = '#include "factor.h"\n' + SCALE
    headers = {"factor.h": "#include <more/of_it.h>\n", "more/of_it.h": "#define FACTOR 3\n"}
    accelrt.compile_image(source, arch=90, headers=headers, include_paths=[tmp_path])
    with pytest.raises(accelrt.CompileError, match="the file"):
        accelrt.compile_image(source, arch=90, include_paths=[tmp_path])


@pytest.mark.skipif(
    not (NVRTC_MISSING or nvrtc.toolkit_folders(nvrtc.load())), reason="the toolkit's headers are missing"
)
def test_headers_of_the_toolkit_are_found():
    source = (
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        "__global__ void f(__half* x, __nv_bfloat16* y) { *x = __half(1.0f); *y = __nv_bfloat16(2.0f); }\n"
    )
    assert accelrt.compile_image(source, arch=90).kind == "cubin"


def test_a_source_file_finds_what_lies_beside_it(tmp_path):
    (tmp_path / "beside.h").write_text("#define FACTOR 3\n")
    path = tmp_path / "kernel.cu"
    path.write_text('#include "beside.h"\n#if FACTOR != 3\n#error\n#endif\n' + SCALE)
    assert accelrt.compile_image(path, arch=90).kind == "cubin"


def test_a_header_finds_what_lies_beside_it(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "outer.h").write_text('#include "inner.h"\n')
    (tmp_path / "sub" / "inner.h").write_text("#define FACTOR 3\n")
    source = "#include <sub/outer.h>\n#if FACTOR != 3\n#error\n#endif\n" + SCALE
    assert accelrt.compile_image(source, arch=90, include_paths=[tmp_path]).kind == "cubin"


@pytest.mark.parametrize("name", [None, "kernel.cu", "sub/kernel.cu", "/tmp/kernel.cu"])
def test_messages_name_the_source_as_given(name):
    with pytest.raises(accelrt.CompileError) as caught:
        accelrt.compile_image("#error here\n", arch=90, name=name)
    assert f"{name or 'kernel.cu'}, line 1: " in str(caught.value)
    assert "/dev/null" not in caught.value.log + str(caught.value)


def test_the_working_folder_is_not_searched(tmp_path, monkeypatch):
    (tmp_path / "here.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(accelrt.CompileError, match=r"open source file .here\.h"):
        accelrt.compile_image('#include "here.h"\n', arch=90)
    with pytest.raises(accelrt.CompileError, match=r"open source file .here\.h"):
        accelrt.compile_image('#include "here.h"\n', arch=90, name=str(tmp_path / "kernel.cu"))


@pytest.mark.nvrtc("link")
@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_several_sources_are_linked(kind):
    image = accelrt.compile_image([CALLS, CALLED], arch="sm_90", kind=kind, name_expressions=["run"])
    assert image.kind == kind == input_kind(image.data)
    assert image.names == {"run": "_Z3runPf"}
    assert b"_Z3runPf" in image.data


@pytest.mark.nvrtc("link")
def test_images_are_linked_from_objects_bytes_and_files(tmp_path):
    first = accelrt.compile_image(CALLS, arch=90, kind="ltoir", name_expressions=["run"])
    second = accelrt.compile_image(CALLED, arch=90, kind="ltoir")
    path = tmp_path / "second.ltoir"
    second.save(path)
    linked = [accelrt.link_images([first, other]) for other in (second, second.data, path)]
    assert {image.data for image in linked} == {linked[0].data}
    assert linked[0].names == {"run": "_Z3runPf"}
    relocatable = [
        accelrt.compile_image(text, arch=90, kind=kind, options=["-rdc=true"])
        for text, kind in ((CALLS, "ptx"), (CALLED, "cubin"))
    ]
    assert accelrt.link_images(relocatable).kind == "cubin"


def test_warnings_are_in_the_log():
    image = accelrt.compile_image("#warning take care\n" + SCALE, arch=90)
    assert "take care" in image.log
    assert accelrt.compile_image(SCALE, arch=90).log == ""


def test_an_image_is_pickled():
    image = accelrt.compile_image(TEMPLATE, arch=90, name_expressions=["fill<int>"])
    again = pickle.loads(pickle.dumps(image))
    assert (again.data, again.names, again.arch) == (image.data, image.names, image.arch)


@in_own_process(ACCELRT_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
def test_without_a_device_the_architecture_has_to_be_given():
    with pytest.raises(ValueError, match=r"there is no CUDA device .* give arch, such as arch='sm_90'"):
        accelrt.compile_image(SCALE)
