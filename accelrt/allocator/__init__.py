"""The caching allocator of device memory, in nogil code.

pool           the devices' pools: allocate, free, other streams' uses; memory that other processes have
heaps          records of heaps, segments and blocks; private pools; the exclusive section; sums of
               statistics; the table from an address to the heap that it belongs to
miss           the retry ladder, from a search that finds nothing to out of memory; blocks freed while in use
readers        what a pool holds, for Python: statistics, a snapshot, holdings by pool, stream and stack
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
