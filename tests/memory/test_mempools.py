"""Memory pools: whose allocations they take, what they count, where they refuse, and what they leave."""

import gc
import random
import warnings

import pytest
from beside import Gate, on_a_thread, on_threads
from child import in_own_process

import accelrt

MIB = 1 << 20
NOWHERE = (0, 0)
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def pool_of(address):
    """The id of the pool that an address lies in."""
    for segment in accelrt.memory_snapshot():
        if segment["address"] <= address < segment["address"] + segment["total_size"]:
            return tuple(segment["segment_pool_id"])
    raise AssertionError(f"{address:#x} is in no segment")


def where():
    """The id of the pool that this thread allocates from now."""
    address = alloc(4096)
    try:
        return pool_of(address)
    finally:
        delete(address)


def test_memory_allocated_inside_is_the_pools_and_outlives_the_context_and_the_object():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        kept = accelrt.Buffer(3 * MIB)
        assert where() == pool.id
    assert where() == NOWHERE
    assert pool_of(kept.ptr) == pool.id
    assert {segment["segment_pool_id"] for segment in pool.snapshot()} == {pool.id}
    pool_id = pool.id
    del pool
    accelrt.empty_cache()
    kept.fill(7)
    assert pool_of(kept.ptr) == pool_id
    assert accelrt.memory_allocated() == 3 * MIB
    del kept
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_idle_memory_of_a_pool_in_use_stays_and_serves_it_again():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        first = alloc(MIB)
        delete(first)
        accelrt.empty_cache()
        assert alloc(MIB) == first
        delete(first)
    accelrt.empty_cache()
    assert pool.stats()["reserved_bytes.current"] == accelrt.memory_reserved() > 0


def test_the_innermost_context_counts_also_after_an_exception():
    outer, inner = accelrt.MemPool(), accelrt.MemPool()
    with accelrt.use_mem_pool(outer):
        with pytest.raises(KeyError), accelrt.use_mem_pool(inner):
            with accelrt.use_mem_pool(outer):
                assert where() == outer.id
            assert where() == inner.id
            raise KeyError
        assert where() == outer.id
        assert (outer.use_count(), inner.use_count()) == (2, 1)
    assert where() == NOWHERE
    assert (outer.use_count(), inner.use_count()) == (1, 1)


def test_contexts_that_end_in_another_order_end_themselves():
    one, other = accelrt.MemPool(), accelrt.MemPool()
    first, second = accelrt.use_mem_pool(one), accelrt.use_mem_pool(other)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert where() == other.id
    second.__exit__(None, None, None)
    assert where() == NOWHERE


def test_a_context_serves_one_thread_at_a_time():
    pool = accelrt.MemPool()
    context = accelrt.use_mem_pool(pool)
    context.__enter__()
    with pytest.raises(RuntimeError, match="entered already"):
        context.__enter__()
    with pytest.raises(RuntimeError, match="another thread"):
        on_a_thread(lambda: context.__exit__(None, None, None))
    assert where() == NOWHERE
    with pytest.raises(RuntimeError, match="was left already"):
        context.__exit__(None, None, None)
    assert pool.use_count() == 1


def test_a_context_that_is_dropped_ends():
    pool = accelrt.MemPool()
    context = accelrt.use_mem_pool(pool)
    context.__enter__()
    assert pool.use_count() == 2
    del context
    gc.collect()
    assert pool.use_count() == 1
    assert where() == NOWHERE


def test_each_device_has_its_own_part():
    if accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    pool = accelrt.MemPool(limit=4 * MIB)
    with accelrt.use_mem_pool(pool, 1):
        there = alloc(4096, 1)
        assert where() == NOWHERE
        with pytest.raises(accelrt.OutOfMemoryError, match=r"has a limit of 4\.00 MiB"):
            alloc(8 * MIB, 1)
    assert pool.stats(1)["allocated_bytes.current"] == 4096
    assert pool.stats()["allocated_bytes.current"] == 0
    delete(there)


def test_figures_are_exact():
    pool, stream = accelrt.MemPool(), accelrt.Stream()
    with accelrt.use_mem_pool(pool):
        one, two = alloc(1000), alloc(5 * MIB, stream=stream)
        delete(one)
    outside = alloc(4096)
    stats = pool.stats()
    assert stats["allocation.current"] == 1
    assert stats["allocation.peak"] == 2
    assert stats["requested_bytes.current"] == stats["allocated_bytes.current"] == 5 * MIB
    assert stats["allocated_bytes.peak"] == 5 * MIB + 1024
    assert stats["reserved_bytes.current"] == sum(segment["total_size"] for segment in pool.snapshot())
    assert stats["reserved_bytes.peak"] == stats["reserved_bytes.current"]
    other = accelrt.Stream()
    with Gate(other):
        accelrt.record_stream(two, other)
        delete(two)
        stats = pool.stats()
        assert (stats["allocated_bytes.current"], stats["active_bytes.current"]) == (0, 5 * MIB)
    other.synchronize()
    pool.reset_peak_stats()
    accelrt.empty_cache()
    assert pool.stats()["active.peak"] == 1
    assert pool.stats()["active.current"] == 0
    delete(outside)


def test_the_limit_refuses_names_itself_and_leaves_the_device_usable():
    pool = accelrt.MemPool(limit=24 * MIB)
    kept = alloc(4 * MIB)
    with accelrt.use_mem_pool(pool):
        inside = alloc(4 * MIB)
        with pytest.raises(accelrt.OutOfMemoryError, match=r"pool \(0, \d+\) has a limit of 24.00 MiB"):
            alloc(40 * MIB)
        again = alloc(2 * MIB)
        assert pool_of(again) == pool.id
    big = alloc(40 * MIB)
    assert pool_of(big) == NOWHERE
    assert pool.stats()["reserved_bytes.peak"] <= 24 * MIB
    for address in (kept, inside, again, big):
        delete(address)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", True])
def test_limits_that_are_none_are_refused(wrong):
    with pytest.raises((ValueError, TypeError), match="limit"):
        accelrt.MemPool(limit=wrong)
    with pytest.raises(TypeError, match="MemPool"):
        accelrt.use_mem_pool(wrong)


@pytest.mark.parametrize("by_id", [True, False])
def test_a_capture_allocates_from_a_pool(by_id):
    pool, graph = accelrt.MemPool(), accelrt.CUDAGraph()
    with accelrt.graph(graph, pool=pool.id if by_id else pool), accelrt.Buffer(4096) as buffer:
        buffer.fill(1)
        assert pool_of(buffer.ptr) == pool.id
    assert graph.pool() == pool.id
    assert pool.use_count() == 2
    del pool
    accelrt.empty_cache()
    graph.replay()
    accelrt.synchronize()
    assert accelrt.memory_reserved() > 0
    graph.reset()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


def test_of_a_capture_and_a_context_the_innermost_counts():
    pool, graph = accelrt.MemPool(), accelrt.CUDAGraph()
    with accelrt.Buffer(512) as target, accelrt.use_mem_pool(pool):
        with accelrt.graph(graph):
            target.fill(1)
            assert where() == graph.pool()
            with accelrt.use_mem_pool(pool):
                assert where() == pool.id
            assert where() == graph.pool()
        assert where() == pool.id


def test_threads_nest_pools_of_their_own():
    shared = accelrt.MemPool()

    def work(seed):
        rng, own = random.Random(seed), accelrt.MemPool()
        live, stack, contexts = [], [NOWHERE], []
        for _ in range(120):
            step = rng.random()
            if step < 0.2 and len(contexts) < 4:
                pool = rng.choice([shared, own])
                contexts.append(accelrt.use_mem_pool(pool))
                contexts[-1].__enter__()
                stack.append(pool.id)
            elif step < 0.4 and contexts:
                contexts.pop().__exit__(None, None, None)
                stack.pop()
            elif step < 0.7:
                live.append(alloc(rng.choice([512, 5000, MIB, 3 * MIB])))
                assert pool_of(live[-1]) == stack[-1], seed
            elif live:
                delete(live.pop(rng.randrange(len(live))))
        for context in reversed(contexts):
            context.__exit__(None, None, None)
        for address in live:
            delete(address)

    on_threads(work, range(4))
    assert shared.use_count() == 1
    assert shared.stats()["active.current"] == 0


def test_graphs_that_come_and_go_leave_nothing():
    for index in range(200):
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph), accelrt.Buffer(4096 if index % 3 else 3 * MIB) as buffer:
            buffer.fill(1)
        graph.replay()
        del graph
        if index % 50 == 49:
            accelrt.empty_cache()
            assert accelrt.memory_reserved() == 0


@in_own_process(ACCELRT_HOST_MEMORY="64MiB", ACCELRT_ALLOC_CONF="stitching:True")
def test_pages_of_a_pool_that_nothing_uses_serve_others_after_the_device_was_waited_for():
    free = accelrt.mem_get_info()[0]
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        blocks = [alloc(2 * MIB) for _ in range(free // (2 * MIB))]
    for address in blocks[::2]:
        delete(address)
    graph = accelrt.CUDAGraph()
    with warnings.catch_warnings(action="ignore"), accelrt.graph(graph, pool=pool):
        pass
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(8 * MIB)
    assert pool.stats()["reserved_bytes.current"] == free // (2 * MIB) * (2 * MIB), "a graph uses the pool"
    del graph, pool
    calls = accelrt.memory_stats()["num_device_alloc"]
    address = alloc(8 * MIB)
    assert accelrt.memory_stats()["num_device_alloc"] == calls, "pages that were there serve"
    for live in (address, *blocks[1::2]):
        delete(live)
    accelrt.memory.audit()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0


@pytest.mark.parametrize("no_split", [False, True])
def test_a_live_pools_idle_memory_goes_back_by_hand(no_split):
    pool, other = accelrt.MemPool(no_split=no_split), accelrt.MemPool()
    for each in (pool, other):
        with accelrt.use_mem_pool(each):
            kept = accelrt.Buffer(32 << 20)
            accelrt.Buffer(48 << 20).record_stream(accelrt.Stream())
            if each is other:
                kept.free()
            else:
                live = kept
    common = accelrt.Buffer(64 << 20)
    common.free()
    reserved = accelrt.memory_reserved()
    assert pool.stats()["reserved_bytes.current"] >= 80 << 20
    pool.empty_cache()
    assert pool.stats()["reserved_bytes.current"] == 32 << 20
    assert accelrt.memory_reserved() == reserved - (48 << 20)
    pool.empty_cache(device=0)
    live.free()
    pool.empty_cache()
    assert pool.stats()["reserved_bytes.current"] == 0
    assert accelrt.memory_reserved() == reserved - (80 << 20)


def empty_inside(pool):
    with accelrt.use_mem_pool(pool):
        accelrt.empty_cache()


@pytest.mark.parametrize("empty", [accelrt.MemPool.empty_cache, empty_inside])
def test_memory_of_a_pool_that_a_graph_uses_is_not_given_back(empty):
    pool, graph = accelrt.MemPool(), accelrt.CUDAGraph()
    with accelrt.graph(graph, pool=pool):
        accelrt.Buffer(1000).fill(1)
    reserved = pool.stats()["reserved_bytes.current"]
    empty(pool)
    assert pool.stats()["reserved_bytes.current"] == reserved > 0
    del graph
    gc.collect()
    empty(pool)
    assert pool.stats()["reserved_bytes.current"] == 0
