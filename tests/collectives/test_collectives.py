"""Collectives of one process with two devices: the results against NumPy, for every type and reduction."""

import threading

import numpy as np
import pytest

import accelrt
from accelrt import nccl
from accelrt.nccl.codes import OPERATIONS, PARTS, Kind

pytestmark = pytest.mark.usefixtures("two_devices")
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
SIZES = (1, 7, 1000, 100_003)  # the last needs several turns of a channel


def values(rank, size, dtype="float32"):
    """Small numbers, whose products fit in every type."""
    return np.random.default_rng(rank).integers(1, 8, size).astype(dtype)


def on_devices(size, dtype="float32"):
    return [accelrt.asarray(values(rank, size, dtype), device=rank) for rank in range(2)]


def assert_all(arrays, expected):
    for each in arrays:
        np.testing.assert_array_equal(each.numpy(), expected)


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("dtype", TYPES)
def test_all_reduce_equals_numpy(dtype, op):
    arrays = on_devices(1000, dtype)
    nccl.all_reduce(arrays, op=op)
    assert_all(arrays, REDUCE[op](values(0, 1000, dtype), values(1, 1000, dtype)))


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_of_any_size_in_place_and_into_outputs(size):
    arrays, outputs = on_devices(size), [accelrt.empty(size, "float32", rank) for rank in range(2)]
    expected = values(0, size) + values(1, size)
    nccl.all_reduce(arrays, outputs)
    assert_all(outputs, expected)
    np.testing.assert_array_equal(arrays[1].numpy(), values(1, size))
    nccl.all_reduce(arrays)
    assert_all(arrays, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_avg_is_the_mean(dtype):
    first, second = (2 * values(rank, 100, dtype) for rank in range(2))
    arrays = [accelrt.asarray(each, device=rank) for rank, each in enumerate((first, second))]
    nccl.all_reduce(arrays, op=nccl.AVG)
    assert_all(arrays, (first + second) // 2)


@pytest.mark.parametrize(
    "name",
    ["bfloat16", *(pytest.param(f"float8_{name}", marks=pytest.mark.host) for name in ("e4m3fn", "e5m2"))],
)
def test_floats_of_16_and_8_bits_are_reduced(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = on_devices(100, getattr(ml_dtypes, name))
    nccl.all_reduce(arrays)
    expected = (values(0, 100) + values(1, 100)).astype(getattr(ml_dtypes, name))
    for each in arrays:
        np.testing.assert_array_equal(each.numpy().astype("float32"), expected.astype("float32"))


def test_complex_numbers_are_summed_and_bools_are_joined_by_or():
    numbers = [np.array([1 + 2j, 3 - 1j], "complex64") * (rank + 1) for rank in range(2)]
    arrays = [accelrt.asarray(each, device=rank) for rank, each in enumerate(numbers)]
    nccl.all_reduce(arrays)
    assert_all(arrays, numbers[0] + numbers[1])
    flags = [np.array([rank == 0, rank == 1, False]) for rank in range(2)]
    arrays = [accelrt.asarray(each, device=rank) for rank, each in enumerate(flags)]
    nccl.all_reduce(arrays)
    assert_all(arrays, [True, True, False])


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_reduce_gives_the_root_alone_the_result(size, root):
    arrays, output = on_devices(size), accelrt.empty(size, "float32", root)
    nccl.reduce(arrays, output, root)
    np.testing.assert_array_equal(output.numpy(), values(0, size) + values(1, size))
    for rank, each in enumerate(arrays):
        np.testing.assert_array_equal(each.numpy(), values(rank, size))
    nccl.reduce(arrays, root=root)
    np.testing.assert_array_equal(arrays[root].numpy(), values(0, size) + values(1, size))


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int16", "complex128"])
def test_broadcast_copies_the_roots_elements_of_any_type(dtype, root):
    arrays = on_devices(70_001, dtype)
    nccl.broadcast(arrays, root)
    assert_all(arrays, values(root, 70_001, dtype))


@pytest.mark.parametrize("size", SIZES)
def test_all_gather_puts_the_ranks_one_behind_the_other(size):
    outputs = [accelrt.empty((2, size), "float32", rank) for rank in range(2)]
    nccl.all_gather(on_devices(size), outputs)
    assert_all(outputs, [values(0, size), values(1, size)])
    for rank, each in enumerate(outputs):  # in place
        each.fill_(0)
        each[rank].copy_(values(rank, size))
    nccl.all_gather([each[rank] for rank, each in enumerate(outputs)], outputs)
    assert_all(outputs, [values(0, size), values(1, size)])


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter_gives_each_rank_its_part(size):
    inputs, outputs = on_devices(2 * size), [accelrt.empty(size, "float32", rank) for rank in range(2)]
    nccl.reduce_scatter(inputs, outputs, op="max")
    expected = np.maximum(values(0, 2 * size), values(1, 2 * size)).reshape(2, size)
    for rank in range(2):
        np.testing.assert_array_equal(outputs[rank].numpy(), expected[rank])


@pytest.mark.host  # of NCCL's bindings the function of the row's name is asked for
@pytest.mark.parametrize("size", SIZES)
def test_a_new_operation_is_a_row_and_a_method(comms, monkeypatch, size):
    """Each rank sends each its part: rows of parts on both sides have checks and a host backend too."""
    monkeypatch.setitem(OPERATIONS, "all_to_all", Kind(PARTS, PARTS))

    def all_to_all(comm, input, output):
        comm._call("all_to_all", input, output, None)

    inputs = on_devices(2 * size)
    outputs = [accelrt.empty(2 * size, "float32", rank) for rank in range(2)]
    with nccl.group():
        for rank, each in enumerate(comms):
            all_to_all(each, inputs[rank], outputs[rank])
    for rank, each in enumerate(comms):
        each.synchronize()
        parts = [values(other, 2 * size).reshape(2, size)[rank] for other in range(2)]
        np.testing.assert_array_equal(outputs[rank].numpy(), np.concatenate(parts))
    odd, more = (accelrt.empty(2 * size + extra, "float32", 0) for extra in (1, 2))
    with pytest.raises(
        ValueError, match=f"output has {2 * size + 1} elements, which are no 2 parts of one size"
    ):
        all_to_all(comms[0], inputs[0], odd)
    with pytest.raises(ValueError, match=f"input has {2 * size} elements, output has {2 * size + 2}"):
        all_to_all(comms[0], inputs[0], more)
    with pytest.raises(TypeError, match="output"):
        all_to_all(comms[0], inputs[0], None)


def test_no_elements_are_no_operation(comms):
    for each in comms:
        each.all_reduce(accelrt.empty(0, "float32", each.device_index))
        each.synchronize(timeout=300)


def test_streams_are_those_given(comms):
    streams = [accelrt.Stream(rank) for rank in range(2)]
    arrays = on_devices(1000)
    for rank, each in enumerate(streams):
        each.wait_stream(accelrt.current_stream(rank))
    nccl.all_reduce(arrays, streams=streams, comms=comms)
    for each in streams:
        each.synchronize()
    assert_all(arrays, values(0, 1000) + values(1, 1000))


def test_an_exchange_is_one_group(comms):
    arrays = on_devices(100_000)
    received = [accelrt.empty(100_000, "float32", rank) for rank in range(2)]
    with nccl.group():
        for rank, each in enumerate(comms):
            each.send(arrays[rank], 1 - rank)
            each.recv(received[rank], 1 - rank)
    for rank in range(2):
        np.testing.assert_array_equal(received[rank].numpy(), values(1 - rank, 100_000))


def test_a_rank_sends_to_itself_in_a_group(comms):
    received = accelrt.empty(500, "float32", 0)
    with nccl.group():
        comms[0].send(on_devices(500)[0], 0)
        comms[0].recv(received, 0)
    np.testing.assert_array_equal(received.numpy(), values(0, 500))


def test_several_operations_of_a_group_come_in_their_order(comms):
    first, second = on_devices(3000), on_devices(1000)
    with nccl.group():
        for rank, each in enumerate(comms):
            each.all_reduce(first[rank])
            each.all_reduce(second[rank], op="max")
    assert_all(first, values(0, 3000) + values(1, 3000))
    assert_all(second, np.maximum(values(0, 1000), values(1, 1000)))


def test_memory_of_another_stream_is_not_handed_out_before_the_operation_is_done(comms):
    size, go = 1 << 20, threading.Event()
    streams = [accelrt.Stream(rank) for rank in range(2)]
    nccl.all_reduce(on_devices(size), streams=streams, comms=comms)  # NCCL connects the ranks here
    arrays = on_devices(size)
    for rank, each in enumerate(streams):
        each.wait_stream(accelrt.current_stream(rank))
        each.launch_host_func(go.wait)
    nccl.all_reduce(arrays, streams=streams, comms=comms)
    addresses = [each.ptr for each in arrays]
    del arrays
    others = [accelrt.empty(size, "float32", rank) for rank in range(2)]
    go.set()
    assert not {each.ptr for each in others} & set(addresses)
    for each in streams:
        each.synchronize()


def test_other_libraries_arrays_are_taken_by_the_cuda_array_interface(comms):
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = {
                "version": 3,
                "data": (array.ptr, False),
                "shape": array.shape,
                "typestr": array.dtype.str,
            }

    arrays = on_devices(1000)
    with nccl.group():
        for rank, each in enumerate(comms):
            each.all_reduce(Foreign(arrays[rank]))
    assert_all(arrays, values(0, 1000) + values(1, 1000))


def test_a_buffer_is_bytes(comms):
    buffers = [accelrt.Buffer(4096, rank) for rank in range(2)]
    for rank, each in enumerate(buffers):
        each.fill(rank + 1)
    nccl.all_reduce(buffers)
    for each in buffers:
        assert set(accelrt.Array(each).numpy()) == {3}
        each.free()


def test_torchs_names_and_forms():
    arrays = on_devices(10)
    assert nccl.is_available(arrays)
    assert not nccl.is_available([arrays[0], arrays[0]])
    assert not nccl.is_available([np.zeros(3)])
    assert not nccl.is_available([accelrt.empty((4, 4), "int8", 0).T])
    assert len(nccl.version()) == 3
    assert isinstance(nccl.unique_id(), bytes)
    assert nccl.SUM == 0
    with pytest.warns(FutureWarning, match="list of outputs"):
        nccl.reduce(arrays, outputs=[accelrt.empty(10, "float32", rank) for rank in range(2)])
    with pytest.raises(TypeError, match="should be a collection of arrays"):
        nccl.all_reduce(arrays[0])
    with pytest.raises(ValueError, match=r"on devices \[0, 0\]"):
        nccl.all_reduce([arrays[0], arrays[0]])


def test_one_rank_alone_is_a_communicator_too(two_devices):
    with accelrt.device(1):
        comm = nccl.init_rank(1, nccl.unique_id(), 0)
    array = accelrt.asarray(values(0, 100), device=1)
    comm.all_reduce(array)
    comm.synchronize()
    np.testing.assert_array_equal(array.numpy(), values(0, 100))
    comm.close()
