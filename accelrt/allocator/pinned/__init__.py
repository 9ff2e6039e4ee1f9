"""The cache of page-locked memory, in nogil code.

pool   the entry points: allocate, free, empty; the identities
heap   free lists, splitting and merging; the driver's segments; blocks freed while in use
block  types: blocks, segments, the pool, its figures; the classes of sizes
"""
