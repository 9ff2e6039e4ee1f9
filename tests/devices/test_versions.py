"""Versions, what kernels can be compiled for, and what is said of old drivers and devices."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from cards import without_proc

import accelrt
from accelrt.devices import versions
from accelrt.runtime import init


def test_versions_are_pairs():
    for version in (accelrt.driver_version(), accelrt.runtime_version()):
        major, minor = version
        assert (major, minor) >= (12, 0)


@pytest.mark.skipif(init.chosen_driver() != "host", reason="of the host device")
def test_no_kernels_are_compiled_for_the_host_device():
    assert accelrt.get_arch_list() == []
    assert accelrt.get_gencode_flags() == ""
    assert accelrt.is_bf16_supported() is False


def start():
    """Initialises on the stand-ins; returns the warnings of it."""
    without_proc()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelrt.init()
        accelrt.device_count()
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


def say_warnings(bindings=(13, 3)):
    versions.runtime_version = lambda: bindings
    for text in start():
        print(text)
    accelrt.init()
    assert accelrt.driver_version()[0] in (12, 13)
    with_errors = [sys.executable, "-W", "error::DeprecationWarning", "-c", "import accelrt"]
    assert subprocess.run(with_errors, check=False).returncode == 0


@pytest.mark.own_process
def test_nothing_is_said_of_what_is_new_enough(on_cards):
    assert on_cards(say_warnings) == ""


@pytest.mark.own_process
def test_an_old_driver_is_warned_of_once_with_what_to_do(on_cards):
    lines = on_cards(say_warnings, FAKE_VERSION="12040").splitlines()
    assert len(lines) == 1
    assert "has CUDA 12.4, but the installed cuda-bindings are of CUDA 13.3" in lines[0]
    assert "Upgrade it to branch 580 or later" in lines[0]
    assert "or install cuda-bindings 12" in lines[0]


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("version", "capability", "said"), [("12040", "70", ""), ("12000", "40", "CUDA 12 ")]
)
def test_cuda_12_is_content_with_older_drivers_and_devices(on_cards, version, capability, said):
    out = on_cards(say_warnings, (12, 9), FAKE_VERSION=version, FAKE_CAPABILITY=capability)
    assert bool(out) == bool(said)
    assert said in out


@pytest.mark.own_process
def test_old_devices_are_warned_of_once_by_name(on_cards):
    lines = on_cards(say_warnings, FAKE_CAPABILITY="70", FAKE_DRIVER="BA").splitlines()
    assert len(lines) == 1
    assert lines[0].count("has compute capability 7.0") == 2
    assert "device 1 (Stand-in)" in lines[0]
    assert "CUDA_VISIBLE_DEVICES" in lines[0]


def say_architectures(nvrtc):
    import sys
    import types

    without_proc()
    if nvrtc:
        made = types.ModuleType("cuda.bindings.nvrtc")
        made.nvrtcVersion = lambda: (0, 13, 3)
        made.nvrtcGetSupportedArchs = lambda: (0, [80, 75, 120])
    else:
        made = None  # an import of it fails
    sys.modules["cuda.bindings.nvrtc"] = made
    print(*accelrt.get_arch_list())
    print(accelrt.get_gencode_flags())
    print(accelrt.is_bf16_supported(), accelrt.is_bf16_supported(including_emulation=False))
    from accelrt.kernels import arch

    print(arch.nvrtc_version())


@pytest.mark.own_process
def test_with_nvrtc_it_is_what_nvrtc_compiles_for(on_cards):
    archs, flags, _, version = on_cards(say_architectures, True).splitlines()
    assert archs == "sm_75 sm_80 sm_120 compute_120"
    assert flags.startswith("-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80 ")
    assert flags.endswith(" -gencode arch=compute_120,code=compute_120")
    assert version == "(13, 3)"


@pytest.mark.own_process
@pytest.mark.parametrize(("capability", "native"), [("90", "True"), ("75", "False")])
def test_without_nvrtc_it_is_what_the_driver_compiles_for(on_cards, capability, native):
    out = on_cards(say_architectures, False, FAKE_CAPABILITY=capability).splitlines()
    assert out[0] == f"sm_{capability} compute_{capability}"
    assert out[1] == " ".join(
        f"-gencode arch=compute_{capability},code={kind}_{capability}" for kind in ("sm", "compute")
    )
    assert out[2] == f"True {native}"
    assert out[3] == "None"


def say_why_not():
    versions.runtime_version = lambda: (13, 3)
    without_proc()
    folder = Path("version")
    versions.MODULE = folder
    for text in ("470.57.02", "580.159.04"):
        folder.write_text(text + "\n")
        assert versions.kernel_driver_version() == text
        print(versions.advice_to_upgrade())
        with pytest.raises(accelrt.DriverNotFoundError) as caught:
            accelrt.init()
        assert ("needs branch 525" in str(caught.value)) == text.startswith("470")


@pytest.mark.own_process
def test_a_driver_too_old_to_open_is_told_from_one_that_is_broken(on_cards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = on_cards(say_why_not, FAKE_DRIVER="").split("\n")
    assert "needs branch 525 (CUDA 12.0), and the installed cuda-bindings want branch 580" in lines[0]
    assert lines[0].endswith("upgrade it")
    assert lines[1] == ""
