"""accelrt.interop.numba on the host device: numba-cuda's own classes, with a stand-in for its context and its
device."""

import gc
import os
import pickle
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from beside import on_a_thread
from child import run_code

import accelrt
from accelrt.interop import numba as interop

pytestmark = pytest.mark.host
MIB = 1 << 20


class Context:
    """A stand-in for numba's context of device 0, which would need a GPU."""

    def __init__(self):
        self.device = SimpleNamespace(id=0)
        self.memory_manager = None

    def create_external_stream(self, handle):
        return ExternalStream(handle)


class ExternalStream:
    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        return self.handle


class OwnManager:
    """A stand-in for numba's own memory manager."""

    def __init__(self, context):
        self.context = context

    def initialize(self):
        raise AssertionError("numba's own manager was initialised by accelrt")


@pytest.fixture
def numba(monkeypatch):
    pytest.importorskip("numba.cuda.cudadrv.driver", reason="numba-cuda is not installed")
    accelrt.init()
    cuda, driver = interop._import()
    contexts = []
    monkeypatch.setattr(interop.peers, "prepare_memory", lambda call: None)
    monkeypatch.setattr(interop, "_contexts", lambda _: contexts)
    monkeypatch.setattr(driver, "_memory_manager", OwnManager)
    yield SimpleNamespace(cuda=cuda, driver=driver, contexts=contexts)
    contexts.clear()
    interop.uninstall()
    gc.collect()


@pytest.fixture
def manager(numba):
    interop.install()
    context = Context()
    context.memory_manager = interop._manager(context=context)
    numba.contexts.append(context)
    return context.memory_manager


@pytest.fixture
def held():
    """A stream that does nothing until the test lets it go on."""
    stream, go = accelrt.Stream(), threading.Event()
    stream.launch_host_func(go.wait)
    yield stream
    go.set()
    stream.synchronize()


def test_device_memory_comes_from_accelrt_and_goes_back_when_it_is_dropped(manager):
    pointer = manager.memalloc(1000)
    assert accelrt.memory_allocated(0) == 1024
    assert pointer.size == 1000
    assert pointer.device_pointer_value % 512 == 0
    del pointer
    assert accelrt.memory_allocated(0) == 0
    assert manager.blocks == {}


def test_a_view_keeps_the_memory(manager):
    pointer = manager.memalloc(4096)
    address = pointer.device_pointer_value
    view = pointer.view(512, 1024)
    del pointer
    assert accelrt.memory_allocated(0) == 4096
    assert (view.device_pointer_value, view.size) == (address + 512, 512)
    del view
    assert accelrt.memory_allocated(0) == 0


def test_dropped_memory_waits_for_external_streams_that_are_alive(manager, held):
    foreign = manager.context.create_external_stream(held.cuda_stream)
    pointer = manager.memalloc(MIB)
    address = pointer.device_pointer_value
    del pointer
    again = manager.memalloc(MIB)
    assert again.device_pointer_value != address
    del foreign
    pointer = manager.memalloc(MIB)
    address = pointer.device_pointer_value
    del pointer
    accelrt.default_stream().synchronize()
    assert manager.memalloc(MIB).device_pointer_value == address


def test_streams_that_are_made_while_memory_is_dropped(manager):
    # Another thread may make one between any two lines; here the tracer does.
    side, before = accelrt.Stream(), sys.gettrace()
    made = [manager.context.create_external_stream(side.cuda_stream)]
    pointer = manager.memalloc(512)

    def trace(frame, event, argument):
        made.append(manager.context.create_external_stream(side.cuda_stream))
        return trace

    sys.settrace(trace)
    try:
        del pointer
    finally:
        sys.settrace(before)
    assert len(made) > 3
    assert accelrt.memory_allocated(0) == 0


def test_page_locked_memory_comes_from_accelrt(manager):
    memory = manager.memhostalloc(MIB)
    array = np.ndarray(MIB, np.uint8, memory)
    array[:] = 7
    assert array.nbytes == MIB
    assert accelrt.memory.is_pinned(array)
    assert accelrt.host_memory_stats()["active_bytes.current"] == MIB
    del array, memory
    accelrt.default_stream().synchronize()
    accelrt.host_empty_cache()
    assert accelrt.host_memory_stats()["active_bytes.current"] == 0


def test_no_bytes_have_an_address_of_their_own(manager):
    first, second = manager.memalloc(0), manager.memalloc(0)
    assert first.size == 0
    assert first.device_pointer_value != second.device_pointer_value


def test_no_room_is_accelrts_error_and_numbas(manager, numba):
    with pytest.raises(accelrt.OutOfMemoryError, match=r"out of memory|does not have") as caught:
        manager.memalloc(1 << 46)
    assert isinstance(caught.value, numba.driver.CudaAPIError)
    assert caught.value.code == numba.driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert caught.value.requested == 1 << 46
    assert caught.value.msg == str(caught.value)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (type(sent), sent.requested, str(sent)) == (accelrt.OutOfMemoryError, 1 << 46, caught.value.msg)


def test_figures_count_idle_memory_as_free(manager, numba):
    before = manager.get_memory_info()
    assert isinstance(before, numba.cuda.MemoryInfo)
    del before
    pointer = manager.memalloc(64 * MIB)
    used = manager.get_memory_info()
    del pointer
    idle = manager.get_memory_info()
    assert idle.free - used.free == 64 * MIB
    assert idle.total == used.total == accelrt.mem_get_info()[1]


def test_a_reset_takes_no_memory_from_arrays(manager):
    pointer = manager.memalloc(512)
    manager.reset()
    assert accelrt.memory_allocated(0) == 512
    with manager.defer_cleanup():
        del pointer
    assert accelrt.memory_allocated(0) == 0


def test_memory_dropped_by_another_thread_goes_back(manager):
    pointers = [manager.memalloc(512)]
    on_a_thread(pointers.clear)
    assert accelrt.memory_allocated(0) == 0


def test_contexts_that_numba_has_are_taken_over_and_given_back(numba):
    context = Context()
    context.memory_manager = own = OwnManager(context)
    numba.contexts.append(context)
    interop.install()
    assert interop.is_installed()
    pointer = context.memory_manager.memalloc(512)
    later = Context()
    later.memory_manager = interop._manager(context=later)
    numba.contexts.append(later)
    interop.install()
    interop.uninstall()
    interop.uninstall()
    assert not interop.is_installed()
    assert context.memory_manager is own
    assert isinstance(later.memory_manager, OwnManager)
    assert numba.driver._memory_manager is OwnManager
    del pointer
    assert accelrt.memory_allocated(0) == 0


def test_numba_takes_the_class_by_its_interface(numba):
    manager = interop._numba_memory_manager
    assert manager is interop._numba_memory_manager
    assert issubclass(manager, numba.cuda.BaseCUDAMemoryManager)
    numba.cuda.set_memory_manager(manager)  # checks the version of the interface
    assert interop.is_installed()
    with pytest.raises(AttributeError, match="nothing_else"):
        interop.nothing_else  # noqa: B018


def test_a_name_in_the_environment_is_enough():
    pytest.importorskip("numba.cuda.cudadrv.driver", reason="numba-cuda is not installed")
    code = """
from accelrt.interop import numba as interop
interop.peers.prepare_memory = lambda call: None
from numba.cuda.cudadrv import driver
driver._ensure_memory_manager()
print(interop.is_installed(), driver._memory_manager.__name__)
"""
    manager = {"NUMBA_CUDA_MEMORY_MANAGER": "accelrt.interop.numba"}
    assert run_code(code, PYTHONPATH=os.pathsep.join(sys.path), **manager) == "True MemoryManager\n"


def test_the_host_device_is_refused():
    with pytest.raises(accelrt.NotSupportedError, match=r"interop\.numba.*host device.*ACCELRT_DRIVER"):
        interop.install()
    with pytest.raises(accelrt.NotSupportedError, match="host device"):
        interop._numba_memory_manager  # noqa: B018


def test_a_numba_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(interop.peers, "prepare_memory", lambda call: None)
    monkeypatch.setattr(interop, "_manager", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'numba-cuda"):
        interop.install()
