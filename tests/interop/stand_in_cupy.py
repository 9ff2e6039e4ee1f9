"""A stand-in for CuPy on the host device: as much of it as accelrt.interop.cupy touches, and nothing
computes.

Its classes have the fields and the behaviour of CuPy 14.2's (cupy/cuda/memory.pyx, pinned_memory.pyx,
stream.pyx, graph.pyx); its streams are accelrt's, and its captures go to the host device's rows.
"""

import sys
import threading
from types import SimpleNamespace

import accelrt
from accelrt.driver.registry import Rows


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        self._size, self._total, self._limit = size, total, limit
        super().__init__(f"Out of memory allocating {size:,} bytes")

    def __reduce__(self):
        return type(self), (self._size, self._total, self._limit)


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        assert device_id >= 0
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        assert mem.ptr != 0 or offset == 0
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class PinnedMemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def size(self):
        return self.mem.size - (self.ptr - self.mem.ptr)


class Graph:
    def __init__(self, rows, graph, host_funcargs):
        self.rows, self.graph, self.host_funcargs = rows, graph, host_funcargs
        _, self.exec = rows.graph_instantiate(0, graph, 0)

    def launch(self, stream):
        assert self.rows.graph_launch(0, self.exec, stream.ptr) == 0

    def __del__(self):
        self.rows.graph_destroy(self.graph)
        self.rows.graph_exec_destroy(self.exec)


class _BaseStream:
    rows = None
    current = threading.local()

    def __init__(self, stream, device_id=0):
        self.stream, self.ptr, self.device_id = stream, stream.cuda_stream, device_id
        self._graph_host_funcargs = None

    def __enter__(self):
        self.before = getattr(self.current, "stream", 0)
        self.current.stream = self.ptr
        return self

    def __exit__(self, *_):
        self.current.stream = self.before

    def begin_capture(self, mode=None):
        """CuPy's text."""
        code = self.rows.capture_begin(0, self.ptr, 2 if mode is None else mode)
        if code:
            raise RuntimeError(f"begin_capture answered {code}")
        self._graph_host_funcargs = []

    def end_capture(self):
        kept, self._graph_host_funcargs = self._graph_host_funcargs, None
        code, graph = self.rows.capture_end(0, self.ptr)
        if code:
            raise RuntimeError(f"end_capture answered {code}")
        return Graph(self.rows, graph, kept)


class Stream(_BaseStream):
    """One of accelrt's, or one of its own, which it destroys."""

    def __init__(self, stream=None):
        if stream is None:
            _, handle = self.rows.stream_create(0, 1, 0)
            stream = accelrt.ExternalStream(handle)
        super().__init__(stream)

    def __del__(self):
        if isinstance(self.stream, accelrt.ExternalStream):
            assert self.rows.stream_destroy(0, self.ptr) == 0


class Pool:
    """CuPy's own: gives nothing."""

    freed = 0

    def malloc(self, size):
        raise AssertionError("CuPy's own pool was asked")

    def free_all_blocks(self):
        self.freed += 1


def make():
    """A module that answers `import cupy`; its device is 0."""
    accelrt.init(driver="host")
    _BaseStream.rows = Rows("host")
    _BaseStream.rows.open()
    pool, pinned_pool = Pool(), Pool()
    chosen = SimpleNamespace(device=pool.malloc, pinned=pinned_pool.malloc)
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 0, is_hip=False),
        memory=SimpleNamespace(
            UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, OutOfMemoryError=OutOfMemoryError
        ),
        PinnedMemoryPointer=PinnedMemoryPointer,
        stream=SimpleNamespace(_BaseStream=_BaseStream),
        get_allocator=lambda: chosen.device,
        set_allocator=lambda function: setattr(chosen, "device", function),
        set_pinned_memory_allocator=lambda function: setattr(chosen, "pinned", function),
        get_current_stream=lambda device: SimpleNamespace(ptr=getattr(_BaseStream.current, "stream", 0)),
        alloc=lambda size: chosen.device(size),
        alloc_pinned_memory=lambda size: chosen.pinned(size),
        Stream=Stream,
    )
    return SimpleNamespace(
        __version__="14.2.0",
        cuda=cuda,
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pinned_pool,
    )


def put_in_place(monkeypatch):
    """Lets `import cupy` find the stand-in, and install() accept the host device."""
    from accelrt.interop import peers

    found = make()
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    monkeypatch.setattr(peers, "prepare_memory", lambda call: None)
    return found
