"""Other libraries' arrays (CUDA Array Interface): read entry by entry, and followed by their stream."""

import threading
from typing import ClassVar

import numpy as np
import pytest
from beside import Gate
from device_arrays import bytes_of

import accelrt

SIZE = 1 << 16
LAST = accelrt.device_count() - 1


class Array:
    """Some other library's array of bytes on a Buffer."""

    def __init__(self, buffer, without=None, **entries):
        self.buffer = buffer
        told = {
            "shape": (buffer.nbytes,),
            "typestr": "|u1",
            "data": (buffer.ptr, False),
            "version": 3,
            **entries,
        }
        self.__cuda_array_interface__ = {key: value for key, value in told.items() if key != without}


def contents(buffer):
    return set(bytes_of(buffer).tolist())


def late_fill(buffer, stream, value):
    """A fill that is under way until the gate is opened."""
    gate = threading.Event()
    stream.launch_host_func(gate.wait)
    buffer.fill(value, stream=stream)
    return gate


def moves(array, other, stream):
    return {
        "from": lambda: other.copy_from(array, stream=stream, blocking=False),
        "into": lambda: accelrt.copy(array, other, stream=stream, blocking=False),
        "fill": lambda: accelrt.fill(array, 9, stream=stream),
    }


@pytest.mark.parametrize("move", ["from", "into", "fill"])
def test_work_on_an_array_comes_behind_its_stream(move):
    producer, consumer = accelrt.Stream(), accelrt.Stream()
    with accelrt.Buffer(SIZE) as theirs, accelrt.Buffer(SIZE) as other:
        theirs.fill(1, blocking=True)
        other.fill(9, blocking=True)
        gate = late_fill(theirs, producer, 5)
        moves(Array(theirs, stream=producer.cuda_stream), other, consumer)[move]()
        assert not consumer.query()
        gate.set()
        consumer.synchronize()
        assert contents(other if move == "from" else theirs) == {5 if move == "from" else 9}


@pytest.mark.parametrize("handle", [1, 2], ids=["legacy", "per-thread"])
def test_default_streams_of_arrays_have_the_handles_of_the_protocol(handle):
    producer = accelrt.default_stream() if handle == 1 else accelrt.per_thread_stream()
    consumer = accelrt.Stream()
    with accelrt.Buffer(SIZE) as theirs, accelrt.Buffer(SIZE) as mine:
        gate = late_fill(theirs, producer, 5)
        mine.copy_from(Array(theirs, stream=handle), stream=consumer, blocking=False)
        assert not consumer.query()
        gate.set()
        consumer.synchronize()
        assert contents(mine) == {5}


@pytest.mark.parametrize("entries", [{}, {"stream": None}], ids=["absent", "none"])
def test_without_a_stream_nothing_is_waited_for(entries):
    consumer = accelrt.Stream()
    with accelrt.Buffer(SIZE) as theirs, accelrt.Buffer(SIZE) as mine:
        theirs.fill(6, blocking=True)
        other = accelrt.Stream()
        with Gate(other):
            mine.copy_from(Array(theirs, **entries), stream=consumer)
            assert contents(mine) == {6}
        other.synchronize()


if LAST:

    def test_an_array_of_another_device_is_waited_for_there():
        producer = accelrt.Stream(LAST)
        with accelrt.Buffer(SIZE, LAST) as theirs, accelrt.Buffer(SIZE, 0) as mine:
            theirs.fill(1, blocking=True)
            consumer = accelrt.Stream(0)
            gate = late_fill(theirs, producer, 5)
            accelrt.copy(mine, Array(theirs, stream=producer.cuda_stream), stream=consumer, blocking=False)
            assert not consumer.query()
            gate.set()
            consumer.synchronize()
            assert contents(mine) == {5}


def test_a_captured_copy_waits_for_nothing_outside_its_capture():
    producer, worker = accelrt.Stream(), accelrt.Stream()
    with accelrt.Buffer(SIZE) as theirs, accelrt.Buffer(SIZE) as mine:
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=worker):
            mine.copy_from(Array(theirs, stream=producer.cuda_stream), stream=worker, blocking=False)
        theirs.fill(8, blocking=True)
        graph.replay()
        accelrt.synchronize()
        assert contents(mine) == {8}
        graph.reset()


def test_memory_of_the_cache_behind_an_array_is_kept_for_the_copy():
    worker = accelrt.Stream()
    pointer = accelrt.caching_allocator_alloc(SIZE)
    with accelrt.Buffer(SIZE) as mine:
        with Gate(worker):

            class Raw:
                __cuda_array_interface__: ClassVar = {
                    "shape": (SIZE,),
                    "typestr": "|u1",
                    "data": (pointer, False),
                    "version": 3,
                }

            mine.copy_from(Raw(), stream=worker, blocking=False)
            accelrt.caching_allocator_delete(pointer)
            again = [accelrt.caching_allocator_alloc(SIZE) for _ in range(3)]
        worker.synchronize()
        assert pointer not in again
        for address in again:
            accelrt.caching_allocator_delete(address)


MALFORMED = {
    "data": [
        None,
        5,
        (5,),
        ("x", False),
        (1.5, False),
        (True, False),
        (-1, False),
        (1 << 64, False),
        (1 << 200, False),
    ],
    "shape": [None, 5, ("x",), (1.5,), (True,), (-1,), (1 << 64,), (1 << 200, 1 << 200)],
    "typestr": [None, 5, "", "u", "|u", "|u-1", "<f4x", "|t3"],
    "strides": [5, ("x",), (1, 1), (1.5,), (2,), (-1,), (1 << 200,)],
    "stream": [0, -1, 1 << 64, 1 << 200, "x", 1.5, True],
    "mask": ["yes", (1,)],
}


@pytest.mark.parametrize(
    ("entry", "value"), [(entry, value) for entry, values in MALFORMED.items() for value in values], ids=str
)
def test_a_malformed_entry_is_named(entry, value):
    with accelrt.Buffer(64) as theirs, accelrt.Buffer(64) as mine:
        array = Array(theirs, **{entry: value})
        for call in (
            lambda: mine.copy_from(array),
            lambda: accelrt.copy(array, mine),
            lambda: accelrt.fill(array, 1),
        ):
            with pytest.raises((TypeError, ValueError), match=entry):
                call()


def test_an_array_whose_stream_is_none_of_the_drivers_is_refused():
    if accelrt.device(0).type != "host":
        pytest.skip("a GPU's driver may crash on a handle that was never one")
    with (
        accelrt.Buffer(64) as theirs,
        accelrt.Buffer(64) as mine,
        pytest.raises(ValueError, match="0x3039, which is no"),
    ):
        mine.copy_from(Array(theirs, stream=12345))


OF_OBJECTS = {"typestr": "|V8", "shape": (8,), "descr": [("a", "<i4"), ("b", [("c", "|O")])]}


@pytest.mark.parametrize(
    ("entries", "error", "text"),
    [
        *(({"without": entry}, ValueError, f"without '{entry}'") for entry in ("data", "shape", "typestr")),
        ({"typestr": "|O8", "shape": (8,)}, TypeError, "Python objects"),
        (OF_OBJECTS, TypeError, "Python objects"),
    ],
)
def test_a_missing_entry_is_named_and_objects_are_refused(entries, error, text):
    with accelrt.Buffer(64) as theirs, accelrt.Buffer(64) as mine, pytest.raises(error, match=text):
        mine.copy_from(Array(theirs, **entries))


def test_what_is_no_dict_is_refused():
    class Odd:
        __cuda_array_interface__ = (1,)

    with accelrt.Buffer(64) as mine, pytest.raises(TypeError, match="has to be a dict"):
        mine.copy_from(Odd())


def test_arrays_may_have_numpy_numbers_and_contiguous_strides():
    with accelrt.Buffer(64) as theirs, accelrt.Buffer(64) as mine:
        theirs.fill(3, blocking=True)
        data = (np.uint64(theirs.ptr), np.False_)
        mine.copy_from(
            Array(theirs, shape=(np.int64(4), 4), typestr="<f4", strides=(np.int32(16), 4), data=data)
        )
        assert contents(mine) == {3}


def test_numpy_is_told_that_a_buffer_is_device_memory():
    with accelrt.Buffer(64) as buffer:
        for make in (np.asarray, np.array, lambda thing: np.stack([thing, thing])):
            with pytest.raises(TypeError, match="copy_to"):
                make(buffer)
