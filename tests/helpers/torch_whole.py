"""What only an allocator object of torch's own class can do: each scenario in a process of its own, which
tests/interop/test_torch_whole.py starts.

    python torch_whole.py gpu|standin NAME

It prints "done" where nothing went wrong.  "standin" is cudart_standin, which has copies and no kernels.
"""

import gc
import sys

from torch_setting import Scenarios, refused, within

KERNELS = set()
ALONE = alone = Scenarios()
MIB = 1 << 20


def kernels(function):
    KERNELS.add(function.__name__)
    return alone(function)


def mlp(torch):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).cuda()


def batches(torch, count):
    return [torch.randn(32, 64, generator=torch.Generator().manual_seed(step)) for step in range(count)]


def train(torch, model, steps, between=lambda step: None):
    """The loss of each step; between is called before each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step, batch in enumerate(batches(torch, steps)):
        between(step)
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def near(left, right):
    return all(abs(a - b) <= 1e-4 * max(abs(a), 1e-3) for a, b in zip(left, right, strict=True))


def graph_manager(torch):
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_container(0).tree_manager
    assert manager is not None, "nothing was captured"
    return manager


@kernels
def compiled_training_captures_and_learns_as_eager(interop, torch):
    eager = train(torch, mlp(torch), 12)
    interop.install()
    model = mlp(torch)
    compiled = train(torch, torch.compile(model, mode="reduce-overhead"), 12)
    assert near(eager, compiled), (eager, compiled)
    assert compiled[-1] < compiled[0]
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    assert skips == 0, skips
    manager = graph_manager(torch)
    assert manager.roots
    nodes = sum(len(each) for each in manager.roots.values())
    assert nodes >= 1
    import accelrt

    accelrt.memory.audit()


@kernels
def compiled_inference_of_several_shapes_shares_a_pool(interop, torch):
    interop.install()
    model = mlp(torch).eval()
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        for _ in range(4):
            for size in (32, 16, 8):
                batch = torch.randn(size, 64, generator=torch.Generator().manual_seed(size)).cuda()
                torch.compiler.cudagraph_mark_step_begin()
                first = compiled(batch)
                second = compiled(first.new_ones(size, 64))
                assert torch.allclose(second, model(torch.ones(size, 64, device="cuda")), atol=1e-4)
                del first, second
    assert graph_manager(torch).roots
    import accelrt

    accelrt.memory.audit()


@alone
def graph_trees_record_and_replay(interop, torch):
    # Copies alone, so that a device without kernels runs it too.
    interop.install()
    import torch._dynamo

    def copy(source):
        return source.clone().clone()

    compiled = torch.compile(copy, backend="cudagraphs", dynamic=False)
    source = torch.arange(1000, dtype=torch.float32).cuda()
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        answer = compiled(source)
        assert answer.shape == source.shape
    for size in (500, 700):
        other = torch.arange(size, dtype=torch.float32).cuda()
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(compiled(other))
    torch.cuda.synchronize()
    del answer
    gc.collect()
    import accelrt

    accelrt.memory.audit()


@alone
def graphs_in_a_mem_pool(interop, torch):
    interop.install()
    pool = torch.cuda.MemPool()
    source = torch.arange(5000, dtype=torch.float32).cuda()
    graphs, lasts = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            last = torch.empty_like(source).copy_(source, non_blocking=True)
        graphs.append(graph)
        lasts.append(last)
    assert pool.use_count() == 3
    source.copy_(torch.arange(5000, 10000, dtype=torch.float32))
    for graph, last in zip(graphs, lasts, strict=True):
        graph.replay()
        assert bool((last.cpu() == torch.arange(5000, 10000, dtype=torch.float32)).all())
    del pool
    graphs[0].replay()
    assert bool((lasts[0].cpu() == torch.arange(5000, 10000, dtype=torch.float32)).all())
    del graph, last, lasts, graphs
    gc.collect()
    torch.cuda.empty_cache()


PLUGGED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
long live;
static void *find(const char *of_driver, const char *of_standin) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY), *function = dlsym(library, of_driver);
    return function ? function : dlsym(RTLD_DEFAULT, of_standin);
}
void *take(size_t size, int device, void *stream) {
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))find("cuMemAlloc_v2", "cudaMalloc");
    void *address = NULL;
    if (allocate(&address, size) != 0) return NULL;
    live++;
    return address;
}
void give(void *address, size_t size, int device, void *stream) {
    live--;
    ((int (*)(void *))find("cuMemFree_v2", "cudaFree"))(address);
}
"""


def plug_in(torch):
    """A CUDAPluggableAllocator over the driver, and the count of what it gave and has not back."""
    import ctypes
    import subprocess
    import tempfile

    from compiled import COMPILER

    with tempfile.TemporaryDirectory() as folder:
        source, path = f"{folder}/plugged.c", f"{folder}/plugged.so"
        with open(source, "w") as file:
            file.write(PLUGGED)
        subprocess.run([*COMPILER, "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "take", "give")
        return allocator, ctypes.c_long.in_dll(ctypes.CDLL(path), "live")


@alone
def a_mem_pool_takes_an_allocator_of_torchs(interop, torch):
    interop.install()
    other, live = plug_in(torch)
    torch.empty(1, device="cuda")
    pool = torch.cuda.MemPool(other.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = torch.arange(3000, dtype=torch.float32).cuda()
    outside = torch.empty(10, device="cuda")
    assert live.value == 1
    assert within(inside, pool.snapshot())
    assert not within(outside, pool.snapshot())
    assert bool((inside.cpu() == torch.arange(3000, dtype=torch.float32)).all())
    del inside, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert live.value == 0


@alone
def a_pool_of_a_stream_takes_what_any_thread_allocates_there(interop, torch):
    import threading

    interop.install()
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    found = []

    def allocate():
        with torch.cuda.stream(side):
            found.append(torch.empty(1000, device="cuda"))

    with torch.cuda.stream(side):
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, pool.id)
    allocate()
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    outside = torch.empty(1000, device="cuda")
    torch._C._cuda_endAllocateToPool(0, pool.id)
    torch._C._cuda_releasePool(0, pool.id)
    allocate()
    segments = pool.snapshot()
    assert [within(each, segments) for each in found] == [True, True, False]
    assert not within(outside, segments)
    assert pool.use_count() == 1


@alone
def the_history_has_stacks(interop, torch):
    interop.install()
    torch.cuda.memory._record_memory_history(stacks="python")

    def make():
        return torch.empty(70_000, device="cuda")

    kept, gone = make(), make()
    address = gone.data_ptr()
    del gone
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    entry = next(each for each in snapshot["device_traces"][0] if each["action"] == "alloc")
    assert "make" in [frame["name"] for frame in entry["frames"]], entry
    actions = {each["action"] for each in snapshot["device_traces"][0] if each["addr"] == address}
    assert {"alloc", "free_requested", "free_completed"} <= actions
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    block = next(each for each in blocks if each["address"] == kept.data_ptr())
    assert "make" in [frame["name"] for frame in block["frames"]]


@alone
def trackers_and_metadata_are_kept(interop, torch):
    import accelrt

    interop.install()
    torch.cuda.memory._record_memory_history(stacks="all", context="all", max_entries=50)
    if hasattr(torch.cuda.memory, "_set_memory_metadata"):
        torch.cuda.memory._set_memory_metadata("batch 7")
        marked = torch.empty(3000, device="cuda")
        assert torch.cuda.memory._get_memory_metadata() == "batch 7"
        torch.cuda.memory._set_memory_metadata("")
    with accelrt.memory.tag("weights"):
        tagged = torch.empty(9000, device="cuda")
    side = torch.cuda.Stream()
    tagged.record_stream(side)
    address = tagged.data_ptr()
    snapshot = torch.cuda.memory._snapshot()
    entries = {each["addr"]: each for each in snapshot["device_traces"][0] if each["action"] == "alloc"}
    assert entries[address]["tag"] == "weights"
    if hasattr(torch.cuda.memory, "_set_memory_metadata"):
        assert entries[marked.data_ptr()]["user_metadata"] == "batch 7"
        del marked
    if hasattr(torch.cuda.memory, "_annotate_tensor"):
        torch.cuda.memory._annotate_tensor(tagged, "the weights")
        last = torch.cuda.memory._snapshot()["device_traces"][0]
        assert "the weights" in [each["user_metadata"] for each in last if each["action"] == "annotate"]
    actions = {each["action"] for each in snapshot["device_traces"][0]}
    assert "snapshot" not in actions, "as torch's own, it is in the next one"
    assert {"segment_alloc", "segment_map"} & actions
    for _ in range(60):
        torch.empty(100, device="cuda")
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == 50
    kept = []
    for most, count in ((20, 20), (30, 21)):  # it goes on with fewer, and with more
        before = [each["addr"] for each in torch.cuda.memory._snapshot()["device_traces"][0]]
        torch.cuda.memory._record_memory_history(stacks="all", context="all", max_entries=most)
        kept.append(torch.empty(5000, device="cuda"))
        after = torch.cuda.memory._snapshot()["device_traces"][0]
        times = [each["time_us"] for each in after]
        assert (times, len(after)) == (sorted(times), count)
        assert [each["addr"] for each in after[-3:]] == [before[-1], 0, kept[-1].data_ptr()]
    assert torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(None)
    assert not torch._C._cuda_isHistoryEnabled()
    assert torch.cuda.memory._snapshot()["device_traces"][0] == []
    del tagged


@alone
def observers_of_a_lack_of_memory_are_told(interop, torch):
    interop.install()
    torch.empty(1, device="cuda")
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: told.append(figures))
    with refused(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate", "accelrt reserved"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert len(told) == 1
    assert told[0][:2] == (0, 1 << 50), told
    assert told[0][2] > 0


@alone
def profilers_see_memory(interop, torch):
    interop.install()
    torch.empty(1, device="cuda")
    with torch.profiler.profile(profile_memory=True) as profile:
        kept = torch.empty(MIB, device="cuda")
    sizes = [each.device_memory_usage for each in profile.key_averages() if each.key == "aten::empty"]
    assert sum(sizes) == 4 * MIB, sizes
    del kept


@kernels
def training_goes_on_over_install_and_uninstall(interop, torch):
    torch.use_deterministic_algorithms(True)

    def switch(step):
        if step == 3:
            interop.install()
            assert torch.cuda.get_allocator_backend() == "accelrt"
        if step == 7:
            interop.uninstall()
            assert torch.cuda.get_allocator_backend() == "native"
        if step == 9:
            interop.install(name="native")
            assert torch.cuda.get_allocator_backend() == "native"

    plain = train(torch, mlp(torch), 12)
    switched = train(torch, mlp(torch), 12, switch)
    assert plain == switched, (plain, switched)
    gc.collect()
    interop.uninstall()
    torch.cuda.empty_cache()


@alone
def installed_late_and_taken_back(interop, torch):
    import accelrt

    before = None
    if "standin" not in sys.argv:
        before = torch.arange(3000, dtype=torch.float32).cuda()
    torch.cuda.init()
    interop.install()
    assert interop.is_installed()
    assert torch.cuda.get_allocator_backend() == "accelrt"
    during = torch.arange(2000, dtype=torch.float32).cuda()
    assert accelrt.memory_allocated(0) == 8192
    if before is not None:
        before.record_stream(torch.cuda.Stream())
        assert bool((before.cpu() == torch.arange(3000, dtype=torch.float32)).all())
        del before
    interop.uninstall()
    assert not interop.is_installed()
    assert torch.cuda.get_allocator_backend() == "native"
    assert bool((during.cpu() == torch.arange(2000, dtype=torch.float32)).all())
    del during
    gc.collect()
    assert accelrt.memory_allocated(0) == 0
    if "standin" not in sys.argv:
        after = torch.arange(100, dtype=torch.float32).cuda()
        assert torch.cuda.memory_allocated() >= 512
        del after
    interop.uninstall()
    interop.install()
    again = torch.arange(2000, dtype=torch.float32).cuda()
    assert accelrt.memory_allocated(0) == 8192
    del again


@alone
def without_a_compiler_it_is_plugged_in(interop, torch):
    import os
    import warnings

    os.environ |= {"CXX": "/nowhere/c++", "ACCELRT_TORCH_OBJECT": "compiled"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        interop.install()
    assert "could not compile torch's allocator: the C++ compiler /nowhere/c++ does not run" in str(
        told[0].message
    )
    assert torch.cuda.get_allocator_backend() == "pluggable"
    kept = torch.arange(500, dtype=torch.float32).cuda()
    import accelrt

    assert accelrt.memory_allocated(0) == 2048
    with refused(accelrt.NotSupportedError, "until the process ends"):
        interop.uninstall()
    del kept


@alone
def a_mempool_lives_until_the_interpreters_end(interop, torch):
    global mempool_of_the_module
    interop.install()
    mempool_of_the_module = torch.cuda.MemPool()


@alone
def without_the_cache(interop, torch):
    interop.install()
    import accelrt

    inside = torch.arange(500, dtype=torch.float32).cuda()
    live = accelrt.memory_allocated(0)
    torch.cuda.memory.caching_allocator_enable(False)
    outside = torch.arange(1000, dtype=torch.float32).cuda()
    assert accelrt.memory_allocated(0) == live, "it is past the pool"
    assert bool((outside.cpu() == torch.arange(1000, dtype=torch.float32)).all())
    outside.record_stream(torch.cuda.Stream())
    del outside
    raw = torch.cuda.caching_allocator_alloc(1 << 20)
    assert accelrt.memory_allocated(0) == live
    torch.cuda.caching_allocator_delete(raw)
    torch.cuda.memory.caching_allocator_enable(True)
    assert bool((inside.cpu() == torch.arange(500, dtype=torch.float32)).all())
    again = torch.arange(1000, dtype=torch.float32).cuda()
    assert accelrt.memory_allocated(0) == live + 4096
    del inside, again


@alone
def a_capture_without_the_cache(interop, torch):
    from accelrt.driver.registry import Rows

    interop.install()
    source, graph = torch.arange(1000, dtype=torch.float32).cuda(), torch.cuda.CUDAGraph()
    torch.cuda.memory.caching_allocator_enable(False)
    before = torch.empty(16 * MIB, device="cuda")
    rows, address = Rows(), before.data_ptr()
    assert rows.pointer_device(address)[0] == 0
    with torch.cuda.graph(graph):
        copy = source.clone()
        del before
    assert rows.pointer_device(address)[0] != 0, "it went back to the device in the capture"
    with refused(torch.OutOfMemoryError, "bytes past the cache"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    torch.cuda.memory.caching_allocator_enable(True)
    source.copy_(torch.arange(1000, 2000, dtype=torch.float32))
    graph.replay()
    assert bool((copy.cpu() == torch.arange(1000, 2000, dtype=torch.float32)).all())


@alone
def memory_of_others_reaches_accelrts_on_another_device(interop, torch):
    if torch.cuda.device_count() < 2:
        print("there is one device alone")
        return
    numbers = torch.arange(1 << 20, dtype=torch.float32)
    theirs = None
    if "standin" not in sys.argv:
        theirs = numbers.cuda(0)
        theirs.to("cuda:1")  # torch asks once for access
        torch.cuda.synchronize(1)
        torch.cuda.empty_cache()
    interop.install()
    torch.cuda.init()  # before that, torch changes nothing
    torch.cuda.memory.caching_allocator_enable(False)
    outside = numbers.cuda(0)
    torch.cuda.memory.caching_allocator_enable(True)
    for tensor in filter(lambda each: each is not None, (theirs, outside)):
        ours = tensor.to("cuda:1")
        assert torch.equal(ours.cpu(), numbers)
        tensor.copy_((numbers + 1).to("cuda:1"))
        torch.cuda.synchronize(1)
        assert torch.equal(tensor.cpu(), numbers + 1)
    assert torch.cuda.memory_allocated(0) == 0


def main(kind, name, scenarios=ALONE):
    import torch

    from accelrt.interop import torch as interop

    if kind == "standin":
        from cudart_standin import Standin

        kept = Standin()
        interop.require_cuda = lambda torch: None
    scenarios[name](interop, torch)
    torch.cuda.synchronize()
    if kind == "standin":
        assert kept
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
