"""Graphs: work that is captured from streams once and replayed in one call.

A capture is a transaction: whatever fails in it, the stream leaves the capture, the memory goes back to
the graph's pool, and the process can capture again.
"""
import warnings

from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport UINTPTR_MAX

from accelrt.hooks import add_hook, run_hooks

from accelrt.callback cimport begin_runs, nodes_of, take_back_runs
from accelrt.capture cimport PinnedSide, close_capture, open_capture
from accelrt.deferred cimport GRAPH, GRAPH_EXEC, dispose, dispose_capture, drain
from accelrt.device cimport ordinal_of
cimport accelrt.driver.registry as registry
from accelrt.driver.relaxed cimport go_relaxed, restore_mode
from accelrt.driver.table cimport CAPTURE_GLOBAL, CAPTURE_NONE, CAPTURE_RELAXED, CAPTURE_THREAD_LOCAL
from accelrt.memory.pinned cimport use_pinned_on
from accelrt.memory.routes cimport begin_capture, end_capture, hold_private, let_go_private
from accelrt.mempool cimport MemPool, next_pool, read_pool_id
from accelrt.status cimport NO_HOST_MEMORY, raise_status
from accelrt.stream cimport StreamContext, current_of
from accelrt.stream import Stream as make_stream
cimport accelrt.watch as watch

cdef list NO_HOOKS = []  # of every graph that has none; nothing is ever added to it
MODES = {"global": CAPTURE_GLOBAL, "thread_local": CAPTURE_THREAD_LOCAL, "relaxed": CAPTURE_RELAXED}


def graph_pool_handle():
    """A handle of a new memory pool for graphs, to pass to several captures that share memory.

    Returns:
        (int, int), unique in the process.  The pool comes into being with the first capture that uses it.
    """
    return 0, next_pool()


cdef int read_pool(object pool, int ordinal, uint64_t* out_id) except -1:
    if isinstance(pool, CUDAGraph):
        pool = pool.pool()
    if isinstance(pool, MemPool):
        (<MemPool>pool).hold_on(ordinal)
    read_pool_id(pool, out_id)
    return 0


cdef bint is_capturing(int ordinal, uintptr_t stream) noexcept nogil:
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    return registry.active().capture_status(ordinal, stream, &status, &capture) == 0 and status != CAPTURE_NONE


cdef int instantiate(int ordinal, uintptr_t graph, uintptr_t* out_exec) noexcept nogil:
    # Refused while another thread captures in global mode, which it would break, unless the caller is relaxed.
    cdef int mode
    cdef int code = go_relaxed(registry.active(), &mode)
    if code:
        return code
    code = registry.active().graph_instantiate(ordinal, graph, 0, out_exec)
    restore_mode(registry.active(), mode)
    return code


cdef class CUDAGraph:
    """Work captured from streams, to be replayed any number of times.

        g = accelrt.CUDAGraph()
        with accelrt.graph(g):
            ...                      # copies, fills, launches: recorded, not run
        g.replay()

    Memory allocated during the capture comes from the graph's private pool and keeps its addresses until the
    graph dies or is reset.  Buffers and arrays whose copies were captured are kept alive as long.
    """

    def __cinit__(self):
        self.kept = []
        self.calls = []
        self.pinned = []
        self.noted = UINTPTR_MAX
        self.capture_hooks = self.replay_hooks = NO_HOOKS

    def __dealloc__(self):
        self.abandon()

    cdef int abandon(self) noexcept:
        # Whatever state it is in, afterwards the graph holds nothing.  Never raises: destructors call it.
        if self.capturing:
            dispose_capture(self.ordinal, self.origin, self.capture)
            self.leave_capture()
        if watch.sanitizing:
            watch.note_dropped(self.capture)
        if self.raw_cuda_graph_exec:
            dispose(GRAPH_EXEC, self.ordinal, self.raw_cuda_graph_exec)
            self.raw_cuda_graph_exec = 0
        if self.holds:
            let_go_private(self.ordinal, self.pool_id[0], self.pool_id[1])
            self.holds = False
        self.kept = []
        self.calls = []
        self.pinned = []
        self.noted = UINTPTR_MAX
        self.node_count = 0
        return 0

    cdef int require_free(self) except -1:
        if self.capturing or self.raw_cuda_graph_exec:
            state = "is being captured" if self.capturing else "holds a capture"
            raise RuntimeError(f"this CUDAGraph {state} already; call reset() first, or use another CUDAGraph")
        return 0

    cdef int leave_capture(self) except -1:
        end_capture(self.ordinal, self.capture)
        close_capture(self.capture)
        self.capturing = False
        self.stream = None
        return 0

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Begins to capture the current stream (cuStreamBeginCapture).

        Arguments:
            pool: (int, int) from graph_pool_handle(), another graph's pool() or MemPool.id, or a MemPool, to share
                memory with the graphs that use it and never replay at the same time; None is a pool of its own.
            capture_error_mode: "global", "thread_local" or "relaxed": which threads' unsafe calls, such as
                raw allocations, break the capture (CUDA driver API, CUstreamCaptureMode).
        Raises:
            CaptureError: the current stream is the legacy default stream, which cannot be captured.
            RuntimeError: this graph was captured already, or its capture is under way.
            ValueError, TypeError: no such mode, no such pool.
            Exception: whatever a hook raised; then nothing is begun.
        """
        cdef Stream stream
        cdef int status = 0
        cdef int code
        if capture_error_mode not in MODES:
            raise ValueError(f"capture_error_mode is {capture_error_mode!r}; it may be {', '.join(MODES)}")
        self.require_free()
        if PyList_GET_SIZE(self.capture_hooks):
            run_hooks(self.capture_hooks, self, True)
            self.require_free()
        stream = current_of(ordinal_of(None))
        drain()
        if pool is None:
            self.pool_id[0], self.pool_id[1] = next_pool(), 0
        else:
            read_pool(pool, stream.device_index, self.pool_id)
        self.ordinal = stream.device_index
        code = hold_private(self.ordinal, self.pool_id[0], self.pool_id[1])
        if code:
            raise_status(code, "capture_begin", ("pool", self.pool()))
        self.holds = True
        cdef int mode = MODES[capture_error_mode]
        code = registry.active().capture_begin(self.ordinal, stream.handle, mode)
        if code:
            self.abandon()
            raise_status(code, "capture_begin", ("stream", stream, "mode", capture_error_mode))
        self.capturing = True
        self.origin = stream.handle
        self.stream = stream
        self.capture = 0
        code = registry.active().capture_status(self.ordinal, stream.handle, &status, &self.capture)
        if code == 0:
            code = begin_capture(self.ordinal, self.pool_id[0], self.pool_id[1], self.capture)
        if code:
            self.abandon()
            raise_status(code, "capture_status", ("stream", stream))
        open_capture(self.capture, self.kept)

    def capture_end(self):
        """Ends the capture and makes it ready to replay (cuStreamEndCapture, cuGraphInstantiate).

        Raises:
            CaptureError: the capture was broken, a stream that joined it was not joined back, or it is ended on
                the wrong thread.  The graph is then empty and can be captured anew.
            RuntimeError: no capture is under way.
            Exception: whatever a hook raised; the graph is then as after reset().
        """
        cdef uintptr_t graph = 0
        cdef int code
        if not self.capturing:
            raise RuntimeError("no capture of this CUDAGraph is under way; call capture_begin() first")
        stream = self.stream
        with nogil:
            code = registry.active().capture_end(self.ordinal, self.origin, &graph)
        self.leave_capture()
        if code:  # a driver that refuses to end a capture must not leave the stream in it
            dispose_capture(self.ordinal, self.origin, self.capture)
        call = "capture_end"
        if code == 0:
            call = "graph_node_count"
            code = registry.active().graph_node_count(graph, &self.node_count)
        if code == 0:
            call = "graph_instantiate"
            with nogil:
                code = instantiate(self.ordinal, graph, &self.raw_cuda_graph_exec)
        if graph:
            dispose(GRAPH, self.ordinal, graph)
        if code:
            self.abandon()
            raise_status(code, call, ("stream", stream))
        if watch.sanitizing:
            watch.note_captured(self.capture)
        self.calls = nodes_of(self.kept)
        self.pinned = [thing for thing in self.kept if isinstance(thing, PinnedSide)]
        drain()
        if self.node_count == 0:
            warnings.warn("The CUDA Graph is empty: nothing was put into a capturing stream", stacklevel=2)
        if PyList_GET_SIZE(self.capture_hooks):
            self.finish_hooked()

    cdef int finish_hooked(self) except -1:
        try:
            run_hooks(self.capture_hooks, self, False)
        except BaseException:
            self.reset()
            raise
        return 0

    def replay(self):
        """Puts the captured work into the current stream of the graph's device (cuGraphLaunch).

        Raises:
            RuntimeError: nothing is captured.
            CudaError: the driver refused.
            Exception: whatever a hook raised.
        """
        if PyList_GET_SIZE(self.replay_hooks) and self.raw_cuda_graph_exec:
            run_hooks(self.replay_hooks, self, True)
            self.launch()
            run_hooks(self.replay_hooks, self, False)
        else:
            self.launch()

    cdef int launch(self) except -1:
        cdef Stream stream
        cdef int code
        if self.raw_cuda_graph_exec == 0:
            raise RuntimeError("nothing to replay: capture first, with accelrt.graph(g) or capture_begin/capture_end")
        stream = current_of(self.ordinal)
        if self.pinned and stream.handle != self.noted:
            self.note_pinned(stream)
        if watch.sanitizing:
            watch.note_replay(self.ordinal, stream.handle, self.capture)
        begin_runs(self.calls)
        with nogil:
            code = registry.active().graph_launch(self.ordinal, self.raw_cuda_graph_exec, stream.handle)
        if code:
            take_back_runs(self.calls)
            raise_status(code, "graph_launch", ("graph_exec", self.raw_cuda_graph_exec, "stream", stream.handle))
        return 0

    cdef int note_pinned(self, Stream stream) except -1:
        # The graph may die, and its memory with it, while a replay is under way.
        cdef PinnedSide side
        for side in self.pinned:
            if use_pinned_on(side.address, self.ordinal, stream.handle) == NO_HOST_MEMORY:
                raise_status(NO_HOST_MEMORY, "graph_launch", ("stream", stream.handle))
            if watch.sanitizing:
                watch.note_use_on(side.address, self.ordinal, stream.handle)
        self.noted = stream.handle
        return 0

    def reset(self):
        """Forgets the capture: its pool's memory can go back to the device once nothing in it is live."""
        self.abandon()
        drain()

    def register_capture_pre_hook(self, hook):
        """Has a function called before each capture of this graph, while no stream captures for it yet.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by capture_begin, and nothing is begun.
        Returns:
            RemovableHandle.
        Raises:
            TypeError: hook cannot be called.

        Hooks are called in the order of their registration; the first that raises is the last one called.  They
        stay when the graph is reset.
        """
        return add_hook(self.own_capture_hooks(), hook, True)

    def register_capture_hook(self, hook):
        """Has a function called after each capture of this graph that succeeded, when it can be replayed.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by capture_end, and the graph is reset.
        Returns:
            RemovableHandle; see register_capture_pre_hook.
        """
        return add_hook(self.own_capture_hooks(), hook, False)

    def register_replay_pre_hook(self, hook):
        """Has a function called before each replay() of this graph.

        Arguments:
            hook: called as hook(graph).  What it puts into the current stream runs before the graph's work.  What it
                raises is raised by replay, and nothing is launched.
        Returns:
            RemovableHandle; see register_capture_pre_hook.
        """
        return add_hook(self.own_replay_hooks(), hook, True)

    def register_replay_hook(self, hook):
        """Has a function called after each replay() of this graph was put into its stream, where it may still run.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by replay; the launch stands.
        Returns:
            RemovableHandle; see register_capture_pre_hook.
        """
        return add_hook(self.own_replay_hooks(), hook, False)

    cdef list own_capture_hooks(self):
        if self.capture_hooks is NO_HOOKS:
            self.capture_hooks = []
        return self.capture_hooks

    cdef list own_replay_hooks(self):
        if self.replay_hooks is NO_HOOKS:
            self.replay_hooks = []
        return self.replay_hooks

    def pool(self):
        """The handle of the graph's memory pool, to pass to other captures."""
        return self.pool_id[0], self.pool_id[1]

    @property
    def is_capturing(self):
        """Whether this graph's capture is under way."""
        return self.capturing

    def __repr__(self):
        state = "capturing" if self.capturing else f"{self.node_count} nodes" if self.raw_cuda_graph_exec else "empty"
        return f"<accelrt.CUDAGraph {state}, pool {self.pool()}>"


cdef class graph:
    """The context in which work is captured into a graph instead of run.

    Arguments:
        cuda_graph: CUDAGraph.
        pool: (int, int) from graph_pool_handle(), another graph's pool() or MemPool.id, or a MemPool; None is a
            pool of its own.
        stream: Stream to capture; None is a new one.
        capture_error_mode: "global", "thread_local" or "relaxed"; see CUDAGraph.capture_begin.
    Raises:
        TypeError: cuda_graph is none.

    Entering it neither synchronises nor empties caches.  If its body raises, the capture is dropped, the graph
    is as after reset(), and the exception goes on.
    """

    cdef CUDAGraph cuda_graph
    cdef object pool
    cdef object mode
    cdef StreamContext context

    def __init__(self, cuda_graph, pool=None, stream=None, str capture_error_mode="global"):
        if not isinstance(cuda_graph, CUDAGraph):
            raise TypeError(f"cuda_graph is {cuda_graph!r} of type {type(cuda_graph).__name__}; pass a CUDAGraph")
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.mode = capture_error_mode
        self.context = StreamContext(make_stream() if stream is None else stream)

    def __enter__(self):
        self.context.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.mode)
        except BaseException:
            self.context.__exit__(None, None, None)
            raise

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph.reset()
        finally:
            self.context.__exit__(None, None, None)
        return False


def is_current_stream_capturing():
    """Whether the calling thread's current stream is capturing, for anybody (cuStreamGetCaptureInfo)."""
    cdef int ordinal = ordinal_of(None)
    return is_capturing(ordinal, current_of(ordinal).handle)
