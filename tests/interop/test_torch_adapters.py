"""The interfaces that engines call for sleep, a process for each scenario (torch_adapters.py)."""

import pytest
import torch_adapters
from torch_alone import run, standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_adapters.SCENARIOS)
def test_on_a_gpu(name):
    run(torch_adapters.__file__, "gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", torch_adapters.SCENARIOS)
def test_on_the_standin(standin, name):
    run(torch_adapters.__file__, "standin", name, **standin)
