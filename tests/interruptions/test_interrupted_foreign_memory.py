"""KeyboardInterrupt at every place where numba, RMM and cuda.core get accelrt's memory, or give it theirs."""

import functools
import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
from every_bytecode import interrupt_everywhere

import accelrt
from accelrt.core.process import Owned
from accelrt.interop import cuda_core, numba, peers, rmm

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def opened():
    accelrt.init()


def check_memory(_=None):
    gc.collect()
    accelrt.synchronize()
    accelrt.host_empty_cache()
    assert accelrt.memory_allocated() == 0
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0


# --- numba, whose classes these stand in for ------------------------------------------------------


class Pointer:
    """Memory that numba owns; what finalizes it is called once, when it is dropped or freed."""

    def __init__(self, context, pointer, size, finalizer):
        self.address, self.users = pointer, 0
        self.free = weakref.finalize(self, finalizer)

    def own(self):
        return Owner(weakref.proxy(self))


class Owner:
    """One of those who share a Pointer, which the last of them frees."""

    def __init__(self, shared):
        shared.users += 1
        weakref.finalize(self, leave, shared)


def leave(shared):
    try:
        shared.users -= 1
        if shared.users == 0:
            shared.free()
    except ReferenceError:
        pass


class Manager:
    def __init__(self, context):
        self.context = context


@pytest.fixture
def manager():
    cuda = SimpleNamespace(
        GetIpcHandleMixin=type("Mixin", (), {}), HostOnlyCUDAMemoryManager=Manager, PinnedMemory=Pointer
    )
    driver = SimpleNamespace(CudaAPIError=type("CudaAPIError", (Exception,), {}), AutoFreePointer=Pointer)

    class Context:
        device = SimpleNamespace(id=0)

        def create_external_stream(self, handle):
            return handle

    context = Context()
    yield numba._define(cuda, driver)(context)
    numba._owners.clear()


def test_memory_that_numba_has(manager):
    def use(_):
        shared = manager.memalloc(1000)
        pinned = manager.memhostalloc(1000)
        del shared, pinned

    def check(_):
        check_memory()
        assert manager.blocks == {}

    use(None)
    check(None)
    reached, escaped = interrupt_everywhere(use, [numba], check=check)
    assert reached > escaped > 15  # what comes within the destructors of the stand-ins stays there


# --- RMM -------------------------------------------------------------------------------------------


class ForeignStream:
    def __cuda_stream__(self):
        return 0, 1


def test_memory_that_rmm_has():
    allocate, deallocate = rmm._functions(0)

    def use(_):
        address = allocate(1000, ForeignStream())
        assert accelrt.memory_allocated() == 1024
        deallocate(address, 1000, ForeignStream())

    reached, escaped = interrupt_everywhere(use, [rmm, peers], check=check_memory)
    assert reached == escaped > 5


def test_a_stream_that_rmm_cannot_say_is_reported(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: told.append(str(report.exc_value)))
    allocate, deallocate = rmm._functions(0)
    address = allocate(1000, ForeignStream())
    deallocate(address, 1000, "no stream")  # which no exception leaves
    assert told == ["'str' object has no attribute '__cuda_stream__'"]
    deallocate(address, 1000, ForeignStream())


class Resource:
    """A stand-in for a resource of RMM's."""

    def __init__(self):
        self.live = {}

    def allocate(self, nbytes, stream):
        self.live[4096 * (1 + len(self.live))] = nbytes
        return 4096 * len(self.live)

    def deallocate(self, address, nbytes, stream):
        assert self.live.pop(address) == nbytes


def test_memory_that_accelrt_has_of_rmm(monkeypatch):
    library = SimpleNamespace(DeviceMemoryResource=Resource, Stream=lambda handle: handle)
    monkeypatch.setattr(peers, "load", lambda name, package: library)
    resource = Resource()
    interrupt_users(rmm.from_rmm(resource), resource, [rmm, peers])


def interrupt_users(allocator, resource, modules):
    """Whoever allocates by a foreign resource is interrupted everywhere; it keeps nothing of theirs."""

    def use(_):
        address = allocator.allocate(1000, 0, 0)
        assert resource.live == {address: 1000}
        allocator.free(address, 1000, 0, 0)
        assert resource.live == {}

    def check(_):
        assert resource.live == {}

    reached, escaped = interrupt_everywhere(use, modules, check=check)
    assert reached == escaped > 5


# --- cuda.core --------------------------------------------------------------------------------------


LEGACY = ForeignStream()


def make_buffer(address, size, resource, *, stream):
    """Stands in for a buffer of cuda.core's, which gives its address back when it is closed or dies."""
    return Owned(int, (address,), functools.partial(resource.deallocate, size=size, stream=stream))


def make_unstreamed(address, size, resource):
    """The same before cuda.core 1.2: of no stream."""
    return Owned(int, (address,), functools.partial(resource.deallocate, size=size))


class CoreResource:
    """A stand-in for cuda.core.MemoryResource, and one for its buffers."""

    is_device_accessible, device_id = True, 0

    def __init__(self):
        self.live = {}

    def allocate(self, size, *, stream):
        assert stream is LEGACY
        address = 4096 * (1 + len(self.live))
        self.live[address] = size
        return Piece(self, address)


class Piece:
    def __init__(self, resource, address):
        self.resource, self.handle = resource, address

    def close(self, stream=None):
        self.resource.live.pop(self.handle, None)

    __del__ = close


@pytest.fixture
def core(monkeypatch):
    library = SimpleNamespace(
        Buffer=SimpleNamespace(from_handle=make_buffer),
        LEGACY_DEFAULT_STREAM=LEGACY,
        MemoryResource=CoreResource,
        Stream=SimpleNamespace(from_handle=lambda handle: ForeignStream()),
    )
    monkeypatch.setattr(peers, "load", lambda name, package: library)
    monkeypatch.setattr(peers, "prepare_memory", lambda call: None)
    return library


@pytest.mark.parametrize("make", [make_buffer, make_unstreamed])
def test_memory_that_cuda_core_has(core, make):
    core.Buffer.from_handle = make
    resource = cuda_core._make_class(core)()

    def use(_):
        closed = resource.allocate(1000, stream=ForeignStream())
        assert accelrt.memory_allocated() == 1024
        closed.close()
        closed.close()
        dropped = resource.allocate(1000, stream=ForeignStream())
        del dropped

    def check(_):
        check_memory()
        assert resource._owned == {}

    reached, escaped = interrupt_everywhere(use, [cuda_core, peers], check=check)
    assert reached == escaped > 20


def test_memory_that_accelrt_has_of_cuda_core(core):
    resource = CoreResource()
    interrupt_users(cuda_core.from_resource(resource), resource, [cuda_core, peers])
