"""What the build says of CUDA's headers, that it needs nothing more of it, and of editable installs."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from compiled import COMPILER

pytest.importorskip("Cython", reason="Cython is not installed; pip install 'cython>=3.1,<4'")
pytestmark = pytest.mark.own_process
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build():
    """setup.py as a module: it builds nothing unless it is run."""
    spec = importlib.util.spec_from_file_location("accelrt_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def headers(tmp_path, monkeypatch):
    """Makes a toolkit whose headers are of a version, and names it by CUDA_HOME."""

    def make(version, typedefs=True):
        folder = tmp_path / "include"
        folder.mkdir()
        (folder / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n" if version else "")
        if typedefs:
            (folder / "cudaTypedefs.h").touch()
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        return str(folder)

    return make


def test_what_was_built_of_a_source_that_is_gone_goes(build, tmp_path):
    """A module that is plain Python now would else be hidden by its library of before."""
    kept = ["a.pyx", "a.cpython-311-x86_64-linux-gnu.so", "a.pyi", "b.py", "lib/liba.so", "__init__.pyi"]
    kept += ["core/cython_utilities.cpython-312-x86_64-linux-gnu.so", "settings/typed.pyi"]
    gone = ["b.cpython-311-x86_64-linux-gnu.so", "b.cpython-312-x86_64-linux-gnu.so", "b.pyi", "lib/c.pyi"]
    for name in (*kept, *gone):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    build.drop_orphans(tmp_path)
    left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == sorted(kept)


def mended(build, folder, text):
    """The C that Cython makes of a module's text, as the build mends it."""
    module = folder / "translated.pyx"
    module.write_text(text)
    subprocess.run([sys.executable, "-m", "cython", "-3", module], check=True)
    source = module.with_suffix(".c")
    build.mend_references(source)
    return source.read_text()


def test_an_attribute_has_its_new_value_before_the_old_one_goes(build, tmp_path):
    """What runs when the old value goes, and other threads meanwhile, must not find it there."""
    earlier = (  # as Cython before 3.3.1 writes x.a = value and x.b = None
        "  __Pyx_GOTREF((PyObject *)__pyx_v_x->a);\n  __Pyx_DECREF((PyObject *)__pyx_v_x->a);\n"
        "  __pyx_v_x->a = ((struct A *)__pyx_t_1);\n  __pyx_t_1 = 0;\n"
        "    __Pyx_XGOTREF(__pyx_v_x->b);\n    __Pyx_XDECREF(__pyx_v_x->b);\n    __pyx_v_x->b = Py_None;\n"
        "  __Pyx_DECREF(__pyx_t_2); __pyx_t_2 = 0;\n"
    )
    source = tmp_path / "earlier.c"
    source.write_text(earlier)
    build.mend_references(source)
    assert source.read_text() == (
        "  __Pyx_GOTREF((PyObject *)__pyx_v_x->a);\n"
        "  __Pyx_DECREF_SET(__pyx_v_x->a, ((struct A *)__pyx_t_1));\n  __pyx_t_1 = 0;\n"
        "    __Pyx_XGOTREF(__pyx_v_x->b);\n    __Pyx_XDECREF_SET(__pyx_v_x->b, Py_None);\n"
        "  __Pyx_DECREF(__pyx_t_2); __pyx_t_2 = 0;\n"
    )

    text = mended(
        build, tmp_path, "cdef class A:\n    cdef A other\n    def clear(self):\n        self.other = None\n"
    )
    assert re.search(r"__Pyx_DECREF_SET\(\(?__pyx_v_self->other, .*Py_None\)", text)


def test_an_element_that_a_list_has_no_memory_for_is_let_go_once(build, tmp_path):
    """Cython's own function lets go of it, and who called that does so again."""
    text = mended(
        build, tmp_path, "def pairs(int count):\n    return [(index, count) for index in range(count)]\n"
    )
    assert "PyList_Append(list, x);\n    Py_DECREF(x);" not in text
    assert "ListComp_AppendAndDecref" not in text or build.DROPPED_ONCE in text


def test_a_with_statement_is_left_by_an_exception_without_a_traceback(build, tmp_path):
    text = mended(build, tmp_path, "def enter(context):\n    with context:\n        raise ValueError\n")
    assert "PyTuple_Pack(3" in text or re.search(r"__pyx_temp\[3\] = \{.*\? __pyx_t_\d+ : Py_None\)\}", text)


def test_what_isinstance_raises_is_looked_for():
    """Cython does not, of a tuple written out whose classes it does not know: name the tuple first."""
    unchecked = re.compile(r"= PyObject_IsInstance\([^;]*\); *$", re.MULTILINE)
    sources = [path.with_suffix(".c") for path in (ROOT / "accelrt").rglob("*.pyx")]
    assert not [str(path) for path in sources if path.exists() and unchecked.search(path.read_text())]


def test_pointers_are_of_the_types_that_cudas_headers_say(build):
    """Older compilers warn where one is not, and gcc 14 refuses it."""
    flags = [*build.options("release")["extra_compile_args"], "-fsyntax-only"]
    includes = [f"-I{folder}" for folder in (sysconfig.get_path("include"), build.cuda_include())]
    for source in (ROOT / "accelrt/driver/cuda").glob("*.c"):
        command = [*COMPILER, *flags, "-Werror=incompatible-pointer-types", *includes, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_function_that_is_compiled_as_rare_is_there(build):
    for line in build.RARE.split("\n")[1:-1]:
        module, *functions = line.split()
        source = (ROOT / "accelrt" / f"{module.replace('.', '/')}.pyx").read_text()
        assert not [
            name for name in functions if not re.search(rf"^ *c?p?def [^(=]*\b{name}\(", source, re.MULTILINE)
        ]


def test_what_is_rare_is_cold_and_what_is_not_stays(build, tmp_path):
    source = tmp_path / "pool.c"
    source.write_text(
        "static int __pyx_f_7accelrt_9allocator_4pool_make_pool(int); /*proto*/\n"
        "static PyObject *__pyx_pw_7accelrt_9allocator_4pool_5want_settings(PyObject *self) {\n"
        "static int __pyx_f_7accelrt_9allocator_4pool_serve(int); /*proto*/\n"
        "static void __Pyx_AddTraceback(const char *funcname, int c_line,\n"
    )
    for _ in range(2):  # the second time there is nothing to do
        build.make_rare_cold("allocator.pool", source)
        lines = source.read_text().splitlines()
        assert [line.count("CYTHON_SMALL_CODE ") for line in lines] == [1, 1, 0, 1]


TRANSLATE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("accelrt_setup", sys.argv[1])
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
from Cython.Build import cythonize
build.digest_signatures()
cythonize("accelrt/*.pyx", nthreads=2, quiet=True, language_level=3)
"""


def test_modules_of_a_wheel_know_signatures_by_digests_but_those_that_users_cimport(tmp_path):
    package = tmp_path / "accelrt"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("api", "other"):
        (package / f"{name}.pxd").write_text(f"cdef int {name}_of(double number)\n")
        (package / f"{name}.pyx").write_text(f"cdef int {name}_of(double number):\n    return 0\n")
    cimports = "from accelrt.api cimport api_of\nfrom accelrt.other cimport other_of\n"
    (package / "user.pyx").write_text(cimports + "api_of(1)\nother_of(1)\n")
    subprocess.run([sys.executable, "-c", TRANSLATE, ROOT / "setup.py"], cwd=tmp_path, check=True)
    digest = hashlib.sha256(b"int (double)").hexdigest()[:6]
    written = {path.stem: path.read_text() for path in package.glob("*.c")}
    assert {name for name, text in written.items() if "int (double)" in text} == {"api", "user"}
    assert {name for name, text in written.items() if digest in text} == {"other", "user"}


@pytest.mark.parametrize("version", [12030, 12090, 13000, 13050, 14020])
def test_headers_that_have_what_is_needed_are_taken(build, headers, version):
    folder = headers(version)
    assert build.cuda_include() == folder


@pytest.mark.parametrize(("version", "said"), [(12020, "12.2"), (11080, "11.8"), (0, "0.0")])
def test_older_headers_are_named_with_what_is_allowed(build, headers, version, said):
    folder = headers(version)
    with pytest.raises(SystemExit) as caught:
        build.cuda_include()
    assert f"{folder}/cuda.h is of CUDA {said}; accelrt needs the headers of CUDA 12.3" in str(caught.value)
    assert "install the PyPI package nvidia-cuda-runtime, or set CUDA_HOME" in str(caught.value)


def test_headers_in_part_are_told_from_old_ones(build, headers):
    headers(13000, typedefs=False)
    with pytest.raises(SystemExit, match=r"has cuda\.h of CUDA 13\.0 but no cudaTypedefs\.h; install"):
        build.cuda_include()


def test_no_source_needs_another_packages_declarations():
    foreign = re.compile(r"^\s*(from|cimport) +(cuda|nvidia|numpy)\b.*", re.MULTILINE)
    sources = [path for kind in ("*.pyx", "*.pxd") for path in (ROOT / "accelrt").rglob(kind)]
    assert len(sources) > 100
    found = {match[0].strip() for path in sources for match in foreign.finditer(path.read_text())}
    assert not [line for line in found if "cimport" in line]


def write_package(folder):
    """A package of accelrt's layout and settings, with nothing to compile."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("accelrt", "accelrt/core", "tests/helpers", "benchmarks"):
        (folder / name).mkdir(parents=True)
    for name in (
        "accelrt/__init__.py",
        "accelrt/core/__init__.py",
        "accelrt/core/shapes.pxd",
        "accelrt/py.typed",
    ):
        (folder / name).touch()
    (folder / "accelrt/core/shapes.pyi").write_text("SIDES: int\n")
    (folder / "accelrt/core/shapes.pxd").write_text("cdef int sides() noexcept nogil\n")


@pytest.fixture
def editable(tmp_path):
    """A folder of packages into which such a package was installed with -e, and the package's own."""
    source, wheels, installed = tmp_path / "source", tmp_path / "wheels", tmp_path / "installed"
    source.mkdir()
    write_package(source)
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, wheels], cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed, source


def test_an_editable_install_is_a_plain_path(editable):
    installed, source = editable
    (path,) = installed.glob("*.pth")
    assert path.read_text().split() == [str(source)]
    assert not list(installed.glob("*.py"))


def test_type_checkers_and_cython_see_through_an_editable_install(editable, tmp_path):
    installed, _ = editable
    run = f"import site, sys; site.addsitedir({str(installed)!r}); "
    (tmp_path / "uses.py").write_text("from accelrt.core.shapes import SIDES\nreveal_type(SIDES)\n")
    (tmp_path / "uses_c.pyx").write_text("from accelrt.core.shapes cimport sides\n")
    run_cython = (
        "from Cython.Compiler.Main import main; sys.argv[1:] = ['-3', 'uses_c.pyx']; main(command_line=1)"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", run + run_cython], cwd=tmp_path, check=True, capture_output=True
    )
    pytest.importorskip("mypy")
    paths = [line for path in installed.glob("*.pth") for line in path.read_text().split()]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "uses.py"],
        cwd=tmp_path,
        env={"MYPYPATH": ":".join(paths)},
        capture_output=True,
        text=True,
    )
    assert 'Revealed type is "' in checked.stdout
    assert "int" in checked.stdout
    assert "import-not-found" not in checked.stdout


def test_all_that_is_missing_is_named_at_once(build, monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("CC", "ccache nosuch-cc -O1")
    monkeypatch.setattr(build.shutil, "which", lambda word: word == "ccache")
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(build.Path, "is_file", lambda path: False)
    with pytest.raises(SystemExit) as caught:
        build.check_tools()
    first, *lacks = str(caught.value).splitlines()
    assert first == "accelrt cannot be built here. What is missing:"
    python = f"python3.{sys.version_info[1]}"
    assert [line.partition(".")[0] for line in lacks[:1]] == ["- a C compiler: nosuch-cc was not found"]
    assert f"Install {python}-dev (by apt) or {python}-devel (by dnf)" in lacks[1]
    assert lacks[2].startswith("- Cython. Install the PyPI package 'cython")
    assert lacks[3].startswith("- cuda.h was not found in ")
    assert len(lacks) == 4


def test_setup_says_what_is_missing_before_it_compiles():
    run = [sys.executable, "setup.py", "build_ext", "--build-lib", "/nonexistent"]
    done = subprocess.run(run, cwd=ROOT, env=os.environ | {"CC": "nosuch-cc"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "- a C compiler: nosuch-cc was not found. Install gcc" in done.stderr
    assert "running" not in done.stdout


# Builds a package of one module as an editable install does: in a folder of its own.
BUILD_ONE = f"""
import importlib.util, pathlib, sys, tempfile
spec = importlib.util.spec_from_file_location("accelrt_setup", {str(ROOT / "setup.py")!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
from setuptools import Distribution
build.ROOT = pathlib.Path(".")
build.PACKAGE = pathlib.Path("accelrt").resolve()
flags = build.options(build.kind_of_build())
module = build.Extension("accelrt.one", ["accelrt/one.pyx"], **flags)
parts = {{"packages": ["accelrt"], "package_dir": {{"": "."}}, "ext_modules": [module]}}
made = Distribution({{"script_name": "setup.py", "cmdclass": {{"build_ext": build.ParallelBuild}}, **parts}})
command = made.get_command_obj("build_ext")
command.build_lib, command.build_temp, command.editable_mode = tempfile.mkdtemp(), tempfile.mkdtemp(), True
made.run_command("build_ext")
"""


def test_an_editable_install_compiles_only_what_changed(tmp_path):
    source = tmp_path / "accelrt" / "one.pyx"
    source.parent.mkdir()
    (source.parent / "__init__.py").touch()
    source.write_text("from libc.stdint cimport int64_t\ncdef int64_t number = 1\n")

    def compiled(**environment):
        code = "import logging; logging.basicConfig(level=logging.INFO)\n" + BUILD_ONE
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return "[1/1] accelrt.one" in done.stdout + done.stderr

    assert compiled()
    assert len(list(source.parent.glob("*.so"))) == 1
    assert not compiled()
    assert compiled(ACCELRT_BUILD="debug")  # other flags and directives
    assert not compiled(ACCELRT_BUILD="debug")
    source.write_text("cdef int number = 2\n")
    assert compiled(ACCELRT_BUILD="debug")
