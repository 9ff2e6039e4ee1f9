# What a captured graph holds of the driver.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.runtime.capture_record cimport Record

cdef enum:  # HeldGraph.rare: why a replay is not the driver's call alone
    UNREADY = 1    # there is nothing to launch yet
    CALLBACKS = 2  # host functions run in it
    HOOKS = 4      # functions were registered to be called around it

cdef class HeldGraph:
    cdef uintptr_t exec_   # the driver's instantiated graph; 0 before it is made and after reset
    cdef uintptr_t graph   # the driver's graph, where it is kept
    cdef readonly size_t node_count
    cdef readonly bint keep_graph
    cdef bint shown        # somebody was told the driver's handles, by which he may launch it
    cdef int rare          # UNREADY | CALLBACKS | HOOKS; 0: replay is one call
    cdef int ordinal
    cdef uint64_t[2] pool_id
    cdef Record record     # of the capture under way, or None
    cdef int mode          # of the capture
    cdef int busy          # threads that begin or end its capture or one of a body, and may have let go of the GIL
    cdef list branches     # the bodies of conditional nodes that are being captured, innermost last; or None
    cdef list kept         # what the nodes point at
    cdef object __weakref__

    cdef int make_exec(self) except -1
    cdef int require_calm(self) except -1  # before a thread counts itself to the busy ones
