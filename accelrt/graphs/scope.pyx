"""The context in which work is captured, and whether the current stream is in one."""
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.memory.caching import empty_cache as give_cache_back
from accelrt.devices.device cimport ordinal_of
from accelrt.devices.device import synchronize as synchronize_device
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_NONE
from accelrt.graphs.graph cimport CUDAGraph
from accelrt.status cimport refuse_copy, refuse_unmade
from accelrt.streams.stream cimport StreamContext, current_of
from accelrt.streams.stream import Stream as make_stream


cdef class graph:
    """The context in which work is captured into a graph instead of run.

    Arguments:
        cuda_graph: CUDAGraph.
        pool: (int, int) from graph_pool_handle(), another graph's pool() or MemPool.id, or a MemPool; None is a
            pool of its own.
        stream: Stream to capture; None is a new one.
        capture_error_mode: "global", "thread_local" or "relaxed"; see CUDAGraph.capture_begin.
        synchronize: bool, wait for the device before the capture begins.
        empty_cache: bool, give idle cached memory back to the device before the capture begins.
    Raises:
        TypeError: cuda_graph is none.

    Entering it neither synchronises nor empties caches unless asked to.  If its body raises, the capture is dropped,
    the graph is as after reset(), and the exception goes on.
    """

    cdef CUDAGraph cuda_graph
    cdef object pool
    cdef object mode
    cdef bint waits
    cdef bint empties
    cdef StreamContext context
    cdef object __weakref__

    def __init__(self, cuda_graph, pool=None, stream=None, str capture_error_mode="global", *, bint synchronize=False,
                 bint empty_cache=False):
        if not isinstance(cuda_graph, CUDAGraph):
            raise TypeError(f"cuda_graph is {cuda_graph!r} of type {type(cuda_graph).__name__}; pass a CUDAGraph")
        if self.context is not None and self.context.open:
            raise RuntimeError("this graph context is entered; make another one")
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.mode = capture_error_mode
        self.waits = synchronize
        self.empties = empty_cache
        self.context = StreamContext(make_stream() if stream is None else stream)

    def __reduce__(self):
        refuse_copy(self, "the capture belongs to one context; make another one of the same CUDAGraph")

    def __enter__(self):
        if self.context is None:
            refuse_unmade(self)
        self.context.__enter__()
        try:
            if self.waits:
                synchronize_device()
            if self.empties:
                give_cache_back()
            self.cuda_graph.capture_begin(self.pool, self.mode)
        except BaseException:
            self.context.__exit__(None, None, None)
            raise

    def __exit__(self, kind, error, trace):
        if self.context is None or not self.context.open:
            raise RuntimeError("this graph context is not entered, or was left already; its CUDAGraph is as it was")
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph.reset()
        finally:
            self.context.__exit__(None, None, None)
        return False


cdef bint is_capturing(int ordinal, uintptr_t stream) noexcept nogil:
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    return registry.active().capture_status(ordinal, stream, &status, &capture) == 0 and status != CAPTURE_NONE


def is_current_stream_capturing():
    """Whether the calling thread's current stream is capturing, for anybody (cuStreamGetCaptureInfo)."""
    cdef int ordinal = ordinal_of(None)
    return is_capturing(ordinal, current_of(ordinal).handle)
