"""Modules of code that are loaded onto a device, and kernels: their arguments and their launches; kernels of the host device
by pointer; and sleep."""
cimport cython
import sys
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.complex cimport PyComplex_ImagAsDouble, PyComplex_RealAsDouble
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyIndex_Check
from cpython.object cimport PyObject, PyObject_IsInstance
from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport UINTPTR_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from accelrt.arrays.array cimport (
    Array, Buffer, check_live, DEVICE_BUFFER, find_bounds, is_held, load_ptr, PinnedBuffer, raise_freed, raise_lost,
    still_has,
)
from accelrt.arrays.copy cimport (
    follow_producer, is_asynchronous, keep, note_use, Operand, read_array, read_interface, read_operand, uses_owner,
)
from accelrt.core.integers cimport checked_address_int, checked_int
from accelrt.core.threads cimport sleep_ns
from accelrt.core.locks cimport WITHOUT_GIL, begin_turn, end_turn
from accelrt.devices.device cimport ordinal_of
from accelrt.driver.guard cimport go_relaxed, restore_mode
from accelrt.driver.registry import driver_name
cimport accelrt.driver.registry as registry
from accelrt.driver.node_params cimport LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, NODE_KERNEL, NodeParams
from accelrt.driver.table cimport LOG_BYTES
from accelrt.runtime import init
from accelrt.runtime.lifetimes cimport (
    AccessDescriptor, MODULE, OTHER_HOST, add_stream, any_capture, dispose, drain, keep_side, keep_until_passed, Record,
    record_on,
)
from accelrt.status cimport (
    INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, raise_status, refuse_copy, refuse_unmade, status_text,
)
from accelrt.status import explain_faults
from accelrt.streams.stream cimport current_of, Stream, stream_for, stream_of
from accelrt.runtime.access cimport Access, begin_use, end_use
cimport accelrt.runtime.access as watch


# stub: _Image = str | os.PathLike[str] | bytes | bytearray | memoryview | SupportsBytes
# stub: PTX: bytes
# stub: def _sleep(cycles: int, stream: Stream | int | None = None) -> None: ...
# stub: _Size = int | Sequence[int]
# stub: _Stream = Stream | int | None

# --- arguments --------------------------------------------------------------------------------------------------------
# What a launch passes is checked against the kernel's parameters and laid out for the driver.
# What a parameter takes is decided once, when the kernel is made: from its signature, and from what the driver tells of
# its size.  A driver before CUDA 12.4 tells nothing; then a value is laid out in 8 or 16 bytes, of which the driver reads
# as many as the kernel's parameter has.

cdef extern from "Python.h":
    int PyFloat_Pack2(double value, char* out, int little) except -1

cdef enum:
    MOST = 4096  # parameters of a kernel


# --- parameters --------------------------------------------------------------------------------------------

cdef class Parameters:
    """The parameters of a kernel."""

    def __cinit__(self):
        self.count = -1
        self.fitting, self.places = {}, {}
        self.unknown.kind, self.unknown.writes = ANY, True
        set_range(&self.unknown)

    def __dealloc__(self):
        free(self.each)

    def __reduce__(self):
        refuse_copy(self, "it describes a kernel of this process")


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
    cdef Parameters parameters = Parameters()
    cdef Py_ssize_t count = ask_count(function), index
    cdef Parameter* parameter
    cdef list parsed = None, pointees = None
    if signature is not None:
        signature = signature if isinstance(signature, str) else list(signature)
        reader = init.later("accelrt.kernels.signature")
        parsed, pointees = reader.parse_signature(signature), reader.parse_pointees(signature)
    parameters.name = name
    parameters.device_index = device_index
    parameters.has_signature = parsed is not None
    if parsed is not None and count >= 0 and len(parsed) != count:
        raise ValueError(f"the signature {signature!r} has {len(parsed)} parameters, kernel {name!r} has {count}")
    parameters.count = count if parsed is None else len(parsed)
    if parameters.count <= 0:
        return parameters
    parameters.each = <Parameter*>calloc(parameters.count, sizeof(Parameter))
    if parameters.each == NULL:
        raise MemoryError("no host memory for a kernel's parameters")
    for index in range(parameters.count):
        parameter = &parameters.each[index]
        parameter.writes = True
        if count >= 0:
            registry.active().function_parameter(function, index, &parameter.offset, &parameter.size)
        if parsed is not None:
            kind, size, parameter.writes = parsed[index]
            if parameter.size and size != parameter.size:
                raise ValueError(
                    f"parameter {index} of the signature {signature!r} has {size} bytes, that of kernel {name!r} has "
                    f"{parameter.size}")
            parameter.kind, parameter.size = kind, size
            parameter.pointee_kind, parameter.pointee = pointees[index]
        set_range(parameter)
    return parameters


cdef str describe(const Parameter* parameter):
    cdef tuple kinds = ("a value", "a pointer", "an integer", "an unsigned integer", "a floating-point number",
                        "a bool", "a complex number", "a struct")
    return f"{kinds[<int>parameter.kind]} of {parameter.size} bytes" if parameter.size else kinds[<int>parameter.kind]


cdef int refuse(Parameters parameters, Py_ssize_t index, str argument, str advice="", object kind=TypeError) except -1:
    # argument describes it, with its bytes.
    cdef Parameter* parameter = &parameters.each[index]
    at = f", at offset {parameter.offset}" if parameter.size else ""
    raise kind(f"argument {index} of kernel {parameters.name!r} is {argument}; the kernel takes {describe(parameter)}{at}"
               + (f"; {advice}" if advice else ""))


cdef int refuse_count(Parameters parameters, Py_ssize_t count) except -1:
    cdef Py_ssize_t index
    cdef size_t total = 0
    for index in range(parameters.count):
        total = max(total, parameters.each[index].offset + parameters.each[index].size)
    raise TypeError(f"kernel {parameters.name!r} takes {parameters.count} arguments, of {total} bytes together; "
                    f"{count} were given")


# --- packing -----------------------------------------------------------------------------------------------

cdef class Room:
    """Memory for the arguments of one launch, and what the pointers to others' bytes keep alive."""

    cdef void* memory
    cdef list keep_alive
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
    # Fills packed, whose pointers are valid as long as the arguments and the answer, which is None unless memory was
    # needed.
    cdef Py_ssize_t count = PyTuple_GET_SIZE(arguments), index
    cdef object room = None
    if parameters.count >= 0 and count != parameters.count:
        refuse_count(parameters, count)
    packed.pointers, packed.values, packed.shared, packed.foreign = packed.room, packed.place, False, False
    packed.ran = False
    if count > INLINE:
        room = make_room(packed, count)
    index = put_plain(parameters, arguments, stream, packed, 0)
    while index < count:
        room = put_slow(parameters, index, arguments[index], packed, stream, room)
        index = put_plain(parameters, arguments, stream, packed, index + 1)
    return room


cdef Py_ssize_t put_plain(Parameters parameters, tuple arguments, uintptr_t stream, Packed* packed,
                          Py_ssize_t index) except -1:
    # From index on, up to the first argument that is neither a plain Array nor a number that fits: answers its index.
    cdef const Parameter* parameter = &parameters.unknown
    cdef Py_ssize_t step = 0, count = PyTuple_GET_SIZE(arguments)
    cdef void** pointer = packed.pointers + index
    cdef Value* value = packed.values + index
    cdef int device = parameters.device_index
    cdef PyObject* argument
    if parameters.count >= 0:
        parameter, step = parameters.each + index, 1
    while index < count:
        argument = <PyObject*>PyTuple_GET_ITEM(arguments, index)
        if type(<object>argument) is Array:
            if not is_plain(device, parameter, <Array>argument):
                break
            if (<Array>argument).stream.handle != stream:
                packed.shared = True
            (<uintptr_t*>value)[0] = (<Array>argument).ptr
        elif not put_number(parameter, <object>argument, <char*>value):
            break
        pointer[0] = value
        parameter, pointer, value, index = parameter + step, pointer + 1, value + 1, index + 1
    return index


cdef int refuse_asleep(Parameters parameters, tuple arguments, const Packed* packed) except -1:
    # Inside the use: what may be an address, that is memory, and ints where the signature says pointer.
    cdef Py_ssize_t index
    for index, argument in enumerate(arguments):
        if isinstance(argument, AccessDescriptor):
            watch.refuse_sleeping((<AccessDescriptor>argument).address, place_of(index, parameters))
            continue
        if isinstance(argument, int):
            if parameters.count < 0 or parameters.each[index].kind != POINTER:
                continue
        elif isinstance(argument, float) or (parameters.count >= 0 and not takes_pointer(&parameters.each[index])):
            continue
        watch.refuse_sleeping((<uintptr_t*>packed.pointers[index])[0], place_of(index, parameters))
    return 0


cdef int look_again(Parameters parameters, tuple arguments, const Packed* packed) except -1:
    # Directly before the use begins (driver/USES.md): whether what was given still has the memory that was packed.
    cdef Py_ssize_t index
    cdef uintptr_t address
    for index in range(PyTuple_GET_SIZE(arguments)):
        argument = <object>PyTuple_GET_ITEM(arguments, index)
        address = (<uintptr_t*>packed.pointers[index])[0]
        if isinstance(argument, AccessDescriptor):
            (<AccessDescriptor>argument).check_open(place_of(index, parameters))
            address, argument = (<AccessDescriptor>argument).address, (<AccessDescriptor>argument).array
        if not still_has(argument, address):
            raise_lost(argument, place_of(index, parameters))
    return 0


cdef inline bint is_plain(int device, const Parameter* parameter, Array array) noexcept:
    # It needs no second look: an Array of the device's that lives, and may be written if the kernel may.
    if not array.live or array.device_index != device or not takes_pointer(parameter):
        return False
    if parameter.pointee > 1 and array.itemsize > 1 and parameter.fitting != <PyObject*>array.dtype:
        return False
    return not array.readonly and (array.owner != DEVICE_BUFFER or is_held(<PyObject*>array.base))


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
    with cython.critical_section(parameters):
        parameters.fitting[index] = array.dtype
        parameter.fitting = <PyObject*>array.dtype
    return 0


cdef int refuse_buffer(Parameters parameters, const Parameter* parameter, Py_ssize_t index, Buffer buffer) except -1:
    if not buffer.live:
        raise_freed(buffer, place_of(index, parameters))
    if not takes_pointer(parameter):
        refuse(parameters, index, "a Buffer, whose address has 8 bytes")
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
    if PyLong_CheckExact(number):
        value = PyLong_AsLongLongAndOverflow(number, &overflow)
        if overflow or not parameter.least <= value <= parameter.most:
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


cdef object put_descriptor(Parameters parameters, const Parameter* parameter, Py_ssize_t index, AccessDescriptor argument,
                           Packed* packed, uintptr_t stream, object room):
    # A TensorMap by value, a texture or a surface by its handle.
    cdef Operand memory
    cdef bint by_handle = argument.held is not None
    argument.check_open(place_of(index, parameters))
    if argument.data is None or parameter.kind != ANY and parameter.kind != (UNSIGNED if by_handle else BYTES):
        refuse(parameters, index, f"a {type(argument).__name__}", argument._parameter)
    if argument.device_index != parameters.device_index:
        refuse_elsewhere(parameters, index, argument.array, argument.device_index)
    packed.shared |= by_handle
    if read_memory(argument, &memory, index, parameters, argument.writes):
        packed.shared |= memory.owned and memory.owner_stream != stream
        packed.foreign |= memory.producer != 0
    return put_bytes(parameters, parameter, index, argument, argument.data, packed, room)


cdef object put_slow(Parameters parameters, Py_ssize_t index, object argument, Packed* packed, uintptr_t stream,
                     object room):  # what put_plain leaves; answers the room, which may be a new one
    cdef const Parameter* parameter = &parameters.unknown if parameters.count < 0 else &parameters.each[index]
    cdef Operand memory
    cdef char* out = <char*>&packed.values[index]
    packed.pointers[index] = out
    if isinstance(argument, Buffer):
        if not is_held(<PyObject*>argument) or (<Buffer>argument).device_index != parameters.device_index or (
                not takes_pointer(parameter)):
            refuse_buffer(parameters, parameter, index, <Buffer>argument)
        packed.shared |= (<Buffer>argument).stream.handle != stream
        (<uintptr_t*>out)[0] = load_ptr(&(<Buffer>argument).ptr)
        return room
    if argument is None and takes_pointer(parameter):
        (<uintptr_t*>out)[0] = 0
        return room
    if type(argument) is int or type(argument) is float or type(argument) is bool:  # which run nobody's code
        put_python_number(parameters, parameter, index, argument, out)
        return room
    packed.ran = True
    if isinstance(argument, AccessDescriptor):
        return put_descriptor(parameters, parameter, index, argument, packed, stream, room)
    if read_memory(argument, &memory, index, parameters, parameter.writes):
        if not takes_pointer(parameter):
            refuse(parameters, index, f"memory ({type(argument).__name__}), whose address has 8 bytes")
        if memory.ordinal >= 0 and memory.ordinal != parameters.device_index:
            refuse_elsewhere(parameters, index, argument, memory.ordinal)
        if isinstance(argument, Array) and parameters.count >= 0:
            check_elements(parameters, index, <Array>argument)
        packed.shared |= memory.ordinal < 0 or memory.owned and memory.owner_stream != stream
        packed.foreign |= memory.producer != 0
        (<uintptr_t*>out)[0] = memory.address
        return room
    if isinstance(argument, (bytes, bytearray)) or is_ctypes(argument):
        return put_bytes(parameters, parameter, index, argument, bytes(argument), packed, room)
    if is_numpy_scalar(argument):
        return put_scalar(parameters, parameter, index, argument, packed, room)
    put_python_number(parameters, parameter, index, argument, out)
    return room


cdef bint is_ctypes(object argument) except -1:
    # Simple values, structures, unions, arrays and pointers: as their bytes lie in memory.
    cdef object types = sys.modules.get("_ctypes")
    if types is None or not PyObject_CheckBuffer(argument):
        return False
    return PyObject_IsInstance(argument, (types._SimpleCData, types.Structure, types.Union, types.Array, types._Pointer))


cdef bint is_numpy_scalar(object argument) except -1:
    cdef object numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(argument, numpy.generic)


cdef object put_bytes(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object argument, bytes data,
                      Packed* packed, object room):
    cdef size_t size = PyBytes_GET_SIZE(data)
    if parameter.size and parameter.size != size:
        refuse(parameters, index, f"a {type(argument).__name__} of {size} bytes")
    if size <= WIDEST:
        memcpy(&packed.values[index], PyBytes_AS_STRING(data), size)
        return room
    if room is None:
        room = Room()
    if (<Room>room).keep_alive is None:
        (<Room>room).keep_alive = []
    (<Room>room).keep_alive.append(data)
    packed.pointers[index] = PyBytes_AS_STRING(data)
    return room


cdef object put_scalar(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object argument,
                       Packed* packed, object room):
    # Where a signature says the type: integers of any size that are in its range, and floats that are not narrowed.
    cdef str letter = argument.dtype.kind
    cdef size_t size = argument.dtype.itemsize
    cdef tuple fitting = ("", "u", "i", "u", "f", "b", "c", "V")
    cdef str kind_letter = fitting[<int>parameter.kind], text = f"a numpy.{argument.dtype} of {size} bytes"
    if letter in "iub" and kind_letter in ("i", "u", "f") and parameter.kind != ANY or (
            letter == kind_letter and letter in "fc" and size < parameter.size):
        put_python_number(parameters, parameter, index, argument.item(), <char*>&packed.values[index])
        return room
    if parameter.kind != ANY and parameter.kind != BYTES and letter not in (kind_letter, "V"):
        refuse(parameters, index, text)
    if parameter.size and parameter.size != size:
        refuse(parameters, index, text, "convert it to the type of the kernel's parameter")
    return put_bytes(parameters, parameter, index, argument, argument.tobytes(), packed, room)


cdef int put_python_number(Parameters parameters, const Parameter* parameter, Py_ssize_t index, object number,
                           char* out) except -1:
    cdef size_t size = parameter.size
    if type(number).__name__ == "ndarray":
        refuse(parameters, index, "a numpy array, in the host's memory", "copy it to a Buffer or an Array")
    if isinstance(number, bool) and (parameter.kind == BOOL or parameter.kind <= UNSIGNED and parameter.kind != POINTER):
        (<uint64_t*>out)[0] = bool(number)
        return 0
    kinds = float if parameter.kind == ANY else (int, float)
    if isinstance(number, kinds) and parameter.kind in (ANY, FLOAT) and put_float(parameter, <double>number, out):
        return 0
    if isinstance(number, (int, float, complex)) and parameter.kind == COMPLEX or (
            isinstance(number, complex) and parameter.kind == ANY and size in (8, 16)):
        return put_complex(size, complex(number), out)
    if PyIndex_Check(number) and not isinstance(number, bool) and parameter.kind <= UNSIGNED:
        return put_integer(parameters, parameter, index, number.__index__(), out)
    if isinstance(number, float) and parameter.kind == ANY:
        refuse(parameters, index, "a float", "say which by numpy.float16, float32 or float64, or a signature")
    return refuse(parameters, index, f"{number!r:.60} of type {type(number).__name__}")


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
        refuse(parameters, index, f"the int {number}", "pass the struct's bytes, or a ctypes.Structure")
    cdef object one = 1  # bits may be more than a C int has
    low = 0 if parameter.kind in (POINTER, UNSIGNED) else -(one << (bits - 1))
    high = (one << (bits - (parameter.kind == SIGNED))) - 1
    if not low <= number <= high:
        refuse(parameters, index, f"the int {number}", f"an int from {low} to {high}", ValueError)
    (<uint64_t*>out)[0] = number & 0xFFFFFFFFFFFFFFFF
    return 0


# --- memory that arguments point at ------------------------------------------------------------------------

cdef str place_of(Py_ssize_t index, Parameters takes):
    return takes.places.get(index) or takes.places.setdefault(index, f"argument {index} of kernel {takes.name!r}")


cdef bint read_memory(object argument, Operand* out, Py_ssize_t index, Parameters parameters, bint writes) except -1:
    # Whether it is memory that accelrt knows by its object; its address is what the kernel gets.
    if isinstance(argument, AccessDescriptor):
        argument = (<AccessDescriptor>argument).array
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
    read_array(out, array, place_of(index, parameters), writes and parameters.has_signature)
    if array.ptr and not is_asynchronous(out):
        raise TypeError(f"{place_of(index, parameters)} is an Array in the host's memory; copy it to a device, or make it "
                        "with pinned_empty")
    return 0


cdef int read_launched_interface(object argument, Operand* out, str name) except -1:
    # Any strides will do; what else the array says is checked as for a copy.
    interface = argument.__cuda_array_interface__
    if isinstance(interface, dict) and interface.get("strides") is not None:
        interface = {**interface, "strides": None}
    out.source, out.ordered = <PyObject*>argument, True
    return read_interface(out, interface, name, False)


cdef tuple span_of(object argument, const Operand* memory, bint writes):
    # For the detector, to which a write is ordered with all that a read is ordered with.
    cdef Py_ssize_t low = 0, high = <Py_ssize_t>memory.nbytes
    if isinstance(argument, Array):
        find_bounds((<Array>argument).ndim, (<Array>argument).extents, (<Array>argument).itemsize, &low, &high)
    return memory.address + low, high - low, "w" if writes else "r"


cdef int keep_memory(Parameters parameters, tuple arguments, Py_ssize_t first, Py_ssize_t end, Record record) except -1:
    cdef Py_ssize_t index
    cdef Operand memory
    for index in range(first, end):
        argument = arguments[index]
        if isinstance(argument, AccessDescriptor):
            (<AccessDescriptor>argument).keep_with(record)
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, False):
            keep(&memory, None, record)
    return 0


cdef list uses_of(Parameters parameters, tuple arguments):
    cdef list uses = []
    cdef Py_ssize_t index
    cdef Operand memory
    cdef bint writes
    for index, argument in enumerate(arguments):
        writes = parameters.count < 0 or parameters.each[index].writes
        if isinstance(argument, AccessDescriptor):
            writes, argument = (<AccessDescriptor>argument).writes, (<AccessDescriptor>argument).array
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, writes) and memory.nbytes:
            uses.append(span_of(argument, &memory, writes))
    return uses


cdef int follow_producers(Parameters parameters, tuple arguments, Stream stream) except -1:
    # Before the launch: it comes behind what the owners of others' arrays put into their streams.
    cdef Py_ssize_t index
    cdef Operand memory
    for index, argument in enumerate(arguments):
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, False) and memory.producer:
            follow_producer(&memory, stream)
    return 0


cdef int note_memory(Parameters parameters, tuple arguments, Stream stream, bint captured) except -1:
    # Before the launch: other streams' memory is not handed out before the kernel is done with it.  A launch that is
    # refused leaves a use too many, which costs a free an event.  Page-locked memory of a captured launch the graph keeps.
    cdef Py_ssize_t index
    cdef Operand memory
    for index, argument in enumerate(arguments):
        if isinstance(argument, AccessDescriptor):
            (<AccessDescriptor>argument).note_stream(stream.handle, None if stream.pooled != NULL else stream)
        if not isinstance(argument, int) and read_memory(argument, &memory, index, parameters, False):
            note_use(&memory, stream, captured, False)
    return 0


# --- launches ---------------------------------------------------------------------------------------------------------
# A launch packs the arguments on the C stack, tells the allocators of memory that belongs to other streams, and calls the
# driver without the GIL, in a use of the arguments (driver/USES.md).  What is rare leaves by functions whose names end in
# _slow or is behind a flag.

cdef enum:
    PERMITTED = 48 << 10  # bytes of shared memory that a block has without being permitted more
    RECENT = 4            # names of launches that an error tells

cdef struct Recent:
    PyObject* name   # a str, and a reference to it
    int device
    uintptr_t stream

# What was launched last, in turn.
cdef Recent[RECENT] recent
cdef unsigned int launches = 0
cdef int recent_lock = 0


cdef inline void note_name(str name, Stream stream) noexcept:
    cdef Recent* last = &recent[(launches - 1) % RECENT]
    if last.name != <PyObject*>name or last.stream != stream.handle or last.device != stream.device_index:
        note_name_slow(name, stream)


cdef void note_name_slow(str name, Stream stream) noexcept:
    global launches
    cdef Recent* entry
    cdef PyObject* before
    Py_INCREF(name)
    begin_turn(&recent_lock)
    entry = &recent[launches % RECENT]
    before = entry.name
    entry.name, entry.device, entry.stream = <PyObject*>name, stream.device_index, stream.handle
    launches += 1
    end_turn(&recent_lock)
    Py_XDECREF(before)


def latest_kernels() -> list[tuple[str, int, int]]:
    """(name, device, handle of the stream) of the kernels that were launched last, the newest first, each once; for
    errors that do not name theirs."""
    cdef Recent[RECENT] latest
    cdef unsigned int back, count
    begin_turn(&recent_lock)
    count = min(launches, <unsigned int>RECENT)
    for back in range(count):
        latest[back] = recent[(launches - 1 - back) % RECENT]
        Py_INCREF(<object>latest[back].name)
    end_turn(&recent_lock)
    names = [(<object>latest[back].name, latest[back].device, latest[back].stream) for back in range(count)]
    for back in range(count):
        Py_DECREF(<object>latest[back].name)
    return list(dict.fromkeys(names))


def name_suspects() -> str:
    """Returns what an error says of the kernels that may have caused it, and of what is left: text to append."""
    names = ", ".join([f"{name!r} on device {device}, stream {stream:#x}" for name, device, stream in latest_kernels()])
    text = f"; the kernels launched last, the newest first: {names}" if names else ""
    return f"{text}; what was on the device is lost, and every call of it fails alike: host memory, page-locked too, can " \
           "still be read, and other devices go on"


explain_faults(name_suspects)


# --- what a launch is given --------------------------------------------------------------------------------

cdef inline bint read_length(object value, unsigned int* out) noexcept:
    cdef int overflow = 0
    cdef long length
    if not PyLong_CheckExact(value):
        return False
    length = PyLong_AsLongAndOverflow(value, &overflow)
    out[0] = <unsigned int>length
    return 0 < length <= 0xFFFFFFFF and not overflow


cdef int read_dimensions(object value, str name, unsigned int* out) except -1:
    out[0] = out[1] = out[2] = 1
    if read_length(value, &out[0]):
        return 0
    return read_dimensions_slow(value, name, out)


cdef int read_dimensions_slow(object value, str name, unsigned int* out) except -1:
    cdef Py_ssize_t index
    value = tuple(value) if isinstance(value, (tuple, list)) else (value,)  # its __index__ could lengthen a list
    if not 1 <= len(value) <= 3:
        raise ValueError(f"{name} is {value!r}; pass an int, or one to three of them")
    for index, length in enumerate(value):
        number = checked_int(length, f"{name}[{index}]", 1, 0xFFFFFFFF, "an int, or one to three of them")
        out[index] = <unsigned int>number
    return 0


cdef tuple triple_of(object value, str name):
    cdef unsigned int[3] lengths
    read_dimensions(value, name, lengths)
    return triple(lengths)


cdef unsigned int read_shared(object shared) except? 0:
    return checked_int(shared, "shared", 0, 0xFFFFFFFF, "bytes of dynamic shared memory as int")


# --- kernels -----------------------------------------------------------------------------------------------


@cython.no_gc_clear  # the destructor needs owner until the module is unloaded
cdef class Loaded:
    """A module of the driver's."""

    def __dealloc__(self):
        if self.handle:
            dispose(MODULE, self.device_index, self.handle)

    def __reduce__(self):
        refuse_copy(self, "it owns a module of the driver's; load the image again")


cdef Kernel make_kernel(Loaded loaded, uintptr_t handle, int device_index, str name, object signature):
    cdef Kernel kernel = Kernel.__new__(Kernel)
    kernel.name = name
    kernel.device_index = device_index
    kernel.loaded = loaded
    kernel.takes = make_parameters(handle, name, device_index, signature)
    kernel.most_shared = PERMITTED
    kernel.last_stream = UINTPTR_MAX
    kernel.handle = handle
    if loaded.handle:
        init.later("accelrt.kernels.foreign").loaded_by_function[handle] = loaded
    return kernel


@cython.no_gc_clear  # the destructor keeps the module until the launches are past
cdef class Kernel:
    """Kernel()\n--\n\n\
    A function that a device runs, made by Module.function, host_kernel or from_handle.

        kernel = module.function("saxpy", "float a, const float* x, float* y, int n")
        kernel[blocks, threads](2.0, x, y, n)
        kernel[blocks, threads, stream, shared_bytes](2.0, x, y, n)
        kernel.launch((8, 8), (16, 16), (2.0, x, y, n), cluster=2)

    Arguments of a launch are Buffers, Arrays, PinnedBuffers and objects with __cuda_array_interface__, of which the
    kernel gets the address; None, a NULL pointer; ints, floats, bools and complex numbers; numpy's scalars, ctypes'
    values and structures, and bytes, as they lie in memory.  An int is laid out as the parameter's size says.  A float
    needs a signature, or a driver that tells the parameter's size (CUDA 12.4), as does nothing else.

    Attributes:
        handle: int, the driver's (CUfunction).
        name: str.
        device_index: int, the device's ordinal.

    Memory of other streams is not handed out before the kernel is done with it, and what a captured launch uses, the
    graph keeps alive.  The module stays loaded as long as the kernel, a graph or a launch needs it.
    """

    def __init__(self) -> None:
        raise TypeError("a Kernel is made by Module.function(), host_kernel() or Kernel.from_handle()")

    def __dealloc__(self):
        if self.launched_on is not None and self.loaded is not None:
            for handle in self.launched_on:
                keep_until_passed(self.device_index, handle, self.loaded)

    def __reduce__(self):
        refuse_copy(self, "it belongs to a module that is loaded in this process; load that again")

    cdef int require_made(self) except -1:
        return 0 if self.handle else refuse_unmade(self)

    @staticmethod
    def from_handle(
        handle: SupportsInt, signature: str | Iterable[str] | None = None, *, device: DeviceArgument | None = None,
        str name=None, owner: object = None,
    ) -> Kernel:
        """Returns a kernel that another library loaded, for accelrt to launch.

        Arguments:
            handle: int or an object with __int__, the driver's function (CUfunction); or a CUkernel of cuda.bindings.
            signature: as of Module.function.
            device: as of Module, the one that it was loaded on.
            name: str, for errors and graphs; None is what the driver calls it.
            owner: object that keeps the code loaded; None keeps handle, or the Module of accelrt's that has the function.
        Raises:
            ValueError, TypeError: the driver tells that it knows no such function; or the signature does not fit.
            NotSupportedError: a CUkernel, where there are none.
            CudaError: the driver refused to tell.
        """
        cdef Loaded loaded
        cdef int ordinal = ordinal_of(device)
        foreign = init.later("accelrt.kernels.foreign")
        function, known_name = foreign.find_function(handle, ordinal)
        loaded = foreign.loaded_by_function.get(function) or Loaded.__new__(Loaded)
        if not loaded.handle:
            loaded.device_index, loaded.owner = ordinal, handle if owner is None else owner
        return make_kernel(loaded, function, loaded.device_index, name or known_name, signature)

    def __getitem__(
        self, sizes: tuple[_Size, _Size] | tuple[_Size, _Size, _Stream] | tuple[_Size, _Size, _Stream, int],
    ) -> Launcher:
        """kernel[grid, block], kernel[grid, block, stream] or kernel[grid, block, stream, shared]: a Launcher.

        Arguments:
            grid: int, or one to three ints, blocks.
            block: the same, threads.
            stream: Stream, handle as int, or None for the current stream of each call.
            shared: int, bytes of dynamic shared memory for a block.
        Raises:
            ValueError, TypeError: one is out of range or of the wrong kind, or the stream is on another device.
        """
        cdef Launcher launcher
        self.require_made()
        if not isinstance(sizes, tuple) or not 2 <= len(sizes) <= 4:
            raise TypeError(f"kernel {self.name!r} takes [grid, block], [grid, block, stream] or [grid, block, stream, "
                            f"shared]; {sizes!r} was given")
        launcher = Launcher.__new__(Launcher)
        launcher.kernel = self
        read_dimensions((<tuple>sizes)[0], "grid", launcher.size.grid)
        read_dimensions((<tuple>sizes)[1], "block", launcher.size.block)
        if len(sizes) > 2 and (<tuple>sizes)[2] is not None:
            launcher.chosen = self.stream_from((<tuple>sizes)[2])
        if len(sizes) > 3:
            launcher.size.shared = read_shared((<tuple>sizes)[3])
        return launcher

    def launch(
        self, grid: _Size, block: _Size, args: Sequence[object] = (), *, stream: _Stream = None, shared: int = 0,
        bint cooperative=False, cluster: _Size | None = None, bint programmatic=False,
    ) -> None:
        """Puts the kernel into a stream (cuLaunchKernelEx).

        Arguments:
            grid: int, or one to three ints, blocks.
            block: the same, threads of a block.
            args: a tuple or list of arguments.
            stream: Stream, handle as int, or None for the current stream of the kernel's device.
            shared: int, bytes of dynamic shared memory for a block; above 48 KiB the kernel is permitted more, once.
            cooperative: bool, all blocks run at once, so that they may wait for each other.
            cluster: int, or one to three ints, blocks of a cluster, which divide the grid (compute capability 9.0); for
                more than 8 of them the kernel is permitted more, once.
            programmatic: bool, the kernel may begin before the one before it in the stream has ended, where that one
                allows it, and waits for it by itself (cudaGridDependencySynchronize; compute capability 9.0).
        Raises:
            TypeError: a wrong number of arguments, or one of a kind that its parameter does not take; the text names
                the argument's index.
            ValueError: a number out of range, memory that was freed or is on another device, or a stream that is.
            CudaError: the driver refused; the text says which limit was passed.
            RaceError: the race detector is on, and nothing orders the launch with earlier work on its memory.

        On the host device blocks may run at the same time, whatever is asked for here, and none may wait for another.
        """
        cdef Dimensions size
        cdef Extras extras
        self.require_made()
        memset(&extras, 0, sizeof(Extras))
        read_dimensions(grid, "grid", size.grid)
        read_dimensions(block, "block", size.block)
        size.shared = read_shared(shared)
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"args is {args!r:.60} of type {type(args).__name__}; pass a tuple of arguments")
        extras.flags = LAUNCH_COOPERATIVE * cooperative | LAUNCH_PROGRAMMATIC * programmatic
        if cluster is not None:
            read_dimensions(cluster, "cluster", extras.cluster)
            if extras.cluster[0] * <unsigned long long>extras.cluster[1] * extras.cluster[2] > PORTABLE_CLUSTER:
                init.later("accelrt.kernels.attributes").permit_wide_clusters(self)
        self.launch_on(&size, &extras if extras.flags or extras.cluster[0] else NULL, self.stream_from(stream), tuple(args))

    cdef Stream stream_from(self, object stream):
        cdef Stream order = stream_of(stream, self.device_index)
        return order if order.device_index == self.device_index else stream_for(
            order, self.device_index, f"kernel {self.name!r}")

    cdef int launch_on(self, const Dimensions* size, const Extras* extras, Stream stream, tuple arguments) except -1:
        cdef Packed packed
        cdef Access access
        cdef object _room = pack(self.takes, arguments, stream.handle, &packed)
        cdef int code
        if stream.handle != self.last_stream:
            self.note_stream(stream)
        if packed.ran or packed.shared or size.shared > self.most_shared or watch.detects_races() or any_capture():
            self.prepare_slow(&packed, size.shared, stream, arguments)
        begin_use(&access, uses_owner, <PyObject*>arguments)
        if WITHOUT_GIL or watch.any_sleeps():
            self.end_refused(&access, &packed, arguments)
        with nogil:  # a full queue may wait for a function of Python's
            code = put_in(self, size, extras, stream.handle, packed.pointers)
        end_use(&access)
        if code:
            self.raise_refused(code, size, stream)
        note_name(self.name, stream)
        return 0

    cdef int prepare_slow(self, Packed* packed, unsigned int shared, Stream stream, tuple arguments) except -1:
        # Everything that may give up the GIL, or run code of the caller's.  What the launch uses is noted before it, so that
        # a free in another thread meanwhile waits for it.
        cdef Record record = None
        if shared > self.most_shared:
            self.permit_shared(shared)
        if packed.foreign:
            follow_producers(self.takes, arguments, stream)
        if any_capture():
            record = record_on(stream.device_index, stream.handle)
            if record is not None:
                self.keep_with(record, arguments)
        if watch.detects_races():
            watch.note_work(stream.device_index, stream.handle, self.name, uses_of(self.takes, arguments))
        if packed.shared:
            note_memory(self.takes, arguments, stream, record is not None)
        return look_again(self.takes, arguments, packed)

    cdef int end_refused(self, Access* access, Packed* packed, tuple arguments) except -1:
        # Without a GIL the memory may have been freed until the use began.
        try:
            if WITHOUT_GIL:
                look_again(self.takes, arguments, packed)
            if watch.any_sleeps():
                refuse_asleep(self.takes, arguments, packed)
        except BaseException:
            end_use(access)
            raise
        return 0

    cdef int keep_with(self, Record record, tuple arguments) except -1:
        # The kernel as others' memory: no allocator of accelrt knows of it, so it stays until replays are past.
        keep_side(record, <PyObject*>self, None, OTHER_HOST, self.handle)
        return keep_memory(self.takes, arguments, 0, len(arguments), record)

    cdef object describe_node(self, const Dimensions* size, tuple arguments, Packed* packed, NodeParams* out_params):
        cdef object room = pack(self.takes, arguments, UINTPTR_MAX, packed)
        if watch.any_sleeps():
            refuse_asleep(self.takes, arguments, packed)
        if size.shared > self.most_shared:
            self.permit_shared(size.shared)
        memset(out_params, 0, sizeof(NodeParams))
        out_params.type, out_params.function = NODE_KERNEL, self.handle
        out_params.grid, out_params.block = size.grid, size.block
        out_params.shared_bytes, out_params.arguments = size.shared, packed.pointers
        return room

    cdef int check_arguments(self, tuple arguments, const Packed* packed) except -1:
        return look_again(self.takes, arguments, packed)

    cdef int raise_unchanged(self, int code, uintptr_t exec_, uintptr_t node, const Dimensions* size) except -1:
        raise_status(code, "graph_node_set", ("graph_exec", exec_, "node", node, "kernel", self.name, "grid",
                     triple(size.grid), "block", triple(size.block), "shared", size.shared), explain(self, code, size))
        return 0

    @cython.critical_section
    cdef int note_stream(self, Stream stream) except -1:
        # The kernel may die, and its module with it, while a launch is under way.
        self.launched_on = add_stream(self.launched_on, stream.handle, None if stream.pooled != NULL else stream)
        self.last_stream = stream.handle
        return 0

    cdef int permit_shared(self, unsigned int shared) except -1:
        init.later("accelrt.kernels.attributes").permit_shared(self, shared)
        self.most_shared = shared
        return 0

    cdef int raise_refused(self, int code, const Dimensions* size, Stream stream) except -1:
        grid, block = triple(size.grid), triple(size.block)
        raise_status(code, "kernel_launch", (
            "kernel", self.name, "grid", grid, "block", block, "shared", size.shared, "device", self.device_index,
            "stream", stream.handle), explain(self, code, size))
        return 0

    @property
    def parameters(self) -> tuple[int, ...] | None:
        """Bytes of each parameter, as a tuple of ints; None where neither a signature nor the driver tells."""
        self.require_made()
        if self.takes.count < 0:
            return None
        return tuple([self.takes.each[index].size for index in range(self.takes.count)])

    @property
    def parameter_offsets(self) -> tuple[int, ...] | None:
        """Offsets of the parameters in bytes, as a tuple of ints; None as for `parameters`."""
        self.require_made()
        if self.takes.count < 0:
            return None
        return tuple([self.takes.each[index].offset for index in range(self.takes.count)])

    @property
    def attributes(self) -> KernelAttributes:
        """Its figures, and what was set of it, as KernelAttributes (cuFuncGetAttribute)."""
        self.require_made()
        return init.later("accelrt.kernels.attributes").read(self)

    def set_attributes(
        self, *, max_dynamic_shared_size_bytes: int | None = None, preferred_shared_memory_carveout: int | None = None,
        non_portable_cluster_size_allowed: bool | None = None, cluster_scheduling_policy_preference: int | None = None,
    ) -> None:
        """Sets what the driver heeds when it launches the kernel (cuFuncSetAttribute); None leaves one as it is.

        Arguments:
            max_dynamic_shared_size_bytes: int, dynamic shared memory that a launch may ask for; launches that ask for
                more than 48 KiB raise it by themselves.
            preferred_shared_memory_carveout: int, percent of a multiprocessor's memory that is to be shared memory, of
                what it divides between that and its L1 cache; -1 leaves it to the driver.
            non_portable_cluster_size_allowed: bool, clusters of more than 8 blocks, which launches of such permit by
                themselves.
            cluster_scheduling_policy_preference: int, 0 for the driver's choice, 1 to spread the blocks of a cluster
                over the multiprocessors, 2 to balance their load.
        Raises:
            ValueError, TypeError: one is no int, or out of range.
            CudaError: the driver refused; those named before it are set.
        """
        self.require_made()
        shared = init.later("accelrt.kernels.attributes").write(
            self, max_dynamic_shared_size_bytes, preferred_shared_memory_carveout, non_portable_cluster_size_allowed,
            cluster_scheduling_policy_preference)
        if shared is not None:
            self.most_shared = max(<unsigned int>shared, <unsigned int>PERMITTED)

    def occupancy(self, block: _Size, shared: int = 0) -> int:
        """Returns how many blocks a multiprocessor holds at a time (cuOccupancyMaxActiveBlocksPerMultiprocessor).

        Arguments:
            block: int, or one to three ints, threads of a block.
            shared: int, bytes of dynamic shared memory for a block.
        Raises:
            ValueError, TypeError: a size is no int, or out of range.
        """
        return self.ask("blocks", (triple_of(block, "block"), read_shared(shared)))

    def available_dynamic_shared_memory(self, blocks: int, block: _Size) -> int:
        """Returns the bytes of dynamic shared memory that a block may have, if a multiprocessor is to hold so many at a
        time (cuOccupancyAvailableDynamicSMemPerBlock).

        Arguments:
            blocks: int, of a multiprocessor.
            block: int, or one to three ints, threads of a block.
        Raises:
            ValueError, TypeError: a size is no int, or out of range.
            CudaError: it never holds so many.
        """
        return self.ask("available_shared", (blocks, triple_of(block, "block")))

    def max_potential_block_size(self, shared: int | Callable[[int], int] = 0, limit: int = 0) -> tuple[int, int]:
        """Returns the block that fills the device best, and the blocks of it that do (cuOccupancyMaxPotentialBlockSize).

        Arguments:
            shared: int, bytes of dynamic shared memory for a block; or a function that tells them for its threads.
            limit: int, threads that a block has at most; 0 is as many as the kernel takes.
        Returns:
            (blocks of the smallest grid that fills the device, threads of a block).
        """
        return self.ask("best_block", (shared if callable(shared) else read_shared(shared), limit))

    def max_active_clusters(self, grid: _Size, block: _Size, cluster: _Size, shared: int = 0) -> int:
        """Returns how many clusters the device holds at a time (cuOccupancyMaxActiveClusters).

        Arguments:
            grid, block, cluster, shared: as launch takes them.
        Raises:
            ValueError, TypeError: a size is no int, or out of range.
        """
        lengths = [*triple_of(grid, "grid"), *triple_of(block, "block"), read_shared(shared), *triple_of(cluster, "cluster")]
        return self.ask("clusters", lengths)

    def max_potential_cluster_size(self, grid: _Size, block: _Size, shared: int = 0) -> int:
        """Returns how many blocks the largest cluster of a launch has (cuOccupancyMaxPotentialClusterSize): up to 8, or
        where the attribute non_portable_cluster_size_allowed is set, as many as the device can.

        Arguments:
            grid, block, shared: as launch takes them.
        Raises:
            ValueError, TypeError: a size is no int, or out of range.
        """
        return self.ask("cluster_size", [*triple_of(grid, "grid"), *triple_of(block, "block"), read_shared(shared)])

    cdef object ask(self, str question, object sizes):
        self.require_made()
        return getattr(init.later("accelrt.kernels.occupancy"), question)(self, *sizes)

    def __repr__(self):
        if not self.handle:
            return "<accelrt.Kernel not made>"
        return f"<accelrt.Kernel {self.name!r} on device {self.device_index}>"


cdef object explain(Kernel kernel, int code, const Dimensions* size):
    # What an INVALID_VALUE of a launch means, as far as the limits say.
    if code != INVALID_VALUE:
        return ""
    return init.later("accelrt.kernels.limits").explain_refusal(
        kernel, triple(size.grid), triple(size.block), size.shared)


cdef inline int put_in(
    Kernel kernel, const Dimensions* size, const Extras* extras, uintptr_t stream, void** arguments
) noexcept nogil:
    if extras != NULL:
        return registry.active().kernel_launch_with(
            kernel.device_index, stream, kernel.handle, size.grid[0], size.grid[1], size.grid[2], size.block[0],
            size.block[1], size.block[2], size.shared, arguments, extras.flags, extras.cluster[0], extras.cluster[1],
            extras.cluster[2])
    return registry.active().kernel_launch(
        kernel.device_index, stream, kernel.handle, size.grid[0], size.grid[1], size.grid[2], size.block[0],
        size.block[1], size.block[2], size.shared, arguments)


@cython.freelist(16)
cdef class Launcher:
    """Launcher()\n--\n\n\
    A kernel with the size of its launches, made by Kernel[grid, block].  Calling it launches; it may be kept, and
    called by several threads.

    Attributes:
        kernel: Kernel.
    """

    def __init__(self) -> None:
        raise TypeError("a Launcher is made by kernel[grid, block]")

    def __reduce__(self):
        refuse_copy(self, "it belongs to a module that is loaded in this process; load that again")

    def __call__(self, *args: object) -> None:
        """Puts the kernel into the stream; see Kernel.launch for what it raises.

        Arguments:
            args: the kernel's arguments.
        """
        cdef Kernel kernel = self.kernel
        if kernel is None:
            refuse_unmade(self)
        kernel.launch_on(&self.size, NULL, self.chosen if self.chosen is not None else current_of(kernel.device_index), args)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks, (x, y, z)."""
        return triple(self.size.grid)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block, (x, y, z)."""
        return triple(self.size.block)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory for a block."""
        return self.size.shared

    @property
    def stream(self) -> Stream | None:
        """The Stream that it launches on, or None for the current one of each call."""
        return self.chosen

    def __repr__(self):
        name = None if self.kernel is None else self.kernel.name
        return f"<accelrt.Launcher of {name!r}, grid {self.grid}, block {self.block}>"


# --- modules ----------------------------------------------------------------------------------------------------------

cdef enum:
    NO_BINARY_FOR_GPU = 209        # codes of module_load
    INVALID_PTX = 218
    UNSUPPORTED_PTX_VERSION = 222
    INVALID_SOURCE = 300

cdef inline bint is_of_image(int code) noexcept nogil:
    # Whether the image is at fault: to load it again costs nothing but time.
    return code in (INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION, INVALID_SOURCE)


cdef Loaded load(int ordinal, bytes image, str what):
    # Refused beside a capture, which it would break, unless the caller is relaxed.
    cdef Loaded loaded = Loaded.__new__(Loaded)
    cdef const char* data = image
    cdef uintptr_t module = 0
    cdef char[LOG_BYTES] log
    cdef int mode, code = go_relaxed(registry.active(), &mode)
    log[0] = 0
    if code == 0:
        with nogil:
            code = registry.active().module_load(ordinal, data, &module)
            if is_of_image(code):
                registry.active().module_log(ordinal, data, log)
        restore_mode(registry.active(), mode)
    if code:
        raise_status(code, "module_load", ("device", ordinal, "image", what), init.later(
            "accelrt.kernels.diagnostics").refusal_text(status_text(code).decode(), log.decode(errors="replace")))
    loaded.device_index, loaded.handle = ordinal, module
    return loaded


cdef uintptr_t function_of(Loaded loaded, str name, tuple contents) except 0:  # contents: a Module's (image, names), or ()
    cdef str meaning = ""
    cdef uintptr_t function = 0
    cdef bytes encoded = name.encode()
    cdef const char* text = encoded
    cdef int code
    if b"\0" in encoded or not encoded:
        raise ValueError(f"name is {name!r}; pass the name of a kernel")
    with nogil:
        code = registry.active().module_function(loaded.handle, text, &function)
    if code == NOT_FOUND and contents:
        meaning = init.later("accelrt.kernels.diagnostics").no_kernel_text(driver_name() == "cuda", name, *contents)
    if code:
        raise_status(code, "module_function", ("name", name), meaning)
    return function


cdef tuple find_global(Loaded loaded, str name, str called):
    # (address, bytes) of a variable.
    cdef bytes encoded = name.encode()
    cdef const char* text = encoded
    cdef uintptr_t address = 0
    cdef size_t size = 0
    cdef int code
    with nogil:
        code = registry.active().module_global(loaded.handle, text, &address, &size)
    if code:
        raise_status(code, "module_global", ("name", called))
    return address, size


cdef class Module:
    """Module(image, device=None)\n--\n\n\
    Code that is loaded onto a device.

        with accelrt.Module("kernels.cubin") as module:
            saxpy = module.function("saxpy", "float a, const float* x, float* y, int n")

    Arguments:
        image: str or os.PathLike, a file; or bytes; or what compile_image returns.  On a GPU it is PTX, a cubin or a
            fatbin; on the host device a shared object (docs/guide/kernels.md says what it exports).
        device: int, "cuda:1", an object with an index; None is the current device.
    Raises:
        CudaError: the driver cannot load it.
        OSError: the file cannot be read.
        ValueError, TypeError: the image is damaged, or is none.
    Attributes:
        device_index: int, the device's ordinal.

    The code stays loaded as long as the module, one of its kernels, a graph or a launch under way needs it.
    """

    cdef Loaded loaded               # None before __init__ and after unload
    cdef readonly int device_index
    cdef dict names                  # what a compiler calls them -> what the driver does
    cdef object image                # as it was given, for errors that name its kernels
    cdef object __weakref__

    def __init__(self, image: _Image, device: DeviceArgument | None = None) -> None:
        if self.loaded is not None:
            raise RuntimeError("a Module is initialised once")
        ordinal = ordinal_of(device)
        data, title = init.later("accelrt.kernels.image").read_image(image)
        loaded = load(ordinal, data, title)
        self.names, self.image = dict(getattr(image, "names", None) or {}), image
        self.device_index = ordinal
        self.loaded = loaded

    @classmethod
    def load(cls, image: _Image, device: DeviceArgument | None = None) -> Module:
        """Makes Module(image, device), by the name that other libraries have for it.  Arguments, Raises: as Module."""
        return cls(image, device)

    def __getattr__(self, str name):
        init.later("accelrt.kernels.diagnostics").refuse_attribute(self, name, self.image, self.names or {})

    def __reduce__(self):
        refuse_copy(self, "it is loaded in this process; load the image again")

    cdef Loaded held(self):
        if self.loaded is None:
            if self.names is None:
                refuse_unmade(self)
            raise ValueError("this Module was unloaded; load the image again")
        return self.loaded

    def function(self, str name, signature: str | Iterable[str] | None = None) -> Kernel:
        """Returns a kernel of the module.

        Arguments:
            name: str, as the driver knows it, or a name expression that it was compiled with.
            signature: str, "const float* x, float* y, int n", or an iterable of one text for each parameter (see
                parse_signature).  It decides how arguments are converted, is checked against what the driver tells of
                the parameters, and tells the race detector which memory is read only.  Without one, numbers are laid
                out by the parameters' sizes, and all memory counts as written.
        Returns:
            Kernel.
        Raises:
            CudaError: the module has no such kernel.
            ValueError, TypeError: the signature does not fit the kernel, or is none; or the module was unloaded.
        """
        cdef Loaded loaded = self.held()
        exported = str(self.names.get(name, name))
        handle = function_of(loaded, exported, (self.image, self.names))
        return make_kernel(loaded, handle, self.device_index, name, signature)

    def global_address(self, str name) -> tuple[int, int]:
        """Finds a __device__ or __constant__ variable of the module (cuModuleGetGlobal).

        Arguments:
            name: str, as in the source, or as the compiler mangles it.
        Returns:
            (address as int, bytes).
        Raises:
            CudaError: the module has no such variable.
            ValueError: the module was unloaded.
        """
        cdef Loaded loaded = self.held()
        return find_global(loaded, str(self.names.get(name, name)), name)

    def unload(self) -> None:
        """Gives the module up: its kernels go on to work, and the code goes when the last of them, and what was
        launched and captured of it, is gone.  Unloading it again does nothing."""
        self.loaded = self.image = None
        drain()

    def __enter__(self) -> Module:
        self.held()
        return self

    def __exit__(self, *exc) -> None:
        self.unload()

    def __repr__(self):
        if self.loaded is None:
            return "<accelrt.Module not loaded>"
        return f"<accelrt.Module on device {self.device_index}, {self.loaded.handle:#x}>"


# --- kernels of the host device by pointer -----------------------------------------------------------------

cdef uintptr_t address_of(object function) except 0:
    # An address as int, or a function of ctypes, cffi, numba's cfunc, or Cython (a capsule of __pyx_capi__).
    cdef object address = None
    ctypes, cffi = sys.modules.get("ctypes"), sys.modules.get("_cffi_backend")
    if PyCapsule_CheckExact(function):
        return <uintptr_t>PyCapsule_GetPointer(function, PyCapsule_GetName(function))
    if ctypes is not None and isinstance(function, ctypes._CFuncPtr):
        address = ctypes.cast(function, ctypes.c_void_p).value
    elif cffi is not None and isinstance(function, cffi._CDataBase):
        address = int(cffi.cast(cffi.new_primitive_type("uintptr_t"), function))
    elif isinstance(getattr(function, "address", None), int):  # numba's
        address = function.address
    else:
        address = checked_address_int(function, "function")
    if not address:
        raise ValueError("function is a NULL pointer; pass the address of a function")
    return <uintptr_t>address


cdef Loaded register(object function, uintptr_t address, str name, object signature, int ordinal):
    # A module of one function.
    cdef list parsed = init.later("accelrt.kernels.signature").parse_signature(signature)
    cdef Loaded loaded = Loaded.__new__(Loaded)
    cdef uintptr_t module = 0
    cdef bytes text = name.encode()
    cdef const char* encoded = text
    cdef size_t* sizes = <size_t*>calloc(len(parsed) + 1, sizeof(size_t))
    cdef int code
    if sizes == NULL:
        raise MemoryError("no host memory for a kernel's parameters")
    for index, (_, size, _) in enumerate(parsed):
        sizes[index] = size
    code = registry.active().module_register(ordinal, address, encoded, len(parsed), sizes, &module)
    free(sizes)
    if code:
        raise_status(code, "module_register", ("device", ordinal, "function", address, "signature", signature),
                     "" if driver_name() == "host" else "a function of the host is a kernel of the host device only")
    loaded.device_index, loaded.handle, loaded.owner = ordinal, module, function
    return loaded


cdef object wrap_plain(object function, uintptr_t address, str name, object signature, int ordinal):
    # A kernel that calls a function of C, which knows nothing of blocks: code of its own for each function.
    cdef uintptr_t target
    cdef Loaded loaded
    functions = init.later("accelrt.kernels.host_functions")
    called, image = functions.compile_call(name, signature)
    loaded = load(ordinal, bytes(image), f"a call of {name}")
    target, _ = find_global(loaded, functions.TARGET, functions.TARGET)
    (<uintptr_t*>target)[0] = address
    loaded.owner = function
    return make_kernel(loaded, function_of(loaded, called, ()), ordinal, name, signature)


def host_kernel(
    function: object, signature: str | Iterable[str], *, str name=None, device: DeviceArgument | None = None,
) -> Kernel:
    """Returns a kernel of the host device that is a C function of this process, or the text of one.

        @numba.cfunc(types.void(types.voidptr, types.CPointer(types.voidptr)))
        def saxpy(where, arguments): ...
        kernel = accelrt.host_kernel(saxpy, "float, const float*, float*, int")

    Arguments:
        function: void (*)(const accelrt_block *where, void **arguments), called once for each block (the declaration is
            in docs/guide/kernels.md): an address as int, a function of ctypes or cffi, numba's cfunc, or a capsule
            of a Cython module's __pyx_capi__.  It is kept alive as long as a launch or a graph needs it.  One whose types
            say that it takes the signature's parameters instead is called with their values, once for each block, too.
            An address tells no types: it has to be of a function that takes a block.
            Or a str, the text of such a function in C or C++, which has CUDA's device functions.
        signature: the parameters; see Module.function.  It has to be given, since nothing else tells their sizes.
        name: str, for errors and graphs; None is the function's own.  Of a text, which of its functions it is.
        device: as of Module.
    Returns:
        Kernel.
    Raises:
        NotSupportedError: the device is no host device.
        CompileError, CompilerNotFoundError: of a text, and of a function that takes the signature's parameters.
        ValueError, TypeError: the function is none, its types fit neither way or are not known, or the signature.

    It runs on a thread of the device's, and may not call the driver.  A function of ctypes that runs Python takes the
    GIL, and is not called after the interpreter's exit began.
    """
    cdef uintptr_t address = 0
    cdef Loaded loaded
    cdef int ordinal
    if signature is None:
        raise TypeError("signature is None; a host kernel needs one, such as 'const float*, float*, int'")
    if not isinstance(signature, str):
        signature = list(signature)
    count = len(init.later("accelrt.kernels.signature").parse_signature(signature))
    functions = init.later("accelrt.kernels.host_functions")
    if isinstance(function, str):
        ordinal = ordinal_of(device)
        called, image = functions.compile_text(function, signature, name)
        loaded = load(ordinal, bytes(image), f"the text of {called}")
        return make_kernel(loaded, function_of(loaded, called, ()), ordinal, called, signature)
    address = address_of(function)
    for_blocks = functions.is_called_for_blocks(function, count)
    ordinal = ordinal_of(device)
    if name is None:
        name = str(getattr(function, "__name__", None) or f"function at {address:#x}")
    if not for_blocks:
        return wrap_plain(function, address, name, signature, ordinal)
    loaded = register(function, address, name, signature, ordinal)
    return make_kernel(loaded, function_of(loaded, name, ()), ordinal, name, signature)


# --- sleep: a kernel that takes a given time -----------------------------------------------------------------

PTX = b"""
.version 6.4
.target sm_50
.address_size 64
.visible .entry accelrt_sleep (.param .u64 given) {
    .reg .pred %more; .reg .u64 %cycles, %start, %now;
    ld.param.u64 %cycles, [given];
    mov.u64 %start, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %cycles;
    @%more bra again;
    ret;
}
"""
cdef dict kernels = {}  # by ordinal


cdef void sleep_block(const void* where, void** arguments) noexcept nogil:
    sleep_ns((<int64_t*>arguments[0])[0])


def forget_kernels() -> None:
    """Unloads what sleep loaded; it is loaded again when it is needed."""
    kernels.clear()


cdef Kernel kernel_for(int ordinal):
    kernel = kernels.get(ordinal)
    if kernel is None:
        if driver_name() == "cuda":
            kernel = Module(PTX, ordinal).function("accelrt_sleep", "int64_t cycles")
        else:
            kernel = host_kernel(<size_t>&sleep_block, "int64_t cycles", name="accelrt_sleep", device=ordinal)
        kernel = kernels.setdefault(ordinal, kernel)
    return kernel


def sleep(cycles: int, stream: Stream | int | None = None) -> None:
    """Puts a kernel into a stream that takes so many cycles of the device's clock (torch.cuda._sleep).

    Arguments:
        cycles: int, of a multiprocessor's clock, which runs at 1 to 2 GHz; on the host device a cycle is a nanosecond.
        stream: Stream, handle as int, or None for the current stream of the current device.
    Raises:
        ValueError, TypeError: cycles is negative or no int, or the stream is none.
        CudaError: the driver refused.
    """
    cdef Stream chosen
    number = checked_int(cycles, "cycles", 0, (1 << 63) - 1, "cycles of the device's clock as int")
    chosen = stream_of(stream, ordinal_of(None))
    kernel_for(chosen.device_index).launch(1, 1, (number,), stream=chosen)


_sleep = sleep  # by torch.cuda's name
