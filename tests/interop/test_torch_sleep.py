"""What torch holds in accelrt sleeps and wakes, a process for each scenario (torch_sleep.py)."""

import pytest
import torch_sleep
from torch_alone import run, standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_sleep.SCENARIOS)
def test_on_a_gpu(name):
    run(torch_sleep.__file__, "gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", torch_sleep.SCENARIOS)
def test_on_the_standin(standin, name):
    run(torch_sleep.__file__, "standin", name, **standin)
