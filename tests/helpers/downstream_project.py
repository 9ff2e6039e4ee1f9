"""Another project's extensions, built against the installed accelrt where no CUDA header is in reach."""

import functools
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import accelrt

HERE = Path(__file__).parents[1] / "downstream"


@functools.cache
def build():
    """Builds the project once a process, in a folder that goes with it and from now on is imported from."""
    folder = tempfile.TemporaryDirectory(prefix="downstream")
    shutil.copytree(HERE, folder.name, dirs_exist_ok=True)
    without_cuda = {key: value for key, value in os.environ.items() if not key.startswith("CUDA")}
    root = str(Path(accelrt.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=folder.name,
        env=without_cuda | {"PYTHONPATH": root, "CFLAGS": "-O1 -g0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    generated = list(Path(folder.name).rglob("*.c"))
    assert generated
    assert not any("cuda.h" in path.read_text() for path in generated)
    sys.path.insert(0, folder.name)
    return folder


def built(name):
    """A module of the project."""
    build()
    return importlib.import_module(f"downstream.{name}")
