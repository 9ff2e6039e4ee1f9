"""Memory as objects, copies, and arrays: a shape, a type and strides, no arithmetic beyond fill and copy.

array       Buffer and PinnedBuffer, which own memory; Array and its views
copy        copies and fills of bytes and of elements of any strides; their sides, as callers give them;
            use(), by which the race detector is told of others' work
exchange    arrays with memory of their own, or of others; DLPack both ways; the user's own memory,
            page-locked; many copies at once
copy_options  the options of these, each copy's own
creation    arrays of ones and of ranges
managed     managed memory: moved, discarded, advised on; what is named by a handle, and copies of it
texture_memory  CUDA arrays, and mipmaps of them
textures    how kernels read and write these: textures and surfaces
elements    elements as Python's numbers and in repr(); what operators that Arrays do not have say
dlpack_abi  the structures of DLPack, in C
l2_cache    a context in which a stream's work keeps some memory in the L2 cache
cuda_array  the CUDA Array Interface, version 3, read with suspicion
"""
