"""Sleep and wake of what torch holds in accelrt: each scenario in a process of its own, which
tests/interop/test_torch_sleep.py starts.

    python torch_sleep.py gpu|standin NAME
"""

import gc
import sys

from torch_setting import Scenarios, holds, numbers, refused

SCENARIOS = scenario = Scenarios()
MIB = 1 << 20


def captured(torch, source, pool=None):
    """A graph that copies source, and its output."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = torch.empty_like(source).copy_(source, non_blocking=True)
    return graph, output


@scenario
def everything_sleeps_and_wakes_at_its_addresses(interop, torch):
    import accelrt

    interop.install(sleepable=True)
    weights = numbers(torch, 4 * MIB).cuda()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        cache = numbers(torch, 2 * MIB, 5).cuda()
    graph, output = captured(torch, weights)
    graph.replay()
    torch.cuda.synchronize()
    assert holds(output, numbers(torch, 4 * MIB))
    assert torch.cuda.memory_snapshot()
    addresses = [each.data_ptr() for each in (weights, cache, output)]
    reserved = accelrt.memory.memory_reserved(0)
    report = interop.sleep()
    assert len(report.pools) == 3, str(report)
    assert report.bytes == reserved, str(report)
    assert report.copied >= 4 * (4 + 2 + 4) * MIB
    assert accelrt.memory.memory_reserved(0) == 0
    assert (0, 0) in [each.pool for each in report.pools]
    text = str(report)
    assert "torch's default memory" in text
    assert "contexts, modules, executables of graphs, communicators" in text
    again = interop.sleep()
    assert again.bytes == 0
    assert again.pools == ()
    report = interop.wake()
    assert report.call == "wake"
    assert report.bytes == reserved
    assert [each.data_ptr() for each in (weights, cache, output)] == addresses
    assert holds(weights, numbers(torch, 4 * MIB))
    assert holds(cache, numbers(torch, 2 * MIB, 5))
    weights.copy_(numbers(torch, 4 * MIB, 9))
    graph.replay()
    torch.cuda.synchronize()
    assert holds(output, numbers(torch, 4 * MIB, 9))
    accelrt.memory.audit()
    del graph, output, weights, cache, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert accelrt.memory.memory_reserved(0) == 0
    accelrt.memory.audit()


@scenario
def what_is_named_is_kept_and_the_rest_is_let_go(interop, torch):
    import accelrt

    interop.install()
    with accelrt.memory.sleepable("weights"):
        weights = numbers(torch, 3 * MIB).cuda()
    with accelrt.memory.sleepable("cache"):
        cache = torch.zeros(3 * MIB, dtype=torch.uint8).cuda()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        other = numbers(torch, MIB, 3).cuda()
    outside = numbers(torch, 1000).cuda()
    report = interop.sleep(keep=["weights", pool])
    assert report.copied >= 4 * 4 * MIB
    copied = {each.pool: each.copied for each in report.pools}
    assert copied[pool.id] >= 4 * MIB
    assert sorted(each.copied > 0 for each in report.pools) == [False, True, True]
    assert ("weights",) in [each.tags for each in report.pools]
    stays = [each for each in report.staying if each.what == "accelrt's common memory"]
    assert stays[0].bytes >= 4000, str(report)
    assert holds(outside, numbers(torch, 1000))
    report = interop.wake(["weights"])
    assert len(report.pools) == 1
    assert holds(weights, numbers(torch, 3 * MIB))
    assert pool.is_asleep()
    assert "asleep" not in str(report).split("still holds")[0]
    interop.wake()
    assert holds(other, numbers(torch, MIB, 3))
    interop.sleep("discard", pools=[pool])
    assert pool.is_asleep()
    interop.wake([pool])
    with refused(ValueError, "keep is 'weights'; it may be 'host', 'discard', or a list"):
        interop.sleep("weights")
    with refused(ValueError, "the tag 'nothing'"):
        interop.sleep(pools=["nothing"])
    with refused(accelrt.NotSupportedError, "torch's default memory", "install(sleepable=True)"):
        interop.sleep(pools=[(0, 0)])
    del weights, cache, other, outside, pool
    accelrt.memory.audit()


@scenario
def torch_allocates_while_its_memory_sleeps(interop, torch):
    import accelrt

    interop.install(sleepable=True)
    kept = numbers(torch, MIB).cuda()
    interop.sleep()
    during = numbers(torch, 1000, 7).cuda()
    assert holds(during, numbers(torch, 1000, 7))
    gone = numbers(torch, 1000).cuda()
    del gone
    torch.cuda.empty_cache()
    interop.wake()
    assert holds(kept, numbers(torch, MIB))
    assert holds(during, numbers(torch, 1000, 7))
    segments = torch.cuda.memory_snapshot()
    assert {each["segment_pool_id"] for each in segments} == {(0, 0)}
    interop.sleep()
    del kept
    interop.wake()
    del during
    torch.cuda.empty_cache()
    assert accelrt.memory.memory_reserved(0) == 0
    accelrt.memory.audit()


@scenario
def captures_and_pools_pass_by_the_default_memory(interop, torch):
    import accelrt

    interop.install(sleepable=True)
    first = numbers(torch, 1000).cuda()
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    graph, output = captured(torch, first)
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(side):
        inside = torch.empty(1000, device="cuda")
    with torch.cuda.stream(side):
        beside = torch.empty(1000, device="cuda")
    ids = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            ids[block["address"]] = segment["segment_pool_id"]
    assert ids[first.data_ptr()] == ids[beside.data_ptr()] == (0, 0)
    assert ids[inside.data_ptr()] == pool.id
    assert ids[output.data_ptr()] not in ((0, 0), pool.id)
    interop.sleep(pools=[(0, 0)])
    assert not pool.is_asleep()
    interop.wake([(0, 0)])
    interop.sleep(pools=[graph.pool()])
    interop.wake()
    graph.replay()
    torch.cuda.synchronize()
    assert holds(output, numbers(torch, 1000))
    del first, inside, beside, graph, output
    accelrt.memory.audit()


@scenario
def graph_trees_sleep(interop, torch):
    interop.install(sleepable=True)
    import torch._dynamo

    def copy(source):
        return source.clone().clone()

    compiled = torch.compile(copy, backend="cudagraphs", dynamic=False)
    source = numbers(torch, 1000).cuda()
    for step in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        answer = compiled(source)
        assert answer.shape == source.shape
        del answer
        if step in (4, 6):
            torch.cuda.synchronize()
            report = interop.sleep()
            assert len(report.pools) >= 2, str(report)
            interop.wake()
            assert holds(source, numbers(torch, 1000))
    torch.cuda.synchronize()
    import accelrt

    accelrt.memory.audit()


@scenario
def a_refusal_in_the_middle_says_what_sleeps(interop, torch):
    import accelrt
    from accelrt.memory import mempool

    interop.install()
    pools = [torch.cuda.MemPool() for _ in range(3)]
    tensors = []
    for number, pool in enumerate(pools):
        with torch.cuda.use_mem_pool(pool):
            tensors.append(numbers(torch, MIB, number).cuda())
    real, calls = mempool.sleep, []

    def sleep(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise accelrt.OutOfMemoryError("no page-locked memory")
        return real(*arguments, **named)

    mempool.sleep = sleep
    try:
        interop.sleep()
    except accelrt.OutOfMemoryError as error:
        notes = "".join(error.__notes__)
    finally:
        mempool.sleep = real
    assert "it moved pool (" in notes, notes
    assert "wake() wakes whatever sleeps now" in notes
    assert sum(pool.is_asleep() for pool in pools) == 1
    assert len(interop.sleep().pools) == 2
    assert all(pool.is_asleep() for pool in pools)
    assert len(interop.wake().pools) == 3
    for number, tensor in enumerate(tensors):
        assert holds(tensor, numbers(torch, MIB, number))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with refused(RuntimeError, "a capture is under way"):
            interop.sleep()
        kept = torch.empty_like(tensors[0]).copy_(tensors[0], non_blocking=True)
    assert kept.numel() == MIB
    assert len(interop.sleep().pools) >= 3
    interop.wake()


@scenario
def what_cannot_sleep_is_named(interop, torch):
    import accelrt

    interop.install(sleepable=True)
    plain = accelrt.MemPool(no_split=True)
    with accelrt.use_mem_pool(plain):
        buffer = accelrt.Buffer(MIB)
    kept = numbers(torch, MIB).cuda()
    report = interop.sleep()
    named = [each for each in report.staying if "cannot sleep" in each.reason]
    assert len(named) == 1, str(report)
    assert named[0].bytes >= MIB
    assert not plain.is_asleep()
    interop.wake()
    assert holds(kept, numbers(torch, MIB))
    del buffer


@scenario
def pools_that_others_move_or_end_meanwhile_are_passed_by(interop, torch):
    from accelrt.memory import mempool

    interop.install()
    pools = [torch.cuda.MemPool() for _ in range(3)]
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(MIB, device="cuda")
    kept = []
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(MIB, device="cuda"))
    reals = mempool.sleep, mempool.wake

    def sleep(*arguments, **named):
        mempool.sleep = reals[0]
        pools.pop().sleep()
        pools.pop()
        gc.collect()
        return reals[0](*arguments, **named)

    def wake(*arguments, **named):
        mempool.wake = reals[1]
        interop.wake()
        return reals[1](*arguments, **named)

    mempool.sleep, mempool.wake = sleep, wake
    held = pools[0]
    try:
        assert len(interop.sleep().pools) == 1
        assert held.is_asleep()
        assert interop.wake().pools == ()
    finally:
        mempool.sleep, mempool.wake = reals
    assert not held.is_asleep()
    del kept


@scenario
def threads_allocate_while_it_sleeps_and_wakes(interop, torch):
    import threading

    import accelrt

    interop.install(sleepable=True)
    kept = numbers(torch, MIB).cuda()
    ends, failures, counts = threading.Event(), [], [0, 0, 0]
    streams = [torch.cuda.Stream() for _ in counts]  # here: the stand-in makes them under a lock

    def work(number):
        held = []
        try:
            with torch.cuda.stream(streams[number]):
                while not ends.is_set():
                    held.append(torch.empty(100_000 * (1 + len(held)), device="cuda"))
                    if len(held) > 6:
                        held.pop(0)
                        held.pop()
                    counts[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        interop.sleep()
        interop.wake()
    ends.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert min(counts) > 0
    assert holds(kept, numbers(torch, MIB))
    del kept
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert accelrt.memory.memory_reserved(0) == 0
    accelrt.memory.audit()


@scenario
def a_wake_that_finds_no_room_can_be_tried_again(interop, torch):
    import accelrt

    interop.install(sleepable=True)
    kept = numbers(torch, 8 * MIB).cuda()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        small = numbers(torch, 1000, 3).cuda()
    interop.sleep()
    total = accelrt.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4 * MIB / total)
    try:
        interop.wake()
    except accelrt.OutOfMemoryError as error:
        notes = "".join(error.__notes__)
    assert "accelrt.interop.torch.wake() ended at torch's default memory" in notes, notes
    interop.wake([pool])
    assert holds(small, numbers(torch, 1000, 3))
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert [each.pool for each in interop.wake().pools] == [(0, 0)]
    assert holds(kept, numbers(torch, 8 * MIB))
    accelrt.memory.audit()


@scenario
def plugged_in_it_has_pools_that_sleep(interop, torch):
    import os
    import warnings

    os.environ["CXX"] = "/nowhere/c++"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        interop.install(pinned=True, sleepable=True)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = numbers(torch, MIB).cuda()
    report = interop.sleep()
    assert [each.pool for each in report.pools] == [pool.id], str(report)
    assert pool.is_asleep()
    interop.wake()
    assert holds(kept, numbers(torch, MIB))


@scenario
def without_installation_it_is_refused(interop, torch):
    with refused(RuntimeError, "accelrt is not torch's allocator"):
        interop.sleep()
    with refused(RuntimeError, "accelrt is not torch's allocator"):
        interop.wake()


if __name__ == "__main__":
    from torch_whole import main

    main(*sys.argv[1:], SCENARIOS)
