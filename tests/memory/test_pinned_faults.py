"""Page-locked memory where calls fail, threads meet, and processes fork and end."""

import gc

import numpy as np
import pytest
from beside import Crowd, on_threads
from child import fail_each_call, in_child, in_fork, in_own_process, run_code, wrap_host

import accelrt
from accelrt.driver.host import driver as host

OUT_OF_MEMORY, UNKNOWN = 2, 999
MIB = 1 << 20
HOST = {"ACCELRT_DRIVER": "host"}


def path(register):
    """Everything that the cache does with a driver, through two streams and a capture."""
    accelrt.configure_pinned(pinned_use_cuda_host_register=register, pinned_max_cached_size_mb=4)
    first, second, graph = accelrt.Stream(), accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.Buffer(MIB) as buffer:
        for size in (1000, MIB, 5 * MIB):
            pinned = accelrt.pinned_empty(size, np.uint8)
            buffer.copy_from(pinned[:1000], stream=first, blocking=False)
            accelrt.record_host_stream(pinned, second)
        with accelrt.graph(graph, stream=first):
            buffer.copy_from(pinned[:MIB], stream=first, blocking=False)
        second.wait_stream(first)
        accelrt.record_stream(buffer.ptr, second)
        with accelrt.stream(second):
            graph.replay()
        del pinned
        graph.reset()
        with accelrt.register_host(np.zeros(5000)):
            pass
        accelrt.synchronize()
    accelrt.host_empty_cache()


def settled():
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    accelrt.memory.host_audit()
    stats = accelrt.host_memory_stats()
    assert stats["active_bytes.current"] == stats["allocated_bytes.current"] == 0
    return host.live_objects()


@pytest.mark.parametrize("register", [False, True])
@pytest.mark.parametrize("mode", ["once", "onward"])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
@in_own_process(printing="")
def test_every_call_of_the_cache_may_fail(mode, code, register):
    wrap_host()
    fail_each_call(lambda: path(register), settled, code, mode)


@in_own_process
def test_a_refusal_frees_what_is_idle_and_then_says_what_is_held():
    faults = wrap_host()
    idle = accelrt.PinnedBuffer(3 * MIB)
    idle.free()
    faults.arm(call=1, code=OUT_OF_MEMORY, mode="once", rows=["host_alloc"])
    accelrt.PinnedBuffer(8 * MIB).free()  # after the idle memory went back
    assert accelrt.host_memory_stats()["num_host_free"] == 1
    live = accelrt.PinnedBuffer(MIB)
    faults.arm(call=1, code=OUT_OF_MEMORY, mode="onward", rows=["host_alloc"])
    with pytest.raises(accelrt.OutOfMemoryError, match=r"host_empty_cache\(\)") as caught:
        accelrt.PinnedBuffer(8 * MIB + 1)
    error = caught.value
    assert (error.requested, error.live) == (8 * MIB + 1, MIB)
    assert str(error).startswith("Host out of memory. Tried to allocate 8.00 MiB of page-locked memory.")
    faults.disarm()
    live.free()


def refused_events(code):
    faults = wrap_host()
    stream, pinned = accelrt.Stream(), accelrt.PinnedBuffer(1000)
    accelrt.record_host_stream(pinned, stream)
    faults.arm(call=1, code=code, mode="onward", rows=["event_record"])
    pinned.free()
    print(accelrt.host_memory_stats()["active_requests.current"])
    accelrt.host_empty_cache()
    print(accelrt.host_memory_stats()["active_requests.current"])


@pytest.mark.own_process
def test_memory_of_a_stream_that_takes_no_event_waits_for_the_device():
    assert in_child(refused_events, 999).split() == ["1", "0"]


@pytest.mark.own_process
@pytest.mark.parametrize("gone", [201, 400, 709], ids=["no context", "no handle", "destroyed context"])
def test_memory_of_a_stream_that_is_gone_is_free_at_once(gone):
    assert in_child(refused_events, gone).split() == ["0", "0"]


@pytest.mark.parametrize("background", [False, True])
def test_eight_threads_share_the_cache(background):
    accelrt.configure_pinned(pinned_use_background_threads=background)

    def work(seed):
        random, stream = np.random.default_rng(seed), accelrt.Stream()
        with accelrt.Buffer(MIB, stream=stream) as buffer:
            for round_ in range(60):
                pinned = accelrt.pinned_empty(int(random.integers(1, MIB)), np.uint8)
                pinned[:] = value = (seed * 31 + round_) % 256
                out = np.zeros(pinned.size, np.uint8)
                buffer.copy_from(pinned, stream=stream, blocking=False)
                size = pinned.size
                del pinned
                other = accelrt.pinned_empty(size, np.uint8)
                other[:] = 255 - value
                buffer.copy_to(out, size, stream=stream)
                assert (out == value).all()
                assert (other == 255 - value).all()
                if round_ % 20 == 0:
                    accelrt.host_empty_cache()
                    accelrt.memory.host_audit()

    try:
        on_threads(work, range(8))
    finally:
        accelrt.configure_pinned(pinned_use_background_threads=False)


@pytest.mark.parametrize("background", [False, True])
@in_own_process
def test_a_forked_child_is_told_and_never_hangs(background):
    accelrt.configure_pinned(pinned_use_background_threads=background)
    pinned, stream = accelrt.PinnedBuffer(4096), accelrt.Stream()

    def churn():
        buffer = accelrt.PinnedBuffer(1000)
        accelrt.record_host_stream(buffer, stream)
        buffer.free()

    def child():
        with pytest.raises(accelrt.ForkedError, match="spawn"):
            accelrt.PinnedBuffer(10)
        with pytest.raises(accelrt.ForkedError, match="spawn"):
            accelrt.caching_host_allocator_delete(pinned.ptr)
        pinned.free()
        accelrt.memory.host_audit()

    with Crowd(churn):
        assert [in_fork(child) for _ in range(20)] == [0] * 20


@in_own_process
def test_a_fork_before_the_first_use_leaves_the_child_its_own_cache():
    accelrt.configure_pinned(pinned_use_background_threads=True)

    def use():
        pinned, stream = accelrt.PinnedBuffer(4096), accelrt.Stream()
        accelrt.record_host_stream(pinned, stream)
        pinned.free()
        accelrt.host_empty_cache()

    assert in_fork(use) == 0
    use()


@pytest.mark.own_process
@pytest.mark.parametrize("background", [False, True])
def test_the_interpreter_ends_with_arrays_and_copies_alive(background):
    out = run_code(
        "import accelrt, numpy as np, sys, time\n"
        f"accelrt.configure_pinned(pinned_use_background_threads={background})\n"
        "stream, buffer = accelrt.Stream(), accelrt.Buffer(1 << 20)\n"
        "stream.launch_host_func(lambda: time.sleep(0.2))\n"
        "arrays = [accelrt.pinned_empty(1 << 20, np.uint8) for _ in range(4)]\n"
        "for array in arrays:\n"
        "    buffer.copy_from(array, stream=stream, blocking=False)\n"
        "del arrays[:2]\n"
        "sys.keep = (arrays, accelrt.register_host(np.zeros(10000)))\n"
        "print('end')\n",
        **HOST,
    )
    assert out.split() == ["end"]


@pytest.mark.own_process
def test_importing_starts_no_thread_though_a_setting_asks_for_one():
    out = run_code(
        "import accelrt, os\n"
        "accelrt.configure_pinned(pinned_use_background_threads=True)\n"
        "print(len(os.listdir('/proc/self/task')), accelrt.is_initialized())",
        **HOST,
    )
    assert out.split() == ["1", "False"]
