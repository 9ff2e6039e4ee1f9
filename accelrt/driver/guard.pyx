"""Waits that a signal ends, the gate between captures and waits, nodes that instances leave out, and what streams use memory
until which event."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.interpreter cimport PyThread_get_thread_ident
from accelrt.core.locks cimport (
    add_count, load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, spin_lock,
    spin_unlock, store_count,
)
from accelrt.core.process cimport FORK_GATE, FORK_POOLS, FORK_THREAD_STATES, at_fork
from accelrt.core.process import call_at_fork
from accelrt.core.slots cimport my_slot, Slot
from accelrt.core.threads cimport now, pause, pthread_cond_broadcast, pthread_cond_init, pthread_cond_wait, spin, wait_on
from accelrt.driver.node_params cimport NODE_FILL, NodeParams
from accelrt.driver.table cimport CAPTURE_NONE, CAPTURE_RELAXED, EVENT_DISABLE_TIMING, host_fn
from accelrt.status cimport (
    ASSERT, CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, CAPTURED_EVENT, DEINITIALIZED,
    HARDWARE_STACK_ERROR, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_PC, INVALID_VALUE,
    LAUNCH_FAILED, LAUNCH_TIMEOUT, NO_HOST_MEMORY, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
)


# --- waiting ----------------------------------------------------------------------------------------------------------
# Waits that a signal may end, and thread states for threads that come to run Python.
#
# This is the one place that says how long to wait before looking again.

cdef extern from *:
    """
    static __thread int accelrt_listening;         /* brackets open, on the main thread only */
    static __thread int accelrt_sleeps;
    static __thread int accelrt_slicing;           /* a wait under a lock, which is to end soon */
    static __thread long long accelrt_look_at;     /* when signals are looked for next; 0 where nothing was waited for */
    static __thread long accelrt_inside;           /* entries into the gate that this thread has not left */
    static int accelrt_abandoned;
    #define is_abandoned() __atomic_load_n(&accelrt_abandoned, __ATOMIC_ACQUIRE)
    #define set_abandoned() __atomic_store_n(&accelrt_abandoned, 1, __ATOMIC_RELEASE)
    """
    int listening "accelrt_listening"
    int wants_sleep "accelrt_sleeps"
    int slicing "accelrt_slicing"
    long long look_at "accelrt_look_at"
    long inside "accelrt_inside"
    bint is_abandoned() noexcept nogil
    void set_abandoned() noexcept nogil

cdef enum:
    SHARE = 64                   # the gap between two questions is this part of the time waited
    SPIN_NS = 20 * 1000          # how long a wait that sleeps spins first
    OVERSLEEP_NS = 50 * 1000     # by which the kernel lets a thread sleep longer than it asked
    SLEEP_NS = 100 * 1000        # the shortest gap that is slept, and the longest of all
    LONG_SLEEP_NS = 1000 * 1000  # the longest of a wait that sleeps

cdef unsigned long main_thread = 0
cdef object raised = None  # what a handler raised, on its way to end_wait


cdef bint is_main_thread() noexcept nogil:
    return PyThread_get_thread_ident() == main_thread


cdef void begin_wait(bint sleeps) noexcept:
    global listening, wants_sleep, look_at
    if not is_main_thread():
        return
    listening += 1
    wants_sleep = sleeps
    look_at = 0  # most waits find nothing to wait for, and read no clock


cdef int end_wait(int code) except -1:
    global listening
    if listening:
        listening -= 1
    # A handler may raise as the work ends, so that the row has nothing left to wait for.
    if code == INTERRUPTED or (raised is not None and is_main_thread()):
        raise_interruption()
    return 0


cdef int raise_interruption() except -1:
    global raised
    error = raised
    raised = None
    raise KeyboardInterrupt if error is None else error  # none where the exit was interrupted before


cdef bint handle_signals() noexcept:
    # A handler may wait itself, with brackets of its own.
    global listening, wants_sleep, raised
    cdef int before = listening, slept = wants_sleep
    cdef bint has_raised = False
    listening = 0
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        raised = error
        has_raised = True
    listening = before
    wants_sleep = slept
    return has_raised


cdef bint is_to_end() noexcept nogil:
    global look_at
    cdef bint has_raised
    if slicing or is_abandoned():
        return True
    with gil:
        has_raised = handle_signals()
    look_at = now() + LOOK_NS
    return has_raised


cdef void abandon_waits() noexcept nogil:
    set_abandoned()


cdef bint are_abandoned() noexcept nogil:
    return is_abandoned()


cdef bint is_interruptible() noexcept nogil:
    return listening > 0 or slicing


cdef void begin_slice(long long ns) noexcept nogil:
    global slicing, wants_sleep, look_at
    slicing = True
    wants_sleep = False
    look_at = now() + ns


cdef void begin_main_slice(long long ns) noexcept nogil:
    if is_main_thread():
        begin_slice(ns)


cdef void end_slice() noexcept nogil:
    global slicing
    slicing = False


cdef bint pause_on(pthread_cond_t* wake, pthread_mutex_t* mutex) noexcept nogil:
    global look_at
    cdef bint ends
    if not is_abandoned():
        if look_at == 0:
            look_at = now() + LOOK_NS
        wait_on(wake, mutex, LOOK_NS)
        if now() < look_at:
            return False
    pthread_mutex_unlock(mutex)
    ends = is_to_end()
    pthread_mutex_lock(mutex)
    return ends


cdef long long gap_after(long long waited) noexcept nogil:
    # What comes between two questions.  Sleeping is left to gaps that the kernel can keep.
    if wants_sleep and waited > SPIN_NS:
        return min(max(waited // SHARE, SLEEP_NS), LONG_SLEEP_NS)
    return min(waited // SHARE, SLEEP_NS)


cdef int poll(question ask, int device, uintptr_t handle) noexcept nogil:
    global look_at
    cdef long long begun, time_asked, gap
    cdef int code = ask(device, handle)
    if code != NOT_READY:
        return code
    begun = now()
    if look_at == 0:
        look_at = begun + LOOK_NS
    while code == NOT_READY:
        time_asked = now()
        if (time_asked >= look_at or is_abandoned()) and is_to_end():
            return INTERRUPTED
        gap = gap_after(time_asked - begun)
        if gap < SLEEP_NS:
            while now() < time_asked + gap:
                spin()
        elif pause(gap - OVERSLEEP_NS) and is_to_end():
            return INTERRUPTED
        code = ask(device, handle)
    return code


cdef int poll_briefly(question ask, int device, uintptr_t handle) noexcept nogil:
    cdef long long end
    cdef int code = ask(device, handle)
    if code == NOT_READY:
        end = now() + SPIN_NS
        while code == NOT_READY and now() < end:
            code = ask(device, handle)
    return code


# --- threads that come to run Python -------------------------------------------------------------------------

# CPython makes a thread state under a lock of the runtime's and without the GIL, and before 3.12 a child that was forked
# meanwhile waits for that lock for ever.  So accelrt makes them under a lock of its own too, which a fork takes.  (Later
# ones have the child renew the lock, or hold it in a fork themselves: then whoever makes a state waits for the fork, which
# may not wait for him.)  They are deleted with the GIL, which a thread that forks holds anyway.
cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #define accelrt_is_first_thread() (syscall(SYS_gettid) == getpid())
    #define accelrt_guards_states (PY_VERSION_HEX < 0x030C0000)
    static pthread_mutex_t accelrt_making = PTHREAD_MUTEX_INITIALIZER;

    static int accelrt_make(void) {
        PyThreadState* made;
        if (PyGILState_GetThisThreadState() != NULL) return 0;
        if (accelrt_guards_states) pthread_mutex_lock(&accelrt_making);
        made = PyThreadState_New(PyInterpreterState_Main());
        if (accelrt_guards_states) pthread_mutex_unlock(&accelrt_making);
        if (made == NULL) Py_FatalError("accelrt: the host has no memory for a thread state");
        return 1;
    }
    /* It counts as one PyGILState_Ensure that was not released yet. */
    static void accelrt_drop(void) { PyGILState_Release(PyGILState_LOCKED); }

    static void accelrt_before_fork(void) {
        PyThreadState* held = NULL;
        if (!accelrt_guards_states) return;
        for (int attempt = 0; attempt < 1000; attempt++) {
            if (pthread_mutex_trylock(&accelrt_making) == 0) return;
            sched_yield();
        }
        /* Its holder waits for the GIL, as tracemalloc has every allocation do. */
        if (accelrt_holds_gil()) held = PyEval_SaveThread();
        pthread_mutex_lock(&accelrt_making);
        if (held != NULL) PyEval_RestoreThread(held);
    }
    static void accelrt_after_fork(void) {
        if (accelrt_guards_states) pthread_mutex_unlock(&accelrt_making);
    }
    """
    bint make "accelrt_make" () noexcept nogil
    void drop "accelrt_drop" () noexcept
    void before_fork "accelrt_before_fork" () noexcept nogil
    void after_fork "accelrt_after_fork" () noexcept nogil
    bint is_first_thread "accelrt_is_first_thread" () noexcept nogil


cdef bint make_thread_state() noexcept nogil:
    return make()


cdef void drop_with_gil(bint made) noexcept:
    if made:
        drop()


def note_main_thread() -> None:
    """The thread that Python's signal handlers run on: the main one, and in a child the one that forked.

    A process that embeds Python may have it in another thread than its first, which only threading knows.
    """
    global main_thread
    if is_first_thread():
        main_thread = PyThread_get_thread_ident()
    else:
        import threading  # late: it takes long

        main_thread = threading.main_thread().ident


note_main_thread()
call_at_fork("driver.guard", "main thread", child=note_main_thread)
at_fork("driver.guard", FORK_THREAD_STATES, &before_fork, &after_fork, &after_fork)


# --- capture guard ----------------------------------------------------------------------------------------------------
# Captures of accelrt's, and what would break them or be broken by them: each keeps out of the other's way.
#
# Two counts, each written before the other is read, so that of a capture that begins and a thread that enters one
# always sees the other.  The mutex is only for sleeping, and the last in the lock order.

cdef enum:
    CONTEXT_IS_DESTROYED = 709
    LEGACY_LAST = 1  # 0 and 1 are the legacy default stream
    PER_THREAD = 2   # a default stream, as are those; the larger ones are handles
    SPINS = 1000     # looks before a capture that begins sleeps: some ten microseconds

cdef pthread_mutex_t gate        # for the condition variable alone
cdef pthread_cond_t none_inside
captures = 0
cdef long waits = 0              # threads inside
cdef long told_captures = 0      # that others end


cdef void expect_capture() noexcept nogil:
    # Counted at once, so that no thread enters in between.  Most threads inside make one query, which ends sooner
    # than a sleeping thread wakes.  The thread itself may be inside, in a function of Python's that takes memory back:
    # it is outside while it waits, for another one there may wait for it.
    cdef int _round
    add_count(&captures, 1)
    step_outside()
    for _round in range(SPINS):
        if load_count(&waits) == 0:
            break
        spin()
    else:
        pthread_mutex_lock(&gate)
        while load_count(&waits):
            pthread_cond_wait(&none_inside, &gate)
        pthread_mutex_unlock(&gate)
    come_back()


cdef void step_outside() noexcept nogil:
    if inside:
        end_entries(inside)


cdef void come_back() noexcept nogil:
    add_count(&waits, inside)


cdef void end_entries(long count) noexcept nogil:
    add_count(&waits, -count)
    if load_count(&captures):
        pthread_mutex_lock(&gate)
        pthread_cond_broadcast(&none_inside)
        pthread_mutex_unlock(&gate)


cdef void count_out_capture() noexcept nogil:
    add_count(&captures, -1)


cdef void expect_told_capture() noexcept nogil:
    # After await_askers everybody who looked before has left, and later looks see the count.
    expect_capture()
    add_count(&told_captures, 1)
    await_askers()


cdef void count_out_told_capture() noexcept nogil:
    add_count(&told_captures, -1)
    count_out_capture()


cdef bint enter_wait() noexcept nogil:
    global inside
    if load_count(&captures):
        return False
    add_count(&waits, 1)
    inside += 1
    if load_count(&captures) == 0:
        return True
    leave_wait()
    return False


cdef void leave_wait() noexcept nogil:
    global inside
    if inside == 0:
        return  # it entered before a fork, in whose child nobody is inside
    inside -= 1
    end_entries(1)


cdef int await_inside(Table* table, int device) noexcept nogil:
    cdef bint in_slices = is_main_thread() and listening > 0
    cdef long long ns = LOOK_NS
    cdef int code
    while enter_wait():
        if in_slices:
            begin_slice(ns)
        code = table.device_synchronize(device)
        if in_slices:
            end_slice()
        leave_wait()
        if code != INTERRUPTED or not in_slices or is_to_end():
            return code
        ns *= 2
    return 0


# --- the end of a capture -------------------------------------------------------------------------------------

# Each thread enters a section of its slot (core/slots.pxd) to ask, and then looks whether a capture ends: one word, 0 while
# all may go on.  A thread that ends one writes that word, fences the slots, and waits until each has left the section that
# it was in.  A call that is held back yields before it sleeps: most ends are over by then, and threads that are woken take
# the processor from the one that captures.
#
# A thread that asks waits for nothing of accelrt's, but the driver may let it wait: for room in a full queue, or for the
# stream's work where a copy is of ordinary memory.  What it waits for may want the thread that ends the capture.  So that
# one has patience, not for ever: such a call has looked at the capture long before, at its begin.
cdef extern from *:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #define accelrt_patience_ns 1000000000LL     /* with a call that waits for nothing */
    #define accelrt_waiting_ns 10000000LL        /* with one that may wait within the driver, whose slot is marked */
    enum { accelrt_ends = 1, accelrt_needs_fence = 2 };
    static int accelrt_held;                     /* a capture ends; the kernel has no barrier for all */
    static int accelrt_sleepers;                 /* threads that wait for the end asleep */
    static pthread_mutex_t accelrt_one_end;      /* one capture ends at a time */

    static int accelrt_load_held(void) { return __atomic_load_n(&accelrt_held, __ATOMIC_SEQ_CST); }
    static void accelrt_await_end(void) {
        int held;
        for (int round = 0; round < 200; round++) {
            if (!(accelrt_load_held() & accelrt_ends)) return;
            if (round < 100) accelrt_spin();
            else sched_yield();
        }
        __atomic_add_fetch(&accelrt_sleepers, 1, __ATOMIC_SEQ_CST);
        while ((held = accelrt_load_held()) & accelrt_ends)
            syscall(SYS_futex, &accelrt_held, FUTEX_WAIT_PRIVATE, held, NULL, NULL, 0);
        __atomic_sub_fetch(&accelrt_sleepers, 1, __ATOMIC_SEQ_CST);
    }
    /* The thread's first section: where its slot is fenced, no thread goes on without a look at that. */
    static accelrt_slot *accelrt_take_asker(void) {
        accelrt_slot *me = accelrt_take_slot();
        if (accelrt_slots_fenced) __atomic_fetch_or(&accelrt_held, accelrt_needs_fence, __ATOMIC_SEQ_CST);
        return me;
    }
    /* Into a section, whichever: False where a capture ends and the thread was in none; then it is in none. */
    static int accelrt_enter_slowly(accelrt_slot *me, int may_wait) {
        if (!accelrt_enter_outermost(me, may_wait)) { accelrt_enter_inner(me); return 1; }
        if (accelrt_slots_fenced) __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (!(accelrt_load_held() & accelrt_ends)) return 1;
        accelrt_leave_slot(me);
        return 0;
    }
    __attribute__((noinline, cold)) static accelrt_slot *accelrt_enter_asking_slow(int entered, int may_wait) {
        accelrt_slot *me = accelrt_my_slot;
        if (entered) accelrt_leave_slot(me);
        if (me == NULL && (me = accelrt_take_asker()) == NULL)
            return NULL;  /* asks unguarded: without these bytes the process is lost anyway */
        while (!accelrt_enter_slowly(me, may_wait)) accelrt_await_end();
        return me;
    }
    static inline accelrt_slot *accelrt_enter_asking(int may_wait) {
        accelrt_slot *me = accelrt_my_slot;
        int entered = __builtin_expect(me != NULL, 1) && accelrt_enter_outermost(me, may_wait);
        if (__builtin_expect(entered && !__atomic_load_n(&accelrt_held, __ATOMIC_ACQUIRE), 1)) return me;
        return accelrt_enter_asking_slow(entered, may_wait);
    }
    static inline void accelrt_leave_asking(accelrt_slot *me) {
        if (__builtin_expect(me != NULL, 1)) accelrt_leave_slot(me);
    }
    static int accelrt_try_asking(void) {
        accelrt_slot *me = accelrt_my_slot;
        return (me != NULL || (me = accelrt_take_asker()) != NULL) && accelrt_enter_slowly(me, 0);
    }
    static void accelrt_await_asker(accelrt_slot *asker) {
        uint64_t section = accelrt_section_of(asker);
        long long patience = section & accelrt_slot_mark ? accelrt_waiting_ns : accelrt_patience_ns, begun = 0, waited;
        for (int round = 0; section && !accelrt_has_left(asker, section); round++) {
            if (round < 200) continue;
            if (begun == 0) begun = accelrt_now();
            waited = accelrt_now() - begun;
            if (waited > patience) return;
            if (waited > 1000000) accelrt_pause(50000);
            else sched_yield();
        }
    }
    static void accelrt_await_askers(void) {
        if (!accelrt_fence_slots()) return;
        for (accelrt_slot *asker = accelrt_first_slot(); asker != NULL; asker = asker->next)
            if (asker != accelrt_my_slot) accelrt_await_asker(asker);
    }
    static void accelrt_begin_end(void) {
        pthread_mutex_lock(&accelrt_one_end);
        __atomic_fetch_or(&accelrt_held, accelrt_ends, __ATOMIC_SEQ_CST);
        accelrt_await_askers();
    }
    static void accelrt_finish_end(void) {
        __atomic_fetch_and(&accelrt_held, ~accelrt_ends, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&accelrt_sleepers, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, &accelrt_held, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        pthread_mutex_unlock(&accelrt_one_end);
    }
    /* A capture that begins waits for threads that record events of accelrt's own, and they for it: a stream that they
       saw not to capture does not until they have recorded.  Both have patience, not for ever: a driver may let a record
       wait, and a begin waits for the end of another thread's capture, which may wait for who records. */
    static long accelrt_marking, accelrt_beginning;  /* threads */
    static int accelrt_await_none(const long *threads, long long patience) {
        long long begun = 0;
        for (int round = 0; __atomic_load_n(threads, __ATOMIC_SEQ_CST); round++) {
            if (round < 200) { accelrt_spin(); continue; }
            if (begun == 0) begun = accelrt_now();
            if (accelrt_now() - begun > patience) return 0;
            sched_yield();
        }
        return 1;
    }
    static int accelrt_begin_mark(void) {
        for (;;) {
            __atomic_add_fetch(&accelrt_marking, 1, __ATOMIC_SEQ_CST);
            if (!__atomic_load_n(&accelrt_beginning, __ATOMIC_SEQ_CST)) return 1;
            __atomic_sub_fetch(&accelrt_marking, 1, __ATOMIC_SEQ_CST);
            if (!accelrt_await_none(&accelrt_beginning, accelrt_waiting_ns)) return 0;
        }
    }
    static void accelrt_end_mark(void) { __atomic_sub_fetch(&accelrt_marking, 1, __ATOMIC_SEQ_CST); }
    static void accelrt_enter_begin(void) {
        __atomic_add_fetch(&accelrt_beginning, 1, __ATOMIC_SEQ_CST);
        accelrt_await_none(&accelrt_marking, accelrt_patience_ns);
    }
    static void accelrt_leave_begin(void) { __atomic_sub_fetch(&accelrt_beginning, 1, __ATOMIC_SEQ_CST); }
    static void accelrt_begin_asking_anew(void) {
        /* At import, and in a forked child, where no capture begins or ends. */
        accelrt_marking = accelrt_beginning = 0;
        accelrt_open_slots();
        accelrt_held = accelrt_slots_fenced ? accelrt_needs_fence : 0;
        accelrt_sleepers = 0;
        pthread_mutex_init(&accelrt_one_end, NULL);
    }
    """
    Slot* enter_asking_here "accelrt_enter_asking" (bint may_wait) noexcept nogil
    void leave_asking_here "accelrt_leave_asking" (Slot* asker) noexcept nogil
    bint try_asking_here "accelrt_try_asking" () noexcept nogil
    int held "accelrt_held"
    int ENDS "accelrt_ends"
    int load_flag "__atomic_load_n" (int* flag, int order) noexcept nogil
    int ACQUIRE "__ATOMIC_ACQUIRE"
    void await_askers "accelrt_await_askers" () noexcept nogil
    void begin_end "accelrt_begin_end" () noexcept nogil
    void finish_end "accelrt_finish_end" () noexcept nogil
    bint begin_mark "accelrt_begin_mark" () noexcept nogil
    void end_mark "accelrt_end_mark" () noexcept nogil
    void enter_begin "accelrt_enter_begin" () noexcept nogil
    void leave_begin "accelrt_leave_begin" () noexcept nogil
    void begin_asking_anew "accelrt_begin_asking_anew" () noexcept nogil

cdef Table guarded_table
cdef Table* inner = NULL    # the driver's, under the guard
cdef room_fn room_maker = NULL


cdef void make_room_by(room_fn function) noexcept nogil:
    global room_maker
    room_maker = function


cdef inline bint has_made_room(int device) noexcept nogil:
    return room_maker != NULL and room_maker(device)


include "guarded_rows.pxi"


cdef Table* guard_table(Table* table, Table* blank) noexcept nogil:
    global inner, guarded_table
    if table != &guarded_table:
        inner = table
    guarded_table = inner[0]
    fill_guarded(&guarded_table, inner, blank)
    guard_left_out(&guarded_table, blank)
    if table.capture_begin != blank.capture_begin:
        guarded_table.capture_begin = begin_capture_apart
    return &guarded_table


cdef int begin_capture_apart(int device, uintptr_t stream, int mode) noexcept nogil:
    cdef int code
    enter_begin()
    code = guarded_capture_begin(device, stream, mode)
    leave_begin()
    return code


cdef Slot* enter_asking(bint may_wait) noexcept nogil:
    return enter_asking_here(may_wait)


cdef void leave_asking(Slot* asker) noexcept nogil:
    leave_asking_here(asker)


cdef bint try_asking() noexcept nogil:
    # For what is asked on accelrt's own account: False where a capture ends just now, so that it is to be asked later.
    # Never waits; may nest, and rows may be called inside.
    return try_asking_here()


cdef void stop_asking() noexcept nogil:
    # After a try_asking that answered True, on the same thread.
    leave_asking_here(my_slot)


cdef bint is_ending() noexcept nogil:
    # Whether a capture ends just now.
    return (load_flag(&held, ACQUIRE) & ENDS) != 0


# --- what may be asked, and what is answered ------------------------------------------------------------------

cdef int meaning_of(int code) noexcept nogil:
    if code == 0:
        return DONE
    if code == NOT_READY or CAPTURE_UNSUPPORTED <= code <= CAPTURE_WRONG_THREAD:
        return LATER
    if code == INVALID_HANDLE or code == INVALID_CONTEXT or code == CONTEXT_IS_DESTROYED:
        return GONE
    if code == INVALID_DEVICE or code == DEINITIALIZED:
        return GONE
    return FAILED


cdef bint is_device_lost(int code) noexcept nogil:
    # A device whose work failed runs no more of it; a context that is destroyed, or a driver that is closed, has none.
    if code == CONTEXT_IS_DESTROYED or code == DEINITIALIZED or code == LAUNCH_FAILED:
        return True
    return code == ILLEGAL_ADDRESS or code == LAUNCH_TIMEOUT or code == ASSERT or (
        HARDWARE_STACK_ERROR <= code <= INVALID_PC)


cdef int as_refusal(int code) noexcept nogil:
    return NOT_READY if meaning_of(code) == GONE and not is_device_lost(code) else code


cdef bint is_captured_event(int code) noexcept nogil:
    # The second is what it answers once the capture is over.
    return code == CAPTURED_EVENT or code == INVALID_VALUE


cdef bint is_capturing(Table* table, int device, uintptr_t stream, int* out_code) noexcept nogil:
    # The legacy default stream may not even be asked beside a capture of a stream that waits for it.
    cdef int status = CAPTURE_NONE
    cdef int code = table.stream_is_capturing(device, stream, &status)
    out_code[0] = 0 if code == CAPTURE_IMPLICIT else code
    return code == CAPTURE_IMPLICIT or (code == 0 and status != CAPTURE_NONE)


cdef int query_uncaptured(Table* table, int device, uintptr_t stream, const char** out_row) noexcept nogil:
    # To query a capturing stream would break its capture, and to query any stream in another mode than relaxed would
    # break one that another thread has open in global mode.
    cdef int mode, code
    out_row[0] = b"stream_is_capturing"
    if not try_asking():
        return NOT_READY
    if is_capturing(table, device, stream, &code):
        code = NOT_READY
    if code == 0:
        out_row[0] = b"capture_mode_exchange"
        code = go_relaxed(table, &mode)
        if code == 0:
            out_row[0] = b"stream_query"
            code = table.stream_query(device, stream)
            restore_mode(table, mode)
    stop_asking()
    return code


cdef int ask_stream(Table* table, int device, uintptr_t stream) noexcept nogil:
    cdef const char* row
    cdef int code
    if not enter_wait():
        return NOT_READY
    code = query_uncaptured(table, device, stream, &row)
    leave_wait()
    return code


cdef bint is_idle_or_gone(Table* table, int device, uintptr_t stream) noexcept nogil:
    # A refusal may be another's: of a stream that is gone every question is refused, which device it is of too.
    cdef int belongs = 0
    cdef int code = ask_stream(table, device, stream)
    if meaning_of(code) == GONE and stream > PER_THREAD and try_asking():
        code = table.stream_device(device, stream, &belongs)
        stop_asking()
        return meaning_of(code) == GONE or code == INVALID_VALUE
    return code == 0


cdef long marks_taken = 0


cdef int record_and_look(Table* table, int device, uintptr_t event, uintptr_t stream, bint* out_taken) noexcept nogil:
    # A capture that the stream takes part in since the look, which others began by no row, is either seen afterwards, or
    # over: then the event answers INVALID_VALUE, and asking for it breaks nothing.
    cdef int code
    if is_capturing(table, device, stream, &code):
        return NOT_READY
    if code == 0:
        code = table.event_record(device, event, stream)
    if code == 0 and is_capturing(table, device, stream, &code):
        out_taken[0] = True
        add_count(&marks_taken, 1)
        return NOT_READY
    if meaning_of(code) == GONE and not is_idle_or_gone(table, device, stream):
        return NOT_READY  # a stream of another context, say, that lives but takes no event of this one
    return NOT_READY if meaning_of(code) == LATER else code


cdef int record_behind(Table* table, int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef bint is_taken = False
    return record_and_tell(table, device, event, stream, &is_taken)


cdef int record_and_tell(Table* table, int device, uintptr_t event, uintptr_t stream, bint* out_taken) noexcept nogil:
    # And whether a capture has the event: then it is left True.
    # On the legacy default stream an event breaks a capture of a stream that waits for it; which streams do, and
    # which of them capture, may change between the look and the record.
    cdef int code = NOT_READY
    cdef bint legacy = stream <= LEGACY_LAST
    if legacy and not enter_wait():
        return NOT_READY
    if begin_mark():
        if try_asking():
            if load_count(&told_captures) == 0:
                code = record_and_look(table, device, event, stream, out_taken)
            stop_asking()
        end_mark()
    if legacy:
        leave_wait()
    return code


cdef void begin_anew() noexcept nogil:
    # Now, and in a forked child, where the parent's captures and waits do not exist.
    global inside
    inside = 0
    store_count(&waits, 0)
    store_count(&captures, 0)
    store_count(&told_captures, 0)
    pthread_mutex_init(&gate, NULL)
    pthread_cond_init(&none_inside, NULL)
    begin_asking_anew()
    forget_leaving()


begin_anew()
at_fork("driver.guard", FORK_GATE, NULL, NULL, &begin_anew)


# --- a thread's capture mode around calls that a driver refuses beside a capture --------------------------

cdef extern from *:
    """
    static __thread int accelrt_owed;  /* 1 + the mode that this thread ought to be in; 0 where it is */
    """
    int owed "accelrt_owed"


cdef int go_relaxed(Table* table, int* out_before) noexcept nogil:
    global owed
    cdef int code = table.capture_mode_exchange(CAPTURE_RELAXED, out_before)
    if code == 0 and owed:
        out_before[0] = owed - 1
        owed = 0
    return code


cdef void restore_mode(Table* table, int before) noexcept nogil:
    global owed
    cdef int relaxed
    if table.capture_mode_exchange(before, &relaxed) and table.capture_mode_exchange(before, &relaxed):
        owed = before + 1


def has_open_captures() -> bool:
    """Tells whether a capture of this process's is open or about to begin, on any thread."""
    return captures_open()


def marks_in_captures() -> int:
    """Counts the events of accelrt's own that became part of a capture."""
    return load_count(&marks_taken)


def is_capture_ending() -> bool:
    """Tells whether a thread of this process's ends a capture just now, so that what is about streams has to wait."""
    return is_ending()


# --- nodes that instances of graphs leave out ---------------------------------------------------------------
# Where NVIDIA's driver (580.159 at least) has an instance leave out a fill beside other nodes, launches are no longer in the
# order of their stream, or lose the context; copies and kernels are left out as they should be.  So no driver is asked to: a
# fill that is left out fills one element of memory that nothing reads, and what it does otherwise is kept here.
#
# Which nodes of another graph are left out once an instance is updated by it no driver tells, so that callers ask
# leaves_nodes_out before.  One thread at a time changes an instance, as drivers have it.

cdef struct LeftOut:
    uintptr_t node
    NodeParams params        # of a fill: what it is to do again; else the type alone
    LeftOut* next

cdef struct Leaving:         # an instance that leaves nodes out, or did
    int device
    LeftOut* nodes

cdef struct Unread:          # memory that fills which are left out write to
    uintptr_t address        # 0: none
    size_t fills             # that are left out

cdef enum:
    UNREAD_BYTES = 16

cdef int leaving_lock = 0    # guards the two that follow
cdef AddressMap leaving      # the instance's handle -> Leaving
cdef Unread[MAX_DEVICES] unread
cdef long leaving_count = 0


cdef void forget_leaving() noexcept nogil:
    # In a forked child, where no instance lives.
    global leaving_lock
    leaving_lock = 0
    memset(&leaving, 0, sizeof(leaving))
    memset(unread, 0, sizeof(unread))
    store_count(&leaving_count, 0)


cdef Leaving* leaving_of(uintptr_t exec_) noexcept nogil:
    cdef Leaving* instance
    if load_count(&leaving_count) == 0:
        return NULL
    spin_lock(&leaving_lock)
    instance = <Leaving*>map_find(&leaving, exec_)
    spin_unlock(&leaving_lock)
    return instance


cdef LeftOut** find_left_out(Leaving* instance, uintptr_t node) noexcept nogil:
    # Where it is linked; NULL where the instance does the node.
    cdef LeftOut** link = NULL if instance == NULL else &instance.nodes
    while link != NULL and link[0] != NULL and link[0].node != node:
        link = &link[0].next
    return NULL if link == NULL or link[0] == NULL else link


cdef bint leaves_nodes_out(uintptr_t exec_) noexcept nogil:
    cdef Leaving* instance = leaving_of(exec_)
    return instance != NULL and instance.nodes != NULL


cdef int require_node(uintptr_t graph, uintptr_t node) noexcept nogil:
    # INVALID_VALUE: it is within a child or a body.
    cdef size_t count = 0, place
    cdef uintptr_t* handles
    cdef int code = inner.graph_nodes(graph, 0, NULL, &count)
    if code:
        return code
    handles = <uintptr_t*>calloc(count + 1, sizeof(uintptr_t))
    if handles == NULL:
        return NO_HOST_MEMORY
    code = inner.graph_nodes(graph, count, handles, &count)
    if code == 0:
        code = INVALID_VALUE
        for place in range(count):
            if handles[place] == node:
                code = 0
    free(handles)
    return code


cdef int use_unread(int device) noexcept nogil:
    # One fill more; where it is not 0, none.
    cdef uintptr_t address = 0
    cdef bint has
    cdef int mode, code
    if device < 0 or device >= MAX_DEVICES:
        return INVALID_DEVICE
    spin_lock(&leaving_lock)
    unread[device].fills += 1
    has = unread[device].address != 0
    spin_unlock(&leaving_lock)
    if has:
        return 0
    code = go_relaxed(&guarded_table, &mode)
    if code == 0:
        code = guarded_table.memory_alloc(device, UNREAD_BYTES, &address)
        restore_mode(&guarded_table, mode)
    spin_lock(&leaving_lock)
    has = unread[device].address != 0  # another thread's, which came first
    if not has:
        unread[device].address = address
    unread[device].fills -= code != 0
    spin_unlock(&leaving_lock)
    if has and code == 0:
        free_unread(device, address)
    return code


cdef int free_unread(int device, uintptr_t address) noexcept nogil:
    cdef int mode
    cdef int code = go_relaxed(&guarded_table, &mode)
    if code == 0:
        code = guarded_table.memory_free(device, address)
        restore_mode(&guarded_table, mode)
    return code


cdef void leave_unread(int device) noexcept nogil:
    # One fill less.  The memory stays for the next, and for launches under way.
    spin_lock(&leaving_lock)
    unread[device].fills -= 1
    spin_unlock(&leaving_lock)


cdef int destroy_unread(int device) noexcept nogil:
    # Unless a fill is left out.
    cdef uintptr_t address = 0
    cdef int code = 0
    if unread[device].address == 0 or not enter_wait():
        return 0
    spin_lock(&leaving_lock)
    if unread[device].fills == 0:
        address, unread[device].address = unread[device].address, 0
    spin_unlock(&leaving_lock)
    if address:
        code = free_unread(device, address)
    if code:
        spin_lock(&leaving_lock)
        unread[device].address = unread[device].address or address
        spin_unlock(&leaving_lock)
    leave_wait()
    return code


cdef int set_aside(int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, const NodeParams* params) noexcept nogil:
    cdef NodeParams aside = params[0]
    aside.dst, aside.dst_pitch, aside.width, aside.height = unread[device].address, 0, 1, 1
    return inner.graph_node_set(device, graph, exec_, node, &aside)


cdef int leave_fill_out(
    int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, const NodeParams* had, NodeParams* out_params
) noexcept nogil:
    cdef int code = require_node(graph, node)
    if code == 0 and had == NULL:
        code = inner.graph_node_params(graph, node, out_params)
    elif code == 0:
        out_params[0] = had[0]
    if code == 0 and out_params.height > 1:
        code = NOT_SUPPORTED  # drivers give a fill of rows none but rows of the same shape
    if code == 0:
        code = use_unread(device)
    if code == 0:
        code = set_aside(device, graph, exec_, node, out_params)
        if code:
            leave_unread(device)
    return code


cdef int leave_out(
    int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, int type_, NodeParams* had
) noexcept nogil:
    cdef Leaving* instance = leaving_of(exec_)
    cdef bint is_new = instance == NULL
    cdef LeftOut* left
    cdef int code
    if find_left_out(instance, node) != NULL:
        return 0
    left = <LeftOut*>calloc(1, sizeof(LeftOut))
    instance = <Leaving*>calloc(1, sizeof(Leaving)) if is_new else instance
    code = NO_HOST_MEMORY if left == NULL or instance == NULL else 0
    if code == 0 and is_new:
        instance.device = device
        spin_lock(&leaving_lock)
        code = map_reserve(&leaving)
        if code == 0:
            map_insert(&leaving, exec_, instance)
            add_count(&leaving_count, 1)
        spin_unlock(&leaving_lock)
        is_new = code != 0
    if code == 0 and type_ == NODE_FILL:
        code = leave_fill_out(device, graph, exec_, node, had, &left.params)
    elif code == 0:
        code = inner.graph_node_enable(device, graph, exec_, node, False, had)
    if code:
        free(left)
        if is_new:
            free(instance)
        return code
    left.node, left.params.type, left.next, instance.nodes = node, type_, instance.nodes, left
    return 0


cdef int do_again(int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, LeftOut** link) noexcept nogil:
    cdef LeftOut* left = link[0]
    cdef bint is_fill = left.params.type == NODE_FILL
    cdef int code
    if is_fill:
        code = inner.graph_node_set(device, graph, exec_, node, &left.params)
    else:
        code = inner.graph_node_enable(device, graph, exec_, node, True, NULL)
    if code == 0:
        link[0] = left.next
        free(left)
        if is_fill:
            leave_unread(device)
    return code


cdef int switching_graph_node_enable(
    int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, int enabled, NodeParams* had
) noexcept nogil:
    cdef LeftOut** link = find_left_out(leaving_of(exec_), node)
    cdef unsigned int before = 0
    cdef int type_ = 0
    cdef int code = inner.graph_node_type(graph, node, &type_)
    if code == 0:
        code = inner.graph_node_enabled(graph, exec_, node, &before)  # whether it is the instance's, and can be left out
    if code:
        return code
    if enabled:
        return 0 if link == NULL else do_again(device, graph, exec_, node, link)
    return leave_out(device, graph, exec_, node, type_, had)


cdef int switching_graph_node_enabled(
    uintptr_t graph, uintptr_t exec_, uintptr_t node, unsigned int* out_enabled
) noexcept nogil:
    cdef int code = inner.graph_node_enabled(graph, exec_, node, out_enabled)
    if code == 0 and find_left_out(leaving_of(exec_), node) != NULL:
        out_enabled[0] = 0
    return code


cdef int switching_graph_node_set(
    int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, NodeParams* params
) noexcept nogil:
    cdef LeftOut** link = NULL
    cdef int code
    if exec_ and params.type == NODE_FILL:
        link = find_left_out(leaving_of(exec_), node)
    if link != NULL and params.height > 1:
        return NOT_SUPPORTED
    code = inner.graph_node_set(device, graph, exec_, node, params)  # which says whether it may be
    if link != NULL and code == 0:
        link[0].params = params[0]
        code = set_aside(device, graph, exec_, node, params)
    return code


cdef int switching_graph_update(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    # By the graph that the instance was made of, with the nodes and edges of then, where it leaves nodes out.
    cdef Leaving* instance = leaving_of(exec_)
    cdef LeftOut* left = NULL if instance == NULL else instance.nodes
    cdef LeftOut** link
    cdef NodeParams params
    cdef int code = 0, refused = 0
    out_result[0], out_node[0] = 0, 0
    while left != NULL and code == 0:
        if left.params.type == NODE_FILL:
            code = inner.graph_node_params(graph, left.node, &params)
            if code == 0 and (params.type != NODE_FILL or params.height > 1):
                code = NOT_SUPPORTED
        left = left.next
    if code == 0:
        code = inner.graph_update(exec_, graph, out_result, out_node)
    link = NULL if code or instance == NULL else &instance.nodes
    while link != NULL and link[0] != NULL:
        left = link[0]
        refused = 0
        if left.params.type == NODE_FILL:
            refused = inner.graph_node_params(graph, left.node, &left.params)
            if refused == 0:
                refused = set_aside(instance.device, graph, exec_, left.node, &left.params)
        if refused:  # the instance does it from now on
            code, link[0] = refused, left.next
            free(left)
            leave_unread(instance.device)
        else:
            link = &left.next
    return code


cdef int switching_graph_exec_destroy(uintptr_t exec_) noexcept nogil:
    # Forgotten first, for another instance may have the handle next.
    cdef Leaving* instance = NULL
    cdef LeftOut* left
    if load_count(&leaving_count):
        spin_lock(&leaving_lock)
        instance = <Leaving*>map_remove(&leaving, exec_)
        if instance != NULL:
            add_count(&leaving_count, -1)
        spin_unlock(&leaving_lock)
    while instance != NULL and instance.nodes != NULL:
        left = instance.nodes
        instance.nodes = left.next
        if left.params.type == NODE_FILL:
            leave_unread(instance.device)
        free(left)
    free(instance)
    return inner.graph_exec_destroy(exec_)


cdef void guard_left_out(Table* table, const Table* blank) noexcept nogil:
    if inner.graph_node_enable == blank.graph_node_enable:
        return
    table.graph_node_enable, table.graph_node_enabled = switching_graph_node_enable, switching_graph_node_enabled
    table.graph_node_set, table.graph_update = switching_graph_node_set, switching_graph_update
    table.graph_exec_destroy = switching_graph_exec_destroy


# --- uses of memory by streams ------------------------------------------------------------------------------------------
# Uses of memory by streams, the pool of driver events, and queues of events that streams have to reach.
#
# An event that was captured belongs to the graph: a driver crashed when such an event was recorded anew while the graph was
# destroyed.  Python's graphs keep the Events that they captured.  What nogil code captured is destroyed when it is returned.

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(unsigned long long word) noexcept nogil

cdef enum:
    KINDS = 4  # EVENT_BLOCKING_SYNC and EVENT_DISABLE_TIMING, in every combination

cdef PooledEvent* spare[MAX_DEVICES][KINDS]  # the one returned last first; under the lock
cdef int lock = 0


# --- driver events -------------------------------------------------------------------------------------------

cdef void forget_events() noexcept nogil:
    # In a forked child: the parent's events, and a lock that another of its threads may have held.
    global lock
    lock = 0
    memset(spare, 0, sizeof(spare))


cdef PooledEvent* take_spare(int device, unsigned int flags) noexcept nogil:
    cdef PooledEvent* event
    if flags >= KINDS:
        return NULL
    spin_lock(&lock)
    event = spare[device][flags]
    if event != NULL:
        spare[device][flags] = event.next
    spin_unlock(&lock)
    return event


cdef int make_event(Table* table, int device, unsigned int flags, PooledEvent** out_event) noexcept nogil:
    cdef PooledEvent* event = <PooledEvent*>calloc(1, sizeof(PooledEvent))
    cdef int code
    out_event[0] = NULL
    if event == NULL:
        return NO_HOST_MEMORY
    event.device = device
    event.flags = flags
    code = table.event_create(device, flags, &event.handle)
    if code:
        free(event)
        return code
    out_event[0] = event
    return 0


cdef int take_event(Table* table, int device, unsigned int flags, PooledEvent** out_event) noexcept nogil:
    out_event[0] = take_spare(device, flags)
    return 0 if out_event[0] != NULL else make_event(table, device, flags, out_event)


cdef void return_event(PooledEvent* event) noexcept nogil:
    event.captured = False
    event.block = NULL
    spin_lock(&lock)
    event.next = spare[event.device][event.flags]
    spare[event.device][event.flags] = event
    spin_unlock(&lock)


cdef void release_event(Table* table, PooledEvent* event) noexcept nogil:
    if event.captured:
        table.event_destroy(event.device, event.handle)
        free(event)
    else:
        return_event(event)


cdef int destroy_spare(Table* table, int device) noexcept nogil:
    cdef PooledEvent* event = take_spare(device, EVENT_DISABLE_TIMING)
    cdef int code
    while event != NULL:
        code = table.event_destroy(device, event.handle)
        if code:
            return_event(event)
            return code
        free(event)
        event = take_spare(device, EVENT_DISABLE_TIMING)
    return destroy_unread(device)


cdef int mark_behind(Table* table, int device, uintptr_t stream, PooledEvent** out_event) noexcept nogil:
    cdef int code = as_refusal(take_event(table, device, EVENT_DISABLE_TIMING, out_event))
    if code == 0:
        code = record_and_tell(table, device, out_event[0].handle, stream, &out_event[0].captured)
        if code:
            release_event(table, out_event[0])
            out_event[0] = NULL
    return code


cdef int ask_event(Table* table, const PooledEvent* event, bint wait) noexcept nogil:
    # A query breaks a global-mode capture of any thread, unless the thread that asks is in relaxed mode.
    cdef int mode
    cdef int code = go_relaxed(table, &mode)
    if code == 0:
        code = (table.event_synchronize if wait else table.event_query)(event.device, event.handle)
        restore_mode(table, mode)
    return code


# --- uses ----------------------------------------------------------------------------------------------------

cdef void hand_on(UseStore* store, Use** uses, int device, uintptr_t stream, uintptr_t heir) noexcept nogil:
    cdef Use** link = uses
    cdef const Use* use = uses[0]
    cdef bint listed = heir == 0
    while use != NULL:
        listed = listed or (use.stream == heir and use.device == device and use.event == NULL)
        use = use.next
    while link[0] != NULL:
        if link[0].stream != stream or link[0].device != device or link[0].event != NULL:
            link = &link[0].next
        elif listed:
            drop_use(store, link)
        else:
            listed = True
            link[0].stream = heir
            link = &link[0].next


cdef int mark_use(Table* table, Use* use) noexcept nogil:
    return 0 if use.event != NULL else mark_behind(table, use.device, use.stream, &use.event)


cdef void unmark_use(Table* table, Use* use) noexcept nogil:
    if use.event != NULL:
        release_event(table, use.event)
        use.event = NULL


cdef int ask_use(Table* table, Use* use, bint wait) noexcept nogil:
    cdef int code = ask_event(table, use.event, wait)
    if code == 0 or is_device_lost(code):
        unmark_use(table, use)
    elif is_captured_event(code) or meaning_of(code) == GONE:
        use.event.captured = True
        unmark_use(table, use)
        return NOT_READY
    return code


# --- queues --------------------------------------------------------------------------------------------------

cdef inline uintptr_t queue_key(int device, uintptr_t stream) noexcept nogil:
    return stream ^ <uintptr_t>device << 56


cdef Queue* queue_of(Queues* queues, int device, uintptr_t stream) noexcept nogil:
    cdef Queue* queue = <Queue*>map_find(&queues.index, queue_key(device, stream))
    while queue != NULL and not (queue.stream == stream and queue.device == device):
        queue = queue.same_key
    return queue if queue != NULL else make_queue(queues, device, stream)


cdef int ensure_capacity(Queues* queues) noexcept nogil:
    # Makes place for one more queue, in the array and in the bits; 0 or NO_HOST_MEMORY.
    cdef size_t capacity = 2 * queues.capacity + 64, word
    cdef Queue** all_
    cdef uint64_t* filled
    if queues.count < queues.capacity:
        return 0
    all_ = <Queue**>realloc(queues.all, capacity * sizeof(Queue*))
    if all_ == NULL:
        return NO_HOST_MEMORY
    queues.all = all_
    filled = <uint64_t*>realloc(queues.filled, capacity // 64 * sizeof(uint64_t))
    if filled == NULL:
        return NO_HOST_MEMORY
    for word in range(queues.capacity // 64, capacity // 64):
        filled[word] = 0
    queues.filled = filled
    queues.capacity = capacity
    return 0


cdef Queue* make_queue(Queues* queues, int device, uintptr_t stream) noexcept nogil:
    # Adds an empty queue for a stream; NULL where the host has no memory.
    cdef Queue* queue
    cdef uintptr_t key = queue_key(device, stream)
    if map_reserve(&queues.index) or ensure_capacity(queues):
        return NULL
    queue = <Queue*>calloc(1, sizeof(Queue))
    if queue == NULL:
        return NULL
    queue.device = device
    queue.stream = stream
    queue.number = queues.count
    queue.same_key = <Queue*>map_remove(&queues.index, key)
    map_insert(&queues.index, key, queue)
    queues.all[queues.count] = queue
    queues.count += 1
    return queue


cdef Queue* next_filled(const Queues* queues, size_t number) noexcept nogil:
    cdef size_t word = number // 64
    cdef uint64_t bits
    if number >= queues.count:
        return NULL
    bits = queues.filled[word] & (~<uint64_t>0 << (number % 64))
    while bits == 0:
        word += 1
        if word * 64 >= queues.count:
            return NULL
        bits = queues.filled[word]
    return queues.all[word * 64 + lowest_bit(bits)]


cdef long length_of(const Queue* queue) noexcept nogil:
    cdef const PooledEvent* event = queue.head
    cdef long count = 0
    while event != NULL:
        count += 1
        event = event.next
    return count


cdef int wait_queues(Queues* queues, waiting wait, void* owner) noexcept nogil:
    cdef size_t count = queues.count
    cdef Queue* queue = next_filled(queues, 0)
    cdef long left
    cdef int code = 0
    while queue != NULL and queue.number < count and code == 0:
        left = length_of(queue)
        while left and code == 0 and queue.head != NULL and not queue.head.captured:
            left -= 1
            code = wait(queue, owner)
        queue = next_filled(queues, queue.number + 1)
    return code


cdef void put_back(Queues* queues, Queue* queue, PooledEvent* event) noexcept nogil:
    event.next = queue.head
    if queue.head == NULL:
        queue.tail = event
        queues.filled[queue.number // 64] |= <uint64_t>1 << (queue.number % 64)
    queue.head = event
    queues.pending += 1


cdef void push(Queues* queues, Queue* queue, PooledEvent* event, void* block) noexcept nogil:
    event.block = block
    if queue.head == NULL:
        put_back(queues, queue, event)
        return
    event.next = NULL
    queue.tail.next = event
    queue.tail = event
    queues.pending += 1


cdef PooledEvent* take_oldest(Queues* queues, Queue* queue) noexcept nogil:
    cdef PooledEvent* event = queue.head
    queue.head = event.next
    if queue.head == NULL:
        queues.filled[queue.number // 64] &= ~(<uint64_t>1 << (queue.number % 64))
    queues.pending -= 1
    return event


cdef PooledEvent* take_of(Queues* queues, Queue* queue, const void* block) noexcept nogil:
    cdef PooledEvent* before = queue.head
    cdef PooledEvent* event
    if before.block == block:
        return take_oldest(queues, queue)
    while before.next.block != block:
        before = before.next
    event = before.next
    before.next = event.next
    if queue.tail == event:
        queue.tail = before
    queues.pending -= 1
    return event


cdef int queue_use(Table* table, Queues* queues, UseStore* store, Use** link, void* block, uint32_t* events) noexcept nogil:
    cdef Queue* queue = queue_of(queues, link[0].device, link[0].stream)
    cdef PooledEvent* event
    cdef int code
    if queue == NULL:
        return NO_HOST_MEMORY
    code = mark_behind(table, queue.device, queue.stream, &event)
    if code == 0:
        push(queues, queue, event, block)
        events[0] += 1
    elif meaning_of(code) != GONE:
        return code
    drop_use(store, link)
    return 0


cdef int query_event(Table* table, const Queue* queue, PooledEvent* event) noexcept nogil:
    # The answer for a captured event means nothing, nor does a refusal, so it is recorded again: the block then waits also
    # for work enqueued since.
    cdef int code
    if not event.captured:
        code = table.event_query(queue.device, event.handle)
        if is_device_lost(code) or not (is_captured_event(code) or meaning_of(code) == GONE):
            return code
        event.captured = True
    code = record_behind(table, queue.device, event.handle, queue.stream)
    if code:
        return code
    event.captured = False
    return NOT_READY


cdef int poll_queue(Table* table, Queues* queues, Queue* queue, completing complete, void* owner) noexcept nogil:
    # A destroyed stream counts as complete.
    cdef int code, meaning
    while queue.head != NULL:
        code = query_event(table, queue, queue.head)
        meaning = meaning_of(code)
        if meaning != DONE and meaning != GONE:
            return code if meaning == FAILED else 0
        complete(queue, take_oldest(queues, queue), owner)
    return 0


cdef int poll_queues(Table* table, Queues* queues, completing complete, void* owner) noexcept nogil:
    # In relaxed mode, as ask_event.
    cdef Queue* queue = next_filled(queues, 0)
    cdef int mode
    cdef int code = go_relaxed(table, &mode)
    if code:
        return code
    while queue != NULL and code == 0:
        code = poll_queue(table, queues, queue, complete, owner)
        queue = next_filled(queues, queue.number + 1)
    restore_mode(table, mode)
    return code


forget_events()
at_fork("driver.guard", FORK_POOLS, NULL, NULL, &forget_events)
