"""The host device under limits of the process: the error names what was short."""

import os
import shlex
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.own_process, pytest.mark.host]


def under_limit(limit, code, **environment):
    command = f"ulimit {limit}; exec {shlex.join([sys.executable, '-c', code])}"
    variables = os.environ | {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "0"} | environment
    done = subprocess.run(
        ["bash", "-c", command], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FILL = """
import accelrt
held = []
try:
    while True:
        held.append(accelrt.{kind}(64 << 20))
except accelrt.OutOfMemoryError as error:
    print(error)
held.clear()
print(accelrt.{kind}(1 << 20).nbytes)
"""


@pytest.mark.parametrize("kind", ["Buffer", "PinnedBuffer"])
def test_addresses_that_are_short_are_named(kind):
    plain = {"ACCELRT_HOST_MEMORY": "64GiB", "ACCELRT_ALLOC_CONF": "expandable_segments:False"}
    out = under_limit("-v 3000000", FILL.format(kind=kind), **plain)
    assert "limited to 3072000000 bytes of addresses (ulimit -v)" in out
    assert out.endswith("\n1048576\n")


def test_a_reservation_for_which_there_are_no_addresses_says_so():
    code = "import accelrt\ntry:\n    accelrt.Buffer(64)\nexcept MemoryError as error:\n    print(error)"
    out = under_limit("-v 3000000", code)
    assert "the host has no addresses left for it" in out
    assert "ulimit -v" in out


def test_a_full_device_blames_no_addresses():
    out = under_limit("-v unlimited", FILL.format(kind="Buffer"))
    assert "Host device out of memory" in out
    assert "addresses" not in out


def test_a_limit_on_files_is_named():
    code = "import accelrt\ntry:\n    accelrt.init()\nexcept RuntimeError as error:\n    print(error)"
    out = under_limit("-f 1024", code)
    assert out.startswith(
        "the host driver did not open: a file for the device's memory cannot be made: File too large"
    )
    assert "limited to 1048576 bytes a file (ulimit -f)" in out


def test_a_limit_on_open_files_is_named_and_leaves_none_open():
    code = (
        "import accelrt, os, resource\n"
        "from accelrt.driver import host\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (before + 5, hard))\n"
        "try:\n    accelrt.init()\nexcept RuntimeError as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "print(len(os.listdir('/proc/self/fd')) - before)\n"
        "accelrt.init()\nprint(accelrt.Buffer(10).nbytes)"
    )
    out = under_limit("-f unlimited", code, ACCELRT_HOST_DEVICES="60")
    assert "cannot be made: Too many open files" in out
    assert out.endswith("\n0\n10\n")


def test_a_thread_that_cannot_start_is_named():
    code = (
        "import accelrt\nbuffer = accelrt.Buffer(64)\n"
        "try:\n    accelrt.current_stream().launch_host_func(int)\nexcept accelrt.CudaError as error:\n"
        "    print(error)\nprint(buffer.nbytes)"
    )
    # Each thread's stack is as large as ulimit -s says, which -v has no room for.
    out = under_limit("-s 8000000 -v 6000000", code, OPENBLAS_NUM_THREADS="1")
    assert "starts no thread" in out
    assert "raise the limit of threads (ulimit -u)" in out
    assert out.endswith("\n64\n")
