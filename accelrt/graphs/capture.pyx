# cython: embedsignature=False
"""The contexts in which work is captured: of a graph, and of the body of a conditional node.

A conditional node is a part of a graph that a replay does or leaves out.  Its condition is set on the device, by a node
in front of it that reads an integer; for a loop another at the end of the body reads it again.  The body is captured
from a stream of its own, as a capture that shares the graph's pool and what the graph keeps.
"""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.arrays.copy import device_span
from accelrt.devices.device cimport ordinal_of, this_thread
from accelrt.devices.device import synchronize as synchronize_device
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE, CONDITION_WHILE
from accelrt.graphs.graph cimport Body, CUDAGraph
from accelrt.graphs.graph import provide_body_type
from accelrt.allocator.private.routes cimport begin_capture_on, end_capture
from accelrt.memory.caching import empty_cache as empty_device_cache
from accelrt.runtime.capture_record cimport (
    Record, close_capture, keep_side, open_capture, raise_broken, raise_unbegun, record_on,
)
from accelrt.runtime.release_queue cimport BODY, dispose_capture
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport raise_status, refuse_copy, refuse_unmade
from accelrt.streams.current cimport StreamContext, current_of
from accelrt.streams.stream cimport Stream
from accelrt.streams.stream import Stream as make_stream

cdef enum:
    FLAG_BYTES = 4  # of a condition


def is_current_stream_capturing():
    """Whether the calling thread's current stream is captured, by accelrt or by another library.

    The driver is asked (cuStreamIsCapturing).
    """
    cdef int ordinal = ordinal_of(None)
    cdef int status = CAPTURE_NONE
    cdef int code = registry.active().stream_is_capturing(ordinal, current_of(ordinal).handle, &status)
    return code == 0 and status != CAPTURE_NONE


# --- the context of a graph ----------------------------------------------------------------------------------

cdef class graph:
    """graph(cuda_graph, pool=None, stream=None, capture_error_mode="global", *, \
    synchronize=False, empty_cache=False)\n--\n\n\
    The context in which work is captured into a graph instead of run.

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
                empty_device_cache()
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


# --- conditional nodes -----------------------------------------------------------------------------------------

cdef int set_condition(Branch branch, Stream stream) except -1:
    cdef int code
    if watch.sanitizing:
        watch.note_access(branch.ordinal, stream.handle, branch.address, FLAG_BYTES, "r", "condition")
    with nogil:
        code = registry.active().conditional_set(branch.ordinal, stream.handle, branch.condition, branch.address)
    if code:
        raise_status(code, "conditional_set", ("stream", stream.handle, "address", branch.address))
    return 0


@cython.no_gc_clear  # a destructor that finds no record would leave the stream in its capture
cdef class Branch(Body):
    """The context in which a conditional node's body is captured; see CUDAGraph.if_ and while_."""

    cdef CUDAGraph graph
    cdef object flag
    cdef int kind              # CONDITION_IF or CONDITION_WHILE
    cdef int ordinal
    cdef uintptr_t address     # of the flag
    cdef uint64_t condition    # the driver's handle of it
    cdef Stream stream         # captures the body
    cdef StreamContext context
    cdef Record record         # of the body's capture, while it is under way
    cdef unsigned long thread  # that entered it, whose current stream the body's is
    cdef object __weakref__

    def __init__(self, CUDAGraph graph not None, flag, int kind):
        if self.graph is not None:
            raise RuntimeError("this condition is made already; call if_() or while_() for each")
        self.graph = graph
        self.flag = flag
        self.kind = kind

    def __dealloc__(self):
        self.leave()

    cdef int leave(self) noexcept:
        cdef Record record = self.record
        cdef uint64_t capture
        if record is None:
            return 0
        self.record = None
        if watch.sanitizing:
            watch.note_dropped(record.capture)
        capture = record.capture
        with nogil:
            end_capture(self.ordinal, capture)
        close_capture(record)
        dispose_capture(BODY, self.ordinal, record.origin, record.capture)
        return 0

    def __reduce__(self):
        refuse_copy(self, "it stands for one node of one graph; call if_() or while_() for each")

    def __enter__(self):
        cdef CUDAGraph graph = self.graph
        if graph is None:
            refuse_unmade(self)
        graph.require_calm()
        if self.context is not None:
            raise RuntimeError("this condition's body was captured already; call if_() or while_() for each")
        if graph.record is None:
            raise RuntimeError("a condition belongs into a capture: call it inside `with accelrt.graph(g)`")
        graph.busy += 1  # asking the flag for its address may run other threads, and so may beginning the capture
        try:
            self.enter_body()
        finally:
            graph.busy -= 1

    cdef int enter_body(self) except -1:
        cdef CUDAGraph graph = self.graph
        cdef Record record
        cdef Stream before
        cdef int code
        self.ordinal = graph.ordinal
        before = current_of(self.ordinal)
        check_stream(graph, before)
        ordinal, self.address, size = device_span(self.flag)
        if size < FLAG_BYTES or ordinal != self.ordinal:
            raise ValueError(f"flag has {size} bytes on device {ordinal}; it takes {FLAG_BYTES} bytes on device "
                             f"{self.ordinal}, where the capture is")
        record = record_on(self.ordinal, before.handle)
        if record is not None:
            keep_side(record, <PyObject*>self.flag, None, ordinal, self.address)
        code = registry.active().conditional_create(self.ordinal, before.handle, &self.condition)
        if code:
            raise_status(code, "conditional_create", ("stream", before.handle))
        set_condition(self, before)
        return self.begin_body(before)

    cdef int begin_body(self, Stream before) except -1:
        cdef CUDAGraph graph = self.graph
        cdef uintptr_t body = 0
        cdef uint64_t capture = 0
        cdef int code
        self.stream = make_stream(self.ordinal)
        code = registry.active().conditional_add(self.ordinal, before.handle, self.condition, self.kind, &body)
        if code:
            raise_status(code, "conditional_add", ("stream", before.handle, "kind", self.kind))
        code = registry.active().capture_begin_to(self.ordinal, self.stream.handle, body, graph.mode)
        if code:
            raise_status(code, "capture_begin_to", ("stream", self.stream.handle, "body", body))
        with nogil:
            code = begin_capture_on(self.ordinal, self.stream.handle, graph.pool_id[0], graph.pool_id[1], &capture)
        if code:
            dispose_capture(BODY, self.ordinal, self.stream.handle, capture)
            raise_unbegun(code, "capture_begin_to", self.stream, graph.mode)
        self.record = open_capture(self.ordinal, self.stream.handle, capture, graph.kept, graph.record)
        if graph.branches is None:
            graph.branches = []
        graph.branches.append(self)
        self.context = StreamContext(self.stream)
        self.thread = this_thread()
        self.context.__enter__()
        return 0

    def __exit__(self, kind, error, trace):
        if self.context is None:
            raise RuntimeError("this condition's body is not entered; use it in a with statement")
        if self.context.open and self.thread != this_thread():
            raise RuntimeError("another thread captures the body of this condition; leave it there, where it goes on")
        try:
            self.context.__exit__(None, None, None)
            if kind is None:
                end_body(self)
        finally:
            self.leave()
            if self in (self.graph.branches or ()):
                self.graph.branches.remove(self)
        return False


cdef int check_stream(CUDAGraph graph, Stream stream) except -1:
    # The stream may capture for this graph, for a body of it, or have joined either.
    cdef Branch branch
    cdef uint64_t capture = 0
    cdef int status = 0
    cdef int code = registry.active().capture_status(graph.ordinal, stream.handle, &status, &capture)
    if code:
        raise_status(code, "capture_status", ("stream", stream.handle))
    if status == CAPTURE_ACTIVE and capture == graph.record.capture:
        return 0
    for branch in graph.branches or ():
        if status == CAPTURE_ACTIVE and branch.record is not None and capture == branch.record.capture:
            return 0
    raise RuntimeError(f"the current stream {stream!r} does not capture for this CUDAGraph, or its capture is broken")


cdef int end_body(Branch branch) except -1:
    cdef CUDAGraph graph = branch.graph
    cdef Record record = branch.record
    cdef uintptr_t body = 0
    cdef int code
    if record is None:
        raise RuntimeError("the capture that this condition belongs to is over already")
    if branch.kind == CONDITION_WHILE:
        set_condition(branch, branch.stream)
    graph.busy += 1
    with nogil:
        code = registry.active().capture_end(branch.ordinal, branch.stream.handle, &body)
    graph.busy -= 1
    if code:
        raise_broken(record, code, "capture_end", ("stream", branch.stream))
    return 0


provide_body_type(Branch)
