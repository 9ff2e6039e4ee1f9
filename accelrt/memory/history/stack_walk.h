/* The stack of the calling thread.
 *
 * A frame is a code object and an offset in it, an address in C, or the name of a function of accelrt's that has no frame of
 * Python's.  Lines and names are looked up when a stack is shown.
 */
#ifndef ACCELRT_STACK_WALK_H
#define ACCELRT_STACK_WALK_H

#include <Python.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_FRAMES = 128, C_FRAMES = 64 };
/* An entry frame is Python's too: the one that C called, with which a call of the interpreter's loop began. */
enum { PYTHON_FRAME = 0, C_FRAME = 1, NAMED_FRAME = 2, ENTRY_FRAME = 3 };

typedef struct {
    const void *code; /* PyCodeObject *, address or const char * */
    int32_t offset;   /* of the instruction, in bytes */
    int32_t kind;
} StackFrame;

static int takes_c_frames;
static __thread int walking; /* a walk may collect garbage, and what is freed then takes a stack */

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

/* The frames of the calling thread, innermost first: C's if they are wanted, Python's if it holds the GIL.  The count, which
 * is 0 within a walk. */
static uint32_t walk_stack(const char *entry, StackFrame *frames) {
    uint32_t count = 0;
    if (walking) return 0;
    walking = 1;
    if (entry) frames[count++] = (StackFrame){entry, 0, NAMED_FRAME};
    if (__atomic_load_n(&takes_c_frames, __ATOMIC_RELAXED)) {
        void *addresses[C_FRAMES];
        int found = backtrace(addresses, C_FRAMES);
        for (int i = 2; i < found; i++) /* without this function and its caller */
            frames[count++] = (StackFrame){addresses[i], 0, C_FRAME};
    }
    if (accelrt_holds_gil()) { /* core/interpreter.pxd */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace); /* a destructor may be freeing while an exception is under way */
        count = walk_python(frames, count);
        PyErr_Restore(type, value, trace);
    }
    walking = 0;
    return count;
}

static void set_c_frames(int wanted) {
    void *address;
    if (wanted) backtrace(&address, 1); /* loads its library now, under no lock */
    __atomic_store_n(&takes_c_frames, wanted, __ATOMIC_RELAXED);
}

#endif
