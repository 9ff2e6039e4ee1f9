"""What torch does with graphs on accelrt; torch_scenarios.py runs it."""

import contextlib
import gc
import threading

from torch_setting import MIB, kernels, scenario, within


def captured_copies(t, source, pool=None, stream=None):
    """A graph of copies through memory that is allocated in the capture; the graph, and what it writes."""
    torch = t.torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        parts = [torch.empty_like(source) for _ in range(4)]
        for index, part in enumerate(parts):
            part.copy_(parts[index - 1] if index else source, non_blocking=True)
        last = torch.empty_like(source).copy_(parts[-1], non_blocking=True)
        del parts, part
    return graph, last


@scenario
def the_pool_of_a_graph_sleeps_and_wakes(t):
    torch, memory = t.torch, t.accelrt.memory
    source = t.tensor(t.numbers(50_000))
    graph, last = captured_copies(t, source)
    address = last.data_ptr()
    assert memory.sleep(graph.pool()).copied >= 200_000
    assert memory.sleeping() > 0
    memory.wake(graph.pool())
    source.copy_(t.numbers(50_000, 10))
    graph.replay()
    torch.cuda.synchronize()
    assert last.data_ptr() == address
    assert t.holds(last, t.numbers(50_000, 10))


@scenario
def a_capture_allocates_from_a_pool_of_its_own_and_replays(t):
    torch = t.torch
    source = t.tensor(t.numbers(50_000))
    graph, last = captured_copies(t, source)
    segments = [each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] == graph.pool()]
    assert within(last, segments)
    noise = [t.tensor(t.numbers(50_000, 5)) for _ in range(20)]
    for first in (10, 20, 30):
        source.copy_(t.numbers(50_000, first))
        graph.replay()
        assert t.holds(last, t.numbers(50_000, first))
    for each in noise:
        assert t.holds(each, t.numbers(50_000, 5))
    pool = graph.pool()
    del graph, last, noise, each
    t.is_tidy()
    assert [each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] == pool] == []


@scenario
def the_fast_path_is_back_after_a_capture(t):
    source = t.tensor(t.numbers(1000))
    graph, last = captured_copies(t, source)
    assert [use[2:] for use in t.hooks.open_uses()] == [("capture", "ended")]
    from accelrt.memory.caching import audited_hits

    before = audited_hits(0)[0]
    for _ in range(10):
        t.torch.empty(1000, device="cuda")
    assert audited_hits(0)[0] > before
    del graph, last


@scenario
def two_graphs_share_a_pool(t):
    torch = t.torch
    handle = torch.cuda.graph_pool_handle()
    source = t.tensor(t.numbers(200_000))
    first, one = captured_copies(t, source, handle)
    reserved = torch.cuda.memory_reserved()
    second, two = captured_copies(t, one, handle)
    assert torch.cuda.memory_reserved() - reserved <= 2 * MIB, "the second takes what the first gave back"
    assert first.pool() == second.pool() == tuple(handle)
    for start in (1, 2):
        source.copy_(t.numbers(200_000, start))
        first.replay()
        second.replay()
        assert t.holds(two, t.numbers(200_000, start))
    del first, one
    gc.collect()
    noise = [t.tensor(t.numbers(200_000, 9)) for _ in range(10)]
    second.replay()
    torch.cuda.synchronize()
    for each in noise:
        assert t.holds(each, t.numbers(200_000, 9)), "the other graph still has the pool"
    del second, two, noise, each
    t.is_tidy()


@scenario
def a_capture_into_a_mem_pool(t):
    pool = t.torch.cuda.MemPool()
    source = t.tensor(t.numbers(3000))
    graph, last = captured_copies(t, source, pool.id)
    assert pool.use_count() == 2
    source.copy_(t.numbers(3000, 4))
    graph.replay()
    assert t.holds(last, t.numbers(3000, 4))
    del graph
    gc.collect()
    assert pool.use_count() == 1
    del last, pool


@scenario
def a_capture_inside_use_mem_pool(t):
    pool = t.torch.cuda.MemPool()
    source = t.tensor(t.numbers(3000))
    with t.torch.cuda.use_mem_pool(pool):
        graph, last = captured_copies(t, source)
        after = t.tensor(t.numbers(100))
    assert within(after, pool.snapshot())
    assert not within(last, pool.snapshot())
    del graph, last, after, pool


@scenario
def a_capture_with_a_side_stream(t):
    torch = t.torch
    source = t.tensor(t.numbers(9000))
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        a = torch.empty_like(source).copy_(source, non_blocking=True)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            b = torch.empty_like(a).copy_(a, non_blocking=True)
            a.record_stream(side)
            del a
        main.wait_stream(side)
        b.record_stream(main)
        c = torch.empty_like(b).copy_(b, non_blocking=True)
    pool = graph.pool()
    owners = [
        segment["segment_pool_id"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block["address"] in (b.data_ptr(), c.data_ptr())
    ]
    assert owners == [pool, pool]
    source.copy_(t.numbers(9000, 6))
    graph.replay()
    assert t.holds(c, t.numbers(9000, 6))
    del graph, b, c
    t.is_tidy()


@kernels
def a_captured_training_step_learns_as_an_eager_one(t):
    torch = t.torch
    losses, side = [], torch.cuda.Stream()
    for captured in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(32, 64, generator=torch.Generator().manual_seed(i)) for i in range(12)]
        place = torch.zeros(32, 64, device="cuda")

        def step(model=model, optimizer=optimizer, place=place):
            optimizer.zero_grad(set_to_none=True)
            loss = model(place).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        seen = []
        graph = None
        for index, batch in enumerate(batches):
            place.copy_(batch)
            if captured and index == 3:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    static = step()
            if graph is None:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    seen.append(step().item())
                torch.cuda.current_stream().wait_stream(side)
            else:
                graph.replay()
                seen.append(static.item())
        losses.append(seen)
        graph = static = None
    assert losses[0][-1] < losses[0][0]
    for eager, replayed in zip(*losses, strict=True):
        assert abs(eager - replayed) <= 1e-5 * abs(eager), losses
    t.is_tidy()


@kernels
def graphed_callables_give_the_same_gradients(t):
    torch = t.torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).cuda()
    samples = torch.randn(16, 32, device="cuda", requires_grad=True)
    inputs = torch.randn(16, 32, device="cuda")

    def gradients(function):
        model.zero_grad(set_to_none=True)
        function(inputs.clone().requires_grad_(True)).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    eager = gradients(model)
    graphed = gradients(torch.cuda.make_graphed_callables(model, (samples,)))
    for ours, theirs in zip(graphed, eager, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@kernels
def random_numbers_in_a_graph_differ_from_replay_to_replay(t):
    torch = t.torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = torch.rand(1000, device="cuda")
    graph.replay()
    first = drawn.cpu()
    graph.replay()
    assert not torch.equal(first, drawn.cpu())


def break_a_capture(t):
    # Such scenarios come last: after a failed capture torch may refuse random numbers on the GPU.
    torch = t.torch
    graph = torch.cuda.CUDAGraph()
    kept = []
    try:
        with torch.cuda.graph(graph):
            kept.append(torch.empty(3000, device="cuda"))
            torch.cuda.synchronize()
    except RuntimeError:
        return graph
    raise AssertionError("nothing broke the capture")


@scenario
def a_capture_that_fails_leaves_nothing(t):
    graph = break_a_capture(t)
    with contextlib.suppress(RuntimeError):
        t.torch.cuda.synchronize()
    t.torch.empty(1000, device="cuda")
    assert [use for use in t.hooks.open_uses() if use[3] != "ended"] == []
    del graph
    gc.collect()
    assert t.hooks.open_uses() == []
    graph, last = captured_copies(t, t.tensor(t.numbers(100)))
    graph.replay()
    assert t.holds(last, t.numbers(100))
    del graph, last
    t.is_tidy()


@scenario
def a_capture_that_fails_on_another_thread_is_seen(t):
    broken, done = [], threading.Event()

    def work(broken=broken):
        broken.append(break_a_capture(t))
        done.wait()
        t.torch.empty(100, device="cuda")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not broken:
        done.wait(0.01)
    t.torch.empty(1000, device="cuda")
    state = [use[3] for use in t.hooks.open_uses()]
    assert state in (["lost"], ["ended"]), state  # a later torch says that the capture ended
    graph, last = captured_copies(t, t.tensor(t.numbers(100)))
    with t.torch.cuda.graph(t.torch.cuda.CUDAGraph()):
        done.set()
        thread.join()
    assert [use for use in t.hooks.open_uses() if use[3] != "ended"] == []
    del graph, last, broken, work, thread
    t.is_tidy()
