"""Parts of a graph that a replay does or leaves out: conditional nodes.

A condition is set on the device, by a node in front of the conditional one that reads an integer; for a loop
another at the end of the body reads it again.  The body is captured from a stream of its own, as a capture that
shares the graph's pool and what the graph keeps.
"""
cimport cython
from cpython.object cimport PyObject

from accelrt.runtime.capture_record cimport close_capture, keep_side, open_capture, raise_broken, raise_unbegun, record_on
from accelrt.buffers.copy import device_span
from accelrt.runtime.release_queue cimport BODY, dispose_capture
from accelrt.devices.device cimport this_thread
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CONDITION_WHILE
from accelrt.graphs.held cimport HeldGraph
from accelrt.memory.allocator.routes cimport begin_capture_on, end_capture
from accelrt.status cimport raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport current_of
from accelrt.streams.stream import Stream as make_stream
cimport accelrt.runtime.sanitizer_hooks as watch

cdef enum:
    FLAG_BYTES = 4


cdef int leave_branch(Branch branch) noexcept:
    cdef Record record = branch.record
    cdef uint64_t capture
    if record is None:
        return 0
    branch.record = None
    if watch.sanitizing:
        watch.note_dropped(record.capture)
    capture = record.capture
    with nogil:
        end_capture(branch.ordinal, capture)
    close_capture(record)
    dispose_capture(BODY, branch.ordinal, record.origin, record.capture)
    return 0


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
cdef class Branch:
    """The context in which a conditional node's body is captured; see CUDAGraph.if_ and while_."""

    def __init__(self, HeldGraph graph not None, flag, int kind):
        if self.graph is not None:
            raise RuntimeError("this condition is made already; call if_() or while_() for each")
        self.graph = graph
        self.flag = flag
        self.kind = kind

    def __dealloc__(self):
        leave_branch(self)

    def __reduce__(self):
        refuse_copy(self, "it stands for one node of one graph; call if_() or while_() for each")

    def __enter__(self):
        cdef HeldGraph graph = self.graph
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
        cdef HeldGraph graph = self.graph
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
        cdef HeldGraph graph = self.graph
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
            leave_branch(self)
            if self in ((<HeldGraph>self.graph).branches or ()):
                (<HeldGraph>self.graph).branches.remove(self)
        return False


cdef int check_stream(HeldGraph graph, Stream stream) except -1:
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
    cdef HeldGraph graph = branch.graph
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
