"""The caching allocator of device memory, in nogil code.

pool             the entry points: allocate, free, empty; a pool's life
fast_path        an allocation or free that one heap serves alone, under its lock
block_ops        splitting, merging and the steps that fast and slow path share
free_list        a heap's free blocks, best fit by size and order
address_table    from an address to its heap, and to the block that begins there
heap_stats       a heap's part of the figures, and its peak budget
exclusive        the pool's lock and those of its heaps; the figures of all of them
miss             the steps from a search that finds nothing to out of memory
metadata         the records of blocks, heaps and uses, recycled
stream_epochs    what each stream has finished with
stream_registry  streams that live as long as the process; the per-thread default stream
cross_stream     memory that other streams use; memory freed as of an event
pending          blocks freed while other streams may use them; blocks handed over
event_queue      each stream's queue of events
private_pool     private pools, and the routes that lead there
routes           private pools as graphs and MemPools use them
checkpoint       the state of a private pool, kept and restored
read_stats       a pool's figures and its snapshot
audit            the identities of DESIGN.md, walked
types            the records: settings, private pools, routes, blocks, segments, pages, heaps, the pool
stats            the counters
policy           the settings as a pool reads them; the budget for stitching
sizes            sizes, and the arithmetic on them
backing/         how a pool takes device memory and gives it back
"""
