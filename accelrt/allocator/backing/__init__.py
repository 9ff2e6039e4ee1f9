"""The ways in which a pool takes device memory and gives it back.

guarded    pages that are free before the stream that freed them was asked: their list
pages      plain segments, one allocation of the driver each; physical pages, their slots and which devices
           may use them; expandable segments, which grow page by page
stitching  which free memory no work uses any more; stitched segments, which map its pages a second time in a
           row
"""
