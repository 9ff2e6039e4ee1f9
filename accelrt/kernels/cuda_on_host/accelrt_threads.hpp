// The threads of a block, on one thread of the host.
//
// Without barriers they run one after the other, each to its end.  Else each has a stack of its own, and gives the others
// their turn where it waits: at a barrier of the block, for other lanes of its warp, or for a lock.  Threads that have
// returned count as arrived, as they do on GPUs from Volta on.  What can't go on any more, because some threads wait for
// others that never come, fails as a trap does: the device is lost, and the reason is written to stderr.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

static constexpr int warpSize = 32;

// A function that comes back on another way than it left: nothing may be concluded from what it contains.
#if defined(__clang__)
#define ACCELRT_OPAQUE __attribute__((noinline))
#else
#define ACCELRT_OPAQUE __attribute__((noinline, noipa))
#endif

// Other threads may have written anything meanwhile, which the compiler cannot see.
#define ACCELRT_FENCE() __asm__ __volatile__("" ::: "memory")

namespace accelrt_host {

constexpr size_t STACK = 640 << 10, SMALL_STACK = 64 << 10;  // a GPU has 512 KiB for a thread
constexpr size_t EDGE = 4096;
constexpr unsigned long long INTACT = 0x6163636c72742121;  // at the far end of each stack

enum State : unsigned char { READY, YIELDED, AT_BARRIER, IN_WARP, CONVERGING, RETURNED };

struct Value { alignas(16) unsigned char bytes[16]; };

struct Run;
struct Thread {
    void* context[8];         // of __builtin_setjmp
    Run* run;
    unsigned int number;      // in the block
    State state;
    bool started;             // it has a context
    unsigned int mask, argument;  // of the warp's operation that it takes part in
    void* place;              // where it is CONVERGING
    void (*operation)(Thread** lanes, unsigned int mask);
    Value given, result;
};

struct Stacks {               // of one block; kept for the next one
    Stacks* next;
    Thread* threads;
    char* memory;
    size_t count, bytes, stack;
};

struct Run {
    const accelrt_block* block;
    void** arguments;
    void (*body)(void** arguments);
    void* context[8];         // of the scheduler, or of the loop
    Stacks* stacks;           // NULL where threads run to their ends
    Thread* now;
    unsigned int threads, alive, arrived, count, last_arrived, last_count;
    unsigned int linear;      // of the thread that runs
};

static thread_local Run* running;
static Stacks* spare;
static int spare_lock;

struct Locked {
    Locked() { while (__atomic_exchange_n(&spare_lock, 1, __ATOMIC_ACQUIRE)) {} }
    ~Locked() { __atomic_store_n(&spare_lock, 0, __ATOMIC_RELEASE); }
};

__attribute__((destructor, unused)) static void drop_stacks() {
    while (Stacks* each = spare) {
        spare = each->next;
        munmap(each->memory, each->bytes);
    }
}

}  // namespace accelrt_host

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

namespace accelrt_host {

// The threads with their stacks: the record, the threads, an edge that cannot be touched, room for what the first thread
// may need too much, and the stacks.
static Stacks* take_stacks(size_t count) {
    {
        Locked locked;
        for (Stacks** place = &spare; *place; place = &(*place)->next)
            if ((*place)->count >= count) {
                Stacks* found = *place;
                *place = found->next;
                return found;
            }
    }
    const size_t head = (sizeof(Stacks) + count * sizeof(Thread) + 2 * EDGE - 1) / EDGE * EDGE;
    for (size_t stack : {STACK, SMALL_STACK}) {
        const size_t bytes = head + (count + 1) * stack;
        void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            continue;
        madvise(memory, bytes, MADV_NOHUGEPAGE);
        mprotect((char*)memory + head - EDGE, EDGE, PROT_NONE);
        Stacks* made = (Stacks*)memory;
        made->threads = (Thread*)(made + 1);
        made->memory = (char*)memory;
        made->count = count;
        made->bytes = bytes;
        made->stack = stack;
        return made;
    }
    return NULL;
}

static void give_stacks(Stacks* stacks) {
    Locked locked;
    stacks->next = spare;
    spare = stacks;
}

static char* stack_of(Stacks* stacks, unsigned int number) {
    return stacks->memory + stacks->bytes - (stacks->count - number) * stacks->stack;
}

static void place_thread(Run* run, unsigned int number) {
    const unsigned int *size = run->block->block, plane = size[0] * size[1];
    run->linear = number;
    threadIdx = uint3{number % size[0], number % plane / size[0], number / plane};
}

[[noreturn]] ACCELRT_OPAQUE static void jump(void** context) { __builtin_longjmp(context, 1); }

// Ends the block, as a trap does.
[[noreturn]] ACCELRT_OPAQUE static void fail() {
    Run* run = running;
    *run->block->failed = 1;
    jump(run->context);
}

[[noreturn]] __attribute__((noinline)) static void fail_because(const char* reason) {
    fprintf(stderr, "accelrt: block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x, threadIdx.y, threadIdx.z, reason);
    fail();
}

// Leaves the thread that runs until the scheduler comes back to it.
ACCELRT_OPAQUE static void leave(Thread* thread) {
    ACCELRT_FENCE();
    if (__builtin_setjmp(thread->context) == 0)
        jump(thread->run->context);
    ACCELRT_FENCE();
}

ACCELRT_OPAQUE static void run_body(Thread* thread) { thread->run->body(thread->run->arguments); }

// The first function on a stack; it uses nothing of the host's thread, since another one may serve the next block.
static void begin_thread(unsigned int high, unsigned int low) {
    Thread* thread = (Thread*)((unsigned long long)high << 32 | low);
    for (;;) {
        run_body(thread);
        thread->state = RETURNED;
        leave(thread);
    }
}

ACCELRT_OPAQUE static void enter(Run* run, Thread* thread) {
    if (thread->started)
        jump(thread->context);
    ucontext_t context;
    getcontext(&context);
    context.uc_link = NULL;
    context.uc_stack.ss_sp = stack_of(run->stacks, thread->number);
    context.uc_stack.ss_size = run->stacks->stack;
    makecontext(&context, (void (*)())begin_thread, 2, (unsigned int)((unsigned long long)thread >> 32), (unsigned int)(unsigned long long)thread);
    thread->started = true;
    setcontext(&context);
    __builtin_unreachable();
}

ACCELRT_OPAQUE static void resume(Run* run, Thread* thread) {
    place_thread(run, thread->number);
    run->now = thread;
    ACCELRT_FENCE();
    if (__builtin_setjmp(run->context) == 0)
        enter(run, thread);
    ACCELRT_FENCE();
}

// --- barriers of the block -------------------------------------------------------------------------------------------

static void open_barrier(Run* run) {
    if (run->arrived == 0 || run->arrived < run->alive)
        return;
    run->last_arrived = run->arrived;
    run->last_count = run->count;
    run->arrived = run->count = 0;
    for (unsigned int k = 0; k < run->threads; k++)
        if (run->stacks->threads[k].state == AT_BARRIER)
            run->stacks->threads[k].state = READY;
}

ACCELRT_OPAQUE static void await_block(bool holds) {
    Run* run = running;
    Thread* thread = run->now;
    run->arrived++;
    run->count += holds;
    thread->state = AT_BARRIER;
    open_barrier(run);
    if (thread->state != READY)
        leave(thread);
}

// --- operations of a warp -----------------------------------------------------------------------------------------------

// Carries out the operation that a lane takes part in, if all lanes of its mask have come that have not returned.
static void finish_operation(Run* run, unsigned int first, Thread* lane) {
    Thread* lanes[warpSize];
    unsigned int present = 0;
    for (unsigned int k = 0; k < warpSize; k++) {
        if (!(lane->mask >> k & 1) || first + k >= run->threads)
            continue;
        lanes[k] = &run->stacks->threads[first + k];
        if (lanes[k]->state == RETURNED)
            continue;
        if (lanes[k]->state != IN_WARP || lanes[k]->mask != lane->mask)
            return;
        present |= 1u << k;
    }
    lane->operation(lanes, present);
    for (unsigned int k = 0; k < warpSize; k++)
        if (present >> k & 1)
            lanes[k]->state = READY;
}

static void finish_operations(Run* run, unsigned int number) {
    const unsigned int first = number & ~31u;
    for (unsigned int k = first; k < first + warpSize && k < run->threads; k++)
        if (run->stacks->threads[k].state == IN_WARP)
            finish_operation(run, first, &run->stacks->threads[k]);
}

ACCELRT_OPAQUE static void await_warp(unsigned int mask, void (*operation)(Thread**, unsigned int)) {
    Run* run = running;
    Thread* thread = run->now;
    if (!(mask >> (thread->number & 31) & 1))
        fail_because("a warp's operation was called by a lane that is not in its mask");
    thread->mask = mask;
    thread->operation = operation;
    thread->state = IN_WARP;
    finish_operation(run, thread->number & ~31u, thread);
    if (thread->state != READY)
        leave(thread);
}

ACCELRT_OPAQUE static void yield() {
    Run* run = running;
    if (run->stacks == NULL)
        return;
    run->now->state = YIELDED;
    leave(run->now);
}

// The lanes of the warp that come to the same place before any of them goes on.
ACCELRT_OPAQUE static unsigned int converge() {
    Run* run = running;
    Thread* thread = run->now;
    thread->place = __builtin_return_address(0);
    thread->state = CONVERGING;
    leave(thread);
    return thread->mask;
}

// Called when no lane of a warp can run; whether some can now.
static bool let_converged_go(Run* run, unsigned int first) {
    bool any = false;
    for (unsigned int k = first; k < first + warpSize && k < run->threads; k++) {
        Thread* lanes = &run->stacks->threads[first];
        unsigned int mask = 0;
        if (lanes[k - first].state != CONVERGING)
            continue;
        any = true;
        for (unsigned int other = k - first; other < warpSize && first + other < run->threads; other++)
            if (lanes[other].state == CONVERGING && lanes[other].place == lanes[k - first].place)
                mask |= 1u << other;
        for (unsigned int other = 0; other < warpSize; other++)
            if (mask >> other & 1) {
                lanes[other].mask = mask;
                lanes[other].state = READY;
            }
    }
    return any;
}

// --- a block -----------------------------------------------------------------------------------------------------------

static void end_thread(Run* run, Thread* thread) {
    run->alive--;
    open_barrier(run);
    finish_operations(run, thread->number);
}

// Whether every thread came to its end.
static bool schedule(Run* run) {
    while (run->alive) {
        bool moved = false;
        for (unsigned int first = 0; first < run->threads; first += warpSize)
            for (bool again = true; again;) {
                again = false;
                for (unsigned int k = first; k < first + warpSize && k < run->threads; k++) {
                    Thread* thread = &run->stacks->threads[k];
                    if (thread->state != READY)
                        continue;
                    again = moved = true;
                    resume(run, thread);
                    if (*(unsigned long long*)stack_of(run->stacks, k) != INTACT) {
                        fprintf(stderr, "accelrt: a thread of a kernel needs more than %zu bytes of stack\n", run->stacks->stack);
                        *run->block->failed = 1;
                    }
                    if (*(volatile int*)run->block->failed)
                        return false;
                    if (thread->state == RETURNED)
                        end_thread(run, thread);
                }
                again = again || let_converged_go(run, first);
            }
        for (unsigned int k = 0; k < run->threads; k++)
            if (run->stacks->threads[k].state == YIELDED) {
                run->stacks->threads[k].state = READY;
                moved = true;
            }
        if (!moved && run->alive) {
            fprintf(stderr, "accelrt: block (%u, %u, %u): %u threads wait at a barrier or in a warp's operation for others that never come\n",
                    blockIdx.x, blockIdx.y, blockIdx.z, run->alive);
            *run->block->failed = 1;
            return false;
        }
    }
    return true;
}

ACCELRT_OPAQUE static void run_on_stacks(Run* run) {
    Stacks* stacks = run->stacks = take_stacks(run->threads);
    if (stacks == NULL) {
        fprintf(stderr, "accelrt: no memory for the stacks of %u threads\n", run->threads);
        *run->block->failed = 1;
        return;
    }
    for (unsigned int k = 0; k < run->threads; k++) {
        Thread* thread = &stacks->threads[k];
        thread->run = run;
        thread->number = k;
        thread->state = READY;
        *(unsigned long long*)stack_of(stacks, k) = INTACT;
    }
    if (!schedule(run))
        for (unsigned int k = 0; k < stacks->count; k++)
            stacks->threads[k].started = false;  // what they had begun is not gone on with
    run->stacks = NULL;
    give_stacks(stacks);
}

ACCELRT_OPAQUE static void run_in_turn(Run* run) {
    for (unsigned int k = 0; k < run->threads; k++) {
        place_thread(run, k);
        run->body(run->arguments);
    }
}

ACCELRT_OPAQUE static void run_in_turn_or_fail(Run* run) {
    if (__builtin_setjmp(run->context) == 0)
        run_in_turn(run);
    ACCELRT_FENCE();
}

// Calls body for each thread of a block; waits: whether the threads may wait for each other.
static void run_block(const accelrt_block* block, void** arguments, void (*body)(void**), bool waits) {
    Run run;
    __builtin_memset(&run, 0, sizeof run);
    run.block = block;
    run.arguments = arguments;
    run.body = body;
    run.threads = run.alive = block->block[0] * block->block[1] * block->block[2];
    blockIdx = uint3{block->index[0], block->index[1], block->index[2]};
    blockDim = dim3(block->block[0], block->block[1], block->block[2]);
    gridDim = dim3(block->grid[0], block->grid[1], block->grid[2]);
    running = &run;
    if (waits && run.threads > 1)
        run_on_stacks(&run);
    else
        run_in_turn_or_fail(&run);
    running = NULL;
}

// --- what is exported of a kernel -----------------------------------------------------------------------------------------

template <class F> struct Kernel;
template <class... A> struct Kernel<void (*)(A...)> {
    struct Sizes { size_t of[sizeof...(A) + 1]; };
    static constexpr Sizes sizes() { return {{sizeof(A)..., 0}}; }
    template <size_t... I> static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
        (void)arguments;
        kernel(*(std::remove_reference_t<A>*)arguments[I]...);
    }
    static void call(void (*kernel)(A...), void** arguments) {
        call(kernel, arguments, std::make_index_sequence<sizeof...(A)>());
    }
};

}  // namespace accelrt_host

// --- barriers, fences and votes, by CUDA's names ---------------------------------------------------------------------------

accelrt_inline void accelrt_yield() { accelrt_host::yield(); }

accelrt_inline void accelrt_await_block(bool holds) {
    ACCELRT_FENCE();
    if (accelrt_host::running->stacks)
        accelrt_host::await_block(holds);
    else
        accelrt_host::running->last_arrived = 1, accelrt_host::running->last_count = holds;
    ACCELRT_FENCE();
}
accelrt_inline void __syncthreads() { accelrt_await_block(false); }
accelrt_inline int __syncthreads_count(int predicate) {
    accelrt_await_block(predicate != 0);
    return (int)accelrt_host::running->last_count;
}
accelrt_inline int __syncthreads_and(int predicate) {
    accelrt_await_block(predicate != 0);
    return accelrt_host::running->last_count == accelrt_host::running->last_arrived;
}
accelrt_inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }

accelrt_inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
accelrt_inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
accelrt_inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
// A thread that is the last of its block sleeps, for a millisecond at most as on a GPU; others give each other their turn.
accelrt_inline void __nanosleep(unsigned int nanoseconds) {
    const struct timespec duration = {0, nanoseconds < 1000000 ? (long)nanoseconds : 1000000};
    if (accelrt_host::running->alive > 1)
        accelrt_yield();
    else
        nanosleep(&duration, NULL);
}

namespace accelrt_host {

// Takes part in an operation of the warp: operation(lanes, mask) sees every lane's given value and argument, and sets
// every lane's result.
template <class R, class T> static R warp(unsigned int mask, T given, unsigned int argument, void (*operation)(Thread**, unsigned int)) {
    static_assert(sizeof(T) <= sizeof(Value) && sizeof(R) <= sizeof(Value), "a warp passes on values of up to 16 bytes");
    Thread only;
    Thread* thread = running->now;
    R result;
    ACCELRT_FENCE();
    if (thread == NULL) {  // a block of one thread
        thread = &only;
        thread->number = 0;
    }
    __builtin_memcpy(&thread->given, &given, sizeof given);
    thread->argument = argument;
    if (thread == &only)
        operation(&thread, 1);
    else
        await_warp(mask, operation);
    __builtin_memcpy(&result, &thread->result, sizeof result);
    ACCELRT_FENCE();
    return result;
}

template <class T> static T given_of(Thread* lane) {
    T value;
    __builtin_memcpy(&value, &lane->given, sizeof value);
    return value;
}

template <class T> static void set_result(Thread* lane, T value) { __builtin_memcpy(&lane->result, &value, sizeof value); }

static void do_nothing(Thread**, unsigned int) {}

// A lane's argument is source << 8 | which kind of shuffle << 6 | log2 of the width.
static void shuffle(Thread** lanes, unsigned int mask) {
    for (int k = 0; k < warpSize; k++) {
        if (!(mask >> k & 1))
            continue;
        const int width = 1 << (lanes[k]->argument & 7), kind = lanes[k]->argument >> 6 & 3, by = (int)lanes[k]->argument >> 8;
        const int first = k & ~(width - 1), last = first + width - 1;
        int from = kind == 0 ? first + (by & (width - 1)) : kind == 1 ? k - by : kind == 2 ? k + by : k ^ by;
        if ((kind == 1 && from < first) || (kind == 2 && from > last) || (kind == 3 && from > last))
            from = k;
        lanes[k]->result = mask >> from & 1 ? lanes[from]->given : lanes[k]->given;
    }
}

template <class T, class F> static void reduce(Thread** lanes, unsigned int mask, F join) {
    T made = T();
    bool first = true;
    for (int k = 0; k < warpSize; k++)
        if (mask >> k & 1) {
            made = first ? given_of<T>(lanes[k]) : join(made, given_of<T>(lanes[k]));
            first = false;
        }
    for (int k = 0; k < warpSize; k++)
        if (mask >> k & 1)
            set_result(lanes[k], made);
}

static void ballot(Thread** lanes, unsigned int mask) {
    unsigned int holds = 0;
    for (int k = 0; k < warpSize; k++)
        holds |= mask >> k & 1 && given_of<unsigned int>(lanes[k]) ? 1u << k : 0;
    for (int k = 0; k < warpSize; k++)
        if (mask >> k & 1)
            set_result(lanes[k], ulonglong2{holds, mask});
}

static void match(Thread** lanes, unsigned int mask) {
    for (int k = 0; k < warpSize; k++) {
        unsigned int same = 0;
        if (!(mask >> k & 1))
            continue;
        for (int other = 0; other < warpSize; other++)
            if (mask >> other & 1 && given_of<unsigned long long>(lanes[other]) == given_of<unsigned long long>(lanes[k]))
                same |= 1u << other;
        set_result(lanes[k], ulonglong2{same, mask});
    }
}

static unsigned int shuffle_argument(int by, int kind, int width) {
    return (unsigned int)by << 8 | kind << 6 | __builtin_ctz(width);
}

}  // namespace accelrt_host

accelrt_inline void __syncwarp(unsigned int mask = 0xffffffff) { accelrt_host::warp<int>(mask, 0, 0, accelrt_host::do_nothing); }
template <class T> accelrt_inline T __shfl_sync(unsigned int mask, T value, int from, int width = warpSize) {
    return accelrt_host::warp<T>(mask, value, accelrt_host::shuffle_argument(from & (width - 1), 0, width), accelrt_host::shuffle);
}
template <class T> accelrt_inline T __shfl_up_sync(unsigned int mask, T value, unsigned int by, int width = warpSize) {
    return accelrt_host::warp<T>(mask, value, accelrt_host::shuffle_argument((int)by, 1, width), accelrt_host::shuffle);
}
template <class T> accelrt_inline T __shfl_down_sync(unsigned int mask, T value, unsigned int by, int width = warpSize) {
    return accelrt_host::warp<T>(mask, value, accelrt_host::shuffle_argument((int)by, 2, width), accelrt_host::shuffle);
}
template <class T> accelrt_inline T __shfl_xor_sync(unsigned int mask, T value, int with, int width = warpSize) {
    return accelrt_host::warp<T>(mask, value, accelrt_host::shuffle_argument(with, 3, width), accelrt_host::shuffle);
}
accelrt_inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
    return (unsigned int)accelrt_host::warp<ulonglong2>(mask, (unsigned int)(predicate != 0), 0, accelrt_host::ballot).x;
}
accelrt_inline int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
accelrt_inline int __all_sync(unsigned int mask, int predicate) {
    const ulonglong2 votes = accelrt_host::warp<ulonglong2>(mask, (unsigned int)(predicate != 0), 0, accelrt_host::ballot);
    return votes.x == votes.y;
}
template <class T> accelrt_inline unsigned int __match_any_sync(unsigned int mask, T value) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return (unsigned int)accelrt_host::warp<ulonglong2>(mask, bits, 0, accelrt_host::match).x;
}
template <class T> accelrt_inline unsigned int __match_all_sync(unsigned int mask, T value, int* all) {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    const ulonglong2 found = accelrt_host::warp<ulonglong2>(mask, bits, 0, accelrt_host::match);
    *all = found.x == found.y;
    return *all ? (unsigned int)found.y : 0;
}
accelrt_inline unsigned int __activemask() {
    return accelrt_host::running->stacks ? accelrt_host::converge() : 1u << (accelrt_host::running->linear & 31);
}
#define ACCELRT_REDUCE(name, type, expression)                                                                   \
    accelrt_inline type name(unsigned int mask, type value) {                                                    \
        return accelrt_host::warp<type>(mask, value, 0, [](accelrt_host::Thread** lanes, unsigned int present) {  \
            accelrt_host::reduce<type>(lanes, present, [](type a, type b) { return expression; });                \
        });                                                                                                      \
    }
ACCELRT_REDUCE(__reduce_add_sync, int, a + b)
ACCELRT_REDUCE(__reduce_add_sync, unsigned int, a + b)
ACCELRT_REDUCE(__reduce_min_sync, int, a < b ? a : b)
ACCELRT_REDUCE(__reduce_min_sync, unsigned int, a < b ? a : b)
ACCELRT_REDUCE(__reduce_max_sync, int, a > b ? a : b)
ACCELRT_REDUCE(__reduce_max_sync, unsigned int, a > b ? a : b)
ACCELRT_REDUCE(__reduce_and_sync, unsigned int, a & b)
ACCELRT_REDUCE(__reduce_or_sync, unsigned int, a | b)
ACCELRT_REDUCE(__reduce_xor_sync, unsigned int, a ^ b)
#undef ACCELRT_REDUCE

// --- ends, messages and clocks -----------------------------------------------------------------------------------------------

[[noreturn]] accelrt_inline void __trap() { accelrt_host::fail_because("__trap() was called"); }
accelrt_inline void __brkpt() {}
accelrt_inline void __prof_trigger(int) {}
[[noreturn]] accelrt_inline void accelrt_assertion_failed(const char* text, const char* file, int line) {
    fprintf(stderr, "%s:%d: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", file, line, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, text);
    accelrt_host::fail();
}
template <class... A> accelrt_inline int accelrt_printf(const char* format, A... values) {
    const int written = (printf)(format, values...);
    fflush(stdout);
    return written < 0 ? -1 : (int)sizeof...(A);
}
#define printf accelrt_printf
accelrt_inline unsigned int accelrt_lane() { return accelrt_host::running->linear & 31; }
