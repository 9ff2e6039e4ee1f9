"""What NVML says of a device, read by way of its UUID, on a stand-in for NVML."""

import ctypes
import os

import pytest
from cards import FIRST_MIG, A, B, C, beside_cards, without_proc

import accelrt
from accelrt.nvml.library import Target

pytestmark = pytest.mark.own_process
NUMBERS = {A: 1, B: 2, C: 3}


@beside_cards
def test_a_reading_is_of_the_device_that_was_named(card_libraries):
    """Ordinals go by PCI bus id, B, A, C; NVML's indices are C, A, B."""
    without_proc()
    for _ in range(2):
        for ordinal, uuid in enumerate((B, A, C)):
            for name in (ordinal, f"cuda:{ordinal}", uuid, accelrt.identity.table()[ordinal]):
                assert accelrt.temperature(name) == 30 + NUMBERS[uuid]
            assert accelrt.device_memory_used(ordinal) == (9 << 30) + NUMBERS[uuid]
        assert accelrt.power_draw(0) == 70002
        assert accelrt.utilization(1) == 51
        assert accelrt.memory_usage(1) == 21
        assert accelrt.clock_rate(1) == 1101
        assert accelrt.temperature() == accelrt.temperature(0)
        accelrt.init()  # the second round reads after it
        assert accelrt.device(1).index == 1
        assert accelrt.temperature(accelrt.device(1)) == 31
        accelrt.set_device(2)
        assert accelrt.temperature() == 33
        accelrt.set_device(0)


@beside_cards
def test_every_reading_has_its_unit(card_libraries):
    without_proc()
    records = accelrt.readings
    assert accelrt.memory_temperature(A) == 61
    assert accelrt.temperature_limits(A) == records.TemperatureLimits(90, 91, 93, None)
    assert accelrt.fan_speed(A) == 41
    assert accelrt.fan_speeds(B) == [42, 43]
    assert accelrt.power_limits(A) == records.PowerLimits(700000, 700001, None, 200000, 700000)
    assert accelrt.energy(B) == (1 << 40) + 2
    assert accelrt.performance_state(A) == 2
    assert accelrt.throttle_reasons(A) == ("sw_power_cap", "hw_thermal_slowdown", "bit_40")
    assert accelrt.clock_rates(A) == {"graphics": 1001, "sm": 1101, "memory": 1201, "video": None}
    assert accelrt.max_clock_rates(A) == {"graphics": 2000, "sm": 2100, "memory": 2200, "video": 2300}
    assert accelrt.application_clock_rates(A) == {"graphics": 1500, "sm": None, "memory": 1500, "video": None}
    assert (accelrt.encoder_utilization(A), accelrt.decoder_utilization(A)) == (5, 6)
    assert accelrt.device_memory_info(A) == records.MemoryInfo(80 << 30, 1 << 30, 70 << 30, (9 << 30) + 1)
    assert accelrt.ecc_errors(B) == records.EccErrors(2, 12, 102, 112)
    assert accelrt.ecc_mode(A) is True
    assert accelrt.remapped_rows(A) == records.RemappedRows(4, 5, True, False)
    assert accelrt.pcie_link(A) == records.PcieLink(4, 8, 5, 16, None)
    assert accelrt.pcie_throughput(A) == records.PcieTraffic(10 * 1024, 20 * 1024)
    assert accelrt.nvlink_links(A) == [True, False, True]
    assert accelrt.nvlink_throughput(A) == records.NvlinkTraffic(138 * 1024, 139 * 1024)


def processes():
    without_proc()
    found = accelrt.gpu_processes(B)
    assert [process.pid for process in found] == [*range(1000, 1040), 2000]
    assert found[0] == accelrt.readings.GpuProcess(1000, 1 << 20, "compute")
    assert found[1].memory is None
    assert found[-1].kind == "graphics"
    lines = accelrt.list_gpu_processes(0).splitlines()
    assert lines[0] == "GPU:0"
    assert lines[1] == "process       1000 uses        1.000 MB GPU memory"
    assert "unknown" in lines[2]
    assert accelrt.list_gpu_processes(A).splitlines() == [f"GPU:{A}", "no processes are running"]


def missing():
    without_proc()
    assert accelrt.temperature(C) == 33
    present = {"temperature", "device_memory_used", "device_memory_info"}
    names = [name for name in accelrt.readings.__all__ if name.islower() and name not in present]
    for name in names:
        with pytest.raises(accelrt.NotSupportedError) as caught:
            getattr(accelrt, name)(C)
        shown = "gpu_processes" if name == "list_gpu_processes" else name
        assert str(caught.value).startswith(f"{shown} of Stand-in ({C}): NVML answered NOT_SUPPORTED (3)"), (
            name
        )
        assert caught.value.name == "NOT_SUPPORTED"
    print(len(names))


@beside_cards(FAKE_MIG="1", FAKE_DRIVER="M")
def test_a_mig_device_answers_for_itself_or_names_its_card(card_libraries):
    without_proc()
    assert accelrt.device_memory_used(FIRST_MIG) == (9 << 30) + 11
    assert [process.gpu_instance for process in accelrt.gpu_processes(FIRST_MIG)] == [1]
    with pytest.raises(accelrt.NotSupportedError, match=rf"temperature\('{A}'\)"):
        accelrt.temperature(FIRST_MIG)


@beside_cards
def test_a_name_of_no_device_is_refused(card_libraries):
    without_proc()
    for name in (3, "cuda:3", -1, 10**30, "GPU-dead", "MIG-dead", "gpu"):
        with pytest.raises(ValueError, match=r"does not exist|not understood"):
            accelrt.temperature(name)
    for name in (1.5, True, object()):
        with pytest.raises(TypeError):
            accelrt.temperature(name)


@beside_cards(FAKE_NVML_OLD="1")
def test_an_older_driver_counts_its_own_memory_as_used(card_libraries):
    without_proc()
    assert accelrt.device_memory_info(0) == accelrt.readings.MemoryInfo(80 << 30, 0, 70 << 30, (10 << 30) + 2)


@beside_cards(FAKE_NVML_LOST="B")
def test_a_lost_card_is_named_and_the_others_answer(card_libraries):
    without_proc()
    with pytest.raises(accelrt.ReadingError, match=r"power_draw of .* GPU_IS_LOST \(15\)") as caught:
        accelrt.power_draw(Target(B, "Stand-in", None))
    assert (caught.value.code, caught.value.reading) == (15, "power_draw")
    assert accelrt.power_draw(A) == 70001


def no_library():
    without_proc()
    with pytest.raises(accelrt.DriverNotFoundError, match=r"libnvidia-ml\.so\.1 cannot be opened"):
        accelrt.temperature(Target(A, "card", None))
    # Where there is a driver, it counts its devices without NVML.
    with pytest.raises((ValueError, accelrt.DriverNotFoundError), match=r"are 0 devices|cannot be opened"):
        accelrt.temperature()


@beside_cards
def test_a_session_that_another_user_of_the_library_closed_is_opened_anew(card_libraries):
    without_proc()
    assert accelrt.temperature(0) == 32
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    while nvml.nvmlShutdown() == 0:
        pass
    assert accelrt.temperature(0) == 32
    assert accelrt.temperature(1) == 31
    assert nvml.fake_sessions() == 1


@beside_cards
def test_before_init_a_reading_goes_with_the_environment(card_libraries):
    without_proc()
    assert accelrt.temperature(0) == 32
    for text, expected in (("1", 31), (C, 33), ("2,1", 33), (None, 32)):
        if text is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = text
        assert accelrt.temperature(0) == expected


def test_processes_are_listed_once_each(on_cards):
    on_cards(processes)


def test_a_reading_that_the_card_lacks_names_itself_and_the_card(on_cards):
    assert int(on_cards(missing)) > 20


def test_without_the_library_the_error_says_so(on_cards, tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    on_cards(no_library, LD_LIBRARY_PATH=str(tmp_path))
