"""Memory as objects, and copies.

buffer      Buffer and PinnedBuffer, which own memory; the user's own memory, page-locked
operand     the sides of copies: memory as callers give it, and who is told of its use
copy        copies and fills; use(), by which the race detector is told of others' work
l2_cache    a context in which a stream's work keeps some memory in the L2 cache
cuda_array  the CUDA Array Interface, version 3, read with suspicion
"""
