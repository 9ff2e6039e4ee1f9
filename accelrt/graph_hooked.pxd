# Graphs with hooks.
from accelrt.graph_held cimport HeldGraph

cdef class HookedGraph(HeldGraph):
    cdef list capture_hooks  # RemovableHandles, before and after; a list of its own once there was one
    cdef list replay_hooks

    cdef list own_capture_hooks(self)
    cdef list own_replay_hooks(self)
