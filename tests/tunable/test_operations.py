"""Operations with several candidates: which is run, and what timing them leaves alone."""

import threading
import time

import numpy as np
import pytest
from beside import Caller, on_a_thread, on_threads

import accelrt
from accelrt import tunable

SIZE = 1 << 12


def slow_copy(out, x):
    """Takes longer than a busy machine delays the others."""
    accelrt.current_stream().launch_host_func(lambda: time.sleep(0.02))
    accelrt.copy(out, x, blocking=False)


def one_copy(out, x):
    accelrt.copy(out, x, blocking=False)


@pytest.fixture
def operation():
    made = tunable.Operation("copying", slow_copy)
    made.candidate("one", one_copy)
    return made


@pytest.fixture
def arrays():
    with accelrt.zeros(SIZE, "float32") as out, accelrt.full(SIZE, 3, "float32") as x:
        yield out, x


def test_off_an_operation_is_its_default(operation, arrays):
    assert not tunable.is_enabled()
    operation(*arrays)
    assert tunable.get_results() == ()
    assert (arrays[0].numpy() == 3).all()


def test_the_first_call_times_the_candidates_and_later_ones_run_the_fastest(operation, arrays):
    tunable.enable()
    operation(*arrays)
    (result,) = tunable.get_results()
    assert result[:3] == ("copying", f"float32[{SIZE}];float32[{SIZE}]", "one")
    assert 0 < result.time < 100
    assert operation.chosen(arrays, {}) is one_copy
    tunable.tuning_enable(False)
    other = accelrt.zeros(8, "int32"), accelrt.zeros(8, "int32")
    assert operation.chosen(other, {}) is slow_copy
    assert len(tunable.get_results()) == 1


def test_timing_changes_no_argument_but_once():
    def add_one(x):
        accelrt.copy(x, x.numpy() + 1)
        return x

    tunable.enable()
    operation = tunable.Operation("adding", add_one)
    operation.candidate("same", lambda x: add_one(x))
    x = accelrt.zeros(16, "float32")
    assert operation(x) is x
    assert (x.numpy() == 1).all()


def test_a_candidate_that_does_something_else_is_left_out_by_the_numerical_check(operation, arrays):
    calls = []
    tunable.enable()
    tunable.set_numerical_check_tolerances(True, 1e-3, 0)
    operation.candidate("nothing", lambda out, x: calls.append("nothing"))
    operation.candidate("almost", lambda out, x: out.fill_(3.0005))
    operation.candidate("far", lambda out, x: out.fill_(3.1))
    result = operation.tune(*arrays)
    assert result.candidate in ("one", "almost")
    assert calls == ["nothing"] * 2  # once to see whether it serves, once to compare
    assert (arrays[0].numpy() == 0).all()
    with pytest.raises(ValueError, match="atol is -1; it is a number from 0 on"):
        tunable.set_numerical_check_tolerances(True, -1)


def test_what_does_not_serve_is_left_out_and_what_fails_is_raised(operation, arrays):
    def raises(kind, *given):
        def candidate(out, x):
            raise kind(*given)

        return candidate

    operation.candidate("not implemented", lambda out, x: NotImplemented)
    operation.candidate("too large a block", raises(accelrt.CudaError, "", 1))
    operation.candidate("too much memory", raises(accelrt.OutOfMemoryError, ""))
    operation.candidate("no such device", raises(accelrt.NotSupportedError, ""))
    assert operation.tune(*arrays).candidate == "one"
    operation.candidate("broken", raises(ZeroDivisionError, "a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        operation.tune(*arrays)
    default_fails = tunable.Operation("failing", raises(accelrt.NotSupportedError, "not here"))
    with pytest.raises(accelrt.NotSupportedError, match="not here"):
        default_fails.tune(*arrays)


def test_nothing_is_timed_in_a_capture(operation, arrays):
    tunable.enable()
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        operation(*arrays)
        with pytest.raises(RuntimeError, match="cannot be tuned now: a capture is open"):
            operation.tune(*arrays)
    assert tunable.get_results() == ()
    graph.replay()
    accelrt.synchronize()
    assert (arrays[0].numpy() == 3).all()
    operation(*arrays)
    again = accelrt.CUDAGraph()
    with accelrt.graph(again):
        assert operation.chosen(arrays, {}) is one_copy
        operation(*arrays)
    graph.reset()
    again.reset()


def test_nothing_is_timed_beside_a_capture_of_another_thread(operation, arrays):
    tunable.enable()
    begun, over = threading.Event(), threading.Event()

    def capture():
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=accelrt.Stream()):
            arrays[1].fill_(3)
            begun.set()
            over.wait(300)
        graph.reset()

    caller = Caller(capture).begin()
    begun.wait(300)
    with accelrt.stream(accelrt.Stream()):
        assert operation.chosen(arrays, {}) is slow_copy
    over.set()
    caller.result()
    assert tunable.get_results() == ()


def test_a_capture_that_begins_meanwhile_is_not_broken(operation, arrays):
    begun, timed = threading.Event(), threading.Event()

    def capture():
        graph = accelrt.CUDAGraph()
        with accelrt.stream(accelrt.Stream()), accelrt.graph(graph, stream=accelrt.current_stream()):
            begun.set()
            timed.wait(300)
            arrays[1].fill_(3)
        return graph

    def waits_for_the_capture(out, x):
        if not begun.is_set():
            caller.begin()
            begun.wait(300)
        one_copy(out, x)

    caller = Caller(capture)
    operation.candidate("waits", waits_for_the_capture)
    with accelrt.stream(accelrt.Stream()):
        assert operation.tune(*arrays).candidate in ("one", "waits")
    timed.set()
    graph = caller.result()
    graph.replay()
    accelrt.synchronize()
    graph.reset()


def test_a_second_thread_runs_the_default_while_one_is_timing(operation, arrays):
    tunable.enable()
    chosen = []

    def asks(out, x):
        if not chosen:
            chosen.append(on_a_thread(lambda: operation.chosen(arrays, {})))
            chosen.append(operation.chosen(arrays, {}))  # and the operation inside of itself
        one_copy(out, x)

    operation.candidate("asks", asks)
    operation(*arrays)
    assert chosen == [slow_copy, slow_copy]
    assert len(tunable.get_results()) == 1


def test_a_signals_handler_tunes_while_its_thread_begins_to(operation, arrays):
    def tune():
        with tunable.operation._starting:  # where the handler may come
            return operation.tune(*arrays).candidate

    assert on_a_thread(tune, 60) == "one"


def test_many_threads_find_one_result(operation, arrays):
    tunable.enable()
    on_threads(lambda _: operation(*arrays), range(8))
    operation(*arrays)
    assert [result.candidate for result in tunable.get_results()] == ["one"]
    accelrt.synchronize()


def test_an_operation_is_tuned_on_the_device_of_its_arrays(operation):
    if accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    seen = set()
    operation.candidate("looks", lambda out, x: (seen.add(accelrt.current_device()), one_copy(out, x))[1])
    with accelrt.zeros(SIZE, device=1) as out, accelrt.zeros(SIZE, device=1) as x:
        operation.tune(out, x)
    assert accelrt.current_device() == 0
    assert seen == {1}


def test_copies_rotate_and_a_cache_is_flushed(operation, arrays):
    seen = set()
    operation.candidate("notes", lambda out, x: (seen.add(out.ptr), one_copy(out, x))[1])
    tunable.l2_flush_enable()
    tunable.set_rotating_buffer_size(0)
    operation.tune(*arrays)
    assert len(seen) == 1
    seen.clear()
    tunable.set_rotating_buffer_size(1)
    assert tunable.get_rotating_buffer_size() == 1 << 20
    operation.tune(*arrays)
    assert len(seen) > 3
    assert arrays[0].ptr not in seen
    tunable.set_rotating_buffer_size(-1)
    assert tunable.get_rotating_buffer_size() == accelrt.get_device_properties().L2_cache_size


def test_arguments_have_names_by_shape_type_and_value():
    operation = tunable.Operation("named", one_copy)
    array = accelrt.zeros((4, 6), "int16")
    with accelrt.Buffer(64) as buffer:
        named = operation.params_of(
            buffer, array, array[:, ::2], 5, 2.5, None, True, "mode", [array, 1], scale=3
        )
    assert named == ("bytes(64);int16[4x6];int16[4x3]s;5;float;None;True;'mode';(int16[4x6] 1);scale=3")
    assert operation.params_of() == "()"
    assert operation.params_of(np.zeros(3)) == "float64[3]"
    for value in (object(), "a,b", "a b"):
        with pytest.raises(TypeError, match=r"has no name in a file of results; .* Operation\(\.\.\., key="):
            operation.params_of(value)
    keyed = tunable.Operation("keyed", one_copy, key=lambda out, x: "a,b")
    with pytest.raises(ValueError, match="key of keyed's arguments is 'a,b'"):
        keyed.params_of(1, 2)


def test_what_cannot_be_registered_is_refused(operation):
    for name in ("", "a,b", "a\nb", "Validator"):
        with pytest.raises(ValueError, match="name is"):
            tunable.Operation(name, print)
    with pytest.raises(TypeError, match="default is 3 of type int; pass a function"):
        tunable.Operation("x", 3)
    with pytest.raises(TypeError, match="check is 'yes'"):
        tunable.Operation("x", print, check="yes")
    with pytest.raises(ValueError, match="name is 'one', which copying has already; it has Default, one"):
        operation.candidate("one", print)
    assert operation.candidates == ("Default", "one")
    assert repr(operation) == "<accelrt.tunable.Operation 'copying' of Default, one>"


@pytest.mark.parametrize(("switch", "number"), [("warmup", 5), ("tuning", 8)])
def test_the_switches_say_how_often_a_candidate_is_called(arrays, switch, number):
    def calls_of(times):
        calls.clear()
        tunable.set_max_tuning_duration(0)
        tunable.set_max_warmup_duration(0)
        tunable.set_max_tuning_iterations(3)
        getattr(tunable, f"set_max_{switch}_iterations")(times)
        counted = tunable.Operation(f"counted {times}", lambda out, x: calls.append(one_copy(out, x)))
        counted.candidate("never taken", lambda out, x: (time.sleep(0.02), one_copy(out, x)))
        counted(*arrays)
        return len(calls)

    calls = []
    tunable.enable()
    assert calls_of(3 + number) - calls_of(3) == number


def test_the_switches_take_what_they_may():
    tunable.set_max_tuning_duration(7)
    tunable.set_max_warmup_iterations(2)
    tunable.set_max_warmup_duration(3)
    tunable.set_max_tuning_iterations(0)
    assert (tunable.get_max_tuning_duration(), tunable.get_max_tuning_iterations()) == (7, 0)
    assert (tunable.get_max_warmup_duration(), tunable.get_max_warmup_iterations()) == (3, 2)
    for given, kind in ((-1, ValueError), ("3", TypeError), (2.5, TypeError), (1 << 40, ValueError)):
        with pytest.raises(kind, match="duration is"):
            tunable.set_max_tuning_duration(given)


SOURCE = """
extern "C" __global__ void scale(float* out, const float* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = 2 * x[i];
}
"""


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_sizes_of_blocks_are_tuned_on_a_gpu():
    kernel = accelrt.compile(SOURCE).function("scale", "float* out, const float* x, int n")

    def with_blocks_of(threads):
        return lambda out, x: kernel[-(-x.size // threads), threads](out, x, x.size)

    operation = tunable.Operation("scale", with_blocks_of(32))
    for threads in (256, 1024, 2048):  # the last one is too large
        operation.candidate(f"blocks of {threads}", with_blocks_of(threads))
    tunable.enable()
    tunable.set_max_tuning_iterations(30)
    tunable.set_numerical_check_tolerances(True)
    x, out = accelrt.asarray(np.arange(1 << 24, dtype=np.float32)), accelrt.empty(1 << 24, "float32")
    operation(out, x)
    assert (out.numpy() == 2 * np.arange(1 << 24, dtype=np.float32)).all()
    (result,) = tunable.get_results()
    assert result.candidate in ("blocks of 256", "blocks of 1024")
    assert 0.005 < result.time < 5  # 128 MiB
