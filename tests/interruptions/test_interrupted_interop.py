"""KeyboardInterrupt at every place of install() and uninstall(): a library has its own or accelrt's."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from every_bytecode import interrupt_everywhere

import accelrt
from accelrt.interop import cupy, numba, peers, rmm
from accelrt.interop import torch as torch_interop

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir, "interop"))
import stand_in_cupy

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def for_any_driver(monkeypatch):
    accelrt.init()
    monkeypatch.setattr(peers, "prepare_memory", lambda call: None)
    # It opens pools for good, and later tests of this process count the driver's calls.
    monkeypatch.setattr(torch_interop.memory, "enable_peer_access", lambda: None)


def in_and_out(interop):
    interop.install()
    assert interop.is_installed()
    interop.uninstall()


def sweep(interop, state, places=None):
    """After each interruption uninstall() brings back all that was, and install() works."""
    before = state()

    def check(_):
        interop.uninstall()
        assert not interop.is_installed()
        assert state() == before
        in_and_out(interop)
        assert state() == before

    reached, escaped = interrupt_everywhere(in_and_out, [interop], lambda: interop, check, places)
    assert reached == escaped > 15


def test_cupy(monkeypatch):
    library = stand_in_cupy.put_in_place(monkeypatch)
    streams, stream = library.cuda.stream._BaseStream, library.cuda.Stream

    def state():
        return (library.cuda.get_allocator(), streams.begin_capture, streams.end_capture, stream.__del__)

    sweep(cupy, state)


def test_numba(monkeypatch):
    class Own:
        def __init__(self, context):
            self.context = context

    class Ours(Own):
        pass

    contexts = [SimpleNamespace(memory_manager=None) for _ in range(2)]
    for each in contexts:
        each.memory_manager = Own(each)
    driver = SimpleNamespace(_memory_manager=Own, NumbaCUDAMemoryManager=Own)

    def set_memory_manager(manager):
        driver._memory_manager = manager

    cuda = SimpleNamespace(set_memory_manager=set_memory_manager)
    monkeypatch.setattr(numba, "_import", lambda: (cuda, driver))
    monkeypatch.setattr(numba, "_contexts", lambda driver: contexts)
    monkeypatch.setattr(numba, "_manager", Ours)
    sweep(numba, lambda: (driver._memory_manager, *(each.memory_manager for each in contexts)))


def test_rmm(monkeypatch):
    resources = {0: "RMM's own"}
    mr = SimpleNamespace(
        get_per_device_resource=resources.get,
        set_per_device_resource=resources.__setitem__,
        CallbackMemoryResource=lambda allocate, free: SimpleNamespace(functions=(allocate, free)),
    )
    monkeypatch.setattr(rmm, "_load", lambda: mr)
    monkeypatch.setattr(rmm, "_resources", {})
    sweep(rmm, lambda: resources[0])


class Torch(ModuleType):
    """As much of torch as install() touches once torch's version and hooks are looked at."""

    def __init__(self):
        super().__init__("torch")
        self.backend, self.allocators = "native", []
        settings = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}
        functions = dict.fromkeys(torch_interop.FUNCTIONS, int)
        functions["_cuda_memorySnapshot"] = lambda pool: settings
        self._C = SimpleNamespace(__file__="torch", _cuda_init=int, **functions)
        memory = SimpleNamespace(
            MemPool=int, change_current_allocator=self.change, get_allocator_backend=lambda: self.backend
        )
        self.cuda = SimpleNamespace(memory=memory, MemPool=int, is_initialized=lambda: False)

    def change(self, allocator):
        if self.backend != "native":
            raise RuntimeError("Can't swap an already initialized allocator")
        self.backend, self.allocators = "pluggable", [allocator]

    def state(self):
        functions = {name: getattr(self._C, name) for name in torch_interop.FUNCTIONS}
        return functions, self.cuda.MemPool, self.cuda.memory.MemPool, self._C._cuda_init


def fail_to_compile(torch, way):
    raise torch_interop.torch_build.CannotCompile("there is no compiler")


def test_torch(monkeypatch):
    monkeypatch.setattr(torch_interop, "load", fail_to_compile)
    monkeypatch.setattr(torch_interop, "require_cuda", lambda torch: None)
    monkeypatch.setattr(torch_interop, "plug", lambda torch: object())
    monkeypatch.setattr(torch_interop.torch_table, "answer_cache_info", lambda path: None)

    def prepare():
        torch = Torch()
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(torch_interop, "_installed", None)
        monkeypatch.setattr(torch_interop, "_replaced", [])
        return torch, torch.state()

    def check(argument):
        torch, before = argument
        assert torch_interop.is_installed() == (torch.backend == "pluggable")
        if torch.allocators:  # torch has its bare address
            assert torch_interop._installed is torch.allocators[0]
            assert torch._C._cuda_memoryStats is torch_interop.nested_stats
        else:
            assert torch.state() == before

    reached, escaped = interrupt_everywhere(
        lambda torch: torch_interop.install(), [torch_interop], prepare, check
    )
    assert reached == escaped > 20


def test_torch_that_has_another_allocator_keeps_its_own_functions(monkeypatch):
    torch = Torch()
    torch.backend = "pluggable"
    before = torch.state()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(torch_interop, "load", fail_to_compile)
    monkeypatch.setattr(torch_interop, "require_cuda", lambda torch: None)
    monkeypatch.setattr(torch_interop, "plug", lambda torch: object())
    with pytest.raises(RuntimeError, match="torch has used CUDA in this process already"):
        torch_interop.install()
    assert not torch_interop.is_installed()
    assert torch.state() == before
