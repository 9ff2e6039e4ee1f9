"""Private pools: memory apart, for captures, MemPools and threads inside use_mem_pool.

private_types  the records: private pools, routes, replays, suspensions, functions of libraries
routes         the entry points, as graphs and MemPools use them; a pool's state, saved and restored
sleep          sleep and wake: pages go back to the device and come again at the same addresses; contents are
               kept

DESIGN.md says when their memory goes back, and how they sleep and wake.
"""
