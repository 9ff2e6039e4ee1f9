"""Private pools: memory apart, for captures, MemPools and threads inside use_mem_pool.

private_types  the records: private pools, routes, replays, suspensions, functions of libraries
private_pool   private pools, and the routes of captures and threads that allocate from them
routes         the entry points, as graphs and MemPools use them
suspended      the records of pools that sleep: whether memory is theirs, the contents that the host keeps
suspend        sleep and wake: a pool's pages go back to the device and come again at the same addresses
checkpoint     the state of a private pool, saved and restored

DESIGN.md says when their memory goes back, and how they sleep and wake.
"""
