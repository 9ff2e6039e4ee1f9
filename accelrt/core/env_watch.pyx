"""The environment's variables that say which devices there are.

Before init they are read anew whenever devices are counted.  After init a change has no effect, and a caller that
counts is told so once.
"""
import os
import warnings

NAMES = {"cuda": ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"), "host": ("ACCELRT_HOST_DEVICES", "ACCELRT_HOST_MEMORY")}

cdef extern from *:
    """
    #include <string.h>
    extern char **environ;
    static char **accelrt_array;             /* the process's environment when it was looked through */
    static long accelrt_end;                 /* where it ended: a variable that comes new stands there */
    static long accelrt_slots[2];            /* where the two variables stood; the end where they are not set */
    static char *accelrt_texts[2];

    static void accelrt_look(const char *first, const char *second) {
        const char *names[2] = {first, second};
        accelrt_array = environ;
        for (accelrt_end = 0; environ[accelrt_end]; accelrt_end++) {}
        for (int i = 0; i < 2; i++) {
            size_t length = strlen(names[i]);
            accelrt_slots[i] = accelrt_end;
            for (long at = 0; at < accelrt_end; at++)
                if (!strncmp(environ[at], names[i], length) && environ[at][length] == '=') accelrt_slots[i] = at;
            accelrt_texts[i] = environ[accelrt_slots[i]];
        }
    }

    /* os.environ sets variables with setenv, which puts another string into a variable's slot, moves the slots
       behind one that is unset, and appends what is new. */
    static int accelrt_moved(void) {
        return environ != accelrt_array || environ[accelrt_end] ||
            environ[accelrt_slots[0]] != accelrt_texts[0] || environ[accelrt_slots[1]] != accelrt_texts[1];
    }
    """
    void look "accelrt_look"(const char* first, const char* second) nogil
    bint moved "accelrt_moved"() nogil

cdef dict data = getattr(os.environ, "_data", {})  # keeps values as objects that a change replaces
cdef tuple encoded = tuple(os.environ.encodekey(name) for name in NAMES["cuda"])
cdef tuple names = NAMES["cuda"]
cdef tuple values_at_init = (None, None)
cdef bint is_watching = False


cdef object current(int which):
    return data.get(encoded[which])


cdef bint is_same(object one, object other) noexcept:
    return one is current(0) and other is current(1)


cdef bint changed() noexcept nogil:
    return is_watching and moved()


cdef int warn() except -1:
    global is_watching
    now = tuple([os.environ.get(name) for name in names])
    if now == values_at_init:  # another variable, or the same value set again
        look_again()
        return 0
    is_watching = False
    for name, was, value in zip(names, values_at_init, now, strict=True):
        if was != value:
            warnings.warn(
                f"{name} is now {shown(value)}, but was {shown(was)} when accelrt initialised; the change has no "
                "effect in this process: set it before the first use of a device", RuntimeWarning, stacklevel=2)
    return 0


cdef int look_again() except -1:
    first, second = (name.encode() for name in names)
    look(first, second)
    return 0


cdef str shown(object value):
    return "not set" if value is None else repr(value)


def check():
    """Says once that a change of these variables since init has no effect."""
    if changed():
        warn()


def remember(str driver):
    """Notes what the variables are, as of now, for a driver that has just opened: "cuda" or "host"."""
    global names, values_at_init, is_watching
    names = NAMES.get(driver, NAMES["host"])
    values_at_init = tuple([os.environ.get(name) for name in names])
    look_again()
    is_watching = True


def at_init():
    """CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER as the driver read them; None for one that was not set.  After init."""
    return values_at_init if names == NAMES["cuda"] else (None, None)
