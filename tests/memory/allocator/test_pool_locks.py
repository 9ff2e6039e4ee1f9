"""A pool's lock is held in calls of the driver that may wait for a function of Python's: so nothing waits for
the lock with the GIL, which that function needs."""

import sys
import threading
import time
from contextlib import contextmanager

import pytest
from beside import Caller, Gate, on_a_thread
from compiled import compile_extension
from waiting import wait_until, wait_until_asleep

import accelrt
from accelrt import memory

MIB = 1 << 20
GIVE_UP = 100_000  # milliseconds until the lock is let go of, so that a test fails instead of hanging
TURNS = 20  # of the thread that goes on
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("held"))
    compile_extension("held", folder)
    sys.path.insert(0, folder)
    import held

    return held


@contextmanager
def locked(held, heaps=True):
    """Another thread has the lock of device 0's pool while this one comes to the end of the block."""
    holder = Caller(lambda: held.hold(0, GIVE_UP, heaps)).begin()
    try:
        wait_until(held.is_held)
        yield
    finally:
        held.let_go()
        in_time = holder.result()
    assert in_time is True, "a call waited for the pool's lock with the GIL held"


def let_wait(held, call):
    """Has a thread wait for the lock in a call, while this thread goes on."""
    begun = threading.Event()

    def run():
        begun.set()
        call()

    caller = Caller(run)
    try:
        with locked(held):
            caller.begin()
            begun.wait()
            for _ in range(TURNS):
                time.sleep(0.001)
            waits = not caller.is_done()
    finally:
        caller.begin().result()
    assert waits, "the call takes no lock of the pool's"


FIGURES = {
    "memory_allocated": accelrt.memory_allocated,
    "memory_reserved": accelrt.memory_reserved,
    "max_memory_allocated": accelrt.max_memory_allocated,
    "max_memory_reserved": accelrt.max_memory_reserved,
    "memory_stats": accelrt.memory_stats,
    "memory_stat, of all heaps": lambda: memory.memory_stat("active_bytes.all.current"),
    "memory_stat, of the pool": lambda: memory.memory_stat("reserved_bytes.all.peak"),
    "memory_snapshot": accelrt.memory_snapshot,
    "reset_peak_memory_stats": accelrt.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": accelrt.reset_accumulated_memory_stats,
    "audit": memory.audit,
    "empty_cache": accelrt.empty_cache,
    "set_per_process_memory_fraction": lambda: accelrt.set_per_process_memory_fraction(1.0),
    "set_allocator_settings": lambda: memory.set_allocator_settings("growth_slack:auto"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_other_threads_go_on_while_a_figure_or_setting_waits_for_a_pool(name, held):
    with accelrt.Buffer(MIB):
        let_wait(held, FIGURES[name])


# Each prepares, yields the call, and leaves nothing.  What is to die in the call is made by a thread that is
# gone: without a GIL an object dies on the thread that made it, as long as that runs.


def a_hit():
    delete(alloc(4096))
    yield lambda: delete(alloc(4096))


def a_miss():
    yield lambda: delete(alloc(64 * MIB))


def a_buffer_that_dies():
    buffers = [on_a_thread(lambda: accelrt.Buffer(4096))]
    yield buffers.clear


def a_request_that_is_refused():
    def refused():
        with pytest.raises(accelrt.OutOfMemoryError):
            alloc(1 << 62)

    yield refused


def record_stream():
    address = alloc(4096)
    yield lambda: accelrt.record_stream(address, accelrt.Stream())
    delete(address)


def free_after():
    address, stream = alloc(4096), accelrt.Stream()
    done = stream.record_event()
    yield lambda: memory.free_after(address, done)


def wait_event():
    address, stream, other = alloc(4096), accelrt.Stream(), accelrt.Stream()
    with Gate(stream):
        done = stream.record_event()
        memory.free_after(address, done)
        yield lambda: other.wait_event(done)


def copy_on_another_stream():
    stream, src, dst = accelrt.Stream(), accelrt.Buffer(64), accelrt.Buffer(64)
    yield lambda: accelrt.copy(dst, src, stream=stream, blocking=False)
    stream.synchronize()


def captured_copy():
    graph, stream, src, dst = accelrt.CUDAGraph(), accelrt.Stream(), accelrt.Buffer(64), accelrt.Buffer(64)
    with accelrt.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        yield lambda: accelrt.copy(dst, src, stream=stream, blocking=False)
        graph.capture_end()


def checkpoints():
    pool = accelrt.MemPool()
    state = memory.get_checkpoint_state(pool)
    yield lambda: memory.get_checkpoint_state(pool)
    yield lambda: memory.set_checkpoint_state(state)
    yield lambda: memory.check_pool_live_allocations(pool, [])


def enter_and_leave(pool):
    with accelrt.use_mem_pool(pool):
        pass


def mempools():
    pools = [on_a_thread(accelrt.MemPool)]
    yield accelrt.MemPool
    yield lambda: enter_and_leave(pools[0])
    for name in ("stats", "use_count", "reset_peak_stats", "snapshot"):
        yield getattr(pools[0], name)
    yield pools.clear


def captured(**settings):
    graph = accelrt.CUDAGraph(**settings)
    with accelrt.graph(graph), accelrt.Buffer(64) as buffer:
        buffer.fill(1)
    return graph


def captures():
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    yield captured
    with accelrt.stream(stream), accelrt.Buffer(64) as buffer:
        graph.capture_begin(capture_error_mode="relaxed")
        buffer.fill(1)
        yield graph.capture_end


def replay_on(stream, graph):
    with accelrt.stream(stream):
        graph.replay()


def replays():
    graph, stream, buffer = accelrt.CUDAGraph(), accelrt.Stream(), accelrt.Buffer(64)
    with accelrt.graph(graph):
        buffer.fill(1)
    yield lambda: replay_on(stream, graph)
    stream.synchronize()


def graphs_that_go():
    for stream in (accelrt.Stream(), accelrt.default_stream()):
        graph = captured()
        replay_on(stream, graph)
        replay_on(accelrt.Stream(), graph)
        yield graph.memory_stats
        yield graph.reset
        graphs = [on_a_thread(captured)]
        yield graphs.clear
    graph = captured()
    assert graph.raw_cuda_graph_exec()
    yield graph.reset
    accelrt.synchronize()


def update():
    graph, other = captured(), captured(keep_graph=True)
    graph.replay()
    yield lambda: graph.update(other)
    accelrt.synchronize()


WORK = (
    a_hit, a_miss, a_buffer_that_dies, a_request_that_is_refused, record_stream, free_after, wait_event,
    copy_on_another_stream, captured_copy, checkpoints, mempools, captures, replays, graphs_that_go, update,
)  # fmt: skip


@pytest.mark.parametrize("prepare", WORK, ids=lambda prepare: prepare.__name__)
def test_other_threads_go_on_while_a_call_waits_for_a_pool(prepare, held):
    with accelrt.Buffer(MIB):
        for call in prepare():
            let_wait(held, call)


def test_no_hit_waits_for_a_pool_to_be_audited(held):
    with accelrt.Buffer(MIB):
        delete(alloc(4096))
        with locked(held, heaps=False):
            delete(alloc(4096))


def test_a_graph_that_a_thread_drops_is_no_other_threads(held):
    graph = captured()
    thread = threading.Thread(target=graph.reset)
    with locked(held):
        thread.start()
        wait_until_asleep(thread)
        for call in (graph.reset, graph.capture_begin):
            with pytest.raises(RuntimeError, match="another thread begins, ends or drops a capture"):
                call()
        with pytest.raises(RuntimeError, match="another thread begins, ends or drops a capture"):
            graph.replay()
    thread.join()
    replay_on(accelrt.Stream(), captured())
