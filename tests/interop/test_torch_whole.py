"""accelrt as an allocator object of torch's own class, compiled for the torch that is installed: what a
plugged allocator cannot do, each scenario in a process of its own (torch_whole.py)."""

import pytest
import torch_whole
from torch_alone import run, standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_whole.ALONE)
def test_on_a_gpu(name):
    run(torch_whole.__file__, "gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", [name for name in torch_whole.ALONE if name not in torch_whole.KERNELS])
def test_on_the_standin(standin, name):
    run(torch_whole.__file__, "standin", name, STANDIN_DEVICES="2" if "device" in name else "1", **standin)
