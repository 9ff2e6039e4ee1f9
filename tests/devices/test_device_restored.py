"""Whatever looks at another device leaves the calling thread on the one it had, or on none."""

import os

import pytest
from beside import on_a_thread
from child import in_child, in_own_process

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows
from accelrt.interface import get_interface_for_device

SEVERAL = accelrt.device_count() > 1
NONE = -1


def last():
    return accelrt.device_count() - 1


def on_a_thread_of_its_own(function):
    """Runs function on a fresh thread; returns the device that was current there before and after."""

    def run():
        before = Rows().current_device()[1]
        function()
        return [before, Rows().current_device()[1]]

    return on_a_thread(run)


def in_a_device():
    with accelrt.device(last()):
        assert accelrt.current_device() == last()


def in_two_devices():
    with accelrt.device(last()), accelrt.device(0):
        assert accelrt.current_device() == 0


def in_a_device_entered_twice():
    context = accelrt.device(last())
    with context, context:
        assert accelrt.current_device() == last()


def in_a_device_that_raises():
    with pytest.raises(KeyError), accelrt.device(last()):
        raise KeyError


def in_a_buffers_device():
    with accelrt.Buffer(512, device=last()) as buffer, accelrt.device_of(buffer):
        assert accelrt.current_device() == last()


def in_a_stream():
    with accelrt.stream(accelrt.Stream(last())):
        assert accelrt.current_device() == last()


def in_streams_of_two_devices():
    near, far = accelrt.stream(accelrt.Stream(0)), accelrt.stream(accelrt.Stream(last()))
    with far, near, far:
        assert accelrt.current_device() == last()


def chosen_meanwhile():
    with accelrt.device(0):
        accelrt.set_device(last())
    with accelrt.stream(accelrt.Stream(0)):
        accelrt.set_device(last())


def figures():
    accelrt.synchronize(last())
    accelrt.get_device_properties(last())
    accelrt.mem_get_info(last())
    accelrt.memory_stats(last())
    accelrt.can_device_access_peer(0, last())
    accelrt.empty_cache()


def work():
    stream = accelrt.Stream(last())
    begin, end = (accelrt.Event(enable_timing=True) for _ in range(2))
    size = 3_000_000  # mapped from more than one physical handle
    with (
        accelrt.Buffer(size, device=last(), stream=stream) as one,
        accelrt.Buffer(size, device=last(), stream=stream) as two,
        accelrt.PinnedBuffer(size) as host,
    ):
        begin.record(stream)
        one.fill(1, stream=stream)
        accelrt.copy(two, one, stream=stream, blocking=False)
        accelrt.copy(host, two, stream=stream, blocking=False)
        end.record(stream)
        end.synchronize()
        assert begin.elapsed_time(end) >= 0
        stream.wait_event(end)
        stream.launch_host_func(int)
        stream.synchronize()
        assert stream.query()
        assert end.query()
        assert bytes(host) == b"\1" * size


def captures():
    graph = accelrt.CUDAGraph()
    stream = accelrt.Stream(last())
    with accelrt.Buffer(4096, device=last(), stream=stream) as buffer:
        with accelrt.graph(graph, stream=stream):
            buffer.fill(1)
        graph.replay()
        accelrt.synchronize(last())
        graph.reset()


ALL = [
    in_a_device, in_two_devices, in_a_device_entered_twice, in_a_device_that_raises, in_a_buffers_device,
    in_a_stream, in_streams_of_two_devices, chosen_meanwhile, figures, work, captures,
]  # fmt: skip


@pytest.mark.parametrize("function", ALL)
def test_a_thread_that_chose_no_device_has_none_afterwards(function):
    if function is chosen_meanwhile and not SEVERAL:
        pytest.skip("on one device nothing is asked of the driver: the device is current by definition")
    accelrt.init()
    assert on_a_thread_of_its_own(function) == [NONE, NONE]


@pytest.mark.parametrize("function", ALL)
def test_a_thread_that_chose_one_has_it_afterwards(function):
    def chosen():
        accelrt.set_device(0)
        function()
        assert accelrt.current_device() == 0

    assert on_a_thread_of_its_own(chosen) == [NONE, 0]


def test_a_negative_ordinal_leaves_the_thread_as_it_is():
    def nothing():
        accelrt.set_device(-1)
        with accelrt.device(-1), accelrt.device(None), accelrt.device_of(object()):
            assert Rows().current_device()[1] == NONE
        accelrt.set_device(last())
        accelrt.set_device(-1)
        assert accelrt.current_device() == last()
        with accelrt.device(-1):
            pass

    assert on_a_thread_of_its_own(nothing) == [NONE, last()]


def test_the_interface_goes_back_to_the_device_that_it_named():
    interface = get_interface_for_device(accelrt.device(0).type)

    def exchange():
        before = interface.exchange_device(last())
        assert accelrt.current_device() == last()
        assert interface.exchange_device(before) == last()
        assert accelrt.current_device() == before == 0

    on_a_thread_of_its_own(exchange)


@in_own_process
def test_a_child_forked_in_a_devices_context_leaves_it():
    with accelrt.device(last()), accelrt.device(0):
        child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def allocate_by_a_library(path):
    memory.change_current_allocator(memory.CUDAPluggableAllocator(path, "books_alloc", "books_free"))
    for device in range(accelrt.device_count()):
        assert on_a_thread_of_its_own(lambda at=device: accelrt.Buffer(512, device=at).free()) == [NONE, NONE]


@pytest.mark.own_process
def test_a_librarys_allocator_leaves_the_thread_without_a_device(pluggable):
    in_child(allocate_by_a_library, pluggable, ACCELRT_DRIVER=os.environ.get("ACCELRT_DRIVER", "host"))
