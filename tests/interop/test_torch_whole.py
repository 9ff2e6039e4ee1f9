"""accelrt as an allocator object of torch's own class, compiled for the torch that is installed: what a
plugged allocator cannot do, each scenario in a process of its own (torch_whole.py)."""

import os
import sys
from pathlib import Path

import pytest
import torch_whole
from child import run_python

pytestmark = pytest.mark.own_process
PROGRAM = torch_whole.__file__


def run(kind, name, **environment):
    pytest.importorskip("torch")
    paths = os.pathsep.join([str(Path(PROGRAM).parent), *filter(None, sys.path)])
    done = run_python("-P", PROGRAM, kind, name, **{"ACCELRT_DEBUG": "2", "PYTHONPATH": paths} | environment)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.endswith("done\n"), done.stdout
    assert "accelrt:" not in done.stderr, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_whole.ALONE)
def test_on_a_gpu(name):
    run("gpu", name, ACCELRT_DRIVER="cuda")


@pytest.fixture(scope="module")
def standin(tmp_path_factory):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None or not torch.version.cuda.startswith("13"):
        pytest.skip("the stand-in has the functions of CUDA 13's runtime; this torch is built for another")
    from cudart_standin import build

    return build(tmp_path_factory.mktemp("standin"))


@pytest.mark.host
@pytest.mark.parametrize("name", [name for name in torch_whole.ALONE if name not in torch_whole.KERNELS])
def test_on_the_standin(standin, name):
    run("standin", name, ACCELRT_DRIVER="host", **standin)
