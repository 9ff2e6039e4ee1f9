"""Requests that are refused: for each state that can be constructed the error names the cause, and its advice, once it
is followed, has the same request served."""

import os
import pickle
import re
import resource
import sys
import threading
from types import SimpleNamespace

import pytest
from child import in_child

import accelrt
from accelrt.driver import registry

pytestmark = [pytest.mark.host, pytest.mark.own_process]
MIB = 1 << 20
DEVICE = 256 * MIB
PLAIN = "expandable_segments:False"
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def refused(size, make=alloc):
    """The error of a request, after what every text has to be."""
    try:
        make(size)
    except accelrt.OutOfMemoryError as error:
        text = str(error)
        print(text)
        lines = text.splitlines()
        assert len(lines) <= 25
        assert "out of memory. Tried to allocate " in lines[0]
        assert all(len(line) < 400 for line in lines)
        assert error.args == (text,)
        return error
    raise AssertionError(f"{size} bytes were served")


def run(state, conf="", *arguments, **environment):
    return in_child(state, *arguments, ACCELRT_HOST_MEMORY=str(DEVICE), ACCELRT_ALLOC_CONF=conf, **environment)


def advised_settings(text):
    return re.search(r"ACCELRT_ALLOC_CONF=(\S*)", text)[1]


def blocks(size, count, stream=None):
    return [alloc(size, stream=stream) for _ in range(count)]


# --- settings that are fixed: the same steps in a process that is started as advised ---------------------------


def cut_up(whole, piece, wanted, advised):
    """The device is allocated in pieces out of whole segments, or pages, and every second piece is free."""
    for address in blocks(whole, DEVICE // whole):
        delete(address)
    for address in blocks(piece, DEVICE // piece)[::2]:
        delete(address)
    if advised:
        alloc(wanted)
        return
    error = refused(wanted)
    assert error.causes[0] == "fragmented"
    assert error.idle >= wanted > error.largest_free


@pytest.mark.parametrize(
    ("conf", "whole", "advice"),
    [
        (PLAIN, 64, "expandable_segments:True"),
        ("max_split_size_mb:100", 64, "expandable_segments:True"),
        ("piece_size_mb:64", 256, "piece_size_mb:2"),
        ("roundup_power2_divisions:4,piece_size_mb:64", 256, "roundup_power2_divisions:4,piece_size_mb:2"),
    ],
)
def test_memory_that_is_cut_up_is_advised_another_kind_of_segments(conf, whole, advice):
    out = run(cut_up, conf, whole * MIB, 32 * MIB, 100 * MIB, False)
    assert "are idle in p" in out
    assert advised_settings(out) == advice
    run(cut_up, advice, whole * MIB, 32 * MIB, 100 * MIB, True)


# --- pending ---------------------------------------------------------------------------------------------------


def pending_on_a_slow_stream():
    """Memory that a callback frees while the allocator tries, which another stream still uses."""
    slow, gate = accelrt.Stream(), threading.Event()
    slow.launch_host_func(gate.wait)
    held = blocks(100 * MIB, 2)

    def free_one(device, nbytes):
        if len(held) == 2:
            accelrt.record_stream(held[0], slow)
            delete(held.pop(0))
        return False

    handle = accelrt.memory.register_free_memory_callback(free_one)
    error = refused(120 * MIB)
    assert error.causes == ("pending",)
    assert f"stream {slow.cuda_stream:#x} (1 event, 100.00 MiB)" in str(error)
    assert error.pending_events[0]["bytes"] == error.pending == 100 * MIB
    assert error.advice == ("wait for that work (synchronize that stream) and try again",)
    handle.remove()
    gate.set()
    slow.synchronize()
    alloc(120 * MIB)


def test_events_that_memory_waits_for_are_named():
    run(pending_on_a_slow_stream, PLAIN)


def pending_in_a_capture():
    (held,) = blocks(200 * MIB, 1)
    graph, main = accelrt.CUDAGraph(), accelrt.default_stream()
    with accelrt.graph(graph, stream=accelrt.Stream()):
        accelrt.record_stream(held, accelrt.current_stream())
        delete(held)
        error = refused(120 * MIB, lambda size: alloc(size, stream=main))
        assert error.causes[0] == "pending"
        assert "captures under way (200.00 MiB)" in str(error)
        assert "end the captures that use it, then try again" in error.advice
    alloc(120 * MIB, stream=main)


def test_memory_that_a_capture_used_waits_for_its_end():
    run(pending_in_a_capture)


# --- captures and pools ----------------------------------------------------------------------------------------


def idle_beside_a_capture(inside):
    """The memory's stream is another library's, which is never queried: only a wait for the device tells."""
    (_, side), main = registry.Rows().stream_create(accelrt.current_device(), 1, 0), accelrt.default_stream()
    (held,) = blocks(200 * MIB, 1, side)
    with accelrt.graph(accelrt.CUDAGraph(), stream=accelrt.Stream()):
        delete(held)
        error = refused(120 * MIB, alloc if inside else lambda size: alloc(size, stream=main))
        assert error.causes == ("capture",)
        assert "200.00 MiB that are idle stay as they are" in str(error)
    if inside:
        accelrt.synchronize()
        accelrt.empty_cache()
        with accelrt.graph(accelrt.CUDAGraph(), stream=accelrt.Stream()):
            alloc(120 * MIB)
    else:
        alloc(120 * MIB, stream=main)


@pytest.mark.parametrize("inside", [True, False], ids=["captured", "beside"])
def test_idle_memory_that_a_capture_keeps_from_others(inside):
    run(idle_beside_a_capture, "", inside)


def held_by_a_graph():
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        accelrt.Buffer(150 * MIB).free()
    error = refused(140 * MIB)
    assert error.causes == ("graph pool",)
    assert f"pool ({graph.pool()[0]}, {graph.pool()[1]}) 150.00 MiB" in str(error)
    assert "CUDAGraph.reset()" in error.advice[0]
    assert any(pool["graphs"] and pool["id"] == graph.pool() for pool in error.by_pool)
    graph.reset()
    alloc(140 * MIB)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
def test_memory_that_a_live_graph_holds(conf):
    run(held_by_a_graph, conf)


def held_by_a_mempool_in_pieces():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        delete(alloc(100 * MIB))
        alloc(40 * MIB)
    alloc(100 * MIB)
    error = refused(58 * MIB)
    assert error.causes == ("mempool",)
    assert error.advice == (
        f"allocate inside use_mem_pool of pool {pool.id}, whose largest free block has 60.00 MiB",
    )
    with accelrt.use_mem_pool(pool):
        alloc(58 * MIB)


def test_a_mempool_whose_free_block_would_do():
    run(held_by_a_mempool_in_pieces, PLAIN)


def held_by_a_mempool_in_pages():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        delete(alloc(64 * MIB))
        small = alloc(MIB)
    alloc(128 * MIB)
    error = refused(100 * MIB)
    assert error.causes == ("mempool",)
    assert error.advice == (f"free the live memory of pool {pool.id} (1.00 MiB): then all of it goes back",)
    delete(small)
    alloc(100 * MIB)


def test_a_mempool_of_which_little_is_live():
    run(held_by_a_mempool_in_pages, "piece_size_mb:64")


def limited_pool():
    pool = accelrt.MemPool(limit=64 * MIB)
    with accelrt.use_mem_pool(pool):
        alloc(40 * MIB)
        error = refused(40 * MIB)
    assert (error.causes, error.refused_by, error.pool) == (("pool limit",), "pool", pool.id)
    assert f"pool {pool.id} has a limit of 64.00 MiB, of which 40.00 MiB are reserved" in str(error)
    assert "leave use_mem_pool for this request" in error.advice[1]
    alloc(40 * MIB)
    larger = accelrt.MemPool(limit=int(re.search(r"limit=(\d+)", error.advice[0])[1]))
    with accelrt.use_mem_pool(larger):
        blocks(40 * MIB, 2)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
def test_the_limit_of_a_mempool(conf):
    run(limited_pool, conf)


# --- limits, sizes, others -------------------------------------------------------------------------------------


def limited_process():
    accelrt.set_per_process_memory_fraction(0.5)
    alloc(100 * MIB)
    error = refused(60 * MIB)
    assert (error.causes, error.refused_by, error.limit) == (("limit",), "limit", 128 * MIB)
    call = re.search(r"accelrt\.(set_per_process_memory_fraction)\(([\d.]+), (\d)\)", error.advice[0])
    accelrt.set_per_process_memory_fraction(float(call[2]), int(call[3]))
    alloc(60 * MIB)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
def test_the_limit_of_the_process(conf):
    run(limited_process, conf)


def rounded_up():
    alloc(96 * MIB)
    error = refused(130 * MIB)
    assert error.causes[0] == "rounding"
    assert (error.requested, error.rounded) == (130 * MIB, 192 * MIB)
    setting = re.search(r"set_allocator_settings\('(.*)'\)", error.advice[0])[1]
    accelrt.memory.set_allocator_settings(setting)
    alloc(130 * MIB)


def test_rounding_that_is_too_much():
    run(rounded_up, "roundup_power2_divisions:2")


def larger_than_the_device():
    for size in (DEVICE + MIB, 1 << 60, 1 << 70):
        error = refused(size)
        assert error.causes == ("huge",)
        assert error.advice[0].startswith("ask for less: 256.00 MiB would be served now")
    alloc(DEVICE)


def test_a_request_that_no_freeing_could_serve():
    run(larger_than_the_device)


def used_by_others(listed):
    """Other users are stood in for by memory that this process takes of the driver itself, and NVML by a function."""
    from accelrt.memory import caching

    rows = registry.Rows()
    alloc(2 * MIB)
    code, address = rows.memory_alloc(0, 150 * MIB)
    assert code == 0
    if listed:
        other = SimpleNamespace(pid=4242, memory=150 * MIB)
        caching.ask_processes(lambda ordinal: [other, SimpleNamespace(pid=os.getpid(), memory=2 * MIB)])
    error = refused(120 * MIB)
    assert error.causes == ("others",)
    assert error.used_by_others == 150 * MIB
    assert "150.00 MiB of the device are used by others than accelrt" in str(error)
    assert ("process 4242 150.00 MiB" in str(error)) == listed
    assert rows.memory_free(0, address) == 0
    alloc(120 * MIB)


@pytest.mark.parametrize("listed", [True, False], ids=["another process", "another library"])
def test_what_others_use_of_the_device(listed):
    run(used_by_others, "", listed)


def everything_live():
    held = blocks(40 * MIB, 6)
    error = refused(40 * MIB)
    assert error.causes == ("live",)
    assert error.advice[0] == "free 24.00 MiB of live memory, or ask for 16.00 MiB at most"
    alloc(16 * MIB)
    delete(held.pop())
    alloc(40 * MIB)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
def test_memory_that_is_live(conf):
    run(everything_live, conf)


def backend_that_refuses():
    taken = []

    def take(size, device, stream):
        if sum(taken) + size > 64 * MIB:
            raise MemoryError("the pool has 64 MiB")
        taken.append(size)
        return numpy_address(size)

    def numpy_address(size):
        memory = bytearray(4096)
        kept.append(memory)
        return 0x1000000 * (1 + len(taken))

    kept = []
    backend = accelrt.memory.CallbackAllocator(take, lambda address, size, device, stream: taken.remove(size))
    accelrt.memory.change_current_allocator(backend)
    first = alloc(40 * MIB)
    error = refused(40 * MIB)
    assert error.causes == ("backend",)
    assert "which refused" in str(error)
    assert str(error.__cause__) == "the pool has 64 MiB"
    assert error.advice[0].startswith("free live memory (40.00 MiB)")
    delete(first)
    delete(alloc(40 * MIB))


def test_a_backend_that_refuses():
    run(backend_that_refuses)


def asleep():
    """Sleeping memory is stood in for by its figure."""
    from accelrt.memory import refusal

    refusal.sleeping_bytes = lambda ordinal: 64 * MIB
    held = blocks(120 * MIB, 2)
    error = refused(40 * MIB)
    assert error.causes == ("sleeping", "live")
    assert error.sleeping == 64 * MIB
    assert "64.00 MiB are asleep" in str(error)
    delete(held.pop())
    alloc(40 * MIB)


def test_memory_that_is_asleep_is_told():
    run(asleep)


def page_locked():
    held = []
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))
    try:
        while True:
            held.append(accelrt.PinnedBuffer(256 * MIB))
    except accelrt.OutOfMemoryError as error:
        text = str(error)
    assert text.startswith("Host out of memory. Tried to allocate 256.00 MiB of page-locked memory")
    assert "limited to 4294967296 bytes of addresses (ulimit -v)" in text
    assert "drop page-locked buffers that are not needed, then accelrt.host_empty_cache()" in text
    del held[-1]
    accelrt.host_empty_cache()
    accelrt.PinnedBuffer(256 * MIB)


def test_page_locked_memory_that_the_host_does_not_give():
    run(page_locked)


# --- what must not fail ----------------------------------------------------------------------------------------


def broken_explanation():
    from accelrt.memory import refusal

    told = []
    refusal.causes_of = lambda facts: 1 / 0
    accelrt.memory.attach_out_of_memory_observer(lambda *figures: told.append(figures))
    error = refused(DEVICE + MIB)
    assert str(error).endswith("The rest could not be read (ZeroDivisionError: division by zero)")
    assert told == [(0, DEVICE + MIB, DEVICE, DEVICE)]
    refusal.explained_pinned = None
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        accelrt.PinnedBuffer(4 << 30)
    except accelrt.OutOfMemoryError as error:
        assert "ulimit -v" in str(error)
        assert "TypeError" in str(error)
    sys.modules["accelrt.memory.refusal"] = None
    from accelrt.runtime import init

    init._imported.clear()
    assert "(ModuleNotFoundError: " in str(refused(DEVICE + MIB))


def test_an_error_while_explaining_hides_nothing():
    run(broken_explanation)


def pickled():
    alloc(40 * MIB)
    error = refused(DEVICE)
    again = pickle.loads(pickle.dumps(error))
    assert (vars(again), str(again)) == (vars(error), str(error))
    for name in ("state", "by_pool", "by_stream", "settings"):
        assert getattr(error, name) is not None, name


def test_the_error_goes_to_other_processes():
    run(pickled)
