"""Captures beside everything else that a process does, and captures in which any call may fail."""

import gc
import random

import numpy as np
import pytest
from beside import Crowd
from child import in_own_process, run_code, wrap_host

import accelrt
from accelrt.driver.host import driver as host

CAPTURES = 200
FAILURES = 1000
UNKNOWN, OUT_OF_MEMORY = 999, 2


def allocate_and_free():
    buffers = [accelrt.Buffer(512 << n) for n in range(12)]
    buffers[3].record_stream(accelrt.default_stream())
    del buffers


def collect_garbage():
    loop = [accelrt.Event(), accelrt.CUDAGraph(), accelrt.Buffer(4096), accelrt.PinnedBuffer(4096)]
    loop.append(loop)
    del loop
    gc.collect()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_every_replay_is_right_beside_threads_that_allocate_collect_and_empty(mode):
    stream, out = accelrt.Stream(), np.zeros(4096, np.uint8)
    target = accelrt.Buffer(4096, stream=stream)
    replays = []
    with Crowd(allocate_and_free, collect_garbage, accelrt.empty_cache) as crowd:
        for n in range(CAPTURES):
            graph = accelrt.CUDAGraph()
            context = accelrt.graph(graph, stream=stream, capture_error_mode=mode)
            with context, accelrt.Buffer(4096) as inner:
                inner.fill(n % 251)
                accelrt.copy(target, inner, blocking=False)
            with accelrt.stream(stream):
                graph.replay()
            target.copy_to(out, stream=stream)
            replays.append((out == n % 251).all())
    assert all(crowd.rounds)
    assert len(replays) == CAPTURES
    assert all(replays)
    target.free()


def capture_and_replay():
    stream, other = accelrt.Stream(), accelrt.Stream()
    fork, join = accelrt.Event(), accelrt.Event()
    graph, out = accelrt.CUDAGraph(), np.zeros(4096, np.uint8)
    with accelrt.Buffer(4096, stream=stream) as target, accelrt.Buffer(4, stream=stream) as flag:
        flag.fill(1)
        accelrt.synchronize()
        with accelrt.graph(graph, stream=stream), accelrt.Buffer(4096) as inner:
            inner.fill(3)
            fork.record(stream)
            other.wait_event(fork)
            target.fill(1, 2048, stream=other)
            join.record(other)
            stream.wait_event(join)
            with graph.if_(flag):
                accelrt.copy(target, inner, 2048, dst_offset=2048, blocking=False)
        with accelrt.stream(stream):
            graph.replay()
        target.copy_to(out, stream=stream)
    return (out == np.repeat([1, 3], 2048)).all()


def left():
    counts = host.live_objects()
    return {kind: counts[kind] for kind in ("allocations", "bytes", "graphs", "execs") if counts[kind]}


@in_own_process
def test_a_thousand_captures_that_fail_anywhere_leave_nothing():
    """They fail at a call chosen at random, and then one does not."""
    faults, choice = wrap_host(), random.Random(4)
    assert capture_and_replay()
    faults.disarm()
    assert capture_and_replay()
    calls = faults.fired()
    failed = n = 0
    while failed < FAILURES:  # some calls are never reached, and what a destructor is refused is tried again
        n += 1
        faults.arm(call=choice.randint(1, calls), code=choice.choice((UNKNOWN, OUT_OF_MEMORY)))
        try:
            assert capture_and_replay()
        except accelrt.CudaError:
            failed += 1
        finally:
            faults.disarm()
        accelrt.synchronize()
        accelrt.empty_cache()
        assert accelrt.memory_allocated() == accelrt.memory_reserved() == 0, n
        assert left() == {}, n
        assert not accelrt.is_current_stream_capturing()
        assert n < 10 * FAILURES
    accelrt.memory.audit()
    assert capture_and_replay()
    assert calls > 30
    assert n >= FAILURES


@pytest.mark.own_process
@pytest.mark.parametrize(
    "middle",
    [
        "graph.capture_begin()\n",
        "context = accelrt.graph(graph)\ncontext.__enter__()\nkept = accelrt.Buffer(4096)\nkept.fill(1)\n",
        "graph.capture_begin()\nbody = graph.while_(flag)\nbody.__enter__()\nflag.fill(0)\n",
        "import threading\n"
        "thread = threading.Thread(target=lambda: (accelrt.set_stream(stream), graph.capture_begin()))\n"
        "thread.start()\nthread.join()\n",
        "graph.capture_begin()\naccelrt.me = [graph]\naccelrt.me.append(accelrt.me)\ndel graph\n",
    ],
    ids=["bare", "in a context", "in a body", "begun by a thread that is over", "in a cycle"],
)
def test_the_interpreter_ends_in_the_middle_of_a_capture(middle):
    begin = (
        "import accelrt\n"
        "stream, graph, flag = accelrt.Stream(), accelrt.CUDAGraph(), accelrt.Buffer(4)\n"
        "accelrt.set_stream(stream)\n"
    )
    assert run_code(begin + middle + "print('end')").split() == ["end"]
