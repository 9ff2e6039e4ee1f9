# Graphs: work that was captured once and is replayed.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.graphs.nodes cimport Change, Names, NodeChange, NodePast
from accelrt.runtime.lifetimes cimport Record
from accelrt.streams.stream cimport Stream

cdef enum:  # CUDAGraph.rare: why a replay is not the driver's call alone
    UNREADY = 1    # there is nothing to launch yet
    CALLBACKS = 2  # host functions run in it
    HOOKS = 4      # functions were registered to be called around it
    RANDOM = 8     # its random numbers begin where a generator is

cdef CUDAGraph source_of(CUDAGraph graph)
cdef uintptr_t node_id(object node) except? 0  # the driver's handle; 0 of a DefinitionNode that was taken out

cdef class CUDAGraph:
    cdef uintptr_t exec_             # the driver's instantiated graph; 0 before it is made and after reset
    cdef uintptr_t graph             # the driver's graph, where it is kept
    cdef readonly size_t node_count
    cdef readonly bint keep_graph
    cdef bint shown                  # a caller has the driver's handles, and may launch the graph by them
    cdef int rare                    # UNREADY | CALLBACKS | HOOKS; 0: replay is one call
    cdef int ordinal
    cdef uint64_t[2] pool_id
    cdef Record record               # of the capture under way, or None
    cdef int mode                    # of the capture
    cdef int busy                    # threads that begin or end its capture or one of a body, and may have released the GIL
    cdef int uses                    # threads that read its graph or upload it, and may have released the GIL
    cdef list branches               # the bodies of conditional nodes that are being captured, innermost last; or None
    cdef list kept                   # what the nodes point at that were captured, or that are instantiated
    cdef list base                   # what those captured point at, once others were added by hand; or None
    cdef dict by_node                # handles of nodes made by hand or changed -> role -> list of what they point at
    cdef dict made_nodes             # those of them that are instantiated; or None
    cdef uint64_t generation         # counts the graphs that it let go of, whose nodes are gone
    cdef uint64_t edits              # counts changes of its nodes by hand
    cdef uint64_t removals           # counts its nodes that were taken out
    cdef uint64_t reshapes           # and them, edges that were added or taken back, and graphs that children were given
    cdef uint64_t source_edits       # of the source, when it was instantiated
    cdef uint64_t made_removals      # of that graph whose nodes were instantiated, then, and
    cdef uint64_t made_reshapes      # where drivers pair those nodes with that graph's in an update
    cdef CUDAGraph source            # of what was instantiated from another graph's nodes: that one; or None
    cdef uint64_t source_generation  # of the source's graph
    cdef NodePast past               # of an instance: what nodes of the source did before they were changed since
    cdef list pasts                  # weak references to those of its instances; or None
    cdef dict within                 # handles of children in what is instantiated -> the host functions that each calls
    cdef Names bound                 # the last Bindings of the instance, or None
    cdef list rebinds                # what their names were given: by the name's place a MemoryChange or None; or None
    cdef dict kernels                # the Kernels among them, by the driver's handle; None until one is looked for
    cdef dict changes                # handles of nodes -> NodeChange: what they use since then; or None
    cdef list calls                  # the host functions among them
    cdef list sides                  # the memory among them
    cdef list capture_hooks          # RemovableHandles, before and after; a list of its own once there was one
    cdef list replay_hooks
    cdef list destruction_hooks
    cdef tuple registered            # State of each generator that captures may draw from
    cdef object random               # GraphStates of those that the last capture drew from; or None
    cdef uint64_t capture            # the driver's id of the last one, for who watches
    cdef bint counted                # as a capture that is open or about to begin
    cdef Stream stream               # the one that the capture began on, kept alive; a destructor may find it cleared
    cdef bint retains_pool           # the private pool counts this graph
    cdef dict launched_on            # handles of streams that it was replayed on -> the Stream that others own, or None
    cdef uintptr_t last_stream       # the one of them that it was replayed on last
    cdef bint uses_others_memory     # of no allocator of accelrt: kept until replays are over
    cdef object __weakref__

    cdef list things(self)           # all that the nodes of the graph point at
    cdef list note_made(self)
    cdef int take_things(self, list things) except -1
    cdef uintptr_t kept_graph(self) except 0
    cdef uintptr_t node_graph(self) except 0
    cdef CUDAGraph make_instance(self, uint64_t flags)
    cdef int follow(self, CUDAGraph source, dict within) except -1
    cdef int make_exec(self, bint updates) except -1
    cdef int note_exec(self, list things, dict within) except -1
    cdef int drop_exec(self) except -1
    cdef int drop_bound(self) except -1
    cdef CUDAGraph move_out(self)
    cdef bint holds_anything(self) noexcept
    cdef void end(self) noexcept
    cdef int require_calm(self) except -1  # before a thread counts itself to the busy ones
    cdef int require_unused(self) except -1      # before what others may be reading is dropped
    cdef int require_unreplayed(self) except -1  # before a change of what others may be replaying
    cdef int raise_used(self) except -1
    cdef void begin_change(self) noexcept
    cdef void end_change(self) noexcept
    cdef int abandon(self) noexcept
    cdef void keep_for_replays(self) noexcept
    cdef int drop_pool(self) noexcept
    cdef int leave_branches(self) noexcept
    cdef int leave_capture(self) noexcept
    cdef int count_out(self) noexcept
    cdef int begin_on(self, Stream stream, int mode, object pool) except -1
    cdef int open_on(self, Stream stream) except -1
    cdef int keep(self, list kept) except -1
    cdef dict own_kernels(self)
    # is_there: the node is known to be a kernel node that is still in the graph.
    cdef int change_kernel(self, CUDAGraph source, uintptr_t graph, uintptr_t handle, bint is_there, object kernel,
                           object grid, object block, object shared, object args, tuple options) except -1
    cdef int note_changes(self, list changes) except -1
    cdef int keep_change(self, object node, NodeChange change, NodeChange before) except -1
    cdef bint finish_change(self, Change change) except -1
    cdef int undo_change(self, object node, NodeChange change) except -1
    cdef bint let_go(self, Change before, Change after, uintptr_t stream) except -1
    cdef int update_from(self, CUDAGraph to) except -1
    cdef int take_over(self, CUDAGraph other, bint follows, dict within) except -1
    cdef int require_free(self) except -1
    cdef int require_alike(self, CUDAGraph other) except -1
    cdef int finish_hooked(self) except -1
    cdef int require_ready(self) except -1
    cdef int replay_slow(self, uintptr_t handle, Names given) except -1
    cdef int launch(self, uintptr_t handle, Names given) except -1
    cdef int launch_random(self, uintptr_t handle, Names given) except -1
    cdef int refuse_sleeping(self) except -1
    cdef int note_stream(self, uintptr_t handle) except -1
    cdef list own_capture_hooks(self)
    cdef list own_replay_hooks(self)
