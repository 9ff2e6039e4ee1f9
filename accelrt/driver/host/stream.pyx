"""The host driver's rows for streams, copies, fills and host functions, and what every row asks first: the gate."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from accelrt.core.process cimport FORK_HOST_DRIVER, at_fork
from accelrt.core.slots cimport Slot
from accelrt.driver.capture_guard cimport enter_asking, leave_asking
from accelrt.driver.host.capture cimport abandon, add_node, break_capture, check_device, check_implicit, check_unsafe
from accelrt.driver.host.queue cimport (
    CALL, COPY, COPY_3D, DST_KNOWN, FILL, SRC_KNOWN, HostStream, Side, Ticket, Work, add_stream, drain_device, drop_stream,
    drop_ticket, enqueue, find_of_any_device, find_stream, follow_legacy_order, in_callback, is_legacy, lock, lost_code,
    lost_device, mark, unlock, wait_for,
)
from accelrt.driver.host.ranges cimport (
    HOST_MEMORY, UNKNOWN_MEMORY, is_known, is_reserved, lock_memory, owner_of, unlock_memory,
)
from accelrt.driver.table cimport MAX_PITCH, STREAM_NON_BLOCKING, Table, host_fn
from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, DEINITIALIZED, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED, NOT_PERMITTED,
    NOT_READY, NO_DEVICE, NO_HOST_MEMORY,
)

cdef extern from *:
    """
    #define accelrt_mul(a, b, out) __builtin_mul_overflow(a, b, out)
    #define accelrt_add(a, b, out) __builtin_add_overflow(a, b, out)
    """
    bint multiply "accelrt_mul"(size_t a, size_t b, size_t* out) nogil
    bint add "accelrt_add"(size_t a, size_t b, size_t* out) nogil

cdef enum:
    GREATEST_PRIORITY = -5

include "stream_rows.pxi"


# --- putting work in ---------------------------------------------------------------------------------------

cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil:
    # Under the lock: into the stream's queue, or into its capture.
    cdef int code
    if stream == NULL:
        return INVALID_HANDLE
    code = check_implicit(stream)
    if code:
        return code
    if stream.capture != NULL:
        return add_node(stream, work)
    code = follow_legacy_order(stream)
    return code if code else enqueue(stream, work, ticket, staged)


cdef int finish_if_queued(HostStream* stream) noexcept nogil:
    # Under the lock: the caller's bytes are written before the row returns.
    cdef int code
    cdef Ticket* ticket
    if stream.capture != NULL:
        return 0
    ticket = mark(stream, &code)
    if ticket != NULL:
        code = wait_for(ticket)
        drop_ticket(ticket)
    return code


cdef bint reaches_out(uintptr_t address, size_t size) noexcept nogil:
    # It begins in memory that the driver knows, and leaves it or has no access to it.
    return owner_of(address, size) == UNKNOWN_MEMORY and (is_known(address) or is_reserved(address))


cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    return put_copy_in(device, stream, dst, src, size, False)


cdef int copy_async(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    # The copy looks at the memory anyway, and costs no more for it.
    return put_copy_in(device, stream, dst, src, size, False)


cdef int put_copy_in(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size,
                     bint across) noexcept nogil:
    cdef HostStream* found
    cdef Work work
    cdef void* staged = NULL
    cdef int code = gate(device)
    if code or size == 0:
        return code
    if reaches_out(dst, size) or reaches_out(src, size) or dst == 0 or src == 0:
        return INVALID_VALUE
    memset(&work, 0, sizeof(Work))
    work.kind = COPY
    work.dst = dst
    work.src = src
    work.size = size
    work.across = across
    work.known = DST_KNOWN * (owner_of(dst, size) != UNKNOWN_MEMORY) | SRC_KNOWN * (owner_of(src, size) != UNKNOWN_MEMORY)
    lock()
    found = find_stream(device, stream)
    if found != NULL and found.capture == NULL and not work.known & SRC_KNOWN:
        staged = malloc(size)
        if staged == NULL:
            unlock()
            return NO_HOST_MEMORY
        memcpy(staged, <void*>src, size)
    code = put_in(found, &work, NULL, staged)
    if code:
        free(staged)
    elif not work.known & DST_KNOWN or (owner_of(dst, 1) == HOST_MEMORY and owner_of(src, 1) < 0):
        code = finish_if_queued(found)
    unlock()
    return code


cdef int copy_peer(int dst_on, uintptr_t dst, int src_on, uintptr_t src, size_t size, uintptr_t stream) noexcept nogil:
    return copy_across(src_on, stream, dst_on, dst, src_on, src, size)


cdef int copy_across(int on_device, uintptr_t stream, int dst_on, uintptr_t dst, int src_on, uintptr_t src,
                     size_t size) noexcept nogil:
    cdef int code = gate(dst_on)
    if code == 0:
        code = gate(src_on)
    if code == 0 and size and (owner_of(dst, size) != dst_on or owner_of(src, size) != src_on):
        code = INVALID_VALUE
    if on_device != dst_on and on_device != src_on:
        code = code if code else INVALID_VALUE
    return code if code else put_copy_in(on_device, stream, dst, src, size, True)


cdef int measure(Side* side, size_t pitch, size_t lines, size_t width, size_t height, size_t depth) noexcept nogil:
    # INVALID_VALUE where rows or slices would overlap, or the sizes are those of no memory.
    cdef size_t rows
    if pitch < width or pitch > MAX_PITCH or (depth > 1 and lines < height):
        return INVALID_VALUE
    side.pitch = pitch
    side.lines = lines
    if multiply(lines, depth - 1, &rows) or add(rows, height - 1, &rows) or multiply(rows, pitch, &side.span):
        return INVALID_VALUE
    return INVALID_VALUE if add(side.span, width, &side.span) else 0


cdef int copy_3d(int device, uintptr_t stream, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src,
                 size_t src_pitch, size_t src_lines, size_t width, size_t height, size_t depth) noexcept nogil:
    cdef Work work
    cdef int code = gate(device)
    cdef int to, origin
    if code or width == 0 or height == 0 or depth == 0:
        return code
    memset(&work, 0, sizeof(Work))
    code = measure(&work.to, dst_pitch, dst_lines, width, height, depth)
    if code == 0:
        code = measure(&work.origin, src_pitch, src_lines, width, height, depth)
    if code:
        return code
    to, origin = owner_of(dst, work.to.span), owner_of(src, work.origin.span)
    if to == UNKNOWN_MEMORY or origin == UNKNOWN_MEMORY or (to >= 0 and origin >= 0 and to != origin):
        return INVALID_VALUE
    work.kind = COPY_3D
    work.dst = dst
    work.src = src
    work.size = width
    work.height = height
    work.depth = depth
    work.known = DST_KNOWN | SRC_KNOWN
    lock()
    code = put_in(find_stream(device, stream), &work, NULL, NULL)
    unlock()
    return code


cdef int fill(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil:
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    if width not in (1, 2, 4) or dst % width or (count and owner_of(dst, count * width) == UNKNOWN_MEMORY):
        return INVALID_VALUE
    if count == 0:
        return 0
    memset(&work, 0, sizeof(Work))
    work.kind = FILL
    work.dst = dst
    work.value = value
    work.width = width
    work.size = count
    work.known = DST_KNOWN
    lock()
    code = put_in(find_stream(device, stream), &work, NULL, NULL)
    unlock()
    return code


cdef int stream_host_func(int device, uintptr_t stream, host_fn fn, void* data) noexcept nogil:
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    if fn == NULL:
        return INVALID_VALUE
    memset(&work, 0, sizeof(Work))
    work.kind = CALL
    work.fn = fn
    work.data = data
    lock()
    code = put_in(find_stream(device, stream), &work, NULL, NULL)
    unlock()
    return code


# --- streams -----------------------------------------------------------------------------------------------

cdef int stream_priority_range(int device, int* out_least, int* out_greatest) noexcept nogil:
    out_least[0] = 0
    out_greatest[0] = GREATEST_PRIORITY
    return gate(device)


cdef int stream_create(int device, unsigned int flags, int priority, uintptr_t* out_stream) noexcept nogil:
    cdef HostStream* made
    cdef int code = gate(device)
    if code or flags > STREAM_NON_BLOCKING:
        return code if code else INVALID_VALUE
    lock()
    made = add_stream(device, flags, min(0, max(GREATEST_PRIORITY, priority)))
    if made != NULL:
        out_stream[0] = made.handle
    unlock()
    return 0 if made != NULL else NO_HOST_MEMORY


cdef int stream_destroy(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    if code or stream <= 2:
        return code if code else INVALID_HANDLE
    lock()
    found = find_stream(device, stream)
    if found != NULL:
        abandon(found)
        drop_stream(found)
    unlock()
    return 0 if found != NULL else INVALID_HANDLE


cdef int lock_stream(int device, uintptr_t stream, bint of_any, HostStream** out_found) noexcept nogil:
    # Answers 0 with the lock held, so that the stream stays; the caller unlocks.
    cdef int code = gate(device)
    if code:
        return code
    lock()
    out_found[0] = find_of_any_device(device, stream) if of_any else find_stream(device, stream)
    if out_found[0] == NULL:
        unlock()
        return INVALID_HANDLE
    return 0


cdef int stream_priority(int device, uintptr_t stream, int* out_priority) noexcept nogil:
    cdef HostStream* found
    cdef int code = lock_stream(device, stream, False, &found)
    if code == 0:
        out_priority[0] = found.priority
        unlock()
    return code


cdef int stream_flags(int device, uintptr_t stream, unsigned int* out_flags) noexcept nogil:
    cdef HostStream* found
    cdef int code = lock_stream(device, stream, False, &found)
    if code == 0:
        out_flags[0] = found.flags
        unlock()
    return code


cdef int stream_device(int device, uintptr_t stream, int* out_device) noexcept nogil:
    cdef HostStream* found
    cdef int code = lock_stream(device, stream, True, &found)
    if code == 0:
        out_device[0] = found.device
        unlock()
    return code


cdef int look(HostStream* stream, Ticket** out_ticket) noexcept nogil:
    # Under the lock: whether a stream is idle; or, unless NULL, a ticket of its work, for the caller to wait for.
    cdef int code
    if stream == NULL:
        return INVALID_HANDLE
    if stream.capture != NULL:
        return break_capture(stream, CAPTURE_UNSUPPORTED)
    code = check_implicit(stream)
    if code == 0:
        code = check_unsafe()
    if code == 0 and is_legacy(stream):
        code = follow_legacy_order(stream)
    if code or stream.head == NULL:
        return code
    if out_ticket == NULL:
        return NOT_READY
    out_ticket[0] = mark(stream, &code)
    return code


cdef int stream_query(int device, uintptr_t stream) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = look(find_stream(device, stream), NULL)
    unlock()
    return code


cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil:
    # The look is held back while a capture ends, the wait is not.
    cdef Ticket* ticket = NULL
    cdef Slot* asker
    cdef int code = gate(device)
    if code:
        return code
    asker = enter_asking(False)
    lock()
    code = look(find_stream(device, stream), &ticket)
    leave_asking(asker)
    if ticket != NULL:
        code = wait_for(ticket)
        drop_ticket(ticket)
    unlock()
    return code if code else gate(device)


cdef int device_synchronize(int device) noexcept nogil:
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_device(device)
    if code == 0:
        code = drain_device(device)
    unlock()
    return code if code else gate(device)


# --- whether a row of the host driver may do its work -----------------------------------------------------

cdef extern from *:
    """
    #include <pthread.h>
    static int accelrt_host_state;  /* read by every thread, so written and read atomically */
    #define read_state() __atomic_load_n(&accelrt_host_state, __ATOMIC_ACQUIRE)
    #define write_state(value) __atomic_store_n(&accelrt_host_state, value, __ATOMIC_RELEASE)
    """
    int read_state() noexcept nogil
    void write_state(int value) noexcept nogil

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
        return lost_code()
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
    lock_memory()


cdef void go_on() noexcept nogil:
    unlock_memory()
    unlock()


cdef void shut_in_child() noexcept nogil:
    # The parent's workers are not in the child: it may not use the device.
    if read_state() != 0:
        write_state(INHERITED)
    go_on()


at_fork("driver.host.stream", FORK_HOST_DRIVER, &hold_still, &go_on, &shut_in_child)
