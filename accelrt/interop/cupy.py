"""CuPy on accelrt's memory.

    import accelrt.interop.cupy

    accelrt.interop.cupy.install()

From then on CuPy's device and page-locked memory comes from accelrt's caches, so that it is in one pool with
that of every other library there, and accelrt's limits and figures hold for it.
"""

from __future__ import annotations

import functools
import importlib

from accelrt import errors
from accelrt.interop import cupy_memory, peers
from accelrt.interop.cupy_memory import ExternalCapture, stream_goes

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["install", "is_installed", "uninstall"]

OLDEST = 14  # whose streams keep for a graph what its capture needs

_undo: list[Callable[[], object]] = []  # what uninstall() calls, in this order
_cupy: Any = None


def install() -> None:
    """Lets CuPy allocate from accelrt, on every thread that is not inside cupy.cuda.using_allocator().

    A block belongs to the stream of CuPy's that is current on the thread when it is allocated, and goes back
    to that stream's memory when CuPy drops it.  If another stream is current then, the block serves nothing
    else until the work that is on that one is done.  Streams that were current at neither time have to be
    named by accelrt.record_stream(array.data.ptr, stream), or be waited for, as with CuPy's own pool.  Let a
    stream's work end before the stream dies: from then on no memory waits for it, and CuPy's next one may
    have its handle, and with it its memory.

    Captures that CuPy begins (Stream.begin_capture) allocate from a private pool each, which lives as long as
    the graph does; arrays made in one have to be kept as long as their contents are wanted.  accelrt.graph
    captures CuPy's work too: with accelrt.stream(accelrt.Stream.from_any(stream)), and stream current in
    CuPy.

    What CuPy's own pool holds idle goes back to the device; what is in use stays CuPy's until it is freed.
    cupy.get_default_memory_pool() has no part in it any more: its limits and hooks do not apply, and
    accelrt.set_per_process_memory_fraction, accelrt.empty_cache and accelrt.memory_stats do.  Doing it again
    does nothing.

    Raises:
        ModuleNotFoundError: CuPy is not installed.
        NotSupportedError: accelrt runs on the host device, or CuPy is for AMD's GPUs or older than 14.
        ValueError: this thread is inside cupy.cuda.using_allocator().
    """
    global _cupy
    if _undo:
        return
    peers.prepare_memory("accelrt.interop.cupy.install")
    _cupy = _import()
    cuda = _cupy.cuda
    cupy_memory.connect(
        (cuda.memory.UnownedMemory, cuda.memory.MemoryPointer, cuda.PinnedMemoryPointer),
        (cuda.runtime.getDevice, lambda device: cuda.get_current_stream(device).ptr),
        peers.out_of_memory_class(cuda.memory.OutOfMemoryError, _fields),
        _functions_of("cupy.cuda.device"),
        _functions_of("cupy_backends.cuda.stream"),
    )
    before = cuda.get_allocator()
    try:  # what undoes a step is registered before the step
        _undo.append(lambda: _restore(before))
        cuda.set_allocator(cupy_memory.allocate)
        _undo.append(lambda: cuda.set_pinned_memory_allocator(_cupy.get_default_pinned_memory_pool().malloc))
        cuda.set_pinned_memory_allocator(cupy_memory.allocate_pinned)
        _watch_captures(cuda.stream._BaseStream)
        _watch_deaths(cuda.Stream)
        _release_idle(before)
    except BaseException:
        uninstall()
        raise


def uninstall() -> None:
    """Gives CuPy back the allocator that it had, and its own pool of page-locked memory.  Memory that CuPy
    has from accelrt stays valid and goes back to accelrt; a capture under way has to be ended first.  Doing
    it again does nothing.

    Raises:
        ValueError: this thread is inside cupy.cuda.using_allocator().
    """
    while _undo:
        _undo[0]()
        del _undo[0]


def is_installed() -> bool:
    """Tells whether this thread's CuPy allocates from accelrt now: not before install(), nor where another
    allocator was set since."""
    return bool(_undo) and _cupy.cuda.get_allocator() is cupy_memory.allocate


def _import() -> Any:
    cupy = peers.load("cupy", "cupy-cuda13x")
    if cupy.cuda.runtime.is_hip:
        problem = "this CuPy is built for AMD's GPUs; install one for CUDA, such as cupy-cuda13x"
    elif int(cupy.__version__.partition(".")[0]) < OLDEST:
        problem = f"this CuPy is {cupy.__version__}; install {OLDEST} or later"
    else:
        return cupy
    raise errors.not_supported(problem, "accelrt.interop.cupy.install")


def _functions_of(module: str) -> dict[str, object]:
    """The C functions that a module of CuPy's exports, by name; none where it has none."""
    try:
        extension = importlib.import_module(module)
    except ModuleNotFoundError:
        return {}
    return dict(getattr(extension, "__pyx_capi__", {}))


def _fields(error: errors.OutOfMemoryError) -> dict[str, object]:
    """Returns what CuPy's OutOfMemoryError has."""
    return {"_size": error.requested or 0, "_total": error.live or 0, "_limit": 0}


def _restore(before: object) -> None:
    """Sets the allocator that there was, unless another one was set since.  CuPy refuses inside
    using_allocator()."""
    current = _cupy.cuda.get_allocator()
    _cupy.cuda.set_allocator(before if current is cupy_memory.allocate else current)


def _release_idle(allocator: object) -> None:
    for pool in (getattr(allocator, "__self__", None), _cupy.get_default_pinned_memory_pool()):
        release = getattr(pool, "free_all_blocks", None)
        if release is not None:
            release()


def _watch_deaths(streams: Any) -> None:
    """Lets streams that CuPy destroys say so before: the driver may crash if it is asked about them later."""
    delete, goes, last_default = streams.__del__, stream_goes, 2  # at exit the module's names are gone

    @functools.wraps(delete)
    def __del__(self: Any, *arguments: object) -> None:
        own = getattr(self, "device_id", -1) >= 0 and self.ptr > last_default
        if not own or goes(
            self.device_id, self.ptr
        ):  # else nothing can follow its work, and the stream stays
            delete(self, *arguments)

    def stop() -> None:
        streams.__del__ = delete

    _undo.append(stop)
    streams.__del__ = __del__


def _watch_captures(streams: Any) -> None:
    """Lets streams of CuPy's say when they begin and end a capture."""
    begin, end = streams.begin_capture, streams.end_capture

    @functools.wraps(begin)
    def begin_capture(self: Any, mode: int | None = None) -> None:
        device = self.device_id if self.device_id >= 0 else _cupy.cuda.runtime.getDevice()
        capture = ExternalCapture(device, self.ptr)
        try:
            begin(self, mode)
        except BaseException:
            capture.over()
            raise
        try:
            capture.begun()
        except BaseException:
            capture.over()
            end(self)
            raise
        self._graph_host_funcargs.append(capture)  # the list becomes the graph's, or dies with the stream

    @functools.wraps(end)
    def end_capture(self: Any) -> Any:
        kept = self._graph_host_funcargs or ()
        try:
            return end(self)
        finally:
            for thing in kept:
                if isinstance(thing, ExternalCapture):
                    thing.over()

    def stop() -> None:
        streams.begin_capture, streams.end_capture = begin, end

    _undo.append(stop)
    streams.begin_capture, streams.end_capture = begin_capture, end_capture
