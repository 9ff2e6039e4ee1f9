"""Runs one of torch's scenarios in a process of its own: on a GPU, or on the stand-in of CUDA's libraries."""

import os
import sys
from pathlib import Path

import pytest
from child import run_python


def run(program, kind, name, **environment):
    """Starts a helper as `python PROGRAM gpu|standin NAME`, which prints "done" where nothing went wrong.

    Returns its output.
    """
    pytest.importorskip("torch")
    paths = os.pathsep.join([str(Path(program).parent), *filter(None, sys.path)])
    done = run_python("-P", program, kind, name, **{"ACCELRT_DEBUG": "2", "PYTHONPATH": paths} | environment)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.endswith("done\n"), done.stdout
    assert "accelrt:" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    if "there is one device alone" in done.stdout:
        pytest.skip("it takes two devices")
    return done.stdout


def both_tests(helper, scenarios, on_gpus_alone=(), many=lambda name: False):
    """The two tests of a helper's scenarios, on a GPU and on the stand-in, each in a process of its own.

    on_gpus_alone: those that the stand-in cannot run.  many: whether one takes two of its devices.
    """

    @pytest.mark.own_process
    @pytest.mark.gpu
    @pytest.mark.parametrize("name", scenarios)
    def on_a_gpu(name):
        run(helper.__file__, "gpu", name, ACCELRT_DRIVER="cuda")

    @pytest.mark.own_process
    @pytest.mark.host
    @pytest.mark.parametrize("name", [name for name in scenarios if name not in on_gpus_alone])
    def on_the_standin(standin, name):
        run(helper.__file__, "standin", name, STANDIN_DEVICES="2" if many(name) else "1", **standin)

    return on_a_gpu, on_the_standin


@pytest.fixture(scope="module")
def standin(tmp_path_factory):
    """The environment of a process on the stand-in."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None or not torch.version.cuda.startswith("13"):
        pytest.skip("the stand-in has the functions of CUDA 13's runtime; this torch is built for another")
    from cudart_standin import build

    return build(tmp_path_factory.mktemp("standin")) | {"ACCELRT_DRIVER": "host"}
