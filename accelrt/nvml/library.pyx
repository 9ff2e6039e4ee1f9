"""NVML's library and the session with it.

Source of the functions, their types and codes: NVIDIA's NVML API Reference Guide.  The library is opened by
name, not linked, and never through cuda.bindings, so that nothing else comes with it.
"""
from libc.stdint cimport uint64_t

cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_NOW
        RTLD_LOCAL
    void* dlopen(const char* path, int mode)
    void* dlsym(void* library, const char* name)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_rwlock_t:
        pass
    int pthread_rwlock_init(pthread_rwlock_t* lock, void* attributes)
    int pthread_rwlock_rdlock(pthread_rwlock_t* lock)
    int pthread_rwlock_wrlock(pthread_rwlock_t* lock)
    int pthread_rwlock_unlock(pthread_rwlock_t* lock)
    int pthread_atfork(void (*prepare)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

ctypedef int (*init_fn)() noexcept nogil

cdef enum:
    MAX_NAMES = 3

ctypedef const char* name_t

cdef struct Function:
    name_t[MAX_NAMES] names  # tried in turn; NULL where there are fewer
    void* address                 # NULL before the library is open, and where it has none of them

cdef Function[MAX_FUNCTIONS] table
cdef int functions = 0       # with the GIL
cdef list kept = []          # the bytes that names point to

cdef pthread_rwlock_t lock
cdef void* library = NULL    # written under the lock; stays open, in a child too
cdef bint is_open = False    # written under the lock
cdef uint64_t sessions = 0   # how many were opened, in parents too: no two have one number

CODES = {  # nvmlReturn_t: name and meaning
    1: ("UNINITIALIZED", "NVML has no session"),
    2: ("INVALID_ARGUMENT", "an argument is not one that this device takes"),
    3: ("NOT_SUPPORTED", "this device has no such reading"),
    4: ("NO_PERMISSION", "this user may not ask"),
    6: ("NOT_FOUND", "there is no such device"),
    7: ("INSUFFICIENT_SIZE", "there is more to say than there was room for"),
    8: ("INSUFFICIENT_POWER", "a power cable of the card is not attached"),
    9: ("DRIVER_NOT_LOADED", "NVIDIA's kernel driver is not running"),
    10: ("TIMEOUT", "the device did not answer in time"),
    11: ("IRQ_ISSUE", "the kernel found a fault in the device's interrupts"),
    12: ("LIBRARY_NOT_FOUND", "libnvidia-ml.so.1 cannot be opened"),
    13: ("FUNCTION_NOT_FOUND", "this libnvidia-ml.so.1 is too old to have the function"),
    14: ("CORRUPTED_INFOROM", "the card's own records are corrupted"),
    15: ("GPU_IS_LOST", "the device has fallen off the bus or cannot be reached"),
    16: ("RESET_REQUIRED", "the device has to be reset"),
    17: ("OPERATING_SYSTEM", "the operating system refused"),
    18: ("LIB_RM_VERSION_MISMATCH", "the kernel's and the user's halves of the driver differ; reboot"),
    20: ("MEMORY", "there is not enough memory"),
    21: ("NO_DATA", "there is no data yet"),
    25: ("ARGUMENT_VERSION_MISMATCH", "the driver has another version of this call's structure"),
    26: ("DEPRECATED", "the driver no longer answers this"),
    27: ("NOT_READY", "the device is not ready"),
    28: ("GPU_NOT_FOUND", "no device was found"),
    999: ("UNKNOWN", "NVML does not say what is wrong"),
}


cdef int function(str names) except -1:
    global functions
    cdef int number = functions, place
    if number == MAX_FUNCTIONS:
        raise RuntimeError("more functions of NVML than there is room for; raise MAX_FUNCTIONS")
    words = [name.encode() for name in names.split()]
    kept.extend(words)
    for place in range(MAX_NAMES):
        table[number].names[place] = <const char*>words[place] if place < len(words) else NULL
    table[number].address = NULL
    functions = number + 1
    if library != NULL:
        find(number)
    return number


def function_number(str names):
    """The number by which the readings name a function of NVML; several names, by blanks, are tried in turn."""
    return function(names)


cdef void find(int number) noexcept nogil:
    cdef int place
    for place in range(MAX_NAMES):
        if table[number].address == NULL and table[number].names[place] != NULL:
            table[number].address = dlsym(library, table[number].names[place])


cdef void lose(uint64_t number) noexcept nogil:
    global is_open
    pthread_rwlock_wrlock(&lock)
    if sessions == number:
        is_open = False
    pthread_rwlock_unlock(&lock)


cdef void* address(int function) noexcept nogil:
    return table[function].address


cdef uint64_t session() noexcept nogil:
    return sessions


cdef int hold() noexcept nogil:
    cdef int code
    pthread_rwlock_rdlock(&lock)
    if is_open:
        return OK
    pthread_rwlock_unlock(&lock)
    code = open_slow()
    return hold() if code == OK else code


cdef void let_go() noexcept nogil:
    pthread_rwlock_unlock(&lock)


cdef int open_slow() noexcept nogil:
    cdef int code = OK
    pthread_rwlock_wrlock(&lock)
    if not is_open:
        code = open_session()
    pthread_rwlock_unlock(&lock)
    return code


cdef int open_session() noexcept nogil:
    global library, is_open, sessions
    cdef int number, code
    cdef void* init
    if library == NULL:
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)
        if library == NULL:
            return LIBRARY_NOT_FOUND
        for number in range(functions):
            find(number)
    init = dlsym(library, "nvmlInit_v2")
    if init == NULL:
        return FUNCTION_NOT_FOUND
    code = (<init_fn>init)()
    if code == OK:
        sessions += 1
        is_open = True
    return code


cdef void wait_before_fork() noexcept nogil:
    pthread_rwlock_wrlock(&lock)


cdef void go_on_in_parent() noexcept nogil:
    pthread_rwlock_unlock(&lock)


cdef void forget_in_child() noexcept nogil:
    # The parent's session goes on in the parent; NVML itself answers UNINITIALIZED here until it is opened anew.
    global is_open
    is_open = False
    pthread_rwlock_init(&lock, NULL)


def open_code():
    """Opens the session where there is none; 0, or the nvmlReturn_t that says why not."""
    cdef int code
    with nogil:
        code = hold()
        if code == OK:
            let_go()
    return code


def session_number():
    """The number of this process's session; 0 where it has none.  A child of a fork starts without."""
    return sessions if is_open else 0


def code_name(int code):
    """The name of an nvmlReturn_t without its prefix: code_name(3) is "NOT_SUPPORTED"."""
    return CODES.get(code, ("UNKNOWN", ""))[0]


def code_text(int code):
    """What an nvmlReturn_t means, as a part of a sentence."""
    return CODES.get(code, CODES[999])[1]


pthread_rwlock_init(&lock, NULL)
pthread_atfork(&wait_before_fork, &go_on_in_parent, &forget_in_child)
