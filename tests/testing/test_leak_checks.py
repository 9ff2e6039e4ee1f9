"""accelrt.testing.check_leaks: what a block leaves alive, where from, and who holds it."""

import sys
import threading
import types

import pytest
from child import in_own_process

import accelrt
from accelrt import testing

HOST = pytest.mark.host


@pytest.fixture
def kept():
    """A list that a test leaves things in; emptied before the teardown looks."""
    things = []
    yield things
    things.clear()


def left_by(function, **how):
    with pytest.raises(testing.LeakError) as raised, testing.check_leaks(**how):
        function()
    return raised.value


def test_a_block_that_leaves_nothing_passes():
    with testing.check_leaks():
        accelrt.Buffer(1000).fill(1)
        accelrt.Event().record(accelrt.Stream())
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph):
            accelrt.zeros(64)
        graph.replay()
        del graph


def test_what_was_there_before_is_no_leak_and_may_be_made_anew(kept):
    kept.append(accelrt.Buffer(1 << 20))
    with testing.check_leaks():
        kept[0] = accelrt.Buffer(1 << 20)


def test_memory_is_told_with_its_stack_its_tag_and_its_holder(kept):
    def leave():
        with accelrt.memory.tag("weights"):
            kept.append(accelrt.Buffer(3 << 20))
        kept.append(accelrt.Buffer(1 << 20))

    error = left_by(leave)
    assert [block["size"] for block in error.blocks] == [3 << 20, 1 << 20]
    assert error.blocks[0]["tag"] == "weights"
    assert {frame["name"] for frame in error.blocks[0]["frames"]} >= {"leave"}
    assert error.blocks[0]["holder"].startswith("Buffer, held by a list")
    lines = str(error).splitlines()
    assert lines[0] == "left behind:"
    assert "3.00 MiB at 0x" in lines[1]
    assert "leave (test_leak_checks.py:" in lines[1]
    assert (error.handles, error.misuses) == ({}, {})


def test_without_stacks_nothing_is_recorded(kept):
    error = left_by(lambda: kept.append(accelrt.Buffer(1 << 20)), stacks=False)
    assert error.blocks[0]["frames"] == []
    assert not accelrt.memory.history.recording.is_recording()


def test_a_recording_of_the_programs_own_goes_on():
    accelrt.memory.record_history("all")
    try:
        with testing.check_leaks():
            pass
        assert accelrt.memory.history.recording.is_recording()
    finally:
        accelrt.memory.record_history(None)


def test_memory_that_no_object_has_is_told_too(kept):
    error = left_by(lambda: kept.append(accelrt.caching_allocator_alloc(2 << 20)))
    assert error.blocks[0]["holder"] == ""
    accelrt.caching_allocator_delete(kept.pop())


def test_handles_are_counted_by_kind_and_named(kept):
    def leave():
        kept.extend([accelrt.Stream(), accelrt.Event(), accelrt.MemPool(), accelrt.PinnedBuffer(4096)])
        kept[1].record(kept[0])
        with accelrt.use_mem_pool(kept[2]):
            kept.append(accelrt.Buffer(64))

    error = left_by(leave)
    assert error.handles == {"stream": 1, "event": 1, "pool": 1, "pinned": 1}
    text = str(error)
    assert f"{kept[0]!r}, held by a list" in text
    assert "  1 private pool\n" in text
    assert "  1 block of page-locked memory" in text


@in_own_process
def test_where_a_handle_was_made_is_told_while_that_is_traced():
    import tracemalloc

    kept = []
    tracemalloc.start()
    error = left_by(lambda: kept.append(accelrt.Stream()) or kept[0].cuda_stream)
    tracemalloc.stop()
    assert f"{kept[0]!r}, made at {__file__}:" in str(error)


@HOST
def test_graphs_are_counted(kept):
    def leave():
        kept.append(accelrt.CUDAGraph(keep_graph=True))
        with accelrt.graph(kept[0]):
            accelrt.zeros(64)
        kept[0].instantiate()

    error = left_by(leave)
    assert (error.handles["graph"], error.handles["exec"]) == (1, 1)


def test_an_error_of_the_block_passes_and_nothing_is_compared(kept):
    with pytest.raises(ZeroDivisionError), testing.check_leaks():
        kept.append(accelrt.Buffer(1 << 20))
        raise ZeroDivisionError
    assert not accelrt.memory.history.recording.is_recording()


def test_a_check_is_cancelled():
    with testing.check_leaks() as check:
        check.cancel()
    check.cancel()
    with pytest.raises(RuntimeError, match=r"finish\(\) without begin\(\)"):
        check.finish()


@HOST
@pytest.mark.gone_streams
def test_a_call_on_which_a_gpu_may_die_is_told():
    stream = accelrt.Stream()
    handle = stream.cuda_stream

    def misuse():
        from accelrt.driver.registry import Rows

        rows = Rows("host")
        _, gone = rows.stream_create(0, 0, 0)
        rows.stream_destroy(0, gone)
        rows.stream_query(0, gone)

    error = left_by(misuse)
    assert error.misuses == {"calls_of_gone_streams": 1}
    assert "1 call of the driver named a stream that was destroyed" in str(error)
    assert handle


def test_holders_are_found_in_modules_classes_closures_and_objects():
    from accelrt.memory.holders import holder_of

    class Model:
        pass

    def closed():
        inner = accelrt.Buffer(64)
        return (lambda: inner), inner

    module = types.ModuleType("holding")
    module.cache = accelrt.Buffer(64)
    sys.modules["holding"] = module
    try:
        assert holder_of(module.cache) == "`cache` of holding"
        Model.shared = accelrt.Buffer(64)
        assert holder_of(Model.shared).startswith("`shared` of class ")
        del Model.shared
        module.model = Model()
        module.model.buffer = accelrt.Buffer(64)
        assert holder_of(module.model.buffer) == "attribute `buffer` of a Model, `model` of holding"
        module.table = {"a": [accelrt.Buffer(64)]}
        assert holder_of(module.table["a"][0]) == "a list, key 'a' of a dict, `table` of holding"
        module.later, inner = closed()
        assert holder_of(inner).endswith("closed.<locals>.<lambda>, `later` of holding")
    finally:
        del sys.modules["holding"]
        vars(module).clear()  # 3.13t keeps classes and modules, once there was a second thread


@in_own_process(ACCELRT_HOST_DEVICES="3")
def test_every_device_is_checked():
    kept = []
    with pytest.raises(testing.LeakError) as raised, testing.check_leaks():
        kept.append(accelrt.Buffer(1 << 20, device=2))
    assert [block["device"] for block in raised.value.blocks] == [2]


@in_own_process
def test_use_device_is_asked_again_and_of_another_driver():
    assert testing.use_device() == "host"
    assert testing.use_device() == testing.use_device("host") == "host"
    accelrt.init("host")
    with pytest.raises(RuntimeError, match="already runs on 'host'"):
        testing.use_device("cuda")
    with pytest.raises(ValueError, match="driver is 'gpu'; pass 'host', 'cuda' or None"):
        testing.use_device("gpu")
    assert accelrt.zeros(4, "i4").tolist() == [0, 0, 0, 0]


@in_own_process(ACCELRT_HOST_MEMORY="much")
def test_a_malformed_setting_is_named():
    with pytest.raises(ValueError, match="ACCELRT_HOST_MEMORY='much'"):
        testing.use_device()


@in_own_process
def test_a_thread_stands_at_a_call_until_it_is_told():
    testing.use_device()
    buffer = accelrt.Buffer(4 << 20)
    accelrt.empty_cache()
    caller = testing.park("stream_create", accelrt.Stream)
    assert not caller.is_done()
    buffer.free()
    assert testing.go_on()
    assert isinstance(caller.result(), accelrt.Stream)
    with pytest.raises(AssertionError, match="memory_unmap was not called"):
        testing.park("memory_unmap", int)
    testing.go_on()
    running = set(threading.enumerate())
    with pytest.raises(ValueError, match="no such row: nothing"):
        testing.park("nothing", int)
    for thread in set(threading.enumerate()) - running:
        thread.join(300)
        assert not thread.is_alive(), "the thread of a refused park() waits"


@in_own_process
def test_a_step_that_never_succeeds_is_told():
    testing.use_device()

    def step():
        raise accelrt.CudaError("it failed", 999, "UNKNOWN", "step")

    with pytest.raises(AssertionError, match="no call failed, and the step raised: it failed"):
        list(testing.failing_calls(step))


@in_own_process
def test_an_operation_that_does_not_end_is_told():
    testing.use_device()
    never = threading.Event()
    with pytest.raises(testing.StuckError, match=r"does not end within 0\.2 s"):
        testing.Interleaver(limit=0.2).run(never.wait)
    never.set()
