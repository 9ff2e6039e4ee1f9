"""The shipped stubs say what the compiled modules have: every public name, every signature."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import accelrt

pytestmark = pytest.mark.own_process
ROOT = Path(accelrt.__file__).parent

# What Cython adds, what the rows' generated class has instead of stubs, and what is not for users.
ALLOWED = r"""
.*\.__pyx_capi__
.*\.__test__
accelrt\.memory\.(checkpoint|credit|foreign|foreign_readings|idle|inherit|invariants|ladder|ordered|pending|pieces|places|plugged|plugin|policy)
accelrt\.memory\.(pinned|pinned_(audit|heap|memory|uses|watch)|pool|private|queues|readings|records|routes|segments|share|sharing)
accelrt\.memory\.(snapshot|spans|swing|windows|world)
.*\.?__reduce_cython__
.*\.?__setstate_cython__
.*\.RowCalls\..*
.*\.(rows|faults)\.ROW_NAMES
.*\.faults\.(MODES|ASKING)
.*\.mempool\.FIGURES
.*\.checkpoints\.REASONS
accelrt\.memory\.BACKEND
.*\.copies\.(Operand|View)
.*\.graph_nodes\.(Handles|TYPES|RESULTS)
.*\.graph\.MODES
.*\.stream\.(Currents|Waitable)
.*\.driver\.host\.S(IZE|CALE)
.*\.PinnedBuffer\.__buffer__
"""


def stubbed():
    """The modules that have a stub, as names."""
    return sorted(
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.pyi")
    )


def test_every_public_compiled_module_has_a_stub():
    public = {
        getattr(accelrt, name).__module__
        for name in accelrt.__all__
        if hasattr(getattr(accelrt, name), "__module__")
    }
    compiled = {name for name in public if importlib.import_module(name).__file__.endswith(".so")}
    assert compiled <= set(stubbed())


def test_stubs_and_modules_agree(tmp_path):
    pytest.importorskip("mypy.stubtest", reason="mypy is not installed; pip install 'mypy>=1.11'")
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED.strip())
    names = [name.removesuffix(".__init__") for name in stubbed()]
    modules = [name for name in names if name.rpartition(".")[0] not in names]  # a package brings its own
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy.stubtest",
            "--ignore-disjoint-bases",
            "--ignore-unused-allowlist",
            "--allowlist",
            str(allowed),
            *modules,
        ],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_marked_as_typed():
    assert (ROOT / "py.typed").exists()
