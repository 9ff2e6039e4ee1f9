"""torch's page-locked memory from accelrt's cache, a process for each scenario (torch_pinned.py)."""

import pytest
import torch_pinned
from torch_alone import run, standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_pinned.SCENARIOS)
def test_on_a_gpu(name):
    run(torch_pinned.__file__, "gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", torch_pinned.SCENARIOS)
def test_on_the_standin(standin, name):
    run(torch_pinned.__file__, "standin", name, **standin)
