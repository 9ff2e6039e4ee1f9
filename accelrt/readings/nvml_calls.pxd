# What a reading is of: a device of NVML by its UUID, or an object that answers for another kind of device.
from libc.stdint cimport uint64_t

from accelrt.nvml.library cimport Device

cdef class Target:
    cdef readonly str uuid    # "GPU-..." or "MIG-..."
    cdef readonly str name    # the model, for errors
    cdef readonly object parent  # str, UUID of a MIG device's card; None for a card
    cdef bytes key            # the UUID, for NVML
    cdef const char* letters  # of key
    cdef Device handle        # good for one session
    cdef uint64_t session     # the session that gave the handle; 0 before there was one
