"""Importing accelrt touches nothing: no driver, no NVML, no numpy."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.own_process


def child(code, **environment):
    import os

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_opens_no_driver_library_and_loads_no_numpy():
    out = child(
        "import sys, accelrt\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('libcuda.so', 'libnvidia-ml', 'libcudart') if name in maps])\n"
        "print([name for name in ('numpy', 'cuda.bindings.driver', 'cuda.bindings.nvml', 'torch') "
        "if name in sys.modules])\n"
    )
    assert out.split("\n")[:2] == ["[]", "[]"]


def test_import_starts_no_thread_and_initialises_nothing():
    out = child(
        "import os, accelrt\nprint(len(os.listdir('/proc/self/task')), accelrt.is_initialized())",
        ACCELRT_DRIVER="host",
    )
    assert out.split() == ["1", "False"]


def test_counting_devices_initialises_nothing():
    out = child(
        "import accelrt\nbefore = accelrt.device_count()\n"
        "print(accelrt.is_available() == (before > 0), accelrt.is_initialized())\n"
        "from accelrt.driver import registry\nprint(registry.driver_name())",
        ACCELRT_DRIVER="cuda",
    )
    assert out.split() == ["True", "False", "sentinel"]


def test_without_an_nvidia_driver_use_says_how_to_ask_for_the_host_device():
    out = child(
        "import accelrt\n"
        "if accelrt.is_available():\n"
        "    print('host')\n"
        "else:\n"
        "    try:\n"
        "        accelrt.Stream()\n"
        "    except accelrt.DriverNotFoundError as error:\n"
        "        print(error)\n",
        ACCELRT_DRIVER="auto",
    )
    assert "host" in out


def test_every_public_name_is_there():
    import accelrt

    assert [name for name in accelrt.__all__ if not hasattr(accelrt, name)] == []
    assert [name for name in accelrt.memory.__all__ if not hasattr(accelrt.memory, name)] == []
