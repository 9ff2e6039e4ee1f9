"""accelrt.h says what the Cython API says: every function with its types, every constant with its value."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from compiled import COMPILER, CXX, compile_against

import accelrt
from accelrt import api
from accelrt.include import headergen

pytestmark = pytest.mark.own_process
PACKAGE = Path(accelrt.__file__).parent
HEADER = Path(accelrt.get_include(), "accelrt.h")
CHECKS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
PROTOTYPE = re.compile(r"^([\w ]+?\**) ?\baccelrt_(\w+)\(([^)]*)\);", re.M)


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def in_header():
    """Function -> its type, written as Cython writes it: "int (int, uintptr_t *)"."""
    found = {}
    for result, name, listed in PROTOTYPE.findall(without_comments(HEADER.read_text())):
        parts = [" ".join(part.split()) for part in listed.split(",")]
        types = [part if part == "void" else re.sub(r"\w+$", "", part).strip() for part in parts]
        space = "" if result.endswith("*") else " "
        found[name] = f"{result}{space}({', '.join(types)})".replace("const char *", "char const *")
    return found


def in_module():
    """The same of the functions that the compiled module hands out."""
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    return {name: name_of(capsule).decode() for name, capsule in api.__pyx_capi__.items()}


def declared_constants():
    """Constant -> value, of the .pxd files."""
    found = {}
    for name in ("api.pxd", "status.pxd"):
        for block in re.findall(r"^cdef enum:(.*?)^(?=\S)", (PACKAGE / name).read_text(), re.M | re.S):
            code = re.sub(r"#.*", "", block)
            found |= {name: int(value) for name, value in re.findall(r"(\w+) = (-?\d+)", code)}
    return found


@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_the_header_is_c(standard):
    subprocess.run([*COMPILER, f"-std={standard}", "-x", "c", *CHECKS, HEADER], check=True)


@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_the_functions_compile_into_a_project(standard):
    static = HEADER.with_name("accelrt_static.h")
    subprocess.run(
        [*COMPILER, f"-std={standard}", "-x", "c", "-Wall", "-Werror", *CHECKS, static], check=True
    )
    if CXX is not None:
        refused = subprocess.run([*CXX, "-x", "c++", *CHECKS, static], stderr=subprocess.PIPE, text=True)
        assert "accelrt_static.h is C: include it in a file of C" in refused.stderr


@pytest.mark.parametrize("name", ["accelrt.h", "accelrt.hpp"])
@pytest.mark.parametrize("standard", ["c++11", "c++17", "c++20"])
def test_the_headers_are_cpp(name, standard):
    if CXX is None:
        pytest.skip("no C++ compiler (g++) is installed")
    flags = ["-x", "c++", *CHECKS, "-Wno-pragma-once-outside-header"]
    subprocess.run([*CXX, f"-std={standard}", *flags, HEADER.with_name(name)], check=True)


def test_every_function_is_declared_with_its_types():
    assert in_header() == in_module()
    assert in_header()["allocate"] == "int (int, size_t, uintptr_t, uintptr_t *)"


def test_every_constant_has_its_value(tmp_path):
    constants = declared_constants()
    assert {
        "SUCCESS": 0,
        "NOT_READY": 600,
        "POOL_CAP_REACHED": -9,
        "SLEEPING": -10,
        "GRAPH_READY": 3,
    }.items() <= constants.items()
    checks = "".join(f'_Static_assert(ACCELRT_{n} == {v}, "{n}");\n' for n, v in constants.items())
    source = tmp_path / "constants.c"
    source.write_text(f'#include "accelrt.h"\n{checks}')
    subprocess.run([*COMPILER, "-std=c11", *CHECKS, "-I", accelrt.get_include(), source], check=True)


def test_the_header_has_no_other_constants():
    text = without_comments(HEADER.read_text())
    named = set(re.findall(r"^(?:    |#define )ACCELRT_(\w+)(?: = -?\d+| -?\d+$)", text, re.M))
    assert named == set(declared_constants())


def test_the_library_exports_every_function():
    library = ctypes.CDLL(accelrt.get_library())
    assert [name for name in in_header() if not hasattr(library, f"accelrt_{name}")] == []


def test_every_function_is_described():
    """By a comment before it, or before the group of declarations that it stands in."""
    groups = re.split(r"\n\n+", HEADER.read_text())
    bare = [group for group in groups if PROTOTYPE.search(group) and "/*" not in group]
    assert bare == []


def test_a_comment_names_what_c_has():
    names = {"OUT_OF_MEMORY", "graph_launch", "copy", "pool"}
    assert headergen.in_c(names, "OUT_OF_MEMORY, unless graph_launch.") == (
        "ACCELRT_OUT_OF_MEMORY, unless accelrt_graph_launch."
    )
    for text in ("to copy a pool", '"OUT_OF_MEMORY"', "CUDAGraph.pool()", "MY_OUT_OF_MEMORY"):
        assert headergen.in_c(names, text) == text


def test_structs_and_pointers_are_declared_as_c_has_them(tmp_path):
    items = headergen.read_items(
        "cdef struct Shape:  # of a launch\n    unsigned int[3] grid  # blocks\n    size_t shared\n"
        "cdef int launch(uintptr_t kernel, const Shape* shape, void** arguments, bint waits) noexcept nogil\n"
    )
    text = "".join(headergen.render_item(item) for item in items)
    assert "    unsigned int grid[3]; /* blocks */\n" in text
    assert "launch(uintptr_t kernel, const struct accelrt_Shape *shape, void **arguments, int waits);" in text
    source = tmp_path / "shape.c"
    source.write_text(f"#include <stddef.h>\n#include <stdint.h>\n{text}")
    subprocess.run([*COMPILER, "-std=c99", *CHECKS, source], check=True)


@pytest.mark.parametrize(
    "line",
    [
        "cdef int take(object thing) noexcept nogil",
        "cdef int take(Stream* stream) noexcept nogil",
        "cdef int take(int x)",
    ],
)
def test_what_c_cannot_have_is_refused_by_name(line):
    with pytest.raises(ValueError, match=r"^api\.pxd: "):
        headergen.read_items(f"{line}\n")


def test_the_header_and_the_library_are_those_of_the_declarations():
    for path, text in headergen.render().items():
        if path.exists():  # the library's source is not installed
            assert path.read_text() == text


def test_a_library_is_built_by_path_and_by_name(tmp_path):
    folder = str(Path(accelrt.get_library()).parent)
    assert compile_against("c_door", tmp_path)
    assert compile_against("c_door", tmp_path, links=["-L", folder, "-laccelrt"])


def test_the_changelog_names_the_version_and_the_revision():
    text = (PACKAGE / "api.pxd").read_text()
    version, revision = (re.search(rf"API_{word} = (\d+)", text)[1] for word in ("VERSION", "REVISION"))
    changelog = (PACKAGE.parent / "CHANGELOG.md").read_text()
    assert f"(version {version}, revision {revision})" in changelog
