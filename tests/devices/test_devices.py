"""Devices: what names one, which is current, and what it says of itself."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from beside import Caller, Gate, on_a_thread

import accelrt

SEVERAL = accelrt.device_count() > 1


def last():
    return accelrt.device_count() - 1


@pytest.mark.parametrize("name", [0, "cuda:0", "cuda", SimpleNamespace(index=0), None])
def test_everything_that_names_a_device_does(name):
    assert accelrt.get_device_properties(name) is accelrt.get_device_properties(0)


def test_a_device_object_names_itself():
    device = accelrt.device(last())
    assert accelrt.device(device) == device
    assert accelrt.device(device).index == device.idx == last()
    assert hash(accelrt.device(last())) == hash(device)
    assert repr(device).startswith("device(type=")


@pytest.mark.parametrize("name", ["gpu:0", "cuda:", "cuda:-1", "cuda:01", "cuda:0 ", "", "xpu"])
def test_a_name_that_is_none_is_refused_and_shown(name):
    with pytest.raises(ValueError, match=r"not understood; write 'cuda'"):
        accelrt.device(name)


@pytest.mark.parametrize("thing", [1.0, True, [], {}, object(), b"cuda"])
def test_a_thing_that_is_no_device_is_refused_with_its_type(thing):
    with pytest.raises(TypeError, match=r"pass an int, 'cuda:1'"):
        accelrt.get_device_name(thing)


@pytest.mark.parametrize(
    "call",
    [
        accelrt.random.Generator,
        accelrt.memory.DriverPool,
        lambda device: accelrt.get_limit("stack_size", device),
        lambda device: accelrt.comm.broadcast(accelrt.zeros(1), [0, device]),
    ],
)
def test_modules_in_python_read_a_device_as_compiled_ones_do(call):
    with pytest.raises(accelrt.errors.InvalidDeviceError, match="device 64 does not exist; there are"):
        call(64)
    with pytest.raises(TypeError, match="pass an int, 'cuda:1'"):
        call(1.5)


@pytest.mark.parametrize("ordinal", [64, 10**30, "cuda:77"])
def test_an_ordinal_that_does_not_exist_is_refused_with_those_that_do(ordinal):
    with pytest.raises(ValueError, match="does not exist; there are"):
        accelrt.set_device(ordinal)


def test_the_context_switches_and_restores():
    accelrt.set_device(0)
    with accelrt.device(last()) as device:
        assert accelrt.current_device() == last() == device.index
        with accelrt.device(0):
            assert accelrt.current_device() == 0
        assert accelrt.current_device() == last()
    assert accelrt.current_device() == 0


def test_the_context_restores_after_an_exception():
    accelrt.set_device(0)
    with pytest.raises(KeyError), accelrt.device(last()):
        raise KeyError
    assert accelrt.current_device() == 0


def test_device_of_follows_an_object():
    with accelrt.Buffer(512, device=last()) as buffer, accelrt.device_of(buffer):
        assert accelrt.current_device() == last()
    with accelrt.device_of("nothing with a device"):
        assert accelrt.current_device() == 0


def test_the_current_device_is_each_threads_own():
    accelrt.set_device(last())
    seen = on_a_thread(accelrt.current_device)
    accelrt.set_device(0)
    assert seen == 0


def test_properties_are_one_object_with_the_drivers_figures():
    found = accelrt.get_device_properties(0)
    assert found is accelrt.get_device_properties("cuda:0")
    assert found.name == accelrt.get_device_name(0)
    assert (found.major, found.minor) == accelrt.get_device_capability(0)
    assert found.total_memory > 0
    assert found.warp_size == 32
    assert found.multi_processor_count > 0


def test_memory_information_follows_allocation():
    for _ in range(20):  # on a GPU memory of other processes comes and goes meanwhile
        free, total = accelrt.mem_get_info(0)
        with accelrt.Buffer(64 << 20, device=0):
            less, same = accelrt.mem_get_info(0)
        accelrt.empty_cache()
        assert total == same
        if free - less >= 64 << 20:
            return
    pytest.fail("free memory never followed an allocation")


def test_peers():
    assert not accelrt.can_device_access_peer(0, 0)
    if SEVERAL:
        assert isinstance(accelrt.can_device_access_peer(0, 1), bool)


def test_synchronize_takes_every_name():
    for name in (None, 0, "cuda", last()):
        accelrt.synchronize(name)


def test_a_context_entered_again_restores_step_by_step():
    accelrt.set_device(0)
    context = accelrt.device(last())
    with context:
        accelrt.set_device(0)
        with context:
            assert accelrt.current_device() == last()
        assert accelrt.current_device() == 0
    assert accelrt.current_device() == 0


def test_threads_that_share_a_devices_object_do_not_disturb_each_other():
    shared, entered, leave = accelrt.device(last()), threading.Barrier(2), threading.Event()

    def use():
        accelrt.set_device(0)
        with shared:
            entered.wait()
            leave.wait()
        return accelrt.current_device()

    accelrt.set_device(last())
    caller = Caller(use)
    with shared:
        caller.begin()
        entered.wait()
    leave.set()
    assert caller.result() == 0
    assert accelrt.current_device() == last()
    accelrt.set_device(0)


@pytest.mark.skipif(not SEVERAL, reason="needs two devices")
def test_each_device_has_its_current_stream():
    near, far = accelrt.Stream(0), accelrt.Stream(1)
    accelrt.set_device(0)
    with accelrt.stream(near):
        assert accelrt.current_stream(1) == accelrt.default_stream(1)
        with accelrt.stream(far):
            assert accelrt.current_device() == 1
            assert accelrt.current_stream() is accelrt.current_stream(1) is far
            assert accelrt.current_stream(0) is near
            with accelrt.device(0):
                assert accelrt.current_stream() is near
        assert accelrt.current_stream(1) == accelrt.default_stream(1)
        assert accelrt.current_stream() is near
    assert accelrt.current_device() == 0


@pytest.mark.skipif(not SEVERAL, reason="needs two devices")
def test_a_peer_copy_is_ordered_by_a_wait_across_devices():
    near, far = accelrt.Stream(0), accelrt.Stream(1)
    data, out = np.arange(1 << 16, dtype=np.uint8), np.zeros(1 << 16, np.uint8)
    with accelrt.Buffer(data.nbytes, 0, near) as here, accelrt.Buffer(data.nbytes, 1, far) as there:
        here.copy_from(data, stream=near)
        with Gate(near):
            accelrt.copy(there, here, stream=near, blocking=False)
            far.wait_stream(near)
            assert not far.query()
        there.copy_to(out, stream=far)
    assert (out == data).all()
