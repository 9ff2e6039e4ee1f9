"""Memory that comes from a library's allocator, and the choice of a backend.

The choice is a process's, so each scenario runs in one of its own, on the driver that the tests run on."""

import ctypes
import os
import threading
from contextlib import suppress

import numpy as np
import pytest
from backend_use import capture, churn, figures, keep_shared, stay_within_a_limit
from child import in_child, in_own_process, wrap_host
from compiled import typed
from waiting import wait_until

import accelrt
from accelrt import memory
from accelrt.driver.host import driver as host
from accelrt.interop import cupy_memory
from accelrt.testing import failing_calls

pytestmark = pytest.mark.own_process
DRIVER = os.environ.get("ACCELRT_DRIVER", "host")
MIB = 1 << 20


def scenario(function, *arguments, **environment):
    return in_child(function, *arguments, ACCELRT_DRIVER=DRIVER, **environment)


class Books:
    """What the library says of itself."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def __getattr__(self, name):
        return typed(self.library, f"books_{name}")()

    def limit(self, size):
        typed(self.library, "books_limit", None, [ctypes.c_size_t])(size)


def plugged(path):
    memory.change_current_allocator(memory.CUDAPluggableAllocator(path, "books_alloc", "books_free"))
    return Books(path)


# --- what it does ---------------------------------------------------------------------------------


def contents_and_statistics(path):
    books = plugged(path)
    assert (memory.get_allocator_backend(), books.allocations) == ("pluggable", 0)
    data, out = np.arange(3 * MIB + 7, dtype=np.uint8), np.zeros(3 * MIB + 7, np.uint8)
    stream = accelrt.Stream()
    buffers = [accelrt.Buffer(data.nbytes, stream=stream), accelrt.Buffer(1000)]
    total = data.nbytes + 1000
    buffers[0].copy_from(data, stream=stream)
    buffers[0].copy_to(out, stream=stream)
    assert (out == data).all()
    assert accelrt.memory_allocated() == accelrt.memory_reserved() == books.live == total
    stats = accelrt.memory_stats()
    assert stats["allocation.large_pool.current"] == stats["allocation.small_pool.current"] == 1
    assert stats["requested_bytes.all.current"] == total
    assert stats["num_device_alloc"] == stats["segment.all.current"] == 2
    buffers[1].free()
    buffers[0].free()
    assert books.stream == stream.cuda_stream
    assert (books.frees, books.live, accelrt.memory_allocated()) == (2, 0, 0)
    assert accelrt.max_memory_allocated() == total
    accelrt.reset_peak_memory_stats()
    assert (accelrt.max_memory_allocated(), accelrt.memory_stats()["num_device_free"]) == (0, 2)
    memory.audit()


def a_stream_goes(path):
    books, stream, other = plugged(path), accelrt.Stream(), accelrt.Stream()
    address = accelrt.caching_allocator_alloc(MIB, stream=stream)
    accelrt.record_stream(address, other)
    for each in (stream, other):
        cupy_memory.stream_goes(0, each.cuda_stream)
    accelrt.caching_allocator_delete(address)
    assert (books.stream, books.live, figures()) == (0, 0, (0, 0))  # 0 is the legacy stream
    memory.audit()


def a_full_library_waits(path):
    # What is still in use elsewhere is waited for before memory is said to be out.
    books, gate = plugged(path), threading.Event()
    books.limit(4 * MIB)
    other = accelrt.Stream()
    shared = accelrt.Buffer(3 * MIB)
    other.launch_host_func(gate.wait)
    shared.record_stream(other)
    shared.free()

    def open_gate():
        wait_until(lambda: accelrt.memory_stats()["num_alloc_retries"])
        gate.set()

    opener = threading.Thread(target=open_gate)
    opener.start()
    buffer = accelrt.Buffer(2 * MIB)
    opener.join()
    with pytest.raises(accelrt.OutOfMemoryError, match="backend 'pluggable'") as caught:
        accelrt.Buffer(3 * MIB)
    assert (caught.value.requested, caught.value.live) == (3 * MIB, 2 * MIB)
    assert accelrt.memory_stats()["num_ooms"] == 1
    buffer.free()
    accelrt.Buffer(3 * MIB).free()
    assert books.live == 0


def devices_and_threads(path):
    books = plugged(path)
    assert accelrt.current_device() == 0
    if accelrt.device_count() > 1:
        with accelrt.Buffer(512, device=1):
            assert (books.device, figures(0), figures(1)) == (1, (0, 0), (512, 512))
        assert accelrt.current_device() == 0

    churn(lambda: books.live)
    assert books.frees == books.allocations


def shared_memory_stays(path):
    books = plugged(path)
    keep_shared(lambda: books.live)


def a_limit_holds(path):
    books = plugged(path)
    stay_within_a_limit(lambda: books.allocations)
    assert books.refusals == 0


def captures(path):
    books = plugged(path)
    capture(lambda: books.live, "pluggable")
    assert books.frees >= 2  # the buffer that was written to goes once its graph is gone


SCENARIOS = [contents_and_statistics, shared_memory_stays, a_full_library_waits, a_limit_holds]
SCENARIOS += [devices_and_threads, captures, a_stream_goes]


def round_trip(stream, other):
    """Memory goes out, is shared, and goes back; whatever fails, it is given back at the end."""
    address = accelrt.caching_allocator_alloc(MIB, 0, stream)
    try:
        accelrt.record_stream(address, other)
        accelrt.caching_allocator_delete(address)
    except accelrt.CudaError:
        with suppress(ValueError):  # what failed was its way back, which it goes later
            accelrt.caching_allocator_delete(address)
        raise
    other.synchronize()
    accelrt.empty_cache()


@pytest.mark.skipif(DRIVER != "host", reason="counts what the host device has alive")
@in_own_process
def test_every_call_of_the_driver_may_fail(pluggable):
    _faults, books = wrap_host(), plugged(pluggable)
    stream, other = accelrt.Stream(0), accelrt.Stream(0)
    round_trip(stream, other)
    events, raised = host.live_objects()["events"], 0
    for call, error in failing_calls(lambda: round_trip(stream, other)):
        raised += error is not None and error.code == 999
        accelrt.synchronize()
        accelrt.empty_cache()
        memory.audit()
        assert (figures(), books.live) == ((0, 0), 0), f"after call {call}"
        assert host.live_objects()["events"] == events, f"after call {call}"
    assert raised > 8


@pytest.mark.parametrize("function", SCENARIOS, ids=lambda function: function.__name__)
def test_a_plugged_library(pluggable, function):
    if DRIVER != "host" and function is shared_memory_stays:
        pytest.skip("the library's free waits for the device, which the scenario keeps busy")
    scenario(function, pluggable)


# --- the choice -----------------------------------------------------------------------------------


def chosen_too_late(path):
    allocator = memory.CUDAPluggableAllocator(path, "books_alloc", "books_free")
    assert accelrt.device_count() > 0
    assert memory.get_allocator_backend() == "native"
    memory.change_current_allocator(allocator)
    memory.select_backend("native")
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
    for change in (
        lambda: memory.change_current_allocator(allocator),
        lambda: memory.select_backend("cudaMallocAsync"),
    ):
        with pytest.raises(RuntimeError, match=r"in use already.*before the first allocation"):
            change()
    memory.select_backend("native")
    assert memory.get_allocator_backend() == "native"


def test_the_choice_ends_with_the_first_use(pluggable):
    scenario(chosen_too_late, pluggable)


def test_backends_that_are_not_are_refused():
    with pytest.raises(ValueError, match="'rmm' is not known; it may be native or cudaMallocAsync"):
        memory.select_backend("rmm")
    with pytest.raises(ValueError, match="change_current_allocator"):
        memory.select_backend("pluggable")
    with pytest.raises(TypeError, match="pass a CUDAPluggableAllocator"):
        memory.change_current_allocator(object())


def test_libraries_that_are_not_are_refused(pluggable, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.so does not exist"):
        memory.CUDAPluggableAllocator(tmp_path / "nowhere.so", "a", "b")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(OSError, match=r"text\.so cannot be loaded"):
        memory.CUDAPluggableAllocator(str(tmp_path / "text.so"), "a", "b")
    with pytest.raises(AttributeError, match="no function 'books_malloc', which alloc_fn_name names"):
        memory.CUDAPluggableAllocator(pluggable, "books_malloc", "books_free")
    with pytest.raises(AttributeError, match="no function 'books_delete', which free_fn_name names"):
        memory.CUDAPluggableAllocator(pluggable, "books_alloc", "books_delete")
    with pytest.raises(TypeError, match="free_fn_name is None"):
        memory.CUDAPluggableAllocator(pluggable, "books_alloc", None)
    with pytest.raises(ValueError, match="accelrt's own allocator"):
        memory.CUDAPluggableAllocator(memory.library_path(), "accelrt_torch_alloc", "accelrt_torch_free")
