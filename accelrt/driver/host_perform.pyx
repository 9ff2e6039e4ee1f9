"""What the host device's work does when its turn comes: on the thread that serves its stream, under no lock."""
from libc.string cimport memmove

from accelrt.driver.host_bytes cimport fill_memory, touches_nothing
from accelrt.driver.host_queue cimport BRANCH, CALL, COPY, FILL, SET

cdef extern from *:
    """
    static __thread int accelrt_in_callback;
    static int accelrt_lost;  /* read by every row, so atomic */
    #define read_lost() __atomic_load_n(&accelrt_lost, __ATOMIC_ACQUIRE)
    #define write_lost(value) __atomic_store_n(&accelrt_lost, value, __ATOMIC_RELEASE)
    """
    int callback_depth "accelrt_in_callback"
    int read_lost() noexcept nogil
    void write_lost(int value) noexcept nogil


cdef int lost_device() noexcept nogil:
    return read_lost()


cdef bint in_callback() noexcept nogil:
    return callback_depth > 0


cdef void clear_conditions(const Plan* plan) noexcept nogil:
    # Every condition is 0 when a launch begins.
    cdef int index
    cdef const Work* work
    for index in range(plan.count):
        work = &plan.nodes[index].work
        if work.kind == BRANCH:
            work.condition.value = 0
            clear_conditions(work.plan)


cdef void run_plan(const Plan* plan, int device) noexcept nogil:
    cdef int index
    for index in range(plan.count):
        perform(&plan.nodes[index].work, NULL, device)


cdef void run_branch(const Work* work, int device) noexcept nogil:
    # A lost device is out of every loop.
    while work.condition.value and not read_lost():
        run_plan(work.plan, device)
        if not work.repeats:
            return


cdef void perform(const Work* work, const void* staged, int device) noexcept nogil:
    global callback_depth
    if work.known and touches_nothing(work):
        write_lost(device + 1)
    elif work.kind == COPY:
        memmove(<void*>work.dst, staged if staged != NULL else <const void*>work.src, work.size)
    elif work.kind == FILL:
        fill_memory(work)
    elif work.kind == CALL:
        callback_depth += 1
        work.fn(work.data)
        callback_depth -= 1
    elif work.kind == SET:
        work.condition.value = (<const unsigned int*>work.src)[0]
    elif work.kind == BRANCH:
        run_branch(work, device)
