"""A pytest plug-in for other libraries' tests: lets CuPy or torch allocate from accelrt, and tells how much
they did.

PEER_SUITE names the library; PEER_COUNTS is a folder for a file of each process.  Loaded by peer_suites.py,
before any conftest.py, which may allocate.
"""

import importlib
import json
import os
import warnings
from pathlib import Path

import pytest

LIBRARY = os.environ["PEER_SUITE"]
COUNTS = Path(os.environ["PEER_COUNTS"])


interop = importlib.import_module(f"accelrt.interop.{LIBRARY}")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    interop.install()


def pytest_collection_modifyitems(config, items):
    """Without what compiles by nvcc or Jitify: the same kernels once more, for minutes."""
    left_out = [
        item for item in items if "[NVCC" in item.name or "jitify" in item.name.replace("no-jitify", "")
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A test that changes the allocator may put back another one than it found."""
    if not interop.is_installed():
        interop.uninstall()
        interop.install()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    import accelrt

    if accelrt.is_initialized():
        accelrt.memory.audit()
        count = accelrt.memory.memory_stats()["allocation.all.allocated"]
        (COUNTS / f"{os.getpid()}.json").write_text(json.dumps(count))
