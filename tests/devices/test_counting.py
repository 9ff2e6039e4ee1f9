"""Counting devices before init: from what, without which library, and what a change of the environment
does.
"""

import os
import warnings
from pathlib import Path

import pytest
from cards import A, B, beside_cards, libraries, without_proc

import accelrt
from accelrt.core import procfs
from accelrt.devices import discovery

pytestmark = pytest.mark.own_process
VISIBLE = "CUDA_VISIBLE_DEVICES"

INFORMATION = (
    "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.a5.00.1a\n"
    "Bus Type: \t PCIe\nBus Location: \t {place}\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
)


def kernel_list(folder, *cards):
    """A list of cards such as the kernel's driver shows, in a folder; and their device nodes, less that of
    "X".
    """
    procfs.ROOT, procfs.NODES = folder, folder / "dev"
    procfs.NODES.mkdir(parents=True)
    for minor, (uuid, place, excluded) in enumerate(cards):
        (folder / "gpus" / place).mkdir(parents=True)
        text = INFORMATION.format(uuid=uuid, place=place, excluded=excluded, minor=minor)
        (folder / "gpus" / place / "information").write_text(text)
        if not uuid.endswith("X"):
            (procfs.NODES / f"nvidia{minor}").touch()


@beside_cards
def test_the_kernels_list_needs_no_library(card_libraries, tmp_path):
    cards = [(A, "0000:41:00.0", "No"), (B, "0000:07:00.0", "No"), ("GPU-ex", "0000:08:00.0", "Yes")]
    kernel_list(Path(tmp_path), *cards, ("GPU-not-ours-X", "0000:01:00.0", "No"))
    assert accelrt.device_count() == 2
    assert accelrt.is_available()
    os.environ[VISIBLE] = f"{A},GPU-aaaabbbb"
    assert accelrt.device_count() == 2
    os.environ[VISIBLE] = "1,0,7"
    assert accelrt.device_count() == 2
    os.environ[VISIBLE] = "-1"
    assert not accelrt.is_available()
    assert libraries() == []  # neither NVML nor the driver


@pytest.mark.parametrize(
    ("uuid", "mig"),
    [("GPU-????????-????-????-????-????????????", False), (A, True), ("GPU-X", False)],
    ids=["unknown", "mig", "no nodes"],
)
@beside_cards
def test_nvml_counts_where_the_kernels_list_is_not_enough(card_libraries, tmp_path, uuid, mig):
    """The stand-in of NVML has three cards; the kernel's list would have one."""
    kernel_list(Path(tmp_path), (uuid, "0000:41:00.0", "No"))
    if mig:
        (Path(tmp_path) / "capabilities" / "gpu0" / "mig" / "gi1").mkdir(parents=True)
    assert accelrt.device_count() == 3
    assert libraries() == ["libnvidia-ml"]


@beside_cards
def test_a_count_before_init_is_not_kept_and_opens_no_driver(card_libraries):
    without_proc()
    for text, count in (("0", 1), ("0,1", 2), ("", 0), ("0,0", 0), ("x", 0), ("2,1,0,9", 3)):
        os.environ[VISIBLE] = text
        assert accelrt.device_count() == count
        assert accelrt.is_available() == (count > 0)
    del os.environ[VISIBLE]
    assert accelrt.device_count() == 3
    assert not accelrt.is_initialized()
    assert libraries() == ["libnvidia-ml"]


def no_driver_at_all():
    without_proc()
    for _ in range(2):
        assert accelrt.device_count() == 0
        assert not accelrt.is_available()
    assert not discovery._has_library  # asked once; the second time nothing was started


def change_after_init(variable, value):
    without_proc()
    accelrt.init()
    count = accelrt.device_count()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        os.environ["SOMETHING_ELSE"] = "1"
        assert accelrt.device_count() == count
        assert said == []
        os.environ[variable] = value
        for _ in range(3):
            assert accelrt.device_count() == count
            assert accelrt.is_available()
            accelrt.init()
    assert len(said) == 1, [str(one.message) for one in said]
    assert said[0].category is RuntimeWarning
    for part in (f"{variable} is now {value!r}", "was not set", "no effect"):
        assert part in str(said[0].message)


@beside_cards
def test_what_did_not_change_is_not_warned_of(card_libraries):
    without_proc()
    os.environ[VISIBLE] = "0,1,2"
    accelrt.init()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        os.environ[VISIBLE] = "0,1,2"
        assert accelrt.device_count() == 3
        os.environ["A_NEW_ONE"] = "x"
        del os.environ["A_NEW_ONE"]
        assert accelrt.device_count() == 3
    del os.environ[VISIBLE]
    with pytest.warns(RuntimeWarning, match=r"is now not set, but was '0,1,2'"):
        assert accelrt.device_count() == 3


def test_without_any_library_there_are_none(on_cards, tmp_path):
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (tmp_path / name).write_bytes(b"")
    on_cards(no_driver_at_all, LD_LIBRARY_PATH=str(tmp_path))


@pytest.mark.parametrize(
    ("variable", "value"), [(VISIBLE, "1"), (VISIBLE, ""), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]
)
def test_a_change_after_init_has_no_effect_and_is_said_once(on_cards, variable, value):
    on_cards(change_after_init, variable, value)


def test_the_host_device_says_it_of_its_own_setting(on_cards):
    on_cards(change_after_init, "ACCELRT_HOST_DEVICES", "7", ACCELRT_DRIVER="host")
