"""Each example does what it says, on the device that the tests run on, and leaves nothing allocated."""

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
from child import output_of
from compiled import COMPILER, CXX

import accelrt

pytestmark = pytest.mark.own_process
EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {  # of what it refuses
    "c_abi/run.py c": "for device 1000 it said: no such device",
    "c_abi/run.py cpp": "allocate answered OUT_OF_MEMORY (2)",
    "tested_cache.py": "beside take: 1 was observed; one after the other gives 2 or 2",
    "cython_extension/build_and_run.py": "there_and_back() answered INVALID_DEVICE",
}
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
OF_GPUS = {"cupy_beside_torch.py": ("torch", "cupy")}  # and the libraries that they need
STARTED = [  # test_launchers.py has those of several processes
    command
    for command in re.findall(r"^\| `python ([^`]+)` \|", (EXAMPLES / "README.md").read_text(), re.M)
    if not command.startswith("launchers/")
]


def run(command, **environment):
    """Starts an example as its reader would; what it printed."""
    settings = {"PYTHONPATH": str(Path(accelrt.__file__).parents[1]), "CC": shlex.join(COMPILER)}
    settings["CFLAGS"] = "-O0 -g0"  # of extensions, whose compilation is most of what they take
    if CXX is not None:
        settings["CXX"] = shlex.join(CXX)
    return output_of(*command.split(), cwd=EXAMPLES, **settings | environment)


@pytest.mark.parametrize("command", STARTED)
def test_an_example_runs(command):
    if command.endswith(" cpp") and CXX is None:
        pytest.skip("no C++ compiler (g++) is installed")
    if command in OF_GPUS and ON_HOST:
        pytest.skip("needs a GPU")
    for library in OF_GPUS.get(command, ()):
        pytest.importorskip(library)
    said = run(command)
    assert "0 bytes are still allocated" in said
    assert SAYS.get(command, "") in said


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_an_example_says_which_library_it_lacks():
    with pytest.raises(AssertionError, match="not installed: torch"):
        run("cupy_beside_torch.py")


@pytest.mark.parametrize(
    "command",
    [
        *("pipeline.py", "saxpy.py", "block_sums.py", "divided_device.py", "graph_by_hand.py"),
        *("paged_cache.py", "training_step.py"),
    ],
)
def test_no_streams_of_an_example_race(command):
    run(command, ACCELRT_SANITIZE="raise")


def test_the_table_lists_every_example():
    sources = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*") if path.is_file()}
    sources = {path for path in sources if not path.endswith((".pyc", "README.md", "setup.py"))}
    text = (EXAMPLES / "README.md").read_text()
    assert [path for path in sources if path not in text] == []
    assert len(STARTED) == 16
