"""What a process tells of its pools, and who may read it; each test in processes of its own."""

import os
import threading
import time
import warnings

import pytest
from child import in_child, in_own_process, run_python
from published_files import record
from waiting import wait_until

import accelrt
from accelrt.tools import publish

pytestmark = pytest.mark.own_process
MIB = 1 << 20


def publish_and_look():
    buffers = [accelrt.Buffer(3 * MIB), accelrt.Buffer(5 * MIB)]
    buffers.pop()
    end = time.monotonic() + 300
    while time.monotonic() < end:  # until the writer came round to it
        told = accelrt.publish.published()
        pool = told[0].pools[0] if told else None
        if pool and (pool.live, pool.reserved) == (3 * MIB, accelrt.memory_reserved(0)):
            break
    (one,) = told
    assert (one.pid, one.driver) == (os.getpid(), "host")
    pool = one.pools[0]
    assert pool.live == accelrt.memory_allocated(0)
    assert pool.reserved == accelrt.memory_reserved(0)
    assert pool.peak_reserved == accelrt.max_memory_reserved(0)
    assert pool.used == pool.total - accelrt.mem_get_info(0)[0]
    assert pool.uuid == accelrt.get_device_properties(0).uuid.hex
    assert len(one.pools) == accelrt.device_count()
    child = os.fork()
    if child == 0:
        accelrt.publish.stop()  # the file is not its own
        os._exit(0 if len(accelrt.publish.published()) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    accelrt.publish.stop()
    assert accelrt.publish.published() == []
    accelrt.publish.start(0.01)
    accelrt.publish.start(0.01)
    wait_until(accelrt.publish.published)


def test_a_process_that_is_told_to_publishes_what_its_pools_hold(place):
    in_child(publish_and_look, ACCELRT_PUBLISH="1")
    assert list(place.iterdir()) == []  # it removed its file at its exit


def use_quietly():
    accelrt.Buffer(512)
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
    assert accelrt.publish.published() == []


@pytest.mark.parametrize("setting", ["", "0"])
def test_nothing_is_published_unless_it_is_asked_for(place, setting):
    in_child(use_quietly, ACCELRT_PUBLISH=setting)
    assert list(place.iterdir()) == []


@in_own_process(ACCELRT_PUBLISH="1")
def test_a_child_forked_before_use_publishes_itself(place):
    accelrt.publish.published()
    child = os.fork()
    if child == 0:
        accelrt.init()
        wait_until(accelrt.publish.published)
        accelrt.publish.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not accelrt.is_initialized()


def die_while_publishing():
    accelrt.init()
    wait_until(accelrt.publish.published)
    print(os.getpid(), flush=True)
    os._exit(0)


def test_the_file_of_a_process_that_died_is_removed_by_the_next_reader(place):
    pid = int(in_child(die_while_publishing, ACCELRT_PUBLISH="1"))
    assert (place / f"{pid}.json").exists()
    assert publish.published() == []
    assert list(place.iterdir()) == []


def test_another_process_of_the_same_number_is_not_taken_for_it(place):
    path = place / f"{os.getpid()}.json"
    path.write_text(record())
    assert [one.pools[0].live for one in publish.published()] == [1]
    path.write_text(record(started=1))
    assert publish.published() == []
    assert not path.exists()


def test_what_is_not_of_this_pid_namespace_is_left_alone(place):
    path = place / "1.json"
    path.write_text(record(pid=1, started=5, namespace="pid:[1]"))
    assert publish.published() == []
    assert path.exists()


def start_in_vain():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelrt.init()
    print(*[one.message for one in caught])
    assert accelrt.publish.published() == []


@pytest.mark.parametrize("make", ["writable", "link", "missing"])
def test_a_folder_that_others_may_write_is_not_trusted(tmp_path, make):
    if make == "writable":
        (tmp_path / "accelrt").mkdir()
        (tmp_path / "accelrt").chmod(0o777)
    elif make == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "accelrt").symlink_to(tmp_path / "elsewhere")
    runtime = tmp_path / "gone" if make == "missing" else tmp_path
    out = in_child(start_in_vain, ACCELRT_PUBLISH="1", XDG_RUNTIME_DIR=str(runtime))
    assert "what the pools hold is not published" in out


def test_a_period_has_to_be_positive():
    code = "import accelrt\naccelrt.publish.start(0)"
    done = run_python("-c", code)
    assert "ValueError: seconds is 0; it has to be positive" in done.stderr


def fail_twice(*_):
    """What stands for writing: twice it is refused, in ways that pass and ways that nobody foresaw."""
    fail_twice.calls += 1
    if fail_twice.calls <= 2:
        raise (OSError(24, "Too many open files"), ZeroDivisionError("a bug"))[fail_twice.calls - 1]
    fail_twice.passed.set()


def publish_in_trouble():
    fail_twice.calls, fail_twice.passed = 0, threading.Event()
    publish.write = fail_twice
    publish.start(0.001)
    assert fail_twice.passed.wait(300)
    publish.stop()


def test_the_writer_outlives_what_it_cannot_write(tmp_path):
    told = in_child(publish_in_trouble, XDG_RUNTIME_DIR=str(tmp_path))
    assert (
        told == "accelrt: what the pools hold is not published at present: [Errno 24] Too many open files\n"
    )
