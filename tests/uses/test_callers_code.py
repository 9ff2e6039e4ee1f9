"""What a call runs of its caller's code (conversions, streams, shapes) may free the memory it is about."""

import ctypes

import numpy as np
import pytest

import accelrt

SIZE = 1 << 16


class Freeing:
    """An argument whose conversion frees memory, and takes memory in its place that has to stay 0."""

    def __init__(self, memory, value):
        self.memory, self.value, self.other = memory, value, None

    def free(self):
        if self.other is None:
            address, pinned = self.memory.ptr, isinstance(self.memory, accelrt.PinnedBuffer)
            self.memory.free()
            if pinned:
                self.other = accelrt.PinnedBuffer(SIZE)
                np.frombuffer(self.other, "u1")[:] = 0
            else:
                self.other = accelrt.zeros(SIZE, "u1")
            assert self.other.ptr == address
        return self.value

    def __index__(self):
        return self.free()

    def __int__(self):
        return self.free()

    def __float__(self):
        return float(self.free())

    def __cuda_stream__(self):
        self.free()
        return 0, accelrt.current_stream().cuda_stream

    def __iter__(self):
        return iter(self.free())

    def __ge__(self, other):
        return self.free() >= other

    def __bool__(self):
        return bool(self.free())

    def __str__(self):
        return "Freeing"


class FreeingAttributes(Freeing):
    """One that frees memory where it is asked for its type or its index, as a dtype or a device is."""

    @property
    def dtype(self):
        self.free()
        return np.dtype("u1")

    @property
    def index(self):
        return self.free()


def array():
    return accelrt.full(SIZE, 1, "u1")


def buffer():
    made = accelrt.Buffer(SIZE)
    made.fill(1)
    return made


def pinned():
    return accelrt.PinnedBuffer(SIZE)


ONES = np.full(SIZE, 1, "u1")
USES = {
    "x[i]": (array, lambda x, evil: x[evil], 7),
    "x[i:]": (array, lambda x, evil: x[evil:], 7),
    "x[i] = 1": (array, lambda x, evil: x.__setitem__(evil, 1), 7),
    "reshape": (array, lambda x, evil: x.reshape(evil), SIZE),
    "reshape of a tuple": (array, lambda x, evil: x.reshape((1, evil)), SIZE),
    "permute": (array, lambda x, evil: x.permute(evil), 0),
    "fill_": (array, lambda x, evil: x.fill_(evil), 7),
    "fill_ on a stream": (array, lambda x, evil: x.fill_(7, stream=evil), 0),
    "fill_ of some": (array, lambda x, evil: x[::2].fill_(7, stream=evil), 0),
    "copy_ on a stream": (array, lambda x, evil: x.copy_(ONES, stream=evil), 0),
    "copy_ of an array on a stream": (array, lambda x, evil: x.copy_(array(), stream=evil), 0),
    "strided copy_ on a stream": (array, lambda x, evil: x[::2].copy_(array()[::2], stream=evil), 0),
    "copy on a stream": (array, lambda x, evil: x.copy(stream=evil), 0),
    "Buffer.fill on a stream": (buffer, lambda x, evil: x.fill(7, stream=evil), 0),
    "Buffer.fill of a value": (buffer, lambda x, evil: x.fill(evil), 7),
    "Buffer.fill of a count": (buffer, lambda x, evil: x.fill(7, evil), 9),
    "Buffer.fill from an offset": (buffer, lambda x, evil: x.fill(7, offset=evil), 9),
    "copy_from on a stream": (buffer, lambda x, evil: x.copy_from(ONES, stream=evil), 0),
    "copy_from of some": (buffer, lambda x, evil: x.copy_from(ONES, evil), 9),
    "copy_from from an offset": (buffer, lambda x, evil: x.copy_from(ONES, 1, offset=evil), 9),
    "copy_to on a stream": (buffer, lambda x, evil: x.copy_to(np.empty(SIZE, "u1"), stream=evil), 0),
    "copy between devices": (buffer, lambda x, evil: accelrt.copy(x, accelrt.Buffer(SIZE, 1), evil), 9),
    "record_stream": (buffer, lambda x, evil: x.record_stream(evil), 0),
    "page-locked memory copied on a stream": (
        pinned,
        lambda x, evil: accelrt.copy(x, array(), stream=evil, blocking=False),
        0,
    ),
    "Array of a length": (buffer, lambda x, evil: accelrt.Array(x, evil), 9),
    "Array at an offset": (buffer, lambda x, evil: accelrt.Array(x, 1, offset=evil), 9),
    "Array with strides": (buffer, lambda x, evil: accelrt.Array(x, (1,), strides=(evil,)), 1),
    "Array on page-locked memory": (pinned, lambda x, evil: accelrt.Array(x, evil), 9),
    "asarray of a type": (array, lambda x, evil: accelrt.asarray(x, evil), 0),
    "asarray on a device": (array, lambda x, evil: accelrt.asarray(x, device=evil), 0),
    "asarray with or without a copy": (array, lambda x, evil: accelrt.asarray(x, copy=evil), 0),
    "asarray on a stream": (array, lambda x, evil: accelrt.asarray(x, stream=evil, copy=True), 0),
    "DLPack": (array, lambda x, evil: x.__dlpack__(dl_device=evil), None),
    "DLPack of a version": (array, lambda x, evil: x.__dlpack__(max_version=(evil, 0)), 1),
}


@pytest.mark.parametrize("name", USES)
def test_memory_that_an_argument_frees_is_refused_and_others_are_left_alone(name):
    make, use, value = USES[name]
    if "between" in name and accelrt.device_count() < 2:
        pytest.skip("takes two devices")
    memory = make()
    kind = FreeingAttributes if "asarray" in name else Freeing
    evil = kind(memory, memory.__dlpack_device__() if value is None else value)
    with pytest.raises(ValueError, match="freed") as caught:
        use(memory, evil)
    accelrt.synchronize()
    contents = evil.other.numpy() if isinstance(evil.other, accelrt.Array) else np.frombuffer(evil.other)
    assert not contents.any(), caught.value


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
def set_first(where, arguments):
    ctypes.c_uint8.from_address(ctypes.c_size_t.from_address(arguments[0]).value).value = 7


@pytest.mark.host
@pytest.mark.parametrize("make", [array, buffer, pinned])
def test_memory_that_an_argument_of_a_launch_frees_is_refused(make):
    kernel, memory = accelrt.host_kernel(set_first, "uint8_t* at, int32_t count"), make()
    evil = Freeing(memory, 7)
    with pytest.raises(ValueError, match=r"argument 0 of kernel.*freed"):
        kernel[1, 1](memory, evil)
    accelrt.synchronize()
    contents = evil.other.numpy() if isinstance(evil.other, accelrt.Array) else np.frombuffer(evil.other)
    assert not contents.any()
    kernel[1, 1](make(), 7)


def test_a_buffer_is_not_made_anew_after_its_end():
    # Arrays name the address that it had.
    memory = accelrt.Buffer(SIZE)
    view = memory[:16]
    memory.free()
    with pytest.raises(RuntimeError, match="initialised once"):
        memory.__init__(SIZE)
    with pytest.raises(ValueError, match="freed"):
        view.numpy()


class Elsewhere:
    """Stands for an object that there is in other contexts only, as proxies of web frameworks do."""

    @property
    def __class__(self):
        raise RuntimeError("there is none here")


@pytest.mark.parametrize(
    "use",
    [
        lambda array: array == Elsewhere(),
        lambda array: accelrt.asarray(Elsewhere()),
        lambda array: array.copy_(Elsewhere()),
        lambda array: accelrt.Module(Elsewhere()),
    ],
    ids=["==", "asarray", "copy_", "Module"],
)
def test_what_an_argument_raises_that_is_asked_for_its_class_comes_out(use):
    with pytest.raises(RuntimeError, match="none here"):
        use(accelrt.zeros(4))
