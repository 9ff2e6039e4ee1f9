"""What a wheel holds, that it suffices for a user's project, and what pyproject.toml promises of installs."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from child import run_python

import accelrt

pytest.importorskip("Cython", reason="Cython is not installed; pip install 'cython>=3.1,<4'")
pytestmark = pytest.mark.own_process
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# All of a wheel but its modules in machine code.
BUILD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("accelrt_setup", "setup.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
from setuptools import Distribution
made = Distribution({"script_name": "setup.py", "cmdclass": {"build_py": build.PackagedTrace}})
made.parse_config_files()
made.get_command_obj("build_py").build_lib = sys.argv[1]
made.run_command("build_py")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which the package was put as a wheel does it, without what is compiled."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run_python("-c", BUILD, folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def names(folder, *kinds):
    return {path.relative_to(folder).as_posix() for kind in kinds for path in folder.rglob(kind)}


def test_a_wheel_has_the_public_declarations_and_no_sources(installed):
    assert names(installed, "*.pxd") == {"accelrt/api.pxd", "accelrt/status.pxd"}
    assert names(installed, "*.pyx", "*.pxi", "*.c", "*.md") == set()


def test_a_wheel_has_the_headers_that_are_compiled_where_it_runs(installed):
    listed = {Path(name).parent.as_posix() for name in names(installed, "*.h", "*.hpp")}
    device = {name for name in listed if name.startswith("accelrt/kernels/cuda_on_host")}
    assert listed - device == {
        *("accelrt/include", "accelrt/interop", "accelrt/interop/cuda_stub", "accelrt/allocator/external")
    }
    assert names(installed, "*.cpp") == {"accelrt/interop/torch_allocator.cpp"}
    here = ROOT / "accelrt/kernels/cuda_on_host"
    assert {path.relative_to(here) for path in here.rglob("*")} == {
        path.relative_to(installed / "accelrt/kernels/cuda_on_host")
        for path in (installed / "accelrt/kernels/cuda_on_host").rglob("*")
    }


def test_a_wheel_has_every_module_but_those_of_the_build(installed):
    here = {
        name for name in names(ROOT / "accelrt", "*.py", "*.pyi", "py.typed") if "__pycache__" not in name
    }
    missing = here - names(installed / "accelrt", "*.py", "*.pyi", "py.typed")
    generators = {"core/stubgen.py", "driver/rowgen.py", "include/headergen.py"}
    assert missing == generators
    assert (installed / "accelrt/tools/cli/gpt2.npz").is_file()


def test_a_wheel_has_the_plug_in_for_pytest(installed):
    assert (installed / "accelrt/pytest_plugin.py").is_file()
    assert PROJECT["entry-points"]["pytest11"] == {"accelrt.pytest_plugin": "accelrt.pytest_plugin"}


def test_cython_translates_a_users_project_by_what_a_wheel_has(installed, tmp_path):
    sources = list((ROOT / "tests/downstream/downstream").glob("*.pyx"))
    sources.append(ROOT / "examples/cython_extension/upload.pyx")
    assert len(sources) == 4
    code = (
        "import sys; from Cython.Compiler.Main import main; sys.path.insert(0, sys.argv.pop(1))\n"
        "main(command_line=1)"
    )
    for source in sources:
        shutil.copy(source, tmp_path)
        done = subprocess.run(
            [sys.executable, "-S", "-c", f"{cython_first()}{code}", installed, "-3", source.name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert source.with_suffix(".c").name in {path.name for path in tmp_path.iterdir()}


def cython_first():
    """Code that makes Cython importable, and no accelrt that is installed."""
    site = Path(importlib.util.find_spec("Cython").origin).parents[1]
    return f"import sys; sys.path.append({str(site)!r}); "


def test_mypy_reads_the_types_of_what_a_wheel_has(installed, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text("import accelrt\nreveal_type(accelrt.Stream().cuda_stream)\n")
    options = ["--strict", "--cache-dir", tmp_path / "cache", "user.py"]
    done = run_python("-m", "mypy", *options, cwd=tmp_path, MYPYPATH=str(installed))
    assert 'Revealed type is "' in done.stdout
    assert 'int"' in done.stdout
    assert "Success" in done.stdout, done.stdout


def test_the_version_stands_in_one_place():
    assert accelrt.__version__ == PROJECT["version"]
    text = (ROOT / "setup.py").read_text() + (ROOT / "accelrt/__init__.py").read_text()
    assert PROJECT["version"] not in text
    assert f"## [{PROJECT['version']}] - " in (ROOT / "CHANGELOG.md").read_text()


EXTRAS = PROJECT["optional-dependencies"]


def requirements(extra):
    """What an extra asks for, with what the extras that it names ask for."""
    for line in EXTRAS[extra]:
        if match := re.fullmatch(r"accelrt\[(.*)\]", line):
            for name in match[1].split(","):
                yield from requirements(name)
        else:
            yield line


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_an_extra_asks_for_can_be_had_together_and_with_accelrt(extra):
    specifiers = pytest.importorskip("packaging.specifiers")
    requirement = pytest.importorskip("packaging.requirements")
    ranges = {}
    for line in [*PROJECT["dependencies"], *requirements(extra)]:
        wanted = requirement.Requirement(line)
        ranges[wanted.name] = ranges.get(wanted.name, specifiers.SpecifierSet()) & wanted.specifier
    versions = [f"{major}.{minor}" for major in range(40) for minor in (0, 0.6, 9)] + [
        "13.0.96",
        "78.1",
        "2025.1",
    ]
    for name, allowed in ranges.items():
        assert any(allowed.contains(version) for version in versions), (name, str(allowed))


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_extras_of_one_cuda_ask_for_its_bindings_and_no_part_of_the_other(cuda):
    other = {"12": "cu13", "13": "cu12"}[cuda]
    for extra in (f"kernels-cu{cuda}", f"nccl-cu{cuda}", f"all-cu{cuda}"):
        asked = list(requirements(extra))
        assert [line for line in asked if other in line] == []
        bindings = [line for line in asked if line.startswith("cuda-bindings")]
        assert bindings
        assert all(f"<{int(cuda) + 1}" in line and f">={cuda}" in line for line in bindings)


def test_all_is_all_of_the_extras_for_users():
    of_cuda = {name for name in EXTRAS if re.search(r"-cu1[23]$", name)}
    asked = set(EXTRAS["all"][0].removeprefix("accelrt[").removesuffix("]").split(","))
    assert asked == set(EXTRAS) - of_cuda - {"all", "bench", "docs", "test"}
