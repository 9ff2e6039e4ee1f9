"""Elementwise kernels on streams, in captures, from threads and under the race detector."""

import numpy as np
import pytest
from beside import on_threads
from child import in_own_process, wrap_host
from device_arrays import read, to_device

import accelrt
from accelrt.driver.host import driver as host
from accelrt.testing import failing_calls, settle

ADD = accelrt.elementwise("T x, T y", "T z", "z = x * y + x", name="axpy")


@pytest.mark.parametrize("stream", [accelrt.Stream, accelrt.default_stream, accelrt.per_thread_stream])
def test_a_kernel_runs_on_the_stream_given_and_its_output_follows_it(stream):
    chosen = stream()
    x = to_device(np.arange(1000, dtype=np.float32))
    accelrt.synchronize()
    z = ADD(x, 1.0, stream=chosen)
    assert z.stream == chosen
    with accelrt.stream(chosen):
        assert ADD(x, 1.0).stream == chosen
    assert (read(z) == np.arange(1000) * 2).all()


def test_a_captured_kernel_computes_at_each_replay():
    x, z = to_device(np.arange(6, dtype=np.float32)), to_device(np.zeros(6, np.float32))
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        ADD(x, 1.0, out=z)
        doubled = ADD(z, 1.0)
    assert read(z).tolist() == [0] * 6
    for start in (0, 10):
        values = np.arange(start, start + 6, dtype=np.float32)
        accelrt.copy(x.base, values.view(np.uint8))
        accelrt.synchronize()
        graph.replay()
        assert read(z).tolist() == (2 * values).tolist()
        assert read(doubled).tolist() == (4 * values).tolist()


def test_a_kernel_may_be_compiled_in_a_capture():
    kernel = accelrt.elementwise("T x", "T z", "z = x + 3", name="fresh")
    x = to_device(np.zeros(5, np.int16))
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        z = kernel(x)
    graph.replay()
    assert read(z).tolist() == [3] * 5


def test_threads_that_chose_no_device_may_call_the_same_new_kernel():
    kernel = accelrt.elementwise("T x, T y", "T z", "z = x - y", name="shared")
    x = to_device(np.arange(100, dtype=np.float64))
    accelrt.synchronize()

    def work(number):
        for turn in range(20):
            z = kernel(x, number + turn)
            assert (read(z) == np.arange(100) - number - turn).all()

    on_threads(work, range(4))


def test_a_kernel_runs_on_each_device():
    for device in range(accelrt.device_count()):
        z = ADD(to_device(np.ones(3, np.float32), device), 2.0)
        assert z.device_index == device
        assert read(z).tolist() == [3] * 3


def test_a_kernel_may_die_while_it_runs():
    x = to_device(np.ones(1 << 18, np.float32))
    z = accelrt.elementwise("T x", "T z", "z = x * 5", name="short_lived")(x)
    assert (read(z) == 5).all()


@in_own_process(printing="a write\n", ACCELRT_SANITIZE="1")
def test_inputs_are_reads_and_outputs_writes_to_the_race_detector():
    x = accelrt.zeros(100, "float32")
    accelrt.synchronize()
    one, other = accelrt.Stream(), accelrt.Stream()
    made = [ADD(x, 1.0, stream=stream) for stream in (one, other)]  # both read
    accelrt.synchronize()
    ADD(x, 1.0, stream=one)
    try:
        ADD(made[0], 1.0, out=x, stream=other)
    except accelrt.RaceError:
        print("a write")


def step(kernel):
    """Loads the kernel, calls it in two layouts and in a capture, and gives it up."""
    x = accelrt.zeros((4, 6), "float32")
    z = kernel(x, 1.0)
    kernel(x[:, ::2], z[:, ::2], out=x[:, 1::2])
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        kernel(x, 1.0, out=z)
    graph.replay()
    accelrt.synchronize()
    graph.reset()
    kernel.unload()


@in_own_process(printing="")
def test_whatever_call_fails_nothing_is_left():
    wrap_host()
    kernel = accelrt.elementwise("T x, T y", "T z", "z = x * y + x", name="swept")
    step(kernel)
    codes = set()
    for call, error in failing_calls(lambda: step(kernel), code=719):
        codes |= {error.code} if error else set()
        kernel.unload()
        settle()
        counts = host.live_objects()
        left = (counts["modules"], counts["graphs"], accelrt.memory_allocated())
        assert left == (0, 0, 0), (call, left)
    assert codes == {719}
    assert call > 10
