"""accelrt as torch's allocator: torch's own functions on a GPU; and, where there is none but torch is
installed, on a stand-in for NVIDIA's libraries over the host device, which has copies and no kernels
(cudart_standin.py)."""

import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import pytest
import torch_scenarios
from child import in_child, in_own_process, run_python
from torch_alone import standin
from torch_setting import PLUGGED

import accelrt
from accelrt.allocator.external import torch_table

pytestmark = pytest.mark.own_process
__all__ = ["standin"]
NAMES = list(torch_scenarios.SCENARIOS)
PROGRAM = torch_scenarios.__file__


def run_scenarios(kind, **environment):
    """Name -> None or what went wrong, of every scenario; each runs in the same process."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    paths = os.pathsep.join([str(Path(PROGRAM).parent), *filter(None, sys.path)])
    done = run_python("-P", PROGRAM, kind, **{"ACCELRT_DEBUG": "2", "PYTHONPATH": paths} | environment)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{len(told)} scenarios, then {done.returncode}:\n{done.stdout}{done.stderr}"
    assert "accelrt:" not in done.stderr, done.stderr
    return {each["name"]: each["wrong"] for each in told}


@pytest.fixture(scope="module")
def on_gpu():
    return run_scenarios("gpu", ACCELRT_DRIVER="cuda")


@pytest.fixture(scope="module")
def on_standin(standin):
    return run_scenarios("standin", **standin)


@pytest.fixture(scope="module")
def plugged_on_standin(standin):
    return run_scenarios("standin", **PLUGGED, **standin)


@pytest.fixture(scope="module")
def plugged_on_gpu():
    return run_scenarios("gpu", ACCELRT_DRIVER="cuda", **PLUGGED)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_torch_on_a_gpu(on_gpu, name):
    assert on_gpu[name] is None, on_gpu[name]


@pytest.mark.host
@pytest.mark.parametrize("name", [name for name in NAMES if name not in torch_scenarios.KERNELS])
def test_torch_on_the_standin(on_standin, name):
    assert on_standin[name] is None, on_standin[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_torch_on_a_gpu_without_a_compiler(plugged_on_gpu, name):
    assert plugged_on_gpu[name] is None, plugged_on_gpu[name]


@pytest.mark.host
@pytest.mark.parametrize("name", [name for name in NAMES if name not in torch_scenarios.KERNELS])
def test_torch_on_the_standin_without_a_compiler(plugged_on_standin, name):
    assert plugged_on_standin[name] is None, plugged_on_standin[name]


def too_late():
    import torch

    kept = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="before the first tensor on a GPU"):
        accelrt.interop.torch.install()
    assert not accelrt.interop.torch.is_installed()
    assert torch.cuda.memory_allocated() == 512
    assert accelrt.memory_allocated(0) == 0
    del kept


@pytest.mark.gpu
def test_without_a_compiler_it_is_refused_after_torchs_first_allocation():
    pytest.importorskip("torch")
    in_child(too_late, ACCELRT_DRIVER="cuda", **PLUGGED)


def another_is_plugged():
    import torch

    path = torch_table.__file__
    other = torch.cuda.memory.CUDAPluggableAllocator(
        path, "accelrt_torch_hook_alloc", "accelrt_torch_hook_free"
    )
    torch.cuda.memory.change_current_allocator(other)
    before = torch._C._cuda_memoryStats
    with pytest.raises(RuntimeError, match="or has another allocator"):
        accelrt.interop.torch.install()
    assert torch._C._cuda_memoryStats is before, "what was replaced is back"


@pytest.mark.gpu
def test_without_a_compiler_it_is_refused_beside_another_plugged_allocator():
    pytest.importorskip("torch")
    in_child(another_is_plugged, ACCELRT_DRIVER="cuda", **PLUGGED)


def installed_without_a_first_use():
    import torch

    accelrt.interop.torch.install()
    assert not torch.cuda.is_initialized()
    assert torch.cuda.memory_allocated() == 0
    assert not accelrt.is_initialized()
    torch.zeros(1, device="cuda")
    assert accelrt.is_initialized()


@pytest.mark.gpu
def test_it_opens_no_device():
    pytest.importorskip("torch")
    in_child(installed_without_a_first_use, ACCELRT_DRIVER="cuda")


def torch_like(cuda="13.0", initialized=False):
    """A module as far as install() looks at torch before it changes anything."""
    torch = types.ModuleType("torch")
    torch.__version__ = "2.11.0"
    torch.version = types.SimpleNamespace(cuda=cuda)
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: initialized, device_count=lambda: 0)
    torch._C = types.SimpleNamespace(__file__=torch_table.__file__, _cuda_getCurrentRawStream=int)
    sys.modules["torch"] = torch
    return torch


def refused(error, text, **given):
    torch_like(**given)
    with pytest.raises(error, match=text):
        accelrt.interop.torch.install()
    assert not accelrt.interop.torch.is_installed()
    assert not accelrt.is_initialized()
    accelrt.interop.torch.uninstall()


def without_cuda():
    refused(accelrt.NotSupportedError, "torch 2.11.0 is built without CUDA", cuda=None)


def on_the_host_device():
    refused(accelrt.NotSupportedError, "runs on the driver 'host'.*leave ACCELRT_DRIVER unset")


def initialized():
    refused(RuntimeError, "install.. right after import torch", initialized=True)


def with_other_functions():
    refused(accelrt.NotSupportedError, "torch 2.11.0 lacks _ZN5torch4cuda22CUDAPluggableAllocator")


def on_another_backend():
    refused(accelrt.NotSupportedError, "backend 'cudaMallocAsync'; choose the backend 'native'")


@pytest.mark.host
@pytest.mark.parametrize(
    ("scenario", "environment"),
    [
        (without_cuda, {"ACCELRT_DRIVER": "cuda"}),
        (on_the_host_device, {"ACCELRT_DRIVER": "host"}),
        (initialized, {"ACCELRT_DRIVER": "cuda"}),
        (with_other_functions, {"ACCELRT_DRIVER": "cuda"}),
        (on_another_backend, {"ACCELRT_DRIVER": "cuda", "ACCELRT_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_a_refusal_says_why_and_changes_nothing(scenario, environment):
    in_child(scenario, **environment)


@pytest.mark.host
@in_own_process
def test_without_torch_the_import_fails():
    sys.modules["torch"] = None
    with pytest.raises(ModuleNotFoundError, match="torch"):
        accelrt.interop.torch.install()


@in_own_process
def test_nothing_of_torch_is_imported_before_it_is_asked_for():
    assert "torch" not in sys.modules
    assert "accelrt.interop" not in sys.modules
    assert callable(accelrt.interop.torch.install)
    assert "torch" not in sys.modules
