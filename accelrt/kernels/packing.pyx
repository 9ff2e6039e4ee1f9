"""Arguments: what a launch passes is checked against the kernel's parameters and laid out for the driver.

What a parameter takes is decided once, when the kernel is made: from its signature, and from what the driver tells of
its size.  A driver before CUDA 12.4 tells nothing; then a value is laid out in 8 or 16 bytes, of which the driver reads
as many as the kernel's parameter has.
"""
import sys

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.complex cimport PyComplex_ImagAsDouble, PyComplex_RealAsDouble
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyIndex_Check
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from accelrt.arrays.array cimport DEVICE_BUFFER, Array, check_live, is_held
from accelrt.arrays.layout cimport find_bounds
from accelrt.arrays.buffer cimport Buffer, PinnedBuffer, raise_freed
from accelrt.arrays.operand cimport (
    Operand, follow_producer, is_asynchronous, keep, note_use, read_array, read_interface, read_operand,
)
cimport accelrt.driver.registry as registry
from accelrt.allocator.private.suspended cimport refuse_suspended
from accelrt.runtime import init
from accelrt.runtime.capture_record cimport Record
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport INVALID_VALUE, NOT_SUPPORTED, raise_status, refuse_copy

cdef extern from "Python.h":
    int PyFloat_Pack2(double value, char* out, int little) except -1

cdef enum:
    MOST = 4096  # parameters of a kernel


# --- parameters --------------------------------------------------------------------------------------------

cdef class Parameters:
    """What a kernel takes."""

    def __cinit__(self):
        self.count = -1
        self.fitting = {}

    def __dealloc__(self):
        free(self.each)

    def __reduce__(self):
        refuse_copy(self, "it describes a kernel of this process")

    cdef Parameter* at(self, Py_ssize_t index) noexcept:
        return &self.each[index]


cdef Py_ssize_t ask_count(uintptr_t function) except -2:
    # -1 where the driver does not tell.
    cdef size_t offset = 0, size = 0, index = 0
    cdef int code = 0
    while index < MOST:
        code = registry.active().function_parameter(function, index, &offset, &size)
        if code:
            break
        index += 1
    if code == NOT_SUPPORTED:
        return -1
    if code != INVALID_VALUE:
        raise_status(code, "function_parameter", ("function", function, "index", index))
    return index


cdef Parameters make_parameters(uintptr_t function, str name, int device_index, object signature):
    cdef Parameters made = Parameters()
    cdef Py_ssize_t told = ask_count(function), index
    cdef Parameter* parameter
    cdef list parsed = None, pointees = None
    if signature is not None:
        signature = signature if isinstance(signature, str) else list(signature)
        reader = init.later("accelrt.kernels.signature")
        parsed, pointees = reader.parse_signature(signature), reader.parse_pointees(signature)
    made.name = name
    made.device_index = device_index
    made.told = parsed is not None
    if parsed is not None and told >= 0 and len(parsed) != told:
        raise ValueError(f"the signature {signature!r} has {len(parsed)} parameters, kernel {name!r} has {told}")
    made.count = told if parsed is None else len(parsed)
    if made.count <= 0:
        return made
    made.each = <Parameter*>calloc(made.count, sizeof(Parameter))
    if made.each == NULL:
        raise MemoryError("no host memory for a kernel's parameters")
    for index in range(made.count):
        parameter = &made.each[index]
        parameter.writes = True
        if told >= 0:
            registry.active().function_parameter(function, index, &parameter.offset, &parameter.size)
        if parsed is not None:
            kind, size, parameter.writes = parsed[index]
            if parameter.size and size != parameter.size:
                raise ValueError(
                    f"parameter {index} of the signature {signature!r} has {size} bytes, that of kernel {name!r} has "
                    f"{parameter.size}")
            parameter.kind, parameter.size = kind, size
            parameter.pointee_kind, parameter.pointee = pointees[index]
    return made


cdef str describe(const Parameter* parameter):
    cdef tuple kinds = ("a value", "a pointer", "an integer", "an unsigned integer", "a floating-point number",
                        "a bool", "a complex number", "a struct")
    return f"{kinds[<int>parameter.kind]} of {parameter.size} bytes" if parameter.size else kinds[<int>parameter.kind]


cdef int refuse(Parameters parameters, Py_ssize_t index, object given, str what, str advice="",
                object kind=TypeError) except -1:
    # what says what was given, with its bytes.
    cdef Parameter* parameter = parameters.at(index)
    at = f", at offset {parameter.offset}" if parameter.size else ""
    raise kind(f"argument {index} of kernel {parameters.name!r} is {what}; the kernel takes {describe(parameter)}{at}"
               + (f"; {advice}" if advice else ""))


cdef int refuse_count(Parameters parameters, Py_ssize_t given) except -1:
    cdef Py_ssize_t index
    cdef size_t total = 0
    for index in range(parameters.count):
        total = max(total, parameters.each[index].offset + parameters.each[index].size)
    raise TypeError(f"kernel {parameters.name!r} takes {parameters.count} arguments, of {total} bytes together; "
                    f"{given} were given")


# --- packing -----------------------------------------------------------------------------------------------

cdef class Room:
    """Memory for the arguments of one launch, and what the pointers to others' bytes keep alive."""

    cdef void* memory
    cdef list kept
    cdef object __weakref__

    def __dealloc__(self):
        free(self.memory)


cdef object make_room(Packed* packed, Py_ssize_t count):
    cdef Room room = Room()
    room.memory = calloc(count, sizeof(void*) + sizeof(Value))
    if room.memory == NULL:
        raise MemoryError("no host memory for a launch's arguments")
    packed.values = <Value*>room.memory
    packed.pointers = <void**>(packed.values + count)
    return room


cdef object pack(Parameters parameters, tuple arguments, uintptr_t stream, Packed* packed):
    cdef Py_ssize_t count = PyTuple_GET_SIZE(arguments), index
    cdef object room = None
    cdef PyObject* argument
    cdef Parameter* parameter
    cdef Parameter unknown
    if parameters.count < 0:
        unknown.kind, unknown.size, unknown.offset, unknown.writes = ANY, 0, 0, True
    elif count != parameters.count:
        refuse_count(parameters, count)
    packed.pointers, packed.values, packed.shared, packed.foreign = packed.room, packed.place, False, False
    packed.ran = False
    if count > INLINE:
        room = make_room(packed, count)
    for index in range(count):
        argument = <PyObject*>PyTuple_GET_ITEM(arguments, index)
        packed.pointers[index] = &packed.values[index]
        parameter = &unknown if parameters.count < 0 else &parameters.each[index]
        if put_number(parameter, <object>argument, <char*>&packed.values[index]):
            continue
        if isinstance(<object>argument, Buffer):
            put_buffer(parameters, parameter, index, <Buffer>argument, stream, packed)
        elif isinstance(<object>argument, Array) and is_plain(parameters, parameter, <Array>argument):
            if (<Array>argument).stream.handle != stream:
                packed.shared = True
            (<uintptr_t*>&packed.values[index])[0] = (<Array>argument).ptr
        else:
            packed.ran = True
            room = put_slow(parameters, parameter, index, <object>argument, packed, stream, room)
    return room


cdef int refuse_asleep(Parameters parameters, tuple arguments, const Packed* packed) except -1:
    # What may be an address: memory, and ints where the signature says pointer.
    cdef Py_ssize_t index
    for index, argument in enumerate(arguments):
        if isinstance(argument, int):
            if parameters.count < 0 or parameters.each[index].kind != POINTER:
                continue
        elif isinstance(argument, float) or (parameters.count >= 0 and not takes_pointer(&parameters.each[index])):
            continue
        refuse_suspended((<uintptr_t*>packed.pointers[index])[0], place_of(index, parameters))
    return 0


cdef int look_again(Parameters parameters, tuple arguments, const Packed* packed) except -1:
    cdef Py_ssize_t index
    cdef uintptr_t address
    for index in range(PyTuple_GET_SIZE(arguments)):
        argument = <object>PyTuple_GET_ITEM(arguments, index)
        address = (<uintptr_t*>packed.pointers[index])[0]
        if isinstance(argument, Array):
            check_live(<Array>argument, place_of(index, parameters))
        elif isinstance(argument, Buffer):
            if not (<Buffer>argument).live or (<Buffer>argument).ptr != address:
                raise_freed(argument, place_of(index, parameters))
        elif isinstance(argument, PinnedBuffer):
            if not (<PinnedBuffer>argument).live or (<PinnedBuffer>argument).ptr != address:
                raise_freed(argument, place_of(index, parameters))
    return 0


cdef inline int put_buffer(Parameters parameters, const Parameter* parameter, Py_ssize_t index, Buffer buffer,
                           uintptr_t stream, Packed* packed) except -1:
    if not buffer.live or buffer.device_index != parameters.device_index or not takes_pointer(parameter):
        refuse_buffer(parameters, parameter, index, buffer)
    if buffer.stream.handle != stream:
        packed.shared = True
    (<uintptr_t*>&packed.values[index])[0] = buffer.ptr
    return 0


cdef inline bint is_plain(Parameters parameters, const Parameter* parameter, Array array) noexcept:
    # It needs no second look: an Array of the device's that lives, and may be written if the kernel may.
    if not array.live or array.device_index != parameters.device_index or not takes_pointer(parameter):
        return False
    if parameter.pointee > 1 and array.itemsize > 1 and parameter.fitting != <PyObject*>array.dtype:
        return False
    return not array.readonly and (array.owner != DEVICE_BUFFER or is_held(array.base))


cdef int check_elements(Parameters parameters, Py_ssize_t index, Array array) except -1:
    # Bytes go anywhere, complex numbers where their parts do, and these where complex numbers, or a float2, do.
    cdef Parameter* parameter = &parameters.each[index]
    cdef size_t itemsize = array.itemsize
    cdef str letter = array.dtype.kind
    cdef bint fits
    if parameter.pointee <= 1 or itemsize <= 1:
        return 0
    fits = itemsize == parameter.pointee
    if letter in "iu":
        fits = fits and parameter.pointee_kind in (SIGNED, UNSIGNED)
    elif letter == "f":
        fits = (fits and parameter.pointee_kind in (FLOAT, BYTES)) or (
            2 * itemsize == parameter.pointee and parameter.pointee_kind == COMPLEX)
    elif letter == "c":
        fits = (fits and parameter.pointee_kind == COMPLEX) or (
            itemsize == 2 * parameter.pointee and parameter.pointee_kind == FLOAT)
    if not fits:
        kinds = ("values", "pointers", "integers", "unsigned integers", "floating-point numbers", "bools",
                 "complex numbers", "floating-point numbers")
        raise TypeError(
            f"{place_of(index, parameters)} is an Array of {array.dtype}; the kernel takes a pointer to "
            f"{kinds[<int>parameter.pointee_kind]} of {parameter.pointee} bytes; convert it, or name its bytes' type by "
            "view()")
    parameters.fitting[index] = array.dtype
    parameter.fitting = <PyObject*>array.dtype
    return 0


cdef inline bint takes_pointer(const Parameter* parameter) noexcept:
    return parameter.kind == POINTER or (parameter.kind == ANY and (parameter.size == sizeof(void*) or parameter.size == 0))


cdef int refuse_buffer(Parameters parameters, const Parameter* parameter, Py_ssize_t index, Buffer buffer) except -1:
    if not buffer.live:
        raise_freed(buffer, f"argument {index} of kernel {parameters.name!r}")
    if not takes_pointer(parameter):
        refuse(parameters, index, buffer, "a Buffer, whose address has 8 bytes")
    return refuse_elsewhere(parameters, index, buffer, buffer.device_index)


cdef int refuse_elsewhere(Parameters parameters, Py_ssize_t index, object memory, int ordinal) except -1:
    raise ValueError(
        f"argument {index} of kernel {parameters.name!r} is memory ({type(memory).__name__}) on device {ordinal}, the "
        f"kernel is on device {parameters.device_index}; copy it, or pass its address as int, after "
        "accelrt.memory.enable_peer_access()")


cdef inline bint put_number(const Parameter* parameter, object number, char* out) except -1:
    # Whether it was an exact int or float that the parameter takes.
    cdef int overflow = 0
    cdef long long value
    cdef int bits = <int>(8 * parameter.size) if parameter.size else 64
    if PyLong_CheckExact(number):
        value = PyLong_AsLongLongAndOverflow(number, &overflow)
        if overflow or parameter.kind > UNSIGNED or bits > 64 or bits & (bits - 1):
            return False
        if parameter.kind != SIGNED and parameter.kind != ANY and value < 0:
            return False
        if bits < 64 and (value >> (bits - (parameter.kind == SIGNED)) > 0 or value >> (bits - 1) < -1):
            return False
        (<long long*>out)[0] = value
        return True
    if PyFloat_CheckExact(number) and (parameter.kind == FLOAT or parameter.kind == ANY):
        return put_float(parameter, PyFloat_AS_DOUBLE(number), out)
    return False


cdef inline bint put_float(const Parameter* parameter, double value, char* out) except -1:
    if parameter.size == sizeof(double):
        (<double*>out)[0] = value
    elif parameter.size == sizeof(float):
        (<float*>out)[0] = <float>value
    elif parameter.size == 2 and parameter.kind == FLOAT:
        PyFloat_Pack2(value, out, 1)
    else:
        return False
    return True


cdef object put_slow(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object argument, Packed* packed,
                     uintptr_t stream, object room):
    # Answers the room, which may be a new one.
    cdef Operand memory
    cdef char* out = <char*>&packed.values[index]
    if read_memory(argument, &memory, index, parameters, parameter.writes):
        if not takes_pointer(parameter):
            refuse(parameters, index, argument, f"memory ({type(argument).__name__}), whose address has 8 bytes")
        if memory.ordinal >= 0 and memory.ordinal != parameters.device_index:
            refuse_elsewhere(parameters, index, argument, memory.ordinal)
        if isinstance(argument, Array) and parameters.count >= 0:
            check_elements(parameters, index, <Array>argument)
        packed.shared |= memory.ordinal < 0 or memory.owned and memory.owner_stream != stream
        packed.foreign |= memory.producer != 0
        (<uintptr_t*>out)[0] = memory.address
        return room
    if argument is None and takes_pointer(parameter):
        (<uintptr_t*>out)[0] = 0
        return room
    if isinstance(argument, (bytes, bytearray)) or is_ctypes(argument):
        return put_bytes(parameters, parameter, index, argument, bytes(argument), packed, room)
    if is_numpy_scalar(argument):
        return put_scalar(parameters, parameter, index, argument, packed, room)
    put_python_number(parameters, parameter, index, argument, out)
    return room


cdef bint is_ctypes(object argument) except -1:
    # Simple values, structures, unions, arrays and pointers: as their bytes lie in memory.
    cdef object ctypes = sys.modules.get("_ctypes")
    if ctypes is None or not PyObject_CheckBuffer(argument):
        return False
    return isinstance(argument, (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._Pointer))


cdef bint is_numpy_scalar(object argument) except -1:
    cdef object numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(argument, numpy.generic)


cdef object put_bytes(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object argument, bytes data,
                      Packed* packed, object room):
    cdef size_t size = PyBytes_GET_SIZE(data)
    if parameter.size and parameter.size != size:
        refuse(parameters, index, argument, f"a {type(argument).__name__} of {size} bytes")
    if size <= WIDEST:
        memcpy(&packed.values[index], PyBytes_AS_STRING(data), size)
        return room
    if room is None:
        room = Room()
    if (<Room>room).kept is None:
        (<Room>room).kept = []
    (<Room>room).kept.append(data)
    packed.pointers[index] = PyBytes_AS_STRING(data)
    return room


cdef object put_scalar(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object argument,
                       Packed* packed, object room):
    # Where a signature says the type: integers of any size that are in its range, and floats that are not narrowed.
    cdef str letter = argument.dtype.kind
    cdef size_t size = argument.dtype.itemsize
    cdef tuple fitting = ("", "u", "i", "u", "f", "b", "c", "V")
    cdef str wanted = fitting[<int>parameter.kind]
    what = f"a numpy.{argument.dtype} of {size} bytes"
    if letter in "iub" and wanted in ("i", "u", "f") and parameter.kind != ANY or (
            letter == wanted and letter in "fc" and size < parameter.size):
        put_python_number(parameters, parameter, index, argument.item(), <char*>&packed.values[index])
        return room
    if parameter.kind != ANY and parameter.kind != BYTES and letter not in (wanted, "V"):
        refuse(parameters, index, argument, what)
    if parameter.size and parameter.size != size:
        refuse(parameters, index, argument, what, "convert it to the type of the kernel's parameter")
    return put_bytes(parameters, parameter, index, argument, argument.tobytes(), packed, room)


cdef int put_python_number(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object number,
                           char* out) except -1:
    cdef size_t size = parameter.size
    if type(number).__name__ == "ndarray":
        refuse(parameters, index, number, "a numpy array, in the host's memory", "copy it to a Buffer or an Array")
    if isinstance(number, bool) and (parameter.kind == BOOL or parameter.kind <= UNSIGNED and parameter.kind != POINTER):
        (<uint64_t*>out)[0] = bool(number)
        return 0
    if isinstance(number, (int, float)) and parameter.kind == FLOAT and put_float(parameter, <double>number, out):
        return 0
    if isinstance(number, (int, float, complex)) and parameter.kind == COMPLEX or (
            isinstance(number, complex) and parameter.kind == ANY and size in (8, 16)):
        return put_complex(size, complex(number), out)
    if PyIndex_Check(number) and not isinstance(number, bool) and parameter.kind <= UNSIGNED:
        return put_integer(parameters, parameter, index, number.__index__(), out)
    if isinstance(number, float) and parameter.kind == ANY:
        refuse(parameters, index, number, "a float", "say which by numpy.float16, float32 or float64, or a signature")
    return refuse(parameters, index, number, f"{number!r:.60} of type {type(number).__name__}")


cdef int put_complex(size_t size, object number, char* out) except -1:
    cdef double real = PyComplex_RealAsDouble(number), imaginary = PyComplex_ImagAsDouble(number)
    if size == 8:
        (<float*>out)[0], (<float*>out)[1] = <float>real, <float>imaginary
    else:
        (<double*>out)[0], (<double*>out)[1] = real, imaginary
    return 0


cdef int put_integer(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object number,
                     char* out) except -1:
    cdef int bits = <int>(8 * parameter.size) if parameter.size else 64
    if bits > 64 or bits & (bits - 1):
        refuse(parameters, index, number, f"the int {number}", "pass the struct's bytes, or a ctypes.Structure")
    cdef object one = 1  # bits may be more than a C int has
    low = 0 if parameter.kind in (POINTER, UNSIGNED) else -(one << (bits - 1))
    high = (one << (bits - (parameter.kind == SIGNED))) - 1
    if not low <= number <= high:
        refuse(parameters, index, number, f"the int {number}", f"an int from {low} to {high}", ValueError)
    (<uint64_t*>out)[0] = number & 0xFFFFFFFFFFFFFFFF
    return 0


# --- memory that arguments point at ------------------------------------------------------------------------

cdef str place_of(Py_ssize_t index, Parameters parameters):
    return f"argument {index} of kernel {parameters.name!r}"


cdef bint read_memory(object argument, Operand* out, Py_ssize_t index, Parameters parameters, bint writes) except -1:
    # Whether it is memory that accelrt knows by its object; its address is what the kernel gets.
    if isinstance(argument, Array):
        read_launched_array(<Array>argument, out, index, parameters, writes)
    elif isinstance(argument, (Buffer, PinnedBuffer)):
        read_operand(out, argument, place_of(index, parameters), False)
    elif not isinstance(argument, (int, float)) and hasattr(argument, "__cuda_array_interface__"):
        read_launched_interface(argument, out, place_of(index, parameters))
    else:
        return False
    return True


cdef int read_launched_array(Array array, Operand* out, Py_ssize_t index, Parameters parameters, bint writes) except -1:
    check_live(array, place_of(index, parameters))
    read_array(out, array, place_of(index, parameters), writes and parameters.told)
    if array.ptr and not is_asynchronous(out):
        raise TypeError(f"{place_of(index, parameters)} is an Array in the host's memory; copy it to a device, or make it "
                        "with pinned_empty")
    return 0


cdef int read_launched_interface(object argument, Operand* out, str name) except -1:
    # Any strides will do; what else the array says is checked as for a copy.
    interface = argument.__cuda_array_interface__
    if isinstance(interface, dict) and interface.get("strides") is not None:
        interface = {**interface, "strides": None}
    out.source = <PyObject*>argument
    out.ordered = True
    return read_interface(out, interface, name, False)


cdef tuple span_of(object argument, const Operand* memory, bint writes):
    # For the detector, to which a write is ordered with all that a read is ordered with.
    cdef Py_ssize_t low = 0, high = <Py_ssize_t>memory.nbytes
    if isinstance(argument, Array):
        find_bounds((<Array>argument).ndim, (<Array>argument).extents, (<Array>argument).itemsize, &low, &high)
    return memory.address + low, high - low, "w" if writes else "r"


cdef int keep_memory(Parameters parameters, tuple arguments, Record record) except -1:
    cdef Py_ssize_t index
    cdef Operand memory
    for index, argument in enumerate(arguments):
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, False):
            keep(&memory, None, record)
    return 0


cdef int announce_memory(Parameters parameters, tuple arguments, Stream stream, str call) except -1:
    return watch.note_launch(stream.device_index, stream.handle, call, uses_of(parameters, arguments))


cdef list uses_of(Parameters parameters, tuple arguments):
    cdef list uses = []
    cdef Py_ssize_t index
    cdef Operand memory
    cdef bint writes
    for index, argument in enumerate(arguments):
        writes = parameters.count < 0 or parameters.each[index].writes
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, writes) and memory.nbytes:
            uses.append(span_of(argument, &memory, writes))
    return uses


cdef int follow_producers(Parameters parameters, tuple arguments, Stream stream) except -1:
    cdef Py_ssize_t index
    cdef Operand memory
    for index, argument in enumerate(arguments):
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, False) and memory.producer:
            follow_producer(&memory, stream)
    return 0


cdef int note_memory(Parameters parameters, tuple arguments, Stream stream, bint captured) except -1:
    # Page-locked memory of a captured launch the graph keeps.
    cdef Py_ssize_t index
    cdef Operand memory
    for index, argument in enumerate(arguments):
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, False):
            note_use(&memory, stream, captured, False)
    return 0
