"""The plug-in for pytest, as a user's project in a folder of its own has it."""

import re
import tomllib
from pathlib import Path

import pytest
from child import run_python

import accelrt

pytestmark = [pytest.mark.own_process, pytest.mark.host]
ROOT = Path(accelrt.__file__).parents[1]
PLUGGED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]


@pytest.fixture
def project(tmp_path):
    """Runs pytest over a file of tests, where accelrt is installed: what it said, and what was counted."""
    installed = tmp_path / "site" / "accelrt-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: accelrt\nVersion: 0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in PLUGGED.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{lines}")

    def run(text, *options, **environment):
        (tmp_path / "work").mkdir(exist_ok=True)
        (tmp_path / "work" / "test_mine.py").write_text(text)
        path = f"{installed.parent}:{ROOT}"
        done = run_python(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", *options),
            cwd=tmp_path / "work",
            **{"PYTHONPATH": path, "ACCELRT_DRIVER": "host", "PYTEST_ADDOPTS": ""} | environment,
        )
        counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
        return done.stdout + done.stderr, counts

    return run


def test_what_fixtures_need_is_imported_where_one_is_used_and_nowhere_else(project):
    text = (
        "import sys\n"
        "def test_without():\n"
        "    assert 'accelrt.testing' not in sys.modules and 'accelrt.pytest_plugin' in sys.modules\n"
    )
    said, counts = project(text)
    assert counts == {"passed": 1}, said
    said, counts = project(text + "def test_with(accelrt_device):\n    assert accelrt_device == 'host'\n")
    # The session has its device before its first test.
    assert counts == {"passed": 1, "failed": 1}, said
    assert "AssertionError" in said


LEAKS = """
import accelrt, gc, pytest
kept = []
pytestmark = pytest.mark.usefixtures("accelrt_leak_check")

def make():
    kept.append(accelrt.Buffer(3 << 20))

def test_leaves_nothing():
    accelrt.Buffer(1000), accelrt.Stream(), accelrt.PinnedBuffer(64)

def test_leaves_a_buffer():
    make()

def test_leaves_a_stream_and_an_event():
    kept[:] = [accelrt.Stream(), accelrt.Event()]
    kept[1].record(kept[0])
    kept.append(kept[0].cuda_stream)

def test_leaves_an_address():
    accelrt.caching_allocator_alloc(2 << 20)

def test_leaves_page_locked_memory():
    kept.append(accelrt.PinnedBuffer(4096))

def test_what_a_failure_holds_is_no_leak():
    buffer = accelrt.Buffer(5 << 20)
    assert buffer is None
"""


def test_a_leak_fails_its_test_and_says_what_where_and_who(project):
    said, counts = project(LEAKS)
    assert counts == {"passed": 5, "failed": 1, "error": 4}, said
    assert re.search(
        r"3\.00 MiB at 0x[0-9a-f]+, .*test_mine\.py:\d+.*: Buffer, held by a list, `kept` of test_mine", said
    )
    assert re.search(r"1 stream\n.*<accelrt\.Stream", said)
    assert "1 event" in said
    assert re.search(r"2\.00 MiB at 0x[0-9a-f]+, .*test_mine\.py:\d+", said)
    assert "1 block of page-locked memory" in said
    assert "5.00 MiB" not in said


def test_the_audit_walks_the_allocator(project):
    said, counts = project(
        "import accelrt\ndef test_audited(accelrt_audit):\n    accelrt.Buffer(1000).free()\n"
    )
    assert counts == {"passed": 1}, said


FAULTS = """
import accelrt, pytest

def upload():
    stream, buffer = accelrt.Stream(), accelrt.Buffer(4 << 20)
    buffer.fill(1, stream=stream)
    stream.synchronize()

def test_every_failing_call_is_raised_and_leaves_nothing(accelrt_faults, accelrt_leak_check):
    upload()
    accelrt.empty_cache()
    raised = 0
    for call, error in accelrt_faults.failing_calls(upload):
        accelrt_faults.settle()
        assert accelrt.memory_allocated() == 0, call
        raised += error is not None
    assert raised > 0

def test_no_memory(accelrt_faults):
    with accelrt_faults.failing(code=2, mode="onward", rows=["memory_alloc", "physical_create"]) as count:
        with pytest.raises(accelrt.OutOfMemoryError):
            accelrt.Buffer(64 << 20)
        assert count() > 0
    accelrt.Buffer(64 << 20).free()

def test_calls(accelrt_faults):
    buffer = accelrt.Buffer(1000)
    assert accelrt_faults.calls_of(lambda: accelrt.fill(buffer, 0))["fill"] == 1
"""


def test_calls_of_the_driver_fail_where_a_test_says_so(project):
    said, counts = project(FAULTS)
    assert counts == {"passed": 3}, said


INTERLEAVED = """
import accelrt, numpy as np, pytest, threading
from accelrt.testing import InterleavingError

def make():
    return accelrt.zeros(1024, "i4")

def observe(array):
    return array.numpy()

def test_fills_are_as_one_after_the_other(accelrt_interleave):
    tried = accelrt_interleave(lambda a: a.fill_(1), lambda a: a.fill_(2), make, observe)
    assert tried >= 2

PLACE = r"add stopped (before|after) \\w+ \\(its call \\d+\\), beside add: "

class Counter:
    def __init__(self):
        self.value, self.buffer = 0, accelrt.Buffer(1000)

    def add(self):
        value = self.value
        self.buffer.fill(1)
        accelrt.synchronize()  # another thread may come in here
        self.value = value + 1

def test_a_lost_update_is_found(accelrt_interleave):
    with pytest.raises(InterleavingError, match=PLACE + "1 was observed"):
        accelrt_interleave(Counter.add, Counter.add, Counter, lambda counter: counter.value)

def test_an_error_of_neither_order_is_found(accelrt_interleave):
    def use(box):
        buffer = box[0]
        accelrt.synchronize()
        assert box, "taken away meanwhile"

    def take(box):
        box.clear()

    with pytest.raises(InterleavingError, match="taken away meanwhile"):
        accelrt_interleave(use, take, lambda: [accelrt.Buffer(64)])
    accelrt_interleave(use, take, lambda: [accelrt.Buffer(64)], allowed=[AssertionError])

def test_no_thread_is_left(accelrt_interleave):
    accelrt_interleave(lambda a: a.fill_(1), lambda a: a.fill_(2), make)
    for thread in threading.enumerate():
        if thread.name in ("first", "second"):
            thread.join(300)
            assert not thread.is_alive()
"""


def test_two_operations_are_tried_at_every_call(project):
    said, counts = project(INTERLEAVED)
    assert counts == {"passed": 4}, said


def test_what_was_initialised_otherwise_says_what_to_do(project):
    said, counts = project(
        "import accelrt\naccelrt.init('host')\n"
        "def test_device(accelrt_device):\n    assert accelrt_device == 'host'\n"
        "def test_faults(accelrt_faults):\n    pass\n"
    )
    assert counts == {"passed": 1, "error": 1}, said
    assert "accelrt was initialised before accelrt.testing.use_device()" in said
    assert "usefixtures = accelrt_device" in said


def test_without_a_gpu_that_is_asked_for_the_fixture_says_so(project):
    said, counts = project(
        "def test_one(accelrt_device):\n    pass\ndef test_two():\n    pass\n",
        ACCELRT_DRIVER="cuda",
        CUDA_VISIBLE_DEVICES="",
    )
    assert counts == {"passed": 1, "error": 1}, said
    assert "DriverNotFoundError" in said


def test_an_option_chooses_the_device(project):
    text = "def test_one(accelrt_device):\n    assert accelrt_device == 'host'\n"
    said, counts = project(text, "--accelrt-driver=host", ACCELRT_DRIVER="auto")
    assert counts == {"passed": 1}, said
    said, counts = project(text, "--accelrt-driver=cuda", CUDA_VISIBLE_DEVICES="")
    assert counts == {"error": 1}, said
    assert "DriverNotFoundError" in said
    said, counts = project(text, "--accelrt-driver=gpu")
    assert "invalid choice: 'gpu'" in said


def test_a_conftest_may_name_the_plug_in_too(project, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "conftest.py").write_text('pytest_plugins = ["accelrt.pytest_plugin"]\n')
    said, counts = project("def test_one(accelrt_device):\n    pass\n")
    assert counts == {"passed": 1}, said
