"""What a captured graph holds of the driver: its graph, where that is kept, and what is instantiated from it."""
cimport cython
from libc.stdint cimport uintptr_t

from accelrt.runtime.release_queue cimport GRAPH, GRAPH_EXEC, dispose, give_back
cimport accelrt.driver.registry as registry
from accelrt.graphs.nodes import list_edges, list_nodes, write_dot
from accelrt.graphs.nodes cimport instantiate
from accelrt.memory.allocator.routes cimport PrivateStats, read_private
from accelrt.memory.mempool cimport figures_of
from accelrt.status cimport raise_status, refuse_copy
from accelrt.streams.stream cimport Stream, stream_of


@cython.no_gc_clear  # as CUDAGraph
cdef class HeldGraph:
    """What CUDAGraph stands on: looking at a graph, instantiating it, handing it out."""

    def __cinit__(self):
        self.rare = UNREADY

    def __reduce__(self):
        refuse_copy(self, "it owns the driver's graph; capture another one")

    cdef int require_calm(self) except -1:
        if self.busy:
            raise RuntimeError("another thread begins, ends or drops a capture of this CUDAGraph just now; give each "
                               "thread a CUDAGraph of its own, or let one of them use it at a time")
        return 0

    cdef int make_exec(self) except -1:
        cdef uintptr_t graph = self.graph, made = 0
        cdef bint keep = self.keep_graph
        cdef int code, left = 0
        if not keep:
            self.graph = 0  # another thread may reset this one meanwhile
        with nogil:
            code = instantiate(self.ordinal, graph, &made)
            if not keep:
                left = give_back(GRAPH, self.ordinal, graph)
        if left:
            dispose(GRAPH, self.ordinal, graph)
        if code:
            raise_status(code, "graph_instantiate", ("device", self.ordinal))
        if self.exec_:
            dispose(GRAPH_EXEC, self.ordinal, self.exec_)
        self.exec_ = made
        self.rare &= ~UNREADY
        return 0

    def instantiate(self):
        """Makes a graph that was kept ready to replay (cuGraphInstantiate); anew, where it was ready already.

        Raises:
            RuntimeError: this CUDAGraph was not made with keep_graph=True, or holds no capture.
            CudaError: the driver refused.
        """
        self.raw_cuda_graph()
        self.make_exec()

    def upload(self, stream=None):
        """Puts what replays need onto the device now rather than with the first replay (cuGraphUpload).

        Arguments:
            stream: Stream in whose order it goes; None is the current one of the graph's device.
        Raises:
            RuntimeError: nothing is captured.
            CudaError: the driver refused.
        """
        cdef Stream chosen
        cdef int code
        if self.exec_ == 0:
            self.raw_cuda_graph()
            self.make_exec()
        chosen = stream_of(stream, self.ordinal)
        with nogil:
            code = registry.active().graph_upload(self.ordinal, self.exec_, chosen.handle)
        if code:
            raise_status(code, "graph_upload", ("graph_exec", self.exec_, "stream", chosen.handle))

    def pool(self):
        """The handle of the graph's memory pool, to pass to other captures.

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

    def memory_stats(self):
        """What the graph's pool holds, in the words of MemPool.stats: "reserved_bytes.current" is what it keeps from
        others.  Graphs that share a pool all count all of it."""
        cdef PrivateStats stats
        with nogil:
            stats = read_private(self.ordinal, self.pool_id[0], self.pool_id[1], False)
        return figures_of(stats)

    @property
    def is_captured(self):
        """Whether it holds a capture, instantiated or kept."""
        return self.record is None and (self.exec_ != 0 or self.graph != 0)

    def raw_cuda_graph(self):
        """The driver's graph (CUgraph) as int; valid until reset() and no longer than this object.

        Raises:
            RuntimeError: this CUDAGraph was not made with keep_graph=True, or holds no graph.
        """
        if self.graph and self.record is None:
            self.shown = True
            return self.graph
        if not self.keep_graph:
            raise RuntimeError("the driver's graph was not kept; make it with CUDAGraph(keep_graph=True)")
        raise RuntimeError("no graph is kept: capture first; what update() replaced is gone")

    def raw_cuda_graph_exec(self):
        """The driver's instantiated graph (CUgraphExec) as int; valid until reset() or instantiate(), and no longer
        than this object.

        Raises:
            RuntimeError: it is not instantiated.
        """
        if self.exec_ == 0:
            raise RuntimeError("no instantiated graph: capture first; with keep_graph=True call instantiate() too")
        self.shown = True
        return self.exec_

    def nodes(self):
        """The nodes of a graph that was kept, as a list of GraphNode, in the order that the driver gives.

        Raises:
            RuntimeError: as raw_cuda_graph.
        """
        return list_nodes(self.raw_cuda_graph())

    def edges(self):
        """The dependencies in a graph that was kept, as a list of (id, id of the node that comes after it).

        Raises:
            RuntimeError: as raw_cuda_graph.
        """
        return list_edges(self.raw_cuda_graph())

    def enable_debug_mode(self):
        """Lets the next capture keep its graph, as keep_graph=True would, so that it can be dumped."""
        self.keep_graph = True

    def debug_dump(self, debug_path, bint verbose=False):
        """Writes a drawing of a graph that was kept, in the language of Graphviz (cuGraphDebugDotPrint).

        Arguments:
            debug_path: str or os.PathLike, the file to write.
            verbose: bool, with every parameter of every node that the driver tells.
        Raises:
            RuntimeError: as raw_cuda_graph.
            CudaError: the file cannot be written.
        """
        write_dot(self.raw_cuda_graph(), debug_path, verbose)
