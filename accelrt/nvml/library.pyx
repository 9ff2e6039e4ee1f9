"""NVML's library and the session with it; its calls, by the shape of their arguments; and the cards and MIG devices that it
lists, the one place where its indices are used, to enumerate.

A session belongs to the process that opened it.  A thread that calls NVML holds the session meanwhile, without the GIL; a
fork waits until none does, so that the child finds no lock of the library taken, and the child has no session.  Order of
locks: nothing is taken while the session is held, the GIL neither.

A reading names its device by a Target, a UUID for which NVML gives the handle once a session; the call takes the reading's
name too, for errors, and the number of NVML's function.

Source of the functions, their types and codes: NVIDIA's NVML API Reference Guide.  The library is opened by
name, not linked, and never through cuda.bindings, so that nothing else comes with it.
"""
cimport cython
from dataclasses import dataclass

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from accelrt.core.process cimport FORK_READINGS, at_fork
from accelrt.core.procfs import pci_bus_id
from accelrt.errors import DriverNotFoundError, NotSupportedError, ReadingError
from accelrt.status cimport refuse_unmade

# stub: CODES: dict[int, tuple[str, str]]

ctypedef void* Device  # nvmlDevice_t

cdef enum:
    MAX_FUNCTIONS = 128
    TEXT = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, and the size of a name

cdef enum:  # nvmlReturn_t, those that accelrt tells apart
    OK = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    UNSUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    DEPRECATED = 26

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

ctypedef int (*init_fn)() noexcept nogil

cdef enum:
    MAX_NAMES = 3

ctypedef const char* name_t

cdef struct Function:
    name_t[MAX_NAMES] names  # tried in turn; NULL where there are fewer
    void* address                 # NULL before the library is open, and where it has none of them

cdef Function[MAX_FUNCTIONS] table
cdef int functions = 0       # in the critical section of CODES
cdef list kept = []          # lists of the bytes that names point to

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
    # The number of a function; several names, by blanks, are tried in turn.
    cdef list words = [name.encode() for name in names.split()]
    kept.append(words)
    with cython.critical_section(CODES):  # modules that threads import may take numbers at once
        return add_function(words)


cdef int add_function(list words) except -1:
    global functions
    cdef int number = functions, index
    if number == MAX_FUNCTIONS:
        raise RuntimeError("more functions of NVML than there is room for; raise MAX_FUNCTIONS")
    for index in range(MAX_NAMES):
        table[number].names[index] = <const char*>words[index] if index < len(words) else NULL
    table[number].address = NULL
    functions = number + 1
    if library != NULL:
        find(number)
    return number


def function_number(str names) -> int:
    """The number by which the readings name a function of NVML; several names, by blanks, are tried in turn."""
    return function(names)


cdef void find(int number) noexcept nogil:
    cdef int index
    for index in range(MAX_NAMES):
        if table[number].address == NULL and table[number].names[index] != NULL:
            table[number].address = dlsym(library, table[number].names[index])


cdef void lose(uint64_t number) noexcept nogil:
    # That session answered UNINITIALIZED, for another user of the library shut it down.  Not for a caller that holds it.
    global is_open
    pthread_rwlock_wrlock(&lock)
    if sessions == number:
        is_open = False
    pthread_rwlock_unlock(&lock)


cdef void* address(int function) noexcept nogil:
    # While held: of function(...); NULL where the library lacks it.
    return table[function].address


cdef uint64_t session() noexcept nogil:
    # While held: the number of the session, 1 and up; handles go with it.
    return sessions


cdef int hold() noexcept nogil:
    # Answers OK and holds the session, which it opens where there is none, or a code and holds nothing.
    cdef int code
    pthread_rwlock_rdlock(&lock)
    if is_open:
        return OK
    pthread_rwlock_unlock(&lock)
    code = open_slow()
    return hold() if code == OK else code


cdef void release() noexcept nogil:
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


def open_code() -> int:
    """Opens the session where there is none; 0, or the nvmlReturn_t that says why not."""
    cdef int code
    with nogil:
        code = hold()
        if code == OK:
            release()
    return code


def session_number() -> int:
    """The number of this process's session; 0 where it has none.  A child of a fork starts without."""
    return sessions if is_open else 0


cdef str code_name(int code):
    # Without its prefix: code_name(3) is "NOT_SUPPORTED".
    return CODES.get(code, ("UNKNOWN", ""))[0]


cdef str code_text(int code):
    # Describes a code, as a part of a sentence.
    return CODES.get(code, CODES[999])[1]


pthread_rwlock_init(&lock, NULL)
at_fork("nvml.library", FORK_READINGS, &wait_before_fork, &go_on_in_parent, &forget_in_child)


# --- calls ---------------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #define accelrt_take(from) __atomic_load_n(from, __ATOMIC_ACQUIRE)
    #define accelrt_give(to, value) __atomic_store_n(to, value, __ATOMIC_RELEASE)
    """
    uint64_t take "accelrt_take"(uint64_t* from_) nogil
    void give "accelrt_give"(uint64_t* to, uint64_t value) nogil

ctypedef int (*by_uuid_fn)(const char* uuid, Device* out) noexcept nogil

cdef int BY_UUID = function("nvmlDeviceGetHandleByUUID")


cdef class Target:
    """A device of NVML's, by its UUID."""
    # stub: parent: str | None

    cdef readonly str uuid       # "GPU-..." or "MIG-..."
    cdef readonly str name       # the model, for errors
    cdef readonly object parent  # str, UUID of a MIG device's card; None for a card
    cdef bytes key               # the UUID, for NVML
    cdef const char* letters     # of key
    cdef Device handle           # good for one session
    cdef uint64_t session        # the session that gave the handle; 0 before there was one

    def __init__(self, str uuid, str name, parent: str | None) -> None:
        self.uuid, self.name, self.parent = uuid, name, parent
        self.key = uuid.encode()
        self.letters = self.key
        self.session = 0

    def __repr__(self):
        return f"{self.name} ({self.uuid})"


cdef int begin(Target target, Device* out) noexcept nogil:
    # OK: holds the session, until release, and gives the handle in it; or a code, and holds nothing.
    cdef int code = hold()
    if code:
        return code
    if take(&target.session) != session():
        if address(BY_UUID) == NULL:
            code = FUNCTION_NOT_FOUND
        else:
            code = (<by_uuid_fn>address(BY_UUID))(target.letters, &target.handle)
        if code:
            release()
            return code
        give(&target.session, session())
    out[0] = target.handle
    return OK


cdef bint may_ask_again(str reading, Target target, int code, int* tries) except -1:
    # What to do about a code: 1, try once more; or raises.  tries counts up.
    cdef uint64_t number = target.session
    if code == UNINITIALIZED and tries[0] == 0:
        tries[0] = 1  # another user of the library in this process closed more sessions than it opened
        with nogil:
            lose(number)
        return True
    raise reading_error(reading, target, code)


def reading_error(str reading, Target target, int code) -> Exception:
    """The exception that a code of NVML's stands for.

    Arguments:
        reading: str, the name of the reading, such as "temperature".
        target: Target, of which it was asked.
        code: int, the nvmlReturn_t.
    """
    name = code_name(code)
    text = f"{reading} of {target!r}: NVML answered {name} ({code}): {code_text(code)}"
    if code in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        return DriverNotFoundError(text)
    if code in (UNSUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED) or (code == INVALID_ARGUMENT and target.parent):
        if target.parent:
            text += f"; a MIG device does not have it alone, ask its card: {reading}('{target.parent}')"
        return NotSupportedError(text, 801, "NOT_SUPPORTED", reading)
    return ReadingError(text, code, name, reading)


cdef enum:
    MAX_FIELDS = 16
    MAX_PROCESSES = 1 << 16
    NONE = -1  # the kind and the sort of a function that takes neither

cdef struct MemoryV2:  # nvmlMemory_v2_t
    unsigned int version
    unsigned long long total
    unsigned long long reserved
    unsigned long long free
    unsigned long long used

cdef struct MemoryV1:  # nvmlMemory_t
    unsigned long long total
    unsigned long long free
    unsigned long long used

cdef union Value:  # nvmlValue_t
    double real
    unsigned int small
    unsigned long long large
    long long signed_large

cdef struct Field:  # nvmlFieldValue_t
    unsigned int id
    unsigned int scope
    long long timestamp
    long long latency
    unsigned int type
    int code
    Value value

cdef struct Process:  # nvmlProcessInfo_t of version 3
    unsigned int pid
    unsigned long long memory
    unsigned int gpu_instance
    unsigned int compute_instance

ctypedef int (*unsigned_fn)(Device device, unsigned int* out) noexcept nogil
ctypedef int (*unsigned_of_fn)(Device device, unsigned int kind, unsigned int* out) noexcept nogil
ctypedef int (*long_fn)(Device device, unsigned long long* out) noexcept nogil
ctypedef int (*long_of_fn)(Device device, unsigned int kind, unsigned int sort, unsigned long long* out) noexcept nogil
ctypedef int (*two_fn)(Device device, unsigned int* one, unsigned int* other) noexcept nogil
ctypedef int (*four_fn)(Device device, unsigned int* a, unsigned int* b, unsigned int* c, unsigned int* d) noexcept nogil
ctypedef int (*memory_fn)(Device device, void* out) noexcept nogil
ctypedef int (*fields_fn)(Device device, int count, Field* out) noexcept nogil
ctypedef int (*processes_fn)(Device device, unsigned int* count, Process* out) noexcept nogil

cdef int MEMORY_V2 = function("nvmlDeviceGetMemoryInfo_v2")
cdef int MEMORY_V1 = function("nvmlDeviceGetMemoryInfo")
cdef int FIELD_VALUES = function("nvmlDeviceGetFieldValues")

cdef enum Shape:  # what a function takes
    UNSIGNED    # an unsigned int to write, behind the kind, if any
    LONG        # an unsigned long long, behind the kind and the sort, if any
    TWO         # unsigned ints, by a pointer each
    FOUR
    BYTES_HELD  # a MemoryV2, which has its second version or its first
    FIELDS      # how many, and so many Fields
    PROCESSES   # where their number is, and so many Processes

cdef struct Call:
    Shape shape
    int number           # of the function
    int kind             # and sort: what UNSIGNED and LONG take before out; NONE where the function takes neither
    int sort
    unsigned int* count  # of FIELDS and PROCESSES
    void* out


cdef int perform(const Call* call, Device device) noexcept nogil:
    cdef void* called = address(call.number)
    cdef unsigned int* words = <unsigned int*>call.out
    if call.shape == BYTES_HELD:
        return ask_memory(device, <MemoryV2*>call.out)
    if called == NULL:
        return FUNCTION_NOT_FOUND
    if call.shape == UNSIGNED and call.kind < 0:
        return (<unsigned_fn>called)(device, words)
    if call.shape == UNSIGNED:
        return (<unsigned_of_fn>called)(device, <unsigned int>call.kind, words)
    if call.shape == LONG and call.kind < 0:
        return (<long_fn>called)(device, <unsigned long long*>call.out)
    if call.shape == LONG:
        return (<long_of_fn>called)(device, <unsigned int>call.kind, <unsigned int>call.sort, <unsigned long long*>call.out)
    if call.shape == TWO:
        return (<two_fn>called)(device, &words[0], &words[1])
    if call.shape == FOUR:
        return (<four_fn>called)(device, &words[0], &words[1], &words[2], &words[3])
    if call.shape == FIELDS:
        return (<fields_fn>called)(device, <int>call.count[0], <Field*>call.out)
    return (<processes_fn>called)(device, call.count, <Process*>call.out)


cdef bint ask(str reading, Target target, const Call* call) except -1:
    # Whether it has answered; False where there are more PROCESSES than room.  Raises what else NVML says.
    cdef int code, tries = 0
    cdef Device device
    if target.letters == NULL:
        refuse_unmade(target)
    while True:
        with nogil:
            code = begin(target, &device)
            if code == OK:
                code = perform(call, device)
                release()
        if code == OK:
            return True
        if code == INSUFFICIENT_SIZE and call.shape == PROCESSES:
            return False
        may_ask_again(reading, target, code, &tries)


# What a device's readings are of: a Target, or for a device that is not NVML's what answers by methods of the readings'
# names.  readings.targets finds it, and fills in the Targets that stay those of the ordinals, and of None, for the process's
# life.
cdef dict ready_targets = {}
cdef object target_finder = None
ready = ready_targets
# stub: ready: dict[int | None, Target]


def find_targets_by(find: Callable[[DeviceArgument | Target | None], object]) -> None:
    """Says what finds the target of a device that is not ready."""
    global target_finder
    target_finder = find


# stub: def find_target(device: DeviceArgument | Target | None) -> object: ...
cpdef object find_target(object device):
    cdef object target = None
    if type(device) is Target:
        return device
    if device is None or type(device) is int:
        target = ready_targets.get(device)
    return target_finder(device) if target is None else target


def read_number(str reading, int number, device: DeviceArgument | Target | None, int kind=-1) -> int:
    """An unsigned int: f(device, out), or f(device, kind, out)."""
    cdef object target = find_target(device)
    cdef unsigned int value = 0
    cdef Call call = Call(UNSIGNED, number, kind, NONE, NULL, &value)
    if type(target) is not Target:
        return getattr(target, reading)()
    ask(reading, target, &call)
    return value


def read_of_pair(str reading, int number, device: DeviceArgument | Target | None, int which) -> int:
    """The first or second (which: 0, 1) unsigned int of a structure of two: f(device, out)."""
    cdef object target = find_target(device)
    cdef unsigned int[2] values
    cdef Call call = Call(UNSIGNED, number, NONE, NONE, NULL, &values[0])
    if type(target) is not Target:
        return getattr(target, reading)()
    ask(reading, target, &call)
    return values[which]


def read_large(str reading, int number, Target target not None, int kind=-1, int sort=-1) -> int:
    """An unsigned long long: f(device, out), or f(device, kind, sort, out)."""
    cdef unsigned long long value = 0
    cdef Call call = Call(LONG, number, kind, sort, NULL, &value)
    ask(reading, target, &call)
    return value


def read_several(str reading, int number, Target target not None, int count) -> tuple[int, ...]:
    """Two or four unsigned ints, each by a pointer of its own; a tuple."""
    cdef unsigned int[4] values
    cdef Call call = Call(TWO if count == 2 else FOUR, number, NONE, NONE, NULL, &values[0])
    ask(reading, target, &call)
    return tuple([values[index] for index in range(count)])


cdef int ask_memory(Device handle, MemoryV2* out) noexcept nogil:
    # Where the driver has no second version, what it keeps for itself is counted as used.
    cdef MemoryV1 plain
    cdef int code = FUNCTION_NOT_FOUND
    memset(out, 0, sizeof(MemoryV2))
    out.version = sizeof(MemoryV2) | (2 << 24)  # NVML_STRUCT_VERSION
    if address(MEMORY_V2) != NULL:
        code = (<memory_fn>address(MEMORY_V2))(handle, out)
    if code == FUNCTION_NOT_FOUND and address(MEMORY_V1) != NULL:
        code = (<memory_fn>address(MEMORY_V1))(handle, &plain)
        out.total, out.reserved, out.free, out.used = plain.total, 0, plain.free, plain.used
    return code


def read_memory(str reading, Target target not None) -> tuple[int, int, int, int]:
    """Bytes: (total, reserved, free, used)."""
    cdef MemoryV2 memory
    cdef Call call = Call(BYTES_HELD, MEMORY_V2, NONE, NONE, NULL, &memory)
    ask(reading, target, &call)
    return memory.total, memory.reserved, memory.free, memory.used


def read_fields(str reading, Target target not None, fields: Sequence[tuple[int, int]]) -> list[int | float | None]:
    """Field values (NVML API Reference Guide, "Field Value Enums").

    Arguments:
        fields: (id, scope) each, 16 at most.
    Returns:
        A list: int or float, or None for a field that the device refuses.
    """
    cdef Field[MAX_FIELDS] values
    cdef unsigned int count = len(fields), index
    cdef Call call = Call(FIELDS, FIELD_VALUES, NONE, NONE, &count, &values[0])
    if count > MAX_FIELDS:
        raise ValueError(f"{count} fields at once; {MAX_FIELDS} is the most")
    memset(values, 0, sizeof(values))
    for index in range(count):
        values[index].id, values[index].scope = fields[index]
    ask(reading, target, &call)
    return [None if values[index].code else field_value(&values[index]) for index in range(count)]


cdef object field_value(Field* field):
    # nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long long, signed int
    if field.type == 0:
        return field.value.real
    if field.type == 1:
        return field.value.small
    if field.type == 4:
        return field.value.signed_large
    if field.type == 5:
        return <int>field.value.small
    if field.type == 6:  # unsigned short
        return field.value.small & 0xFFFF
    return field.value.large


def read_processes(str reading, int number, Target target not None) -> list[tuple[int, int | None, int | None, int | None]]:
    """Processes of one kind: a list of (pid, bytes or None, GPU instance or None, compute instance or None)."""
    cdef unsigned int room = 32, count = 32, index
    cdef Call call = Call(PROCESSES, number, NONE, NONE, &count, NULL)
    while True:
        call.out = malloc(room * sizeof(Process))
        if call.out == NULL:
            raise MemoryError
        try:
            if ask(reading, target, &call):
                return [process_of(&(<Process*>call.out)[index]) for index in range(count)]
        finally:
            free(call.out)
        if room >= MAX_PROCESSES:
            raise reading_error(reading, target, INSUFFICIENT_SIZE)
        room = count = max(room, count) * 2  # processes may have come meanwhile


cdef tuple process_of(Process* process):
    # All bits set stand for "not known" in every field.
    return (
        process.pid,
        None if process.memory == <unsigned long long>-1 else process.memory,
        None if process.gpu_instance == <unsigned int>-1 else process.gpu_instance,
        None if process.compute_instance == <unsigned int>-1 else process.compute_instance,
    )


# --- cards ---------------------------------------------------------------------------------------------------------

cdef enum:
    MAX_RECORDS = 640  # 64 cards with 8 MIG devices each, and the cards
    NO_PARENT = -1

cdef struct PciInfo:  # nvmlPciInfo_t
    char[16] legacy
    unsigned int domain
    unsigned int bus
    unsigned int device
    unsigned int device_id
    unsigned int subsystem_id
    char[32] bus_id

cdef struct Record:
    Device device
    unsigned int index      # NVML's: of a card among cards, of a MIG device in its card
    int parent              # record of a MIG device's card; NO_PARENT for a card
    int mig_mode            # 1 where the card is in MIG mode
    unsigned int instance   # ids of a MIG device's GPU instance
    unsigned int compute    # and compute instance
    char[TEXT] uuid
    char[TEXT] name
    PciInfo pci
    MemoryV1 memory

ctypedef int (*count_fn)(unsigned int* count) noexcept nogil
ctypedef int (*handle_fn)(unsigned int index, Device* out) noexcept nogil
ctypedef int (*text_fn)(Device device, char* text, unsigned int size) noexcept nogil
ctypedef int (*pci_fn)(Device device, PciInfo* out) noexcept nogil
ctypedef int (*mig_handle_fn)(Device device, unsigned int index, Device* out) noexcept nogil

cdef int COUNT = function("nvmlDeviceGetCount_v2")
cdef int HANDLE = function("nvmlDeviceGetHandleByIndex_v2")
cdef int UUID = function("nvmlDeviceGetUUID")
cdef int NAME = function("nvmlDeviceGetName")
cdef int PCI = function("nvmlDeviceGetPciInfo_v3 nvmlDeviceGetPciInfo_v2")
cdef int MIG_MODE = function("nvmlDeviceGetMigMode")
cdef int MIG_COUNT = function("nvmlDeviceGetMaxMigDeviceCount")
cdef int MIG_HANDLE = function("nvmlDeviceGetMigDeviceHandleByIndex")
cdef int GPU_INSTANCE = function("nvmlDeviceGetGpuInstanceId")
cdef int COMPUTE_INSTANCE = function("nvmlDeviceGetComputeInstanceId")


# stub: class Card:
@dataclass(frozen=True)
class Card:
    """The facts that NVML has of a card or of a MIG device.

    Attributes:
        uuid: str, "GPU-..." or "MIG-...".
        pci_bus_id: str, as the driver writes it; a MIG device has its card's.
        index: int, NVML's index of the card; a MIG device has its card's.
        name: str.
        memory: int, bytes.
        mig_mode: bool, whether the card is divided into MIG devices.
        parent: str, the card's UUID, or None for a card.
        instance: (int, int), ids of the GPU instance and the compute instance, or None for a card.
    """

    uuid: str
    pci_bus_id: str
    index: int
    name: str
    memory: int
    mig_mode: bool = False
    parent: str | None = None
    instance: tuple[int, int] | None = None


def cards() -> list[Card]:
    """Returns every card in the order of NVML's indices, its MIG devices after it: the first of listing().

    Raises: as listing.
    """
    return listing()[0]


def listing() -> tuple[list[Card], int]:
    """Returns the cards, and how many there are besides that NVML cannot read.

    Returns:
        (cards, lost): a list of Card, [] where NVML finds no device; and an int, how many fell off the bus or may not
        be seen by this user.
    Raises:
        ReadingError: there is no NVML, or it fails.
    """
    cdef int code, total = 0, lost = 0, index
    cdef Record* records = <Record*>calloc(MAX_RECORDS, sizeof(Record))
    if records == NULL:
        raise MemoryError
    try:
        with nogil:
            code = hold()
            if code == OK:
                code = read_records(records, &total, &lost)
                release()
        if code == NOT_FOUND:
            return [], 0
        if code:
            name = code_name(code)
            raise ReadingError(f"NVML lists no devices: {name} ({code}): {code_text(code)}", code, name, "cards")
        return [card_of(records, index) for index in range(total)], lost
    finally:
        free(records)


cdef int read_records(Record* records, int* out_total, int* out_lost) noexcept nogil:
    cdef unsigned int count = 0, index
    cdef int code
    if address(COUNT) == NULL or address(HANDLE) == NULL or address(UUID) == NULL or address(PCI) == NULL:
        return FUNCTION_NOT_FOUND
    code = (<count_fn>address(COUNT))(&count)
    if code:
        return code
    for index in range(count):
        if out_total[0] == MAX_RECORDS:
            break
        if read_card(&records[out_total[0]], index) != OK:
            out_lost[0] += 1
            continue
        out_total[0] += 1
        read_mig_devices(records, out_total[0] - 1, out_total)
    return OK


cdef int read_card(Record* record, unsigned int index) noexcept nogil:
    cdef unsigned int current = 0, pending = 0
    cdef int code = (<handle_fn>address(HANDLE))(index, &record.device)
    record.index = index
    record.parent = NO_PARENT
    if code == OK:
        code = (<pci_fn>address(PCI))(record.device, &record.pci)
    if code == OK:
        code = read_common(record)
    if code == OK and address(MIG_MODE) != NULL:
        if (<two_fn>address(MIG_MODE))(record.device, &current, &pending) == OK:
            record.mig_mode = current == 1
    return code


cdef int read_common(Record* record) noexcept nogil:
    if address(NAME) != NULL:
        (<text_fn>address(NAME))(record.device, record.name, TEXT)
    if address(MEMORY_V1) != NULL:
        (<memory_fn>address(MEMORY_V1))(record.device, &record.memory)
    return (<text_fn>address(UUID))(record.device, record.uuid, TEXT)


cdef void read_mig_devices(Record* records, int parent, int* out_total) noexcept nogil:
    cdef unsigned int count = 0, index
    cdef Record* record
    if not records[parent].mig_mode or address(MIG_COUNT) == NULL or address(MIG_HANDLE) == NULL:
        return
    if (<unsigned_fn>address(MIG_COUNT))(records[parent].device, &count) != OK:
        return
    for index in range(count):
        if out_total[0] == MAX_RECORDS:
            return
        record = &records[out_total[0]]
        if (<mig_handle_fn>address(MIG_HANDLE))(records[parent].device, index, &record.device) != OK:
            continue  # places that hold no device answer NOT_FOUND
        record.index = index
        record.parent = parent
        record.pci = records[parent].pci
        if address(GPU_INSTANCE) != NULL and address(COMPUTE_INSTANCE) != NULL:
            (<unsigned_fn>address(GPU_INSTANCE))(record.device, &record.instance)
            (<unsigned_fn>address(COMPUTE_INSTANCE))(record.device, &record.compute)
        if read_common(record) == OK:
            out_total[0] += 1


cdef object card_of(Record* records, int index):
    cdef Record* record = &records[index]
    cdef Record* card = record if record.parent == NO_PARENT else &records[record.parent]
    is_card = record.parent == NO_PARENT
    return Card(
        uuid=text(record.uuid),
        pci_bus_id=pci_bus_id(text(record.pci.bus_id)),
        index=card.index,
        name=text(record.name),
        memory=record.memory.total,
        mig_mode=record.mig_mode != 0,
        parent=None if is_card else text(card.uuid),
        instance=None if is_card else (record.instance, record.compute),
    )


cdef str text(const char* letters):
    return letters.decode(errors="replace")
