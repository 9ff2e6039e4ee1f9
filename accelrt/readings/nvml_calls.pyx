"""The calls of NVML by the shape of their arguments: what the readings are made of.

Each takes the reading's name, for errors and for devices that are not NVML's, the number of NVML's function, and
the device.  The call itself runs without the GIL.
"""
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from accelrt.nvml.library cimport FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, OK, Device, address, function
from accelrt.readings.targets cimport Place, again, begin, end, place_of

cdef enum:
    MAX_FIELDS = 16

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
cdef int FIELDS = function("nvmlDeviceGetFieldValues")

NONE = -1  # the kind that a function without one takes


def read_number(str reading, int number, device, int kind=NONE):
    """An unsigned int: f(device, out), or f(device, kind, out)."""
    cdef unsigned int value = 0
    cdef int code, tries = 0
    cdef Device handle
    cdef Place place
    found = place_of(device)
    if type(found) is not Place:
        return getattr(found, reading)()
    place = <Place>found
    while True:
        with nogil:
            code = begin(place, &handle)
            if code == OK:
                if address(number) == NULL:
                    code = FUNCTION_NOT_FOUND
                elif kind < 0:
                    code = (<unsigned_fn>address(number))(handle, &value)
                else:
                    code = (<unsigned_of_fn>address(number))(handle, <unsigned int>kind, &value)
                end()
        if code == OK:
            return value
        again(reading, place, code, &tries)


def read_large(str reading, int number, Place place, int kind=NONE, int sort=NONE):
    """An unsigned long long: f(device, out), or f(device, kind, sort, out)."""
    cdef unsigned long long value = 0
    cdef int code, tries = 0
    cdef Device handle
    while True:
        with nogil:
            code = begin(place, &handle)
            if code == OK:
                if address(number) == NULL:
                    code = FUNCTION_NOT_FOUND
                elif kind < 0:
                    code = (<long_fn>address(number))(handle, &value)
                else:
                    code = (<long_of_fn>address(number))(handle, <unsigned int>kind, <unsigned int>sort, &value)
                end()
        if code == OK:
            return value
        again(reading, place, code, &tries)


def read_pair(str reading, int number, device, int which):
    """One of the two unsigned ints of a structure: f(device, out)."""
    cdef unsigned int[2] values
    cdef int code, tries = 0
    cdef Device handle
    cdef Place place
    found = place_of(device)
    if type(found) is not Place:
        return getattr(found, reading)()
    place = <Place>found
    while True:
        with nogil:
            code = begin(place, &handle)
            if code == OK:
                code = (<unsigned_fn>address(number))(handle, values) if address(number) != NULL else FUNCTION_NOT_FOUND
                end()
        if code == OK:
            return values[which]
        again(reading, place, code, &tries)


def read_several(str reading, int number, Place place, int count):
    """Two or four unsigned ints, each by a pointer of its own; a tuple."""
    cdef unsigned int[4] values
    cdef int code, tries = 0
    cdef Device handle
    while True:
        with nogil:
            code = begin(place, &handle)
            if code == OK:
                if address(number) == NULL:
                    code = FUNCTION_NOT_FOUND
                elif count == 2:
                    code = (<two_fn>address(number))(handle, &values[0], &values[1])
                else:
                    code = (<four_fn>address(number))(handle, &values[0], &values[1], &values[2], &values[3])
                end()
        if code == OK:
            return tuple([values[index] for index in range(count)])
        again(reading, place, code, &tries)


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


def read_memory(str reading, device, bint whole):
    """Bytes: used, or where the whole is wanted (total, reserved, free, used)."""
    cdef MemoryV2 memory
    cdef int code, tries = 0
    cdef Device handle
    cdef Place place
    found = place_of(device)
    if type(found) is not Place:
        return getattr(found, reading)()
    place = <Place>found
    while True:
        with nogil:
            code = begin(place, &handle)
            if code == OK:
                code = ask_memory(handle, &memory)
                end()
        if code == OK:
            if whole:
                return memory.total, memory.reserved, memory.free, memory.used
            return memory.used
        again(reading, place, code, &tries)


def read_fields(str reading, Place place, fields):
    """Field values (NVML API Reference Guide, "Field Value Enums").

    Arguments:
        fields: (id, scope) each, 16 at most.
    Returns:
        A list: int or float, or None for a field that the device refuses.
    """
    cdef Field[MAX_FIELDS] asked
    cdef int code, tries = 0, count = len(fields), index
    cdef Device handle
    if count > MAX_FIELDS:
        raise ValueError(f"{count} fields at once; {MAX_FIELDS} is the most")
    memset(asked, 0, sizeof(asked))
    for index in range(count):
        asked[index].id, asked[index].scope = fields[index]
    while True:
        with nogil:
            code = begin(place, &handle)
            if code == OK:
                if address(FIELDS) == NULL:
                    code = FUNCTION_NOT_FOUND
                else:
                    code = (<fields_fn>address(FIELDS))(handle, count, asked)
                end()
        if code == OK:
            return [None if asked[index].code else field_value(&asked[index]) for index in range(count)]
        again(reading, place, code, &tries)


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


def read_processes(str reading, int number, Place place):
    """Processes of one kind: a list of (pid, bytes or None, GPU instance or None, compute instance or None)."""
    cdef unsigned int room = 32, count, index
    cdef int code, tries = 0
    cdef Device handle
    cdef Process* processes
    while True:
        processes = <Process*>malloc(room * sizeof(Process))
        if processes == NULL:
            raise MemoryError
        try:
            count = room
            with nogil:
                code = begin(place, &handle)
                if code == OK:
                    if address(number) == NULL:
                        code = FUNCTION_NOT_FOUND
                    else:
                        code = (<processes_fn>address(number))(handle, &count, processes)
                    end()
            if code == OK:
                return [process_of(&processes[index]) for index in range(count)]
        finally:
            free(processes)
        if code == INSUFFICIENT_SIZE and room < 1 << 16:
            room = max(room, count) * 2  # processes may have come meanwhile
        else:
            again(reading, place, code, &tries)


cdef tuple process_of(Process* process):
    # All bits set stand for "not known" in every field.
    return (
        process.pid,
        None if process.memory == <unsigned long long>-1 else process.memory,
        None if process.gpu_instance == <unsigned int>-1 else process.gpu_instance,
        None if process.compute_instance == <unsigned int>-1 else process.compute_instance,
    )
