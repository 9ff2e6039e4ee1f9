"""What torch's own allocator does and accelrt alike, a process for each scenario (torch_alike.py)."""

import pytest
import torch_alike
from torch_alone import run, standin

pytestmark = pytest.mark.own_process
__all__ = ["standin"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", torch_alike.ALIKE)
def test_on_a_gpu(name):
    run(torch_alike.__file__, "gpu", name, ACCELRT_DRIVER="cuda")


@pytest.mark.host
@pytest.mark.parametrize("name", torch_alike.ALIKE)
def test_on_the_standin(standin, name):
    run(torch_alike.__file__, "standin", name, STANDIN_DEVICES="2" if "device" in name else "1", **standin)
