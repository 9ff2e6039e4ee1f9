# Devices: which one is current on this thread, and what names one.

cdef int current_ordinal(int* out_ordinal) noexcept nogil  # of this thread; no driver call where there is one device
cdef int ordinal_of(object device) except -1  # None is the current one; initialises at first use
cdef int count_devices() except -1
cdef object device_at(int ordinal)  # the device object that stands for an ordinal, always the same one

cdef class device:
    cdef readonly int index  # ordinal; -1 stands for none: the context does nothing
    cdef int before          # ordinal that was current when the context was entered
    cdef bint changed        # the context has to put it back
