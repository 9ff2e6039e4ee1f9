"""What an sdist holds: all that the tests need."""

import fcntl
import os
import tarfile

import pytest
from child import output_of
from cli_command import ROOT

pytestmark = pytest.mark.own_process
FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
# setup.py compiles; what goes into an sdist is said by pyproject.toml and MANIFEST.in.
BUILD = """
import sys
from setuptools import Distribution
made = Distribution({"script_name": "setup.py"})
made.parse_config_files()
made.get_command_obj("egg_info").egg_base = sys.argv[1]
made.get_command_obj("sdist").dist_dir = sys.argv[1]
made.run_command("sdist")
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of an unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with open(tmp_path_factory.getbasetemp().parent / "sdist.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the sdist is put together in the root: one worker at a time
        output_of("-c", BUILD, folder, cwd=ROOT)
    (archive,) = folder.glob("accelrt-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, **FILTER)
    (found,) = [path for path in folder.iterdir() if path.is_dir() and (path / "pyproject.toml").exists()]
    return found


def files(root, folder):
    """The files of a folder, but for what a build or an interpreter has left there."""
    paths = (root / folder).rglob("*")
    return {
        path.relative_to(root).as_posix()
        for path in paths
        if path.is_file() and path.suffix not in (".pyc", ".so") and "__pycache__" not in path.parts
    }


def test_an_sdist_has_every_file_of_the_tests(unpacked):
    assert files(unpacked, "tests") == files(ROOT, "tests")


@pytest.mark.parametrize("folder", ["accelrt", "benchmarks", "examples"])
def test_an_sdist_has_every_source(unpacked, folder):
    generated = {".c", ".cpp", ".pxi"}
    here = {path for path in files(ROOT, folder) if os.path.splitext(path)[1] not in generated}
    assert here <= files(unpacked, folder)


def test_the_tests_of_an_sdist_can_be_collected(unpacked):
    # No assertion runs here; to rewrite them all takes longer than the rest.
    options = ["--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", "--assert=plain"]
    settings = {"PYTHONPATH": str(ROOT), "ACCELRT_DRIVER": "host"}
    printed = output_of("-P", "-m", "pytest", *options, "tests", cwd=unpacked, **settings)
    assert "error" not in printed.splitlines()[-1]
