"""Readings of AMD devices, on a stand-in for amdsmi; no AMD hardware has seen them."""

import functools
import os
import sys
from pathlib import Path

import pytest
from child import in_fork, in_own_process
from compiled import SOURCES

import accelrt
from accelrt.core import procfs

pytestmark = pytest.mark.own_process
FIRST, SECOND, THIRD = "GPU-000000000000000a", "GPU-00000000000000ab", "GPU-000000000000000c"


@pytest.fixture
def no_libraries(tmp_path):
    """A folder in which NVIDIA's libraries are empty files, so that this machine's own are not found."""
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


beside_amd = functools.partial(in_own_process, ACCELRT_DRIVER="cuda", LD_LIBRARY_PATH="{no_libraries}")


def hip():
    sys.path.insert(0, str(SOURCES / "fake_amdsmi"))
    procfs.ROOT = Path("/nowhere")


@beside_amd
def test_a_reading_has_torchs_unit_and_is_of_the_hip_ordinal(no_libraries):
    hip()
    records = accelrt.readings
    assert [accelrt.temperature(ordinal) for ordinal in range(3)] == [41, 42, 43]
    assert accelrt.temperature() == 41
    assert accelrt.memory_temperature(1) == 52
    assert accelrt.power_draw(0) == 141000
    assert (accelrt.utilization(1), accelrt.memory_usage(1)) == (52, 22)
    assert accelrt.clock_rate("cuda:1") == 1002
    assert accelrt.clock_rates(0) == {"graphics": 1001, "sm": 1001, "memory": 1101, "video": None}
    assert accelrt.max_clock_rates(0)["sm"] == 2100
    assert accelrt.device_memory_used(2) == 286 << 20
    assert accelrt.device_memory_info(0) == records.MemoryInfo(
        196592 << 20, 0, (196592 - 284) << 20, 284 << 20
    )
    assert accelrt.fan_speed(1) == 40
    assert accelrt.power_limits(0) == records.PowerLimits(750000, 750000, 700000, 0, 800000)
    assert accelrt.energy(1) == 61
    assert accelrt.ecc_errors(0) == records.EccErrors(4, 5, None, None)
    assert accelrt.pcie_link(0) == records.PcieLink(None, 8, 5, 16, None)
    assert accelrt.gpu_processes(0) == [records.GpuProcess(4711, 4096, "compute")]
    assert accelrt.list_gpu_processes(0).splitlines()[0] == "GPU:0"
    assert not accelrt.is_initialized()


@beside_amd
def test_ordinals_go_with_rocrs_and_hips_lists(no_libraries):
    hip()
    for rocr, hip_list, expected in ((None, "2,0", [43, 41]), ("2,1", "1", [42]), (SECOND, None, [42])):
        for name, text in (("ROCR_VISIBLE_DEVICES", rocr), ("HIP_VISIBLE_DEVICES", hip_list)):
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text
        assert [accelrt.temperature(ordinal) for ordinal in range(len(expected))] == expected
        with pytest.raises(ValueError, match="does not exist"):
            accelrt.temperature(len(expected))


@beside_amd
def test_a_missing_figure_names_itself_and_the_card(no_libraries):
    hip()
    for name in ("power_draw", "utilization", "clock_rate", "energy", "fan_speed", "memory_temperature"):
        with pytest.raises(accelrt.NotSupportedError, match=rf"^{name} of Stand-in MI 3 \({THIRD}\)"):
            getattr(accelrt, name)(2)
    for name in ("nvlink_throughput", "throttle_reasons", "remapped_rows"):
        with pytest.raises(accelrt.NotSupportedError, match=f"{name} of Stand-in MI 1"):
            getattr(accelrt, name)(0)
    with pytest.raises(accelrt.ReadingError, match=r"amdsmi_get_power_cap_info answered status 30") as caught:
        accelrt.power_limits(2)
    assert caught.value.code == 30


@beside_amd(FAKE_AMDSMI_OLD="1")
def test_without_hip_ordinals_several_cards_are_not_guessed_at(no_libraries):
    hip()
    with pytest.raises(accelrt.NotSupportedError, match=r"ROCm 6\.4"):
        accelrt.temperature(0)


@beside_amd
def test_a_child_opens_its_own_session(no_libraries):
    hip()
    assert accelrt.temperature(0) == 41
    assert in_fork(lambda: accelrt.temperature(1) - 42) == 0
