"""Idle memory is no reason to refuse: not beside a capture, not in a pool, not on another stream."""

import threading

import pytest
from beside import Caller, Gate, on_a_thread
from child import in_child, in_own_process, wrap_host

import accelrt

MIB = 1 << 20
ROOM = {"ACCELRT_HOST_MEMORY": "64MiB"}


def capture_with_scratch(graph, size, **arguments):
    with accelrt.graph(graph, **arguments), accelrt.Buffer(size) as scratch:
        scratch.fill(1)


# --- captures one after the other -------------------------------------------------------------------------


def capture_again_and_again(size, rounds, waits):
    for _ in range(rounds):
        graph = accelrt.CUDAGraph()
        capture_with_scratch(graph, size)
        graph.replay()
        if waits:
            accelrt.synchronize()
        graph.reset()
    accelrt.synchronize()
    accelrt.memory.audit()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@pytest.mark.parametrize("settings", ["", "expandable_segments:False", "stitching:False"])
@pytest.mark.parametrize("waits", [True, False])
def test_memory_of_graphs_that_are_gone_serves_the_next_capture(waits, settings):
    in_child(capture_again_and_again, 10 * MIB, 20, waits, ACCELRT_ALLOC_CONF=settings, **ROOM)
    in_child(capture_again_and_again, 100, 80, waits, ACCELRT_ALLOC_CONF=settings, **ROOM)


def reserve_up_to_a_bound(size, rounds, replays):
    peak, foreign = 0, accelrt.ExternalStream(accelrt.Stream().cuda_stream)
    for _ in range(rounds):
        graph = accelrt.CUDAGraph()
        capture_with_scratch(graph, size)
        if replays:  # on a stream that accelrt may not ask
            with accelrt.stream(foreign):
                graph.replay()
        graph.reset()
        peak = max(peak, accelrt.memory_reserved())
    assert peak <= 160 * MIB + 2 * size  # 128 MiB, and pages that something used when it was tried last
    accelrt.memory.audit()


@pytest.mark.parametrize("settings", ["", "expandable_segments:False", "stitching:False"])
@pytest.mark.parametrize("replays", [True, False])
def test_graphs_that_are_gone_hold_memory_up_to_a_bound(replays, settings):
    in_child(reserve_up_to_a_bound, 40 * MIB, 20, replays, ACCELRT_ALLOC_CONF=settings)
    in_child(reserve_up_to_a_bound, 100, 100, replays, ACCELRT_ALLOC_CONF=settings)


@in_own_process
def test_a_capture_begins_although_what_graphs_left_cannot_go_back():
    faults = wrap_host()
    for row in ("device_synchronize", "memory_unmap", "physical_release"):
        for call in (1, 2, 30):
            for _ in range(70):
                graph = accelrt.CUDAGraph()
                capture_with_scratch(graph, 100)
                graph.reset()
            faults.arm(call, 999, rows=[row])
            capture_with_scratch(graph, 100)
            faults.disarm()
            accelrt.memory.audit()
    graph.reset()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@in_own_process
def test_what_cannot_go_back_is_not_tried_at_each_capture():
    faults, kept = wrap_host(), []
    for _ in range(5):
        with accelrt.graph(accelrt.CUDAGraph()):
            kept.append(accelrt.Buffer(40 * MIB))
            kept[-1].fill(1)
    faults.reset_call_counts()
    for _ in range(20):
        capture_with_scratch(accelrt.CUDAGraph(), 100)
    assert faults.call_counts()["device_synchronize"] <= 1
    kept.clear()
    capture_with_scratch(accelrt.CUDAGraph(), 100)  # what became idle counts with the next 128 MiB
    accelrt.memory.audit()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@in_own_process(**ROOM)
def test_a_stream_is_asked_before_its_own_capture_begins():
    stream = accelrt.Stream()
    with accelrt.stream(stream):
        for _ in range(8):
            graph = accelrt.CUDAGraph()
            capture_with_scratch(graph, 20 * MIB, stream=stream)
            graph.replay()
            stream.synchronize()
            graph.reset()


@in_own_process(**ROOM)
def test_memory_of_a_dead_graph_is_kept_until_its_last_replay_is_past():
    blocked, stream, side = threading.Event(), accelrt.Stream(), accelrt.Stream()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=side):
        scratch = accelrt.Buffer(40 * MIB)
        scratch.fill(1)
    stream.launch_host_func(blocked.wait)
    with accelrt.stream(stream):
        graph.replay()
    scratch.free()
    graph.reset()

    def capture():
        capture_with_scratch(accelrt.CUDAGraph(), 40 * MIB)
        return blocked.is_set()

    caller = Caller(capture).begin()
    caller.is_done(0.2)  # it waits for the replay; where it does not, its answer says so
    blocked.set()
    assert caller.result()
    stream.synchronize()


@in_own_process(**ROOM)
def test_memory_of_a_graph_whose_handle_was_told_is_kept_until_the_device_was_waited_for():
    graph = accelrt.CUDAGraph()
    capture_with_scratch(graph, 40 * MIB)
    graph.raw_cuda_graph_exec()  # by which others may launch it, on whatever stream
    graph.reset()
    with pytest.raises(accelrt.OutOfMemoryError, match="a capture is under way"):
        capture_with_scratch(accelrt.CUDAGraph(), 40 * MIB)
    accelrt.Buffer(40 * MIB).free()  # waits for the device
    capture_with_scratch(accelrt.CUDAGraph(), 40 * MIB)


# --- what was idle before ---------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("settings", ["", "expandable_segments:False"])
@in_own_process(ACCELRT_ALLOC_CONF="{settings}", **ROOM)
def test_idle_memory_of_eager_work_serves_a_capture(settings, waits):
    stream = accelrt.Stream()
    with accelrt.stream(stream):
        buffers = [accelrt.Buffer(10 * MIB) for _ in range(6)]
        for buffer in buffers:
            buffer.fill(1)
        for buffer in buffers:
            buffer.free()
        if waits:
            accelrt.synchronize()
    graph = accelrt.CUDAGraph()
    capture_with_scratch(graph, 20 * MIB, stream=stream)
    graph.replay()
    accelrt.synchronize()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@in_own_process(**ROOM)
def test_idle_memory_of_other_streams_serves_requests_beside_a_capture(mode):
    idle, asks = accelrt.Stream(), accelrt.Stream()
    for buffer in [accelrt.Buffer(18 * MIB, stream=idle) for _ in range(2)]:
        buffer.free()
    target = accelrt.Buffer(64)
    with accelrt.graph(accelrt.CUDAGraph(), capture_error_mode=mode):
        target.fill(1)
        on_a_thread(lambda: accelrt.Buffer(50 * MIB, stream=asks).free())
        target.fill(2)


@in_own_process(**ROOM)
def test_graphed_callables_need_their_memory_once():
    def work(sample):
        buffers = [accelrt.Buffer(10 * MIB) for _ in range(5)]
        for buffer in buffers:
            buffer.fill(1)
        return buffers[0]

    call = accelrt.make_graphed_callables(work, (accelrt.Buffer(64),))
    call(accelrt.Buffer(64))
    accelrt.synchronize()
    assert accelrt.memory_reserved() <= 54 * MIB


# --- pools of the user's ----------------------------------------------------------------------------------


def test_empty_cache_inside_a_pool_gives_its_idle_memory_back():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        live = accelrt.Buffer(MIB)
        accelrt.Buffer(40 * MIB).free()
        accelrt.synchronize()
        held = pool.stats()["reserved_bytes.current"]
    accelrt.empty_cache()
    assert pool.stats()["reserved_bytes.current"] == held, "outside, the pool keeps what is its own"
    with accelrt.use_mem_pool(pool):
        accelrt.empty_cache()
        assert MIB <= pool.stats()["reserved_bytes.current"] < held
    live.free()


@pytest.mark.parametrize("settings", ["", "expandable_segments:False"])
@pytest.mark.parametrize("graph_uses_it", [True, False])
@in_own_process(ACCELRT_ALLOC_CONF="{settings}", **ROOM)
def test_idle_memory_of_pools_serves_whoever_would_run_out(settings, graph_uses_it):
    pool, graph = accelrt.MemPool(), accelrt.CUDAGraph()
    if graph_uses_it:
        capture_with_scratch(graph, 40 * MIB, pool=pool)
    else:
        with accelrt.use_mem_pool(pool):
            accelrt.Buffer(40 * MIB).free()
        accelrt.Buffer(40 * MIB).free()
        return
    with pytest.raises(accelrt.OutOfMemoryError, match=r"40.00 MiB are idle in pools that graphs use"):
        accelrt.Buffer(40 * MIB)


@pytest.mark.parametrize("settings", ["", "expandable_segments:False", "stitching:False"])
@in_own_process(ACCELRT_ALLOC_CONF="{settings}", **ROOM)
def test_a_limit_counts_no_idle_memory_of_its_own_pool(settings):
    pool = accelrt.MemPool(limit=8 * MIB)
    with accelrt.use_mem_pool(pool):
        accelrt.Buffer(6 * MIB).free()
        accelrt.Buffer(8 * MIB).free()
        with pytest.raises(accelrt.OutOfMemoryError):
            accelrt.Buffer(9 * MIB)


def test_a_limit_is_none_that_nothing_could_be_allocated_within():
    with pytest.raises(ValueError, match=r"limit is 100 bytes.*2097152 bytes \(2 MiB\) are the least"):
        accelrt.MemPool(limit=100)
    assert accelrt.MemPool(limit=2 * MIB).limit == 2 * MIB


@pytest.mark.parametrize("limit", [1 << 61, 1 << 63, 1 << 80])
def test_a_limit_may_be_larger_than_any_device(limit):
    with accelrt.use_mem_pool(accelrt.MemPool(limit=limit)), accelrt.Buffer(64) as buffer:
        buffer.fill(1)


# --- parts of pages ---------------------------------------------------------------------------------------


@in_own_process(**ROOM)
def test_more_streams_than_pages_allocate():
    streams = [accelrt.Stream() for _ in range(100)]
    buffers = [accelrt.Buffer(1, stream=stream) for stream in streams]
    assert len({buffer.ptr for buffer in buffers}) == 100
    for value, (buffer, stream) in enumerate(zip(buffers, streams, strict=True)):
        buffer.fill(value, stream=stream)
    accelrt.synchronize()
    read = bytearray(1)
    for value, buffer in enumerate(buffers):
        buffer.copy_to(read)
        assert read[0] == value
    for buffer in buffers:
        buffer.free()
    accelrt.memory.audit()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@in_own_process(**ROOM)
def test_what_is_borrowed_returns_behind_the_work_of_the_borrower():
    streams = [accelrt.Stream() for _ in range(33)]
    buffers = [accelrt.Buffer(1, stream=stream) for stream in streams]
    borrower = streams[-1]
    address = buffers[-1].ptr
    with Gate(borrower):
        buffers[-1].free()  # the borrower may still use it
        others = [accelrt.Buffer(1, stream=stream) for stream in streams[:-1]]
        assert address not in {buffer.ptr for buffer in others}
    borrower.synchronize()
