"""Interfaces that other packages bring by entry points; each test in a process of its own."""

import sys
import warnings

import pytest
from child import in_child

import accelrt

pytestmark = pytest.mark.own_process

MODULE = """
from accelrt.interface import CachingWorker, DeviceInterface
from accelrt.interface.builtin import CudaInterface

print("imported")

class XpuInterface(CudaInterface):
    class Worker(CudaInterface.Worker):
        kind = "xpu"
"""


@pytest.fixture
def installed(tmp_path):
    """A function that runs a scenario where a package with these entry points is installed."""
    (tmp_path / "xpu_package.py").write_text(MODULE)

    def run(scenario, *points):
        folder = tmp_path / "xpu_package-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: xpu-package\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("\n".join(["[accelrt.device_interfaces]", *points, ""]))
        return in_child(scenario, str(tmp_path))

    return run


def find_it(folder):
    import sys

    sys.path.append(folder)
    import accelrt

    accelrt.get_interface_for_device("cuda")
    assert "xpu_package" not in sys.modules
    found = accelrt.get_interface_for_device("xpu:1")
    assert found.__module__ == "xpu_package"
    assert found is accelrt.get_interface_for_device("xpu")
    assert not accelrt.is_initialized()
    assert dict(accelrt.get_registered_device_interfaces())["xpu"] is found
    assert found.Worker.get_device_properties("xpu:0").name


def test_a_package_adds_a_backend_without_being_imported_by_anybody(installed):
    assert installed(find_it, "xpu = xpu_package:XpuInterface").split() == ["imported"]


def find_broken_ones(folder):
    sys.path.append(folder)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = [name for name, _ in accelrt.get_registered_device_interfaces()]
    assert [name for name in names if ":" not in name] == ["cuda", "host", "hip", "xpu"]
    assert sorted(str(one.message).split(" cannot ")[0] for one in caught) == [
        "the interface for 'gone'",
        "the interface for 'half'",
    ]
    for name, error in (("gone", ModuleNotFoundError), ("half", accelrt.InterfaceError)):
        try:
            accelrt.get_interface_for_device(name)
        except error as caught_error:
            print(caught_error)
        else:
            raise AssertionError(name)


def test_one_broken_package_does_not_hide_the_others(installed):
    out = installed(
        find_broken_ones,
        "gone = no_such_package:Interface",
        "half = builtins:object",
        "xpu = xpu_package:XpuInterface",
    )
    assert "no_such_package" in out
    assert "object cannot be registered for 'half'" in out


def ask_for_cuda(folder):
    sys.path.append(folder)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = dict(accelrt.get_registered_device_interfaces())["cuda"]
    assert found.__module__ == "accelrt.interface.builtin"
    assert ["has no effect" in str(one.message) for one in caught] == [True]


def test_no_package_takes_a_built_in_name(installed):
    installed(ask_for_cuda, "cuda = xpu_package:XpuInterface")
