"""make_graphed_callables: what it refuses, and that a failure leaves nothing behind."""

import gc

import numpy as np
import pytest

import accelrt
from accelrt.graphs.callables import make_graphed_callables


def copied(source):
    result = accelrt.Buffer(source.nbytes)
    accelrt.copy(result, source, blocking=False)
    return result


def works_again():
    data, out = np.arange(512, dtype=np.uint16).view(np.uint8), np.zeros(1024, np.uint8)
    step = make_graphed_callables(copied, (accelrt.Buffer(1024),))
    step(data).copy_to(out)
    return (out == data).all()


BAD_CALLS = [
    ((), TypeError, "0 arguments were given; the graph was captured with 1"),
    ((np.zeros(512, np.uint8), np.zeros(512, np.uint8)), TypeError, "2 arguments were given"),
    ((np.zeros(511, np.uint8),), ValueError, r"args\[0\] has 511 bytes; the graph was captured with 512"),
    ((np.zeros(128, np.float64),), ValueError, "has 1024 bytes"),
    ((3,), TypeError, r"args\[0\] is of type int, which is no memory"),
    ((np.zeros(1024, np.uint8)[::2],), TypeError, "not contiguous"),
    ((np.zeros(64, object),), TypeError, "Python objects"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), BAD_CALLS)
def test_arguments_of_another_count_or_size_are_refused(arguments, error, text):
    step = make_graphed_callables(copied, (accelrt.Buffer(512),))
    with pytest.raises(error, match=text):
        step(*arguments)
    assert step(np.zeros(512, np.uint8)).nbytes == 512


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.zeros((8, 4), np.float32), r"shape \(8, 4\) and type '<f4'.* shape \(4, 8\)"),
        (np.zeros((4, 8), np.int32), "type '<i4'.* and type '<f4'"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(given, text):
    sample = accelrt.pinned_empty((4, 8), np.float32)
    sample[:] = 0
    result = accelrt.Buffer(sample.nbytes)

    def step(array):
        result.copy_from(array, blocking=False)

    graphed = make_graphed_callables(step, (sample,))
    with pytest.raises(ValueError, match=text):
        graphed(given)
    graphed(np.ones((4, 8), np.float32))
    out = np.zeros((4, 8), np.float32)
    result.copy_to(out)
    assert (out == 1).all()


@pytest.mark.parametrize("given", [({"a": 1},), ([1, 2],), ((1,),), (None,), ({"b": 1, "c": 2},)])
def test_arguments_of_another_structure_are_refused(given):
    sample = {"a": accelrt.Buffer(512), "b": accelrt.Buffer(512)}
    step = make_graphed_callables(lambda parts: copied(parts["a"]), (sample,))
    with pytest.raises(TypeError, match=r"args\[0\] is .*; in sample_args it was a dict with the keys"):
        step(*given)


BAD_MAKES = [
    (3, ((),), {}, TypeError, "3 cannot be called"),
    ((copied, 3), ((), ()), {}, TypeError, "cannot be called"),
    (copied, [1], {}, TypeError, "sample_args is a tuple"),
    ((copied,), (1,), {}, TypeError, "sample_args is a tuple"),
    ((copied, copied), ((),), {}, ValueError, "1 sample_args for 2 functions"),
    (copied, (3,), {}, TypeError, r"sample_args\[0\] is of type int, which is no memory"),
    (copied, (b"bytes",), {}, ValueError, "read-only"),
    (copied, (), {"num_warmup_iters": -1}, ValueError, "num_warmup_iters is -1"),
    (copied, (), {"allow_unused_input": 1}, TypeError, "allow_unused_input is 1; pass a bool"),
    (copied, (), {"num_warmup_iters": 1.0}, TypeError, "num_warmup_iters is 1.0 of type float"),
    (copied, (), {"graphs": []}, ValueError, "0 CUDAGraphs, not 1"),
    (copied, (), {"graphs": [3]}, TypeError, "graphs holds 3"),
]


@pytest.mark.parametrize(("functions", "samples", "more", "error", "text"), BAD_MAKES)
def test_bad_arguments_are_refused_before_anything_runs(functions, samples, more, error, text):
    with pytest.raises(error, match=text):
        make_graphed_callables(functions, samples, **more)
    assert works_again()


def test_samples_that_share_memory_are_refused():
    sample = accelrt.Buffer(512)
    with pytest.raises(ValueError, match="share memory"):
        make_graphed_callables(lambda a, b: None, (sample, sample))


def test_a_sample_of_another_device_is_refused():
    if accelrt.device_count() < 2:
        pytest.skip("one device")
    with accelrt.Buffer(512, device=1) as sample, pytest.raises(ValueError, match="is on device 1"):
        make_graphed_callables(copied, (sample,))


class Boom(Exception):
    pass


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("during", ["warm-up", "capture"])
def test_a_function_that_raises_leaves_nothing_behind(which, during):
    graphs = [accelrt.CUDAGraph() for _ in range(3)]

    def raising(source):
        result = copied(source)
        if accelrt.is_current_stream_capturing() == (during == "capture"):
            raise Boom
        return result

    functions = [copied, copied, copied]
    functions[which] = raising
    samples = tuple((accelrt.Buffer(512),) for _ in range(3))
    with pytest.raises(Boom):
        make_graphed_callables(tuple(functions), samples, graphs=graphs)
    assert not any(graph.is_captured or graph.is_capturing for graph in graphs)
    assert accelrt.current_stream() == accelrt.default_stream()
    del samples
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved() == 0
    assert works_again()


def test_a_function_that_cannot_be_captured_leaves_nothing_behind():
    def synchronising(source):
        result = copied(source)
        accelrt.current_stream().synchronize()
        return result

    samples = ((accelrt.Buffer(512),), (accelrt.Buffer(512),))
    with pytest.raises(accelrt.CaptureError):
        make_graphed_callables((copied, synchronising), samples)
    assert works_again()


def test_a_hook_that_raises_leaves_nothing_behind():
    for register in ("register_capture_pre_hook", "register_capture_hook"):
        graphs = [accelrt.CUDAGraph(), accelrt.CUDAGraph()]

        def raising(graph):
            raise Boom

        handle = getattr(graphs[1], register)(raising)
        samples = ((accelrt.Buffer(512),), (accelrt.Buffer(512),))
        with pytest.raises(Boom):
            make_graphed_callables((copied, copied), samples, graphs=graphs)
        assert not any(graph.is_captured or graph.is_capturing for graph in graphs)
        handle.remove()
        made = make_graphed_callables((copied, copied), samples, graphs=graphs)
        assert made[1](made[0](accelrt.Buffer(512))).nbytes == 512
        del made


def test_it_is_not_made_in_a_capture_nor_called_in_one():
    step, target = make_graphed_callables(copied, (accelrt.Buffer(512),)), accelrt.Buffer(512)
    outer = accelrt.CUDAGraph()
    with accelrt.graph(outer):
        with pytest.raises(RuntimeError, match="outside captures"):
            make_graphed_callables(copied, (target,))
        with pytest.raises(RuntimeError, match="cannot be captured"):
            step(target)
        target.fill(1)
    assert outer.node_count == 1
    assert step(target).nbytes == 512


def test_a_stream_of_the_last_call_that_captures_is_not_waited_for():
    stream, target, outer = accelrt.Stream(), accelrt.Buffer(512), accelrt.CUDAGraph()
    step = make_graphed_callables(copied, (accelrt.Buffer(512),))
    with accelrt.stream(stream):
        step(target)
    with accelrt.graph(outer, stream=stream):
        target.fill(1)
        with (
            accelrt.stream(accelrt.Stream()),
            pytest.raises(RuntimeError, match="where the last call was made"),
        ):
            step(target)
    assert outer.node_count == 1
    assert step(target).nbytes == 512


def test_memory_freed_under_the_graph_is_told():
    sample = accelrt.Buffer(512)
    step = make_graphed_callables(copied, (sample,))
    step(accelrt.Buffer(512)).free()
    with pytest.raises(RuntimeError, match="result was freed"):
        step(accelrt.Buffer(512))
    step = make_graphed_callables(copied, (sample,))
    sample.free()
    with pytest.raises(RuntimeError, match=r"sample_args\[0\] was freed"):
        step(accelrt.Buffer(512))
