"""What the host device says of its state: what has a meaning there, and the rest is refused by name."""

import os

import pytest

import accelrt

pytestmark = pytest.mark.host


def test_memory_in_use_follows_allocation():
    accelrt.empty_cache()  # what a test before left idle would serve the Buffer
    before = accelrt.device_memory_used(0)
    with accelrt.Buffer(32 << 20, device=0):
        info = accelrt.device_memory_info(0)
        assert accelrt.device_memory_used(0) == info.used >= before + (32 << 20)
        assert info.total == info.reserved + info.free + info.used == accelrt.mem_get_info(0)[1]
        assert accelrt.gpu_processes(0) == [accelrt.GpuProcess(os.getpid(), info.used, "compute")]
        assert f"process {os.getpid():>10d} uses" in accelrt.list_gpu_processes(0)


def test_what_has_no_meaning_is_refused_with_both_names():
    meaningful = {"device_memory_used", "device_memory_info", "gpu_processes", "list_gpu_processes"}
    for name in accelrt.readings.__all__:
        if name.islower() and name not in meaningful:
            with pytest.raises(accelrt.NotSupportedError, match=f"^{name} of accelrt host device"):
                getattr(accelrt, name)(0)


def test_the_names_of_devices_are_everybodys():
    for name in (0, "cuda:0", "host:0", accelrt.device(0), accelrt.identity.table()[0], None):
        assert accelrt.device_memory_used(name) >= 0
    with pytest.raises(ValueError, match="does not exist"):
        accelrt.device_memory_used(99)
