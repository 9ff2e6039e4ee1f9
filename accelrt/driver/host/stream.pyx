"""The host driver's rows for streams, events, copies, fills and host functions; captures, and graphs as lists of nodes.

Every row asks the gate first; rowgen.py puts that around a function ROW_gated, and around a function ROW_locked the queue's
lock too, with what finds the stream or the event that it names.  What a row puts into a stream goes into its queue, or
into its capture.

Work put into a capturing stream becomes a node behind the stream's frontier: the nodes that whatever comes
next depends on.  Events carry frontiers from stream to stream, which is how streams join a capture and how
they are joined back.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from accelrt.core.descriptors cimport number_of
from accelrt.core.growing cimport ensure_room
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.locks cimport load_count, store_count
from accelrt.core.process cimport FORK_HOST_DRIVER, at_fork
from accelrt.core.slots cimport Slot
from accelrt.driver.guard cimport enter_asking, leave_asking
from accelrt.driver.host.machine cimport (
    EVENT_FILE, HOST_MEMORY, MAX_HOST_DEVICES, UNKNOWN_MEMORY, add_stream, begin_record, complete_record, device_of,
    drain_device, drop_condition, drop_shared_event, drop_stream, drop_ticket, drop_tickets, enqueue, enqueue_point,
    find_of_any_device, find_stream, follow_legacy_order, follow_shared, hold_ticket, in_callback, is_legacy,
    is_open_to, is_record_done, is_reserved, last_record, lock, lock_memory, lost_code, lost_device, make_shared_event,
    mark, name_file, new_handle, new_ticket, note_beside_end, open_shared_event, owner_of, owner_to_write, unlock,
    unlock_memory, wait_for, OF_GRAPHS, Range, containing, drop_work, memory, peek_stream,
)
from accelrt.driver.host.work cimport (
    BRANCH, CALL, CHILD, COPY, COPY_3D, DST_KNOWN, FILL, KERNEL, RECORD, SET, SRC_KNOWN, WAIT, Capture, Condition,
    Frontier, HostEvent, HostFunction, HostStream, Launch, Node, Plan, SharedEvent, Side, Ticket, Work, add_to_frontier,
    begin_work, clear_frontier, copy_frontier, place_of,
)
from accelrt.driver.memory cimport (
    CopyRun, MAX_PITCH, PitchedCopy, run_from, SOURCE_AT_ANY_TIME, SOURCE_DURING_CALL, SOURCE_IN_STREAM_ORDER,
)
from accelrt.driver.node_params cimport (
    ATTRIBUTE_DOMAIN, ATTRIBUTE_DOMAIN_MAP, ATTRIBUTE_PRIORITY, ATTRIBUTE_SYNC_POLICY, EDGE_PROGRAMMATIC, EdgeData,
    PORT_PROGRAMMATIC,
)
from accelrt.driver.table cimport (
    CAPTURE_GLOBAL, CAPTURE_RELAXED, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, STREAM_BLOCKING, STREAM_NON_BLOCKING, host_fn,
)
from accelrt.status cimport (
    CAPTURED_EVENT, CAPTURE_IMPLICIT, CAPTURE_INVALID, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, COOPERATIVE_LAUNCH_TOO_LARGE, DEINITIALIZED,
    ILLEGAL_STATE, INVALID_CLUSTER_SIZE, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED,
    NOT_PERMITTED, NOT_READY, NOT_SUPPORTED, NO_DEVICE, NO_HOST_MEMORY, OPERATING_SYSTEM,
)

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    enum:
        _SC_NPROCESSORS_ONLN

cdef extern from *:
    """
    #include <stdint.h>
    #define accelrt_mul(a, b, out) __builtin_mul_overflow(a, b, out)
    #define accelrt_add(a, b, out) __builtin_add_overflow(a, b, out)
    static __thread int accelrt_mode;        /* CAPTURE_GLOBAL is where every thread starts */
    static __thread char accelrt_self;       /* its address tells threads apart */
    """
    int thread_mode "accelrt_mode"
    char thread_self "accelrt_self"
    bint multiply "accelrt_mul"(size_t a, size_t b, size_t* out) nogil
    bint add "accelrt_add"(size_t a, size_t b, size_t* out) nogil

cdef enum:
    GREATEST_PRIORITY = -5
    AUTO_POLICY = 1  # CUsynchronizationPolicy: auto, spin, yield, blocking
    LAST_POLICY = 4
    MOST_ALIGNED = 16   # of a kernel's parameters

cdef long[MAX_HOST_DEVICES] entered  # whether a call came that on a GPU makes the device's context
# Guarded by the queue's lock.
cdef Capture* captures = NULL
cdef uint64_t last_id = 0
cdef AddressMap events
cdef AddressMap bodies  # handle -> Graph*
cdef AddressMap functions

include "stream_rows.pxi"


# --- putting work in ---------------------------------------------------------------------------------------

cdef int put_in(HostStream* stream, const Work* work, Ticket* ticket, void* staged) noexcept nogil:
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


cdef int put(int device, uintptr_t stream, const Work* work) noexcept nogil:
    # Takes the lock.
    cdef int code
    lock()
    code = put_in(find_stream(device, stream), work, NULL, NULL)
    unlock()
    return code


cdef bint reaches_out(uintptr_t address, int owner) noexcept nogil:
    # It begins in memory that the driver knows, and leaves it or has no access to it.
    return owner == UNKNOWN_MEMORY and (device_of(address) != UNKNOWN_MEMORY or is_reserved(address))


cdef bint is_closed(uintptr_t address, size_t size, int owner, int device) noexcept nogil:
    # Pages of another device, which this one was not given access to.
    return owner >= 0 and owner != device and not is_open_to(address, size, device)


cdef int owner_at_launch(uintptr_t address, size_t size, bint written) noexcept nogil:
    # As owner_of, or owner_to_write; also of memory of graphs, which has bytes when a launch comes to it.
    cdef const Range* part
    cdef int owner = owner_to_write(address, size) if written else owner_of(address, size)
    if owner != UNKNOWN_MEMORY:
        return owner
    lock_memory()
    part = containing(memory, address)
    if part != NULL and part.kind == OF_GRAPHS and address + size <= part.start + part.size:
        owner = part.device
    unlock_memory()
    return owner


cdef bint captures_now(int device, uintptr_t stream) noexcept nogil:
    # Then what is put in runs at launches, when memory of graphs has bytes.
    cdef const HostStream* on
    cdef bint captures
    lock()
    on = peek_stream(device, stream)
    captures = on != NULL and on.capture != NULL
    unlock()
    return captures


cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    return put_copy_in(device, stream, dst, src, size, False)


cdef int copy_async(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    # The copy looks at the memory anyway, and costs no more for it.
    return put_copy_in(device, stream, dst, src, size, False)


cdef int put_copy_in(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size, bint across) noexcept nogil:
    cdef HostStream* on
    cdef Work work
    cdef Ticket* end = NULL
    cdef void* staged = NULL
    cdef int to, origin
    cdef int code = enter(device)
    if code or size == 0:
        return code
    to, origin = owner_to_write(dst, size), owner_of(src, size)
    if UNKNOWN_MEMORY in (to, origin) and captures_now(device, stream):
        to, origin = owner_at_launch(dst, size, True), owner_at_launch(src, size, False)
    code = prepare_copy(&work, dst, to, src, origin, size)
    if code == 0 and not across and (is_closed(dst, size, to, device) or is_closed(src, size, origin, device)):
        code = INVALID_VALUE
    if code:
        return code
    work.across = across
    lock()
    on = find_stream(device, stream)
    if on != NULL and on.capture == NULL:
        code = prepare_end(&work, to == UNKNOWN_MEMORY or (to == HOST_MEMORY and origin < 0), &end, &staged)
    if code == 0:
        code = put_in(on, &work, end, staged)
    if code:
        free(staged)
    elif end != NULL:
        code = wait_for(end)
    drop_ticket(end)
    unlock()
    return code


cdef int prepare_end(const Work* work, bint waits, Ticket** out_end, void** out_staged) noexcept nogil:
    # Takes what a copy needs before it is queued, which no call undoes: pageable bytes that it reads, read now, and a ticket
    # where the caller's bytes have to be there when the row returns.
    if waits:
        out_end[0] = new_ticket()
        if out_end[0] == NULL:
            return NO_HOST_MEMORY
    if not work.known & SRC_KNOWN:
        out_staged[0] = malloc(work.size)
        if out_staged[0] == NULL:
            return NO_HOST_MEMORY
        memcpy(out_staged[0], <void*>work.src, work.size)
    return 0


cdef int prepare_copy(Work* out_work, uintptr_t dst, int to, uintptr_t src, int origin, size_t size) noexcept nogil:
    begin_work(out_work, COPY)
    if reaches_out(dst, to) or reaches_out(src, origin) or dst == 0 or src == 0:
        return INVALID_VALUE
    out_work.dst = dst
    out_work.src = src
    out_work.size = size
    out_work.known = DST_KNOWN * (to != UNKNOWN_MEMORY) | SRC_KNOWN * (origin != UNKNOWN_MEMORY)
    return 0


cdef int copy_peer(int dst_on, uintptr_t dst, int src_on, uintptr_t src, size_t size, uintptr_t stream) noexcept nogil:
    return copy_across(src_on, stream, dst_on, dst, src_on, src, size)


cdef int copy_across(int on_device, uintptr_t stream, int dst_on, uintptr_t dst, int src_on, uintptr_t src,
                     size_t size) noexcept nogil:
    cdef int code = enter(dst_on)
    if code == 0:
        code = gate(src_on)
    if code == 0 and size and (owner_to_write(dst, size) != dst_on or owner_of(src, size) != src_on):
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


cdef int copy_3d_gated(
    int device, uintptr_t stream, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src, size_t src_pitch,
    size_t src_lines, size_t width, size_t height, size_t depth
) noexcept nogil:
    cdef Work work
    cdef int code
    if width == 0 or height == 0 or depth == 0:
        return 0
    code = prepare_copy_3d(&work, dst, dst_pitch, dst_lines, src, src_pitch, src_lines, width, height, depth)
    return code if code else put(device, stream, &work)


cdef int prepare_copy_3d(
    Work* out_work, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src, size_t src_pitch, size_t src_lines,
    size_t width, size_t height, size_t depth
) noexcept nogil:
    cdef int code, to, origin
    begin_work(out_work, COPY_3D)
    code = measure(&out_work.to, dst_pitch, dst_lines, width, height, depth)
    if code == 0:
        code = measure(&out_work.origin, src_pitch, src_lines, width, height, depth)
    if code:
        return code
    to, origin = owner_at_launch(dst, out_work.to.span, True), owner_at_launch(src, out_work.origin.span, False)
    if to == UNKNOWN_MEMORY or origin == UNKNOWN_MEMORY or (to >= 0 and origin >= 0 and to != origin):
        return INVALID_VALUE
    out_work.dst = dst
    out_work.src = src
    out_work.size = width
    out_work.height = height
    out_work.depth = depth
    out_work.known = DST_KNOWN | SRC_KNOWN
    return 0


cdef int read_now(Work* work, void** out_staged) noexcept nogil:
    # Takes a source's bytes before the stream comes to the copy, rows and the gaps between them.
    cdef size_t size = work.size if work.kind == COPY else work.origin.span
    out_staged[0] = malloc(size)
    if out_staged[0] == NULL:
        return NO_HOST_MEMORY
    memcpy(out_staged[0], <const void*>work.src, size)
    work.src, work.known = <uintptr_t>out_staged[0], DST_KNOWN
    return 0


cdef int check_runs(const CopyRun* runs, size_t run_count, bint* out_read_now) noexcept nogil:
    cdef size_t index
    if run_count == 0 or runs[0].first:
        return INVALID_VALUE
    for index in range(run_count):
        if not SOURCE_IN_STREAM_ORDER <= runs[index].order <= SOURCE_AT_ANY_TIME:
            return INVALID_VALUE
        out_read_now[0] = out_read_now[0] or runs[index].order == SOURCE_DURING_CALL
    return 0


cdef int put_all_in(
    int device, uintptr_t stream, Work* works, size_t count, const CopyRun* runs, size_t run_count, size_t* out_done
) noexcept nogil:
    # Under one lock, so that no other thread's work comes between.  A source that may be read at any time is read in order.
    cdef const CopyRun* run = runs
    cdef HostStream* on
    cdef void* staged = NULL
    cdef bint reads_now = False
    cdef int code = check_runs(runs, run_count, &reads_now)
    lock()
    on = find_stream(device, stream)
    if code == 0 and reads_now and on != NULL and (is_legacy(on) or on.capture != NULL):
        code = NOT_SUPPORTED
    while code == 0 and out_done[0] < count:
        run = run_from(run, runs + run_count, out_done[0])
        if run.order == SOURCE_DURING_CALL and on != NULL:
            code = read_now(&works[out_done[0]], &staged)
        if code == 0:
            code = put_in(on, &works[out_done[0]], NULL, staged)
        if code:
            free(staged)
        out_done[0] += code == 0
        staged = NULL
    unlock()
    return code


cdef bint is_source(uintptr_t src, size_t size, int order) noexcept nogil:
    # What is read at once may be ordinary host memory, no part of which is of the driver's.
    cdef int owner = owner_of(src, size)
    return owner != UNKNOWN_MEMORY or order == SOURCE_DURING_CALL and src != 0 and not reaches_out(src, owner)


cdef int copy_batch_gated(
    int device, uintptr_t stream, void* dsts, void* srcs, void* sizes, size_t count, void* runs, size_t run_count,
    size_t* out_done
) noexcept nogil:
    # All are looked at before one is put in.  There is one place to look for each, so that hints say nothing.
    cdef const uintptr_t* to = <const uintptr_t*>dsts
    cdef const uintptr_t* origin = <const uintptr_t*>srcs
    cdef const size_t* bytes_ = <const size_t*>sizes
    cdef const CopyRun* run = <const CopyRun*>runs
    cdef Work* works = <Work*>malloc((count + 1) * sizeof(Work))
    cdef size_t index
    cdef int code = 0 if run_count else INVALID_VALUE
    if works == NULL:
        return NO_HOST_MEMORY
    for index in range(count if run_count else 0):
        run = run_from(run, <const CopyRun*>runs + run_count, index)
        if bytes_[index] == 0 or owner_to_write(to[index], bytes_[index]) == UNKNOWN_MEMORY or not is_source(
                origin[index], bytes_[index], run.order):
            code = INVALID_VALUE
            break
        begin_work(&works[index], COPY)
        works[index].dst = to[index]
        works[index].src = origin[index]
        works[index].size = bytes_[index]
        works[index].known = DST_KNOWN | SRC_KNOWN
    if code == 0:
        code = put_all_in(device, stream, works, count, <const CopyRun*>runs, run_count, out_done)
    free(works)
    return code


cdef int copy_batch_3d_gated(
    int device, uintptr_t stream, void* copies, size_t count, void* runs, size_t run_count, size_t* out_done
) noexcept nogil:
    cdef const PitchedCopy* pitched = <const PitchedCopy*>copies
    cdef Work* works = <Work*>malloc((count + 1) * sizeof(Work))
    cdef size_t index
    cdef int code = 0
    if works == NULL:
        return NO_HOST_MEMORY
    for index in range(count):
        code = INVALID_VALUE
        if pitched[index].width and pitched[index].height and pitched[index].depth:
            code = prepare_copy_3d(
                &works[index], pitched[index].dst, pitched[index].dst_pitch, pitched[index].dst_lines, pitched[index].src,
                pitched[index].src_pitch, pitched[index].src_lines, pitched[index].width, pitched[index].height,
                pitched[index].depth)
        if code:
            break
    if code == 0:
        code = put_all_in(device, stream, works, count, <const CopyRun*>runs, run_count, out_done)
    free(works)
    return code


cdef int fill_gated(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil:
    cdef Work work
    cdef int code
    if width not in (1, 2, 4) or dst % width:
        return INVALID_VALUE
    if count and owner_to_write(dst, count * width) == UNKNOWN_MEMORY and not captures_now(device, stream):
        return INVALID_VALUE
    if count == 0:
        return 0
    code = prepare_fill(&work, dst, value, width, count, 1, 0)
    return code if code else put(device, stream, &work)


cdef int prepare_fill(Work* out_work, uintptr_t dst, unsigned int value, int width, size_t count, size_t height,
                      size_t pitch) noexcept nogil:
    # A fill of rows of count elements of width bytes, which begin a pitch apart.
    begin_work(out_work, FILL)
    if width not in (1, 2, 4) or dst % width or count == 0 or height == 0 or count >> 60 or pitch % width:
        return INVALID_VALUE
    out_work.to.span = count * width
    if height > 1 and measure(&out_work.to, pitch, height, count * width, height, 1):
        return INVALID_VALUE
    if owner_at_launch(dst, out_work.to.span, True) == UNKNOWN_MEMORY:
        return INVALID_VALUE
    out_work.dst = dst
    out_work.value = value
    out_work.width = width
    out_work.size = count
    out_work.height = height
    out_work.known = DST_KNOWN
    return 0


cdef int stream_host_func_gated(int device, uintptr_t stream, host_fn fn, void* data) noexcept nogil:
    cdef Work work
    if fn == NULL:
        return INVALID_VALUE
    begin_work(&work, CALL)
    work.fn = fn
    work.data = data
    return put(device, stream, &work)


# --- launches: what a kernel is put in with -----------------------------------------------------------------

cdef HostFunction* find_function(uintptr_t function) noexcept nogil:
    return <HostFunction*>map_find(&functions, function)


cdef size_t aligned(size_t offset, size_t size) noexcept nogil:
    # As C lays a struct out, where a size's lowest bit is its alignment.
    cdef size_t alignment = min(size & (~size + 1), <size_t>MOST_ALIGNED)
    return (offset + alignment - 1) & ~(alignment - 1)


cdef bint fits(const unsigned int* grid, const unsigned int* block) noexcept nogil:
    cdef unsigned long long threads = <unsigned long long>block[0] * block[1]
    if block[0] > MOST_THREADS or block[1] > MOST_THREADS or block[2] > MOST_DEEP:
        return False
    if threads * block[2] == 0 or threads * block[2] > MOST_THREADS:
        return False
    if grid[0] == 0 or grid[1] == 0 or grid[2] == 0:
        return False
    return grid[0] <= MOST_WIDE_GRID and grid[1] <= MOST_DEEP_GRID and grid[2] <= MOST_DEEP_GRID


cdef int make_launch(
    HostFunction* function, const unsigned int* grid, const unsigned int* block, unsigned int shared_bytes,
    void** arguments, Launch** out_launch
) noexcept nogil:
    # A launch with one holder, checked as a GPU checks it, and its arguments copied; under the queue's lock.
    cdef Launch* launch
    cdef size_t count = function.count, index, size = 0
    cdef char* values
    if not fits(grid, block) or shared_bytes > <unsigned int>function.attributes[ATTRIBUTE_DYNAMIC]:
        return INVALID_VALUE
    if count and arguments == NULL:
        return INVALID_VALUE
    for index in range(count):
        if arguments[index] == NULL:
            return INVALID_VALUE
        size = function.offsets[index] + function.sizes[index]
    # One allocation: the launch, pointers, and what they point at, aligned as malloc's.
    size += sizeof(Launch) + count * sizeof(void*) + MOST_ALIGNED
    launch = <Launch*>malloc(size)
    if launch == NULL:
        return NO_HOST_MEMORY
    launch.arguments = <void**>(launch + 1)
    values = <char*>aligned(<size_t>(launch.arguments + count), MOST_ALIGNED)
    for index in range(count):
        launch.arguments[index] = values + function.offsets[index]
        memcpy(launch.arguments[index], arguments[index], function.sizes[index])
    memcpy(launch.grid, grid, sizeof(launch.grid))
    memcpy(launch.block, block, sizeof(launch.block))
    launch.shared_bytes = shared_bytes
    launch.function = function
    launch.holders = 1
    function.module.holders += 1
    out_launch[0] = launch
    return 0


cdef int blocks_at_once(size_t threads, size_t shared_bytes) noexcept nogil:
    # As if each processor were a multiprocessor of an H200.
    cdef size_t count = min(<size_t>BLOCKS_AT_ONCE, THREADS_AT_ONCE // threads)
    if threads > MOST_THREADS or shared_bytes > MOST_SHARED:
        return 0
    return <int>(min(count, SHARED_AT_ONCE // shared_bytes) if shared_bytes else count)


cdef unsigned int most_cluster(const HostFunction* function) noexcept nogil:
    return MOST_CLUSTER if function.attributes[ATTRIBUTE_WIDE] else PORTABLE_CLUSTER


cdef bint are_clusters(const HostFunction* function, const unsigned int* grid, const int* cluster) noexcept nogil:
    cdef unsigned int most = most_cluster(function)
    cdef unsigned long long blocks = 1
    cdef int axis
    for axis in range(3):
        if cluster[axis] <= 0 or <unsigned int>cluster[axis] > most or grid[axis] % <unsigned int>cluster[axis]:
            return False
        blocks *= <unsigned int>cluster[axis]
    return blocks <= most


cdef int check_launch(const Work* work) noexcept nogil:
    # What a GPU refuses of a launch for its clusters, or since its blocks do not all run at once.
    cdef const Launch* launch = work.launch
    cdef unsigned long long blocks = <unsigned long long>launch.grid[0] * launch.grid[1] * launch.grid[2]
    cdef int room
    if work.cluster[0] and not are_clusters(launch.function, launch.grid, work.cluster):
        return INVALID_CLUSTER_SIZE
    if work.cooperative:
        room = blocks_at_once(<size_t>launch.block[0] * launch.block[1] * launch.block[2], launch.shared_bytes)
        if blocks > <unsigned long long>room * <unsigned long long>sysconf(_SC_NPROCESSORS_ONLN):
            return COOPERATIVE_LAUNCH_TOO_LARGE
    return 0


# --- streams -----------------------------------------------------------------------------------------------

cdef int stream_priority_range_gated(int* out_greatest) noexcept nogil:
    out_greatest[0] = GREATEST_PRIORITY  # the least is 0
    return 0


cdef int stream_create_locked(int device, unsigned int flags, int priority, uintptr_t* out_stream) noexcept nogil:
    cdef HostStream* stream
    if flags > STREAM_NON_BLOCKING:
        return INVALID_VALUE
    stream = add_stream(device, flags, min(0, max(GREATEST_PRIORITY, priority)))
    if stream == NULL:
        return NO_HOST_MEMORY
    out_stream[0] = stream.handle
    return 0


cdef int stream_destroy_locked(int device, uintptr_t stream) noexcept nogil:
    cdef HostStream* dropped = find_stream(device, stream) if stream > 2 else NULL
    if dropped == NULL:
        return INVALID_HANDLE
    abandon_capture(dropped)
    drop_stream(dropped)
    return 0


cdef int stream_priority_locked(HostStream* stream, int* out_priority) noexcept nogil:
    out_priority[0] = stream.priority
    return 0


cdef int stream_flags_locked(HostStream* stream, unsigned int* out_flags) noexcept nogil:
    out_flags[0] = stream.flags
    return 0


cdef int stream_attribute_set_locked(HostStream* stream, int attribute, int first, int second) noexcept nogil:
    # One domain of memory synchronisation: work of a CPU is ordered for all of memory at once.
    if attribute == ATTRIBUTE_SYNC_POLICY and AUTO_POLICY <= first <= LAST_POLICY:
        stream.sync_policy = first
    elif attribute == ATTRIBUTE_PRIORITY and GREATEST_PRIORITY <= first <= 0:
        stream.priority = first
    elif attribute == ATTRIBUTE_DOMAIN and 0 <= first <= 1:
        stream.sync_domain = first
    elif attribute != ATTRIBUTE_DOMAIN_MAP or first or second:
        return INVALID_VALUE
    return 0


cdef int stream_attribute_get_locked(HostStream* stream, int attribute, int* out_first, int* out_second) noexcept nogil:
    if attribute == ATTRIBUTE_SYNC_POLICY:
        out_first[0] = stream.sync_policy
    elif attribute == ATTRIBUTE_PRIORITY:
        out_first[0] = stream.priority
    elif attribute == ATTRIBUTE_DOMAIN:
        out_first[0] = stream.sync_domain
    elif attribute != ATTRIBUTE_DOMAIN_MAP:
        return INVALID_VALUE
    return 0


cdef int stream_device_locked(int device, uintptr_t stream, int* out_device) noexcept nogil:
    cdef const HostStream* any_stream = find_of_any_device(device, stream)
    if any_stream == NULL:
        return INVALID_HANDLE
    out_device[0] = any_stream.device
    return 0


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


cdef int stream_query_locked(HostStream* stream) noexcept nogil:
    return look(stream, NULL)


cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil:
    # The look is held back while a capture ends, the wait is not.
    cdef Ticket* ticket = NULL
    cdef Slot* asker
    cdef int code = enter(device)
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


cdef int device_synchronize_locked(int device) noexcept nogil:
    cdef int code = check_device(device)
    if code == 0:
        code = drain_device(device)
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


cdef int gate_device(int device) noexcept nogil:
    # For what is known of a device, which is the same once it is lost.
    cdef int code = gate_any()
    if code == 0 and (device < 0 or device >= gate_devices()):
        return INVALID_DEVICE if gate_devices() else NO_DEVICE
    return code


cdef int gate(int device) noexcept nogil:
    cdef int code = gate_device(device)
    if code == 0 and lost_device() == device + 1:
        return lost_code()
    return code


cdef int enter(int device) noexcept nogil:
    cdef int code = gate(device)
    if code == 0 and not load_count(&entered[device]):
        store_count(&entered[device], 1)
    return code


cdef int context_active_gated(int device, int* out_active) noexcept nogil:
    out_active[0] = load_count(&entered[device]) != 0
    return 0


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


# --- events ------------------------------------------------------------------------------------------------

cdef int event_create_gated(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil:
    cdef SharedEvent* shared = NULL
    if flags >= 8 or (flags & EVENT_INTERPROCESS and not flags & EVENT_DISABLE_TIMING):
        return INVALID_VALUE
    if flags & EVENT_INTERPROCESS:
        shared = make_shared_event()
        if shared == NULL:
            return OPERATING_SYSTEM
    return add_event(device, flags, shared, out_event)


cdef int add_event(int device, unsigned int flags, SharedEvent* shared, uintptr_t* out_event) noexcept nogil:
    # Takes the shared event, or NULL, also where it fails.
    cdef HostEvent* event = <HostEvent*>calloc(1, sizeof(HostEvent))
    cdef int code
    lock()
    code = map_reserve(&events) if event != NULL else NO_HOST_MEMORY
    if code == 0:
        event.device = device
        event.flags = flags
        event.shared = shared
        event.handle = new_handle()
        map_insert(&events, event.handle, event)
        out_event[0] = event.handle
    else:
        drop_shared_event(shared)
        free(event)
    unlock()
    return code


cdef HostEvent* find_event(uintptr_t event) noexcept nogil:
    cdef HostEvent* host_event = <HostEvent*>map_find(&events, event)
    if host_event != NULL and host_event.capture:
        note_beside_end(capture_of(host_event.capture))
    return host_event


cdef int event_destroy_locked(uintptr_t event) noexcept nogil:
    cdef HostEvent* removed = <HostEvent*>map_remove(&events, event)
    if removed == NULL:
        return INVALID_HANDLE
    drop_ticket(removed.ticket)
    drop_shared_event(removed.shared)
    clear_frontier(&removed.frontier)
    free(removed)
    return 0


cdef int record_in_capture(HostEvent* event, HostStream* stream) noexcept nogil:
    if stream.capture.broken:
        return CAPTURE_INVALID
    if copy_frontier(&event.frontier, &stream.frontier):
        return NO_HOST_MEMORY
    drop_ticket(event.ticket)
    event.ticket = NULL
    event.capture = stream.capture.id
    return 0


cdef int record_now(HostEvent* event, HostStream* stream) noexcept nogil:
    cdef int code = follow_legacy_order(stream)
    cdef Ticket* ticket
    if code:
        return code
    ticket = new_ticket()
    if ticket == NULL:
        return NO_HOST_MEMORY
    if event.shared != NULL:
        event.shared.holders += 1
        ticket.shared = event.shared
        ticket.number = begin_record(event.shared)
    code = enqueue_point(stream, RECORD, ticket)
    if code:
        if event.shared != NULL:
            complete_record(event.shared, ticket.number)
        drop_ticket(ticket)
        return code
    drop_ticket(event.ticket)
    event.ticket = ticket
    event.capture = 0
    return 0


cdef int last_ticket(HostEvent* event, Ticket** out_ticket) noexcept nogil:
    # Under the lock: what stands for the event's last record, in whichever process; NULL where that is done, or there is
    # none.  The caller drops it.
    cdef uint64_t number
    out_ticket[0] = NULL
    if event.shared != NULL:
        number = last_record(event.shared)
        if number == 0 or is_record_done(event.shared, number):
            return 0
        if event.ticket == NULL or event.ticket.number != number:
            out_ticket[0] = follow_shared(event.shared, number)
            return 0 if out_ticket[0] != NULL else NO_HOST_MEMORY
    if event.ticket != NULL and not event.ticket.done:
        out_ticket[0] = hold_ticket(event.ticket)
    return 0


cdef int event_record_locked(int device, HostEvent* event, HostStream* stream) noexcept nogil:
    cdef int code = check_implicit(stream) if event.device == device else INVALID_HANDLE
    if code:
        return code
    return record_in_capture(event, stream) if stream.capture != NULL else record_now(event, stream)


cdef int wait_in_stream(HostStream* stream, HostEvent* event) noexcept nogil:
    cdef Ticket* ticket = NULL
    cdef int code
    if stream.capture != NULL and stream.capture.broken:
        return CAPTURE_INVALID
    if event.capture:
        return join_capture(stream, event.capture, &event.frontier)
    if event.ticket == NULL and (event.shared == NULL or last_record(event.shared) == 0):
        return 0
    if stream.capture != NULL:
        return break_capture(stream, CAPTURE_ISOLATION)
    code = last_ticket(event, &ticket)
    if ticket == NULL:
        return code
    code = follow_legacy_order(stream)
    if code == 0:
        code = enqueue_point(stream, WAIT, ticket)
    drop_ticket(ticket)
    return code


cdef int stream_wait_event_locked(HostEvent* event, HostStream* stream) noexcept nogil:
    cdef int code = check_implicit(stream)
    return code if code else wait_in_stream(stream, event)


# --- events as nodes ---------------------------------------------------------------------------------------

cdef int add_point(int kind, HostEvent* event, HostStream* stream) noexcept nogil:
    # The event itself stays as it is: every launch of the graph records it, or looks at what it waits for.
    cdef Work work
    if stream.capture == NULL:
        return ILLEGAL_STATE
    begin_work(&work, kind)
    work.event = event.handle
    return add_node(stream, &work)


cdef int event_record_external_locked(int device, HostEvent* event, HostStream* stream) noexcept nogil:
    return add_point(RECORD, event, stream) if event.device == device else INVALID_HANDLE


cdef int stream_wait_external_locked(HostEvent* event, HostStream* stream) noexcept nogil:
    return add_point(WAIT, event, stream)


cdef void record_at_launch(HostEvent* event, Ticket* ticket) noexcept nogil:
    drop_ticket(event.ticket)
    event.ticket = hold_ticket(ticket)
    event.capture = 0


cdef void abandon_tickets(const Plan* plan, void* argument) noexcept nogil:
    # A launch came to nothing: the streams that wait for one of its records are let go.
    cdef Ticket** tickets = <Ticket**>argument
    if tickets == NULL:
        return
    mark_done(plan, tickets, 0)
    drop_tickets(tickets, plan.points)
    free(tickets)


cdef int mark_done(const Plan* plan, Ticket** tickets, int point) noexcept nogil:
    # Answers the number of the point that comes next, in the order of a replay.
    cdef int step
    cdef const Work* work
    for step in range(plan.count):
        work = &plan.nodes[place_of(plan, step)].work
        if work.kind == CHILD:
            point = mark_done(work.plan, tickets, point)
        elif work.kind == RECORD or work.kind == WAIT:
            if tickets[point] != NULL and work.kind == RECORD:
                tickets[point].done = True
            point += 1
    return point


cdef int tickets_for(const Plan* plan, void** out_tickets) noexcept nogil:
    # A new one for each record, in the order of a replay, so that a wait sees the records before it.
    cdef Ticket** tickets
    cdef int point = 0, code
    out_tickets[0] = NULL
    if plan.points == 0:
        return 0
    tickets = <Ticket**>calloc(plan.points, sizeof(void*))
    if tickets == NULL:
        return NO_HOST_MEMORY
    code = fill_tickets(plan, tickets, &point)
    if code:
        abandon_tickets(plan, tickets)
        return code
    out_tickets[0] = tickets
    return 0


cdef int fill_tickets(const Plan* plan, Ticket** tickets, int* point) noexcept nogil:
    cdef const Work* work
    cdef HostEvent* event
    cdef int step, code = 0
    for step in range(plan.count):
        work = &plan.nodes[place_of(plan, step)].work
        if work.kind == CHILD and code == 0:
            code = fill_tickets(work.plan, tickets, point)
        if code or (work.kind != RECORD and work.kind != WAIT):
            continue
        event = <HostEvent*>map_find(&events, work.event)
        if work.kind == WAIT:
            tickets[point[0]] = hold_ticket(event.ticket) if event != NULL else NULL
        else:
            tickets[point[0]] = new_ticket()
            code = 0 if tickets[point[0]] != NULL else NO_HOST_MEMORY
            if code == 0 and event != NULL:
                record_at_launch(event, tickets[point[0]])
        point[0] += 1
    return code


cdef int ask_captured(uint64_t id) noexcept nogil:
    # The event has no state, and asking for it breaks the capture, if that still goes on.
    cdef Capture* capture = capture_of(id)
    if capture == NULL:
        return INVALID_VALUE
    capture.broken = True
    return CAPTURED_EVENT


cdef int ask_event(uintptr_t event, bint wait) noexcept nogil:
    # A wait's question is held back while a capture ends, and the wait itself is not.
    cdef Slot* asker = enter_asking(False) if wait else NULL
    cdef HostEvent* host_event
    cdef Ticket* ticket = NULL
    cdef uint64_t number
    cdef int code
    lock()
    host_event = find_event(event)
    if host_event == NULL:
        code = INVALID_HANDLE
    elif host_event.capture:
        code = ask_captured(host_event.capture)
    else:
        code = check_unsafe()
        if code == 0 and not wait and host_event.shared != NULL:  # to ask takes no thread
            number = last_record(host_event.shared)
            code = 0 if number == 0 or is_record_done(host_event.shared, number) else NOT_READY
        elif code == 0:
            code = last_ticket(host_event, &ticket)
    leave_asking(asker)
    if ticket != NULL:
        code = wait_for(ticket) if wait else NOT_READY
        drop_ticket(ticket)
    unlock()
    return code


cdef int event_query_gated(uintptr_t event) noexcept nogil:
    return ask_event(event, False)


cdef int event_synchronize_gated(int device, uintptr_t event) noexcept nogil:
    cdef int code = ask_event(event, True)
    return code if code else gate(device)


cdef int event_elapsed_locked(HostEvent* start, HostEvent* end, float* out_ms) noexcept nogil:
    if (start.flags | end.flags) & EVENT_DISABLE_TIMING:
        return INVALID_HANDLE
    if start.capture or end.capture:
        return INVALID_VALUE
    if start.ticket == NULL or end.ticket == NULL:
        return INVALID_HANDLE
    if not start.ticket.done or not end.ticket.done:
        return NOT_READY
    out_ms[0] = <float>(end.ticket.time_ms - start.ticket.time_ms)
    return 0


# --- events of several processes, by handles of 64 bytes that name their files ------------------------------

cdef int ipc_event_export_locked(int device, HostEvent* event, char* out_ipc) noexcept nogil:
    if event.device != device or event.shared == NULL:
        return INVALID_HANDLE
    return name_file(number_of(event.shared.file), EVENT_FILE, 0, 0, out_ipc)


cdef int ipc_event_open_gated(int device, const char* handle, uintptr_t* out_event) noexcept nogil:
    cdef SharedEvent* shared = NULL
    cdef int code = open_shared_event(handle, &shared)
    return code if code else add_event(device, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS, shared, out_event)


# --- captures: modes ---------------------------------------------------------------------------------------

cdef uint64_t this_thread() noexcept nogil:
    return <uint64_t>&thread_self


cdef int exchange_mode(int mode) noexcept nogil:
    global thread_mode
    cdef int before = thread_mode
    thread_mode = mode
    return before


# --- captures: refusals ----------------------------------------------------------------------------------------------

cdef int check_unsafe() noexcept nogil:
    cdef Capture* capture = captures
    cdef bint own, concerned
    cdef int code = 0
    if thread_mode == CAPTURE_RELAXED:
        return 0
    while capture != NULL:
        own = capture.thread == this_thread() and capture.mode != CAPTURE_RELAXED
        concerned = own or (thread_mode == CAPTURE_GLOBAL and capture.mode == CAPTURE_GLOBAL)
        if concerned:
            capture.broken = True
            code = CAPTURE_UNSUPPORTED
        capture = capture.next
    return code


cdef int check_device(int device) noexcept nogil:
    cdef Capture* capture = captures
    cdef int code = 0
    while capture != NULL:
        if capture.origin.device == device:
            capture.broken = True
            code = CAPTURE_UNSUPPORTED
        capture = capture.next
    return code


cdef bint concerns(const Capture* capture, const HostStream* legacy) noexcept nogil:
    # One of the streams in it would be ordered with the legacy stream's work.
    cdef const HostStream* stream = capture.streams
    while stream != NULL and not (stream.flags == STREAM_BLOCKING and stream.device == legacy.device):
        stream = stream.captured
    return stream != NULL


cdef bint beside_capture(HostStream* legacy) noexcept nogil:
    cdef const Capture* capture = captures
    while capture != NULL and not concerns(capture, legacy):
        capture = capture.next
    return capture != NULL


cdef int check_implicit(HostStream* stream) noexcept nogil:
    cdef Capture* capture = captures if is_legacy(stream) else NULL
    cdef int code = 0
    while capture != NULL:
        if concerns(capture, stream):
            capture.broken = True
            code = CAPTURE_IMPLICIT
        capture = capture.next
    return code


cdef int break_capture(HostStream* stream, int code) noexcept nogil:
    if stream.capture != NULL:
        stream.capture.broken = True
    return code


# --- captures: beginning and ending ----------------------------------------------------------------------------------

cdef int begin_capture(HostStream* stream, Graph* body, int mode) noexcept nogil:
    global captures, last_id
    cdef Capture* capture
    if is_legacy(stream):
        return CAPTURE_UNSUPPORTED
    if stream.capture != NULL:
        return ILLEGAL_STATE
    if mode < CAPTURE_GLOBAL or mode > CAPTURE_RELAXED:
        return INVALID_VALUE
    capture = <Capture*>calloc(1, sizeof(Capture))
    if capture != NULL:
        capture.graph = body if body != NULL else <Graph*>calloc(1, sizeof(Graph))
    if capture == NULL or capture.graph == NULL:
        free(capture)
        return NO_HOST_MEMORY
    last_id += 1
    capture.id = last_id
    capture.origin = stream
    capture.mode = mode
    capture.thread = this_thread()
    capture.next = captures
    captures = capture
    attach(stream, capture)
    stream.frontier.count = 0
    return 0


cdef void attach(HostStream* stream, Capture* capture) noexcept nogil:
    stream.capture = capture
    stream.captured = capture.streams
    capture.streams = stream


cdef Capture* capture_of(uint64_t id) noexcept nogil:
    cdef Capture* capture = captures
    while capture != NULL and capture.id != id:
        capture = capture.next
    return capture


cdef void spread(const Graph* graph, const Frontier* origin, char* reached) noexcept nogil:
    # Marks everything that the frontier comes after; nodes come after earlier ones only.
    cdef int index, step
    for index in range(origin.count):
        reached[origin.nodes[index]] = 1
    for index in range(graph.count - 1, -1, -1):
        if reached[index]:
            for step in range(graph.nodes[index].after.count):
                reached[graph.nodes[index].after.nodes[step]] = 1


cdef bint all_joined(const Capture* capture) noexcept nogil:
    cdef const HostStream* stream = capture.streams
    cdef char* reached = <char*>calloc(capture.graph.count + 1, 1)
    cdef bint joined = reached != NULL and not capture.unjoined
    cdef int index
    if joined:
        spread(capture.graph, &capture.origin.frontier, reached)
    while stream != NULL and joined:
        for index in range(stream.frontier.count):
            joined = joined and reached[stream.frontier.nodes[index]]
        stream = stream.captured
    free(reached)
    return joined


cdef void detach(Capture* capture) noexcept nogil:
    # Every stream leaves it; the graph is the caller's.
    cdef HostStream* stream = capture.streams
    cdef Capture** link = &captures
    while stream != NULL:
        stream.capture = NULL
        stream.frontier.count = 0
        stream = stream.captured
    while link[0] != capture:
        link = &link[0].next
    link[0] = capture.next
    free(capture)


cdef int end_capture(HostStream* stream, Graph** out_graph) noexcept nogil:
    cdef Capture* capture = stream.capture
    cdef Graph* graph
    cdef int code = 0
    out_graph[0] = NULL
    if capture == NULL:
        return ILLEGAL_STATE
    if capture.origin != stream:
        return break_capture(stream, CAPTURE_UNMATCHED)
    graph = capture.graph
    if capture.thread != this_thread() and capture.mode != CAPTURE_RELAXED:
        code = CAPTURE_WRONG_THREAD  # and the capture is gone, as on a GPU
    elif capture.broken:
        code = CAPTURE_INVALID
    elif not all_joined(capture):
        code = CAPTURE_UNJOINED
    detach(capture)
    if code:
        free_unless_body(graph)
        return code
    out_graph[0] = graph
    return 0


cdef void free_unless_body(Graph* graph) noexcept nogil:
    if graph != NULL and graph.within == NULL:
        free_graph(graph)


cdef void abandon_capture(HostStream* stream) noexcept nogil:
    cdef Capture* capture = stream.capture
    cdef HostStream** link
    cdef Graph* graph
    if capture == NULL:
        return
    if capture.origin == stream:
        graph = capture.graph
        detach(capture)
        free_unless_body(graph)
    else:
        capture.unjoined = True
        stream.capture = NULL
        link = &capture.streams
        while link[0] != stream:
            link = &link[0].captured
        link[0] = stream.captured


# --- nodes -------------------------------------------------------------------------------------------------

cdef int add_node(HostStream* stream, const Work* work) noexcept nogil:
    cdef Graph* graph = stream.capture.graph
    cdef Frontier itself
    cdef int index, code
    if stream.capture.broken:
        return CAPTURE_INVALID
    if work.across:
        return break_capture(stream, CAPTURE_UNSUPPORTED)
    if work.kind == CALL and graph.governed:
        return break_capture(stream, NOT_SUPPORTED)  # a body holds kernels, copies, fills and conditions
    code = append_behind(graph, work, &stream.frontier)
    if code:
        return code
    index = graph.count - 1
    graph.nodes[index].work.priority = stream.priority * (work.kind == KERNEL)
    itself.nodes, itself.data = &index, NULL
    itself.count = 1
    return copy_frontier(&stream.frontier, &itself)


cdef int append_behind(Graph* graph, const Work* work, const Frontier* after) noexcept nogil:
    # A launch that may begin early has an edge that says so, if it comes after one kernel.
    cdef Frontier early
    cdef EdgeData data
    if not work.programmatic or after.count != 1 or graph.nodes[after.nodes[0]].work.kind != KERNEL:
        return append_node(graph, work, after)
    memset(&data, 0, sizeof(EdgeData))
    data.type, data.from_port = EDGE_PROGRAMMATIC, PORT_PROGRAMMATIC
    early.nodes, early.data, early.count = after.nodes, &data, 1
    return append_node(graph, work, &early)


cdef int append_node(Graph* graph, const Work* work, const Frontier* after) noexcept nogil:
    cdef Node* added
    if ensure_room(&graph.nodes, graph.count, &graph.capacity, sizeof(Node)):
        return NO_HOST_MEMORY
    added = &graph.nodes[graph.count]
    memset(added, 0, sizeof(Node))
    if copy_frontier(&added.after, after):
        clear_frontier(&added.after)
        return NO_HOST_MEMORY
    added.handle = new_handle()
    added.work = work[0]
    hold_work(work)
    if work.kind == BRANCH:
        work.condition.governs = True
    graph.count += 1
    return 0


cdef bint is_captured_into(const Graph* graph) noexcept nogil:
    cdef const Capture* capture = captures
    while capture != NULL and capture.graph != graph:
        capture = capture.next
    return capture != NULL


cdef Graph* find_captured(uintptr_t handle) noexcept nogil:
    cdef const Capture* capture = captures
    while handle and capture != NULL and (capture.graph == NULL or capture.graph.handle != handle):
        capture = capture.next
    return capture.graph if handle and capture != NULL else NULL


cdef int join_frontier(Frontier* to, const Frontier* origin) noexcept nogil:
    cdef int index
    cdef int code = 0
    for index in range(origin.count):
        code = code or add_to_frontier(to, origin.nodes[index])
    return code


cdef int join_capture(HostStream* stream, uint64_t id, const Frontier* after) noexcept nogil:
    # The stream waits for an event that was recorded in a capture, and so becomes part of it.
    cdef Capture* capture = capture_of(id)
    if capture == NULL:
        return break_capture(stream, INVALID_VALUE)
    if capture.broken:
        return CAPTURE_INVALID
    if stream.capture == NULL:
        if is_legacy(stream):
            capture.broken = True
            return CAPTURE_IMPLICIT
        attach(stream, capture)
        return copy_frontier(&stream.frontier, after)
    if stream.capture != capture:
        stream.capture.broken = True
        capture.broken = True
        return CAPTURE_MERGE
    return join_frontier(&stream.frontier, after)


# --- graphs ------------------------------------------------------------------------------------------------

cdef void lose_body(const Graph* body) noexcept nogil:
    # What is still being captured into it goes nowhere.
    cdef Capture* capture = captures
    while capture != NULL:
        if capture.graph == body:
            capture.broken = True
            capture.graph = NULL
        capture = capture.next


cdef void free_graph(Graph* graph) noexcept nogil:
    # And its siblings; NULL is none.
    cdef Graph* sibling
    while graph != NULL:
        sibling = graph.sibling
        free_one(graph)
        graph = sibling


cdef void free_one(Graph* graph) noexcept nogil:
    cdef Condition* condition = graph.conditions
    cdef Condition* following
    cdef int index
    for index in range(graph.count):
        clear_frontier(&graph.nodes[index].after)
        drop_work(&graph.nodes[index].work)
        free_graph(graph.nodes[index].work.body)
    while condition != NULL:
        following = condition.next
        drop_condition(condition)
        condition = following
    if graph.within != NULL:
        lose_body(graph)
        forget_body(graph)
    free(graph.nodes)
    free(graph)


cdef void hold_work(const Work* work) noexcept nogil:
    # What a node's work shares with others.
    if work.condition != NULL:
        work.condition.holders += 1
    if work.launch != NULL:
        work.launch.holders += 1
    if work.allocation != NULL:
        work.allocation.holders += 1


# --- the host device's conditional nodes ------------------------------------------------------------------

cdef Graph* find_body(uintptr_t handle) noexcept nogil:
    return <Graph*>map_find(&bodies, handle)


cdef void keep_body(Graph* body) noexcept nogil:
    map_insert(&bodies, body.handle, body)


cdef void forget_body(const Graph* body) noexcept nogil:
    map_remove(&bodies, body.handle)


cdef int check_capturing(const HostStream* stream) noexcept nogil:
    if stream.capture == NULL:
        return ILLEGAL_STATE
    return CAPTURE_INVALID if stream.capture.broken else 0


cdef int new_condition(HostStream* stream, uint64_t* out_condition) noexcept nogil:
    cdef int code = check_capturing(stream)
    return code if code else add_condition(stream.capture.graph, 0, False, out_condition)


cdef int add_condition(Graph* graph, unsigned int value, bint kept, uint64_t* out_condition) noexcept nogil:
    cdef Condition* added = <Condition*>calloc(1, sizeof(Condition))
    if added == NULL:
        return NO_HOST_MEMORY
    added.holders = 1
    added.initial, added.kept = value, kept
    added.next = graph.conditions
    graph.conditions = added
    out_condition[0] = <uintptr_t>&added.value
    return 0


cdef Condition* condition_of(const Graph* graph, uint64_t condition) noexcept nogil:
    cdef Condition* entry = NULL
    while graph != NULL and entry == NULL:
        entry = graph.conditions
        while entry != NULL and <uintptr_t>&entry.value != condition:
            entry = entry.next
        graph = graph.within
    return entry


cdef int prepare(HostStream* stream, uint64_t condition, int kind, Work* out_work) noexcept nogil:
    cdef int code = check_capturing(stream)
    begin_work(out_work, kind)
    if code:
        return code
    out_work.condition = condition_of(stream.capture.graph, condition)
    return 0 if out_work.condition != NULL else INVALID_VALUE


cdef int prepare_set(HostStream* stream, uint64_t condition, uintptr_t address, Work* out_work) noexcept nogil:
    cdef int code = prepare(stream, condition, SET, out_work)
    if code:
        return code
    out_work.src = address
    out_work.size = sizeof(int)
    out_work.known = SRC_KNOWN
    if address % sizeof(int) or owner_of(address, sizeof(int)) == UNKNOWN_MEMORY:
        return INVALID_VALUE
    return 0


cdef int prepare_branch(HostStream* stream, uint64_t condition, int flow, Work* out_work) noexcept nogil:
    cdef int code = check_capturing(stream)
    return code if code else begin_branch(stream.capture.graph, condition, flow, 1, out_work)


cdef int begin_branch(Graph* graph, uint64_t condition, int flow, unsigned int count, Work* out_work) noexcept nogil:
    # With so many bodies, which are known; where its node is not added, free_graph is for these.
    cdef Graph** link = &out_work.body
    cdef int code = 0
    begin_work(out_work, BRANCH)
    out_work.condition = condition_of(graph, condition)
    out_work.flow = flow
    if out_work.condition == NULL or out_work.condition.governs or count == 0:
        return INVALID_VALUE
    while count and code == 0:
        code = map_reserve(&bodies)
        link[0] = <Graph*>calloc(1, sizeof(Graph)) if code == 0 else NULL
        if link[0] == NULL:
            code = NO_HOST_MEMORY
            break
        link[0].within, link[0].governed = graph, True
        link[0].handle = new_handle()
        keep_body(link[0])
        link = &link[0].sibling
        count -= 1
    if code:
        free_graph(out_work.body)
        out_work.body = NULL
    return code


at_fork("driver.host.stream", FORK_HOST_DRIVER, &hold_still, &go_on, &shut_in_child)
