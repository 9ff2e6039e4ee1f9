"""How a pool takes device memory and gives it back.

plain       plain segments: one allocation of the driver each
pages       physical memory, and where it is mapped
expandable  spans: segments that grow page by page
stitching   windows: blocks of pages that lie apart, mapped a second time
free_pages  where the free pages of sleeping heaps are
"""
