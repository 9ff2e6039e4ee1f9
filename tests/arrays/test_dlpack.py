"""DLPack both ways: what capsules say, who frees what, and what is refused."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from beside import Gate, on_a_thread
from child import run_code
from dlpack import Managed, Producer, Versioned, look, take

import accelrt

ON_HOST = accelrt.device(0).type == "host"
DEVICE = (1, 0) if ON_HOST else (2, 0)
MODERN = {"max_version": (1, 0)}


def test_a_capsule_says_what_the_array_is():
    array = accelrt.empty((2, 3, 4), "f4")[:, ::2].T
    for given, kind in (({}, Managed), ({"max_version": (0, 8)}, Managed), (MODERN, Versioned)):
        found = look(capsule := array.__dlpack__(**given))
        tensor = found.tensor
        assert isinstance(found, kind)
        assert (tensor.data, tensor.ndim, tensor.byte_offset) == (array.ptr, 3, 0)
        assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
        assert (tensor.device_type, tensor.device_id) == array.__dlpack_device__() == DEVICE
        assert tuple(tensor.shape[:3]) == (4, 2, 2)
        assert tuple(tensor.strides[:3]) == (1, 8, 12)
        if kind is Versioned:
            assert (found.major, found.minor, found.flags) == (1, 3, 0)
        del capsule


@pytest.mark.parametrize("given", [{}, MODERN])
def test_a_capsule_that_nobody_takes_frees_the_memory(given):
    array = accelrt.empty(64, "u1")
    memory = weakref.ref(array.base)
    capsule = array.__dlpack__(**given)
    del array
    assert memory() is not None
    del capsule
    assert memory() is None


@pytest.mark.parametrize("given", [{}, MODERN])
def test_a_tensor_is_freed_once_by_whoever_took_it_on_any_thread(given):
    array = accelrt.empty(64, "u1")
    memory, capsule = weakref.ref(array.base), array.__dlpack__(**given)
    tensor = take(capsule)
    del array, capsule
    assert memory() is not None
    address = take.__globals__["ctypes"].addressof(tensor)
    on_a_thread(lambda: tensor.deleter(address))
    assert memory() is None


def test_memory_is_not_freed_under_another_library():
    for array in (accelrt.zeros(8, "u1"), accelrt.empty(8, "u1", pin_memory=True)):
        base, capsule = array.base, array.__dlpack__(**MODERN)
        for owner in (array, base, array[1:] if array.device_index >= 0 else array):
            with pytest.raises(BufferError, match="alive"):
                owner.free()
        assert array[1:].shape == (7,)
        del capsule
        array.free()
        assert base.ptr == 0
    host = accelrt.asarray(np.zeros(3), device="cpu")
    capsule = host.__dlpack__()
    with pytest.raises(BufferError, match="1 DLPack tensors of this Array"):
        host.free()
    del capsule


def test_read_only_arrays_need_a_versioned_capsule():
    array = accelrt.Array(accelrt.Buffer(8), readonly=True)
    assert look(array.__dlpack__(**MODERN)).flags == 1
    with pytest.raises(BufferError, match="an unversioned DLPack tensor cannot say"):
        array.__dlpack__()


def test_copies_are_made_where_they_are_asked_for():
    array = accelrt.full(4, 3, "i4")
    found = look(capsule := array.__dlpack__(copy=True, **MODERN))
    assert found.flags == 2
    assert found.tensor.data != array.ptr
    assert look(array.__dlpack__(copy=False, **MODERN)).tensor.data == array.ptr
    assert look(array.__dlpack__(dl_device=DEVICE, **MODERN)).tensor.data == array.ptr
    for given in ({"dl_device": (8, 0)}, {"dl_device": (1, 3)}):
        with pytest.raises(BufferError, match=r"dl_device is .* is exported there"):
            array.__dlpack__(**given)
    del capsule


def test_streams_of_the_host_are_none():
    pinned = accelrt.empty(4, pin_memory=True)
    for stream in (None, -1):
        pinned.__dlpack__(stream=stream)
    for stream in (0, 1, 77, "s"):
        with pytest.raises(ValueError, match="exported with None, or -1"):
            pinned.__dlpack__(stream=stream)


@pytest.mark.gpu
def test_streams_of_a_gpu_are_ordered():
    producer, consumer = accelrt.Stream(), accelrt.Stream()
    array = accelrt.zeros(1 << 20, "u1", stream=producer)
    with Gate(producer):
        array.fill_(7, stream=producer)
        capsule = array.__dlpack__(stream=consumer.cuda_stream)
        out = accelrt.empty(1 << 20, "u1", stream=consumer)
        out.copy_(array, stream=consumer)
        assert not consumer.query()
    consumer.synchronize()
    assert (out.numpy() == 7).all()
    for stream in (-1, 1, 2, None):
        array.__dlpack__(stream=stream)
    for stream, error in ((0, ValueError), (-2, ValueError), ("s", TypeError), (True, TypeError)):
        with pytest.raises(error, match="stream is"):
            array.__dlpack__(stream=stream)
    del capsule


@pytest.mark.host
def test_an_export_waits_for_the_arrays_stream():
    stream, event = accelrt.Stream(), threading.Event()
    array = accelrt.zeros(1 << 16, "u1", stream=stream)
    stream.launch_host_func(event.wait)
    array.fill_(5, stream=stream)
    look(array.__dlpack__(stream=-1))
    assert not event.is_set()
    threading.Timer(0.05, event.set).start()
    assert (np.from_dlpack(array) == 5).all()


@pytest.mark.host
def test_numpy_takes_arrays_and_they_take_numpys():
    array = accelrt.full((3, 4), 2, "f8")
    view = np.from_dlpack(array.T)
    assert (view.ctypes.data, view.shape, view.strides) == (array.ptr, (4, 3), (8, 32))
    view[0, 0] = 9
    assert array.numpy()[0, 0] == 9
    copied = np.from_dlpack(array, copy=True)
    assert copied.ctypes.data != array.ptr
    fixed = np.from_dlpack(accelrt.Array(array, (12,), "f8", readonly=True))
    assert not fixed.flags.writeable
    memory = weakref.ref(array.base)
    del array
    assert (memory() is not None, copied.sum()) == (True, 31)
    del view, fixed
    assert memory() is None


@pytest.mark.host
@pytest.mark.skipif("accelrt.device_count() < 2")
@pytest.mark.parametrize("blocking", [True, False])
def test_what_numpy_sees_of_another_device_is_copied_as_memory_of_the_cpu(blocking):
    array, back = accelrt.full(3_000_000, 2, "u1", device=0), np.zeros(3_000_000, np.uint8)
    accelrt.synchronize(0)
    view = np.from_dlpack(array)
    with accelrt.device(1):
        copied = accelrt.asarray(view)
        target = accelrt.zeros(3_000_000, "u1")
        target.base.copy_from(view, blocking=blocking)
        view[:] = 9
        assert (copied.device_index, set(copied.numpy()), set(target.numpy())) == (1, {2}, {2})
        target.fill_(4)
        target.base.copy_to(view, blocking=blocking)
        target.base.copy_to(back)
    assert set(view) == set(back) == {4}


@pytest.mark.parametrize("versioned", [True, False])
def test_an_imported_tensor_goes_back_with_the_last_view(versioned):
    model = np.arange(12, dtype=np.int32).reshape(3, 4)
    producer = Producer(model.T, versioned)
    array = accelrt.from_dlpack(producer)
    assert (array.shape, array.strides, array.readonly) == ((4, 3), (4, 16), False)
    assert producer.asked == [{"max_version": (1, 3)}]
    view = array[1:]
    array.free()
    assert (producer.deleted, view.numpy().tolist()) == (0, model.T[1:].tolist())
    del view
    gc.collect()
    assert producer.deleted == 1


def test_imports_follow_flags_offsets_and_missing_strides():
    model = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert accelrt.from_dlpack(Producer(model, flags=1)).readonly
    shifted = accelrt.from_dlpack(Producer(model[1:], data=model.ctypes.data, byte_offset=16, strides=None))
    assert shifted.numpy().tolist() == model[1:].tolist()
    assert accelrt.from_dlpack(Producer(model), copy=True).ptr != model.ctypes.data
    assert accelrt.from_dlpack(Producer(model), device=0).device_index == 0
    with pytest.raises(ValueError, match="the elements are elsewhere"):
        accelrt.from_dlpack(Producer(model), device=0, copy=False)
    array = accelrt.zeros(3)
    assert accelrt.from_dlpack(array) is array


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"major": 2}, "is of version 2.0; accelrt takes 1.x"),
        ({"lanes": 4}, "elements of 4 lanes"),
        ({"code": 3}, "type code 3 with 32 bits"),
        ({"bits": 128}, "type code 2 with 128 bits"),
        ({"bits": 8}, "type code 2 with 8 bits"),
        ({"ndim": 65}, "has 65 axes"),
        ({"ndim": -1}, "has -1 axes"),
        ({"device": (8, 0)}, "on a device of type 8"),
        ({"device_type": 8}, "on a device of type 8"),
    ],
)
def test_tensors_that_cannot_be_taken_go_back(changes, text):
    producer = Producer(np.zeros(3, "f4"), **changes)
    with pytest.raises(BufferError, match=text):
        accelrt.from_dlpack(producer)
    gc.collect()
    assert producer.deleted == len(producer.asked)


@pytest.mark.parametrize("stride", [1 << 61, 1 << 62, (1 << 63) - 1, -(1 << 62), -(1 << 63)])
def test_strides_that_no_memory_reaches_are_refused(stride):
    given = np.zeros((2, 3), "f4")
    for lengths in ((2, 3), (9, 1)):
        producer = Producer(given)
        producer.shape[:], producer.strides[:] = lengths, (stride, 1)
        with pytest.raises(BufferError, match=r"no memory reaches so far|reach beyond all memory"):
            accelrt.from_dlpack(producer)
        gc.collect()
        assert producer.deleted == 1
    producer = Producer(given)  # an axis of one element has no stride to speak of
    producer.shape[:], producer.strides[:] = (1, 3), (stride, 1)
    assert accelrt.from_dlpack(producer).numpy().tolist() == [[0, 0, 0]]


@pytest.mark.host
def test_gpu_tensors_are_refused_on_the_host_device():
    for kind in (2, 13):
        with pytest.raises(BufferError, match="accelrt uses the host device"):
            accelrt.from_dlpack(Producer(np.zeros(3), device=(kind, 0)))


def test_what_has_no_dlpack_is_refused():
    for source in (3, [1, 2], object()):
        with pytest.raises(TypeError, match="has no __dlpack__"):
            accelrt.from_dlpack(source)

    class Wrong:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **given):
            return object()

    with pytest.raises(BufferError, match="is no DLPack capsule"):
        accelrt.from_dlpack(Wrong())


def test_producers_of_before_dlpack_1_are_taken():
    class Old(Producer):
        def __dlpack__(self, stream=None):
            return Producer.__dlpack__(self)

    producer = Old(np.arange(3, dtype=np.float32), versioned=False)
    assert accelrt.from_dlpack(producer).numpy().tolist() == [0, 1, 2]


@pytest.mark.own_process
def test_tensors_that_outlive_the_interpreter_are_left_alone():
    code = (
        "import accelrt, atexit, ctypes, sys\nsys.path[:0] = ['tests/helpers']\nimport dlpack\n"
        "array = accelrt.zeros(8)\ntensor = dlpack.take(array.__dlpack__(max_version=(1, 0)))\n"
        "class Late:\n    def __del__(self, tensor=tensor, at=ctypes.addressof(tensor)): tensor.deleter(at)\n"
        "sys.late = Late()\nprint('done')\n"
    )
    assert run_code(code, ACCELRT_DRIVER="host") == "done\n"


def test_exports_hold_one_reference_each():
    array = accelrt.zeros(8)
    before = sys.getrefcount(array)
    capsules = [array.__dlpack__(**given) for given in ({}, MODERN) * 5]
    assert sys.getrefcount(array) == before + 10
    del capsules
    assert sys.getrefcount(array) == before


def test_a_buffer_is_given_to_others_as_its_bytes():
    buffer = accelrt.Buffer(64)
    capsule = buffer.__dlpack__(**MODERN)
    tensor = look(capsule).tensor
    assert (tensor.data, tensor.ndim, tensor.shape[0]) == (buffer.ptr, 1, 64)
    assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
    assert buffer.__dlpack_device__() == DEVICE
    shared = accelrt.from_dlpack(buffer)
    assert shared.ptr == buffer.ptr
    memory = weakref.ref(buffer)
    del buffer, shared
    assert memory() is not None
    del capsule
    assert memory() is None
    freed = accelrt.Buffer(64)
    freed.free()
    for call in (freed.__dlpack__, freed.__dlpack_device__):
        with pytest.raises(ValueError, match="was freed"):
            call()


def test_numpy_takes_page_locked_memory_by_dlpack():
    pinned = accelrt.PinnedBuffer(64)
    bytes_ = np.from_dlpack(pinned)
    bytes_[:] = 7
    assert bytes(memoryview(pinned)) == b"\7" * 64
    assert pinned.__dlpack_device__() == accelrt.Array(pinned).__dlpack_device__()
    with pytest.raises(BufferError):
        pinned.free()
    del bytes_
    pinned.free()
    with pytest.raises(ValueError, match="was freed"):
        pinned.__dlpack__()
