"""What tests compile is kept in folders of theirs; a test of NVRTC or the cache begins with an empty one."""

import pytest
from nvrtc_found import NVJITLINK_MISSING, NVRTC_MISSING

import accelrt
from accelrt.kernels import cache, known_compiler


def pytest_collection_modifyitems(items):
    """Skips what needs NVRTC, or nvJitLink, where it is not installed for these cuda-bindings."""
    for item in items:
        for marker in item.iter_markers("nvrtc"):
            if reason := NVRTC_MISSING or ("link" in marker.args and NVJITLINK_MISSING):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def kernel_cache(request, tmp_path, tmp_path_factory, monkeypatch):
    """The cache's folder."""
    of_its_own = request.node.get_closest_marker("nvrtc") is not None
    folder = (tmp_path if of_its_own else tmp_path_factory.getbasetemp()) / "kernel cache"
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE", str(folder))
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "64")
    monkeypatch.setattr(known_compiler, "_known", None)
    cache.forget()
    yield folder
    cache.forget()
    for kernel in vars(request.module).values():
        if isinstance(kernel, accelrt.ElementwiseKernel):
            kernel.unload()
