"""The cache of page-locked memory, in nogil code.

cache  allocate, free, empty; free lists; the driver's segments; blocks freed while in use; the identities
block  types: blocks, segments, the pool, its figures; the classes of sizes
"""
