"""Graphs: work that is captured from streams once and replayed in one call; and the contexts that capture."""
cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport UINTPTR_MAX, uint64_t, uintptr_t

from accelrt.allocator.private.routes cimport (
    begin_capture_on, end_capture, expect_idle, hide_replays, note_replays, PrivateStats, read_private, release_pool,
    retain_pool,
)
from accelrt.arrays.copy import device_span
from accelrt.core.integers cimport checked_address_int
from accelrt.core.interpreter cimport interpreter_is_gone, PyThread_get_thread_ident
from accelrt.core.locks cimport WITHOUT_GIL
from accelrt.devices.device cimport ordinal_of
from accelrt.devices.device import synchronize as synchronize_device
from accelrt.driver.guard cimport count_out_capture, expect_capture
cimport accelrt.driver.registry as registry
from accelrt.driver.node_params cimport CONDITION_IF, CONDITION_WHILE
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_GLOBAL, CAPTURE_NONE, CAPTURE_RELAXED, CAPTURE_THREAD_LOCAL
from accelrt.errors import ArgumentError, CaptureError
from accelrt.graphs.hooks import add_hook, run_hooks, run_last_hooks
from accelrt.graphs.nodes cimport (
    all_things, begin_past, calls_within, Change, change_kernel_node, checked_options, FLAG_BYTES, instance_hint,
    instantiate, instantiate_anew, kernels_in, launch_hint, Names, NodeBase, NodeChange, note_past, note_roles,
    read_kernel_node, record_capture, refuse_asleep, require_made, set_condition, update_exec,
)
from accelrt.graphs.nodes import GraphNode, list_edges, list_nodes, write_dot
from accelrt.kernels.kernel cimport Kernel
from accelrt.memory.caching import empty_cache as empty_device_cache
from accelrt.memory.mempool cimport figures_of, MemPool, next_pool, read_pool_id, refuse_reserved
from accelrt.runtime.lifetimes cimport (
    BODY, CAPTURE, GRAPH, GRAPH_EXEC, add_stream, begin_runs, close_capture, dispose, dispose_capture, drain, follow_capture,
    give_back, keep_side, keep_until_passed, mode_name, nodes_of, note_sides, raise_broken, raise_unbegun, Record, record_on,
    Side, take_back_runs,
)
from accelrt.status cimport CAPTURE_UNSUPPORTED, SLEEPING, raise_status, refuse_copy, refuse_unmade
from accelrt.streams.stream cimport current_handle, current_of, Stream, stream_of, StreamContext
from accelrt.streams.stream import Stream as make_stream
from accelrt.runtime.access cimport Access, begin_use, defer_release, Deferral, deferral_for, end_use
cimport accelrt.runtime.access as watch


# --- graph ------------------------------------------------------------------------------------------------------------
# A capture is a transaction: whatever fails in it, the stream leaves the capture, the memory goes back to
# the graph's pool, and the process can capture again.

# stub: MODES: dict[str, int]
MODES = {"global": CAPTURE_GLOBAL, "thread_local": CAPTURE_THREAD_LOCAL, "relaxed": CAPTURE_RELAXED}

cdef list NO_HOOKS = []  # of every graph that has none; nothing is ever added to it

cdef enum:
    LEGACY = 1  # 0 and 1 are the legacy default stream


def graph_pool_handle() -> tuple[int, int]:
    """Returns a handle of a new memory pool for graphs, to pass to several captures that share memory.

    Returns:
        (int, int), unique in the process.  The pool comes into being with the first capture that uses it.
    """
    return 0, next_pool()


cdef int read_pool(object pool, int ordinal, uint64_t* out_id) except -1:
    # (0, 0) is torch's id of no pool; by ints alone, whose comparison is no caller's code.
    if pool is None or (type(pool) is tuple and len(pool) == 2 and type(pool[0]) is int and type(pool[1]) is int
                        and pool == (0, 0)):
        out_id[0], out_id[1] = 0, next_pool()
        return 0
    if isinstance(pool, CUDAGraph):
        pool = pool.pool()
    if isinstance(pool, MemPool):
        (<MemPool>pool).hold_on(ordinal)
    read_pool_id(pool, out_id)
    return 0


cdef uintptr_t node_id(object node) except? 0:
    # It may be a node of a definition too, whose id is 0 once it was taken out.
    if type(node) is GraphNode:
        return checked_address_int((<tuple>node)[0], "node")
    if not isinstance(node, NodeBase) or (<NodeBase>node).definition is None:
        return checked_address_int(node if isinstance(node, int) else getattr(node, "id", node), "node")
    if (<NodeBase>node).definition._generation != (<CUDAGraph?>(<NodeBase>node).definition._graph).generation:
        raise RuntimeError("the node's graph is gone: its CUDAGraph was reset or updated since; make another "
                           "GraphDefinition")
    return (<NodeBase>node).id


@cython.no_gc_clear  # a destructor that finds no record would leave the stream in its capture
cdef class CUDAGraph:
    """CUDAGraph(keep_graph=False)\n--\n\n\
    Work captured from streams, to be replayed any number of times.

        g = accelrt.CUDAGraph()
        with accelrt.graph(g):
            ...                      # copies, fills, launches: recorded, not run
        g.replay()

    Arguments:
        keep_graph: bool, keep the driver's graph after the capture: to look at it, to dump it, to hand it to others
            or to update another CUDAGraph from it.  It is then made ready by instantiate() or the first replay().
    Attributes:
        node_count: int, the nodes that the last capture recorded; 0 before.

    Memory allocated during the capture comes from the graph's private pool and keeps its addresses until the
    graph dies or is reset.  Buffers and arrays whose copies were captured are kept alive as long, and their memory
    is not used again before the last replay is past, whichever its stream.
    """

    def __cinit__(self):
        self.last_stream = UINTPTR_MAX
        self.rare = UNREADY
        self.capture_hooks = self.replay_hooks = self.destruction_hooks = NO_HOOKS
        self.registered = ()

    def __init__(self, bint keep_graph=False) -> None:
        self.keep_graph = keep_graph

    def __del__(self):  # before a collection empties what it keeps for replays, and its hooks
        self.end()

    def __dealloc__(self):
        self.end()

    cdef void end(self) noexcept:
        cdef bint held = self.holds_anything()
        self.abandon()
        if held and PyList_GET_SIZE(self.destruction_hooks):
            if not interpreter_is_gone():
                run_last_hooks(self.destruction_hooks)  # what one raises goes to sys.unraisablehook

    def __reduce__(self):
        refuse_copy(self, "it owns the driver's graph; capture another one")

    cdef bint holds_anything(self) noexcept:
        return self.exec_ != 0 or self.graph != 0 or self.record is not None

    cdef int abandon(self) noexcept:
        # In any state; the graph is empty afterwards.  Never raises: destructors call it.  The driver's calls release the
        # GIL, so other threads are refused meanwhile, and find nothing to replay.
        cdef Record record = self.record
        cdef uintptr_t exec_ = self.exec_, graph = self.graph
        self.busy += 1
        self.generation += 1
        self.exec_ = self.graph = 0
        self.rare = UNREADY | self.rare & HOOKS
        if record is not None:
            self.leave_branches()
            dispose_capture(CAPTURE, self.ordinal, record.origin, record.capture)
            self.leave_capture()
        self.count_out()
        watch.note_dropped(self.capture)
        self.keep_for_replays()
        if exec_:
            dispose(GRAPH_EXEC, self.ordinal, exec_)
        if graph:
            dispose(GRAPH, self.ordinal, graph)
        if self.retains_pool:
            self.drop_pool()
        self.kept = self.calls = self.sides = self.launched_on = self.random = None
        self.kernels = self.changes = self.base = self.by_node = self.made_nodes = self.within = None
        self.source = self.bound = self.rebinds = None
        self.uses_others_memory, self.last_stream, self.node_count = False, UINTPTR_MAX, 0
        self.busy -= 1
        return 0

    cdef void keep_for_replays(self) noexcept:  # before it gives way: memory of no allocator of ours stays until they end
        for handle in (self.launched_on or ()) if self.uses_others_memory else ():
            keep_until_passed(self.ordinal, handle, (self.kept, self.changes, self.rebinds, self.source, self.launched_on))

    cdef int drop_pool(self) noexcept:
        # The pool's memory serves others once the streams that the graph was replayed on are past the last replay.  A
        # caller with the driver's handles may have launched it anywhere: then the streams are unknown.
        cdef dict launched_on = self.launched_on
        cdef bint hidden = self.shown or (self.last_stream != UINTPTR_MAX and not launched_on)
        cdef uintptr_t stream
        self.launched_on = None
        self.retains_pool = self.shown = False
        if launched_on and not hidden:
            for handle in launched_on:
                stream = handle
                with nogil:
                    note_replays(self.ordinal, self.pool_id[0], self.pool_id[1], stream)
        with nogil:
            if hidden:
                hide_replays(self.ordinal, self.pool_id[0], self.pool_id[1])
            release_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False)
        return 0

    cdef int leave_branches(self) noexcept:
        while self.branches:
            (<Branch>self.branches.pop()).leave()
        return 0

    cdef int count_out(self) noexcept:
        if self.counted:
            self.counted = False
            count_out_capture()
        return 0

    cdef int leave_capture(self) noexcept:
        # After the driver's is over.  Counted out first: what waited for the capture's end may go back then.
        cdef Record record = self.record
        cdef uint64_t capture = record.capture
        self.leave_branches()
        self.count_out()
        self.record = None
        self.stream = None
        with nogil:
            end_capture(self.ordinal, capture)
            follow_capture()
        close_capture(record)
        return 0

    cdef int require_calm(self) except -1:
        if self.busy:
            raise RuntimeError("another thread begins, ends or drops a capture of this CUDAGraph just now; give each "
                               "thread a CUDAGraph of its own, or let one of them use it at a time")
        return 0

    cdef int require_unused(self) except -1:
        # Before what the driver uses for other threads just now is changed or destroyed.
        self.require_calm()
        if self.uses:
            self.raise_used()
        return 0

    cdef int require_unreplayed(self) except -1:
        # Before what is instantiated is changed in place.
        self.require_unused()
        if deferral_for(<PyObject*>self) is not None:
            self.raise_used()
        return 0

    cdef int raise_used(self) except -1:
        raise RuntimeError("another thread replays or reads this CUDAGraph just now; give each thread a CUDAGraph of its "
                           "own, or let one of them use it at a time")

    cdef int require_free(self) except -1:
        self.require_calm()
        if self.record is not None or self.exec_ or self.graph:
            state = "holds a capture" if self.record is None else "is being captured"
            raise RuntimeError(f"this CUDAGraph {state} already; call reset() first, or use another CUDAGraph")
        return 0

    @cython.critical_section
    def capture_begin(
        self, pool: tuple[int, int] | CUDAGraph | MemPool | None = None, capture_error_mode: str = "global",
    ) -> None:
        """Begins to capture the current stream (cuStreamBeginCapture).

        Arguments:
            pool: (int, int) from graph_pool_handle(), another graph's pool() or MemPool.id, or a MemPool, to share
                memory with the graphs that use it and never replay at the same time; None, and (0, 0) as in torch, are a
                pool of its own.
            capture_error_mode: "global", "thread_local" or "relaxed": which threads' unsafe calls, such as
                raw allocations, break the capture (CUDA driver API, CUstreamCaptureMode).
        Raises:
            CaptureError: the current stream is the legacy default stream, which cannot be captured; or another
                thread broke the capture as soon as it began.
            RuntimeError: this graph was captured already, or its capture is under way, or another thread begins or
                drops it.
            ValueError, TypeError: no such mode, or pool is none of these, or a Reservation's.
            Exception: whatever a hook raised; then nothing is begun.
        """
        mode = MODES.get(capture_error_mode)
        if mode is None:
            raise ArgumentError(f"capture_error_mode is {capture_error_mode!r}; it may be {', '.join(MODES)}")
        self.require_free()
        if PyList_GET_SIZE(self.capture_hooks):
            run_hooks(self.capture_hooks, self, True)
            self.require_free()
        self.busy += 1
        try:
            self.begin_on(current_of(ordinal_of(None)), mode, pool)
        finally:
            self.busy -= 1

    cdef int begin_on(self, Stream stream, int mode, object pool) except -1:
        cdef int code
        if stream.handle <= LEGACY:
            raise CaptureError(
                f"capture_begin(stream={stream!r}, mode={mode_name(mode)!r}) answered STREAM_CAPTURE_UNSUPPORTED "
                f"({CAPTURE_UNSUPPORTED}): the legacy default stream cannot be captured; make another one current, with "
                "accelrt.stream(accelrt.Stream()), or use accelrt.graph(g), which makes one",
                CAPTURE_UNSUPPORTED, "STREAM_CAPTURE_UNSUPPORTED", "capture_begin",
            )
        read_pool(pool, stream.device_index, self.pool_id)
        self.ordinal = stream.device_index
        self.mode, self.kept = mode, []
        with nogil:  # the pool's lock is held in calls of the driver that may wait for a function of Python's
            code = retain_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False, 0)
        refuse_reserved(code, "capture_begin", self.pool_id[0], self.pool_id[1])
        if code:
            raise_status(code, "capture_begin", ("pool", (self.pool_id[0], self.pool_id[1])))
        self.retains_pool = self.counted = True
        with nogil:
            expect_idle(self.ordinal)
            expect_capture()
            code = registry.active().capture_begin(self.ordinal, stream.handle, self.mode)
        if code:
            self.abandon()
            raise_status(code, "capture_begin", ("stream", stream, "mode", mode_name(mode)))
        return self.open_on(stream)

    cdef int open_on(self, Stream stream) except -1:
        # The stream captures: from here on, whatever fails ends that.
        cdef uint64_t capture = 0
        cdef uintptr_t handle = stream.handle
        cdef int code
        with nogil:
            code = begin_capture_on(self.ordinal, handle, self.pool_id[0], self.pool_id[1], &capture)
        if code:
            dispose_capture(CAPTURE, self.ordinal, handle, capture)
            self.abandon()
            raise_unbegun(code, "capture_begin", stream, self.mode)
        self.stream, self.capture = stream, capture
        try:
            self.record = record_capture(CAPTURE, self.ordinal, handle, capture, self.kept, None, self.pool_id)
        except BaseException:
            self.abandon()
            raise
        self.record.random = self.registered
        return 0

    @cython.critical_section
    def capture_end(self) -> None:
        """Ends the capture (cuStreamEndCapture) and makes it ready to replay, unless the graph is to be kept.

        Raises:
            CaptureError: the capture was broken, a stream that joined it was not joined back, or it is ended on
                the wrong thread.  The graph is then empty and can be captured anew.
            RuntimeError: no capture is under way, or the body of a condition is being captured, or another thread
                begins, ends or drops the capture just now.
            Exception: whatever a hook raised; the graph is then as after reset().
        """
        cdef Record record = self.record
        cdef int code
        self.require_calm()
        if record is None:
            raise RuntimeError("no capture of this CUDAGraph is under way; call capture_begin() first")
        if self.branches:
            self.abandon()
            raise RuntimeError("the body of a condition is still being captured, so the capture is dropped; leave "
                               "if_() and while_() before it ends")
        stream = self.stream
        self.busy += 1
        with nogil:
            code = registry.active().capture_end(self.ordinal, record.origin, &self.graph)
        self.busy -= 1
        self.leave_capture()
        call = "capture_end"
        if code:  # a driver that refuses to end a capture must not leave the stream in it
            dispose_capture(CAPTURE, self.ordinal, record.origin, record.capture)
        else:
            call = "graph_node_count"
            code = registry.active().graph_node_count(self.graph, &self.node_count)
        if code:
            self.abandon()
            raise_broken(record, code, call, ("stream", stream))
        watch.note_captured(self.capture)
        self.random = None if isinstance(record.random, tuple) else record.random
        self.keep(record.kept)
        if not self.keep_graph:
            try:
                self.make_exec(False)
            except BaseException:
                self.abandon()
                raise
        drain()
        if self.node_count == 0:
            import warnings
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

    cdef int keep(self, list kept) except -1:
        self.take_things(kept)
        self.changes = self.base = self.by_node = self.made_nodes = self.within = None
        self.source = self.bound = self.rebinds = None
        self.past, self.pasts, self.launched_on, self.last_stream = None, None, None, UINTPTR_MAX
        self.rare = UNREADY * (self.exec_ == 0) | RANDOM * (self.random is not None) | self.rare & (HOOKS | CALLBACKS)
        return 0

    cdef list things(self):
        if self.by_node is None or self.source is not None:
            return self.kept
        return all_things(self.base, self.by_node)

    cdef list note_made(self):
        # Before the graph is instantiated anew: what was added by hand is noted for earlier streams too.  None: nothing was.
        cdef list things = None if self.by_node is None else self.things()
        for handle in (self.launched_on or ()) if things else ():
            self.uses_others_memory = note_sides(things, self.ordinal, handle) or self.uses_others_memory
        return things

    cdef int take_things(self, list things) except -1:
        # No sooner than it is instantiated: launches count the functions that they run, and the exit waits for as many.
        self.kept, self.kernels, self.calls = things, None, nodes_of(things)
        self.sides = [thing for thing in things if isinstance(thing, Side)]
        self.rare = self.rare & ~CALLBACKS | CALLBACKS * (len(self.calls) > 0)
        return 0

    cdef CUDAGraph make_instance(self, uint64_t flags):
        cdef CUDAGraph instance = CUDAGraph()
        cdef uintptr_t graph = self.kept_graph()
        cdef int code
        self.require_unused()
        self.uses += 1
        try:
            with nogil:
                code = retain_pool(self.ordinal, self.pool_id[0], self.pool_id[1], False, 0) if self.retains_pool else 0
            if code:
                raise_status(code, "graph_instantiate", ("pool", self.pool()))
            instance.retains_pool, instance.random = self.retains_pool, self.random
            instance.pool_id[0], instance.pool_id[1], instance.ordinal = self.pool_id[0], self.pool_id[1], self.ordinal
            with nogil:
                code = instantiate(self.ordinal, graph, flags, &instance.exec_)
                code = code if code else registry.active().graph_node_count(graph, &instance.node_count)
        finally:
            self.uses -= 1
        if code:
            raise_status(code, "graph_instantiate", ("device", self.ordinal, "flags", flags), instance_hint(code))
        instance.keep(list(self.things()))
        instance.follow(self, calls_within(graph, instance.calls))
        return instance

    cdef int follow(self, CUDAGraph source, dict within) except -1:
        # Its nodes are the source's, and do what those do now.
        self.changes, self.within = None if source.changes is None else dict(source.changes), within
        self.made_removals, self.made_reshapes = source.removals, source.reshapes
        self.source, self.source_generation, self.source_edits = source, source.generation, source.edits
        self.by_node = self.made_nodes = None if source.by_node is None else dict(source.by_node)
        source.pasts, self.past = begin_past(source.pasts)
        return 0

    cdef uintptr_t node_graph(self) except 0:
        # Whose nodes are named; in the critical sections of this graph and its source.
        cdef uintptr_t graph
        if self.source is None:
            return self.kept_graph()
        graph = self.source.kept_graph()
        if self.source.generation != self.source_generation:
            raise RuntimeError("the graph that this was instantiated from is gone: it was reset or updated since; "
                               "instantiate another one")
        return graph

    cdef int make_exec(self, bint updates) except -1:  # updates: brings the one that there is up to date
        cdef uintptr_t graph = self.graph, instance = 0
        cdef uintptr_t* before
        cdef int code, left = 0
        self.require_unused()
        self.begin_change()
        try:
            things = self.note_made()
            within = calls_within(graph, self.calls if things is None else nodes_of(things)) if self.keep_graph else None
            self.graph = graph if self.keep_graph else 0
            if updates:
                update_exec(self.exec_, graph, True)
                return self.note_exec(things, within)
            before = &self.exec_ if deferral_for(<PyObject*>self) is None else NULL
            with nogil:
                code = instantiate_anew(self.ordinal, graph, before, &instance)
                left = 0 if self.keep_graph else give_back(GRAPH, self.ordinal, graph)
            if left:
                dispose(GRAPH, self.ordinal, graph)
            if code == 0:
                if self.exec_:
                    self.drop_exec()
                self.exec_ = instance
                self.note_exec(things, within)
        finally:
            self.end_change()
        if code:
            raise_status(code, "graph_instantiate", ("device", self.ordinal), instance_hint(code))
        return 0

    cdef int note_exec(self, list things, dict within) except -1:
        # What is instantiated does what the graph does now.
        self.made_removals, self.made_reshapes, self.within = self.removals, self.reshapes, within
        self.made_nodes = None if self.by_node is None else dict(self.by_node)
        if things is not None:
            self.keep_for_replays()
            self.take_things(things)
        return self.drop_bound()

    cdef int drop_exec(self) except -1:
        # Not beside a replay in another thread.
        cdef Deferral deferral = deferral_for(<PyObject*>self)
        cdef CUDAGraph last
        if deferral is None:
            dispose(GRAPH_EXEC, self.ordinal, self.exec_)
            return 0
        last = CUDAGraph.__new__(CUDAGraph)
        last.exec_, last.ordinal = self.exec_, self.ordinal
        defer_release(deferral, NULL, 0, 0, last)
        return 0

    cdef int drop_bound(self) except -1:
        # What was instantiated anew uses the memory of the capture.
        cdef Change change, nothing = Change.__new__(Change)
        cdef list rebinds = self.rebinds
        self.bound = self.rebinds = None
        if rebinds is not None and deferral_for(<PyObject*>self) is not None:
            self.kept.append(rebinds)
        elif rebinds is not None:
            for change in rebinds:
                for handle in self.launched_on or ():
                    self.let_go(change, nothing, handle)
        return 0

    cdef void begin_change(self) noexcept:
        # Until end_change other threads are refused; replays too, for which nothing is ready.
        self.busy += 1
        self.rare |= UNREADY

    cdef void end_change(self) noexcept:
        self.busy -= 1
        if self.exec_:
            self.rare &= ~UNREADY

    @cython.critical_section
    def instantiate(self) -> None:
        """Makes a graph that was kept ready to replay (cuGraphInstantiate); anew, where it was ready already.

        Raises:
            RuntimeError: this CUDAGraph was not made with keep_graph=True, or holds no capture; or another thread
                reads or changes it just now.
            CudaError: the driver refused.
        """
        self.kept_graph()
        self.make_exec(False)

    @cython.critical_section
    def upload(self, stream: Stream | int | None = None) -> None:
        """Puts what replays need onto the device now rather than with the first replay (cuGraphUpload).

        Arguments:
            stream: Stream in whose order it goes; None is the current one of the graph's device.
        Raises:
            RuntimeError: nothing is captured, or another thread changes this graph just now.
            CudaError: the driver refused.
        """
        cdef Stream chosen = stream_of(stream, self.ordinal)
        cdef int code
        if self.exec_ == 0:
            self.kept_graph()
            self.make_exec(False)
        self.require_calm()
        self.uses += 1
        with nogil:
            code = registry.active().graph_upload(self.ordinal, self.exec_, chosen.handle)
        self.uses -= 1
        if code:
            raise_status(code, "graph_upload", ("graph_exec", self.exec_, "stream", chosen.handle))

    @cython.critical_section
    def replay(self) -> None:
        """Puts the captured work into the current stream of the graph's device (cuGraphLaunch).

        Raises:
            RuntimeError: nothing is captured, or another thread changes this graph just now.
            CudaError: the driver refused.
            Exception: whatever a hook raised.
        """
        cdef uintptr_t handle = current_handle(self.ordinal)
        cdef uintptr_t exec_
        cdef Access access
        cdef int code
        if self.rare or handle != self.last_stream or watch.detects_races() or watch.any_sleeps():
            self.replay_slow(handle, None)
            return
        begin_use(&access, NULL, <PyObject*>self)
        if WITHOUT_GIL and watch.any_sleeps():  # since it was looked at
            end_use(&access)
            self.replay_slow(handle, None)
            return
        exec_ = self.exec_
        with nogil:
            code = registry.active().graph_launch(self.ordinal, exec_, handle)
        end_use(&access)
        if code:
            raise_status(code, "graph_launch", ("graph_exec", exec_, "stream", handle), launch_hint(code))

    cdef int require_ready(self) except -1:
        self.require_calm()
        if self.exec_:
            return 0
        if self.graph == 0 or self.record is not None:
            raise RuntimeError("nothing to replay: capture first, with accelrt.graph(g) or capture_begin/capture_end")
        return self.make_exec(False)

    cdef int replay_slow(self, uintptr_t handle, Names given) except -1:  # given: whose memory it has; hooks may change it
        self.require_ready()
        if PyList_GET_SIZE(self.replay_hooks) == 0:
            return self.launch_random(handle, given)
        run_hooks(self.replay_hooks, self, True)
        self.require_ready()
        self.launch_random(current_handle(self.ordinal), None)
        run_hooks(self.replay_hooks, self, False)
        return 0

    cdef int launch_random(self, uintptr_t handle, Names given) except -1:
        # Launches into the current stream, behind what random numbers begin with.
        cdef object states = self.random
        if states is None:
            return self.launch(handle, given)
        stream = current_of(self.ordinal)
        # Taken here, since no interruption comes between two steps of compiled code.
        with states.lock:
            states.prepare(stream)
            try:
                return self.launch(handle, given)
            finally:
                states.event.record(stream)

    cdef int launch(self, uintptr_t handle, Names given) except -1:
        cdef uintptr_t exec_
        cdef list calls
        cdef Access access
        cdef int code
        self.refuse_sleeping()
        if handle != self.last_stream:
            self.note_stream(handle)
        watch.note_replay(self.ordinal, handle, self.capture)
        self.require_ready()  # other threads had the GIL
        if given is not None:
            given.require_bound(self)
        begin_use(&access, NULL, <PyObject*>self)
        exec_, calls = self.exec_, self.calls  # of now: reset() leaves them to this use
        try:
            self.refuse_sleeping()
            begin_runs(calls)
            with nogil:
                code = registry.active().graph_launch(self.ordinal, exec_, handle)
        finally:
            end_use(&access)
        if code:
            take_back_runs(calls)
            raise_status(code, "graph_launch", ("graph_exec", exec_, "stream", handle), launch_hint(code))
        return 0

    cdef int refuse_sleeping(self) except -1:
        # The graph's own pool, those whose memory its nodes are known to use, and communicators.
        cdef Change change
        if not watch.any_sleeps():
            return 0
        if not watch.is_pool_awake(self.ordinal, self.pool_id[0], self.pool_id[1]):
            raise_status(SLEEPING, "replay", ("pool", (self.pool_id[0], self.pool_id[1]), "device", self.ordinal))
        refuse_asleep(self.kept)
        for change in [*(self.changes or {}).values(), *(self.rebinds or ())]:
            while change is not None:
                change.refuse_asleep()
                change = change.before
        return 0

    cdef int note_stream(self, uintptr_t handle) except -1:
        # The graph may die while a replay is under way on this stream.  Nobody changes it before all of its memory is noted.
        cdef Stream stream
        cdef Change change
        if self.launched_on is None or handle not in self.launched_on:
            self.require_calm()
            self.uses += 1
            try:
                self.uses_others_memory = note_sides(self.sides, self.ordinal, handle) or self.uses_others_memory
                for change in [*(self.changes or {}).values(), *(self.rebinds or ())]:
                    while change is not None:
                        self.uses_others_memory = change.note(self.ordinal, handle) or self.uses_others_memory
                        change = change.before
                stream = current_of(self.ordinal)
                self.launched_on = add_stream(self.launched_on, handle, None if stream.pooled != NULL else stream)
            finally:
                self.uses -= 1
        self.last_stream = handle
        return 0

    def update(self, other: CUDAGraph) -> None:
        """Gives the instantiated graph the parameters of another capture of the same shape (cuGraphExecUpdate).

        Arguments:
            other: CUDAGraph, made with keep_graph=True, that holds a capture of the same device.  It stays as it is.
        Raises:
            TypeError: other is no CUDAGraph.
            RuntimeError: this graph is not ready to replay, or the other holds none; or another thread uses one of them.
            CudaError: the shapes differ; the text names the driver's reason and the node.  This graph is unchanged.
            NotSupportedError: the graph leaves nodes out, and the other is not what it was instantiated from.

        Replays under way are left alone.  What this graph kept alive it gives up for what the other keeps, and uses the
        other's pool; a graph of its own that was kept goes too, unless it is the other.  Updated by the definition that it
        was instantiated from, with the nodes and edges of then, it is changed by that one's nodes as before.
        """
        cdef CUDAGraph to
        if not isinstance(other, CUDAGraph):
            raise TypeError(f"other is {other!r} of type {type(other).__name__}; pass a CUDAGraph")
        to = other
        with cython.critical_section(self, to):
            self.update_from(to)

    cdef int update_from(self, CUDAGraph to) except -1:
        cdef uint64_t first, second
        cdef bint follows = self.source is to and self.source_generation == to.generation \
            and self.made_reshapes == to.reshapes
        cdef dict within
        cdef int code
        self.require_alike(to)
        self.require_unreplayed()
        if to is self:
            if self.made_reshapes != self.reshapes:
                raise RuntimeError("nodes or edges came or went since the graph was instantiated; instantiate() it anew")
            return self.make_exec(True)
        first, second = to.pool_id[0], to.pool_id[1]
        to.uses += 1
        self.begin_change()
        try:
            with nogil:
                code = retain_pool(to.ordinal, first, second, False, 0)
            if code:
                raise_status(code, "graph_update", ("pool", (first, second)))
            try:
                within = calls_within(to.graph, nodes_of(to.things())) if follows else None
                update_exec(self.exec_, to.graph, follows)
            except BaseException:
                with nogil:
                    release_pool(to.ordinal, first, second, False)
                raise
            self.take_over(to, follows, within)
        finally:
            self.end_change()
            to.uses -= 1
        return 0

    cdef int require_alike(self, CUDAGraph other) except -1:
        other.kept_graph()
        if self.exec_ == 0 or self.ordinal != other.ordinal:
            raise RuntimeError("there is nothing to update: this CUDAGraph has to be ready to replay on the other's device")
        return 0

    cdef int take_over(self, CUDAGraph other, bint follows, dict within) except -1:
        cdef dict changes = None if other.changes is None else dict(other.changes)
        cdef bint shown = self.shown  # which what is instantiated stays
        self.keep_for_replays()
        self.drop_pool()
        self.retains_pool, self.shown = True, shown
        self.pool_id[0], self.pool_id[1] = other.pool_id[0], other.pool_id[1]
        if self.graph:
            dispose(GRAPH, self.ordinal, self.graph)
            self.graph = 0
        self.generation += 1
        self.node_count, self.capture, self.random = other.node_count, other.capture, other.random
        self.uses_others_memory = False
        self.keep(list(other.things()))
        if follows:
            return self.follow(other, within)
        self.changes = changes
        return 0

    @cython.critical_section
    def reset(self) -> None:
        """Forgets the capture: its pool's memory can go back to the device once nothing in it is live.

        Raises:
            RuntimeError: another thread begins, ends or drops the capture, or reads it, just now.
            Exception: whatever a hook raised; the capture is forgotten all the same.
        """
        cdef Deferral deferral
        cdef bint held
        self.require_unused()
        held = self.holds_anything()
        deferral = deferral_for(<PyObject*>self) if self.record is None else None
        heir = None if deferral is None else self.move_out()
        self.abandon()
        if deferral is not None:  # another thread is just replaying it
            defer_release(deferral, NULL, 0, 0, heir)
        self.registered = ()
        drain()
        if held and PyList_GET_SIZE(self.destruction_hooks):
            run_last_hooks(self.destruction_hooks)

    cdef CUDAGraph move_out(self):
        # What abandon() gives back goes to another object, which does so when it dies.
        cdef CUDAGraph heir = CUDAGraph.__new__(CUDAGraph)
        heir.exec_, heir.graph, self.exec_, self.graph = self.exec_, self.graph, 0, 0
        heir.ordinal, heir.pool_id[0], heir.pool_id[1] = self.ordinal, self.pool_id[0], self.pool_id[1]
        heir.kept, heir.changes, heir.launched_on = self.kept, self.changes, self.launched_on
        heir.calls, heir.random, heir.kernels, heir.rebinds = self.calls, self.random, self.kernels, self.rebinds
        heir.by_node, heir.base, heir.source = self.by_node, self.base, self.source
        heir.uses_others_memory, self.uses_others_memory = self.uses_others_memory, False
        heir.retains_pool, self.retains_pool = self.retains_pool, False
        heir.shown, heir.last_stream, self.shown = self.shown, self.last_stream, False
        return heir

    @cython.critical_section
    def register_generator_state(self, generator: object) -> None:
        """Lets captures of this graph draw from a generator; each replay goes on where the generator is then, and moves it
        on.  A device's default generator needs no registration.

        Arguments:
            generator: accelrt.random.Generator.
        Raises:
            TypeError: it is none.
            RuntimeError: this graph is being captured.

        It holds for all captures until reset().  The body of a condition draws the same numbers whenever it is repeated.
        """
        state = getattr(generator, "shared_state", None)
        if state is None:
            raise TypeError(f"generator is of type {type(generator).__name__}; pass an accelrt.random.Generator")
        if self.record is not None:
            raise RuntimeError("a generator is registered before the capture begins, and this graph is being captured")
        if state not in self.registered:
            self.registered += (state,)

    @cython.critical_section
    def pool(self) -> tuple[int, int]:
        """Returns the handle of the graph's memory pool, to pass to other captures.

        Raises:
            RuntimeError: no capture was begun since it was made or reset, so that it has no pool yet; to choose one
                before, pass graph_pool_handle() to the captures.
        """
        if self.record is None and self.exec_ == 0 and self.graph == 0:
            raise RuntimeError(
                "this CUDAGraph has no memory pool: nothing is captured; capture first, or pass the same "
                "accelrt.graph_pool_handle() to the captures that are to share memory"
            )
        return self.pool_id[0], self.pool_id[1]

    @cython.critical_section
    def memory_stats(self) -> dict[str, int]:
        """Counts what the graph's pool holds.  Graphs that share a pool all count all of it.

        Returns:
            dict, in the words of MemPool.stats: "reserved_bytes.current" is what it keeps from others.
        """
        cdef PrivateStats stats
        with nogil:
            stats = read_private(self.ordinal, self.pool_id[0], self.pool_id[1], False)
        return figures_of(stats)

    @cython.critical_section
    def raw_cuda_graph(self) -> int:
        """Returns the driver's graph (CUgraph) as int; valid until reset() and no longer than this object.

        Raises:
            RuntimeError: this CUDAGraph was not made with keep_graph=True, or holds no graph; or another thread changes
                it just now.
        """
        return self.kept_graph()

    cdef uintptr_t kept_graph(self) except 0:
        # In its critical section, which one within it would leave for a moment.
        self.require_calm()
        if self.graph and self.record is None:
            self.shown = True
            return self.graph
        if not self.keep_graph:
            raise RuntimeError("the driver's graph was not kept; make it with CUDAGraph(keep_graph=True)")
        raise RuntimeError("no graph is kept: capture first; what update() replaced is gone")

    @cython.critical_section
    def raw_cuda_graph_exec(self) -> int:
        """Returns the driver's instantiated graph (CUgraphExec) as int; valid until reset() or instantiate(), and no longer
        than this object.

        Raises:
            RuntimeError: it is not instantiated.
        """
        if self.exec_ == 0:
            raise RuntimeError("no instantiated graph: capture first; with keep_graph=True call instantiate() too")
        self.shown = True
        return self.exec_

    @cython.critical_section
    def nodes(self) -> list[GraphNode]:
        """Returns the nodes of a graph that was kept, as a list of GraphNode, in the order that the driver gives.

        Raises:
            RuntimeError: as raw_cuda_graph.
        """
        graph = self.kept_graph()
        self.uses += 1
        try:
            return list_nodes(graph, self)
        finally:
            self.uses -= 1

    @cython.critical_section
    def kernel_node_params(self, node: GraphNode | int) -> KernelParams:
        """Reads what a kernel node of a graph that was kept launches (cuGraphKernelNodeGetParams).

        Arguments:
            node: GraphNode, or its id.
        Returns:
            KernelParams.
        Raises:
            CudaError: it is no kernel node of this graph.
            RuntimeError: as raw_cuda_graph; or another thread changes this graph just now.
        """
        cdef uintptr_t handle = node_id(node)
        cdef uintptr_t graph = self.kept_graph()
        self.busy += 1
        try:
            return read_kernel_node(graph, handle, self.own_kernels(), self.changes.get(handle))
        finally:
            self.busy -= 1

    def set_kernel_node_params(
        self, node: GraphNode | int, *, kernel: Kernel | None = None, grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] | None = None, shared: int | None = None, args: Sequence[object] | None = None,
        cluster: int | Sequence[int] | None = None, cooperative: bool | None = None, priority: int | None = None,
    ) -> None:
        """Changes what a kernel node launches, in the graph and, where it is instantiated, in the instance, without a new
        capture (cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams).

        Arguments:
            node: GraphNode of a graph that was kept, or its id.
            kernel: Kernel of the graph's device; some drivers refuse another function in an instance.
            grid, block, shared: as Kernel.launch takes them.
            args: a tuple of arguments, as a launch takes them.
            cluster, cooperative, priority: as GraphDefinition.kernel takes them; of the graph, for instances keep theirs.
            Of all of these None leaves what there is.
        Raises:
            CudaError: it is no kernel node of this graph, or the driver refused the change.
            TypeError, ValueError: an argument does not fit; see Kernel.launch.
            RuntimeError: as raw_cuda_graph; or another thread changes this graph just now.

        Replays under way are left alone.  What the new arguments point at is kept as what was captured is, until the node is
        changed again and replays under way are past; what was captured stays kept.  bytes that the node had before, as
        KernelParams tells them, keep what they kept; memory that others and ints are addresses of is the caller's to keep.
        The race detector takes a replay for what the node launches now, and for other launches that may be the node's.
        """
        cdef CUDAGraph source = source_of(self)
        options, handle = checked_options(cluster, cooperative, priority), node_id(node)
        with cython.critical_section(self, source):
            self.change_kernel(source, self.node_graph(), handle, False, kernel, grid, block, shared, args, options)

    cdef int change_kernel(self, CUDAGraph source, uintptr_t graph, uintptr_t handle, bint is_there, object kernel,
                           object grid, object block, object shared, object args, tuple options) except -1:
        # In the critical sections of both.  The node is of the source, which may be this graph, or of a part of it.
        cdef NodeChange change = NodeChange.__new__(NodeChange), before
        cdef bint apart = source is not self, begun = False, left = False
        cdef object node = handle
        self.require_unreplayed()
        if self.exec_:
            require_made(source.by_node, self.made_nodes, node)
        self.begin_change()
        source.uses += 1
        try:
            before = None if self.changes is None else self.changes.get(node)
            change_kernel_node(graph, self.exec_, handle, self.ordinal, self.capture, self.own_kernels(), before, change,
                               &begun, kernel, grid, block, shared, args, options, self.past if apart else None,
                               not apart and bool(self.pasts), self.bound, is_there)
            self.keep_change(node, change, before)
            if not apart and self.by_node is not None:
                note_roles(self.by_node, node, {"change": change.uses()})
            left = self.finish_change(change)
        except BaseException:
            if begun and self.changes.get(node) is not change:
                self.keep_change(node, change, before)
            raise
        finally:
            self.edits += self.changes is not None and self.changes.get(node) is change  # one that was refused is none
            self.end_change()
            source.uses -= 1
        if left:
            drain()
        return 0

    cdef dict own_kernels(self):
        # The kernels of the capture, by their handles; makes room for changes too.
        if self.kernels is None or self.record is not None:
            self.kernels = kernels_in(self.things())
        if self.changes is None:
            self.changes = {}
        return self.kernels

    cdef int note_changes(self, list changes) except -1:
        # The streams of earlier replays are told: those that come find them known.
        for handle in self.launched_on or ():
            for change in changes:
                self.uses_others_memory = (<Change>change).note(self.ordinal, handle) or self.uses_others_memory
        return 0

    cdef int keep_change(self, object node, NodeChange change, NodeChange before) except -1:
        # What it uses, beside what there was until finish_change: that of the last change, or None.
        change.before = before
        self.changes[node] = change
        if change.former is not None:
            note_past(self.pasts, node, change.former)
            change.former = None
        return self.note_changes([change])

    cdef bint finish_change(self, Change change) except -1:
        # The driver took it all.  Answers whether something that is kept no more waits for streams.
        cdef bint left = False
        if change.before is not None and self.launched_on is not None:
            for handle in self.launched_on:
                left = self.let_go(change.before, change, handle) or left
        change.before = None
        return left

    cdef int undo_change(self, object node, NodeChange change) except -1:
        # The driver took nothing.
        if self.changes.get(node) is change:
            self.changes[node] = change.before
            if change.before is None:
                del self.changes[node]
        return 0

    cdef bint let_go(self, Change before, Change after, uintptr_t stream) except -1:
        # What a change used that another takes the place of: allocators of accelrt know that replays use it, and of the rest
        # nothing goes before the stream is past them.
        cdef list unused = None, foreign
        while before is not None:
            foreign = before.foreign(self.ordinal, stream, after)
            if foreign:
                unused = (unused or []) + [
                    thing for thing in foreign
                    if not isinstance(thing, Kernel) or self.kernels.get((<Kernel>thing).handle) is not thing]
            before = before.before
        if unused:
            keep_until_passed(self.ordinal, stream, unused)
        return bool(unused)

    @cython.critical_section
    def edges(self) -> list[tuple[int, int]]:
        """Returns the dependencies in a graph that was kept, as a list of (id, id of the node that comes after it).

        Raises:
            RuntimeError: as raw_cuda_graph.
        """
        graph = self.kept_graph()
        self.uses += 1
        try:
            return list_edges(graph)
        finally:
            self.uses -= 1

    def enable_debug_mode(self) -> None:
        """Lets the next capture keep its graph, as keep_graph=True would, so that it can be dumped."""
        self.keep_graph = True

    @cython.critical_section
    def debug_dump(self, debug_path: str | os.PathLike[str], bint verbose=False, *, flags: Iterable[str] = ()) -> None:
        """Writes a drawing of a graph that was kept, in the language of Graphviz (cuGraphDebugDotPrint).

        Arguments:
            debug_path: str or os.PathLike, the file to write.
            verbose: bool, with every parameter of every node that the driver tells.
            flags: iterable of str, what to draw, by CUgraphDebugDot_flags in lower case: "handles",
                "kernel_node_params", "extra_topo_info", ...  The host device draws the same for all.
        Raises:
            RuntimeError: as raw_cuda_graph.
            ValueError, TypeError: the path is none, or has a null character, or there is no such flag.
            CudaError: the file cannot be written.
        """
        graph = self.kept_graph()
        self.uses += 1
        try:
            write_dot(graph, debug_path, verbose, flags)
        finally:
            self.uses -= 1

    def if_(self, flag: Memory) -> AbstractContextManager[None, None]:
        """Returns the context in which work is captured that replays do only if an integer in device memory is not 0.

            with accelrt.graph(g):
                with g.if_(flag):
                    ...

        Arguments:
            flag: Buffer, or an object with __cuda_array_interface__, whose first 4 bytes are read, in the order of the
                current stream, by each replay (a conditional node of type if; CUDA 12.3).
        Raises:
            RuntimeError: the current stream does not capture for this graph, the context was entered before, or
                another thread begins or ends a capture of this graph, or of such a body, just now.
            TypeError, ValueError: flag is no device memory, or is shorter than 4 bytes.
            NotSupportedError: the driver has no conditional nodes.

        Inside, a stream of its own is current, which begins behind nothing; host functions cannot be captured there.
        """
        return Branch(self, flag, CONDITION_IF)

    def while_(self, flag: Memory) -> AbstractContextManager[None, None]:
        """Returns the same context as if_, but replays repeat the work while the integer is not 0: it is read before the
        first time and at the end of each, so the captured work has to change it.  Arguments, Raises: as if_."""
        return Branch(self, flag, CONDITION_WHILE)

    def register_capture_pre_hook(self, hook: Callable[[CUDAGraph], object]) -> RemovableHandle:
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

    def register_capture_hook(self, hook: Callable[[CUDAGraph], object]) -> RemovableHandle:
        """Has a function called after each capture of this graph that succeeded, when it can be replayed.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by capture_end, and the graph is reset.
        Returns, Raises: as register_capture_pre_hook.
        """
        return add_hook(self.own_capture_hooks(), hook, False)

    def register_replay_pre_hook(self, hook: Callable[[CUDAGraph], object]) -> RemovableHandle:
        """Has a function called before each replay() of this graph.

        Arguments:
            hook: called as hook(graph).  What it puts into the current stream runs before the graph's work.  What it
                raises is raised by replay, and nothing is launched.
        Returns, Raises: as register_capture_pre_hook.
        """
        return add_hook(self.own_replay_hooks(), hook, True)

    def register_replay_hook(self, hook: Callable[[CUDAGraph], object]) -> RemovableHandle:
        """Has a function called after each replay() of this graph was put into its stream, where it may still run.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by replay; the launch stands.
        Returns, Raises: as register_capture_pre_hook.
        """
        return add_hook(self.own_replay_hooks(), hook, False)

    def register_destruction_hook(self, hook: Callable[[], object]) -> RemovableHandle:
        """Has a function called when this graph gives up what was captured: at reset(), or when the object dies.

        Arguments:
            hook: called as hook(), once the driver's graph is given up; replays may still run.  It should not refer to
                the graph, which the reference would keep alive.  What it raises is raised by reset(), and is reported
                by sys.unraisablehook where the object dies.
        Returns, Raises: as register_capture_pre_hook.

        At the interpreter's exit it is not called any more.
        """
        with cython.critical_section(self):
            if self.destruction_hooks is NO_HOOKS:
                self.destruction_hooks = []
        return add_hook(self.destruction_hooks, hook, False)

    @cython.critical_section
    cdef list own_capture_hooks(self):
        if self.capture_hooks is NO_HOOKS:
            self.capture_hooks = []
        return self.capture_hooks

    @cython.critical_section
    cdef list own_replay_hooks(self):
        if self.replay_hooks is NO_HOOKS:
            self.replay_hooks = []
            self.rare |= HOOKS
        return self.replay_hooks

    @property
    def is_captured(self) -> bool:
        """Tells whether it holds a capture, instantiated or kept."""
        return self.record is None and (self.exec_ != 0 or self.graph != 0)

    @property
    def is_capturing(self) -> bool:
        """Tells whether this graph's capture is under way."""
        return self.record is not None

    @cython.critical_section
    def __repr__(self):
        state = f"{self.node_count} nodes" if self.record is None else "capturing"
        if not self.holds_anything():
            return "<accelrt.CUDAGraph empty>"
        return f"<accelrt.CUDAGraph {state}, pool {(self.pool_id[0], self.pool_id[1])}>"


# --- random numbers ---------------------------------------------------------------------------------------------------

cdef class RandomState:
    """The state that a generator's numbers depend on: a seed and an offset, both of 64 bits, for generators that share
    them and for graphs that draw from them.

    Attributes:
        seed: int.
        offset: int, a multiple of 4: of how many words each thread's sequence was used.

    Each method is one step for other threads, so that no two launches are given the same offset.
    """

    cdef readonly uint64_t seed
    cdef readonly uint64_t offset
    cdef object __weakref__

    def __init__(self, uint64_t seed, uint64_t offset=0) -> None:
        self.seed = seed
        self.offset = offset

    @cython.critical_section
    def put(self, uint64_t seed, uint64_t offset) -> None:
        """Sets both."""
        self.seed = seed
        self.offset = offset

    @cython.critical_section
    def take(self, uint64_t words) -> tuple[int, int]:
        """(seed, offset) for a launch that uses so many words of each sequence, a multiple of 4; the next one is behind
        them."""
        cdef uint64_t offset = self.offset
        self.offset = offset + words
        return self.seed, offset

    def __reduce__(self):
        refuse_copy(self, "it is shared by generators; copy the Generator")


# --- capture ----------------------------------------------------------------------------------------------------------
# The contexts in which work is captured: of a graph, and of the body of a conditional node.
#
# A conditional node is a part of a graph that a replay does or leaves out.  Its condition is set on the device, by a node
# in front of it that reads an integer; for a loop another at the end of the body reads it again.  The body is captured
# from a stream of its own, as a capture that shares the graph's pool and what the graph keeps.

def is_current_stream_capturing() -> bool:
    """Tells whether the calling thread's current stream is captured, by accelrt or by another library.

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

    def __init__(
        self, cuda_graph: CUDAGraph, pool: tuple[int, int] | CUDAGraph | MemPool | None = None, stream: Stream | None = None,
        str capture_error_mode="global", *, bint synchronize=False, bint empty_cache=False,
    ) -> None:
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

    def __enter__(self) -> None:
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.context is None or not self.context.open:
            raise RuntimeError("this graph context is not entered, or was left already; its CUDAGraph is as it was")
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            else:
                self.cuda_graph.reset()
        finally:
            self.context.__exit__(None, None, None)


# --- conditional nodes -----------------------------------------------------------------------------------------

@cython.critical_section
cdef CUDAGraph source_of(CUDAGraph graph):
    # Whose nodes an instance has; else the graph itself.  Not from within its critical section.
    return graph if graph.source is None else graph.source


@cython.critical_section
cdef int count_busy(CUDAGraph graph, int change) noexcept:
    graph.busy += change
    return 0


@cython.no_gc_clear  # a destructor that finds no record would leave the stream in its capture
cdef class Branch:
    """Branch(graph, flag, kind)\n--\n\n\
    The context in which a conditional node's body is captured; see CUDAGraph.if_ and while_."""

    cdef CUDAGraph graph
    cdef object flag
    cdef int kind              # CONDITION_IF or CONDITION_WHILE
    cdef int ordinal
    cdef uintptr_t address     # of the flag
    cdef uint64_t condition    # the driver's handle of it
    cdef uintptr_t body        # where there was one before; 0: it is made with its condition
    cdef uint64_t generation   # of the graph, where there was one before
    cdef Stream stream         # captures the body
    cdef StreamContext context
    cdef Record record         # of the body's capture, while it is under way
    cdef unsigned long thread  # that entered it, whose current stream the body's is
    cdef object __weakref__

    def __init__(self, CUDAGraph graph not None, flag: Memory, int kind) -> None:
        if self.graph is not None:
            raise RuntimeError("this condition is made already; call if_() or while_() for each")
        self.graph, self.flag, self.kind = graph, flag, kind

    def __dealloc__(self):
        self.leave()

    cdef int leave(self) noexcept:
        cdef Record record = self.record
        cdef uint64_t capture
        if record is None:
            return 0
        self.record = None
        watch.note_dropped(record.capture)
        capture = record.capture
        with nogil:
            end_capture(self.ordinal, capture)
        close_capture(record)
        dispose_capture(BODY, self.ordinal, record.origin, record.capture)
        return 0

    def __reduce__(self):
        refuse_copy(self, "it stands for one node of one graph; call if_() or while_() for each")

    def __enter__(self) -> None:
        cdef CUDAGraph graph = self.graph
        if graph is None:
            refuse_unmade(self)
        with cython.critical_section(graph):
            graph.require_calm()
            if self.context is not None:
                raise RuntimeError("this condition's body was captured already; call if_() or while_() for each")
            if graph.record is None or self.body and self.generation != graph.generation:
                raise RuntimeError("a condition belongs into a capture: call it inside `with accelrt.graph(g)`")
            graph.busy += 1  # asking the flag for its address may run other threads, and so may beginning the capture
        try:
            self.enter_body()
        finally:
            count_busy(graph, -1)

    cdef int enter_body(self) except -1:
        cdef CUDAGraph graph = self.graph
        cdef Record record
        cdef Stream before
        cdef int code
        self.ordinal = graph.ordinal
        before = current_of(self.ordinal)
        check_stream(graph, before)
        if self.body:
            return self.begin_body(before)
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
        set_condition(self.ordinal, before.handle, self.condition, self.address)
        return self.begin_body(before)

    cdef int begin_body(self, Stream before) except -1:
        cdef CUDAGraph graph = self.graph
        cdef uintptr_t body = self.body
        cdef uint64_t capture = 0
        cdef int code = 0
        self.stream = stream_of(make_stream(self.ordinal), self.ordinal)
        if body == 0:
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
        self.record = record_capture(BODY, self.ordinal, self.stream.handle, capture, graph.kept, graph.record,
                                     graph.pool_id)
        try:
            graph.branches = (graph.branches or []) + [self]
            self.context, self.thread = StreamContext(self.stream), PyThread_get_thread_ident()
            self.context.__enter__()
        except BaseException:
            self.leave()
            raise
        return 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.context is None:
            raise RuntimeError("this condition's body is not entered; use it in a with statement")
        if self.context.open and self.thread != PyThread_get_thread_ident():
            raise RuntimeError("another thread captures the body of this condition; leave it there, where it goes on")
        try:
            self.context.__exit__(None, None, None)
            if kind is None:
                end_body(self)
        finally:
            self.leave()
            if self in (self.graph.branches or ()):
                self.graph.branches.remove(self)


def capture_body(CUDAGraph graph not None, uintptr_t body) -> AbstractContextManager[None, None]:
    """The context in which work is captured into a body of a condition that there is, of a graph that is being captured."""
    cdef Branch branch = Branch(graph, None, CONDITION_IF)
    branch.body, branch.generation = body, graph.generation
    return branch


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
    if branch.kind == CONDITION_WHILE and branch.body == 0:
        set_condition(branch.ordinal, branch.stream.handle, branch.condition, branch.address)
    count_busy(graph, 1)
    with nogil:
        code = registry.active().capture_end(branch.ordinal, branch.stream.handle, &body)
    count_busy(graph, -1)
    if code:
        raise_broken(record, code, "capture_end", ("stream", branch.stream))
    return 0
