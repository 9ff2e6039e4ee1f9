"""One module of kernels: PTX on a GPU, a shared object that the C compiler made on the host device."""

import os

import pytest

import accelrt
from accelrt.driver.host import driver as host
from accelrt.kernels.kernel import forget_kernels
from accelrt.testing import settle

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
SAXPY = "float a, const float* x, float* y, int n"


@pytest.fixture
def module(image):
    with accelrt.Module(image) as made:
        yield made


@pytest.fixture
def number(module):
    return module.function("number")


@pytest.fixture
def saxpy(module):
    return module.function("saxpy", SAXPY)


@pytest.fixture(autouse=True)
def _no_module_left(_nothing_left_behind, request):
    """Modules that a test loaded are unloaded once its kernels and graphs are gone."""
    before = host.live_objects()["modules"] if ON_HOST and accelrt.is_initialized() else 0
    yield
    if not ON_HOST or not accelrt.is_initialized():
        return

    for name in ("number", "saxpy"):  # which pytest holds until all teardowns are over
        request.node.funcargs.pop(name, None)
    forget_kernels()
    settle()
    assert host.live_objects()["modules"] <= before  # of kernels that other tests had compiled
