"""Functions that are told of refused requests: when, with what, and what becomes of their failures."""

import sys
import threading
import weakref

import pytest
from beside import on_threads

import accelrt

pytestmark = pytest.mark.host
MIB = 1 << 20
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
attach = accelrt.memory.attach_out_of_memory_observer


@pytest.fixture
def observe():
    handles = []

    def attach_for_the_test(function):
        handles.append(attach(function))
        return handles[-1]

    yield attach_for_the_test
    for handle in handles:
        handle.remove()


def test_an_observer_is_told_the_request_and_the_device(observe, full):
    told = []
    with observe(lambda *figures: told.append(figures)) as handle:
        free, capacity = accelrt.mem_get_info(0)
        with pytest.raises(accelrt.OutOfMemoryError):
            alloc(3 * MIB + 1, 0)
        assert told == [(0, 3 * MIB + 1, capacity, free)]
        assert "removed" not in repr(handle)
    handle.remove()
    assert "removed" in repr(handle)
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(4 * MIB, 0)
    assert len(told) == 1


def test_observers_are_called_in_order_and_only_for_refusals(observe, full):
    told = []
    observe(lambda *figures: told.append("first"))
    observe(lambda *figures: told.append("second"))
    delete(full.pop())
    full.append(alloc(2 * MIB, 0))
    assert told == []
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(1 << 60, 0)
    assert told == ["first", "second"]


def test_one_that_raises_is_reported_and_hides_nothing(observe, full, monkeypatch):
    reported, told = [], []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def fail(*figures):
        raise KeyError("lost")

    observe(fail)
    observe(lambda *figures: told.append(figures))
    with pytest.raises(accelrt.OutOfMemoryError, match=r"Tried to allocate 4\.00 MiB"):
        alloc(4 * MIB, 0)
    assert [type(one.exc_value) for one in reported] == [KeyError]
    assert reported[0].object is fail
    assert len(told) == 1


def test_what_interrupts_one_is_raised_from_the_error(observe, full):
    def interrupt(*figures):
        raise KeyboardInterrupt

    observe(interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        alloc(4 * MIB, 0)
    assert isinstance(raised.value.__cause__, accelrt.OutOfMemoryError)


def test_it_may_allocate_and_is_not_told_of_its_own_refusals(observe, full):
    told = []

    def allocate(*figures):
        told.append(figures)
        with pytest.raises(accelrt.OutOfMemoryError):
            alloc(5 * MIB, 0)
        delete(full.pop())
        full.append(alloc(2 * MIB, 0))

    observe(allocate)
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(4 * MIB, 0)
    assert len(told) == 1


def test_it_holds_no_lock(observe, full):
    """Another thread allocates, frees and reads figures while an observer runs."""
    done = threading.Event()

    def use():
        delete(full.pop())
        full.append(alloc(2 * MIB, 0))
        accelrt.memory.report(0)
        done.set()

    def wait(*figures):
        thread = threading.Thread(target=use)
        thread.start()
        assert done.wait(300)
        thread.join()

    observe(wait)
    with pytest.raises(accelrt.OutOfMemoryError):
        alloc(4 * MIB, 0)
    assert done.is_set()


def test_threads_are_told_of_their_own_refusals(observe, full):
    told = []
    observe(lambda *figures: told.append(threading.current_thread()))

    def run_out():
        with pytest.raises(accelrt.OutOfMemoryError):
            alloc(4 * MIB, 0)

    on_threads(lambda _: run_out(), range(4))
    assert len(set(told)) == len(told) == 4


def test_page_locked_memory_tells_nobody(observe):
    told = []
    observe(lambda *figures: told.append(figures))
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.PinnedBuffer(1 << 60)
    assert told == []


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match=r"fn is 3 of type int; pass a callable as fn\(device, requested"):
        attach(3)


def test_the_handle_holds_the_function_until_it_is_removed():
    class Observer:
        def __call__(self, *figures):
            pass

    observer = Observer()
    seen = weakref.ref(observer)
    handle = attach(observer)
    del observer
    assert seen() is not None
    handle.remove()
    del handle
    assert seen() is None
