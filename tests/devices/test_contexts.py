"""Which devices a process has contexts on; and the order of devices."""

import pytest
from beside import on_a_thread
from child import in_own_process

import accelrt
from accelrt import device


@in_own_process
def test_a_context_is_there_from_the_first_use_of_a_device_on():
    assert accelrt.device_count() > 1
    accelrt.get_device_properties(1)
    accelrt.get_device_name(0)
    assert accelrt.active_contexts() == ()
    with accelrt.Buffer(64):
        assert accelrt.active_contexts() == (0,)
    on_a_thread(lambda: accelrt.Stream(1))
    assert accelrt.active_contexts() == (0, 1)


@in_own_process
def test_stray_contexts_are_those_that_were_not_meant():
    accelrt.set_device(1)
    accelrt.zeros(4)
    assert accelrt.stray_contexts() == accelrt.stray_contexts(1) == accelrt.stray_contexts("cuda:1") == ()
    assert accelrt.stray_contexts(0) == (1,)
    accelrt.Buffer(64, device=0).free()  # a call that went to device 0
    assert accelrt.stray_contexts() == accelrt.stray_contexts(device(1)) == (0,)
    assert accelrt.stray_contexts([0, 1]) == ()
    assert accelrt.stray_contexts(()) == (0, 1)


@pytest.mark.parametrize(
    ("allowed", "error", "text"),
    [
        ([None], TypeError, "pass devices, or None for the current one"),
        ([0, 99], (ValueError, AssertionError), "99"),
        ("gpu", (ValueError, TypeError, RuntimeError), "gpu"),
        (-1, ValueError, "allowed has -1; devices go from 0"),
    ],
)
def test_what_names_no_device_is_refused(allowed, error, text):
    with pytest.raises(error, match=text):
        accelrt.stray_contexts(allowed)


def test_devices_are_in_the_order_of_their_ordinals():
    last = accelrt.device_count() - 1
    assert sorted([device(last), device(0)]) == [device(0), device(last)]
    assert device(0) <= device(0) >= device(0)
    assert not device(0) < device(0)
    assert not device(0) > device(0)
    if last:
        assert device(0) < device(1)
        assert device(1) > device(0)
        assert device(0) <= device(1)
        assert not device(0) >= device(1)
        assert max(accelrt.Buffer(8, device=1).device, device(0)).index == 1


@pytest.mark.parametrize("other", [0, 1, None, "cuda:0", object()])
def test_a_device_is_in_no_order_with_anything_else(other):
    for compare in ("__lt__", "__le__", "__gt__", "__ge__"):
        assert getattr(device(0), compare)(other) is NotImplemented
    with pytest.raises(TypeError):
        device(0) < other  # noqa: B015
    with pytest.raises(TypeError):
        other >= device(0)  # noqa: B015
    assert device(0) != other


@pytest.mark.gpu
def test_a_context_of_others_counts_too():
    assert 0 in accelrt.active_contexts() or accelrt.Buffer(64).free() is None
    assert accelrt.stray_contexts(range(accelrt.device_count())) == ()
