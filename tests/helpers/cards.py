"""Processes of their own on stand-ins for libnvidia-ml and libcuda: three cards, no GPU."""

import functools
import shutil
from pathlib import Path

import pytest
from child import in_child, in_own_process
from compiled import compile_library

A = "GPU-aaaaaaaa-0000-0000-0000-000000000001"
B = "GPU-aaaabbbb-0000-0000-0000-000000000002"
C = "GPU-cccccccc-0000-0000-0000-000000000003"
FIRST_MIG = "MIG-dddddddd-0000-0000-0000-000000000011"
SECOND_MIG = "MIG-eeeeeeee-0000-0000-0000-000000000012"


@pytest.fixture(scope="session")
def card_libraries(tmp_path_factory):
    """The folder of the stand-ins, which have the names that the loader looks for."""
    folder = tmp_path_factory.mktemp("cards")
    shutil.move(compile_library("fake_libnvidia_ml", folder), folder / "libnvidia-ml.so.1")
    shutil.move(compile_library("fake_cards_libcuda", folder), folder / "libcuda.so.1")
    return str(folder)


# Makes a test that asks for card_libraries run in a process of its own on the stand-ins.
beside_cards = functools.partial(in_own_process, ACCELRT_DRIVER="cuda", LD_LIBRARY_PATH="{card_libraries}")


@pytest.fixture(scope="session")
def on_cards(card_libraries):
    """A function that runs a scenario of the test file in a process of its own on the stand-ins."""

    def run(scenario, *arguments, **environment):
        settings = {"ACCELRT_DRIVER": "cuda", "LD_LIBRARY_PATH": card_libraries, **environment}
        return in_child(scenario, *arguments, **settings)

    return run


def without_proc():
    """Hides the kernel's own list of cards, so that a machine with a GPU does not answer for the
    stand-ins.
    """
    from accelrt.core import procfs

    procfs.ROOT = Path("/nowhere")
    return True


def libraries():
    """Which of NVIDIA's libraries this process has mapped."""
    maps = Path("/proc/self/maps").read_text()
    return [name for name in ("libnvidia-ml", "libcuda.so") if name in maps]
