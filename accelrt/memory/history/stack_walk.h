/* Stacks of the calling thread, each kept once and known by a number.
 *
 * A frame is a code object and an offset in it, an address in C, or the name of a function of accelrt's that has no frame of
 * Python's.  Lines and names are looked up when a stack is shown.  The table keeps the code objects alive, and is never
 * emptied: programs have few stacks.
 */
#ifndef ACCELRT_STACK_WALK_H
#define ACCELRT_STACK_WALK_H

#include <Python.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_FRAMES = 128, C_FRAMES = 64, STACKS = 1 << 20 };
/* An entry frame is Python's too: the one that C called, with which a call of the interpreter's loop began. */
enum { PYTHON_FRAME = 0, C_FRAME = 1, NAMED_FRAME = 2, ENTRY_FRAME = 3 };

typedef struct {
    const void *code; /* PyCodeObject *, address or const char * */
    int32_t offset;   /* of the instruction, in bytes */
    int32_t kind;
} StackFrame;

typedef struct {
    uint64_t hash;
    uint32_t count;
    StackFrame *frames; /* innermost first */
} KeptStack;

static int stack_guard;            /* a spin lock over the table; held for no call that can wait */
static KeptStack *kept_stacks;     /* number - 1 -> stack */
static uint32_t kept_count, kept_capacity;
static uint32_t *stack_index;      /* hash -> number, with open addressing; 0: free */
static uint32_t index_capacity;    /* a power of two, at least twice kept_count */
static int takes_c_frames;
static __thread int walking;       /* a walk may collect garbage, and what is freed then takes a stack */

static void lock_stacks(void) {
    while (__atomic_exchange_n(&stack_guard, 1, __ATOMIC_ACQUIRE)) sched_yield();
}

static void unlock_stacks(void) { __atomic_store_n(&stack_guard, 0, __ATOMIC_RELEASE); }

static uint64_t hash_frames(const StackFrame *frames, uint32_t count) {
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ (uintptr_t)frames[i].code) * 0x9E3779B97F4A7C15u;
        hash = (hash ^ (hash >> 29) ^ (uint32_t)frames[i].offset) * 0xBF58476D1CE4E5B9u;
    }
    return hash ^ (hash >> 32);
}

static int equal_frames(const StackFrame *one, const StackFrame *other, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (one[i].code != other[i].code || one[i].offset != other[i].offset || one[i].kind != other[i].kind) return 0;
    return 1;
}

/* Under the lock: the slot of the index where the stack is, or belongs. */
static uint32_t find_slot(uint64_t hash, const StackFrame *frames, uint32_t count) {
    uint32_t slot = (uint32_t)hash & (index_capacity - 1);
    for (; stack_index[slot]; slot = (slot + 1) & (index_capacity - 1)) {
        const KeptStack *kept = &kept_stacks[stack_index[slot] - 1];
        if (kept->hash == hash && kept->count == count && equal_frames(kept->frames, frames, count)) break;
    }
    return slot;
}

/* Under the lock: room for one stack more; 0 if the host has no memory, or there are too many. */
static int ensure_room(void) {
    if (kept_count == STACKS) return 0;
    if (kept_count == kept_capacity) {
        uint32_t capacity = kept_capacity ? 2 * kept_capacity : 256;
        KeptStack *stacks = realloc(kept_stacks, capacity * sizeof(KeptStack));
        if (!stacks) return 0;
        kept_stacks = stacks;
        kept_capacity = capacity;
    }
    if (2 * (kept_count + 1) > index_capacity) {
        uint32_t capacity = index_capacity ? 2 * index_capacity : 1024;
        uint32_t *index = calloc(capacity, sizeof(uint32_t));
        if (!index) return 0;
        for (uint32_t i = 0; i < kept_count; i++) {
            uint32_t slot = (uint32_t)kept_stacks[i].hash & (capacity - 1);
            while (index[slot]) slot = (slot + 1) & (capacity - 1);
            index[slot] = i + 1;
        }
        free(stack_index);
        stack_index = index;
        index_capacity = capacity;
    }
    return 1;
}

/* The number of a stack; 0 if it cannot be kept.  With the GIL if a frame is Python's. */
static uint32_t keep_stack(const StackFrame *frames, uint32_t count) {
    uint64_t hash = hash_frames(frames, count);
    uint32_t number = 0;
    lock_stacks();
    if (ensure_room()) {
        uint32_t slot = find_slot(hash, frames, count);
        number = stack_index[slot];
        if (!number) {
            StackFrame *kept = malloc(count * sizeof(StackFrame));
            if (kept) {
                memcpy(kept, frames, count * sizeof(StackFrame));
                for (uint32_t i = 0; i < count; i++)
                    if (frames[i].kind == PYTHON_FRAME || frames[i].kind == ENTRY_FRAME) Py_INCREF((PyObject *)frames[i].code);
                kept_stacks[kept_count] = (KeptStack){hash, count, kept};
                number = stack_index[slot] = ++kept_count;
            }
        }
    }
    unlock_stacks();
    return number;
}

#if PY_VERSION_HEX < 0x030D0000
/* The interpreter keeps a record on the C stack for each call of its loop, which names the innermost frame that runs there.
 * So a frame was entered from C if its caller is the one that the next record names.  (struct _frame, pycore_frame.h) */
typedef struct {
    PyObject_HEAD
    PyFrameObject *back;
    struct _PyInterpreterFrame *running;
} FrameStart;
typedef _PyCFrame *LoopRecord;
static LoopRecord first_record(void) { return PyThreadState_Get()->cframe; }
static int was_entered(LoopRecord *record, PyFrameObject *caller) {
    LoopRecord outer = *record ? (*record)->previous : NULL;
    if (!caller || !outer || outer->current_frame != ((FrameStart *)caller)->running) return 0;
    *record = outer;
    return 1;
}
#else
/* Not told by the interpreter: all frames stand where its innermost loop does. */
typedef int LoopRecord;
static LoopRecord first_record(void) { return 0; }
static int was_entered(LoopRecord *record, PyFrameObject *caller) { return 0; }
#endif

/* Python's frames of the calling thread, which holds the GIL; what does not fit is left out, the outermost first. */
static uint32_t walk_python(StackFrame *frames, uint32_t count) {
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    LoopRecord record = first_record();
    while (frame && count < STACK_FRAMES) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyFrameObject *back = PyFrame_GetBack(frame);
        int kind = was_entered(&record, back) ? ENTRY_FRAME : PYTHON_FRAME;
        frames[count++] = (StackFrame){code, PyFrame_GetLasti(frame), kind};
        Py_DECREF(code); /* the frame has it, and runs until the stack is kept */
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return count;
}

/* Takes the calling thread's stack: C frames if they are wanted, Python's if it holds the GIL.  A thread that has released
 * it keeps what it took before (0: nothing), in the same operation. */
static uint32_t take_stack_of_thread(const char *entry, uint32_t before) {
    StackFrame frames[STACK_FRAMES];
    uint32_t count = 0;
    int has_gil = PyGILState_Check();
    if (walking) return 0;
    if (before && !has_gil) return before;
    walking = 1;
    if (entry) frames[count++] = (StackFrame){entry, 0, NAMED_FRAME};
    if (__atomic_load_n(&takes_c_frames, __ATOMIC_RELAXED)) {
        void *addresses[C_FRAMES];
        int found = backtrace(addresses, C_FRAMES);
        for (int i = 2; i < found; i++) /* without this function and its caller */
            frames[count++] = (StackFrame){addresses[i], 0, C_FRAME};
    }
    if (has_gil) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace); /* a destructor may be freeing while an exception is under way */
        count = walk_python(frames, count);
        PyErr_Restore(type, value, trace);
    }
    uint32_t number = count ? keep_stack(frames, count) : 0;
    walking = 0;
    return number;
}

/* Copies a stack; the count of its frames. */
static uint32_t copy_stack(uint32_t number, StackFrame *frames) {
    uint32_t count = 0;
    lock_stacks();
    if (number && number <= kept_count) {
        count = kept_stacks[number - 1].count;
        memcpy(frames, kept_stacks[number - 1].frames, count * sizeof(StackFrame));
    }
    unlock_stacks();
    return count;
}

static void set_c_frames(int wanted) {
    void *address;
    if (wanted) backtrace(&address, 1); /* loads its library now, under no lock */
    __atomic_store_n(&takes_c_frames, wanted, __ATOMIC_RELAXED);
}

static void forget_stack_guard(void) {
    stack_guard = 0;
    walking = 0;
}

#endif
