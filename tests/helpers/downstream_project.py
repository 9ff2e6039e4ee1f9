"""Another project's extensions, built against the installed accelrt where no CUDA header is in reach."""

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "downstream"


@pytest.fixture(scope="session")
def downstream(tmp_path_factory):
    """A function that imports a module of the project, which one worker builds for all."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "downstream"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            build(folder)
            (folder / "built").touch()
    sys.path.insert(0, str(folder))
    return lambda name: importlib.import_module(f"downstream.{name}")


def build(folder):
    import accelrt

    shutil.copytree(HERE, folder, dirs_exist_ok=True)
    without_cuda = {key: value for key, value in os.environ.items() if not key.startswith("CUDA")}
    root = str(Path(accelrt.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=folder,
        env=without_cuda | {"PYTHONPATH": root, "CFLAGS": "-O1 -g0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    generated = list(folder.rglob("*.c"))
    assert generated
    assert not any("cuda.h" in path.read_text() for path in generated)
