"""Device objects of other libraries, and what names no device: an error, never the current one by mistake."""

from types import SimpleNamespace

import numpy as np
import pytest

import accelrt

KIND = accelrt.device(0).type
LAST = accelrt.device_count() - 1


def foreign(kind, index=None):
    """As torch.device has it."""
    return SimpleNamespace(type=kind, index=index)


TAKERS = {
    "Buffer": lambda given: accelrt.Buffer(64, device=given),
    "MemPool": lambda given: accelrt.MemPool(device=given),
    "Stream": lambda given: accelrt.Stream(given),
    "can_device_access_peer": lambda given: accelrt.can_device_access_peer(0, given),
    "current_stream": lambda given: accelrt.current_stream(given),
    "device": lambda given: accelrt.device(given),
    "get_device_properties": lambda given: accelrt.get_device_properties(given),
    "mem_get_info": lambda given: accelrt.mem_get_info(given),
    "memory_stats": lambda given: accelrt.memory_stats(given),
    "set_device": lambda given: accelrt.set_device(given),
    "synchronize": lambda given: accelrt.synchronize(given),
}


@pytest.mark.parametrize("index", [None, 0, LAST])
@pytest.mark.parametrize("kind", ["cpu", "xpu", "meta", ""])
@pytest.mark.parametrize("taker", TAKERS)
def test_an_object_of_another_type_is_refused_with_it(taker, kind, index):
    accelrt.set_device(0)
    with pytest.raises(ValueError, match=rf"is of type '{kind}'; pass one of type 'cuda' or 'host'"):
        TAKERS[taker](foreign(kind, index))
    assert accelrt.current_device() == 0


@pytest.mark.parametrize("taker", TAKERS)
def test_an_object_of_our_type_is_taken(taker):
    for kind in dict.fromkeys(("cuda", KIND)):
        TAKERS[taker](foreign(kind, LAST))
    accelrt.set_device(0)


@pytest.mark.skipif(KIND == "host", reason="needs the driver cuda")
@pytest.mark.parametrize("given", ["host:0", "host", foreign("host", 0)])
def test_the_host_device_is_refused_where_the_process_runs_on_cuda(given):
    with pytest.raises(ValueError, match="is the embedded host device, but this process runs on cuda"):
        accelrt.get_device_properties(given)


@pytest.mark.parametrize(
    "given", ["cpu", "cpu:0", "xpu:1", foreign("cpu"), foreign("xpu", 0), None, "a/path"]
)
def test_device_of_does_nothing_for_what_is_on_no_device_of_ours(given):
    accelrt.set_device(LAST)
    with accelrt.device_of(SimpleNamespace(device=given)) as context:
        assert accelrt.current_device() == LAST
        assert context.index == -1
    accelrt.set_device(0)


def test_device_of_does_nothing_for_arrays_of_numpy():
    with accelrt.device_of(np.zeros(2)), accelrt.device_of(np.float32(1)):
        assert accelrt.current_device() == 0


def test_device_of_follows_other_libraries_objects():
    with accelrt.device_of(SimpleNamespace(device=foreign("cuda", LAST))):
        assert accelrt.current_device() == LAST
    with pytest.raises(ValueError, match="does not exist"):
        accelrt.device_of(SimpleNamespace(device="cuda:77"))
    with pytest.raises(TypeError, match="pass an int"):
        accelrt.device_of(SimpleNamespace(device=1.5))


@pytest.mark.parametrize("given", [None, "cuda", KIND, foreign("cuda"), foreign("cuda", None)])
def test_set_device_wants_an_ordinal(given):
    accelrt.set_device(LAST)
    with pytest.raises(ValueError, match="which has no ordinal; pass an int, 'cuda:1'"):
        accelrt.set_device(given)
    assert accelrt.current_device() == LAST
    accelrt.set_device(0)


@pytest.mark.parametrize("given", [-1, -5, accelrt.device(None), accelrt.device(-1)])
def test_set_device_does_nothing_for_nowhere(given):
    accelrt.set_device(LAST)
    accelrt.set_device(given)
    assert accelrt.current_device() == LAST
    accelrt.set_device(0)


def test_a_peer_is_named():
    with pytest.raises(TypeError, match="peer_device is None; pass an int"):
        accelrt.can_device_access_peer(0, None)
    assert not accelrt.can_device_access_peer(None, 0)


def test_a_device_object_is_not_turned_into_another():
    device = accelrt.device(0)
    device.__init__(0)
    if LAST:
        with pytest.raises(RuntimeError, match="made already"):
            accelrt.Stream(0).device.__init__(LAST)
    assert accelrt.Stream(0).device == device
