"""An interpreter without a GIL: what modules say of themselves, and what threads do to one object at once."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from beside import on_threads
from child import in_fresh_interpreter

import accelrt
from accelrt.core.process import Owned
from accelrt.runtime.init import later

ROOT = Path(__file__).parents[2]
THREADS = 4
WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def import_everything():
    from accelrt.tools.cli.process_order import import_all

    import_all()
    print("on" if sys._is_gil_enabled() else "off")


def test_every_module_says_that_it_needs_no_gil():
    """One directive says so for all of them, and none takes it back."""
    spec = importlib.util.spec_from_file_location("accelrt_setup", ROOT / "setup.py")
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    assert setup.DIRECTIVES["freethreading_compatible"] is True
    assert not any("freethreading_compatible" in options for _, options in setup.KINDS.values())
    sources = [*(ROOT / "accelrt").rglob("*.pyx"), *(ROOT / "accelrt").rglob("*.pxd")]
    assert not [str(source) for source in sources if "freethreading" in source.read_text()]


@pytest.mark.own_process
@pytest.mark.skipif(not WITHOUT_GIL, reason="this interpreter always has a GIL")
def test_import_leaves_the_gil_off():
    assert in_fresh_interpreter(import_everything, PYTHON_GIL="").split()[-1] == "off"


@pytest.mark.skipif(not WITHOUT_GIL, reason="with a GIL threads count references by turns")
def test_threads_that_call_one_function_write_no_counter_of_its():
    functions = [accelrt.caching_allocator_alloc, accelrt.Stream.query, accelrt.Buffer.free]
    functions += [later("accelrt.sharing.mapping").share_pages]  # a module that is imported when it is needed
    before = [sys.getrefcount(function) for function in functions]
    held = []
    on_threads(lambda _: held.extend(functions * 100), range(THREADS))
    assert [sys.getrefcount(function) for function in functions] == before


def at_once(function):
    on_threads(lambda _: function(), range(THREADS))


def test_buffers_that_all_threads_make_on_a_reservation_leave_it_to_be_closed():
    def make():
        for _ in range(2000):
            cache.buffer(0, 64)

    cache = accelrt.reserve(1)
    at_once(make)
    cache.close()


def test_a_buffer_that_all_threads_free_goes_back_once():
    for size in range(512, 512 * 100, 512):
        buffer = accelrt.Buffer(size)
        at_once(buffer.free)
        assert buffer.ptr == buffer.nbytes == 0
    assert accelrt.memory_allocated() == 0


def test_what_all_threads_close_is_given_back_once():
    released = []
    owned = [Owned(int, (number,), released.append) for number in range(2000)]
    on_threads(lambda _: [each.close() for each in owned], range(THREADS))
    assert sorted(released) == list(range(2000))


def test_a_free_beside_copies_waits_for_those_that_began():
    """Each copy is refused, or finds the memory as it was."""
    source, refusals = np.arange(4096, dtype=np.uint8), []
    for _ in range(100):
        buffer = accelrt.Buffer(4096)
        buffer.copy_from(source)

        def copy_out(buffer=buffer):
            held = np.empty_like(source)
            try:
                buffer.copy_to(held)
            except ValueError as error:
                refusals.append(str(error))
            else:
                assert (held == source).all()

        on_threads(lambda free, buffer=buffer, copy=copy_out: buffer.free() if free else copy(), [0, 0, 1, 0])
    assert all("was freed" in text for text in refusals)
    assert accelrt.memory_allocated() == 0


def test_an_array_that_all_threads_free_lets_go_of_its_base_once():
    for _ in range(100):
        array = accelrt.empty((64,), dtype="uint8")
        at_once(array.free)
        assert array.base is None
    assert accelrt.memory_allocated() == 0


def test_views_of_page_locked_memory_are_counted():
    locked = accelrt.PinnedBuffer(512)

    def view():
        for _ in range(500):
            accelrt.Array(locked)[:16]

    at_once(view)
    locked.free()


def test_no_two_threads_get_one_pool():
    pools = []
    at_once(lambda: pools.extend([accelrt.graph_pool_handle() for _ in range(2000)]))
    assert len(set(pools)) == THREADS * 2000


def test_an_event_that_all_threads_record_first_has_one_driver_event():
    stream = accelrt.Stream()
    for _ in range(100):
        event = accelrt.Event()
        at_once(lambda event=event: event.record(stream))
        event.synchronize()


def test_a_device_object_is_entered_by_all_threads():
    device = accelrt.Buffer(1).device

    def enter():
        for _ in range(500):
            with device:
                pass

    at_once(enter)


def test_a_graph_that_all_threads_replay_and_one_resets():
    stream, buffer, refusals = accelrt.Stream(), accelrt.Buffer(512), []
    for _ in range(30):
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=stream):
            buffer.fill(7)

        def replay(graph=graph):
            try:
                for _ in range(20):
                    graph.replay()
            except RuntimeError as error:
                refusals.append(str(error))

        def reset(graph=graph):
            try:
                graph.reset()
            except RuntimeError as error:
                refusals.append(str(error))

        on_threads(lambda role, replay=replay, reset=reset: reset() if role else replay(), [0, 0, 1, 0])
        accelrt.synchronize()
    assert all("nothing to replay" in text or "another thread" in text for text in refusals)


def test_who_asks_for_a_callback_and_who_ends_it_are_counted():
    def register():
        for _ in range(200):
            accelrt.memory.register_free_memory_callback(lambda *_: False).remove()

    at_once(register)
