"""Whether a row of the host driver may do its work."""
from accelrt.driver.host_memory cimport memory_lock, memory_unlock
from accelrt.driver.host_perform cimport in_callback, lost_device
from accelrt.driver.host_queue cimport lock, unlock
from accelrt.status cimport DEINITIALIZED, ILLEGAL_ADDRESS, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, NOT_PERMITTED

cdef extern from *:
    """
    #include <pthread.h>
    static int accelrt_host_state;  /* read by every thread, so written and read atomically */
    #define read_state() __atomic_load_n(&accelrt_host_state, __ATOMIC_ACQUIRE)
    #define write_state(value) __atomic_store_n(&accelrt_host_state, value, __ATOMIC_RELEASE)
    """
    int read_state() noexcept nogil
    void write_state(int value) noexcept nogil
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept) nogil

cdef enum:
    CLOSED = -1  # other values: 0 is not open yet, n is open with n - 1 devices
    INHERITED = -2  # a child of a process that had opened it


cdef int gate_any() noexcept nogil:
    cdef int state = read_state()
    if state == 0 or state == INHERITED:
        return NOT_INITIALIZED
    if state == CLOSED:
        return DEINITIALIZED
    return NOT_PERMITTED if in_callback() else 0


cdef int gate(int device) noexcept nogil:
    cdef int code = gate_any()
    if code == 0 and (device < 0 or device >= gate_devices()):
        return INVALID_DEVICE if gate_devices() else NO_DEVICE
    if code == 0 and lost_device() == device + 1:
        return ILLEGAL_ADDRESS
    return code


cdef bint gate_is_new() noexcept nogil:
    return read_state() == 0


cdef int gate_devices() noexcept nogil:
    return read_state() - 1


cdef void gate_open(int devices) noexcept nogil:
    write_state(devices + 1)


cdef void gate_close() noexcept nogil:
    write_state(CLOSED)


cdef void hold_still() noexcept nogil:
    # So that the child finds both locks as its own.  Who has them waits for nothing long, and never for the GIL.
    lock()
    memory_lock()


cdef void go_on() noexcept nogil:
    memory_unlock()
    unlock()


cdef void shut_in_child() noexcept nogil:
    # The parent's workers are not in the child: it may not use the device.
    if read_state() != 0:
        write_state(INHERITED)
    go_on()


pthread_atfork(&hold_still, &go_on, &shut_in_child)
