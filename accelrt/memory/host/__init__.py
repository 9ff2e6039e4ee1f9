"""The cache of page-locked memory, in nogil code.

pool    the entry points: allocate, free, empty; the identities
heap    free lists, splitting and merging
memory  segments taken from the driver and given back
uses    blocks that were freed while a stream may still use them
block   types: blocks, segments, the pool
stats   types: the figures
sizes   the classes of sizes
"""
