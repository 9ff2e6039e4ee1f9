"""What interrupts a function that is asked for memory reaches the caller, and nothing is lost."""

import ctypes
import gc
import signal
import sys

import pytest
from compiled import typed

import accelrt
from accelrt.memory import register_free_memory_callback

MIB = 1 << 20
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


def interrupting(error, after=lambda: None):
    def callback(device, nbytes):
        after()
        raise error

    return register_free_memory_callback(callback)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), SystemExit(7), Stop()], ids=repr)
@pytest.mark.parametrize("gives", [False, True], ids=["refused", "served"])
def test_it_is_raised_once_the_allocation_is_over(full, error, gives, monkeypatch):
    reports, asked = [], []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    first = interrupting(error, (lambda: delete(full.pop())) if gives else (lambda: None))
    last = register_free_memory_callback(lambda device, nbytes: asked.append(1))
    live = accelrt.memory_allocated()
    with pytest.raises(type(error)) as raised:
        alloc(2 * MIB, 0)
    assert raised.value is error
    assert (reports, asked) == ([], [])
    assert accelrt.memory_allocated() == live - 2 * MIB * gives
    first.remove()
    last.remove()
    delete(full.pop())
    full.append(alloc(2 * MIB, 0))


def test_a_buffer_that_is_not_made_leaves_nothing(full):
    handle = interrupting(KeyboardInterrupt(), lambda: delete(full.pop()))
    live = accelrt.memory_allocated()
    with pytest.raises(KeyboardInterrupt):
        accelrt.Buffer(2 * MIB, 0)
    handle.remove()
    gc.collect()
    assert accelrt.memory_allocated() == live - 2 * MIB


def test_a_signal_in_a_callback_is_not_lost(full):
    handle = register_free_memory_callback(lambda device, nbytes: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        alloc(2 * MIB, 0)
    handle.remove()


def test_beside_a_capture_the_capture_can_be_left_as_after_any_error(full):
    graph = accelrt.CUDAGraph()
    handle = interrupting(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), accelrt.graph(graph, stream=accelrt.Stream()):
        alloc(2 * MIB, 0)
    handle.remove()
    graph.reset()


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), SystemExit(7)], ids=repr)
def test_a_caller_without_python_raises_it_at_the_threads_next_step(full, error):
    library = ctypes.CDLL(accelrt.memory.library_path())
    take = typed(
        library, "accelrt_torch_alloc", ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    )
    handle = interrupting(error)
    with pytest.raises(type(error)) as raised:
        take(2 * MIB, 0, None)
        sum(range(1000))
    assert raised.value is error
    handle.remove()
