"""accelrt's pool behind torch's allocator: as a library and the hooks of torch's CUDAPluggableAllocator, and as an object
of torch's own class, which interop/torch_allocator.cpp is the source of."""
import os
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strlen

from accelrt.allocator.backing.pages cimport connect_two
from accelrt.allocator.event_ring cimport Follower
from accelrt.allocator.external.torch_types cimport (
    Give, Take, TORCH_CAPTURE, TORCH_HANDLE, TORCH_HOLDER, TORCH_LIVE, TORCH_PENDING, TORCH_TABLE_VERSION, TORCH_TEXT,
    TORCH_THREAD, TorchBlock, TorchCounter, TorchEvent, TorchPinnedStats, TorchSource, TorchStats, TorchTable, TorchTiming,
    TorchWatcher,
)
from accelrt.allocator.history_types cimport CONTEXT_ALL, CONTEXT_STATE, Event
from accelrt.allocator.heaps cimport block_at, lock_all, thread_number, unlock_all
from accelrt.allocator.pinned.block cimport PinnedStats, Tally, Timing
from accelrt.allocator.pinned.cache cimport (
    allocate_pinned_on, empty_pinned, read_pinned_stats, record_deferred_pinned, release_pinned, try_allocate_pinned,
    try_release_pinned, use_pinned_on,
)
from accelrt.allocator.pool cimport (
    MAX_DEVICES, Exported, begin_export, device_at, empty_named, end_export, follow_history, let_device_reach, locate,
    pool_if_made, record_deferred_uses, release, take_stack_of, try_allocate, use_across, use_on, wants_stack,
)
cimport accelrt.allocator.pool as native
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.private.routes cimport (
    CAPTURED, FIXED, LENT, NO_SUCH_POOL, USED, WAITS, WENT, Saved, Turned, begin_pool, begin_pool_for_common,
    end_expected_capture, end_pool, end_thread_route, expect_capture_on, expect_idle, forget_saved, hide_replays,
    read_private, release_pool, restore_pool, retain_pool, save_pool, set_up_pool,
)
from accelrt.allocator.readers cimport (
    View, active_bytes, allocated_bytes, copy_blocks, largest_free, limit_of, max_split_of, read_stats, reserved_bytes,
    reset_accumulated, reset_peaks, reset_pinned_peaks, reset_pinned_sums,
)
from accelrt.allocator.sizes cimport LARGE
from accelrt.allocator.stats cimport Counter, STATS, Stats
from accelrt.allocator.types cimport LIVE, PENDING, PLAIN, Block, Pool
from accelrt.core.handle_map cimport AddressMap, map_clear, map_find, map_insert, map_remove, map_reserve
from accelrt.core.interpreter cimport holds_gil, interpreter_is_gone
from accelrt.core.locks cimport (
    add_count, load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.driver.guard cimport (
    count_out_told_capture, drop_with_gil, enter_wait, expect_told_capture, go_relaxed, leave_wait, make_thread_state,
    restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE
from accelrt.status cimport (
    CAP_REACHED, DEINITIALIZED, FORKED, INVALID_DEVICE, INVALID_VALUE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY,
    NOT_SUPPORTED, OUT_OF_MEMORY, PEER_ACCESS_UNSUPPORTED, POOL_CAP_REACHED, raise_status, status_name, status_text,
)


cdef extern from *:
    void set_bits "__sync_fetch_and_or" (uint64_t* value, uint64_t bits) noexcept nogil

# stub: TORCH_MARK: int

# --- accelrt's pool in the ABI of torch's CUDAPluggableAllocator ---------------------------------------------

# accelrt's pool as C symbols, for any library that loads this module's file.  They may be called from any thread and take
# no GIL, except that the process's first use of accelrt initialises it, as everywhere.  The ABI has no way to say why:
# each failure is one line on stderr.
#
#     void *accelrt_torch_alloc(size_t size, int device, void *stream);             // NULL: no memory, or size 0
#     void accelrt_torch_free(void *address, size_t size, int device, void *stream);  // NULL: nothing
#     void accelrt_torch_record_stream(void *address, void *stream);
#     void accelrt_torch_reset(void);                                               // empties every cache
#     void accelrt_torch_memory_fraction(double fraction, int device);

cdef extern from *:
    """
    #include <stddef.h>
    #define ACCELRT_EXPORT __attribute__((visibility("default")))
    static struct Library {  /* set when the module is initialised; loading the file alone does not */
        void *(*alloc)(size_t, int, void *);
        void (*free)(void *, size_t, int, void *);
        void (*record_stream)(void *, void *);
        void (*reset)(void);
        void (*memory_fraction)(double, int);
    } exported;
    ACCELRT_EXPORT void *accelrt_torch_alloc(size_t size, int device, void *stream) {
        return exported.alloc ? exported.alloc(size, device, stream) : NULL;
    }
    ACCELRT_EXPORT void accelrt_torch_free(void *address, size_t size, int device, void *stream) {
        if (exported.free)
            exported.free(address, size, device, stream);
    }
    ACCELRT_EXPORT void accelrt_torch_record_stream(void *address, void *stream) {
        if (exported.record_stream)
            exported.record_stream(address, stream);
    }
    ACCELRT_EXPORT void accelrt_torch_reset(void) {
        if (exported.reset)
            exported.reset();
    }
    ACCELRT_EXPORT void accelrt_torch_memory_fraction(double fraction, int device) {
        if (exported.memory_fraction)
            exported.memory_fraction(fraction, device);
    }
    """
    struct Library:
        void* (*alloc)(size_t size, int device, void* stream) noexcept nogil
        void (*free)(void* address, size_t size, int device, void* stream) noexcept nogil
        void (*record_stream)(void* address, void* stream) noexcept nogil
        void (*reset)() noexcept nogil
        void (*memory_fraction)(double fraction, int device) noexcept nogil
    Library exported


cdef bint is_outside(int device) noexcept nogil:
    return device < 0 or device >= MAX_DEVICES


cdef void complain(const char* call, int device, int code) noexcept nogil:
    fprintf(stderr, "accelrt: %s on device %d answered %s: %s\n", call, device, status_name(code), status_text(code))


cdef void complain_of_memory(size_t size, int device, int code) noexcept nogil:
    cdef Pool* pool = pool_at(device)
    fprintf(
        stderr, "accelrt: accelrt_torch_alloc of %zu bytes on device %d answered %s: %s; accelrt reserved %lld "
        "bytes there, of which %lld are live\n", size, device, status_name(code), status_text(code),
        <long long>reserved_bytes(pool), <long long>allocated_bytes(pool))


cdef void* torch_alloc(size_t size, int device, void* stream) noexcept nogil:
    cdef uintptr_t address = 0
    cdef int code = INVALID_DEVICE
    if size == 0:
        return NULL
    if not is_outside(device):
        code = native.allocate(device, size, <uintptr_t>stream, &address)
    if code:
        complain_of_memory(size, device, code)
        return NULL
    return <void*>address


cdef void torch_free(void* address, size_t size, int device, void* stream) noexcept nogil:
    # The stream that frees is one that used the memory; where it is the one that allocated, this is no news.
    cdef int code = INVALID_DEVICE
    if address == NULL:
        return
    if not is_outside(device):
        code = use_on(device, <uintptr_t>address, <uintptr_t>stream)
        if code == 0:
            code = native.release(device, <uintptr_t>address)
    if code and code != FORKED:
        complain("accelrt_torch_free", device, code)


cdef void torch_record_stream(void* address, void* stream) noexcept nogil:
    cdef int device = 0
    cdef int code
    if address == NULL:
        return
    code = native.locate(0, <uintptr_t>address, &device)
    if code == 0:
        code = use_on(device, <uintptr_t>address, <uintptr_t>stream)
    if code:
        complain("accelrt_torch_record_stream", device, code)


cdef void empty_all(const char* call, const uint64_t* name) noexcept nogil:
    cdef int device, code
    for device in range(MAX_DEVICES):
        code = empty_named(device, name)
        if code:
            complain(call, device, code)


cdef void torch_reset() noexcept nogil:
    empty_all("accelrt_torch_reset", NULL)


cdef void limit_to(double fraction, int device, const char* call) noexcept nogil:
    # Reserves no more than this part of a device's memory from now on.
    cdef size_t total = 0
    cdef int code = INVALID_DEVICE if is_outside(device) else 0
    if code == 0 and not 0 <= fraction <= 1:
        code = INVALID_VALUE
    if code == 0:
        code = registry.active().device_memory(device, &total)
    if code == 0:
        code = native.set_limit(device, limit_of_fraction(fraction, total))
    if code:
        complain(call, device, code)


cdef void torch_memory_fraction(double fraction, int device) noexcept nogil:
    limit_to(fraction, device, "accelrt_torch_memory_fraction")


exported.alloc = torch_alloc
exported.free = torch_free
exported.record_stream = torch_record_stream
exported.reset = torch_reset
exported.memory_fraction = torch_memory_fraction


def library_path() -> str:
    """Returns the file of a shared library that exports accelrt's pool in the ABI of CUDAPluggableAllocator.

    Returns:
        str, an absolute path, for torch.cuda.memory.CUDAPluggableAllocator(path, "accelrt_torch_alloc",
        "accelrt_torch_free") or any other user of dlopen in this process.  The library is loaded and ready; its
        first call initialises accelrt, as every first use does.  It also exports accelrt_torch_record_stream,
        accelrt_torch_reset and accelrt_torch_memory_fraction.
    """
    return os.path.abspath(__file__)


# --- torch hooks ------------------------------------------------------------------------------------------------------
# accelrt's pool behind torch's CUDAPluggableAllocator: every function that torch calls of such an allocator.
# torch takes them as addresses of C++ functions.  Their arguments are a std::pair of two integers, which arrives in
# registers as a C structure of two integers does, and a std::function, which arrives as a pointer; so plain C functions
# serve, and nothing of torch is needed to compile them.  `prepare` finds the setters by the names that C++ gives them: such
# a name spells out every argument and the C++ library, so a torch whose functions are others is refused there.
# torch passes a filter with each pool, which says what is allocated from it.  It is never called or copied, since the one of
# a capture dies with torch's graph, and torch does not say so when a capture fails.  What it is for is read from its type:
# a capture, which is then known by the stream that is current when it begins, or the calling thread.

cdef extern from "Python.h" nogil:
    void* PyGILState_GetThisThreadState()
    void PyEval_RestoreThread(void* state)
    void* PyEval_SaveThread()

# --- what torch calls ----------------------------------------------------------------------------------------

# These return to C++ frames, and those that raise do so from here, where no lock is held and no frame needs cleaning up:
# the exception passes through frames of C only.  torch calls free, end_pool and release_pool in destructors, where an
# exception would end the process, so those write what went wrong to stderr.

cdef extern from "torch_abi.h":
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
    void* leave_gil "accelrt_leave_gil" () noexcept nogil  # releases the GIL where the thread has it; for enter_gil
    void enter_gil "accelrt_enter_gil" (void* state) noexcept nogil
    const char* find_in_torch "accelrt_find" (void* library, int* raises) noexcept nogil
    bint replace_cache_info "accelrt_answer_cache_info" (void* library) noexcept nogil
    void* open_loaded "accelrt_open" (const char* path) noexcept nogil


cdef int explain(char* text, const char* call, int device, int code) noexcept nogil:
    snprintf(text, TORCH_TEXT, "accelrt, which is torch's allocator here, could not %s on device %d: %s (%d): %s", call,
             device, status_name(code), code, status_text(code))
    return -1


# --- memory --------------------------------------------------------------------------------------------------

cdef enum:
    AMOUNT = 32  # characters


cdef double mib(int64_t size) noexcept nogil:
    return size / 1048576.0


cdef void print_amount(char* text, size_t size) noexcept nogil:
    # As torch writes amounts; text has room for AMOUNT bytes.
    if size <= 1 << 10:
        snprintf(text, AMOUNT, "%zu bytes", size)
    elif size <= 1 << 20:
        snprintf(text, AMOUNT, "%.2f KiB", size / 1024.0)
    elif size <= 1 << 30:
        snprintf(text, AMOUNT, "%.2f MiB", mib(size))
    else:
        snprintf(text, AMOUNT, "%.2f GiB", size / 1073741824.0)


cdef int explain_memory(char* text, int device, size_t size) noexcept nogil:
    # Takes no GIL: torch may hold locks of its own here.  It begins with torch's words, which programs look for.
    cdef Pool* pool = pool_if_made(device)
    cdef size_t room = 0, capacity = 0
    cdef size_t limit = limit_of(pool)
    cdef int64_t reserved = reserved_bytes(pool), live = allocated_bytes(pool), active = active_bytes(pool)
    cdef char[AMOUNT] asked, whole, left
    cdef int written
    registry.active().memory_info(device, &room, &capacity)  # a refusal leaves zeros
    print_amount(asked, size)
    print_amount(whole, capacity)
    print_amount(left, room)
    written = snprintf(
        text, TORCH_TEXT, "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which "
        "%s is free. It is %zu bytes of accelrt, torch's allocator here. accelrt reserved %.2f MiB: "
        "%.2f are live, %.2f given back but in use on another stream, %.2f idle, of which the largest piece has %.2f. "
        "accelrt.memory.report() shows what holds it.", asked, device, whole, left, size, mib(reserved), mib(live),
        mib(active - live), mib(reserved - active), mib(largest_free(pool)))
    if limit < SIZE_MAX and written > 0 and written < TORCH_TEXT:
        snprintf(text + written, TORCH_TEXT - written, " The limit is %.2f MiB (set_per_process_memory_fraction).",
                 mib(limit))
    return 1


cdef int hook_alloc(size_t size, int device, void* stream, uintptr_t* out_address, char* text) noexcept nogil:
    # 0; else there is a text: above 0 for a lack of memory, below for everything else.
    cdef int code
    out_address[0] = 0
    if size == 0:
        return 0
    if is_outside(device):
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
    if state != NULL and not holds_gil() and not interpreter_is_gone():
        PyEval_RestoreThread(state)
        take_stack_of(device, level)
        PyEval_SaveThread()


cdef int alloc_slow(size_t size, int device, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    # With the GIL as it is: to release it and take it again would deadlock where torch holds a lock of its own, for which
    # another thread may wait with the GIL.
    if load_count(&open_captures):
        drop_ended()
    return native.allocate(device, size, stream, out_address)


cdef int free_block(void* address, int device) noexcept nogil:
    cdef int code
    if is_outside(device):
        return INVALID_DEVICE
    if wants_stack(CONTEXT_ALL):
        take_stack_here(device, CONTEXT_ALL)
    code = release(device, <uintptr_t>address)
    return 0 if code == FORKED else code


cdef void hook_free(void* address, int device) noexcept nogil:
    # torch names the stream that the memory was allocated on, which is no news.
    cdef int code = 0 if address == NULL else free_block(address, device)
    if code:
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
    if code and code != NOT_ALLOCATED and code != FORKED and code != DEINITIALIZED:
        complain("record_stream for torch", device, code)


cdef size_t hook_largest(int device) noexcept nogil:
    # The largest block that an allocation could get now: of the device, or of what is idle.
    cdef Pool* pool = pool_at(device)
    cdef size_t room = 0, capacity = 0, limit = limit_of(pool)
    cdef size_t reserved = reserved_bytes(pool)
    registry.active().memory_info(device, &room, &capacity)
    if limit < SIZE_MAX:
        room = min(room, limit - reserved if limit > reserved else 0)
    return max(room, largest_free(pool))


# By how much torch's count of waits differs from accelrt's since the last reset: torch counts one in each empty_cache(),
# also of a device that has no pool yet, and knows the home as no pool.
cdef long[MAX_DEVICES] waits_apart


cdef void hook_reset() noexcept nogil:
    # As torch's own, without the idle memory of MemPools that live, also within use_mem_pool.
    cdef uint64_t[2] common = [0, 0]
    cdef void* state = leave_gil()
    cdef int device
    if load_count(&open_captures):
        drop_ended()
    for device in range(MAX_DEVICES):
        if pool_if_made(device) == NULL:
            add_count(&waits_apart[device], 1)
    empty_all("empty_cache for torch", common)
    enter_gil(state)


cdef void hook_memory_fraction(double fraction, int device) noexcept nogil:
    cdef void* state = leave_gil()
    limit_to(fraction, device, "set_per_process_memory_fraction for torch")
    enter_gil(state)


cdef int hook_init(int count, char* text) noexcept nogil:
    # When torch initialises CUDA: accelrt has to see the same devices.  With the GIL as it is: torch calls this once, and
    # other threads wait for that, maybe with the GIL.  So accelrt.interop.torch has accelrt initialised before.
    cdef int seen = 0
    cdef int code = registry.active().device_count(&seen)
    if code:
        return explain(text, "initialise", 0, code)
    if seen < count:
        snprintf(text, TORCH_TEXT, "torch sees %d devices and accelrt, which is torch's allocator here, %d: "
                 "CUDA_VISIBLE_DEVICES was changed between their first uses; set it before either is used", count, seen)
        return -1
    return 0


# --- pools ---------------------------------------------------------------------------------------------------

# A pool that torch uses: from begin_pool to release_pool.
cdef struct Use:
    int device
    int purpose        # TORCH_CAPTURE or TORCH_THREAD
    int state
    uint64_t[2] id     # accelrt's
    uint64_t thread    # the number of the thread that began it
    uintptr_t origin   # of a capture: the stream that it was to begin on
    uint64_t capture   # the driver's id of it, once its own thread saw it run
    bint seen          # another thread did; of an object, that its end will be told (tell_holder)
    Use* next

cdef enum:  # Use.state
    OPEN = 0   # allocations go to it
    ENDED = 1  # they no longer do; the memory is retained
    LOST = 2   # a capture that ended, of which torch has not said so: it failed, or its thread is about to say so
    ANY_STATE = -1  # but ENDED

cdef pthread_mutex_t guard   # of uses; the last in the lock order, and never held while anything is waited for
cdef Use* uses = NULL        # the latest first
cdef long open_captures = 0  # of the uses
cdef object current_stream = None  # torch's function: the handle of the calling thread's current stream on a device


cdef void translate(uint64_t first, uint64_t second, uint64_t* out_id) noexcept nogil:
    if first == 0 and second >> TORCH_BIT & 1:
        out_id[0], out_id[1] = 0, second ^ <uint64_t>1 << TORCH_BIT
    else:
        out_id[0], out_id[1] = first | <uint64_t>1 << TORCH_BIT, second


cdef bint is_match(const Use* use, int device, const uint64_t* id, int state) noexcept nogil:
    return (use.device == device and use.id[0] == id[0] and use.id[1] == id[1]
            and (use.state == state or state == ANY_STATE and use.state != ENDED))


cdef Use** find_use(int device, const uint64_t* id, int state) noexcept nogil:
    # Returns the link to the calling thread's latest use of the pool in that state, one by use_mem_pool before one by a
    # capture; else to any thread's latest.  The link leads to NULL if there is none.
    cdef uint64_t thread = thread_number()
    cdef Use** link = &uses
    cdef Use** match = NULL
    cdef int rank, best = -1
    while link[0] != NULL:
        if is_match(link[0], device, id, state):
            if link[0].purpose == TORCH_CAPTURE:
                rank = 1 + 2 * (link[0].thread == thread)
            elif link[0].purpose == TORCH_HOLDER:
                rank = 0 if link[0].seen else 5
            else:
                rank = 0 if link[0].thread != thread else 3 + (state == ENDED)
            if rank > best:
                match, best = link, rank
        link = &link[0].next
    return link if match == NULL else match


cdef void add_use(Use* use) noexcept nogil:
    global uses
    pthread_mutex_lock(&guard)
    use.next = uses
    uses = use
    pthread_mutex_unlock(&guard)


cdef int stream_of_thread(int device, uintptr_t* out_stream) noexcept nogil:
    # Asks torch, with the GIL.
    cdef bint new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        try:
            out_stream[0] = current_stream(device)
        except BaseException:  # else an interruption would leave the capture expected on no stream
            return NOT_SUPPORTED
    return 0


cdef int begin_capture_use(Use* use) noexcept nogil:
    # torch begins the capture as soon as this returns.  As accelrt's own captures, it is counted before it begins.
    cdef int device = use.device
    cdef uint64_t first = use.id[0], second = use.id[1]
    cdef int code = retain_pool(device, first, second, False, 0)
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
    cdef uintptr_t stream = 0
    cdef int code = 0
    if is_outside(device):
        return explain(text, "allocate from a pool", device, INVALID_DEVICE)
    if purpose != TORCH_CAPTURE and purpose != TORCH_THREAD:
        snprintf(text, TORCH_TEXT, "accelrt, which is torch's allocator here, serves torch's pools for captures "
                 "(torch.cuda.graph) and for the calling thread (torch.cuda.use_mem_pool); this call asks for something "
                 "else, such as the body of a condition, or all threads or one stream outside a capture")
        return -1
    if purpose == TORCH_CAPTURE:
        code = stream_of_thread(device, &stream)
    return begin_use(device, first, second, purpose, stream, text) if code == 0 else explain(
        text, "allocate from a pool", device, code)


cdef int begin_use(int device, uint64_t first, uint64_t second, int purpose, uintptr_t stream, char* text) noexcept nogil:
    # stream: of a capture, the one that it begins on.
    cdef void* state
    cdef Use* use
    cdef int code
    if is_outside(device):
        return explain(text, "allocate from a pool", device, INVALID_DEVICE)
    use = <Use*>calloc(1, sizeof(Use))
    if use == NULL:
        return explain(text, "allocate from a pool", device, NO_HOST_MEMORY)
    use.device, use.purpose, use.thread, use.origin = device, purpose, thread_number(), stream
    translate(first, second, use.id)
    state = leave_gil()
    if load_count(&open_captures):
        drop_ended()
    if purpose == TORCH_CAPTURE:
        code = begin_capture_use(use)
    elif purpose == TORCH_HOLDER:
        use.state = ENDED
        code = retain_pool(device, use.id[0], use.id[1], True, SIZE_MAX)
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
    # Takes a copy of the record, without the guard.
    if use.purpose == TORCH_THREAD:
        end_thread_route(use.device, use.id[0], use.id[1], use.thread)
        return
    add_count(&open_captures, -1)
    count_out_told_capture()
    end_expected_capture(use.device, use.origin, use.id[0], use.id[1])
    record_deferred_uses()
    record_deferred_pinned()


cdef void release_use(Use* use) noexcept nogil:
    # torch does not say on which streams its graph was replayed.
    if use.purpose == TORCH_CAPTURE:
        hide_replays(use.device, use.id[0], use.id[1])
    release_pool(use.device, use.id[0], use.id[1], use.purpose != TORCH_CAPTURE)


cdef void hook_end_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] id
    cdef void* state
    cdef Use* use
    cdef Use ended
    cdef int before = ENDED
    memset(&ended, 0, sizeof(Use))
    translate(first, second, id)
    pthread_mutex_lock(&guard)
    use = find_use(device, id, ANY_STATE)[0]
    if use != NULL:
        before = use.state
        use.state = ENDED
        ended = use[0]
    pthread_mutex_unlock(&guard)
    if before == OPEN:
        state = leave_gil()
        end_use(&ended)
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
    # Takes the next capture that is over without torch having said so.  On its own thread torch will not say it any more,
    # so the record goes; on another it may be about to.
    cdef Use** link = &uses
    cdef Use* use
    cdef bint own, matches = False
    pthread_mutex_lock(&guard)
    while link[0] != NULL and not matches:
        use = link[0]
        own = use.thread == thread_number()
        matches = use.purpose == TORCH_CAPTURE and (use.state == OPEN and is_over(use) or use.state == LOST and own)
        if not matches:
            link = &use.next
            continue
        out_use[0] = use[0]
        out_lost[0] = not own
        use.state = LOST
        if own:
            link[0] = use.next
            free(use)
    pthread_mutex_unlock(&guard)
    return matches


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
at_fork("allocator.external.torch_table", FORK_POOLS, NULL, NULL, &forget_uses)
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

TORCH_MARK = <uint64_t>1 << TORCH_BIT


def prepare(library: bytes, stream_function: Callable[[int], int]) -> tuple[str | None, bool]:
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


def answer_cache_info(library: bytes) -> bool:
    """Has torch's current allocator, which is this one, answer what cuDNN's benchmark mode asks: the largest block.

    Arguments:
        library: bytes, as for prepare.
    Returns:
        bool: whether it does; else torch raises RuntimeError there, as with every plugged allocator.
    """
    cdef void* opened = open_loaded(library)
    return opened != NULL and replace_cache_info(opened)


cdef double fraction_of_limit(int device) noexcept nogil:
    cdef size_t total = 0, limit = limit_of(pool_at(device))
    registry.active().device_memory(device, &total)
    return 1.0 if limit == SIZE_MAX or total == 0 else <double>limit / <double>total


def limit_fraction(int device) -> float:
    """The part of a device's memory that may be reserved, 1.0 where there is no limit."""
    cdef double fraction
    with nogil:
        fraction = fraction_of_limit(device)
    return fraction


cdef void torchs_name(const uint64_t* id, uint64_t* out_name) noexcept nogil:
    # The id by which torch knows a private pool; zeros for none.
    cdef uint64_t bit = <uint64_t>1 << TORCH_BIT
    if id[0] & bit:
        out_name[0], out_name[1] = id[0] ^ bit, id[1]
    else:
        out_name[0], out_name[1] = 0, id[1] | bit if id[1] else 0


def tell_holder(int device, pool: tuple[int, int], bint alive) -> None:
    """Says whether the object of torch's that holds a pool lives: only as it dies is the next release of the pool its own.

    Arguments:
        pool: (int, int), torch's id of it.
    """
    cdef uint64_t[2] id
    cdef Use* use
    translate(pool[0], pool[1], id)
    pthread_mutex_lock(&guard)
    use = uses
    while use != NULL:
        if use.purpose == TORCH_HOLDER and is_match(use, device, id, ENDED):
            use.seen = alive
        use = use.next
    pthread_mutex_unlock(&guard)


def settle_uses() -> None:
    """Ends the uses by captures that are over without torch having said so."""
    with nogil:
        if load_count(&open_captures):
            drop_ended()


def open_uses() -> list[tuple[int, tuple[int, int], str, str]]:
    """Lists what torch uses of pools, 64 at most, for tests: (device, id, "capture", "thread" or "object", state)."""
    # No object is made under the guard: a garbage collection may end uses.
    cdef Use[64] copies
    cdef int index, count = 0
    cdef Use* use
    cdef list listed = []
    pthread_mutex_lock(&guard)
    use = uses
    while use != NULL and count < 64:
        copies[count] = use[0]
        count += 1
        use = use.next
    pthread_mutex_unlock(&guard)
    for index in range(count):
        use = &copies[index]
        kind = {TORCH_CAPTURE: "capture", TORCH_HOLDER: "object"}.get(use.purpose, "thread")
        listed.append((use.device, (use.id[0], use.id[1]), kind, ("open", "ended", "lost")[use.state]))
    return listed


# --- torch's object ---------------------------------------------------------------------------------------------------
# The functions above serve it too; what follows is what only such an object is asked.

cdef inline Pool* pool_at(int device) noexcept nogil:
    return NULL if is_outside(device) else pool_if_made(device)


cdef size_t size_of(int device, uintptr_t address) noexcept nogil:
    cdef uintptr_t base = 0
    cdef size_t size = 0
    return block_size(device, address, &base, &size)


cdef size_t block_size(int device, uintptr_t address, uintptr_t* out_base, size_t* out_size) noexcept nogil:
    # Returns the size of the live block that begins there, and where its segment lies; 0: there is none.
    cdef Pool* pool = pool_at(device)
    cdef const Block* block
    cdef size_t size = 0
    if pool == NULL or pool.external != NULL:
        return 0
    lock_all(pool)
    block = block_at(pool, address)
    if block != NULL and block.state == LIVE:
        size = block.size
        out_base[0] = block.segment.address
        out_size[0] = block.segment.size
    unlock_all(pool, NULL)
    return size


cdef int base_of(int device, uintptr_t address, uintptr_t* out_base, size_t* out_size) noexcept nogil:
    return 0 if block_size(device, address, out_base, out_size) else -1


cdef int plain_alloc(int device, size_t size, uintptr_t* out_address, char* text) noexcept nogil:
    cdef int mode = 0  # answers as hook_alloc
    cdef int code = INVALID_DEVICE if is_outside(device) else go_relaxed(registry.active(), &mode)
    if code == 0:
        code = registry.active().memory_alloc(device, size, out_address)
        restore_mode(registry.active(), mode)
    if code:
        explain(text, "allocate past its cache", device, code)
    return 0 if code == 0 else 1 if code == OUT_OF_MEMORY else -1


cdef void plain_free(uintptr_t address) noexcept nogil:
    cdef int device = 0, mode = 0
    if registry.active().pointer_device(address, &device) == 0 and device >= 0:
        if go_relaxed(registry.active(), &mode) == 0:
            registry.active().memory_free(device, address)
            restore_mode(registry.active(), mode)


cdef int reach(int device, int other, char* text) noexcept nogil:
    # A device that does not reach the other one directly is no failure: torch copies then as it does without.
    cdef void* state = leave_gil()
    cdef int code = INVALID_DEVICE if is_outside(device) or is_outside(other) else let_device_reach(device)
    if code == 0 and other != device:
        code = connect_two(registry.active(), device, other)
    enter_gil(state)
    return explain(text, "reach other devices' memory", device, code) if code and code != PEER_ACCESS_UNSUPPORTED else 0


cdef void empty_pool(uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    empty_private(name)


cdef void empty_private(const uint64_t* name) noexcept nogil:
    cdef void* state = leave_gil()
    cdef int device
    for device in range(MAX_DEVICES):
        empty_named(device, name)
    enter_gil(state)


# --- figures -------------------------------------------------------------------------------------------------

cdef void totals(int device, int64_t* out_allocated, int64_t* out_reserved) noexcept nogil:
    out_allocated[0] = allocated_bytes(pool_at(device))
    out_reserved[0] = reserved_bytes(pool_at(device))


cdef void copy_counter(TorchCounter* into, const Counter* counter) noexcept nogil:
    into.current, into.peak = counter.current, counter.peak
    into.allocated, into.freed = counter.allocated, counter.freed


cdef void stats_of(int device, TorchStats* out_stats) noexcept nogil:
    cdef Stats stats = read_stats(pool_at(device))
    cdef int stat, kind
    cdef TorchCounter* both
    memset(out_stats, 0, sizeof(TorchStats))
    for stat in range(STATS):
        both = &out_stats.counters[stat][0]
        for kind in range(2):
            copy_counter(&out_stats.counters[stat][1 + kind], &stats.counters[stat][kind])
            both.current += stats.counters[stat][kind].current
            both.allocated += stats.counters[stat][kind].allocated
            both.freed += stats.counters[stat][kind].freed
        both.peak = stats.peak_all[stat]
    copy_counter(&out_stats.oversize_allocations, &stats.oversize_allocations)
    copy_counter(&out_stats.oversize_segments, &stats.oversize_segments)
    out_stats.retries = stats.num_alloc_retries
    out_stats.refusals = stats.num_ooms
    out_stats.waits = stats.num_sync_all_streams + (0 if is_outside(device) else load_count(&waits_apart[device]))
    out_stats.device_allocations = stats.num_device_alloc
    out_stats.device_frees = stats.num_device_free
    out_stats.max_split = max_split_of(pool_at(device))


cdef void restart_peaks(int device) noexcept nogil:
    reset_peaks(pool_at(device))


cdef void restart_accumulated(int device) noexcept nogil:
    reset_accumulated(pool_at(device))
    if not is_outside(device):
        store_count(&waits_apart[device], 0)


def difference_of_waits(int device) -> int:
    """Tells what accelrt's num_sync_all_streams lacks of the waits that torch counts for a device."""
    return 0 if is_outside(device) else load_count(&waits_apart[device])


def restart_accumulated_stats(int device) -> None:
    """Sets a device's figures of increases to 0, as torch.cuda.reset_accumulated_memory_stats."""
    with nogil:
        restart_accumulated(device)


cdef int blocks_of(int device, TorchBlock** out_blocks, size_t* out_count) noexcept nogil:
    cdef Pool* pool = pool_at(device)
    cdef View* views
    cdef TorchBlock* block
    cdef uint64_t mark = 0
    cdef size_t index
    out_blocks[0], out_count[0] = NULL, 0
    if pool == NULL or pool.external != NULL:
        return 0
    views = copy_blocks(pool, out_count, &mark)
    if views != NULL:
        out_blocks[0] = <TorchBlock*>calloc(out_count[0] + 1, sizeof(TorchBlock))
    if out_blocks[0] == NULL:
        free(views)
        return NO_HOST_MEMORY
    for index in range(out_count[0]):
        block = &out_blocks[0][index]
        block.address, block.size, block.requested = views[index].address, views[index].size, views[index].requested
        block.stream, block.tag = views[index].stream, views[index].tag
        block.opens = 1 + <int>(views[index].serial & 0x3FFFFFFF) if views[index].opens else 0
        block.large, block.expandable = views[index].kind == LARGE, views[index].shape != PLAIN
        if views[index].state == LIVE:
            block.state = TORCH_LIVE
        elif views[index].state == PENDING:
            block.state = TORCH_PENDING
        if views[index].owner[0] or views[index].owner[1] != home:
            torchs_name(views[index].owner, block.pool)
    free(views)
    return 0


cdef void release_blocks(TorchBlock* blocks) noexcept nogil:
    free(blocks)


# --- pools ---------------------------------------------------------------------------------------------------

cdef int enter_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    return begin_pool(device, name[0], name[1])


cdef void leave_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    end_pool(device, name[0], name[1], thread_number())


# torch's default memory lies in a private pool if it is to sleep, for nothing of the common heaps can.  While that pool
# sleeps, the common heaps serve torch.
cdef uint64_t home = 0         # its second number; 0: none
cdef uint64_t home_devices = 0  # a bit for each device on which it is retained for good


cdef int enter_home(int device, void* stream) noexcept nogil:
    global home_devices
    cdef int code = 0
    if home == 0 or is_outside(device):
        return NOT_READY
    if not home_devices >> device & 1:  # a second thread that retains it does no harm
        code = retain_pool(device, 0, home, True, SIZE_MAX)
        set_bits(&home_devices, <uint64_t>(code == 0) << device)
    return code if code else begin_pool_for_common(device, <uintptr_t>stream, 0, home)


cdef void leave_home(int device) noexcept nogil:
    end_pool(device, 0, home, thread_number())


cdef void empty_with_home() noexcept nogil:
    cdef uint64_t[2] name = [0, home]
    cdef int device
    hook_reset()
    if home:
        for device in range(MAX_DEVICES):
            if pool_if_made(device) != NULL:
                add_count(&waits_apart[device], -1)
        empty_private(name)


def choose_home(number: int) -> None:
    """Has torch's default memory lie in the private pool (0, number) from now on; 0: in the common heaps."""
    global home, home_devices
    if home != number:
        home, home_devices = number, 0


cdef TorchSource* make_source(Take take, Give give) noexcept nogil:
    # For the process's whole life; NULL: the host has no memory.
    cdef Source* source = <Source*>calloc(1, sizeof(Source))
    if source != NULL:
        source.alloc, source.free = take, give
    return <TorchSource*>source


cdef int prepare_pool(int device, uint64_t first, uint64_t second, const TorchSource* source, int whole,
                      int lends) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    return set_up_pool(device, name[0], name[1], <const Source*>source, whole, lends)


cdef int pool_uses(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] name
    translate(first, second, name)
    return 0 if is_outside(device) else read_private(device, name[0], name[1], False).uses


# --- checkpoints ---------------------------------------------------------------------------------------------

cdef const char* reason_of(int code) noexcept nogil:
    if code == NO_SUCH_POOL:
        return b"there is no such pool"
    if code == WAITS:
        return b"memory of it that was given back is in use on other streams; synchronise first, outside captures"
    if code == CAPTURED:
        return b"a capture allocates from it; end that first"
    if code == LENT:
        return b"pages of it serve other memory, since nothing used it for a while"
    if code == WENT:
        return b"segments of it went back to the device since: it was not in use throughout"
    if code == USED:
        return b"memory that would be freed was recorded on other streams"
    if code == FIXED:
        return b"it is a Reservation's, which commits and decommits its memory itself"
    return status_text(code)


cdef int refuse_state(char* text, const char* call, int device, int code) noexcept nogil:
    snprintf(text, TORCH_TEXT, "accelrt, which is torch's allocator here, cannot %s a pool's checkpoint on device %d: %s",
             call, device, reason_of(code))
    return code


cdef int save_state(int device, uint64_t first, uint64_t second, void** out_state, char* text) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef Saved* saved = <Saved*>calloc(1, sizeof(Saved))
    cdef uint64_t[2] name
    cdef int code = NO_HOST_MEMORY
    translate(first, second, name)
    if saved != NULL:
        code = save_pool(device, name[0], name[1], saved)
    enter_gil(gil)
    if code:
        forget_state(saved)
        return refuse_state(text, "take", device, code)
    out_state[0] = saved
    return 0


cdef int restore_state(void* state, uintptr_t** out_live, size_t* out_live_count, uintptr_t** out_freed,
                       size_t* out_freed_count, char* text) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef Saved* saved = <Saved*>state
    cdef Turned turned
    cdef size_t index
    cdef int code
    memset(&turned, 0, sizeof(Turned))
    code = restore_pool(saved, &turned)
    enter_gil(gil)
    if code:
        free(turned.live)
        free(turned.freed)
        return refuse_state(text, "go back to", saved.device, code)
    for index in range(turned.freed_count):
        forget_share(turned.freed[index])
    out_live[0], out_live_count[0] = turned.live, turned.live_count
    out_freed[0], out_freed_count[0] = turned.freed, turned.freed_count
    return 0


cdef void forget(uintptr_t* addresses) noexcept nogil:
    free(addresses)


cdef void forget_state(void* state) noexcept nogil:
    if state != NULL:
        forget_saved(<Saved*>state)
        free(state)


# --- page-locked memory --------------------------------------------------------------------------------------
# torch calls all of it with the GIL or without; only a hit, and a free of what no stream uses, keep it.

cdef int pinned_alloc(int device, size_t size, uintptr_t* out_address, char* text) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef int code = allocate_pinned_on(device, size, out_address)
    enter_gil(gil)
    return explain(text, "take page-locked memory", device, code) if code else 0


cdef void pinned_release(uintptr_t address) noexcept nogil:
    # A child holds its parent's memory in vain.
    cdef void* gil
    if try_release_pinned(address):
        gil = leave_gil()
        release_pinned(address)
        enter_gil(gil)


cdef int pinned_use(uintptr_t address, int device, void* stream) noexcept nogil:
    cdef int code = use_pinned_on(address, device, <uintptr_t>stream)
    return -1 if code == NOT_ALLOCATED or code == FORKED else code


cdef void pinned_empty() noexcept nogil:
    cdef void* gil = leave_gil()
    empty_pinned()  # what the driver refuses to take back stays in the cache
    enter_gil(gil)


cdef void copy_tally(TorchCounter* into, const Tally* tally) noexcept nogil:
    into.current, into.peak, into.allocated, into.freed = tally.current, tally.peak, tally.allocated, tally.freed


cdef void copy_timing(TorchTiming* into, const Timing* timing) noexcept nogil:
    into.total, into.largest, into.least, into.count = timing.total, timing.largest, timing.least, timing.count


cdef void pinned_stats(TorchPinnedStats* out_stats) noexcept nogil:
    cdef PinnedStats stats = read_pinned_stats()
    copy_tally(&out_stats.segments, &stats.segments)
    copy_tally(&out_stats.segment_bytes, &stats.segment_bytes)
    copy_tally(&out_stats.blocks, &stats.blocks)
    copy_tally(&out_stats.block_bytes, &stats.block_bytes)
    copy_timing(&out_stats.take, &stats.take)
    copy_timing(&out_stats.give, &stats.give)


cdef void pinned_reset(int peaks) noexcept nogil:
    if peaks:
        reset_pinned_peaks()
    else:
        reset_pinned_sums()


cdef int settle(int device) noexcept nogil:
    cdef void* gil = leave_gil()
    cdef int code = NOT_READY
    if enter_wait():
        code = registry.active().device_synchronize(device)
        leave_wait()
    enter_gil(gil)
    return code


# --- what happens to memory ----------------------------------------------------------------------------------

cdef TorchWatcher watcher_of_torch = NULL


cdef void tell_torch(const Event* event) noexcept nogil:
    cdef TorchEvent theirs
    theirs.address, theirs.size, theirs.stream, theirs.tag = event.address, event.size, event.stream, event.tag
    theirs.action, theirs.device = event.action, event.device
    torchs_name(event.pool, theirs.pool)
    watcher_of_torch(&theirs)


cdef int watch(TorchWatcher watcher) noexcept nogil:
    # It stays known to threads that are telling it something.
    global watcher_of_torch
    cdef void* gil = leave_gil()
    cdef Follower follower = NULL
    cdef int code
    if watcher != NULL:
        watcher_of_torch = watcher
        follower = tell_torch
    code = follow_history(follower)
    enter_gil(gil)
    return code


# --- sharing -------------------------------------------------------------------------------------------------
# Blocks that other processes may open: each is exported from when torch first shares it until torch frees it, and goes back
# to the pool once no hand-out of its pages is under way either.  What is said between processes is accelrt.sharing's, whose
# functions (sharing/tensors.py) are set by interop/torch.py.

cdef struct Share:
    int device
    Exported export
    long keepers     # torch, until it frees the block, and hand-outs under way
    bint is_freed    # by torch

cdef pthread_mutex_t shares_lock  # before the pool's; held for no call of the driver
cdef AddressMap shares            # by address of the block
cdef long share_count = 0         # of them, so that who shares nothing pays no lock
cdef object sharer = None         # (device, address) -> (handle, offset)
cdef object opener = None         # (handle, device) -> (base, an object that keeps the memory mapped)


def set_sharing(share: Callable[[int, int], tuple[bytes, int]], open: Callable[[bytes, int], tuple[int, object]]) -> None:
    """Says who makes handles of torch's blocks, and opens those of other processes.

    Arguments:
        share: called with a device and the address of a block, answers a handle of at most 256 bytes and how far into
            the memory that it names the block lies.
        open: called with a handle and a device, answers the address of that memory in this process and what keeps it.
    """
    global sharer, opener
    sharer, opener = share, open


def begin_share(int device, uintptr_t address) -> tuple[int, int, int, bool, int]:
    """Exports a block of torch's until torch frees it; again for one that is exported already.

    Returns:
        (base, size, serial, plain, refused): where its pages lie, or its plain segment; the serial of the first of them,
        or of that; and how many pages were made for this process alone: if not 0, it is not exported.
    Raises:
        CudaError: there is no live block, or its pool sleeps.
        MemoryError: the host has none.
    """
    cdef Exported export
    cdef int code
    with nogil:
        code = add_share(device, address, &export)
    if code == NO_HOST_MEMORY:
        raise MemoryError("no memory for the record of a tensor that is shared")
    if code:
        raise_status(code, "share", ("device", device, "address", address))
    return export.base, export.size, serial_of(&export), export.count == 0, export.refused


cdef uint64_t serial_of(const Exported* export) noexcept nogil:
    return export.pages[0].serial if export.pages != NULL else export.serial


cdef int add_share(int device, uintptr_t address, Exported* out_export) noexcept nogil:
    # torch's thread, whose tensor keeps the block.  A copy of what is exported; pages are valid where 0 were refused.
    cdef Share* share
    cdef int code = 0
    pthread_mutex_lock(&shares_lock)
    share = <Share*>map_find(&shares, address)
    if share == NULL:
        share = <Share*>calloc(1, sizeof(Share))
        code = NO_HOST_MEMORY if share == NULL else map_reserve(&shares)
        if code == 0:
            code = NOT_ALLOCATED if is_outside(device) else begin_export(device, address, &share.export)
        if code == 0 and share.export.refused == 0:
            share.device, share.keepers = device, 1
            map_insert(&shares, address, share)
            add_count(&share_count, 1)
    if code == 0:
        out_export[0] = share.export
    if share != NULL and share.keepers == 0:
        free(share)
    pthread_mutex_unlock(&shares_lock)
    return code


cdef int end_share(uintptr_t address, bint by_torch) noexcept nogil:
    # One keeper's end; the device of the block where it was the last, and else -1.
    cdef Share* share
    cdef int device = -1
    pthread_mutex_lock(&shares_lock)
    share = <Share*>map_find(&shares, address)
    if share != NULL and not (by_torch and share.is_freed):
        share.is_freed = share.is_freed or by_torch
        share.keepers -= 1
        if share.keepers == 0:
            map_remove(&shares, address)
            add_count(&share_count, -1)
            device = share.device
    pthread_mutex_unlock(&shares_lock)
    if device >= 0:
        end_export(device, address)
        free(share.export.pages)
        free(share)
    return device


cdef void forget_share(uintptr_t address) noexcept nogil:
    # Of a block that a checkpoint took away, which nobody frees; a hand-out that is under way may read the record.
    cdef Share* share
    pthread_mutex_lock(&shares_lock)
    share = <Share*>map_remove(&shares, address)
    if share != NULL:
        add_count(&share_count, -1)
    if share != NULL and share.keepers == 1:
        free(share.export.pages)
        free(share)
    pthread_mutex_unlock(&shares_lock)


cdef bint is_shared(uintptr_t address) noexcept nogil:
    cdef bint shared
    if load_count(&share_count) == 0:
        return False
    pthread_mutex_lock(&shares_lock)
    shared = map_find(&shares, address) != NULL
    pthread_mutex_unlock(&shares_lock)
    return shared


cdef int give_back(void* address, int device, int answers) noexcept nogil:
    # A block of torch's; one that other processes may open goes back later.
    if is_shared(<uintptr_t>address) and end_share(<uintptr_t>address, True) < 0:
        return 0
    if answers:
        return free_block(address, device)
    hook_free(address, device)
    return 0


cdef const Exported* hold_share(
    int device, uintptr_t base, size_t size, uint64_t serial, uintptr_t* out_address,
) noexcept nogil:
    cdef Share* share
    cdef const Exported* export = NULL
    cdef size_t index
    pthread_mutex_lock(&shares_lock)
    for index in range(shares.capacity):
        share = <Share*>shares.slots[index].value
        if export == NULL and share != NULL and share.device == device and not share.is_freed:
            if share.export.base == base and share.export.size == size and serial_of(&share.export) == serial:
                share.keepers += 1
                out_address[0] = shares.slots[index].key
                export = &share.export
    pthread_mutex_unlock(&shares_lock)
    return export


cdef void let_go_of_share(uintptr_t address) noexcept nogil:
    cdef int device = end_share(address, False)
    if device >= 0:
        hook_free(<void*>address, device)


cdef void forget_shares() noexcept nogil:
    # In a forked child, whose parent's blocks they are.
    pthread_mutex_init(&shares_lock, NULL)
    map_clear(&shares)
    store_count(&share_count, 0)


cdef void tell_error(char* text, error) noexcept:
    cdef bytes message = str(error).encode(errors="replace")
    snprintf(text, TORCH_TEXT, "%s", <const char*>message)


cdef int share_block(int device, uintptr_t address, char* handle, size_t* out_length, size_t* out_offset,
                     char* text) noexcept with gil:
    cdef bytes made
    try:
        made, out_offset[0] = sharer(device, address)
        if len(made) > TORCH_HANDLE:
            raise ValueError(f"a handle of {len(made)} bytes")
        out_length[0] = len(made)
        memcpy(handle, <const char*>made, len(made))
        return 0
    except BaseException as error:
        tell_error(text, error)
        return -1


cdef int open_shared(const char* handle, size_t length, int device, uintptr_t* out_base, void** out_memory,
                     char* text) noexcept with gil:
    try:
        out_base[0], memory = opener(handle[:length], device)
        Py_INCREF(memory)
        out_memory[0] = <PyObject*>memory
        return 0
    except BaseException as error:
        tell_error(text, error)
        return -1


cdef void close_shared(void* memory) noexcept nogil:
    # What the interpreter's end leaves mapped goes with the process.
    if not interpreter_is_gone():
        drop_memory(memory)


cdef void drop_memory(void* memory) noexcept with gil:
    Py_DECREF(<object>memory)


forget_shares()
at_fork("allocator.external.torch_table", FORK_POOLS, NULL, NULL, &forget_shares)


# --- the table -----------------------------------------------------------------------------------------------

cdef TorchTable table
table.version = TORCH_TABLE_VERSION
table.alloc = hook_alloc
table.release = give_back
table.record_stream = hook_record_stream
table.empty = empty_with_home
table.largest = hook_largest
table.set_fraction = hook_memory_fraction
table.init = hook_init
table.begin_pool = begin_use
table.end_pool = hook_end_pool
table.release_pool = hook_release_pool
table.device_at = device_at
table.size_of = size_of
table.base_of = base_of
table.plain_alloc = plain_alloc
table.plain_free = plain_free
table.reach = reach
table.empty_pool = empty_pool
table.get_fraction = fraction_of_limit
table.totals = totals
table.read_stats = stats_of
table.reset_peaks = restart_peaks
table.reset_accumulated = restart_accumulated
table.blocks = blocks_of
table.release_blocks = release_blocks
table.enter_pool = enter_pool
table.leave_pool = leave_pool
table.enter_home = enter_home
table.leave_home = leave_home
table.make_source = make_source
table.set_up_pool = prepare_pool
table.pool_uses = pool_uses
table.save_pool = save_state
table.restore_pool = restore_state
table.forget = forget
table.forget_state = forget_state
table.pinned_hit = try_allocate_pinned
table.pinned_alloc = pinned_alloc
table.pinned_release = pinned_release
table.pinned_use = pinned_use
table.pinned_empty = pinned_empty
table.pinned_stats = pinned_stats
table.pinned_reset = pinned_reset
table.settle = settle
table.watch = watch
table.share = share_block
table.open_shared = open_shared
table.close_shared = close_shared


def address() -> int:
    """Tells where the table is, which lives as long as the process."""
    return <uintptr_t>&table
