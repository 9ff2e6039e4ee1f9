"""Inline code, in headers alone: what the fast path runs in one heap, and the slow path shares.

fast_path   an allocation or free that needs one heap alone, under its lock
block_map   a heap's map of live blocks, by address
block_ops   splitting, merging and the steps that fast and slow path share
free_list   a heap's free blocks, best fit by size and order
heap_stats  a heap's statistics and its peak budget
"""
