"""Memory as objects, copies, and arrays: a shape, a type and strides, no arithmetic beyond fill and copy.

buffer      Buffer and PinnedBuffer, which own memory; the user's own memory, page-locked
operand     the sides of copies: memory as callers give it, and who is told of its use
copy        copies and fills; use(), by which the race detector is told of others' work
l2_cache    a context in which a stream's work keeps some memory in the L2 cache
cuda_array  the CUDA Array Interface, version 3, read with suspicion
layout      shapes and strides as numbers: contiguity, reshaping, bounds
array       Array and its views
strided     copies and fills of any strides
dlpack      DLPack both ways, and its exchange API; dlpack_abi has its structures
create      arrays with memory of their own, or of others; what an Array's methods copy with
"""
