"""What other threads do to memory while a use of it is on its way to the driver: sleep(), free(), reset()."""

import ctypes
import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
from beside import Caller, Crowd, park
from child import in_own_process, wrap_host
from waiting import wait_until

import accelrt
from accelrt.arrays.copy import MemoryUse
from accelrt.driver.registry import Rows
from accelrt.testing import go_on, use_device
from accelrt.testing.device import wrapped_table

pytestmark = pytest.mark.host
SIZE = 4096
RELAXED = 2


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
def set_first(where, arguments):
    ctypes.c_uint8.from_address(ctypes.c_size_t.from_address(arguments[0]).value).value = 7


class Scene:
    """Memory of a pool that holds 7s, and every use of it: a name, its row, and the function."""

    def __init__(self):
        self.pool = accelrt.MemPool()
        with accelrt.use_mem_pool(self.pool):
            self.array = accelrt.full(SIZE, 7, "u1")
        self.out = accelrt.zeros(SIZE, "u1")
        self.far = accelrt.zeros(SIZE, "u1", device=1)
        self.pinned = accelrt.PinnedBuffer(SIZE)
        self.stream = accelrt.Stream()
        self.same = accelrt.elementwise("uint8 x", "uint8 y", "y = x")
        self.raw = accelrt.host_kernel(set_first, "uint8_t* at")
        self.same(self.array, out=self.out)
        accelrt.synchronize()

    def uses(self):
        array, out = self.array, self.out
        return {
            "copy_ from": ("copy_async", lambda: out.copy_(array)),
            "copy_ to": ("copy_async", lambda: array.copy_(out)),
            "copy to page-locked memory": ("copy_async", lambda: accelrt.copy(self.pinned, array)),
            "copy from page-locked memory": (
                "copy_async",
                lambda: accelrt.copy(array, self.pinned, blocking=False),
            ),
            "numpy": ("copy", array.numpy),
            "copy of ordinary memory": ("copy", lambda: array.copy_(np.full(SIZE, 7, "u1"))),
            "copy between devices": ("copy_across", lambda: self.far.copy_(array)),
            "strided copy": ("copy_3d", lambda: out[: SIZE // 2].copy_(array[::2])),
            "fill_": ("fill", lambda: array.fill_(7)),
            "Buffer.fill": ("fill", lambda: array.base.fill(7)),
            "elementwise": ("kernel_launch", lambda: self.same(array, out=out)),
            "launch": ("kernel_launch", lambda: self.raw[1, 1](array)),
            "launch on another stream": (
                "kernel_launch",
                lambda: self.raw.launch(1, 1, (array.base,), stream=self.stream),
            ),
        }


def refill(scene):
    scene.out.fill_(7)
    np.frombuffer(scene.pinned, "u1")[:] = 7
    accelrt.synchronize()


def sleeps_beside(faults, scene, name, row, use):
    refill(scene)
    caller = park(row, use)
    unmapped = faults.call_counts()["memory_unmap"]
    sleeper = Caller(scene.pool.sleep).begin()
    wait_until(scene.pool.is_asleep)
    with pytest.raises(accelrt.SleepingMemoryError):
        scene.array.numpy()
    assert not sleeper.is_done(0.05), f"sleep() did not wait for {name}"
    assert faults.call_counts()["memory_unmap"] == unmapped
    assert faults.go_on()
    caller.result()
    assert sleeper.result().bytes
    scene.pool.wake()
    assert (scene.array.numpy() == 7).all(), name


@in_own_process
def test_sleep_waits_for_every_use_that_began_before():
    faults, scene = wrap_host(), Scene()
    for name, (row, use) in scene.uses().items():
        sleeps_beside(faults, scene, name, row, use)
    accelrt.synchronize()
    accelrt.memory.audit()


@in_own_process
def test_nobody_reads_before_a_wake_has_brought_the_contents_back():
    faults, scene = wrap_host(), Scene()
    scene.pool.sleep()
    for row in ("physical_create", "memory_map", "copy_async", "stream_synchronize"):
        waker = park(row, scene.pool.wake)
        assert scene.pool.is_asleep()
        for _, use in scene.uses().values():
            with pytest.raises(accelrt.SleepingMemoryError):
                Caller(use).begin().result()
        faults.go_on()
        waker.result()
        assert (scene.array.numpy() == 7).all()
        scene.pool.sleep()


@in_own_process
def test_sleep_waits_for_random_numbers():
    faults, scene = wrap_host(), Scene()
    with accelrt.use_mem_pool(scene.pool):
        numbers = accelrt.zeros(64, "f4")
    generator = accelrt.random.Generator(0)
    generator.uniform(numbers)
    sleeps_beside(faults, scene, "a draw", "kernel_launch", lambda: generator.uniform(numbers))
    offset = generator.get_offset()
    assert (numbers.numpy() != 0).any()
    assert generator.get_offset() == offset


@in_own_process
def test_sleep_waits_for_uses_by_the_c_library():
    faults, scene = wrap_host(), Scene()
    library, size = ctypes.CDLL(accelrt.get_library()), ctypes.c_size_t
    handle = size(accelrt.current_stream().cuda_stream)
    inside, outside = size(scene.array.ptr), size(scene.out.ptr)
    uses = {
        "accelrt_copy to": ("copy", lambda: library.accelrt_copy(0, handle, inside, outside, size(512))),
        "accelrt_copy from": ("copy", lambda: library.accelrt_copy(0, handle, outside, inside, size(512))),
        "accelrt_fill": ("fill", lambda: library.accelrt_fill(0, handle, inside, 7, 1, size(512))),
    }
    assert library.accelrt_fill(0, handle, inside, 7, 1, size(512)) == 0  # which initialises the library
    for name, (row, use) in uses.items():
        sleeps_beside(faults, scene, name, row, use)


def frees_beside(faults, name):
    scene = Scene()
    refill(scene)
    row, use = scene.uses()[name]
    address, buffer = scene.array.ptr, scene.array.base
    caller = park(row, use)
    buffer.free()
    assert buffer.ptr == 0
    assert scene.pool.stats()["allocated_bytes.current"] == SIZE, f"freed beside {name}"
    with accelrt.use_mem_pool(scene.pool):
        other = accelrt.full(SIZE, 9, "u1")
        assert other.ptr != address
        assert faults.go_on()
        caller.result()
        accelrt.synchronize()
        assert (other.numpy() == 9).all()
        assert scene.pool.stats()["allocated_bytes.current"] == SIZE, f"not freed after {name}"
        if name != "launch on another stream":
            assert accelrt.empty(SIZE, "u1").ptr == address
    with pytest.raises(ValueError, match="freed"):
        use()


@in_own_process
def test_memory_that_is_freed_beside_a_use_goes_back_after_it():
    faults = wrap_host()
    for name in Scene().uses():
        frees_beside(faults, name)
    accelrt.memory.audit()


@in_own_process
def test_page_locked_memory_that_is_freed_beside_a_copy_goes_back_after_it():
    faults = wrap_host()
    scene, stream = Scene(), accelrt.Stream()
    for blocking, row in ((False, "copy_async"), (True, "stream_synchronize")):
        pinned = accelrt.PinnedBuffer(SIZE)
        address = pinned.ptr
        copy = park(row, lambda p=pinned, b=blocking: accelrt.copy(scene.out, p, stream=stream, blocking=b))
        pinned.free()
        other = accelrt.PinnedBuffer(SIZE)
        assert other.ptr != address
        assert faults.go_on()
        copy.result()
        stream.synchronize()
        accelrt.synchronize()
        again = accelrt.PinnedBuffer(SIZE)
        assert again.ptr == address
        del other, again


@in_own_process
def test_sleep_and_reset_wait_for_a_replay():
    faults, scene = wrap_host(), Scene()
    graph, seen = accelrt.CUDAGraph(), []
    with accelrt.graph(graph, pool=scene.pool):
        inner = accelrt.Array(accelrt.Buffer(SIZE))
        inner.copy_(scene.array)
        scene.out.copy_(inner)
    for hooked in (False, True):
        if hooked:
            graph.register_replay_pre_hook(seen.append)
        graph.replay()
        accelrt.synchronize()
        sleeps_beside(faults, scene, "replay", "graph_launch", graph.replay)
    scene.out.fill_(0)
    accelrt.synchronize()
    caller = park("graph_launch", graph.replay)
    destroyed = faults.call_counts()["graph_exec_destroy"]
    graph.reset()
    assert faults.call_counts()["graph_exec_destroy"] == destroyed
    with pytest.raises(RuntimeError, match="nothing to replay"):
        graph.replay()
    assert faults.go_on()
    caller.result()
    assert faults.call_counts()["graph_exec_destroy"] == destroyed + 1
    assert (scene.out.numpy() == 7).all()


@in_own_process
def test_a_use_that_fails_does_not_hold_a_sleep_up():
    faults, scene = wrap_host(), Scene()
    for name, (row, use) in scene.uses().items():
        faults.arm(1, 999, "once", [row])
        with pytest.raises(accelrt.CudaError):
            use()
        faults.disarm()
        assert Caller(scene.pool.sleep).begin().result().bytes, name
        scene.pool.wake()


@in_own_process
def test_an_interruption_ends_the_wait_of_a_sleep():
    faults, scene = wrap_host(), Scene()
    row, use = scene.uses()["fill_"]
    caller = park(row, use)
    main = threading.main_thread().ident

    def interrupt():
        wait_until(scene.pool.is_asleep)
        signal.pthread_kill(main, signal.SIGINT)

    Caller(interrupt).begin()
    with pytest.raises(KeyboardInterrupt):
        scene.pool.sleep()
    assert not scene.pool.is_asleep()
    faults.go_on()
    caller.result()
    assert (scene.array.numpy() == 7).all()
    assert scene.pool.sleep().bytes


@in_own_process
def test_calls_that_python_makes_are_uses_too():
    scene = Scene()
    with MemoryUse("a collective", [scene.array, scene.out]):
        with pytest.raises(RuntimeError, match="in the midst of a use"):
            scene.pool.sleep()
        sleeper = Caller(scene.pool.sleep).begin()
        wait_until(scene.pool.is_asleep)
        assert not sleeper.is_done(0.05)
        with pytest.raises(accelrt.SleepingMemoryError), MemoryUse("another", [scene.array]):
            pass
        with pytest.raises(RuntimeError, match="does not sleep"):
            scene.pool.wake()  # not yet
        with pytest.raises(RuntimeError, match="sleeps already"):
            Caller(scene.pool.sleep).begin().result()
        scene.out.free()
        assert accelrt.memory_allocated(0) >= 2 * SIZE
    sleeper.result()
    scene.pool.wake()
    with pytest.raises(ValueError, match="freed"), MemoryUse("one more", [scene.out]):
        pass
    MemoryUse("interrupted", [scene.array]).__enter__()  # which nothing can leave any more
    assert scene.pool.sleep().bytes


@in_own_process
def test_a_fork_inside_a_use_leaves_a_child_that_can_end_it():
    faults, scene = wrap_host(), Scene()
    row, use = scene.uses()["fill_"]
    other = MemoryUse("before", [scene.out])
    other.__enter__()
    caller = park(row, use)
    with MemoryUse("a collective", [scene.array]):
        child = os.fork()
    other.__exit__(None, None, None)
    if child == 0:
        for _ in range(3):
            with MemoryUse("in the child", [1]):
                pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    faults.go_on()
    caller.result()
    assert scene.pool.sleep().bytes


@in_own_process
def test_uses_beside_sleeps_for_two_seconds():
    scene, wrong, refused = Scene(), [], []
    uses = [use for name, (_, use) in scene.uses().items() if "to" not in name and "from page" not in name]

    def work(use):
        try:
            answer = use()
        except accelrt.SleepingMemoryError:
            refused.append(1)
        else:
            if isinstance(answer, np.ndarray) and not (answer == 7).all():
                wrong.append(answer)

    end = time.monotonic() + 2
    with Crowd(*(functools.partial(work, use) for use in uses)) as crowd:
        while time.monotonic() < end or not (refused or wrong or crowd.has_failed()):
            scene.pool.sleep()
            scene.pool.wake()
    accelrt.synchronize()
    assert not wrong
    assert refused
    assert (scene.array.numpy() == 7).all()
    accelrt.memory.audit()


@in_own_process
def test_an_event_that_another_ones_capture_took_serves_nobody_else():
    """A driver may crash where it is recorded anew while the graph goes."""
    use_device()
    rows, stream, buffer = Rows(), accelrt.Stream(), accelrt.Buffer(4096)
    buffer.record_stream(stream)
    free = park("event_record", buffer.free)  # behind the look at the stream
    assert rows.capture_begin(0, stream.handle, RELAXED) == 0
    wrapped_table().reset_call_counts()
    go_on()
    free.result()
    assert wrapped_table().call_counts()["event_destroy"] == 1
    code, graph = rows.capture_end(0, stream.handle)
    assert (code, rows.graph_destroy(graph)) == (0, 0)
    accelrt.synchronize()
    accelrt.Buffer(4096).free()
    assert accelrt.memory_allocated() == 0


@in_own_process
def test_an_event_that_was_recorded_in_another_ones_capture_serves_nobody_else():
    """Nothing says when that one's graph goes."""
    use_device()
    rows, theirs, event = Rows(), accelrt.Stream(), accelrt.Event()
    with accelrt.graph(accelrt.CUDAGraph()):  # beside which events ask whether they are captured
        accelrt.Buffer(64).fill(1)
        assert rows.capture_begin(0, theirs.handle, RELAXED) == 0
        event.record(theirs)
        code, graph = rows.capture_end(0, theirs.handle)
    assert (code, rows.graph_destroy(graph)) == (0, 0)
    wrapped_table().reset_call_counts()
    del event
    assert wrapped_table().call_counts()["event_destroy"] == 1
    accelrt.synchronize()
