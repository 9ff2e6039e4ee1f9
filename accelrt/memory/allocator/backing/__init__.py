"""How a pool takes device memory and gives it back.

plain        plain segments: one allocation of the driver each
pages        physical pages, the slots they are mapped in, and the slot where each is resident
expandable   expandable segments, which grow page by page
stitching    stitched segments, which map free pages a second time, one after the other
page_files   the descriptors of pages that other processes map
peer_access  which devices may use a pool's pages beside its own
free_pages   which sleeping heaps have free pages
"""
