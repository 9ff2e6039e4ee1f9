"""torch's page-locked memory from accelrt's cache: each scenario in a process of its own, which
tests/interop/test_torch_pinned.py starts.

    python torch_pinned.py gpu|standin NAME
"""

import gc
import os
import sys

from torch_setting import Scenarios, numbers

SCENARIOS = scenario = Scenarios()
MIB = 1 << 20


def active():
    """How many blocks are live, once those that waited for streams are found free."""
    import accelrt

    accelrt.memory.host_empty_cache()
    return accelrt.memory.host_memory_stats()["active_requests.current"]


@scenario
def tensors_lie_in_the_cache_of_page_locked_memory(interop, torch):
    import accelrt

    interop.install(pinned=True)
    first = numbers(torch, 5000).pin_memory()
    assert first.is_pinned()
    assert not numbers(torch, 5000).is_pinned()
    assert active() == 1
    device = first.to("cuda", non_blocking=True)
    assert bool((device.cpu() == numbers(torch, 5000)).all())
    torch.cuda.synchronize()
    unused = torch.empty(50_000, pin_memory=True)
    calls = accelrt.memory.host_memory_stats()["num_host_alloc"]
    del first, unused
    again = torch.empty(50_000, pin_memory=True)
    assert again.is_pinned()
    assert accelrt.memory.host_memory_stats()["num_host_alloc"] == calls, "the cache had it"
    stats = torch.cuda.host_memory_stats()
    mine = accelrt.memory.host_memory_stats()
    for name in ("active_requests", "active_bytes", "allocations", "allocated_bytes"):
        if f"{name}.current" in stats and "active_requests.current" in stats:
            assert stats[f"{name}.current"] == mine[f"{name}.current"], name
    assert stats["num_host_alloc"] == mine["num_host_alloc"] >= 1
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.cuda.reset_peak_host_memory_stats()
    assert accelrt.memory.host_memory_stats()["num_host_alloc"] == 0
    del again, device
    assert active() == 0
    torch._C._host_emptyCache()
    assert accelrt.memory.host_memory_stats()["allocations.current"] == 0
    accelrt.memory.host_audit()


@scenario
def copies_that_are_under_way_keep_their_memory(interop, torch):
    # On a side stream, behind as much work as makes the copy late.
    import accelrt

    interop.install(pinned=True)
    side = torch.cuda.Stream()
    source = numbers(torch, 4 * MIB).pin_memory()
    address = source.data_ptr()
    into = torch.empty(4 * MIB, device="cuda")
    slow = torch.zeros(16 * MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            slow.copy_(slow.clone())
        into.copy_(source, non_blocking=True)
    del source
    other = torch.zeros(4 * MIB).pin_memory()
    if other.data_ptr() == address:
        assert side.query(), "it was handed out under the copy"
    torch.cuda.synchronize()
    assert bool((into.cpu() == numbers(torch, 4 * MIB)).all())
    del other
    accelrt.memory.host_audit()


@scenario
def replays_find_what_their_captures_allocated(interop, torch):
    interop.install(pinned=True)
    source = numbers(torch, 3000).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = torch.empty(3000, pin_memory=True)
        gone = torch.empty(3000, pin_memory=True)
        unused = torch.empty(1000, pin_memory=True)
        gone.copy_(source, non_blocking=True)
        kept.copy_(source, non_blocking=True)
        taken, idle = gone.data_ptr(), unused.data_ptr()
        del gone, unused
        again = torch.empty(1000, pin_memory=True)
        routed = int(torch.__version__.split(".")[1]) >= 11
        if routed:
            assert again.data_ptr() == idle, "no copy of the graph uses it"
    others = [torch.zeros(3000).pin_memory() for _ in range(8)]
    if routed:
        assert taken not in [each.data_ptr() for each in others], "a replay writes there"
    graph.replay()
    torch.cuda.synchronize()
    assert bool((kept == numbers(torch, 3000)).all())
    assert all(not each.any() for each in others)
    del graph, kept, again
    gc.collect()
    torch._C._host_emptyCache()
    assert active() == len(others)


@scenario
def captures_of_one_pool_share_what_is_idle(interop, torch):
    interop.install(pinned=True)
    source = numbers(torch, 3000).cuda()
    graphs, outputs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
            outputs.append(torch.empty(3000, pin_memory=True))
            outputs[-1].copy_(source, non_blocking=True)
        graphs.append(graph)
    del graphs[0]
    gc.collect()
    torch._C._host_emptyCache()
    graphs[0].replay()
    torch.cuda.synchronize()
    assert bool((outputs[1] == numbers(torch, 3000)).all())
    del graphs, graph, outputs
    gc.collect()
    torch._C._host_emptyCache()
    assert active() == 0


@scenario
def a_capture_that_failed_leaves_the_next_alone(interop, torch):
    interop.install(pinned=True)
    source = numbers(torch, 3000).cuda()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            torch.empty(3000, pin_memory=True).copy_(source, non_blocking=True)
            raise KeyError("of the program")
    except KeyError:
        pass
    del graph
    gc.collect()
    outside = torch.empty(3000, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch.empty(3000, pin_memory=True)
        inside.copy_(source, non_blocking=True)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((inside == numbers(torch, 3000)).all())
    del inside, outside, graph


@scenario
def installed_late_and_taken_back(interop, torch):
    import accelrt

    before = numbers(torch, 2000).pin_memory()
    interop.install()
    still = numbers(torch, 2000, 3).pin_memory()
    interop.install(pinned=True)
    during = numbers(torch, 2000, 7).pin_memory()
    assert active() == 1
    copies = [each.to("cuda", non_blocking=True) for each in (before, still, during)]
    torch.cuda.synchronize()
    for first, copy in zip((0, 3, 7), copies, strict=True):
        assert bool((copy.cpu() == numbers(torch, 2000, first)).all())
    del before, copies, copy
    gc.collect()
    interop.uninstall()
    after = numbers(torch, 2000, 9).pin_memory()
    assert active() == 1, "new memory is torch's own"
    device = torch.empty(2000, pin_memory=True)
    assert during.is_pinned()
    assert after.is_pinned()
    del during, device
    assert active() == 0
    interop.install(pinned=True)
    again = numbers(torch, 2000, 11).pin_memory()
    assert active() == 1
    del again, after
    interop.uninstall()
    assert active() == 0
    accelrt.memory.host_audit()


@scenario
def threads_allocate_and_free_at_once(interop, torch):
    import accelrt
    from accelrt.testing.threads import on_threads

    interop.install(pinned=True)
    torch.cuda.init()
    shared = []
    streams = [torch.cuda.Stream() for _ in range(4)]  # here: on the stand-in torch makes them under a lock

    def work(number):
        stream = streams[number]
        with torch.cuda.stream(stream):
            for step in range(60):
                source = torch.full((1000 + 100 * step,), float(number)).pin_memory()
                shared.append(source.to("cuda", non_blocking=True))
                if step % 3 == 0:
                    value = shared.pop(0)
                    stream.synchronize()
                    del value
                if step % 20 == 0:
                    torch._C._host_emptyCache()

    on_threads(work, range(4))
    shared.clear()
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    assert active() == 0
    accelrt.memory.host_audit()


@scenario
def a_child_frees_what_its_parent_had(interop, torch):
    interop.install(pinned=True)
    kept = numbers(torch, 2000).pin_memory()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.empty(100, pin_memory=True)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        try:
            del kept, captured
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((kept == numbers(torch, 2000)).all())
    del captured, graph


@scenario
def data_loaders_pin_on_a_thread_of_their_own(interop, torch):
    interop.install(pinned=True)
    dataset = torch.utils.data.TensorDataset(numbers(torch, 64))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, pin_memory=True)
    values = []
    for (batch,) in loader:
        assert batch.is_pinned()
        values.append(batch.to("cuda", non_blocking=True))
    assert active() >= 1
    assert bool((torch.cat([each.cpu() for each in values]) == numbers(torch, 64)).all())
    del batch, values


if __name__ == "__main__":
    from torch_whole import main

    main(*sys.argv[1:], SCENARIOS)
