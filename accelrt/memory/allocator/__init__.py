"""The caching allocator of device memory, in nogil code.

pool           the entry points: allocate, free, other streams' uses, empty; the making of pools; settings
fast_path      an allocation or free that needs one heap alone, under its lock
block_ops      splitting, merging and the steps that fast and slow path share
free_list      a heap's free blocks, best fit by size and order
address_table  from an address to the block that begins there
heap_stats     a heap's statistics and its peak budget
exclusive      the exclusive section: the pool's lock and those of its heaps; the sums of their statistics
miss           the retry ladder: the steps from a search that finds nothing to out of memory
metadata       the records of blocks, heaps and uses, recycled; which streams live as long as the process
stream_epochs  which freed blocks no work of their stream uses any more
pending        blocks freed while other streams may use them; offers, which waiting streams claim
event_queue    each stream's queue of events
private_pool   private pools, and the routes of captures and threads that allocate from them
routes         the entry points for private pools, as graphs and MemPools use them
suspended      which private pools sleep, and whether memory is theirs
suspend        sleep and wake: a pool's pages go back to the device and come again at the same addresses
exports        the pages of live memory that other processes map
imports        memory of other processes, and which streams use it
checkpoint     the state of a private pool, saved and restored
read_stats     a pool's statistics and its snapshot
event_ring     the history: a ring of events, the figures of tags
history_types  the records of the history
holdings       what a pool holds at one moment, by private pool, stream, pending event and stack
audit          checks of the identities of DESIGN.md
types          the records: settings, private pools, routes, blocks, segments, pages, heaps, the pool
stats          the counters
pool_settings  a pool's settings as the fast path reads them
sizes          sizes and their rounding
backing/       how a pool takes device memory and releases it
"""
