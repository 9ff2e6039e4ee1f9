"""accelrt's pool behind torch's CUDAPluggableAllocator: every function that torch calls of such an allocator.

torch takes them as addresses of C++ functions.  Their arguments are a std::pair of two integers, which arrives in
registers as a C structure of two integers does, and a std::function, which arrives as a pointer; so plain C functions
serve, and nothing of torch is needed to compile them.  `prepare` finds the setters by the names that C++ gives them: such
a name spells out every argument and the C++ library, so a torch whose functions are others is refused there.

torch passes a filter with each pool, which says what is allocated from it.  It is never called or copied, since the one of
a capture dies with torch's graph, and torch does not say so when a capture fails.  What it is for is read from its type:
a capture, which is then known by the stream that is current when it begins, or the calling thread.
"""
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strlen

from accelrt.core.locks cimport (
    add_count, load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
    store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.capture_guard cimport count_out_told_capture, expect_told_capture
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE
from accelrt.driver.waiting cimport drop_with_gil, make_thread_state
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made, take_stack_of, wants_stack
from accelrt.allocator.history_types cimport CONTEXT_ALL, CONTEXT_STATE
from accelrt.allocator.pool cimport (
    allocate, empty, locate, record_deferred_uses, release, set_limit, try_allocate, use_across,
)
from accelrt.allocator.private.private_pool cimport thread_number
from accelrt.allocator.private.routes cimport (
    begin_pool, end_expected_capture, end_thread_route, expect_capture_on, expect_idle, hide_replays, release_pool,
    retain_pool,
)
from accelrt.allocator.read_stats cimport active_bytes, allocated_bytes, largest_free, limit_of, reserved_bytes
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.types cimport Pool
from accelrt.allocator.pinned.pool cimport record_deferred_pinned
from accelrt.status cimport (
    CAP_REACHED, FORKED, INVALID_DEVICE, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, NO_HOST_MEMORY,
    OUT_OF_MEMORY, POOL_CAP_REACHED, status_name, status_text,
)

cdef extern from "Python.h" nogil:
    void* PyGILState_GetThisThreadState()
    int PyGILState_Check()
    void PyEval_RestoreThread(void* state)
    void* PyEval_SaveThread()

# --- what torch calls ----------------------------------------------------------------------------------------

# These return to C++ frames, and those that raise do so from here, where no lock is held and no frame needs cleaning up:
# the exception passes through frames of C only.  torch calls free, end_pool and release_pool in destructors, where an
# exception would end the process, so those write what went wrong to stderr.

cdef extern from "torch_abi.h":
    enum:
        HOOK_TEXT
    enum:
        FOR_CAPTURE
        FOR_THREAD
    struct Hooks:
        int (*alloc)(size_t size, int device, void* stream, uintptr_t* out_address, char* text) noexcept nogil
        void (*free)(void* address, int device) noexcept nogil
        void (*record_stream)(void* address, void* stream) noexcept nogil
        void (*reset)() noexcept nogil
        size_t (*largest)(int device) noexcept nogil
        void (*memory_fraction)(double fraction, int device) noexcept nogil
        int (*init)(int count, char* text) noexcept nogil
        int (*begin_pool)(int device, uint64_t first, uint64_t second, int purpose, char* text) noexcept nogil
        void (*end_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
        void (*release_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
    Hooks hooks
    void* leave_gil "accelrt_leave_gil" () noexcept nogil
    void enter_gil "accelrt_enter_gil" (void* state) noexcept nogil
    const char* find_in_torch "accelrt_find" (void* library, int* raises) noexcept nogil
    bint replace_cache_info "accelrt_answer_cache_info" (void* library) noexcept nogil
    void* open_loaded "accelrt_open" (const char* path) noexcept nogil


cdef inline bint outside(int device) noexcept nogil:
    return device < 0 or device >= MAX_DEVICES


cdef void complain(const char* call, int device, int code) noexcept nogil:
    fprintf(stderr, "accelrt: %s on device %d answered %s: %s\n", call, device, status_name(code), status_text(code))


cdef int explain(char* text, const char* call, int device, int code) noexcept nogil:
    snprintf(text, HOOK_TEXT, "accelrt, which is torch's allocator here, could not %s on device %d: %s (%d): %s", call,
             device, status_name(code), code, status_text(code))
    return -1


# --- memory --------------------------------------------------------------------------------------------------

cdef double mib(int64_t size) noexcept nogil:
    return size / 1048576.0


cdef double amount(size_t size) noexcept nogil:
    # In what unit_of answers.
    return size / 1073741824.0 if size >= 1 << 30 else mib(size)


cdef const char* unit_of(size_t size) noexcept nogil:
    return b"GiB" if size >= 1 << 30 else b"MiB"


cdef int explain_memory(char* text, int device, size_t size) noexcept nogil:
    # Takes no GIL: torch may hold locks of its own here.  It begins with torch's words, which programs look for.
    cdef Pool* pool = pool_if_made(device)
    cdef size_t room = 0, capacity = 0
    cdef size_t limit = limit_of(pool)
    cdef int64_t reserved = reserved_bytes(pool), live = allocated_bytes(pool), active = active_bytes(pool)
    cdef int written
    registry.active().memory_info(device, &room, &capacity)  # a refusal leaves zeros
    written = snprintf(
        text, HOOK_TEXT, "CUDA out of memory. Tried to allocate %.2f %s. GPU %d has a total capacity of %.2f %s of which "
        "%.2f %s is free. It is %zu bytes of accelrt, torch's allocator here. accelrt reserved %.2f MiB: "
        "%.2f are live, %.2f given back but in use on another stream, %.2f idle, of which the largest piece has %.2f. "
        "accelrt.memory.report() shows what holds it.", amount(size), unit_of(size), device, amount(capacity),
        unit_of(capacity), amount(room), unit_of(room), size, mib(reserved), mib(live), mib(active - live),
        mib(reserved - active), mib(largest_free(pool)))
    if limit < SIZE_MAX and written > 0 and written < HOOK_TEXT:
        snprintf(text + written, HOOK_TEXT - written, " The limit is %.2f MiB (set_per_process_memory_fraction).",
                 mib(limit))
    return 1


cdef int hook_alloc(size_t size, int device, void* stream, uintptr_t* out_address, char* text) noexcept nogil:
    # 0; else there is a text: above 0 for a lack of memory, below for everything else.
    cdef int code
    out_address[0] = 0
    if size == 0:
        return 0
    if outside(device):
        return explain(text, "allocate", device, INVALID_DEVICE)
    if wants_stack(CONTEXT_STATE):
        take_stack_here(device, CONTEXT_STATE)
    code = try_allocate(device, size, <uintptr_t>stream, out_address)
    if code == NOT_READY:
        code = alloc_slow(size, device, <uintptr_t>stream, out_address)
    if code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED:
        return explain_memory(text, device, size)
    return explain(text, "allocate", device, code) if code else 0


cdef void take_stack_here(int device, int level) noexcept nogil:
    # torch has released the GIL; its own recorder takes it again in the same places.  Threads of C++ alone have no frames.
    cdef void* state = PyGILState_GetThisThreadState()
    if state != NULL and not PyGILState_Check():
        PyEval_RestoreThread(state)
        take_stack_of(device, level)
        PyEval_SaveThread()


cdef int alloc_slow(size_t size, int device, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    # With the GIL as it is: to release it and take it again would deadlock where torch holds a lock of its own, for which
    # another thread may wait with the GIL.
    if load_count(&open_captures):
        drop_ended()
    return allocate(device, size, stream, out_address)


cdef void hook_free(void* address, int device) noexcept nogil:
    # torch names the stream that the memory was allocated on, which is no news.
    cdef int code = INVALID_DEVICE
    if address == NULL:
        return
    if not outside(device):
        if wants_stack(CONTEXT_ALL):
            take_stack_here(device, CONTEXT_ALL)
        code = release(device, <uintptr_t>address)
    if code and code != FORKED:
        complain("freeing torch's memory", device, code)


cdef void hook_record_stream(void* address, void* stream) noexcept nogil:
    # Also called for memory that torch has from elsewhere, another library's or another process's: nothing to do.
    cdef int device = 0, stream_on = 0
    cdef int code
    if address == NULL:
        return
    code = locate(0, <uintptr_t>address, &device)
    if code == 0:
        code = registry.active().stream_device(device, <uintptr_t>stream, &stream_on)
    if code == 0:
        code = use_across(device, <uintptr_t>address, stream_on, <uintptr_t>stream)
    if code and code != NOT_ALLOCATED and code != FORKED:
        complain("record_stream for torch", device, code)


cdef size_t hook_largest(int device) noexcept nogil:
    # The largest block that an allocation could get now: of the device, or of what is idle.
    cdef Pool* pool = NULL if outside(device) else pool_if_made(device)
    cdef size_t room = 0, capacity = 0, limit = limit_of(pool)
    cdef size_t reserved = reserved_bytes(pool)
    registry.active().memory_info(device, &room, &capacity)
    if limit < SIZE_MAX:
        room = min(room, limit - reserved if limit > reserved else 0)
    return max(room, largest_free(pool))


cdef void hook_reset() noexcept nogil:
    cdef void* state = leave_gil()
    cdef int device, code
    if load_count(&open_captures):
        drop_ended()
    for device in range(MAX_DEVICES):
        code = empty(device)
        if code:
            complain("empty_cache for torch", device, code)
    enter_gil(state)


cdef void hook_memory_fraction(double fraction, int device) noexcept nogil:
    cdef void* state = leave_gil()
    cdef size_t total = 0
    cdef int code = INVALID_DEVICE if outside(device) else 0
    if code == 0 and not 0 <= fraction <= 1:
        code = INVALID_VALUE
    if code == 0:
        code = registry.active().device_memory(device, &total)
    if code == 0:
        code = set_limit(device, limit_of_fraction(fraction, total))
    enter_gil(state)
    if code:
        complain("set_per_process_memory_fraction for torch", device, code)


cdef int hook_init(int count, char* text) noexcept nogil:
    # When torch initialises CUDA: accelrt has to see the same devices.  With the GIL as it is: torch calls this once, and
    # other threads wait for that, maybe with the GIL.  So accelrt.interop.torch has accelrt initialised before.
    cdef int seen = 0
    cdef int code = registry.active().device_count(&seen)
    if code:
        return explain(text, "initialise", 0, code)
    if seen < count:
        snprintf(text, HOOK_TEXT, "torch sees %d devices and accelrt, which is torch's allocator here, %d: "
                 "CUDA_VISIBLE_DEVICES was changed between their first uses; set it before either is used", count, seen)
        return -1
    return 0


# --- pools ---------------------------------------------------------------------------------------------------

# A pool that torch uses: from begin_pool to release_pool.
cdef struct Use:
    int device
    int purpose        # FOR_CAPTURE or FOR_THREAD
    int state
    uint64_t[2] id     # accelrt's
    uint64_t thread    # the number of the thread that began it
    uintptr_t origin   # of a capture: the stream that it was to begin on
    uint64_t capture   # the driver's id of it, once its own thread saw it run
    bint seen          # another thread did
    Use* next

cdef enum:  # Use.state
    OPEN = 0   # allocations go to it
    ENDED = 1  # they no longer do; the memory is retained
    LOST = 2   # a capture that ended, of which torch has not said so: it failed, or its thread is about to say so

cdef enum:
    ANY_STATE = -1

# An id of torch's stands for a pool of torch's; where the second number has this bit, for a MemPool of accelrt's.
cdef enum:
    MARK = 62

cdef pthread_mutex_t guard   # of uses; the last in the lock order, and never held while anything is waited for
cdef Use* uses = NULL        # the latest first
cdef long open_captures = 0  # of the uses
cdef object current_stream = None  # torch's function: the handle of the calling thread's current stream on a device


cdef void translate(uint64_t first, uint64_t second, uint64_t* out_id) noexcept nogil:
    if first == 0 and second >> MARK & 1:
        out_id[0], out_id[1] = 0, second ^ <uint64_t>1 << MARK
    else:
        out_id[0], out_id[1] = first | <uint64_t>1 << MARK, second


cdef bint is_match(const Use* use, int device, const uint64_t* id, int state) noexcept nogil:
    return (use.device == device and use.id[0] == id[0] and use.id[1] == id[1]
            and (use.state == state or state == ANY_STATE and use.state != ENDED))


cdef Use** find_use(int device, const uint64_t* id, int state) noexcept nogil:
    # The calling thread's latest use of the pool in that state, one by use_mem_pool before one by a capture; else any
    # thread's latest.  The link to it, which leads to NULL where there is none.
    cdef uint64_t thread = thread_number()
    cdef Use** link = &uses
    cdef Use** found = NULL
    cdef int rank, best = -1
    while link[0] != NULL:
        if is_match(link[0], device, id, state):
            if link[0].purpose == FOR_CAPTURE:
                rank = 1 + 2 * (link[0].thread == thread)
            else:
                rank = 0 if link[0].thread != thread else 3 + (state == ENDED)
            if rank > best:
                found, best = link, rank
        link = &link[0].next
    return link if found == NULL else found


cdef void add_use(Use* use) noexcept nogil:
    global uses
    pthread_mutex_lock(&guard)
    use.next = uses
    uses = use
    pthread_mutex_unlock(&guard)


cdef int stream_of_thread(int device, uintptr_t* out_stream) noexcept nogil:
    # Asks torch, with the GIL.
    cdef bint made = make_thread_state()
    with gil:
        drop_with_gil(made)
        try:
            out_stream[0] = current_stream(device)
        except BaseException:  # else an interruption would leave the capture expected on no stream
            return NOT_SUPPORTED
    return 0


cdef int begin_capture_use(Use* use) noexcept nogil:
    # torch begins the capture as soon as this returns.  As accelrt's own captures, it is counted before it begins.
    cdef int device = use.device
    cdef uint64_t first = use.id[0], second = use.id[1]
    cdef int code = stream_of_thread(device, &use.origin)
    if code == 0:
        code = retain_pool(device, first, second, False, 0)
    if code:
        return code
    expect_idle(device)
    expect_told_capture()
    code = expect_capture_on(device, use.origin, first, second)
    if code:
        count_out_told_capture()
        record_deferred_uses()
        record_deferred_pinned()
        release_pool(device, first, second, False)
        return code
    add_count(&open_captures, 1)
    return 0


cdef int hook_begin_pool(int device, uint64_t first, uint64_t second, int purpose, char* text) noexcept nogil:
    cdef void* state
    cdef Use* use
    cdef int code = 0
    if outside(device):
        return explain(text, "allocate from a pool", device, INVALID_DEVICE)
    if purpose != FOR_CAPTURE and purpose != FOR_THREAD:
        snprintf(text, HOOK_TEXT, "accelrt, which is torch's allocator here, serves torch's pools for captures "
                 "(torch.cuda.graph) and for the calling thread (torch.cuda.use_mem_pool); this call asks for something "
                 "else, such as the body of a condition, or all threads or one stream outside a capture")
        return -1
    use = <Use*>calloc(1, sizeof(Use))
    if use == NULL:
        return explain(text, "allocate from a pool", device, NO_HOST_MEMORY)
    use.device, use.purpose, use.thread = device, purpose, thread_number()
    translate(first, second, use.id)
    state = leave_gil()
    if load_count(&open_captures):
        drop_ended()
    if purpose == FOR_CAPTURE:
        code = begin_capture_use(use)
    else:
        code = begin_pool(device, use.id[0], use.id[1])
    if code == 0:
        add_use(use)
    enter_gil(state)
    if code:
        free(use)
        return explain(text, "allocate from a pool", device, code)
    return 0


cdef void end_use(Use* use) noexcept nogil:
    # Of a copy of the record, without the guard.
    if use.purpose == FOR_THREAD:
        end_thread_route(use.device, use.id[0], use.id[1], use.thread)
        return
    add_count(&open_captures, -1)
    count_out_told_capture()
    end_expected_capture(use.device, use.origin, use.id[0], use.id[1])
    record_deferred_uses()
    record_deferred_pinned()


cdef void release_use(Use* use) noexcept nogil:
    # torch does not say on which streams its graph was replayed.
    if use.purpose == FOR_CAPTURE:
        hide_replays(use.device, use.id[0], use.id[1])
    release_pool(use.device, use.id[0], use.id[1], use.purpose == FOR_THREAD)


cdef void hook_end_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] id
    cdef void* state
    cdef Use* use
    cdef Use found
    cdef int before = ENDED
    memset(&found, 0, sizeof(Use))
    translate(first, second, id)
    pthread_mutex_lock(&guard)
    use = find_use(device, id, ANY_STATE)[0]
    if use != NULL:
        before = use.state
        use.state = ENDED
        found = use[0]
    pthread_mutex_unlock(&guard)
    if before == OPEN:
        state = leave_gil()
        end_use(&found)
        enter_gil(state)


cdef void hook_release_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] id
    cdef void* state
    cdef Use** link
    cdef Use* use
    translate(first, second, id)
    pthread_mutex_lock(&guard)
    link = find_use(device, id, ENDED)
    use = link[0]
    if use != NULL:
        link[0] = use.next
    pthread_mutex_unlock(&guard)
    if use == NULL:
        return
    state = leave_gil()
    release_use(use)
    enter_gil(state)
    free(use)


# --- captures that fail --------------------------------------------------------------------------------------

cdef bint is_over(Use* use) noexcept nogil:
    # torch says nothing of a capture that fails, to begin or to end; the driver says whether its stream still captures.  A
    # capture that never ran is over for certain only on its own thread, which is past the attempt to begin it.  Another
    # thread may be ending it just now, and so asks for the status alone: which capture it is only the own thread asks.
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    if registry.active().stream_is_capturing(use.device, use.origin, &status):
        return False
    if use.thread != thread_number():
        use.seen = use.seen or status == CAPTURE_ACTIVE
        return status == CAPTURE_NONE and (use.seen or use.capture != 0)
    if registry.active().capture_status(use.device, use.origin, &status, &capture):
        return False
    if status == CAPTURE_ACTIVE and use.capture == 0:
        use.capture = capture
    if status != CAPTURE_NONE:
        return status == CAPTURE_ACTIVE and capture != use.capture
    return True


cdef bint take_ended(Use* out_use, bint* out_lost) noexcept nogil:
    # The next capture that is over without torch having said so.  On its own thread torch will not say it any more, so
    # the record goes; on another it may be about to.
    cdef Use** link = &uses
    cdef Use* use
    cdef bint own, found = False
    pthread_mutex_lock(&guard)
    while link[0] != NULL and not found:
        use = link[0]
        own = use.thread == thread_number()
        found = use.purpose == FOR_CAPTURE and (use.state == OPEN and is_over(use) or use.state == LOST and own)
        if not found:
            link = &use.next
            continue
        out_use[0] = use[0]
        out_lost[0] = not own
        use.state = LOST
        if own:
            link[0] = use.next
            free(use)
    pthread_mutex_unlock(&guard)
    return found


cdef void drop_ended() noexcept nogil:
    # Without the GIL.
    cdef Use use
    cdef bint lost = False
    memset(&use, 0, sizeof(Use))
    while take_ended(&use, &lost):
        if use.state == OPEN:
            end_use(&use)
        if not lost:
            release_use(&use)


cdef void forget_uses() noexcept nogil:
    # At import, and in a forked child, which has none of the parent's captures and pools.
    global uses
    pthread_mutex_init(&guard, NULL)
    uses = NULL
    store_count(&open_captures, 0)


forget_uses()
at_fork("allocator.external.torch_hooks", FORK_POOLS, NULL, NULL, &forget_uses)
hooks.alloc = hook_alloc
hooks.free = hook_free
hooks.record_stream = hook_record_stream
hooks.reset = hook_reset
hooks.largest = hook_largest
hooks.memory_fraction = hook_memory_fraction
hooks.init = hook_init
hooks.begin_pool = hook_begin_pool
hooks.end_pool = hook_end_pool
hooks.release_pool = hook_release_pool


# --- for accelrt.interop.torch -------------------------------------------------------------------------------

TORCH_MARK = <uint64_t>1 << MARK


def prepare(library, stream_function):
    """Finds in torch what the functions above need.

    Arguments:
        library: bytes, the path of torch's extension module, which is loaded.
        stream_function: called with an ordinal, answers the handle of the calling thread's current stream.
    Returns:
        (str or None, bool): the C++ name of what this torch lacks; whether out of memory can be raised as torch's
        OutOfMemoryError, and not only as its base RuntimeError.
    """
    global current_stream
    cdef int raises = 0
    cdef const char* lacks
    cdef void* opened = open_loaded(library)
    if opened == NULL:
        return f"the library {library!r}", False
    lacks = find_in_torch(opened, &raises)
    if lacks != NULL:
        return lacks[:strlen(lacks)].decode(), False
    current_stream = stream_function
    return None, bool(raises)


def answer_cache_info(library):
    """Has torch's current allocator, which is this one, answer what cuDNN's benchmark mode asks: the largest block.

    Arguments:
        library: bytes, as for prepare.
    Returns:
        bool: whether it does; else torch raises RuntimeError there, as with every plugged allocator.
    """
    cdef void* opened = open_loaded(library)
    return opened != NULL and replace_cache_info(opened)


def limit_fraction(int device):
    """The part of a device's memory that may be reserved, 1.0 where there is no limit."""
    cdef Pool* pool = NULL if outside(device) else pool_if_made(device)
    cdef size_t total = 0, limit
    with nogil:
        limit = limit_of(pool)
        registry.active().device_memory(device, &total)
    return 1.0 if limit == SIZE_MAX or total == 0 else <double>limit / <double>total


def open_uses():
    """What torch uses of pools now, for tests: a list, of 64 at most, of (device, id, "capture" or "thread", state)."""
    # No object is made under the guard: a garbage collection may end uses.
    cdef Use[64] copies
    cdef int index, count = 0
    cdef Use* use
    cdef list answer = []
    pthread_mutex_lock(&guard)
    use = uses
    while use != NULL and count < 64:
        copies[count] = use[0]
        count += 1
        use = use.next
    pthread_mutex_unlock(&guard)
    for index in range(count):
        use = &copies[index]
        kind = "capture" if use.purpose == FOR_CAPTURE else "thread"
        answer.append((use.device, (use.id[0], use.id[1]), kind, ("open", "ended", "lost")[use.state]))
    return answer
