# The host driver's rows for streams, copies, fills and host functions.
from accelrt.driver.host.queue cimport HostStream, Ticket, Work
from accelrt.driver.table cimport Table

cdef void fill_stream(Table* table) noexcept nogil
# Under the queue's lock: into the stream's queue, or into its capture.
cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil


# Whether a row of the host driver may do its work: asked first by every one.

cdef int gate(int device) noexcept nogil  # 0, or the refusal; devices from 0
cdef int gate_any() noexcept nogil        # the same for rows without a device
cdef bint gate_is_new() noexcept nogil    # never opened in this process or the one it was forked from
cdef void gate_open(int devices) noexcept nogil
cdef void gate_close() noexcept nogil     # the end of the process
cdef int gate_devices() noexcept nogil
