"""Two parties of a torch program at once, install() and uninstall() among them: each scenario in a process of
its own, which tests/interop/test_torch_at_once.py starts.

    python torch_at_once.py gpu|standin NAME

It prints "done" where nothing went wrong.  "standin" is cudart_standin, which has copies and no kernels.
"""

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import traceback

import torch_whole
from torch_setting import Scenarios, holds, numbers, refused

AT_ONCE = Scenarios()
LIMIT = 120  # seconds until a thread counts as stuck


@contextlib.contextmanager
def beside(*functions):
    """Threads that call a function again and again until the block ends; an error of theirs is raised."""
    over, failures = threading.Event(), []

    def repeat(function):
        try:
            while not over.is_set():
                function()
        except BaseException:
            failures.append(traceback.format_exc())
            over.set()

    threads = [threading.Thread(target=repeat, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield over
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT)
    assert failures == [], failures[0]
    assert not any(thread.is_alive() for thread in threads), "a thread is stuck"


def together(count, function):
    """Calls function(number) on threads that start at the same moment; an error of theirs is raised."""
    barrier, failures = threading.Barrier(count), []

    def call(number):
        try:
            barrier.wait(LIMIT)
            function(number)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert failures == [], failures[0]
    assert not any(thread.is_alive() for thread in threads), "a thread is stuck"


def at_once(function):
    """A scenario that leaves nothing once its names are gone."""

    def run(interop, torch):
        import accelrt

        function(interop, torch)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        accelrt.memory.empty_cache()
        assert accelrt.memory_allocated(0) == 0
        accelrt.memory.audit()

    AT_ONCE[function.__name__] = run
    return function


@contextlib.contextmanager
def silenced():
    """Sends what C writes to stderr nowhere."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def uses_memory(torch, seed):
    """A function that fills tensors on a stream of its own, keeps some, and looks at their contents."""
    choice, stream, kept = random.Random(seed), torch.cuda.Stream(), []

    def use():
        with torch.cuda.stream(stream):
            count, first = choice.choice((1, 300, 5000, 400_000)), choice.randrange(1000)
            kept.append((torch.empty(count, device="cuda"), first))
            kept[-1][0].copy_(numbers(torch, count, first))
            if len(kept) > 8:
                tensor, first = kept.pop(choice.randrange(8))
                stream.synchronize()
                assert holds(tensor, numbers(torch, tensor.numel(), first))
                if choice.random() < 0.3:
                    tensor.record_stream(torch.cuda.default_stream())

    return use


# --- install() and uninstall() ------------------------------------------------------------------------------


@at_once
def threads_install_and_uninstall_at_once(interop, torch):
    before = [torch._C._cuda_init, torch.cuda.MemPool, torch._C._cuda_memoryStats]
    for _ in range(5):
        together(6, lambda number: interop.install(pinned=number % 2 == 0))
        assert interop.is_installed()
        assert torch.cuda.get_allocator_backend() == "accelrt"
        assert holds(numbers(torch, 100).cuda(), numbers(torch, 100))
        together(6, lambda number: interop.uninstall())
        assert not interop.is_installed()
        assert torch.cuda.get_allocator_backend() == "native"
        assert [torch._C._cuda_init, torch.cuda.MemPool, torch._C._cuda_memoryStats] == before
        together(6, lambda number: interop.uninstall() if number % 2 else interop.install())
        interop.uninstall()
        assert [torch._C._cuda_init, torch.cuda.MemPool, torch._C._cuda_memoryStats] == before


@at_once
def threads_allocate_while_it_comes_and_goes(interop, torch):
    torch.cuda.init()
    with beside(*(uses_memory(torch, seed) for seed in range(3))) as over:
        for _ in range(40):
            interop.install()
            over.wait(0.02)
            interop.uninstall()
            over.wait(0.01)


@at_once
def tensors_of_each_allocator_end_in_the_others_time(interop, torch):
    import accelrt

    choice, kept = random.Random(3), []
    for turn in range(12):
        (interop.uninstall if turn % 2 else interop.install)()
        for _ in range(20):
            first = choice.randrange(1000)
            kept.append((numbers(torch, choice.choice((1, 300, 70_000)), first).cuda(), first, turn % 2))
        choice.shuffle(kept)
        for tensor, first, _ in kept:
            assert holds(tensor, numbers(torch, tensor.numel(), first))
        stream = torch.cuda.Stream()
        kept[0][0].record_stream(stream)
        tensor = None
        del kept[:15]
        live = sum(-(-tensor.numel() * 4 // 512) * 512 for tensor, _, theirs in kept if not theirs)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert accelrt.memory_allocated(0) == live
    tensor = None
    kept.clear()
    interop.uninstall()


@at_once
def uninstall_beside_pools_and_captures_refuses_or_is_right(interop, torch):
    torch.cuda.init()
    turn = threading.Lock()  # torch's own allocator ends the process where a MemPool dies beside a capture
    side = torch.cuda.Stream()  # torch has 32 in turn, so a new one each time would be another thread's

    def enter_pools():
        with turn:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                tensor = numbers(torch, 100).cuda()
            del pool
        assert holds(tensor, numbers(torch, 100))

    def capture():
        source, graph = numbers(torch, 100).cuda(), torch.cuda.CUDAGraph()
        with turn, torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            copy = source.clone()
            graph.capture_end()
            graph.replay()
            torch.cuda.current_stream().synchronize()
        assert holds(copy, numbers(torch, 100))

    interop.install()
    gone = 0
    with beside(enter_pools, capture, uses_memory(torch, 1)) as over:
        for _ in range(40):
            with contextlib.suppress(RuntimeError):  # there are pools just now
                interop.uninstall()
            gone += not interop.is_installed()
            over.wait(0.005)
            interop.install()
            over.wait(0.005)
            if over.is_set():
                break
    print("it was gone", gone, "times")
    interop.uninstall()


@at_once
def loaders_pin_while_it_comes_and_goes(interop, torch):
    from torch.utils.data import DataLoader, TensorDataset

    rows = numbers(torch, 640).reshape(320, 2)

    def load():
        loader = DataLoader(TensorDataset(rows), batch_size=8, num_workers=1, pin_memory=True)
        batches = [batch for (batch,) in loader]
        assert all(batch.is_pinned() for batch in batches)
        on_device = [batch.cuda(non_blocking=True) for batch in batches]
        assert holds(torch.cat([each.cpu() for each in on_device]), rows)

    for _ in range(2):
        with beside(load) as over:
            for _ in range(15):
                interop.install(pinned=True)
                over.wait(0.03)
                interop.uninstall()
                over.wait(0.02)


# --- streams, pools and captures ----------------------------------------------------------------------------


@at_once
def autograd_frees_what_threads_made_on_their_streams(interop, torch):
    interop.install()
    other = torch.cuda.Stream()

    class Copies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, source):
            ctx.save_for_backward(source.clone())
            return source.clone()

        @staticmethod
        def backward(ctx, gradient):
            (saved,) = ctx.saved_tensors
            saved.record_stream(other)
            return gradient.clone()

    def learn(seed):
        choice = random.Random(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(25):
                count, first = choice.choice((1, 300, 70_000)), choice.randrange(1000)
                leaf = numbers(torch, count).cuda().requires_grad_()
                gradient = numbers(torch, count, first).cuda()
                Copies.apply(Copies.apply(leaf)).backward(gradient)
                torch.cuda.current_stream().synchronize()
                assert holds(leaf.grad, numbers(torch, count, first))
                assert holds(leaf.detach(), numbers(torch, count))

    together(4, learn)


@at_once
def captures_on_threads_beside_others_that_allocate(interop, torch):
    interop.install()

    def capture(number):
        source, graphs = numbers(torch, 5000, number).cuda(), []
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            for _ in range(8):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    copy = source.clone()
                    del_me = copy.clone()
                    del del_me
                    copy = copy.clone()
                graphs.append((graph, copy))
                source.copy_(numbers(torch, 5000, number + len(graphs)))
                for graph, copy in graphs:
                    graph.replay()
                    torch.cuda.current_stream().synchronize()
                    assert holds(copy, numbers(torch, 5000, number + len(graphs)))

    with beside(uses_memory(torch, 1), uses_memory(torch, 2)):
        together(1, capture)


@at_once
def threads_share_a_mem_pool_and_let_it_go_at_any_moment(interop, torch):
    interop.install()

    def use(number, pools, kept):
        choice = random.Random(number)
        for index in range(len(pools)):
            pool = pools[index]
            with torch.cuda.use_mem_pool(pool):
                pools[index] = None  # whoever is last drops it
                kept.append((numbers(torch, choice.choice((10, 5000)), number).cuda(), number))
                del pool
                kept.append((numbers(torch, 10, number).cuda(), number))

    for _ in range(3):
        shared = [torch.cuda.MemPool() for _ in range(12)]
        both, kept = [list(shared), list(shared)], []
        shared.clear()
        together(2, lambda number, both=both, kept=kept: use(number, both[number], kept))
        assert all(holds(tensor, numbers(torch, tensor.numel(), first)) for tensor, first in kept)
        kept.clear()


@at_once
def threads_record_streams_that_live_and_that_are_gone(interop, torch):
    import accelrt

    interop.install()
    tensor, ours = numbers(torch, 1000).cuda(), accelrt.Stream()
    gone = torch.cuda.ExternalStream(ours.cuda_stream)
    tensor.record_stream(gone)
    ours.synchronize()
    del ours
    gc.collect()

    pairs = [[torch.cuda.Stream(), torch.cuda.Stream()] for _ in range(4)]

    def record(number):
        streams = pairs[number]
        for _ in range(200):
            for stream in streams:
                tensor.record_stream(stream)
            other = torch.empty(100, device="cuda")
            other.record_stream(streams[0])
            del other

    together(4, record)
    assert holds(tensor, numbers(torch, 1000))


# --- callbacks ----------------------------------------------------------------------------------------------


@at_once
def observers_take_long_fail_again_and_uninstall(interop, torch):
    interop.install()
    torch.empty(1, device="cuda")
    seen = []

    def fill_all():
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    def take_long(*figures):
        seen.append("long")
        threading.Event().wait(0.2)

    def fail_again(*figures):
        seen.append("again")
        if seen.count("again") < 3:
            with refused(torch.OutOfMemoryError, "CUDA out of memory"):
                fill_all()

    def take_away(*figures):
        seen.append("away")
        interop.uninstall()

    for observer in (take_long, fail_again, take_away):
        torch._C._cuda_attach_out_of_memory_observer(observer)
    with beside(uses_memory(torch, 1)), refused(torch.OutOfMemoryError, "CUDA out of memory"):
        fill_all()
    assert seen == ["long", "again"] * 3 + ["away"] * 3
    assert not interop.is_installed()


TRACKER = """
#include <c10/cuda/CUDACachingAllocator.h>
#include <stdexcept>
using namespace c10::cuda::CUDACachingAllocator;
long told, refused, fails = 1;
static void *kept, *fresh;
template <class Call>
static void try_to(Call call) {
  try {
    call();
  } catch (const std::exception &error) {
    refused += std::string(error.what()).find("by a tracker of its own events") != std::string::npos;
  }
}
extern "C" __attribute__((visibility("default"))) void attach() {
  static c10::DataPtr held = get()->allocate(1000);
  kept = raw_alloc(1000);
  get()->attachAllocatorTraceTracker([](const TraceEntry &) {
    if (++told > 1 && fails) throw std::runtime_error("a tracker that fails");
    if (told > 1) return;
    try_to([] { fresh = raw_alloc(1000); });
    try_to([] { raw_delete(kept); });
    try_to([] { get()->snapshot(); });
    try_to([] { get()->getDeviceStats(0); });
    held.clear();
  });
}
extern "C" __attribute__((visibility("default"))) void give_back() {
  raw_delete(kept);
  fails = 0;
}
extern "C" __attribute__((visibility("default"))) long count(int which) { return which ? refused : told; }
"""


@at_once
def trackers_raise_and_use_memory(interop, torch):
    import ctypes
    import subprocess
    import tempfile
    from pathlib import Path

    from accelrt.interop import torch_build, torch_sources

    interop.install()
    torch.empty(1, device="cuda")
    live, home = torch.cuda.memory_allocated(), Path(torch.__file__).parent
    flags = torch_sources.arguments(torch_build.minor_of(torch), home / "include", 1)
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "tracker.cpp"), Path(folder, "tracker.so")
        source.write_text(TRACKER)
        libraries = [f"-l{name}" for name in torch_sources.LIBRARIES]
        command = [*torch_build.find_compiler(), *flags, source, "-o", path, f"-L{home / 'lib'}", *libraries]
        subprocess.run(command, check=True)
        tracker = ctypes.CDLL(path)
    tracker.attach()
    with silenced():
        kept = numbers(torch, 100).cuda()
        assert (tracker.count(1), torch.cuda.memory_allocated()) == (4, live + 1024 + 512), "held went back"
        del kept
        assert tracker.count(0) > 4
        tracker.give_back()
    assert torch.cuda.memory_allocated() == live
    global attached
    attached = tracker  # torch calls it until the end


@at_once
def memory_runs_out_in_a_backward_pass_and_is_there_again(interop, torch):
    interop.install()
    big = 64 << 20

    class Needs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, source):
            return source.clone()

        @staticmethod
        def backward(ctx, gradient):
            needed = torch.empty(big, dtype=torch.uint8, device="cuda")
            needed.record_stream(torch.cuda.Stream())
            return gradient.clone()

    leaf = numbers(torch, 100).cuda().requires_grad_()
    hog = torch.empty(big, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.5 * big / torch.cuda.mem_get_info()[1])
    for _ in range(3):
        with refused(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 64.00 MiB"):
            Needs.apply(leaf).backward(numbers(torch, 100, 5).cuda())
        assert leaf.grad is None
    hog = None
    Needs.apply(leaf).backward(numbers(torch, 100, 5).cuda())
    assert hog is None
    assert holds(leaf.grad, numbers(torch, 100, 5))
    torch.cuda.set_per_process_memory_fraction(1.0)


# --- processes and signals ----------------------------------------------------------------------------------


@at_once
def children_beside_threads_whose_history_is_recorded(interop, torch):
    interop.install(pinned=True)
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = [numbers(torch, 100).cuda() for _ in range(20)]
    with beside(uses_memory(torch, 1), uses_memory(torch, 2)):
        for _ in range(25):
            child = os.fork()
            if child == 0:
                signal.alarm(LIMIT)  # a child that is stuck ends by it
                kept.clear()
                torch.cuda.memory._snapshot()
                torch.cuda.memory._record_memory_history(None)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    torch.cuda.memory._record_memory_history(None)
    assert all(holds(each, numbers(torch, 100)) for each in kept)


@at_once
def children_let_go_beside_threads_that_allocate_in_pools(interop, torch):
    # torch's filter of a stream's pool is asked at each allocation, under a lock, while the GIL is free.
    interop.install(pinned=True)
    routed, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch._C._cuda_beginAllocateCurrentStreamToPool(0, routed.id)
    kept = [torch.cuda.MemPool() for _ in range(20)]
    for pool in list(kept):
        with torch.cuda.use_mem_pool(pool):
            kept += [numbers(torch, 100).cuda(), numbers(torch, 100).pin_memory()]
    source, graph = numbers(torch, 100).cuda(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept.append(source.clone())
    kept += [graph, source]
    del pool, graph, source

    def allocate():
        with torch.cuda.stream(side):
            for _ in range(20):
                torch.empty(1000, device="cuda")

    with beside(allocate, allocate, allocate):
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(LIMIT // 4)  # a child that is stuck ends by it
                kept.clear()
                gc.collect()
                torch.cuda.empty_cache()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    torch._C._cuda_endAllocateToPool(0, routed.id)
    torch._C._cuda_releasePool(0, routed.id)
    kept[-2].replay()
    assert holds(kept[-3], numbers(torch, 100))


@at_once
def two_hundred_interruptions_of_a_training_loop(interop, torch):
    interop.install(pinned=True)
    source, graph = numbers(torch, 1000).cuda(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copied = source.clone()
    leaf, side, count = numbers(torch, 1000).cuda().requires_grad_(), torch.cuda.Stream(), 0

    def step():
        batch = numbers(torch, 1000).pin_memory().cuda(non_blocking=True)
        batch.record_stream(side)
        leaf.grad = None
        leaf.clone().backward(batch)
        assert holds(leaf.grad, numbers(torch, 1000))
        graph.replay()
        torch.cuda.memory_stats()
        torch.cuda.memory._snapshot()
        torch.cuda.empty_cache()
        assert holds(copied, numbers(torch, 1000))

    def interrupt(number, frame):
        while frame is not None:
            if "cudart_standin" in frame.f_code.co_filename:  # no place of a program's: a moment later
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    step()  # which imports what is imported at its first use
    choice, before = random.Random(1), signal.signal(signal.SIGALRM, interrupt)
    while count < 200:
        try:
            signal.setitimer(signal.ITIMER_REAL, choice.uniform(0.0005, 0.02))
            while True:
                step()
        except KeyboardInterrupt:
            count += 1
    signal.signal(signal.SIGALRM, before)
    step()


def main(kind, name):
    torch_whole.main(kind, name, AT_ONCE)


if __name__ == "__main__":
    main(*sys.argv[1:])
