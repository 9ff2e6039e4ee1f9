"""The caching allocator of device memory, in nogil code.

pool           the entry points: allocate, free, other streams' uses, empty
device_pools   each device's pool: its making, the settings that are wanted, what is recorded
address_table  from an address to the block that begins there
exclusive      the exclusive section: the pool's lock and those of its heaps; the sums of their statistics
miss           the retry ladder: the steps from a search that finds nothing to out of memory
metadata       the records of blocks, heaps and uses, recycled; which streams live as long as the process
stream_epochs  which freed blocks no work of their stream uses any more
pending        blocks freed while other streams may use them; offers, which waiting streams claim
interprocess   memory between processes: which pages others map, and which streams use theirs
read_stats     a pool's statistics and its snapshot
holdings       what a pool holds at one moment, by private pool, stream, pending event and stack
audit          checks of the identities of DESIGN.md
event_ring     the history: a ring of events, the figures of tags
history_types  the records of the history
types          the records: blocks, segments, pages, heaps, the pool
stats          the counters
pool_settings  a pool's settings, and how the fast path reads them
sizes          sizes and their rounding
backing/       how a pool takes device memory and releases it
private/       private pools: their routes, their sleep, their checkpoints
external/      other allocators behind the same functions
pinned/        the cache of page-locked memory
settings/      the settings string
inline/        headers that the fast path is made of: free lists, blocks, a heap's statistics
"""
