# What the host device's work does when its turn comes.
from accelrt.driver.host_queue cimport Plan, Work

cdef void perform(const Work* work, const void* staged, int device) noexcept nogil  # on a worker, without the lock
cdef void clear_conditions(const Plan* plan) noexcept nogil  # when a launch begins
cdef int lost_device() noexcept nogil    # 0, or 1 + the device whose work touched memory that is gone
cdef bint in_callback() noexcept nogil   # the calling thread runs a host function
