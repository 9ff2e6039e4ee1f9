"""CUDA tensors through torch.multiprocessing, where accelrt is torch's allocator: each scenario in processes
of its own (torch_sharing.py)."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch_whole
from child import run_python

pytestmark = pytest.mark.own_process
PROGRAM = Path(torch_whole.__file__).with_name("torch_sharing.py")  # which imports torch
NAMES = re.findall(r"^@alone\ndef (\w+)\(", PROGRAM.read_text(), re.MULTILINE)


def run(kind, name, **environment):
    pytest.importorskip("torch")
    paths = os.pathsep.join([str(PROGRAM.parent), *filter(None, sys.path)])
    settings = {"ACCELRT_DEBUG": "2", "PYTHONPATH": paths} | environment
    done = run_python("-P", str(PROGRAM), kind, name, **settings)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.endswith("done\n"), done.stdout
    assert "accelrt:" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    print(done.stdout)
    if "there is one device alone" in done.stdout:
        pytest.skip("it takes two devices")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
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
@pytest.mark.parametrize("name", NAMES)
def test_on_the_standin(standin, name):
    run("standin", name, ACCELRT_DRIVER="host", **standin)
