"""What programs do with torch's CUDA memory that is no part of torch's own tests: each scenario in a process
of its own, which tests/interop/test_torch_programs.py starts.

    python torch_programs.py gpu|standin NAME

It prints "done" where nothing went wrong.  "standin" is cudart_standin, which has copies and no kernels, and
two devices for a scenario whose name says "device".
"""

import contextlib
import gc
import json
import os
import sys
import tempfile
import threading

import torch_whole
from torch_setting import Scenarios, holds, numbers, refused, within

PROGRAMS = program = Scenarios()
BEFORE_CUDA = set()  # what begins before this process uses CUDA


def before_cuda(function):
    BEFORE_CUDA.add(function.__name__)
    return program(function)


def waits(torch, device):
    return torch.cuda.memory_stats(device)["num_sync_all_streams"]


def counted_waits(torch, device):
    before = waits(torch, device)
    torch.cuda.empty_cache()
    return waits(torch, device) - before


# --- figures ------------------------------------------------------------------------------------------------


@program
def empty_cache_counts_one_wait_of_each_device(interop, torch):
    if torch.cuda.device_count() < 2:
        print("there is one device alone")
        return
    interop.install()
    torch.cuda.init()
    assert [counted_waits(torch, device) for device in (0, 1)] == [1, 1], "no memory was ever taken of them"
    torch.cuda.reset_accumulated_memory_stats(1)
    assert waits(torch, 1) == 0
    kept = numbers(torch, 100).to("cuda:1")
    assert counted_waits(torch, 1) == 1
    interop.install(sleepable=True)
    home = numbers(torch, 100).to("cuda:1")
    assert counted_waits(torch, 1) == 1
    torch.cuda.reset_accumulated_memory_stats(1)
    assert waits(torch, 1) == 0
    assert holds(kept, numbers(torch, 100))
    assert holds(home, numbers(torch, 100))


@program
def figures_of_devices_that_are_not_there_are_refused(interop, torch):
    interop.install()
    torch.empty(1, device="cuda")
    cuda = torch.cuda
    for call in (
        cuda.memory_stats,
        cuda.memory_allocated,
        cuda.reset_peak_memory_stats,
        cuda.reset_accumulated_memory_stats,
        cuda.get_per_process_memory_fraction,
        lambda device: cuda.set_per_process_memory_fraction(0.5, device),
    ):
        with refused(RuntimeError, "nvalid device", "99"):
            call(99)
    assert cuda.get_per_process_memory_fraction(0) == 1


@program
def fractions_that_are_none_are_refused(interop, torch):
    interop.install()
    torch.empty(1, device="cuda")
    torch.cuda.set_per_process_memory_fraction(0.5)
    for fraction in (2.0, -1.0, float("inf"), float("nan"), "half", None):
        with refused(RuntimeError, "invalid fraction", "within [0, 1]"):
            torch._C._cuda_setMemoryFraction(fraction, 0)
    with refused(RuntimeError, "invalid fraction: nan"):
        torch.cuda.set_per_process_memory_fraction(float("nan"))
    assert torch.cuda.get_per_process_memory_fraction() == 0.5


@program
def amounts_in_the_text_of_a_lack_of_memory_have_torchs_units(interop, torch):
    interop.install()
    torch.cuda.set_per_process_memory_fraction(0.0)
    for size, amount in ((1000, "1000 bytes"), (1 << 20, "1024.00 KiB"), (1 << 30, "1024.00 MiB")):
        with refused(torch.OutOfMemoryError, f"CUDA out of memory. Tried to allocate {amount}. GPU 0 has a"):
            torch.empty(size, dtype=torch.uint8, device="cuda")
    with refused(torch.OutOfMemoryError, "Tried to allocate 1.50 GiB."):
        torch.empty(3 << 29, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(1000, device="cuda")


@program
def addresses_that_are_not_live_are_refused(interop, torch):
    interop.install()
    cuda = torch.cuda
    address = cuda.caching_allocator_alloc(1000, stream=cuda.Stream())
    kept = numbers(torch, 5000).cuda()
    live = cuda.memory_allocated()
    cuda.caching_allocator_delete(address)
    assert cuda.memory_allocated() == live - 1024
    for wrong in (address, kept.data_ptr() + 512, 12345):
        with refused(RuntimeError, "invalid device pointer", hex(wrong)):
            cuda.caching_allocator_delete(wrong)
    cuda.caching_allocator_delete(0)
    assert cuda.memory_allocated() == live - 1024
    assert holds(kept, numbers(torch, 5000))


@program
def observers_use_memory_take_snapshots_and_raise(interop, torch):
    interop.install()
    seen = []
    kept = torch.empty(10, device="cuda")

    def look(device, size, total, room):
        segments = torch.cuda.memory._snapshot()["segments"]
        seen.append((device, size, len(segments), torch.empty(10, device="cuda").shape))
        torch.cuda.empty_cache()

    def fail(*figures):
        raise KeyError("an observer")

    torch.cuda.memory._record_memory_history()
    torch._C._cuda_attach_out_of_memory_observer(look)
    with refused(torch.OutOfMemoryError, "CUDA out of memory"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert seen == [(0, 1 << 50, 1, (10,))]
    torch._C._cuda_attach_out_of_memory_observer(fail)
    with refused((KeyError, RuntimeError), "an observer"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [each["action"] for each in events].count("oom") == 2
    torch.cuda.memory._record_memory_history(None)
    assert kept.numel() == 10


@program
def pools_that_never_began_are_refused(interop, torch):
    interop.install()
    torch.empty(1, device="cuda")
    for name in ("endAllocateToPool", "releasePool"):
        for device, pool in ((0, (5, 7)), (99, (0, 1))):
            with refused(RuntimeError, f"never had a pool {pool} on device {device}"):
                getattr(torch._C, f"_cuda_{name}")(device, pool)
    with refused(RuntimeError, "never had a pool (5, 7)"):
        torch._C._cuda_checkPoolLiveAllocations(0, (5, 7), set())
    torch._C._cuda_beginAllocateToPool(0, (5, 7))
    tensor = numbers(torch, 10).cuda()
    torch._C._cuda_endAllocateToPool(0, (5, 7))
    torch._C._cuda_releasePool(0, (5, 7))
    assert holds(tensor, numbers(torch, 10))


# --- pools and graphs ---------------------------------------------------------------------------------------


@program
def mem_pools_nest_in_threads(interop, torch):
    interop.install()
    pools = [torch.cuda.MemPool(), torch.cuda.MemPool()]
    found = []

    def nest(outer, inner):
        with torch.cuda.use_mem_pool(outer):
            first = torch.empty(5000, device="cuda")
            with torch.cuda.use_mem_pool(inner):
                second = torch.empty(5000, device="cuda")
            third = torch.empty(5000, device="cuda")
        last = torch.empty(5000, device="cuda")
        found.append((outer, inner, (first, second, third, last)))

    threads = [threading.Thread(target=nest, args=pools[:: 1 if turn % 2 else -1]) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for outer, inner, tensors in found:
        assert [within(each, outer.snapshot()) for each in tensors] == [True, False, True, False]
        assert [within(each, inner.snapshot()) for each in tensors] == [False, True, False, False]
    assert [pool.use_count() for pool in pools] == [1, 1]
    outer, inner = torch.cuda.use_mem_pool(pools[0]), torch.cuda.use_mem_pool(pools[1])
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert within(torch.empty(10, device="cuda"), pools[1].snapshot())
    inner.__exit__(None, None, None)
    assert not any(within(torch.empty(10, device="cuda"), pool.snapshot()) for pool in pools)


@program
def a_thread_ends_inside_its_mem_pool(interop, torch):
    interop.install()
    pool, left = torch.cuda.MemPool(), []

    def enter():
        left.append(torch.cuda.use_mem_pool(pool))
        left[0].__enter__()
        left.append(numbers(torch, 100).cuda())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not within(torch.empty(10, device="cuda"), pool.snapshot())
    left[0].__exit__(None, None, None)
    assert pool.use_count() == 1
    assert holds(left[1], numbers(torch, 100))


@program
def graphed_callables_copy(interop, torch):
    interop.install()
    copy = torch.cuda.make_graphed_callables(lambda source: source.clone(), (numbers(torch, 4).cuda(),))
    assert holds(copy(numbers(torch, 4, 4).cuda()), numbers(torch, 4, 4))
    assert holds(copy(numbers(torch, 4, 8).cuda()), numbers(torch, 4, 8))


@program
def uninstall_refuses_while_torch_uses_pools(interop, torch):
    interop.install()
    source = numbers(torch, 100).cuda()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    with torch.cuda.graph(graph):
        copy = source.clone()
    with refused(RuntimeError, "1 MemPool", "1 graph", "before accelrt.interop.torch.uninstall()"):
        interop.uninstall()
    with torch.cuda.use_mem_pool(pool), refused(RuntimeError, "1 use_mem_pool"):
        interop.uninstall()
    assert interop.is_installed()
    graph.replay()
    assert holds(copy, numbers(torch, 100))
    del graph
    with refused(RuntimeError, ": 1 MemPool;"):
        interop.uninstall()
    cycle = [pool]
    cycle.append(cycle)
    del pool, cycle  # which a collection of garbage takes
    interop.uninstall()
    assert torch.cuda.get_allocator_backend() == "native"
    assert holds(copy, numbers(torch, 100))


@program
def pools_of_the_former_allocator_end_under_accelrt(interop, torch):
    left, full, graph = torch.cuda.MemPool(), torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    if "standin" not in sys.argv:
        with torch.cuda.use_mem_pool(full):
            source = numbers(torch, 100).cuda()
    else:
        source = numbers(torch, 100).cuda()
    with torch.cuda.graph(graph, pool=full.id):
        copy = source.clone()
    interop.install()
    del left
    gc.collect()
    both, other = torch.cuda.CUDAGraph(), inside(torch, full, numbers(torch, 50))
    with torch.cuda.graph(both, pool=full.id):
        second = other.clone()
    for each in (graph, both):
        each.replay()
    assert holds(copy, numbers(torch, 100))
    assert holds(second, numbers(torch, 50))
    del both, each, second
    graph.replay()
    del graph, full
    gc.collect()
    assert holds(source, numbers(torch, 100))
    assert holds(other, numbers(torch, 50))
    interop.uninstall()


@program
def a_capture_that_failed_holds_up_no_uninstall(interop, torch):
    interop.install()
    source = numbers(torch, 100).cuda()
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        source.clone()
        torch.cuda.synchronize()
    torch.cuda.synchronize()
    interop.uninstall()
    assert holds(source, numbers(torch, 100))


@program
def uninstall_after_graph_trees(interop, torch):
    interop.install()
    import torch._dynamo

    compiled = torch.compile(lambda source: source.clone().clone(), backend="cudagraphs", dynamic=False)
    source = numbers(torch, 1000).cuda()
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(source)
    with refused(RuntimeError, "graph", "torch.compiler.reset() lets go"):
        interop.uninstall()
    del compiled
    torch.compiler.reset()
    interop.uninstall()
    assert torch.cuda.get_allocator_backend() == "native"
    assert holds(source, numbers(torch, 1000))


@program
def uninstall_beside_busy_streams(interop, torch):
    import accelrt

    interop.install(pinned=True)
    side, gate = torch.cuda.Stream(), threading.Event()
    accelrt.Stream.from_any(side).launch_host_func(gate.wait)
    page_locked = numbers(torch, 1000).pin_memory()
    used = numbers(torch, 10).cuda()
    with torch.cuda.stream(side):
        target = torch.empty(1000, device="cuda")
        target.copy_(page_locked, non_blocking=True)
    used.record_stream(side)
    interop.uninstall()
    del used, page_locked
    after = None if "standin" in sys.argv else numbers(torch, 10).cuda()
    gate.set()
    torch.cuda.synchronize()
    assert holds(target, numbers(torch, 1000))
    assert after is None or holds(after, numbers(torch, 10))
    del target
    gc.collect()
    accelrt.memory.empty_cache()
    assert accelrt.memory_allocated(0) == 0
    interop.install()
    assert holds(numbers(torch, 10).cuda(), numbers(torch, 10))


# --- processes ----------------------------------------------------------------------------------------------


def in_a_child(function):
    """What a forked child answers, as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = json.dumps(function())
        except BaseException as error:
            answer = json.dumps(f"{type(error).__name__}: {error}")
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return json.load(file)


@program
def a_fork_in_the_middle(interop, torch):
    interop.install(pinned=True)
    tensor, graph, pool = numbers(torch, 10).cuda(), torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    page_locked = numbers(torch, 10).pin_memory()
    with torch.cuda.graph(graph):
        copy = tensor.clone()
    held = [tensor, graph, copy, pool, page_locked]
    del tensor, graph, copy, pool, page_locked  # which the child lets go of

    def child():
        with refused(RuntimeError, "Cannot re-initialize CUDA in forked subprocess"):
            torch.empty(1, device="cuda")
        figures = [len(torch.cuda.memory._snapshot()["segments"]), torch.cuda.memory_allocated()]
        torch.cuda.empty_cache()
        held.clear()
        gc.collect()
        return figures

    assert in_a_child(child) == [0, 0]
    tensor, graph, copy = held[:3]
    graph.replay()
    assert holds(copy, numbers(torch, 10))
    assert holds(tensor, numbers(torch, 10))


@before_cuda
def a_fork_after_install(interop, torch):
    interop.install(pinned=True)
    assert not torch.cuda.is_initialized()

    def child():
        kept = start()
        tensor = inside(torch, torch.cuda.MemPool(), numbers(torch, 10))
        assert holds(tensor, numbers(torch, 10))
        assert tensor.cpu().pin_memory().is_pinned()
        torch.cuda.memory._snapshot()
        figures = [torch.cuda.memory_allocated(), kept is None]
        if torch.__version__ >= "2.11":  # what a capture allocated goes back in the child, whose own it is
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                tensor.copy_(torch.empty(10, pin_memory=True), non_blocking=True)
            del graph
            gc.collect()
            torch._C._host_emptyCache()
            import accelrt

            figures.append(accelrt.memory.host_memory_stats()["active_requests.current"])
        return figures

    captured = [0] if torch.__version__ >= "2.11" else []
    assert in_a_child(child) == [512, "standin" not in sys.argv, *captured]
    assert not torch.cuda.is_initialized()


@program
def loaders_fork_their_workers(interop, torch):
    from torch.utils.data import DataLoader, TensorDataset

    interop.install(pinned=True)
    rows = numbers(torch, 64).reshape(32, 2)
    on_device = torch.empty(1, device="cuda")
    for persistent in (False, True):
        loader = DataLoader(
            TensorDataset(rows), batch_size=8, num_workers=2, pin_memory=True, persistent_workers=persistent
        )
        for _ in range(2):
            batches = [batch for (batch,) in loader]
            assert all(batch.is_pinned() for batch in batches)
            on_device = [batch.cuda(non_blocking=True) for batch in batches]
            assert holds(torch.cat([each.cpu() for each in on_device]), rows)
        del loader


@before_cuda
def processes_reduce_by_gloo(interop, torch):
    import torch.distributed as dist

    interop.install(pinned=True)
    with tempfile.TemporaryDirectory() as folder:

        def rank_of(rank):
            kept = start()
            dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
            tensor = numbers(torch, 10, 100 * rank).cuda()
            for _ in range(5):
                dist.broadcast(tensor, 0)
            assert holds(tensor, numbers(torch, 10))
            parts = [torch.empty(10, device="cuda") for _ in range(2)]
            dist.all_gather(parts, numbers(torch, 10, rank).cuda())
            dist.barrier()
            dist.destroy_process_group()
            return [part.cpu().tolist() for part in parts] + [kept is None]

        answers = []
        threads = [
            threading.Thread(target=lambda rank=rank: answers.append(in_a_child(lambda: rank_of(rank))))
            for rank in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wanted = [numbers(torch, 10).tolist(), numbers(torch, 10, 1).tolist(), "standin" not in sys.argv]
    assert answers == [wanted, wanted], answers


@program
def the_process_ends_with_everything_live(interop, torch):
    import atexit

    global everything
    interop.install(pinned=True)
    source, graph, pool = numbers(torch, 10).cuda(), torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    with torch.cuda.graph(graph):
        copy = source.clone()
    inside = torch.cuda.use_mem_pool(pool)
    inside.__enter__()  # never left
    torch.cuda.memory._record_memory_history()
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: None)

    class AtTheEnd:
        def __del__(self, torch=torch):
            torch.empty(1, device="cuda")

    def at_exit():
        torch.empty(10, device="cuda")
        torch.cuda.empty_cache()
        graph.replay()

    atexit.register(at_exit)
    everything = [source, graph, copy, inside, torch.cuda.Stream(), torch.cuda.Event(), AtTheEnd()]
    everything += [numbers(torch, 10).pin_memory(), torch.empty(10, device="cuda"), everything]
    sys.modules["kept_until_the_end"] = type(sys)("kept_until_the_end")
    sys.modules["kept_until_the_end"].everything = everything


# --- other allocators ---------------------------------------------------------------------------------------


@program
def another_plug_in_was_torchs_before(interop, torch):
    take, live = torch_whole.plug_in(torch)
    torch.cuda.memory.change_current_allocator(take)
    before = numbers(torch, 10).cuda()
    assert live.value == 1
    interop.install()
    during = numbers(torch, 20).cuda()
    assert (live.value, torch.cuda.get_allocator_backend()) == (1, "accelrt")
    with refused(RuntimeError, "already initialized"):
        torch.cuda.memory.change_current_allocator(take)
    assert holds(before, numbers(torch, 10))
    del before
    assert live.value == 0
    interop.uninstall()
    after = numbers(torch, 10).cuda()
    assert (live.value, torch.cuda.get_allocator_backend()) == (1, "pluggable")
    assert holds(during, numbers(torch, 20))
    assert holds(after, numbers(torch, 10))


@program
def allocators_of_mem_pools_come_and_go(interop, torch):
    from accelrt.allocator.external import torch_table

    interop.install()
    torch.empty(1, device="cuda")
    first, live = torch_whole.plug_in(torch)
    pools = [torch.cuda.MemPool(first.allocator()) for _ in range(20)]
    tensors = [inside(torch, pool, numbers(torch, 10)) for pool in pools]
    assert (live.value, len(tensors)) == (20, 20)
    del pools, tensors
    others = [torch_whole.plug_in(torch) for _ in range(17)]
    with refused(RuntimeError, "more than 16 allocators of MemPools at a time"):
        list(map(torch.cuda.MemPool, (other.allocator() for other, _ in others)))
    assert [use for use in torch_table.open_uses() if use[2] == "object"] == [], "none is held"
    for _ in range(2):
        for other, count in others:  # each ends before the next one comes
            pool = torch.cuda.MemPool(other.allocator())
            tensor = inside(torch, pool, numbers(torch, 10))
            assert (count.value, holds(tensor, numbers(torch, 10))) == (1, True)
            del pool
            torch.cuda.empty_cache()
            assert (count.value, holds(tensor, numbers(torch, 10))) == (1, True), "the tensor lives on"
            del tensor
            torch.cuda.empty_cache()
            assert count.value == 0
    assert live.value == 0


def inside(torch, pool, values):
    with torch.cuda.use_mem_pool(pool):
        return values.cuda()


@program
def graphs_and_streams_use_an_allocator_of_a_mem_pool(interop, torch):
    interop.install()
    other, live = torch_whole.plug_in(torch)
    pool, side, graph = torch.cuda.MemPool(other.allocator()), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    source, used = numbers(torch, 100).cuda(), inside(torch, pool, numbers(torch, 50))
    with torch.cuda.graph(graph, pool=pool.id):
        copy = source.clone()
    source.copy_(numbers(torch, 100, 5))
    used.record_stream(side)
    del used
    graph.replay()
    assert holds(copy, numbers(torch, 100, 5))
    assert (pool.use_count(), within(copy, pool.snapshot())) == (2, True)
    with torch.cuda.use_mem_pool(pool), refused(torch.OutOfMemoryError, "CUDA out of memory"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    del pool
    source.copy_(numbers(torch, 100, 9))
    graph.replay()
    assert holds(copy, numbers(torch, 100, 9))
    assert live.value > 0
    del graph, copy
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert live.value == 0


@program
def a_pool_of_symmetric_memory(interop, torch):
    from torch.distributed import _symmetric_memory

    interop.install()
    torch.empty(1, device="cuda")
    pool = _symmetric_memory.get_mem_pool(torch.device("cuda", 0))
    for _ in range(2):
        if "standin" not in sys.argv:
            tensor = inside(torch, pool, numbers(torch, 100))
            assert holds(tensor, numbers(torch, 100))
            continue
        with refused(torch.OutOfMemoryError, "of a MemPool's allocator on this thread", "find cuDeviceGet"):
            inside(torch, pool, numbers(torch, 100))
    with refused(torch.OutOfMemoryError, "shows what holds it."):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert pool.use_count() == 1
    assert holds(numbers(torch, 10).cuda(), numbers(torch, 10))


def start():
    """The stand-in, which has to live on, where there is one."""
    if "standin" not in sys.argv:
        return None
    from cudart_standin import Standin

    return Standin()


def main(kind, name):
    if name not in BEFORE_CUDA:
        torch_whole.main(kind, name, PROGRAMS)
        return
    import torch

    from accelrt.interop import torch as interop

    if kind == "standin":
        interop.require_cuda = lambda torch: None
    PROGRAMS[name](interop, torch)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
