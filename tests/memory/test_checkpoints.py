"""Checkpoints: a pool goes back to a state block for block, or says why it cannot and stays as it is."""

import random
import threading

import pytest
from beside import Caller
from child import in_child

import accelrt
from accelrt import memory

MIB = 1 << 20
SIZES = (512, 4096, 300_000, MIB, 2 * MIB, 3 * MIB, 7 * MIB)
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def blocks_of(pool):
    """{address: (size, requested, state)} of a pool's blocks."""
    return {
        block["address"]: (block["size"], block["requested_size"], block["state"])
        for segment in pool.snapshot()
        for block in segment["blocks"]
    }


def live_in(pool):
    return {address: block for address, block in blocks_of(pool).items() if block[2] == "active_allocated"}


def churn(rng, live, streams, steps):
    for _ in range(steps):
        if live and rng.random() < 0.45:
            delete(live.pop(rng.randrange(len(live))))
        else:
            live.append(alloc(rng.choice(SIZES), stream=rng.choice(streams)))


def compare_after_random_work(seed):
    rng, pool = random.Random(seed), accelrt.MemPool()
    streams, live = [accelrt.default_stream(), accelrt.Stream()], []
    with accelrt.use_mem_pool(pool):
        churn(rng, live, streams, 60)
        state, before, held = memory.get_checkpoint_state(pool.id), blocks_of(pool), set(live)
        figures, reserved = pool.stats(), pool.stats()["reserved_bytes.current"]
        assert set(state.live_addresses) == held
        for _ in range(3):
            churn(rng, live, streams, rng.choice([5, 60]))
            restored = memory.set_checkpoint_state(state)
            memory.audit()
            assert set(restored.freed) <= set(live)
            assert set(restored.became_live) <= held
            assert set(live) - set(restored.freed) | set(restored.became_live) == held
            assert memory.check_pool_live_allocations(pool.id, held)
            assert live_in(pool) == {key: block for key, block in before.items() if block[2] != "inactive"}
            for name in ("allocation", "active_bytes", "requested_bytes"):
                assert pool.stats()[f"{name}.current"] == figures[f"{name}.current"]
            if pool.stats()["reserved_bytes.current"] == reserved:
                assert blocks_of(pool) == before
            live[:] = sorted(held)
        again = memory.get_checkpoint_state(pool)
        assert again.live_addresses == state.live_addresses
    for address in live:
        delete(address)


@pytest.mark.parametrize("seed", range(12))
def test_a_restore_equals_the_checkpoint(seed):
    compare_after_random_work(seed)


def test_a_restore_equals_the_checkpoint_with_plain_segments():
    for seed in range(6):
        in_child(compare_after_random_work, seed, ACCELRT_ALLOC_CONF="expandable_segments:False")


def test_pages_go_back_to_the_windows_that_they_were_in():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        apart = [alloc(2 * MIB) for _ in range(8)]
        for address in apart[::2]:
            delete(address)
        window = alloc(8 * MIB)
        assert accelrt.memory_stats()["stitched_bytes"] > 0
        state, before = memory.get_checkpoint_state(pool.id), blocks_of(pool)
        delete(window)
        home = [alloc(2 * MIB) for _ in range(4)]
        assert set(home) == set(apart[::2])
        restored = memory.set_checkpoint_state(state)
    assert restored.became_live == [window]
    assert set(restored.freed) == set(home)
    assert blocks_of(pool) == before
    for address in (window, *apart[1::2]):
        delete(address)


def test_blocks_that_became_live_are_freed_one_by_one():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        addresses = [alloc(size) for size in SIZES]
    state = memory.get_checkpoint_state(pool.id)
    for address in addresses:
        delete(address)
    assert memory.check_pool_live_allocations(pool.id, [])
    assert set(memory.set_checkpoint_state(state).became_live) == set(addresses)
    for left in range(len(addresses)):
        assert memory.check_pool_live_allocations(pool.id, addresses[left:])
        delete(addresses[left])
    assert not memory.check_pool_live_allocations(pool.id, addresses)


def test_a_state_can_be_looked_at():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        address = alloc(3 * MIB)
    state = memory.get_checkpoint_state(pool.id)
    assert (state.device, state.pool_id, state.live_addresses) == (0, pool.id, [address])
    assert f"pool {pool.id}" in repr(state)
    assert state.segments[0]["blocks"][0] == {
        "address": address,
        "size": 3 * MIB,
        "requested_size": 3 * MIB,
        "state": "active_allocated",
    }
    delete(address)


def test_a_pool_whose_memory_went_back_is_refused():
    graph = accelrt.CUDAGraph()
    pool = accelrt.graph_pool_handle()
    with accelrt.graph(graph, pool=pool), accelrt.Buffer(4096) as buffer:
        buffer.fill(1)
    state = memory.get_checkpoint_state(pool)
    del graph
    accelrt.empty_cache()
    with pytest.raises(ValueError, match="no memory pool"):
        memory.set_checkpoint_state(state)
    with pytest.raises(ValueError, match="no memory pool"):
        memory.check_pool_live_allocations(pool, [])
    again = accelrt.CUDAGraph()
    with accelrt.graph(again, pool=pool), accelrt.Buffer(4096) as buffer:
        buffer.fill(1)
    with pytest.raises(RuntimeError, match="went back"):
        memory.set_checkpoint_state(state)


def test_blocks_that_wait_for_other_streams_are_refused():
    pool, stream, gate = accelrt.MemPool(), accelrt.Stream(), threading.Event()
    with accelrt.use_mem_pool(pool):
        address, used = alloc(4096), alloc(4096)
    state = memory.get_checkpoint_state(pool.id)
    stream.launch_host_func(gate.wait)
    accelrt.record_stream(address, stream)
    delete(address)
    for call in (lambda: memory.get_checkpoint_state(pool.id), lambda: memory.set_checkpoint_state(state)):
        with pytest.raises(RuntimeError, match="other streams"):
            call()
    gate.set()
    stream.synchronize()
    with accelrt.use_mem_pool(pool):
        other = alloc(MIB)
    accelrt.record_stream(other, stream)
    with pytest.raises(RuntimeError, match="recorded on other streams"):
        memory.set_checkpoint_state(state)
    delete(other)
    stream.synchronize()
    accelrt.record_stream(used, stream)
    assert memory.set_checkpoint_state(state).became_live == [address]
    delete(address)
    delete(used)


def test_a_pool_that_another_thread_captures_into_is_refused():
    pool, graph = accelrt.MemPool(), accelrt.CUDAGraph()
    inside, done = threading.Event(), threading.Event()

    def capture():
        with accelrt.graph(graph, pool=pool, capture_error_mode="relaxed"), accelrt.Buffer(512) as buffer:
            buffer.fill(1)
            inside.set()
            done.wait()

    state = memory.get_checkpoint_state(pool.id)
    caller = Caller(capture).begin()
    inside.wait()
    with pytest.raises(RuntimeError, match="a capture allocates"):
        memory.set_checkpoint_state(state)
    done.set()
    caller.result()
    assert memory.set_checkpoint_state(state).freed == []


def test_things_that_name_no_pool_or_state_are_refused():
    with pytest.raises(ValueError, match="no memory pool"):
        memory.get_checkpoint_state((1 << 40, 7))
    for wrong in (None, 5, (1,), (-1, 0)):
        with pytest.raises(TypeError):
            memory.get_checkpoint_state(wrong)
        with pytest.raises(TypeError):
            memory.set_checkpoint_state(wrong)


def test_torchs_order_of_arguments_is_taken():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(1000)
    for given in ((pool,), (pool.id, 0), (0, pool.id), (0, pool), ("cuda:0", pool.id)):
        state = memory.get_checkpoint_state(*given)
        assert (state.pool_id, state.device, state.live_addresses) == (pool.id, 0, [buffer.ptr])
    for given in ((pool, [buffer.ptr]), (pool.id, {buffer.ptr}, 0), (0, pool.id, {buffer.ptr})):
        assert memory.check_pool_live_allocations(*given)
    assert not memory.check_pool_live_allocations(0, pool, ())
