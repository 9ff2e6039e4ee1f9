# Sections that every thread passes all the time, for some nanoseconds each, and that one thread now and then has to know
# left: a driver's call between the look that permits it and its end.
#
# Each thread counts its sections in a slot of its own by plain stores, and then looks at what may forbid it to go on.  Who
# wants to change what they look at changes it first, so that later looks refuse, and then calls fence_slots: every
# processor that runs a thread of this process passes a memory barrier (membarrier(2)).  So each thread either looked
# after the change, or is seen in its slot; and a section costs no atomic operation.  Where the kernel has no such call
# (or a sandbox forbids it), slots_fenced is set, and who enters passes a barrier.
#
# The kernel wants to be told of it before (registered): at once while the process has one thread, and else, since the kernel
# then waits for every processor, some 10 ms, when a thread takes the first slot: nobody passes a section before.
#
# The state is that of the module that cimports this: each that does has slots of its own.  It calls open_slots when it is
# imported and in a forked child.  A section is left on the thread that entered it.
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    typedef struct accelrt_slot {
        /* Sections that the thread is in, one within the other; then the mark of the outermost; then the outermost's
         * number.  Only the thread itself writes it.  A signal's handler that comes between its load and its store may
         * enter and leave sections too: of that at most a number is lost. */
        uint64_t word __attribute__((aligned(64)));
        int taken;      /* a thread has it */
        int farewells;  /* how often that thread's end was put off */
        struct accelrt_slot *next;
    } accelrt_slot;
    #define accelrt_slot_depth 0xFFFFUL
    #define accelrt_slot_mark 0x10000UL
    #define accelrt_slot_number 0x20000UL  /* the lowest bit of the number */
    enum { accelrt_barrier_all = 1 << 3, accelrt_barrier_register = 1 << 4 };  /* MEMBARRIER_CMD_*PRIVATE_EXPEDITED */

    static accelrt_slot *accelrt_slots;  /* of all threads that ever were; used again, and never freed */
    /* Within the threads' static storage: else each use of it is a call. */
    static __thread accelrt_slot *accelrt_my_slot __attribute__((tls_model("initial-exec")));
    static pthread_key_t accelrt_slot_farewell;
    static int accelrt_slots_named;      /* the key is made */
    static int accelrt_slots_fenced;     /* read by a thread once it has a slot */
    static int accelrt_slots_registered; /* the kernel was told, or has no such call: then slots_fenced is set */

    __attribute__((unused)) static inline accelrt_slot *accelrt_first_slot(void) {
        return __atomic_load_n(&accelrt_slots, __ATOMIC_ACQUIRE);
    }
    __attribute__((unused)) static void accelrt_register_slots(void) {
        /* Threads may do so at once, to the same end. */
        if (syscall(SYS_membarrier, accelrt_barrier_register, 0, 0))
            __atomic_store_n(&accelrt_slots_fenced, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&accelrt_slots_registered, 1, __ATOMIC_RELEASE);
    }
    __attribute__((unused)) static void accelrt_leave_slot_behind(void *place) {
        /* Other libraries' threads may call from destructors of their own: the slot goes in the last round of them. */
        accelrt_slot *slot = place;
        if (++slot->farewells < 3) { pthread_setspecific(accelrt_slot_farewell, slot); return; }
        accelrt_my_slot = NULL;
        slot->farewells = 0;
        /* Sections in which the thread ended are over. */
        __atomic_store_n(&slot->word, slot->word & ~accelrt_slot_depth, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->taken, 0, __ATOMIC_RELEASE);
    }
    /* The thread's first section: a slot, or NULL where there is no memory for it. */
    __attribute__((unused, noinline, cold)) static accelrt_slot *accelrt_take_slot(void) {
        accelrt_slot *slot = accelrt_first_slot();
        int free = 0;
        if (!__atomic_load_n(&accelrt_slots_registered, __ATOMIC_ACQUIRE)) accelrt_register_slots();
        for (; slot != NULL; slot = slot->next, free = 0)
            if (!__atomic_load_n(&slot->taken, __ATOMIC_RELAXED)
                && __atomic_compare_exchange_n(&slot->taken, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) break;
        if (slot == NULL) {
            slot = aligned_alloc(64, sizeof *slot);
            if (slot == NULL) return NULL;
            memset(slot, 0, sizeof *slot);
            slot->taken = 1;
            slot->next = __atomic_load_n(&accelrt_slots, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n(&accelrt_slots, &slot->next, slot, 1, __ATOMIC_SEQ_CST,
                                                __ATOMIC_RELAXED)) { }
        }
        accelrt_my_slot = slot;
        pthread_setspecific(accelrt_slot_farewell, slot);
        /* Whose fence_slots did not see the slot taken made its change before: the looks that follow see that. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return slot;
    }
    /* Whether the thread was in no section, and is now in one; the mark is 0 or 1. */
    __attribute__((unused)) static inline int accelrt_enter_outermost(accelrt_slot *mine, int mark) {
        uint64_t word = mine->word;
        if (__builtin_expect((word & accelrt_slot_depth) != 0, 0)) return 0;
        word = (word & ~accelrt_slot_mark) + (accelrt_slot_number + (mark ? accelrt_slot_mark : 0) + 1);
        /* Release: who reads this number knows that the section before it was left. */
        __atomic_store_n(&mine->word, word, __ATOMIC_RELEASE);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);  /* the processors' part is fence_slots's */
        return 1;
    }
    __attribute__((unused)) static inline void accelrt_enter_inner(accelrt_slot *mine) {
        __atomic_store_n(&mine->word, mine->word + 1, __ATOMIC_RELAXED);
    }
    __attribute__((unused)) static inline void accelrt_leave_slot(accelrt_slot *mine) {
        __atomic_store_n(&mine->word, mine->word - 1, __ATOMIC_RELEASE);
    }
    /* After a change that the looks in sections see.  False: no other thread has a slot, and one that takes one sees the
     * change.  The kernel's barrier costs a microsecond or more, so it is not asked for nothing. */
    __attribute__((unused)) static int accelrt_fence_slots(void) {
        accelrt_slot *slot;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        for (slot = accelrt_first_slot(); slot != NULL; slot = slot->next)
            if (slot != accelrt_my_slot && __atomic_load_n(&slot->taken, __ATOMIC_ACQUIRE)) break;
        if (slot == NULL) return 0;
        if (accelrt_slots_fenced || syscall(SYS_membarrier, accelrt_barrier_all, 0, 0))
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return 1;
    }
    /* After fence_slots: what a thread is inside, or 0; and whether it has left that since. */
    __attribute__((unused)) static inline uint64_t accelrt_section_of(accelrt_slot *slot) {
        uint64_t word = __atomic_load_n(&slot->word, __ATOMIC_ACQUIRE);
        return word & accelrt_slot_depth ? word : 0;
    }
    __attribute__((unused)) static inline int accelrt_has_left(accelrt_slot *slot, uint64_t section) {
        uint64_t word = __atomic_load_n(&slot->word, __ATOMIC_ACQUIRE);
        return !(word & accelrt_slot_depth) || word / accelrt_slot_number != section / accelrt_slot_number;
    }
    /* In a forked child the other threads are gone; the one that forked may be in a section, which it will leave. */
    __attribute__((unused)) static void accelrt_open_slots(void) {
        struct stat threads;  /* a folder for each, beside "." and ".." */
        for (accelrt_slot *slot = accelrt_slots; slot != NULL; slot = slot->next)
            if (slot != accelrt_my_slot) {
                slot->word &= ~accelrt_slot_depth;
                slot->taken = slot->farewells = 0;
            }
        if (!accelrt_slots_named)
            accelrt_slots_named = !pthread_key_create(&accelrt_slot_farewell, accelrt_leave_slot_behind);
        accelrt_slots_fenced = accelrt_slots_registered = 0;
        if (accelrt_my_slot != NULL || (stat("/proc/self/task", &threads) == 0 && threads.st_nlink == 3))
            accelrt_register_slots();
    }
    """
    ctypedef struct Slot "accelrt_slot":
        uint64_t word
        Slot* next  # NULL behind the last
    Slot* my_slot "accelrt_my_slot"       # of the calling thread; NULL before its first section
    bint slots_fenced "accelrt_slots_fenced"
    Slot* take_slot "accelrt_take_slot" () noexcept nogil  # where my_slot is NULL
    bint enter_outermost "accelrt_enter_outermost" (Slot* mine, int mark) noexcept nogil
    void enter_inner "accelrt_enter_inner" (Slot* mine) noexcept nogil  # where enter_outermost answered False
    void leave_slot "accelrt_leave_slot" (Slot* mine) noexcept nogil
    Slot* first_slot "accelrt_first_slot" () noexcept nogil  # of all threads; NULL where none ever took one
    bint fence_slots "accelrt_fence_slots" () noexcept nogil
    uint64_t section_of "accelrt_section_of" (Slot* slot) noexcept nogil
    bint has_left "accelrt_has_left" (Slot* slot, uint64_t section) noexcept nogil
    void open_slots "accelrt_open_slots" () noexcept nogil
