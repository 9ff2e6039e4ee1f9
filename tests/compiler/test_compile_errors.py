"""What is said of a source, an option or an argument that cannot be compiled."""

import pickle

import pytest

import accelrt
from accelrt.kernels import nvrtc
from accelrt.kernels.diagnostics import error_text
from accelrt.runtime import init

pytestmark = pytest.mark.nvrtc
SOURCE = """__global__ void scale(float* x, float a)
{
    x[threadIdx.x] *= b;
}
"""
GOOD = "__global__ void f() {}"


def test_a_compile_error_shows_the_line_and_has_the_log():
    with pytest.raises(accelrt.CompileError) as caught:
        accelrt.compile_image(SOURCE, arch=90, name="scale.cu")
    error = caught.value
    assert str(error).splitlines()[1:] == [
        'scale.cu, line 3: error: identifier "b" is undefined',
        "     1 | __global__ void scale(float* x, float a)",
        "     2 | {",
        ">    3 |     x[threadIdx.x] *= b;",
        "     4 | }",
    ]
    assert "1 error detected in the compilation" in error.log
    assert error.source_name == "scale.cu"
    assert error.compiler.startswith("NVRTC ")
    assert isinstance(error, RuntimeError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.log, again.compiler) == (str(error), error.log, error.compiler)


def test_an_error_in_a_header_shows_the_header():
    with pytest.raises(accelrt.CompileError, match=r"more\.h, line 2: error.*\n.*\n>    2 \| int y = z;"):
        accelrt.compile_image('#include "more.h"\n', arch=90, headers={"more.h": "\nint y = z;\n"})


def test_many_errors_are_counted():
    wrong = "".join(f"    a{number} = 1;\n" for number in range(7))
    with pytest.raises(accelrt.CompileError, match="and 2 errors more; the exception's log has all"):
        accelrt.compile_image(f"__global__ void f() {{\n{wrong}}}\n", arch=90)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"options": ["--no-such"]}, "unrecognized option --no-such"),
        ({"name_expressions": ["nothing_here"]}, "nothing_here"),
        ({"arch": "sm_20"}, "makes no code for sm_20; it does for .*90"),
    ],
)
def test_what_the_compiler_refuses_is_told(arguments, said):
    with pytest.raises(accelrt.CompileError, match=said):
        accelrt.compile_image(GOOD, **{"arch": 90} | arguments)


@pytest.mark.nvrtc("link")
def test_a_link_error_names_what_is_missing():
    image = accelrt.compile_image(
        "__device__ void gone(); __global__ void f() { gone(); }", arch=90, kind="ltoir"
    )
    with pytest.raises(accelrt.CompileError, match=r"nvJitLink .* refused 1 images.*\n.*gone"):
        accelrt.link_images([image])
    with pytest.raises(accelrt.CompileError, match="-nonsense"):
        accelrt.link_images([image], options=["-nonsense"])


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"source": 3}, TypeError, "source is text, not int"),
        ({"source": []}, ValueError, "source is empty"),
        ({"source": "a\0b"}, ValueError, "NUL"),
        ({"arch": "gfx90a"}, ValueError, "'gfx90a' is no architecture; it may be such as 'sm_90'"),
        ({"arch": "sm_"}, ValueError, "is no architecture"),
        ({"arch": 9.0}, TypeError, "arch is a str, an int or a pair"),
        ({"arch": True}, TypeError, "arch is a str"),
        ({"kind": "elf"}, ValueError, "kind='elf' is not known; it may be cubin, ptx, ltoir"),
        ({"kind": "cubin", "arch": "compute_90"}, ValueError, "or ask for ptx"),
        ({"options": "-lineinfo"}, TypeError, "options is a sequence of str, such as"),
        ({"options": [3]}, TypeError, "options is text, not int"),
        ({"options": ["-arch=sm_80"]}, ValueError, "give arch instead"),
        ({"options": ["--gpu-architecture", "sm_80"]}, ValueError, "give arch instead"),
        ({"options": ["-dlto"]}, ValueError, "give kind='ltoir' instead"),
        ({"headers": {"a.h": 3}}, TypeError, "the header a.h is text"),
        ({"name_expressions": "f<int>"}, TypeError, "name_expressions is a sequence"),
        ({"include_paths": "/tmp"}, TypeError, "include_paths is a sequence"),
    ],
)
def test_a_wrong_argument_is_named(arguments, kind, said):
    given = {"source": GOOD, "arch": 90} | arguments
    with pytest.raises(kind, match=said):
        accelrt.compile_image(given.pop("source"), **given)


@pytest.mark.parametrize(
    ("images", "more", "kind", "said"),
    [
        ([], {}, ValueError, "images is empty"),
        (b"x", {}, TypeError, "images is a sequence"),
        ([3], {}, TypeError, "an image is a ModuleImage, bytes or a path, not int"),
        ([b"text"], {}, ValueError, "is no cubin, PTX, LTO-IR, fatbin or object"),
        ([b"\x7fELF" + bytes(60)], {}, ValueError, "none of the images says what it was made for"),
        ([b"\x7fELF" + bytes(60)], {"kind": "ltoir", "arch": 90}, ValueError, "it may be cubin or ptx"),
    ],
)
def test_a_wrong_image_is_named(images, more, kind, said):
    with pytest.raises(kind, match=said):
        accelrt.link_images(images, **more)


def test_a_file_that_is_not_there_is_its_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        accelrt.compile_image(tmp_path / "none.cu", arch=90)


def test_a_missing_compiler_says_what_brings_it(monkeypatch):
    there = init.later

    def absent(name):
        if name.startswith("accelrt."):
            return there(name)
        raise ImportError(name)

    monkeypatch.setattr(init, "later", absent)
    monkeypatch.setattr(nvrtc, "_loaded", None)
    with pytest.raises(accelrt.CompilerNotFoundError, match=r"pip install 'accelrt\[kernels\]' brings it"):
        accelrt.compile_image(GOOD, arch=90)
    with pytest.raises(accelrt.CompilerNotFoundError, match=r"nvJitLink.*pip install 'accelrt\[kernels\]'"):
        accelrt.link_images([b"\x7fELF" + bytes(60)], arch=90)


def test_a_log_without_places_is_shown_whole():
    assert error_text("ld: it went wrong\n", {}) == "ld: it went wrong"
    assert error_text("a.c:2:1: fatal error: x\n", {"a.c": "1\n2\n"}).splitlines() == [
        "a.c, line 2, column 1: fatal error: x",
        "     1 | 1",
        ">    2 | 2",
    ]
