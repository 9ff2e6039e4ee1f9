"""Other memory for what is instantiated: where its nodes name memory, and what they are given in its place.

CUDAGraph.bound is the last Bindings of an instance, which stay with it when the GraphParameters that made them are gone.
"""
cimport cython
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from accelrt.arrays.array cimport Array
from accelrt.arrays.copy cimport look_again, Operand, read_operand
from accelrt.core.process cimport ForkSafeLock
from accelrt.driver.node_params cimport NODE_KERNEL, NodeParams
cimport accelrt.driver.registry as registry
from accelrt.graphs.edits import edit, params_to_bind
from accelrt.graphs.graph cimport CUDAGraph, source_of, UNREADY
from accelrt.graphs.nodes cimport (
    copy_arguments, is_made, MemoryChange, Names, NodeChange, params_of, read_arguments, recorded,
)
from accelrt.runtime.access cimport Access, begin_use, end_use
cimport accelrt.runtime.access as watch
from accelrt.runtime.lifetimes cimport dispose, drain, GRAPH_EXEC, keep_side, pool_of, Record, Side, side_ordinal
from accelrt.status cimport raise_status, refuse_copy
from accelrt.streams.stream cimport current_handle


cdef struct BoundNode:     # that names memory
    uintptr_t node
    NodeParams params      # as the instance has them; of a kernel their arguments are a copy of its own
    bint touched           # by the change under way

cdef struct BoundName:     # memory that has a name
    uintptr_t address      # that was captured
    size_t nbytes
    size_t alignment       # of that address, as far as kernels rely on it
    int device
    bint writes            # some node writes to it
    uintptr_t current      # of what it is now
    int first, last        # of its words

cdef struct BoundWord:     # an address in its params
    BoundNode* node
    uintptr_t* place
    uintptr_t before       # what a change under way found there
    size_t offset          # from where the memory begins


def memory_of(memory: object, str name) -> tuple[int, int, int]:
    """(address, bytes, device or -1) of memory that is no pool's of graphs."""
    cdef Operand side
    cdef Record record = recorded()
    read_operand(&side, memory, name, False)
    if not side.ordered:
        raise TypeError(f"{name} of type {type(memory).__name__} is ordinary host memory; name device memory or page-locked "
                        "memory")
    if side.nbytes == 0:
        raise ValueError(f"{name} has no bytes")
    keep_side(record, side.source, None, side.ordinal, side.block)
    if record.pools is not None:
        raise ValueError(f"{name} is memory of a graph's pool, which the capture may have used for other things too")
    return side.address, side.nbytes, side.ordinal


def nodes_to_bind(CUDAGraph graph not None) -> list[tuple[GraphNode, object]]:
    """The nodes of what is replayed, each with its params; of a child with a list of the same, of others None."""
    cdef CUDAGraph source = source_of(graph)
    cdef NodeChange change
    with cython.critical_section(graph, source):
        state = state_of(graph)
        for change in (graph.changes or {}).values():
            if graph.source is not None and change.is_apart:
                raise RuntimeError("nodes of the instance were changed by hand; name its memory before that")
        require_as_made(graph)
    if graph.exec_ == 0:
        graph.instantiate()
    nodes = edit(source, None, params_to_bind, source)
    with cython.critical_section(graph, source):
        require_state(graph, state)
        return [(node, params) for node, params in nodes if is_made(source.by_node, graph.made_nodes, node.id)]


cdef int require_state(CUDAGraph graph, tuple state) except -1:
    if state_of(graph) != state:
        raise RuntimeError("nodes of the graph were changed by another thread just now; make other GraphParameters")
    return 0


cdef int require_as_made(CUDAGraph graph) except -1:
    # The instance does what the nodes say that it was made of.
    cdef CUDAGraph source = graph if graph.source is None else graph.source
    if graph.exec_ and graph.made_removals != source.removals:
        raise RuntimeError("nodes of the graph were taken out since it was instantiated; instantiate it anew")
    if graph.source is not None and graph.source_edits != source.edits:
        raise RuntimeError("nodes of the definition were changed since it was instantiated; instantiate it anew")
    return 0


def blocks_of(CUDAGraph graph not None) -> set[int]:
    """Returns where each memory begins that the nodes of a graph are known to use."""
    with cython.critical_section(graph):
        things = graph.things()
    return {(<Side>thing).address for thing in things or () if isinstance(thing, Side)}


# stub: def graph_state(graph: CUDAGraph) -> tuple[int, int, int, int]: ...
def graph_state(CUDAGraph graph not None):
    """Counts what makes its nodes others than those that were looked at."""
    with cython.critical_section(graph):
        return state_of(graph)


cdef tuple state_of(CUDAGraph graph):
    cdef CUDAGraph source = graph if graph.source is None else graph.source
    return graph.generation, graph.edits, source.generation, source.removals


cdef class Bindings(Names):
    """The places where an instance's nodes name memory, so that they can be given other memory.

    Arguments:
        parameters: tuples (name, address, bytes, device, uses).
        state: graph_state before the nodes were looked at.
    """

    cdef ForkSafeLock turn        # giving memory and replaying are one step
    cdef uint64_t[4] state        # graph_state, as long as the nodes are as they are known here
    cdef list spares              # by the name's place: a MemoryChange that is used no more, or None
    cdef list room                # for the next call's MemoryChanges, or None
    cdef list parameters          # and those of other Bindings before, which gave the instance other memory there
    cdef dict serials             # of nodes that were changed by hand -> when, as of the beginning
    cdef uintptr_t handle         # of the driver's graph whose nodes they are
    cdef BoundNode* nodes
    cdef BoundNode** touched      # by a change under way, the first
    cdef int touched_count        # of them
    cdef BoundWord* words         # one name's after the other's
    cdef int node_count
    cdef int word_count
    cdef dict places              # name -> its index
    cdef tuple labels             # the names
    cdef BoundName* names
    cdef int name_count
    cdef object __weakref__

    def __init__(
        self, CUDAGraph graph not None, parameters: Sequence[tuple[object, ...]], state: tuple[int, int, int, int],
    ) -> None:
        cdef CUDAGraph source = source_of(graph)
        if self.turn is not None:
            raise RuntimeError("these Bindings are made already; make others")
        self.turn = ForkSafeLock()
        with cython.critical_section(graph, source):
            graph.require_calm()
            require_state(graph, state)
            self.state[0], self.state[1], self.state[2], self.state[3] = state
            self.handle = graph.node_graph()
            require_as_made(graph)
            graph.busy += 1  # what was bound before may let other threads in as it dies
            source.uses += 1
            try:
                self.bind(graph, list(parameters))
            finally:
                graph.busy -= 1
                source.uses -= 1

    def __dealloc__(self):
        cdef int index
        for index in range(self.node_count):
            free(self.nodes[index].params.arguments)
        free(self.nodes)
        free(self.touched)
        free(self.words)
        free(self.names)

    def __reduce__(self):
        refuse_copy(self, "they are of one graph; make others")

    cdef int bind(self, CUDAGraph graph, list parameters) except -1:
        cdef list rebinds
        self.serials = {node: (<NodeChange>change).serial for node, change in (graph.changes or {}).items()}
        self.places = {parameter[0]: index for index, parameter in enumerate(parameters)}
        self.labels = tuple([parameter[0] for parameter in parameters])
        self.parameters = parameters
        if graph.bound is not None:
            self.parameters += moved_elsewhere(<Bindings>graph.bound, graph.rebinds, self.parameters)
        self.allot(self.parameters)
        self.spares, rebinds = [None] * self.name_count, [None] * self.name_count
        if graph.bound is not None:
            self.take_over(<Bindings>graph.bound, graph.rebinds, rebinds)
        graph.bound, graph.rebinds = self, rebinds
        return 0

    cdef int allot(self, list parameters) except -1:
        # parameters: (name, address, bytes, device, uses)
        cdef dict known = {}
        cdef int name, index
        for _, _, _, _, uses in parameters:
            for use in uses:
                known.setdefault(use.node, len(known))
                self.word_count += 1
        self.nodes = <BoundNode*>calloc(len(known) + 1, sizeof(BoundNode))
        self.touched = <BoundNode**>calloc(len(known) + 1, sizeof(BoundNode*))
        self.words = <BoundWord*>calloc(self.word_count + 1, sizeof(BoundWord))
        self.names = <BoundName*>calloc(len(parameters) + 1, sizeof(BoundName))
        if NULL in (self.nodes, self.touched, self.words, self.names):
            raise MemoryError("no host memory for the names of a graph's memory")
        self.name_count = len(parameters)
        for node, index in known.items():
            self.read(&self.nodes[index], node)
            self.node_count += 1
        index = 0
        for name, (_, address, nbytes, device, uses) in enumerate(parameters):
            self.names[name].address = self.names[name].current = address
            self.names[name].nbytes, self.names[name].device = nbytes, device
            self.names[name].alignment = min(address & -address, 256)
            self.names[name].first, self.names[name].last = index, index + len(uses)
            for use in uses:
                self.names[name].writes = self.names[name].writes or "w" in use.access
                self.words[index].node = &self.nodes[<int>known[use.node]]
                self.words[index].place = word_of(self.words[index].node, use.argument, use.word)
                self.words[index].offset = use.offset
                index += 1
        return 0

    cdef int take_over(self, Bindings before, list rebinds_before, list rebinds) except -1:
        # The memory that the instance was given under the names of others.
        cdef const BoundWord* word
        cdef const BoundName* moved
        cdef BoundNode* node
        cdef int index, place
        for place in range(before.name_count):
            moved = &before.names[place]
            for index in range(moved.first, moved.last if moved.current != moved.address else moved.first):
                word = &before.words[index]
                node = self.find(word.node.node)
                # Else by hand since, which took it back.
                if node != NULL and self.serials.get(node.node) == before.serials.get(node.node):
                    same_place(word, node)[0] = word.place[0]
            for index in range(self.name_count):
                if moved.address == self.names[index].address and moved.nbytes == self.names[index].nbytes:
                    self.names[index].current, rebinds[index] = moved.current, rebinds_before[place]
        return 0

    cdef object work_of_node(self, uintptr_t node, NodeChange change):
        cdef BoundNode* bound = self.find(node)
        if bound == NULL or self.serials.get(node) != (None if change is None else change.serial):
            return None
        if bound.params.type == NODE_KERNEL:
            return read_arguments(bound.params.function, <const void**>bound.params.arguments)
        return params_of(&bound.params)

    cdef BoundNode* find(self, uintptr_t node) noexcept:
        cdef int index
        for index in range(self.node_count):
            if self.nodes[index].node == node:
                return &self.nodes[index]
        return NULL

    cdef int read(self, BoundNode* bound, uintptr_t node) except -1:
        cdef NodeParams* params = &bound.params
        cdef int code = registry.active().graph_node_params(self.handle, node, params)
        bound.node = node
        if code:
            raise_status(code, "graph_node_params", ("graph", self.handle, "node", node))
        if params.type == NODE_KERNEL:
            params.arguments = copy_arguments(params.function, params.arguments)
        return 0

    cdef int rebind(self, CUDAGraph graph, dict memory, bint replays) except -1:
        # Gives the instance, whose memory these name, other memory under some names, and replays it in the same turn.
        self.turn.take(True, -1)
        try:
            if not replays or len(memory):
                self.give(graph, memory)
            if replays:
                with cython.critical_section(graph):
                    graph.replay_slow(current_handle(graph.ordinal), self if len(memory) else None)
        finally:
            self.turn.give_back()
        return 0

    cdef int require_bound(self, object graph) except -1:
        # The instance's nodes are those that were looked at, and name the memory that was given here.
        cdef CUDAGraph bound = graph
        if bound.bound is not self or bound.generation != self.state[0] or bound.edits != self.state[1]:
            raise_changed()
        return 0

    cdef int give(self, CUDAGraph graph, dict memory) except -1:
        cdef CUDAGraph source = source_of(graph)
        cdef list changes = self.take_room(len(memory))
        cdef Access access
        cdef bint left = False
        cdef PyObject* name
        cdef PyObject* thing
        cdef Py_ssize_t index = 0, entry = 0
        cdef int place = 0  # names mostly come in their order
        while PyDict_Next(memory, &entry, &name, &thing):
            if place >= len(self.labels) or <str>PyTuple_GET_ITEM(self.labels, place) != <str>name:
                place = self.place_of(<str>name)
            changes[index] = self.look(<str>name, <object>thing, place)
            place, index = place + 1, index + 1
        with cython.critical_section(graph, source):
            self.begin(graph, source)
        begin_use(&access, gives_owner, <PyObject*>changes)
        try:
            left = self.put_memory(graph, changes)
        finally:
            end_use(&access)
            with cython.critical_section(graph, source):
                graph.end_change()
                source.uses -= 1
        self.room = changes
        if left:
            drain()
        return 0

    cdef list take_room(self, Py_ssize_t count):
        # Room for the changes of a call; none is left for one within it, which the caller's code may make.
        cdef list room = self.room
        self.room = None
        return room if room is not None and len(room) == count else [None] * count

    cdef int begin(self, CUDAGraph graph, CUDAGraph source) except -1:
        graph.require_unreplayed()
        if graph.exec_ == 0:
            raise RuntimeError("the graph is not instantiated any more; make other GraphParameters")
        source.require_calm()
        self.require_bound(graph)
        if (source.generation != self.state[2] or source.removals != self.state[3] or source.graph != self.handle
                or source.record is not None):
            raise_changed()
        graph.own_kernels()
        graph.begin_change()
        source.uses += 1
        return 0

    cdef bint put_memory(self, CUDAGraph graph, list changes) except -1:
        # Answers whether something waits for streams.  What there was is kept until the driver took all.
        cdef MemoryChange change
        cdef list rebinds = graph.rebinds
        cdef Py_ssize_t index
        try:
            for index in range(len(changes)):
                change = <MemoryChange>PyList_GET_ITEM(changes, index)
                self.look_once_more(change)
                change.before, rebinds[change.place] = <MemoryChange>rebinds[change.place], change
            graph.note_changes(changes)
            self.change(graph, changes)
        except BaseException:
            for change in changes:
                if rebinds[change.place] is change:
                    rebinds[change.place] = change.before
            raise
        return self.keep_memory(graph, changes)

    cdef bint keep_memory(self, CUDAGraph graph, list changes) except -1:
        # The driver took all.
        cdef MemoryChange change, before
        cdef BoundName* bound
        cdef Py_ssize_t index
        cdef bint left = False
        for index in range(len(changes)):
            change = <MemoryChange>PyList_GET_ITEM(changes, index)
            bound = &self.names[change.place]
            watch.note_moved(graph.capture, bound.current, bound.nbytes, change.address)
            bound.current = change.address
            before = <MemoryChange>change.before
            if before is not None:
                if before.is_others:  # else allocators of accelrt know that replays use it
                    left = graph.finish_change(change) or left
                change.before = before.keeper = before.pool = None
                self.spares[change.place] = before
            changes[index] = None
        return left

    cdef int look_once_more(self, MemoryChange change) except -1:
        # It is as when it was read, and nobody put it to sleep.
        cdef Operand side
        cdef object name = <object>PyTuple_GET_ITEM(self.labels, change.place)
        side.address = change.address
        look_again(&side, change.keeper, name)
        return watch.refuse_sleeping(change.address, name)

    cdef int place_of(self, str name) except -1:
        place = self.places.get(name)
        if place is None:
            raise TypeError(f"the graph has no memory named {name!r}; it has {', '.join(self.places)}")
        return place

    cdef MemoryChange look(self, str name, object memory, int place):
        # What is given for a name, and what it keeps alive.
        cdef MemoryChange change
        cdef Operand side
        cdef const BoundName* bound = &self.names[place]
        read_operand(&side, memory, name, bound.writes)
        if (not side.ordered or side.ordinal != bound.device or side.nbytes < bound.nbytes
                or side.address & bound.alignment - 1):
            raise_unfit(name, &side, bound)
        change = <MemoryChange>self.spares[place]
        if change is None:
            change = MemoryChange.__new__(MemoryChange)
        else:
            self.spares[place] = None
        change.keeper, change.address, change.place = memory, side.address, place
        change.ordinal, change.block = side_ordinal(side.ordinal, side.block), side.block
        change.pool = pool_of(side.ordinal, side.block)
        return change

    cdef int change(self, CUDAGraph graph, list changes) except -1:
        # Where the driver refuses one, those before it get back what they had.
        cdef int done = 0, code, refused
        cdef bint mixed = False
        cdef str lost = ""
        self.write(changes, True)
        with nogil:
            code = self.put(graph, self.touched_count, &done)
        if code == 0:
            return 0
        self.write(changes, False)
        refused = done
        with nogil:
            mixed = self.put(graph, refused, &done) != 0
        if mixed:
            lost = "nodes before it could not be changed back: instantiate the graph anew"
            dispose(GRAPH_EXEC, graph.ordinal, graph.exec_)
            graph.exec_, graph.rare = 0, graph.rare | UNREADY
        raise_status(code, "graph_node_set", ("graph_exec", graph.exec_, "node", self.touched[refused].node), lost)

    cdef void write(self, list changes, bint wanted) noexcept:
        # The addresses of the names that change: those wanted, or those that there were; and which nodes have them.
        cdef MemoryChange change
        cdef const BoundName* bound
        cdef BoundWord* word
        cdef Py_ssize_t each
        cdef int index
        self.touched_count = 0
        for each in range(len(changes)):
            change = <MemoryChange>PyList_GET_ITEM(changes, each)
            bound = &self.names[change.place]
            for index in range(bound.first, bound.last):
                word = &self.words[index]
                if wanted:
                    word.before = word.place[0]
                word.place[0] = change.address + word.offset if wanted else word.before
                if not word.node.touched:
                    word.node.touched = True
                    self.touched[self.touched_count] = word.node
                    self.touched_count += 1
        for index in range(self.touched_count):
            self.touched[index].touched = False

    cdef int put(self, CUDAGraph graph, int count, int* out_done) noexcept nogil:
        # The first of the nodes that are touched; out_done is the one that was refused.
        cdef int index, code = 0
        for index in range(count):
            code = registry.active().graph_node_set(
                graph.ordinal, self.handle, graph.exec_, self.touched[index].node, &self.touched[index].params)
            if code:
                out_done[0] = index
                break
        return code


cdef int raise_changed() except -1:
    raise RuntimeError("nodes of the graph were changed, or it was instantiated anew, since its memory was named; make "
                       "other GraphParameters")


cdef int raise_unfit(str name, const Operand* side, const BoundName* bound) except -1:
    if not side.ordered or side.ordinal != bound.device:
        raise ValueError(f"{name} is on device {side.ordinal}, and what was captured on {bound.device} "
                         "(-1 is page-locked memory)")
    if side.nbytes < bound.nbytes:
        raise ValueError(f"{name} has {side.nbytes} bytes; what was captured has {bound.nbytes}")
    raise ValueError(f"{name} begins at {side.address:#x}, less aligned than what was captured, at {bound.address:#x}")


cdef bint gives_owner(const Access* access, PyObject* owner) noexcept:
    # For begin_use, whose first is a list of MemoryChanges, or None for those that the driver has.
    cdef MemoryChange change
    for change in <list>access.first:
        if change is not None and (<PyObject*>change.keeper == owner or (
                isinstance(change.keeper, Array) and <PyObject*>(<Array>change.keeper).base == owner)):
            return True
    return False


cdef list moved_elsewhere(Bindings before, list rebinds, list parameters):
    # Lists the memory that the instance was given there and that is not named here.
    cdef list elsewhere = []
    cdef int index
    for index in range(before.name_count):
        _, address, nbytes, _, _ = parameter = before.parameters[index]
        if rebinds[index] is None:
            continue
        for name, begin, size, _, _ in parameters if before.names[index].current != address else ():
            if (begin, size) != (address, nbytes) and begin < address + nbytes and address < begin + size:
                raise ValueError(f"{name} is a part of memory in whose place other GraphParameters gave the graph other "
                                 "memory; name all of it, or instantiate the graph anew")
        if all([(begin, size) != (address, nbytes) for _, begin, size, _, _ in parameters]):
            elsewhere.append((None, *parameter[1:]))
    return elsewhere


cdef uintptr_t* same_place(const BoundWord* word, BoundNode* node) noexcept:
    # In the params of a node that are known twice.
    if word.node.params.type == NODE_KERNEL:
        return <uintptr_t*>(<char*>node.params.arguments + (<char*>word.place - <char*>word.node.params.arguments))
    return <uintptr_t*>(<char*>&node.params + (<char*>word.place - <char*>&word.node.params))


cdef uintptr_t* word_of(BoundNode* node, object argument, size_t word) except NULL:
    if argument == "dst":
        return &node.params.dst
    if argument == "src":
        return &node.params.src
    return <uintptr_t*>(<char*>node.params.arguments[<size_t>argument] + word)


cdef class BoundGraph:
    """A graph whose memory has names: what GraphParameters add to a mapping."""

    cdef CUDAGraph graph
    cdef Bindings bindings

    def _bind(
        self, CUDAGraph graph not None, parameters: Sequence[tuple[object, ...]], state: tuple[int, int, int, int],
    ) -> None:
        """Names the graph's memory; the arguments are those of Bindings."""
        self.bindings = Bindings(graph, parameters, state)
        self.graph = graph

    def rebind(self, **memory: Memory) -> None:
        """Has later replays use other memory under some of the names (cuGraphExecKernelNodeSetParams and its kin).

        Arguments:
            memory: of the same device, with at least as many bytes, and as aligned as what was captured.  It is kept
                alive until the name is given other memory and replays that use it are past.  Memory that two names share,
                or that the graph uses otherwise too, is the caller's to order.
        Raises:
            TypeError, ValueError: there is no such name, or the memory does not fit; nothing is changed.
            CudaError: the driver refused; the graph is as before.
            RuntimeError: another thread uses the graph, or its nodes were changed since these names were given, or other
                GraphParameters were made of it.
        """
        self.require_made().rebind(self.graph, memory, False)

    def replay(self, **memory: Memory) -> None:
        """Replays the graph with other memory: rebind, then CUDAGraph.replay.

        Arguments:
            memory: as of rebind; none replays with what there is.
        Raises:
            TypeError, ValueError, CudaError, RuntimeError: as of rebind.
        """
        self.require_made().rebind(self.graph, memory, True)

    cdef Bindings require_made(self):
        if self.bindings is None:
            raise RuntimeError("no graph's memory is named here; make GraphParameters(graph, x=x)")
        return self.bindings
