# Copies and fills for compiled modules: their sides, the use that they begin, and the copies themselves.

# One side of a copy or fill: whose memory it is, where, and who has to be told of its use.
from cpython.buffer cimport Py_buffer
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.arrays.array cimport Array, Buffer, load_live, load_nbytes, load_ptr, PinnedBuffer, raise_freed, still_has
from accelrt.core.locks cimport WITHOUT_GIL
from accelrt.driver.memory cimport PitchedCopy
from accelrt.runtime.lifetimes cimport any_capture, keep_side, Record, record_on
from accelrt.streams.stream cimport Stream
from accelrt.runtime.access cimport Access, any_sleeps, begin_use_of, end_use_of

cdef struct Pieces:       # of copies of elements that lie apart; freed by who made it
    PitchedCopy* copies
    size_t count
    size_t room

cdef struct Span:         # of addresses
    uintptr_t low
    uintptr_t high

cdef struct Spans:        # in ascending order, none of which share bytes; freed by who made them
    Span* at
    size_t count
    size_t room

cdef struct Operand:      # one side of a copy
    uintptr_t address
    size_t nbytes
    int ordinal           # -1 for host memory
    bint ordered          # copies read or write it in their stream's order: it is no ordinary host memory
    bint owned            # by an allocator of ours, which files it under the stream below
    uintptr_t owner_stream  # ANY where that is unknown: the memory may be an allocator's of ours, or not
    uintptr_t block       # where the owner's memory begins: the allocators know it by that
    uintptr_t producer    # of an array of others: the stream that wrote it last, in their words; 0: wait for none
    PyObject* source      # borrowed: an argument of the caller's

cdef class View:          # a buffer of Python's that a side of a copy borrows, and the object that it is of
    cdef object source
    cdef Py_buffer buffer
    cdef bint borrowed

# The driver's answer: -1 for host memory that it knows.  name is what the owner is called, should it have been freed.
cdef int device_of_pointer(uintptr_t address, object owner, str name) except -2
# Of a __cuda_array_interface__; the caller sets source and ordered.
cdef int read_interface(Operand* operand, object interface, str name, bint writable) except -1
cdef View read_operand_slow(Operand* operand, object source, str name, bint writable)
# Of an Array of any strides: the address is its first element's, and the bytes are its elements'.
cdef int read_array(Operand* operand, Array array, str name, bint writable) except -1
cdef int raise_scattered(Array array, str name) except -1
cdef bint captures_apart(Stream worker, Stream producer) except -1
cdef int follow_producer(Operand* side, Stream worker) except -1
cdef int note_pinned(Operand* side, Stream stream) except -1
cdef int note_elsewhere(Operand* side, Stream stream) except -1
cdef bint is_asynchronous(Operand* side) except -1
# Waits for the stream.  host: the side in host memory, or NULL; the rest is what the work uses.
cdef int finish(Stream stream, Operand* host, object dst, object src, View view_to, View view_origin) except -1
# Where addresses are that nothing else is known of.  Each has to lie with its bytes in one of the spans, in a live block of
# the allocators', on which the stream's use is recorded, or in other memory that the driver knows.  What answers beside
# codes of the driver and of status.pxd is of the address at out_index.
cdef enum:
    PAST_END = -101    # its bytes pass the end of its memory
    NOT_LOCKED = -102  # host memory that is not page-locked, or no memory
cdef int insert_span(Spans* spans, uintptr_t low, uintptr_t high) noexcept nogil  # 0 or NO_HOST_MEMORY
cdef int find_spans(Spans* spans, const uintptr_t* addresses, const size_t* sizes, size_t count, int device,
                    uintptr_t stream, size_t* out_index) noexcept nogil
# Behind all of the caller's code: begins a use of one or two sides (driver/USES.md), origin may be NULL, once more sees that
# what was given as dst and src has the memory that was read, and refuses memory that sleeps.  end_use_of ends it.
cdef int look_again_slow(Operand* side, object source, str name) except -1
cdef bint uses_owner(const Access* access, PyObject* owner) noexcept  # for begin_use, whose first is a tuple of memory
cdef int refuse_sides(Access* access, Operand* to, Operand* origin) except -1
cdef int enter_use_apart(Access* access, Operand* to, object dst, Operand* origin, object src) except -1


cdef inline View read_operand(Operand* operand, object source, str name, bint writable):
    # Answers what has to live as long as the side is used, where source alone does not do, or None.
    operand.source = <PyObject*>source
    operand.ordered = True
    operand.owned = False
    operand.producer = 0
    if isinstance(source, Buffer):
        operand.address = load_ptr(&(<Buffer>source).ptr)
        operand.nbytes = load_nbytes(&(<Buffer>source).nbytes)
        operand.ordinal = (<Buffer>source).device_index
        operand.block = operand.address
        if operand.address:
            operand.owned = True
            operand.owner_stream = (<Buffer>source).stream.handle
        elif not load_live(&(<Buffer>source).live):
            raise_freed(source, name)
        return None
    if isinstance(source, PinnedBuffer):
        operand.address = load_ptr(&(<PinnedBuffer>source).ptr)
        operand.nbytes = load_nbytes(&(<PinnedBuffer>source).nbytes)
        operand.ordinal = -1
        operand.block = operand.address
        if not operand.address and not load_live(&(<PinnedBuffer>source).live):
            raise_freed(source, name)
        return None
    if isinstance(source, Array):
        read_array(operand, source, name, writable)
        if not (<Array>source).dense():
            raise_scattered(source, name)
        return None
    return read_operand_slow(operand, source, name, writable)


cdef inline int look_again(Operand* side, object source, str name) except -1:
    if (type(source) is Buffer or type(source) is PinnedBuffer) and still_has(source, side.address):
        return 0
    return look_again_slow(side, source, name)


cdef inline int enter_use(Access* access, Operand* to, object dst, Operand* origin, object src) except -1:
    if WITHOUT_GIL:
        return enter_use_apart(access, to, dst, origin, src)
    look_again(to, dst, "dst")
    if origin != NULL:
        look_again(origin, src, "src")
    begin_use_of(access, to.source, NULL if origin == NULL else origin.source)
    if any_sleeps():
        refuse_sides(access, to, origin)
    return 0


cdef inline int note_use(Operand* side, Stream stream, bint kept, bint blocking) except -1:
    # Once the driver took the work: what it refused uses nothing.
    if side.owned and (side.owner_stream != stream.handle or side.ordinal != stream.device_index):
        note_elsewhere(side, stream)
    if side.ordinal < 0 and not blocking and side.address and not kept:
        note_pinned(side, stream)
    return 0


cdef inline bint keep(Operand* side, View view, Record record) except -1:
    # What a captured copy points at lives as long as the graph.  Memory of the graph's own pool does so anyway, and
    # may be used again by what is captured after it was freed.  Before the work is put in: a node's memory is never
    # without an owner.
    return record is not None and keep_side(record, side.source, view, side.ordinal, side.block)


cdef inline Record record_for(Stream stream):
    if any_capture():
        return record_on(stream.device_index, stream.handle)
    return None


# Copies and fills of Arrays of any strides.
# As Array.copy_, from an Array of the same type whose shape can be broadcast.
cdef int copy_array(Array dst, Array src, bint blocking, object stream) except -1
cdef int fill_array(Array dst, object value, object stream) except -1  # as Array.fill_
# Appends the copies of rows and slices that such a copy within a device or to page-locked memory is made of, in any order.
cdef int add_pieces(Array dst, Array src, Pieces* pieces) except -1
# A C-contiguous Array of another one's shape and type with memory of its own; the rest as of allocate_array.
cdef Array packed(Array like, object device, object stream, bint pinned)
