"""torch.cuda.comm's functions on the arrays of one process."""

import numpy as np
import pytest

import accelrt
from accelrt import comm, nccl

pytestmark = pytest.mark.skipif(accelrt.device_count() < 2, reason="needs two devices")


@pytest.fixture(params=["with NCCL", "without"], autouse=True)
def _library(request, monkeypatch):
    """By collectives, and as where NCCL is not installed."""
    if request.param == "without":
        monkeypatch.setattr(nccl, "is_available", lambda tensors=None: False)
    elif not nccl.is_available():
        pytest.skip("NCCL and nccl4py are not installed")


def numbers(shape, dtype="float32"):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def devices_of(arrays):
    return [each.device_index for each in arrays]


@pytest.mark.parametrize("source", [0, 1, "cpu"])
def test_broadcast_copies_to_the_devices_given(source):
    given = accelrt.asarray(numbers((3, 5)), device=source)
    found = comm.broadcast(given, (0, accelrt.device(1)))
    assert devices_of(found) == [0, 1]
    for each in found:
        np.testing.assert_array_equal(each.numpy(), numbers((3, 5)))
    if source != "cpu":
        assert found[source] is given
    out = [accelrt.empty((3, 5), "float32", rank) for rank in range(2)]
    assert comm.broadcast(numbers((3, 5)), out=out) == tuple(out)
    np.testing.assert_array_equal(out[1].numpy(), numbers((3, 5)))


def test_broadcast_is_told_where_to_once():
    array = accelrt.zeros(3)
    for arguments in ({}, {"devices": [0], "out": [array]}):
        with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
            comm.broadcast(array, **arguments)
    with pytest.raises(ValueError, match=r"out\[0\] has shape \(4,\)"):
        comm.broadcast(array, out=[accelrt.zeros(4, device=1)])
    with pytest.raises(ValueError, match="99"):
        comm.broadcast(array, [0, 99])


@pytest.mark.parametrize("buffer_size", [1, 100, comm.BUFFER_SIZE])
def test_broadcast_coalesced_keeps_order_shapes_and_types(buffer_size):
    shapes = [((2, 3), "float32"), ((5,), "int64"), ((), "float32"), ((4, 4), "float32"), ((0,), "int64")]
    given = [accelrt.asarray(numbers(shape, dtype) + 1, device=0) for shape, dtype in shapes]
    given[3] = given[3].T
    found = comm.broadcast_coalesced(given, [0, 1], buffer_size)
    assert all(one is other for one, other in zip(found[0], given, strict=True))
    assert devices_of(found[1]) == [1] * len(given)
    for one, other in zip(found[1], given, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    with pytest.raises(ValueError, match=r"on devices \[0, 1\]"):
        comm.broadcast_coalesced([given[0], found[1][0]], [0, 1])


def test_elements_that_nccl_does_not_know_are_summed_too():
    inputs = [accelrt.asarray(numbers(7, "int16"), device=rank) for rank in range(2)]
    np.testing.assert_array_equal(comm.reduce_add(inputs, 1).numpy(), numbers(7, "int16") * 2)


def test_reduce_add_sums_onto_the_destination():
    inputs = [accelrt.asarray(numbers((3, 4)) * (rank + 1), device=rank) for rank in range(2)]
    for destination in range(2):
        result = comm.reduce_add(inputs, destination)
        assert result.device_index == destination
        np.testing.assert_array_equal(result.numpy(), numbers((3, 4)) * 3)
    assert comm.reduce_add(inputs[:1]) is inputs[0]
    np.testing.assert_array_equal(inputs[0].numpy(), numbers((3, 4)))
    same = [inputs[0], inputs[0], inputs[1]]  # two of one device
    np.testing.assert_array_equal(comm.reduce_add(same, 0).numpy(), numbers((3, 4)) * 4)


def test_reduce_add_refuses_what_torch_refuses():
    first = accelrt.zeros((2, 3), device=0)
    with pytest.raises(AssertionError, match="input 1 is on CPU"):
        comm.reduce_add([first, np.zeros((2, 3), "float32")])
    with pytest.raises(ValueError, match="input 1 has invalid size: got 2x2, but expected 2x3"):
        comm.reduce_add([first, accelrt.zeros((2, 2), device=1)])
    with pytest.raises(RuntimeError, match="destination to be on the same GPU"):
        comm.reduce_add([first], 1)


@pytest.mark.parametrize("buffer_size", [1, comm.BUFFER_SIZE])
def test_reduce_add_coalesced_sums_each_array(buffer_size):
    shapes = [(2, 3), (5,), (4,)]
    inputs = [[accelrt.asarray(numbers(shape) + rank, device=rank) for shape in shapes] for rank in range(2)]
    found = comm.reduce_add_coalesced(inputs, 1, buffer_size)
    assert devices_of(found) == [1] * 3
    for shape, each in zip(shapes, found, strict=True):
        np.testing.assert_array_equal(each.numpy(), numbers(shape) * 2 + 1)
    with pytest.raises(ValueError, match=r"\[3, 2\] arrays"):
        comm.reduce_add_coalesced([inputs[0], inputs[1][:2]])


@pytest.mark.parametrize("source", [0, "cpu"])
def test_scatter_divides_and_gather_joins(source):
    whole = numbers((5, 6))
    given = accelrt.asarray(whole, device=source)
    for dim in (0, 1, -1):
        parts = comm.scatter(given, [0, 1], dim=dim)
        assert devices_of(parts) == [0, 1]
        for each, expected in zip(parts, np.array_split(whole, 2, dim), strict=True):
            np.testing.assert_array_equal(each.numpy(), expected)
        for destination in (0, 1, "cpu"):
            joined = comm.gather(parts, dim, destination)
            assert joined.device_index == (-1 if destination == "cpu" else destination)
            np.testing.assert_array_equal(joined.numpy(), whole)
    parts = comm.scatter(given, [1, 0], chunk_sizes=[1, 4])
    np.testing.assert_array_equal(parts[1].numpy(), whole[1:])
    out = [accelrt.empty((2, 6), "float32", 0), accelrt.empty((3, 6), "float32", 1)]
    assert comm.scatter(given, out=out) == tuple(out)
    np.testing.assert_array_equal(out[1].numpy(), whole[2:])
    target = accelrt.empty((5, 6), "float32", 1)
    assert comm.gather(out, out=target) is target
    np.testing.assert_array_equal(target.numpy(), whole)


def test_scatter_puts_the_copies_into_the_streams_given():
    streams = [accelrt.Stream(rank) for rank in range(2)]
    parts = comm.scatter(numbers((4,)), [0, 1], streams=streams)
    assert [each.stream for each in parts] == streams
    for each in streams:
        each.synchronize()
    np.testing.assert_array_equal(parts[1].numpy(), [2, 3])


def test_scatter_and_gather_refuse_what_does_not_fit():
    array = accelrt.zeros((4, 4))
    refused = [
        (lambda: comm.scatter(array), RuntimeError, "one of 'devices' and 'out'"),
        (lambda: comm.scatter(array, [0], out=[array]), RuntimeError, "'devices' must not be specified"),
        (lambda: comm.scatter(array, chunk_sizes=[4], out=[array]), RuntimeError, "'chunk_sizes' must not"),
        (
            lambda: comm.scatter(array, [0, 1], [1, 1]),
            ValueError,
            r"\[1, 1\] along axis 0 do not make up its 4",
        ),
        (lambda: comm.scatter(array, [0, 1], dim=2), ValueError, "dim is 2"),
        (
            lambda: comm.scatter(array, [0], streams=[accelrt.Stream(1)]),
            ValueError,
            r"streams\[0\] is on device 1",
        ),
        (lambda: comm.gather([]), ValueError, "tensors is empty"),
        (
            lambda: comm.gather([array, accelrt.zeros((4, 3), device=1)]),
            ValueError,
            "may differ along 0 alone",
        ),
        (lambda: comm.gather([array, accelrt.zeros((4, 4), "int8", 1)]), TypeError, "of int8"),
        (lambda: comm.gather([array], destination=0, out=array), RuntimeError, "'destination' must not"),
    ]
    for call, kind, text in refused:
        with pytest.raises(kind, match=text):
            call()


def test_scalars_are_gathered_into_a_vector():
    scalars = [accelrt.full((), rank + 1.0, "float32", rank) for rank in range(2)]
    with pytest.warns(UserWarning, match="will instead unsqueeze"):
        found = comm.gather(scalars, destination=1)
    np.testing.assert_array_equal(found.numpy(), [1, 2])
    with pytest.warns(FutureWarning, match="Using -1"):
        assert comm.gather([accelrt.zeros(2)], destination=-1).device_index == -1
