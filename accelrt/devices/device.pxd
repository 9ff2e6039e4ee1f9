# Devices: which one is current on this thread, and what names one.

cdef int device_total  # 0 before init and in a child forked after it; written by device.pyx alone
cdef int ask_current(int* out_ordinal) noexcept nogil  # the driver
cdef int ordinal_of(object device) except -1  # None is the current one; initialises at first use
cdef int count_devices() except -1
cdef int known_devices() noexcept nogil  # 0 before init and in a child forked after it
cpdef object parse(object argument)  # an int, or None for the current device; initialises nothing
cdef int await_device(int ordinal) except -1  # where a signal can end it; before a call that waits under a lock
cdef object device_at(int ordinal)  # the device object that stands for an ordinal, always the same one
cdef int switch_to(int ordinal) except -2  # returns the device that was current; -1 where the thread had none
cdef int switch_back(int before) except -1  # to what switch_to returned

cdef class device:
    cdef readonly int index  # ordinal; -1 stands for none: the context does nothing
    cdef int before          # ordinal that was current when the context was entered; -1 where the thread had none
    cdef unsigned long entered  # the thread that before is of; 0: it is not taken
    cdef bint initialised    # False: a class that derives from it may have forgotten to
    cdef object __weakref__
    cdef list again          # entered while it was entered, maybe by other threads: of (thread, before)

    cdef int enter_again(self, int before) except -1
    cdef bint leave_again(self, int* out_before) except -1


cdef inline int current_ordinal(int* out_ordinal) noexcept nogil:
    # Of this thread; no driver call where there is one device.
    out_ordinal[0] = 0
    return 0 if device_total == 1 else ask_current(out_ordinal)
