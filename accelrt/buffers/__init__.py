"""Memory as objects, and copies.

buffer      Buffer and PinnedBuffer, which own memory; the user's own memory, page-locked
copy        copies and fills
cuda_array  the CUDA Array Interface, version 3, read with suspicion
"""
