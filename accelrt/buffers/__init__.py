"""Memory as objects, and copies.

buffer      Buffer and PinnedBuffer, which own memory
copy        copies and fills
registered  page-locked arrays, and the user's own memory page-locked
cuda_array  the CUDA Array Interface, version 3, read with suspicion
"""
