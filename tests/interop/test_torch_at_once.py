"""Two parties of torch programs at once on accelrt, a process for each scenario (torch_at_once.py)."""

import pytest
import torch_at_once
from torch_alone import run, standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_at_once.AT_ONCE)
def test_on_a_gpu(name):
    run(torch_at_once.__file__, "gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", torch_at_once.AT_ONCE)
def test_on_the_standin(standin, name):
    run(torch_at_once.__file__, "standin", name, **standin)
