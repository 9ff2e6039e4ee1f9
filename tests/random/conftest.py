"""Kernels that tests of random numbers compile are kept in a folder of the whole run's."""

import pytest

from accelrt.kernels import cache
from accelrt.random import graph_states, launches


@pytest.fixture(autouse=True, scope="session")
def _kernel_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELRT_KERNEL_CACHE", str(tmp_path_factory.getbasetemp().parent / "random kernels"))
        yield


@pytest.fixture(autouse=True, scope="module")
def _kernels_unloaded():
    cache.forget()
    yield
    launches._plans.clear()
    launches._kernels.clear()
    graph_states.PUT.unload()
    cache.forget()
