"""Elementwise kernels: a line of C for one element, computed for every element of arrays.

What a call needs to know of its types, shapes and strides is decided once (elementwise_plan.py), and found again by the
operands themselves: a call that comes again allocates its outputs and launches, and looks at no Python attribute.
"""
cimport cython
import operator

from cpython.float cimport PyFloat_CheckExact, PyFloat_FromDouble
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

from accelrt.arrays.array cimport (
    Array, Buffer, check_live, count_elements, Extents, finish_array, new_array, new_buffer, set_contiguous,
)
from accelrt.arrays.exchange import asarray
from accelrt.kernels import elementwise_plan as decisions
from accelrt.kernels.kernel cimport Dimensions, Kernel
from accelrt.streams.stream cimport current_of, exchange_current, put_back, Stream, stream_of

# stub: _Results: TypeAlias = Any  # an Array, or a tuple of them, as the kernel declares

cdef extern from "Python.h":
    void* Py_TYPE(PyObject* thing) noexcept  # borrowed

cdef enum:
    MOST = 32           # operands: MOST_PARAMETERS
    ALIGNED = 16        # VECTOR_BYTES
    PLANS = 1024        # that a kernel keeps
    MOST_EXTENTS = 512  # lengths and strides of all operands that a plan is found by

cdef enum Taken:        # the numbers that an operand takes as they are
    NO_NUMBER
    INTEGER
    REAL

cdef struct Fact:       # what a plan depends on of an operand
    PyObject* kind      # its dtype, which the plan keeps, or a number's type; NULL: an output to be made
    int device          # of an array; -2 of others
    int past            # bytes of the address past a multiple of ALIGNED
    Py_ssize_t ndim

cdef struct Operand:    # what a call does with one
    Taken takes
    int64_t least       # of an INTEGER
    int64_t most
    bint is_array       # an array that is not raw, and so may overlap others
    Py_ssize_t low      # its lowest byte and the one past its highest, from its first element on
    Py_ssize_t high

cdef struct Key:
    Py_hash_t size      # of the size that was given
    Py_ssize_t count    # of extents
    Fact[MOST] facts
    Py_ssize_t[MOST_EXTENTS] extents


cdef class Call:
    """Call()\n--\n\n\
    The decisions for the types, shapes and strides of a call: a Plan of elementwise_plan, as C reads it."""

    cdef Fact[MOST] facts
    cdef Operand[MOST] operands
    cdef Py_ssize_t* extents
    cdef Py_ssize_t count    # of extents
    cdef object room         # theirs
    cdef list kinds          # what the facts point at
    cdef object others       # what the call's dtypes and size were, or None
    cdef Call next           # one of the same hash
    cdef Kernel kernel       # None: there are no elements
    cdef Dimensions size
    cdef object first        # the parameter before the operands
    cdef int device
    cdef tuple new_outputs   # numbers of the outputs to be made, and the dtype of each
    cdef tuple types
    cdef tuple dtypes        # names of all operands' types
    cdef bint overlaps       # an output was given, which may overlap others
    cdef Py_ssize_t ndim
    cdef Extents shape       # of the outputs, with strides of elements
    cdef object __weakref__

    def __init__(self) -> None:
        raise TypeError("a Call belongs to an ElementwiseKernel")


# --- which plan a call has -------------------------------------------------------------------------------------

cdef inline uint64_t mix(uint64_t hash_, uint64_t more) noexcept nogil:
    hash_ = (hash_ ^ more) * <uint64_t>0x9E3779B97F4A7C15
    return hash_ ^ (hash_ >> 29)


cdef bint read_facts(PyObject** values, Py_ssize_t count, Key* key) noexcept:
    # False where the operands have more axes than a plan is found by.
    cdef Py_ssize_t index, used = 0
    cdef Array array
    cdef Fact* fact
    for index in range(count):
        fact = &key.facts[index]
        fact.device, fact.past, fact.ndim = -2, 0, 0
        if values[index] == NULL:
            fact.kind = NULL
        elif isinstance(<object>values[index], Array):
            array = <Array>values[index]
            fact.kind = <PyObject*>array.dtype
            fact.device, fact.past, fact.ndim = array.device_index, <int>(array.ptr % ALIGNED), array.ndim
            if array.extents == NULL or used + 2 * array.ndim > MOST_EXTENTS:
                return False
            memcpy(&key.extents[used], array.extents, 2 * array.ndim * sizeof(Py_ssize_t))
            used += 2 * array.ndim
        else:
            fact.kind = <PyObject*>Py_TYPE(values[index])
    key.count = used
    return True


cdef inline bint is_for(Call call, const Key* key, Py_ssize_t count, object others) except -1:
    if call.count != key.count or memcmp(call.facts, key.facts, count * sizeof(Fact)) or (
            memcmp(call.extents, key.extents, key.count * sizeof(Py_ssize_t))):
        return False
    return call.others is None if others is None else call.others is not None and call.others == others


cdef uint64_t hash_of(const Key* key, Py_ssize_t count) noexcept nogil:
    cdef uint64_t hash_ = key.size
    cdef Py_ssize_t index
    for index in range(count):
        hash_ = mix(hash_, <uintptr_t>key.facts[index].kind)
        hash_ = mix(hash_, <uint64_t>key.facts[index].device << 32 | <uint64_t>key.facts[index].past)
        hash_ = mix(hash_, key.facts[index].ndim)
    for index in range(key.count):
        hash_ = mix(hash_, key.extents[index])
    return hash_


cdef Call make_call(object plan, const Key* key, Py_ssize_t count, object others):
    cdef Call call = Call.__new__(Call)
    cdef Py_ssize_t index
    cdef Operand* operand
    call.room = bytes(key.count * sizeof(Py_ssize_t))
    call.extents = <Py_ssize_t*><char*>call.room
    memcpy(call.extents, key.extents, key.count * sizeof(Py_ssize_t))
    memcpy(call.facts, key.facts, count * sizeof(Fact))
    call.count = key.count
    call.kinds = [<object>key.facts[index].kind for index in range(count) if key.facts[index].kind != NULL]
    call.others = others
    call.kernel, call.first, call.device = plan.kernel, plan.first, plan.device
    call.new_outputs, call.types, call.dtypes = plan.new_outputs, plan.types, plan.dtypes
    call.size.grid = [plan.grid, 1, 1]
    call.size.block = [plan.block, 1, 1]
    call.size.shared = 0
    call.ndim = len(plan.shape)
    for index in range(call.ndim):
        call.shape[index] = plan.shape[index]
    call.overlaps = False
    for index in range(count):
        operand = &call.operands[index]
        operand.takes, operand.is_array = NO_NUMBER, plan.spans[index] is not None
        limits = decisions.LIMITS.get(plan.dtypes[index])
        if plan.dtypes[index] in decisions.FLOATS:
            operand.takes = REAL
        elif limits is not None and plan.dtypes[index] != "bool":
            operand.takes, operand.least, operand.most = INTEGER, limits[0], min(limits[1], (1 << 63) - 1)
        if operand.is_array:
            operand.low, operand.high = plan.spans[index]
    return call


# --- what a call passes ----------------------------------------------------------------------------------------

cdef inline object number_as(const Operand* operand, object value):
    # Returns what the launch lays out without a second look, or None: elementwise_plan then decides about the number.
    cdef int overflow = 0
    cdef long long number
    if PyFloat_CheckExact(value):
        return value if operand.takes == REAL else None
    if not PyLong_CheckExact(value) or operand.takes == NO_NUMBER:
        return None
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return None
    if operand.takes == REAL:
        return PyFloat_FromDouble(<double>number)
    return value if operand.least <= number <= operand.most else None


cdef Array make_output(Call call, object dtype, Stream stream):
    cdef Py_ssize_t itemsize = dtype.itemsize, axis, size
    cdef Buffer buffer
    cdef Array output
    size = count_elements(call.ndim, call.shape, itemsize)
    buffer = new_buffer(size * itemsize, stream)
    output = new_array(buffer, buffer.ptr, call.device, stream, dtype, call.ndim, False)
    for axis in range(call.ndim):
        output.extents[axis] = call.shape[axis]
    set_contiguous(call.ndim, output.extents, itemsize)
    return finish_array(output)


cdef inline bint is_same(Array one, Array other) noexcept:
    return one.ptr == other.ptr and one.ndim == other.ndim and one.itemsize == other.itemsize and (
        memcmp(one.extents, other.extents, 2 * one.ndim * sizeof(Py_ssize_t)) == 0)


cdef bint may_overlap(Call call, PyObject** values, Py_ssize_t inputs, Py_ssize_t count) noexcept:
    # Returns whether a closer look is needed: none is if addresses lie apart, or an output is an input.
    cdef Py_ssize_t output, other
    cdef uintptr_t low, high
    for output in range(inputs, count):
        if not call.operands[output].is_array:
            continue
        low = (<Array>values[output]).ptr + call.operands[output].low
        high = (<Array>values[output]).ptr + call.operands[output].high
        for other in range(output):
            if not call.operands[other].is_array:
                continue
            if ((<Array>values[other]).ptr + call.operands[other].high > low
                    and (<Array>values[other]).ptr + call.operands[other].low < high
                    and (other >= inputs or not is_same(<Array>values[other], <Array>values[output]))):
                return True
    return False


cdef int refuse_stream(Stream stream, int device) except -1:
    raise ValueError(f"stream is of device {stream.device_index}, and the arrays are on device {device}")


cdef object wrap(object value, object stream):
    # Another library's array, whose producer the stream of the call comes after.
    cdef Stream chosen
    cdef PyObject* before
    if stream is None:
        return asarray(value)
    chosen = stream_of(stream, 0)
    before = exchange_current(chosen)
    try:
        return asarray(value)
    finally:
        put_back(before)


cdef class ElementwiseKernel:
    """ElementwiseKernel(inputs, outputs, operation, name="elementwise", preamble="", options=())\n--\n\n\
    A kernel for every element of arrays, as elementwise() makes it; called with arrays and numbers.

    Arguments, Raises: as elementwise.
    Attributes:
        inputs, outputs: tuple, the declarations.
        operation, name, preamble: str.
        options: tuple of str, NVRTC's.
    """

    cdef object declared         # Declared of elementwise_plan
    cdef Py_ssize_t inputs_      # how many
    cdef Py_ssize_t count        # of operands
    cdef Call last               # of the last call
    cdef dict calls              # hash -> Call
    cdef Py_ssize_t call_count   # how many Calls are in it
    cdef object __weakref__

    def __init__(
        self, inputs: str, outputs: str, operation: str, name: str = "elementwise", preamble: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.declared = decisions.Declared(inputs, outputs, operation, name, preamble, options)
        self.inputs_ = len(self.declared.inputs)
        self.count = len(self.declared.every)
        self.calls = {}
        self.last = None

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return self.declared.inputs

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        return self.declared.outputs

    @property
    def operation(self) -> str:
        return self.declared.operation

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def preamble(self) -> str:
        return self.declared.preamble

    @property
    def options(self) -> tuple[str, ...]:
        return self.declared.options

    def __repr__(self):
        takes, makes = self.declared.texts()
        return f"<accelrt.ElementwiseKernel {self.name}: {takes} -> {makes}>"

    def __reduce_ex__(self, protocol):
        return type(self), (*self.declared.texts(), self.operation, self.name, self.preamble, self.options)

    def unload(self) -> None:
        """Gives up what was compiled; the next call takes it from the cache."""
        with cython.critical_section(self):
            self.last = None
            self.calls.clear()
            self.call_count = 0
        self.declared.unload()

    def __call__(
        self, *arguments: object, out: object = None, dtypes: Mapping[str, object] | None = None,
        stream: Stream | int | None = None, size: int | None = None,
    ) -> _Results:
        """Computes the operation on a device's stream; the call does not wait for it.

        Arguments:
            arguments: for each input an array on one device (an Array, or another library's with
                __cuda_array_interface__), or a number; they are broadcast together.
            out: Array, or for several outputs a sequence of Arrays, of the broadcast shape; None for new ones
                in C order.  It may be an input, but not overlap one in another way.  A raw output has to be given.
            dtypes: mapping from placeholders to types, for those that no array tells; numbers alone are bool,
                int64, float64 and complex128.
            stream: Stream, or a handle as int; None for the device's current one.
            size: int, how many elements are computed where all arrays are raw.
        Returns:
            The output, or a tuple of several.
        Raises:
            TypeError: an argument's type does not fit its declaration, or the others.
            ValueError: shapes do not fit, arrays are on several devices or overlap, or a number is out of
                range.
            CompileError, CompilerNotFoundError: of the first call with these types.
        """
        cdef PyObject* values[MOST]
        cdef Key key
        cdef Call call
        cdef Stream worker
        cdef Py_ssize_t index
        cdef list held = None
        cdef object others = None
        if self.declared is None or PyTuple_GET_SIZE(arguments) != self.inputs_:
            self.refuse_count(arguments)
        for index in range(self.inputs_):
            values[index] = <PyObject*>PyTuple_GET_ITEM(arguments, index)
        for index in range(self.inputs_, self.count):
            values[index] = NULL
        if out is not None:
            if isinstance(out, Array) and self.count == self.inputs_ + 1:
                values[self.inputs_] = <PyObject*>out
            else:
                held = self.read_outputs(out)
                for index in range(len(held)):
                    values[self.inputs_ + index] = <PyObject*>held[index] if held[index] is not None else NULL
        if size is not None:
            size = checked_size(size)
        key.size = 0 if size is None else hash(size)
        if dtypes or size is not None:
            others = (tuple((dtypes or {}).items()), size)
        call = self.find(values, &key, others)
        if call is None:
            held = self.read_values(values, stream)
            for index in range(self.count):
                values[index] = <PyObject*>held[index] if held[index] is not None else NULL
            call = self.find(values, &key, others)
            if call is None:
                call = self.decide(held, values, &key, dtypes, size, others)
        if stream is None:
            worker = current_of(call.device)
        else:
            worker = stream_of(stream, call.device)
            if worker.device_index != call.device:
                refuse_stream(worker, call.device)
        if out is not None:
            self.check_outputs(call, values)
        return self.carry_out(call, values, worker)

    @cython.critical_section
    cdef Call find(self, PyObject** values, Key* key, object others):
        cdef Call call = self.last
        if not read_facts(values, self.count, key):
            return None
        if call is not None and is_for(call, key, self.count, others):
            return call
        call = self.calls.get(hash_of(key, self.count))
        while call is not None:
            if is_for(call, key, self.count, others):
                self.last = call
                return call
            call = call.next
        return None

    cdef Call decide(self, list held, PyObject** values, Key* key, object dtypes, object size, object others):
        plan = self.declared.decide(held, dtypes or {}, size)
        if not read_facts(values, self.count, key):  # too many axes to be kept
            memset(key, 0, sizeof(Key))
            return make_call(plan, key, self.count, others)
        return self.keep_call(make_call(plan, key, self.count, others), hash_of(key, self.count))

    @cython.critical_section
    cdef Call keep_call(self, Call call, uint64_t hash_):
        if self.call_count >= PLANS:
            self.calls.clear()
            self.call_count = 0
        call.next = self.calls.get(hash_)
        self.calls[hash_] = call
        self.call_count += 1
        self.last = call
        return call

    cdef object carry_out(self, Call call, PyObject** values, Stream worker):
        cdef tuple packed = PyTuple_New(self.count + 1)
        cdef Py_ssize_t index
        cdef object value
        Py_INCREF(call.first)
        PyTuple_SET_ITEM(packed, 0, call.first)
        for index in range(self.count):
            if values[index] == NULL:
                value = make_output(call, call.types[call.new_outputs.index(index)], worker)
            else:
                value = <object>values[index]
                if not isinstance(value, Array):
                    value = self.number_for(call, index, value)
            Py_INCREF(value)
            PyTuple_SET_ITEM(packed, index + 1, value)
        if call.kernel is not None:
            call.kernel.launch_on(&call.size, NULL, worker, packed)
        if self.count == self.inputs_ + 1:
            return packed[self.count]
        return packed[self.inputs_ + 1:]

    cdef object number_for(self, Call call, Py_ssize_t index, object value):
        cdef object number = number_as(&call.operands[index], value)
        return self.declared.number_for(index, value, call.dtypes[index]) if number is None else number

    cdef int check_outputs(self, Call call, PyObject** values) except -1:
        cdef Py_ssize_t index
        for index in range(self.inputs_, self.count):
            if values[index] != NULL and (<Array>values[index]).readonly:
                raise ValueError(f"out for {self.declared.every[index].name} is read-only")
        if may_overlap(call, values, self.inputs_, self.count):
            spans = [
                (call.operands[index].low, call.operands[index].high) if call.operands[index].is_array else None
                for index in range(self.count)
            ]
            self.declared.check_overlaps(
                [None if values[index] == NULL else <object>values[index] for index in range(self.count)], spans)
        return 0

    cdef list read_outputs(self, object out):
        cdef list outs = list(out) if isinstance(out, (list, tuple)) else [out]
        if len(outs) != self.count - self.inputs_:
            names = ", ".join([each.name for each in self.outputs])
            raise TypeError(f"{self.name} has {len(self.outputs)} outputs ({names}); out has {len(outs)}")
        return outs

    cdef list read_values(self, PyObject** values, object stream):
        # Returns all operands, with others' arrays as Arrays.
        cdef list operands = [None if values[index] == NULL else <object>values[index] for index in range(self.count)]
        for index, value in enumerate(operands):
            if not isinstance(value, Array) and hasattr(value, "__cuda_array_interface__"):
                operands[index] = wrap(value, stream)
            elif isinstance(value, Array):
                check_live(<Array>value, self.declared.every[index].name)
        self.declared.check_values(operands)
        return operands

    cdef int refuse_count(self, tuple arguments) except -1:
        if self.declared is None:
            raise TypeError("this ElementwiseKernel was never initialised; make one with accelrt.elementwise()")
        names = ", ".join([each.name for each in self.inputs])
        raise TypeError(f"{self.name} takes {len(self.inputs)} inputs ({names}); {len(arguments)} given")


cdef object checked_size(object size):
    number = operator.index(size)
    if number < 0:
        raise ValueError(f"size is {number}; it is how many elements are computed, 0 or more")
    return number


def elementwise(
    inputs: str, outputs: str, operation: str, *, name: str = "elementwise", preamble: str = "",
    options: Sequence[str] = (),
) -> ElementwiseKernel:
    """Returns a kernel that computes an operation for every element of arrays.

        axpy = accelrt.elementwise("T x, T y", "T z", "z = x * y + x", name="axpy")
        z = axpy(x, 2.5)

    It is compiled when it is first called with arrays of some types: by NVRTC for a GPU, where the operation
    is CUDA C++; by the system's C++ compiler for the host device, where it is C++17 with CUDA's device functions.

    Arguments:
        inputs: str, declarations such as "T x, float32 y": a type and a name each.  A type is one of NumPy's
            names (bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64,
            complex128), or a placeholder that begins with a capital letter and stands for one type in each call.
            "raw T x" is an array that takes no part in the broadcast: x[k] is its element k in C order, whichever
            element is computed.  It is contiguous, of no 16-bit floats, and on whichever elements of it the operation
            reads and writes, its author decides: what overlaps it is not checked.
        outputs: str, the same for what is written; a raw one has to be given by each call.
        operation: str, statements that assign the outputs, which are 0 before.  They may use the placeholders
            as types, i, the element's number in C order, and n, how many there are.  float16 and bfloat16 are
            computed in float.  With complex numbers there are make_complex(real, imaginary) and, by C's names, creal,
            cimag, cabs, carg, conj, exp, log and sqrt.
        name: str, the kernel's, as profilers and errors show it.
        preamble: str, declarations before the kernel, such as functions (accelrt_inline is "static inline" in
            the terms of either compiler).
        options: sequence of str, NVRTC's; the host device ignores them.
    Returns:
        An ElementwiseKernel.
    Raises:
        TypeError, ValueError: a declaration, the name or an argument's type is wrong.
    """
    return ElementwiseKernel(inputs, outputs, operation, name, preamble, options)
