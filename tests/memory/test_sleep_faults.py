"""Sleep and wake where calls of the driver fail: nothing is lost, and nothing is left behind."""

import itertools
import os

import pytest
from child import in_child, in_own_process, wrap_host
from sleepers import MIB, assert_contents, write_contents

import accelrt
from accelrt import memory
from accelrt.driver.host import driver as host

pytestmark = pytest.mark.host
OUT_OF_MEMORY, UNKNOWN = 2, 999
ROWS = [
    "host_alloc",
    "stream_create",
    "copy_async",
    "stream_synchronize",
    "device_synchronize",
    "memory_unmap",
    "physical_release",
    "physical_create",
    "memory_map",
    "memory_access",
]


def make(pool):
    """Live memory of several segments and pages, some of it stitched, with its contents."""
    with accelrt.use_mem_pool(pool):
        apart = [accelrt.Buffer(2 * MIB) for _ in range(6)]
        del apart[::2]
        buffers = [*apart, accelrt.Buffer(6 * MIB), accelrt.Buffer(700, stream=accelrt.Stream())]
    return buffers, write_contents(buffers)


def attempt(faults, call, code, mode, function):
    """Whether the armed fault was met, and the error that came of it."""
    faults.arm(call=call, code=code, mode=mode, rows=ROWS)
    try:
        function()
    except accelrt.CudaError as error:
        return faults.fired() >= call, error
    else:
        return faults.fired() >= call, None
    finally:
        faults.disarm()


def sweep(step, code, mode):
    """Fails call 1, then 2, ... of one step, until it succeeds."""
    faults = wrap_host()
    pool = accelrt.MemPool()
    buffers, contents = make(pool)
    met = set()
    for call in itertools.count(1):
        accelrt.host_empty_cache()
        if step == "wake":
            pool.sleep()
        fired, error = attempt(faults, call, code, mode, pool.sleep if step == "sleep" else pool.wake)
        memory.audit()
        memory.host_audit()
        if error is not None:
            met.add(error.call)
            assert step != "wake" or pool.is_asleep()
            if step == "sleep" and mode == "once":
                assert not pool.is_asleep(), str(error)
        if pool.is_asleep():
            pool.wake()
        assert_contents(buffers, contents)
        assert memory.sleeping() == 0
        if not fired:
            break
    assert call > 15
    del buffers, pool
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    assert accelrt.memory_snapshot() == []
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0
    print(call, met)


@pytest.mark.parametrize("mode", ["once", "onward"])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
@pytest.mark.parametrize("step", ["sleep", "wake"])
def test_every_failure_leaves_the_contents(step, code, mode):
    print(in_child(sweep, step, code, mode))


@pytest.mark.parametrize("step", ["sleep", "wake"])
def test_copies_under_way_keep_what_they_use_whatever_is_refused(step):
    # Each takes a while, so that it is still under way when the call after it is refused.
    print(in_child(sweep, step, UNKNOWN, "once", ACCELRT_HOST_DELAY_US="1000"))


@in_own_process
def test_a_lack_of_host_memory_is_told():
    faults = wrap_host()
    pool = accelrt.MemPool()
    buffers, contents = make(pool)
    faults.arm(call=1, code=OUT_OF_MEMORY, mode="onward", rows=["host_alloc", "host_register"])
    with pytest.raises(accelrt.OutOfMemoryError, match=r"no page-locked host memory.*keep='discard'"):
        pool.sleep()
    assert not pool.is_asleep()
    assert_contents(buffers, contents)
    pool.sleep("discard")
    faults.disarm()
    pool.wake()


@in_own_process
def test_a_child_leaves_the_parents_sleep_alone_and_a_process_may_end_with_it():
    pool = accelrt.MemPool()
    buffers, contents = make(pool)
    pool.sleep()
    child = os.fork()
    if child == 0:
        try:
            del buffers, pool
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pool.wake()
    assert_contents(buffers, contents)
    pool.sleep()  # and the process ends


@in_own_process(printing="1 -1\n")
def test_a_stream_that_the_driver_keeps_is_used_again():
    faults = wrap_host()
    pool = accelrt.MemPool()
    buffers, contents = make(pool)
    streams = []
    for _ in range(4):
        for step in (pool.sleep, pool.wake):
            faults.arm(call=1, code=UNKNOWN, mode="once", rows=["stream_destroy"])
            step()
            assert faults.fired() == 1
            faults.disarm()
            streams.append(host.live_objects()["streams"])
        assert_contents(buffers, contents)
    pool.sleep()
    print(len(set(streams)), host.live_objects()["streams"] - streams[0])


@pytest.mark.parametrize("step", ["sleep", "wake"])
@in_own_process(ACCELRT_HOST_DELAY_US="3000")
def test_copies_that_cannot_be_waited_for_keep_what_they_use(step):
    faults = wrap_host()
    pool = accelrt.MemPool()
    buffers, contents = make(pool)
    if step == "wake":
        pool.sleep()
    waits = ["stream_synchronize", "device_synchronize"]
    faults.arm(call=3 if step == "sleep" else 1, code=UNKNOWN, mode="onward", rows=waits)  # of the copies
    try:
        with pytest.raises(accelrt.CudaError, match="stream_synchronize"):
            pool.sleep() if step == "sleep" else pool.wake()
    finally:
        faults.disarm()
    assert pool.is_asleep() == (step == "wake")
    if step == "wake":
        pool.wake()
    else:
        accelrt.synchronize()  # what was copied out for nothing still reads
    for buffer, content in zip(buffers, contents, strict=True):
        content += 1
        buffer.copy_from(content)  # a copy of the first attempt would come after this
    accelrt.synchronize()
    assert_contents(buffers, contents)
    calls = faults.call_counts()["stream_synchronize"]
    pool.sleep()
    pool.wake()
    assert faults.call_counts()["stream_synchronize"] == calls + 2  # nothing is left to wait for
    assert_contents(buffers, contents)
    memory.audit()
    memory.host_audit()


@in_own_process
def test_an_event_that_was_refused_is_asked_for_again():
    faults, stream, pool = wrap_host(), accelrt.Stream(), accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffers = [accelrt.Buffer(MIB) for _ in range(2)]
    for buffer in buffers:
        buffer.record_stream(stream)
    faults.arm(call=1, code=UNKNOWN, mode="once", rows=["event_record"])
    buffers[0].free()
    assert faults.fired() == 1
    faults.disarm()
    pool.sleep()  # there is no capture, which it would name
    pool.wake()
    faults.arm(call=1, code=UNKNOWN, mode="onward", rows=["event_record"])
    buffers[1].free()
    with pytest.raises(accelrt.CudaError, match=r"MemPool\.sleep.* answered UNKNOWN"):
        pool.sleep()
    faults.disarm()
    assert not pool.is_asleep()
    pool.sleep()
    pool.wake()
