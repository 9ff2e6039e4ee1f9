"""Finds the device that a reading is of, and makes NVML's calls by the shape of their arguments.

An ordinal is looked up once in the table of identities and kept as a UUID, and NVML gives the handle for that UUID;
no index of NVML's takes part, so that a reading is never of the wrong card.  Before init the table goes with the
environment: a change of the list of visible devices makes a new one.

Each call takes the reading's name, for errors and for devices that are not NVML's, the number of NVML's function, and
the device.  The call itself runs without the GIL.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cimport accelrt.core.process as env_watch
from accelrt.core.process cimport FORK_READINGS, at_fork
cimport accelrt.devices.device as devices
from accelrt.errors import DriverNotFoundError, NotSupportedError, ReadingError
from accelrt.nvml.library cimport (
    FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, INVALID_ARGUMENT, LIBRARY_NOT_FOUND, OK, UNINITIALIZED, UNSUPPORTED,
    Device, address, function, hold, let_go, lose, session,
)
from accelrt.nvml.library import code_name, code_text
from accelrt.runtime import init
from accelrt.status cimport refuse_unmade
from accelrt import identity

# stub: PREFIXES: tuple[str, ...]
# stub: DRIVER_NOT_LOADED: int
# stub: DEPRECATED: int

cdef extern from *:
    """
    #define accelrt_take(from) __atomic_load_n(from, __ATOMIC_ACQUIRE)
    #define accelrt_give(to, value) __atomic_store_n(to, value, __ATOMIC_RELEASE)
    """
    uint64_t take "accelrt_take"(uint64_t* from_) nogil
    void give "accelrt_give"(uint64_t* to, uint64_t value) nogil

ctypedef int (*by_uuid_fn)(const char* uuid, Device* out) noexcept nogil

DRIVER_NOT_LOADED = 9
DEPRECATED = 26
PREFIXES = ("GPU-", "MIG-")

cdef int BY_UUID = function("nvmlDeviceGetHandleByUUID")

cdef list table = None            # by ordinal
cdef dict by_uuid = {}            # every Target that was ever asked for
cdef bint is_of_driver = False    # the table was made after init
cdef bint is_stale = True         # there is no table yet, or this is a child
cdef object visible_then = None   # the environment's values that a table made before init goes with
cdef object order_then = None


cdef void forget_table() noexcept nogil:
    global is_stale
    is_stale = True


cdef class Target:
    """A device of NVML's, by its UUID."""
    # stub: parent: str | None

    def __init__(self, str uuid, str name, parent: str | None) -> None:
        self.uuid, self.name, self.parent = uuid, name, parent
        self.key = uuid.encode()
        self.letters = self.key
        self.session = 0

    def __repr__(self):
        return f"{self.name} ({self.uuid})"


def target_for(device: DeviceArgument | Target | None = None) -> Any:
    """The Target that a device's readings are of, or the OtherVendor that answers for it."""
    return target_of(device)


cdef object target_of(object device):
    # A Target, or an OtherVendor for other platforms.
    cdef Py_ssize_t ordinal
    cdef int now = 0
    if is_stale or not is_current():
        make_table()
    if type(device) is int:
        ordinal = checked(device)
    elif device is None:
        if is_of_driver and devices.known_devices() > 1:
            devices.current_ordinal(&now)
        ordinal = checked(now)
    else:
        return place_slow(device)
    return table[ordinal]


cdef bint is_current() noexcept:
    if is_of_driver:
        return True
    return devices.known_devices() == 0 and env_watch.is_same(visible_then, order_then)


cdef Py_ssize_t checked(object ordinal) except -1:
    cdef Py_ssize_t count = len(table)
    if not 0 <= ordinal < count:
        allowed = f"ordinals 0 to {count - 1}" if count else "is one visible?"
        raise ValueError(f"device {ordinal} does not exist; there are {count} devices, {allowed}")
    return ordinal


cdef object place_slow(object device):
    if isinstance(device, str) and device.startswith(PREFIXES):
        return place_at(device)
    if isinstance(device, Target):
        if (<Target>device).letters == NULL:
            refuse_unmade(device)
        return device
    if isinstance(device, identity.Identity):
        return place_at(device.uuid) if device.nvml_index is not None else target_of(device.ordinal)
    ordinal = devices.parse(device)
    return target_of(None if ordinal is None else int(ordinal))


cdef object place_at(str uuid):
    # Of any card that NVML lists, one too that this process does not see.
    found = by_uuid.get(uuid)
    if found is None:
        for row in identity.physical():
            if row.uuid == uuid:
                return kept(row)
        for target in table:
            if target.uuid == uuid:
                return target
        known = ", ".join(row.uuid for row in identity.physical()) or "none"
        raise ValueError(f"device {uuid!r} does not exist; those that can be read are {known}")
    return found


cdef object kept(row):
    return by_uuid.setdefault(row.uuid, Target(row.uuid, row.name, row.mig_parent))


cdef int make_table() except -1:
    global table, is_of_driver, is_stale, visible_then, order_then
    after, seen, order = init.is_initialized(), env_watch.current(0), env_watch.current(1)
    made = init.later("accelrt.readings.amd").other_targets()
    is_nvml = made is None
    if is_nvml:
        made = [kept(row) for row in identity.table()]
    table, is_of_driver, visible_then, order_then = made, after, seen, order
    is_stale = not is_nvml and not after  # other variables decide there
    return 0


cdef int begin(Target target, Device* out) noexcept nogil:
    # OK: holds the session, until let_go, and gives the handle in it; or a code, and holds nothing.
    cdef int code = hold()
    if code:
        return code
    if take(&target.session) != session():
        if address(BY_UUID) == NULL:
            code = FUNCTION_NOT_FOUND
        else:
            code = (<by_uuid_fn>address(BY_UUID))(target.letters, &target.handle)
        if code:
            let_go()
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


at_fork("readings.nvml_calls", FORK_READINGS, NULL, NULL, &forget_table)


# calls

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
    UNSIGNED   # an unsigned int to write, behind the kind, if any
    LONG       # an unsigned long long, behind the kind and the sort, if any
    TWO        # unsigned ints, by a pointer each
    FOUR
    MEMORY     # a MemoryV2, which has its second version or its first
    FIELDS     # how many, and so many Fields
    PROCESSES  # where their number is, and so many Processes

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
    if call.shape == MEMORY:
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
        return (<long_of_fn>called)(
            device, <unsigned int>call.kind, <unsigned int>call.sort, <unsigned long long*>call.out)
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
    while True:
        with nogil:
            code = begin(target, &device)
            if code == OK:
                code = perform(call, device)
                let_go()
        if code == OK:
            return True
        if code == INSUFFICIENT_SIZE and call.shape == PROCESSES:
            return False
        may_ask_again(reading, target, code, &tries)


cdef object read_unsigned(str reading, int number, object device, int kind, int which):
    cdef unsigned int[2] values
    cdef Call call = Call(UNSIGNED, number, kind, NONE, NULL, &values[0])
    target = target_of(device)
    if type(target) is not Target:
        return getattr(target, reading)()
    ask(reading, <Target>target, &call)
    return values[which]


def read_number(str reading, int number, device: DeviceArgument | Target | None, int kind=-1) -> int:
    """An unsigned int: f(device, out), or f(device, kind, out)."""
    return read_unsigned(reading, number, device, kind, 0)


def read_pair(str reading, int number, device: DeviceArgument | Target | None, int which) -> int:
    """One of the two unsigned ints of a structure: f(device, out)."""
    return read_unsigned(reading, number, device, NONE, which)


def read_large(str reading, int number, Target target, int kind=-1, int sort=-1) -> int:
    """An unsigned long long: f(device, out), or f(device, kind, sort, out)."""
    cdef unsigned long long value = 0
    cdef Call call = Call(LONG, number, kind, sort, NULL, &value)
    ask(reading, target, &call)
    return value


def read_several(str reading, int number, Target target, int count) -> tuple[int, ...]:
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


def read_memory(str reading, device: DeviceArgument | Target | None, bint whole) -> Any:
    """Bytes: used, or where the whole is wanted (total, reserved, free, used)."""
    cdef MemoryV2 memory
    cdef Call call = Call(MEMORY, MEMORY_V2, NONE, NONE, NULL, &memory)
    target = target_of(device)
    if type(target) is not Target:
        return getattr(target, reading)()
    ask(reading, <Target>target, &call)
    if whole:
        return memory.total, memory.reserved, memory.free, memory.used
    return memory.used


def read_fields(str reading, Target target, fields: Sequence[tuple[int, int]]) -> list[int | float | None]:
    """Field values (NVML API Reference Guide, "Field Value Enums").

    Arguments:
        fields: (id, scope) each, 16 at most.
    Returns:
        A list: int or float, or None for a field that the device refuses.
    """
    cdef Field[MAX_FIELDS] asked
    cdef unsigned int count = len(fields), index
    cdef Call call = Call(FIELDS, FIELD_VALUES, NONE, NONE, &count, &asked[0])
    if count > MAX_FIELDS:
        raise ValueError(f"{count} fields at once; {MAX_FIELDS} is the most")
    memset(asked, 0, sizeof(asked))
    for index in range(count):
        asked[index].id, asked[index].scope = fields[index]
    ask(reading, target, &call)
    return [None if asked[index].code else field_value(&asked[index]) for index in range(count)]


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


def read_processes(str reading, int number, Target target) -> list[tuple[int, int | None, int | None, int | None]]:
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
