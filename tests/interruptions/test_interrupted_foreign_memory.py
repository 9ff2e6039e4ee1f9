"""KeyboardInterrupt at every place where numba and RMM get accelrt's memory, or give it theirs."""

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
from every_bytecode import interrupt_everywhere

import accelrt
from accelrt.interop import numba, peers, rmm

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
    allocator = rmm.from_rmm(resource)

    def use(_):
        address = allocator.allocate(1000, 0, 0)
        assert resource.live == {address: 1000}
        allocator.free(address, 1000, 0, 0)

    def check(_):
        assert resource.live == {}

    reached, escaped = interrupt_everywhere(use, [rmm, peers], check=check)
    assert reached == escaped > 5
