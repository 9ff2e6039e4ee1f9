"""Where there is no device every public function says just that, or answers what is documented."""

import contextlib
import itertools
import tempfile

import pytest
from child import in_own_process

import accelrt

ARGUMENT_ERRORS = (TypeError, ValueError, LookupError, accelrt.CompileError)
ARGUMENTS = [
    *(
        (),
        (None,),
        (-1,),
        (0,),
        (1,),
        (64,),
        ("cuda",),
        ("cuda:0",),
        (0.5,),
        (0, 0),
        (64, 0),
        (1 << 20, None),
    ),
    *((bytearray(64),), (bytearray(64), bytes(64)), (bytearray(64), 0)),
]
FIRST = [
    *("Buffer", "MemPool", "PinnedBuffer", "Stream", "caching_allocator_alloc", "current_device"),
    *("current_stream", "default_stream", "get_device_capability", "get_device_name"),
    *("get_device_properties", "is_current_stream_capturing", "mem_get_info", "synchronize"),
]
NO_DEVICE = "answered NO_DEVICE (100): no device is visible; check CUDA_VISIBLE_DEVICES"


def functions():
    for place in (accelrt, accelrt.memory):
        for name in place.__all__:
            thing = getattr(place, name)
            if callable(thing) and not (isinstance(thing, type) and issubclass(thing, BaseException)):
                yield name, thing


def judge(name, given, error):
    """Whether an error is one of the arguments, or tells that there is no device."""
    if name == "compile" and isinstance(error, accelrt.NotSupportedError):  # of the host device
        return False
    if name == "check_error":  # whose argument is a code
        return False
    if isinstance(error, accelrt.CudaError):
        assert NO_DEVICE in str(error), (name, given, error)
        return True
    assert name == "init" or isinstance(error, ARGUMENT_ERRORS), (name, given, error)
    assert "ordinals" not in str(error), (name, given, error)
    return False


@in_own_process(ACCELRT_HOST_DEVICES="0")
def test_every_function_says_that_there_is_no_device():
    told = set()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # some write files
        for (name, function), given in itertools.product(functions(), ARGUMENTS):
            print(name, given, flush=True)  # the last line, where this crashes the process
            try:
                function(*given)
            except Exception as error:
                if judge(name, given, error):
                    told.add(name)
    assert told >= {
        "Buffer",
        "MemPool",
        "Stream",
        "current_device",
        "current_stream",
        "get_device_properties",
    }


@pytest.mark.parametrize("name", FIRST)
@in_own_process(ACCELRT_HOST_DEVICES="0")
def test_the_first_use_says_that_there_is_no_device(name):
    function = getattr(accelrt, name)
    with pytest.raises(accelrt.CudaError) as caught:
        function(*((64,) if name in ("Buffer", "PinnedBuffer", "caching_allocator_alloc") else ()))
    assert NO_DEVICE in str(caught.value)
    assert (accelrt.device_count(), accelrt.is_available(), accelrt.memory_allocated()) == (0, False, 0)


@in_own_process(ACCELRT_HOST_DEVICES="0")
def test_what_needs_no_device_needs_none():
    with accelrt.device(None), accelrt.device(-1), accelrt.stream(None), accelrt.device_of(b"nothing"):
        accelrt.set_device(-1)
        accelrt.set_stream(None)
    accelrt.Event().query()
    accelrt.empty_cache()


@in_own_process(printing="0 ()\n", ACCELRT_HOST_DEVICES="0")
def test_seeding_without_a_device_does_nothing():
    accelrt.init(driver="host")
    accelrt.manual_seed(3)
    accelrt.manual_seed_all(3)
    accelrt.random.seed()
    accelrt.random.seed_all()
    print(accelrt.device_count(), accelrt.default_generators[:])
