# How far each stream has finished with the memory that it freed, so that its free pages may serve other streams.  All in
# the exclusive section.
from accelrt.allocator.private.private_types cimport Replay
from accelrt.allocator.types cimport Block, Heap, Pool

cdef void poll_progress(Pool* pool, Heap* heap) noexcept nogil  # updates heap.quiescent_epoch; never waits
cdef void poll_others(Pool* pool, Heap* heap) noexcept nogil  # polls the heaps whose pages it may take
cdef void poll_all(Pool* pool) noexcept nogil  # polls all but graphs' heaps, and the replays of destroyed graphs
# Streams that may still run a replay of a destroyed graph, to wait for one by one where a wait for the device is refused.
cdef Replay* next_replay(Pool* pool) noexcept nogil  # the next one that is not marked waited; NULL: none
cdef void mark_replay(Pool* pool, Replay* found) noexcept nogil  # records its progress event; sets recorded
cdef void drop_waited(Pool* pool, const Replay* waited) noexcept nogil  # after the wait for it succeeded
cdef void drop_progress_events(Pool* pool) noexcept nogil  # to the spare entries
# Around a synchronisation with the device, which runs outside the exclusive section.  What is freed meanwhile gets a later
# epoch: work that was enqueued after the synchronisation began may use it.
cdef void close_epochs(Pool* pool) noexcept nogil  # before
cdef void mark_all_quiescent(Pool* pool) noexcept nogil    # after
cdef void cancel_device_wait(Pool* pool) noexcept nogil   # after it failed or was given up
