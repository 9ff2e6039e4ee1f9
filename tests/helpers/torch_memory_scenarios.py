"""What torch does with memory and streams on accelrt; torch_scenarios.py runs it."""

import threading

from torch_setting import MIB, held, kernels, refused, scenario, within


@scenario
def memory_is_accelrts_and_keeps_its_contents(t):
    before = t.accelrt.memory_allocated(0)
    tensors = [t.tensor(t.numbers(1000 + 300 * index, index)) for index in range(40)]
    assert t.accelrt.memory_allocated(0) - before == sum(
        -(-each.numel() * 4 // 512) * 512 for each in tensors
    )
    addresses = {
        block["address"] for segment in t.accelrt.memory.memory_snapshot(0) for block in segment["blocks"]
    }
    assert {each.data_ptr() for each in tensors} <= addresses
    for index, each in enumerate(tensors):
        assert t.holds(each, t.numbers(each.numel(), index))
    del tensors, each
    assert t.accelrt.memory_allocated(0) == before


@scenario
def installing_again_does_nothing(t):
    t.interop.install()
    assert t.interop.is_installed()
    assert t.torch.cuda.get_allocator_backend() == ("pluggable" if t.is_plugged else "accelrt")


@scenario
def statistics_are_accelrts_to_the_byte(t):
    cuda = t.torch.cuda
    cuda.reset_peak_memory_stats()
    kept = t.tensor(t.numbers(3 * MIB))
    base = t.figures()[0]
    more = t.tensor(t.numbers(5 * MIB))
    assert t.figures()[0] - base == 20 * MIB
    del more
    assert t.figures()[2] - base == 20 * MIB
    cuda.reset_peak_memory_stats()
    assert t.figures()[2] == base
    theirs, ours = cuda.memory_stats(), t.accelrt.memory_stats(0)
    assert dict(theirs) == ours
    for key in ("allocation.all.current", "num_alloc_retries", "oversize_segments.peak", "num_ooms"):
        assert key in theirs
    cuda.reset_accumulated_memory_stats()
    assert t.accelrt.memory_stats(0)["allocated_bytes.all.allocated"] == 0
    assert "PyTorch CUDA memory summary" in cuda.memory_summary()
    assert cuda.mem_get_info()[1] == t.accelrt.mem_get_info(0)[1]
    if hasattr(t.torch.accelerator, "memory_stats"):
        assert t.torch.accelerator.memory_allocated() == cuda.memory_allocated()
        assert dict(t.torch.accelerator.memory_stats()) == dict(cuda.memory_stats())
    del kept


@scenario
def a_snapshot_shows_every_tensor(t):
    tensor = t.tensor(t.numbers(70_000))
    pool = t.torch.cuda.MemPool()
    with t.torch.cuda.use_mem_pool(pool):
        inside = t.tensor(t.numbers(5000))
    segments = t.torch.cuda.memory_snapshot()
    owner = {}
    for segment in segments:
        assert segment["total_size"] >= segment["allocated_size"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                owner[block["address"]] = segment["segment_pool_id"]
    assert owner[tensor.data_ptr()] == (0, 0)
    assert owner[inside.data_ptr()] == pool.id
    assert sum(segment["total_size"] for segment in segments) == t.accelrt.memory_reserved(0)
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    whole = t.torch.cuda.memory._snapshot()
    assert len(whole["segments"]) == len(segments)
    devices = t.accelrt.device_count() if t.is_plugged else t.torch.cuda.device_count()
    assert len(whole["device_traces"]) == devices


@scenario
def torchs_own_functions_record_and_show_the_history(t):
    import pickle

    from torch.cuda import _memory_viz

    def make():
        return t.tensor(t.numbers(1234))

    t.torch.cuda.memory._record_memory_history(stacks="python")
    with t.accelrt.memory.tag("batch"):
        tensor = make()
    address = tensor.data_ptr()
    del tensor
    held = make()
    snapshot = pickle.loads(pickle.dumps(t.torch.cuda.memory._snapshot()))
    t.torch.cuda.memory._record_memory_history(None)
    entries = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    first = next(entry for entry in entries if entry["addr"] == address)
    assert first["tag"] == "batch"
    assert "make" in [frame["name"] for frame in first["frames"]]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    block = next(block for block in blocks if block["address"] == held.data_ptr())
    assert "make" in [frame["name"] for frame in block["frames"]]
    assert f"del {address}" not in _memory_viz.trace(snapshot), "torch's viewer knows what was freed"
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    for page in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<html" in page(snapshot).lower() or "<!doctype" in page(snapshot).lower()
    t.torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100)
    t.torch.cuda.memory._record_memory_history(False)
    t.torch.cuda.memory._record_memory_history(None, clear_history=True)


@scenario
def memory_recorded_on_another_stream_is_kept_until_it_is_past(t):
    side = t.torch.cuda.Stream()
    tensor = t.tensor(t.numbers(MIB))
    address = tensor.data_ptr()
    t.torch.cuda.synchronize()
    with held(t, side):
        tensor.record_stream(side)
        del tensor
        stats = t.accelrt.memory_stats(0)
        pending = stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]
        assert pending == 4 * MIB
        again = t.torch.empty(MIB, device="cuda")
        assert again.data_ptr() != address
    side.synchronize()
    del again
    t.torch.empty(MIB, device="cuda")
    stats = t.accelrt.memory_stats(0)
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]


@scenario
def foreign_and_empty_memory_is_recorded_without_a_word(t):
    side = t.torch.cuda.Stream()
    t.torch.empty(0, device="cuda").record_stream(side)
    buffer = t.accelrt.empty((100,), "float32")
    shared = t.torch.from_dlpack(buffer) if t.on_gpu else None
    if shared is not None:
        shared.record_stream(side)
    del shared, buffer


@scenario
def empty_cache_gives_memory_back(t):
    t.is_tidy()
    before = t.torch.cuda.memory_reserved()
    tensor = t.tensor(t.numbers(16 * MIB))
    del tensor
    assert t.torch.cuda.memory_reserved() >= before + 64 * MIB
    t.torch.cuda.empty_cache()
    assert t.torch.cuda.memory_reserved() == before


@scenario
def out_of_memory_is_torchs_error(t):
    torch = t.torch
    kept = t.tensor(t.numbers(1000))
    size = 1 << 50
    words = ("CUDA out of memory. Tried to allocate", str(size), "accelrt reserved")
    with refused(torch.cuda.OutOfMemoryError, *words):
        torch.empty(size, dtype=torch.uint8, device="cuda")
    assert t.holds(kept, t.numbers(1000))


@scenario
def the_fraction_is_a_limit(t):
    torch, cuda = t.torch, t.torch.cuda
    t.is_tidy()
    total = cuda.mem_get_info()[1]
    cuda.set_per_process_memory_fraction((cuda.memory_reserved() + 64 * MIB) / total)
    try:
        if hasattr(cuda, "get_per_process_memory_fraction"):
            assert 0 < cuda.get_per_process_memory_fraction() < 1
        fits = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
        with refused(torch.OutOfMemoryError, "set_per_process_memory_fraction"):
            torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        del fits
    finally:
        cuda.set_per_process_memory_fraction(1.0)
    torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    if hasattr(cuda, "get_per_process_memory_fraction"):
        assert cuda.get_per_process_memory_fraction() == 1


@scenario
def a_mem_pool_sleeps_and_wakes(t):
    cuda, memory = t.torch.cuda, t.accelrt.memory
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        inside = t.tensor(t.numbers(2_000_000))
    address = inside.data_ptr()
    for named in (None, pool, pool.id):
        asleep = pool.sleep() if named is None else memory.sleep(named)
        assert asleep.copied >= 8_000_000
        assert pool.is_asleep()
        assert {segment["asleep"] for segment in pool.snapshot()} == {True}
        assert cuda.memory_stats()["sleeping_bytes"] >= 8_000_000
        with refused(RuntimeError, "a pool that sleeps"), cuda.use_mem_pool(pool):
            t.torch.empty(1000, device="cuda")
        _ = pool.wake() if named is None else memory.wake(named)
        assert inside.data_ptr() == address
        assert t.holds(inside, t.numbers(2_000_000))
    pool.sleep()
    del inside, named, pool
    t.is_tidy()
    assert memory.sleeping() == 0


@scenario
def a_mem_pool_has_memory_of_its_own(t):
    cuda = t.torch.cuda
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        inside = t.tensor(t.numbers(2000))
        assert pool.use_count() == 2
        others = []

        def allocate(others=others):
            others.append(t.tensor(t.numbers(2000, 7)))

        thread = threading.Thread(target=allocate, daemon=True)
        thread.start()
        thread.join()
    assert pool.use_count() == 1
    outside = t.tensor(t.numbers(2000))
    segments = pool.snapshot()
    assert within(inside, segments)
    assert not within(outside, segments)
    assert not within(others[0], segments), "another thread's"
    del inside
    with cuda.use_mem_pool(pool):
        again = t.tensor(t.numbers(2000, 3))
    assert within(again, segments), "its idle memory is its own"
    assert t.holds(again, t.numbers(2000, 3))
    number = pool.id
    del pool, again, outside, others, allocate, thread
    t.is_tidy()
    assert [each for each in cuda.memory_snapshot() if each["segment_pool_id"] == number] == []


@scenario
def a_mem_pool_refuses_what_it_cannot_do(t):
    with refused(t.accelrt.NotSupportedError if t.is_plugged else TypeError, "MemPool"):
        t.torch.cuda.MemPool(allocator=True)
    assert t.torch.cuda.MemPool(use_on_oom=True, no_split=True).use_count() == 1


@scenario
def streams_cross_both_ways(t):
    torch, accelrt = t.torch, t.accelrt
    ours = accelrt.Stream()
    external = torch.cuda.ExternalStream(ours.cuda_stream)
    with torch.cuda.stream(external):
        tensor = torch.empty(5000, device="cuda")
        tensor.copy_(t.numbers(5000), non_blocking=True)
        external.synchronize()
        assert t.holds(tensor, t.numbers(5000))
        del tensor
    theirs = torch.cuda.Stream()
    stream = accelrt.Stream.from_any(theirs)
    assert stream.cuda_stream == theirs.cuda_stream
    pointer = accelrt.caching_allocator_alloc(4096, 0, stream)
    with torch.cuda.stream(theirs):
        tensor = torch.empty(1024, device="cuda")
    accelrt.caching_allocator_delete(pointer)
    with torch.cuda.stream(theirs):
        again = torch.empty(1024, device="cuda")
    assert again.data_ptr() == pointer, "one heap serves the stream, whoever asks"
    del tensor, again


@scenario
def raw_allocations_are_accelrts(t):
    address = t.torch.cuda.caching_allocator_alloc(5000)
    before = t.accelrt.memory_allocated(0)
    t.torch.cuda.caching_allocator_delete(address)
    assert before - t.accelrt.memory_allocated(0) == 5120


@scenario
def threads_allocate_on_their_own_streams(t):
    from accelrt.testing.threads import on_threads

    torch = t.torch

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(60):
                size = 100 + 997 * (step * (number + 3) % 61)
                tensor = torch.empty(size, device="cuda")
                tensor.copy_(t.numbers(size, number))
                torch.cuda.current_stream().synchronize()
                assert t.holds(tensor, t.numbers(size, number))

    on_threads(work, range(4))
    t.figures()


@scenario
def the_largest_block_is_answered(t):
    # As cuDNN's benchmark mode asks, through the allocator's table of virtual functions.
    import ctypes

    libraries = ctypes.CDLL(t.torch._C.__file__)
    place = ctypes.c_void_p.in_dll(libraries, "_ZN3c104cuda20CUDACachingAllocator9allocatorE").value
    table = ctypes.c_void_p.from_address(place).value
    original = ctypes.addressof(
        ctypes.c_char.in_dll(libraries, "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE")
    )
    assert table != original + 16, "the table is torch's own"
    entry = ctypes.addressof(
        ctypes.c_char.in_dll(
            libraries, "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm"
        )
    )
    size = ctypes.sizeof(ctypes.c_void_p)
    index = next(
        index
        for index in range(40)
        if ctypes.c_void_p.from_address(original + 16 + index * size).value == entry
    )
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int8, ctypes.POINTER(ctypes.c_size_t))
    largest = ctypes.c_size_t()
    changed = ctypes.c_void_p.from_address(table + index * size).value
    function(changed)(place, 0, ctypes.byref(largest))
    free, total = t.torch.cuda.mem_get_info()
    assert free // 2 <= largest.value <= total


@kernels
def cudnn_benchmark_mode_finds_a_kernel(t):
    torch = t.torch
    torch.backends.cudnn.benchmark = True
    try:
        layer = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
        image = torch.randn(8, 16, 32, 32, device="cuda")
        assert layer(image).shape == (8, 32, 32, 32)
        torch.cuda.synchronize()
    finally:
        torch.backends.cudnn.benchmark = False


@kernels
def ten_thousand_mixed_allocations_keep_their_contents(t):
    import random

    torch, choice, live = t.torch, random.Random(11), {}
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]
    for step in range(10_000):
        stream = streams[choice.randrange(4)]
        with torch.cuda.stream(stream):
            size = choice.choice((1, 100, 5000, 70_000, 600_000))
            live[step] = (torch.full((size,), step, dtype=torch.int32, device="cuda"), stream)
        if len(live) > 60:
            tensor, stream = live.pop(choice.choice(list(live)))
            user = streams[choice.randrange(4)]
            user.wait_stream(stream)
            tensor.record_stream(user)
            with torch.cuda.stream(user):
                wrong = (tensor != tensor[0]).any()
                if step % 97 == 0:
                    assert not wrong.item()
    for step, (tensor, stream) in live.items():
        stream.synchronize()
        assert bool((tensor == step).all()), step
    del tensor, live
    t.is_tidy()
