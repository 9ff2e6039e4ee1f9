"""How a pool takes device memory and gives it back.

plain        plain segments: one allocation of the driver each
pages        physical pages, their slots, in which of these each is resident, and which devices may use it
expandable   expandable segments, which grow page by page
stitching    stitched segments, which map free pages a second time, one after the other
free_pages   which sleeping heaps have free pages
"""
