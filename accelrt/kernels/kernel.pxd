# Kernels for compiled modules: how arguments are laid out, modules, and launches.

# Arguments: values that a launch passes, as the kernel's parameters take them.
from cpython.object cimport PyObject
from libc.limits cimport LLONG_MAX, LLONG_MIN
from libc.stdint cimport uintptr_t

from accelrt.driver.node_params cimport NodeParams
from accelrt.runtime.lifetimes cimport Record
from accelrt.streams.stream cimport Stream
from accelrt.runtime.access cimport Access

cdef enum Kind:    # signature.py has the same numbers
    ANY = 0        # the signature does not say
    POINTER = 1
    SIGNED = 2
    UNSIGNED = 3
    FLOAT = 4
    BOOL = 5
    COMPLEX = 6
    BYTES = 7

cdef enum:
    INLINE = 32    # arguments that need no memory of their own
    WIDEST = 16    # bytes of a value that is not passed as it lies in its object

cdef struct Parameter:
    Kind kind
    bint writes    # the kernel may write through the pointer
    size_t size    # bytes; 0 where neither the signature nor the driver says
    size_t offset
    long long least       # ints from here to `most` are laid out as they are; where that is less, none is
    long long most
    Kind pointee_kind     # of what a pointer points at
    size_t pointee        # its bytes; 0 where the signature does not say
    PyObject* fitting     # the last dtype of an Array that was found to fit; kept by the Parameters


cdef inline void set_range(Parameter* parameter) noexcept nogil:
    # Of the ints that are laid out as they are; none where there are no such.
    cdef int bits = <int>(8 * parameter.size) if parameter.size else 64
    cdef bint has_sign = parameter.kind == SIGNED or parameter.kind == ANY
    parameter.least, parameter.most = 1, 0
    if parameter.kind > UNSIGNED or bits > 64 or bits & (bits - 1):
        return
    parameter.least = 0 if not has_sign else LLONG_MIN >> (64 - bits)
    parameter.most = LLONG_MAX if bits == 64 else (<long long>1 << (bits - (parameter.kind == SIGNED))) - 1


cdef inline bint takes_pointer(const Parameter* parameter) noexcept:
    return parameter.kind == POINTER or (parameter.kind == ANY and (parameter.size == sizeof(void*) or parameter.size == 0))


cdef struct Value:
    double[2] parts  # WIDEST bytes, aligned for any type

cdef struct Packed:
    void** pointers    # to the values, one for each argument
    Value* values
    bint shared        # some memory is not the launching stream's own: note_memory has to look
    bint foreign       # some arrays name a stream that wrote them: follow_producers has to look
    bint ran           # code of the caller's, or another thread, ran since the memory was read: look_again has to look
    void* room[INLINE]
    Value place[INLINE]

cdef class Parameters:  # of one kernel
    cdef Parameter* each
    cdef Parameter unknown          # any of them, where nothing is known of them
    cdef readonly Py_ssize_t count  # -1: not known, any number is taken
    cdef readonly str name          # of the kernel
    cdef readonly int device_index
    cdef readonly bint has_signature
    cdef dict fitting               # index -> a parameter's fitting
    cdef dict places                # index -> what errors call an argument, once it was asked for
    cdef object __weakref__

# The same in a capture: what the arguments from first to before end point at is kept by its record.
cdef int keep_memory(Parameters parameters, tuple arguments, Py_ssize_t first, Py_ssize_t end, Record record) except -1
# The same while the race detector is on, which is told.
cdef list uses_of(Parameters parameters, tuple arguments)  # what it is told: (address, bytes, "r" or "w")


# Kernels and their launches.
cdef struct Dimensions:
    unsigned int[3] grid   # blocks
    unsigned int[3] block  # threads
    unsigned int shared    # bytes of dynamic shared memory

cdef enum:
    PORTABLE_CLUSTER = 8  # blocks that a cluster has without being permitted more

cdef inline tuple triple(const unsigned int* lengths):
    return lengths[0], lengths[1], lengths[2]

cdef struct Extras:        # of launches that kernel_launch_with makes
    unsigned int flags
    unsigned int[3] cluster  # 0: none

cdef class Loaded:         # a module of the driver's; unloaded with the object
    cdef uintptr_t handle
    cdef int device_index
    cdef object owner      # what the code belongs to, such as a ctypes function; or None
    cdef object __weakref__

cdef class Kernel:
    cdef readonly uintptr_t handle     # the driver's (CUfunction); 0 before it is made
    cdef readonly str name
    cdef readonly int device_index
    cdef Parameters takes               # what it is launched with
    cdef Loaded loaded                 # None for a function of others
    cdef unsigned int most_shared      # bytes of dynamic shared memory that the driver was told of
    cdef uintptr_t last_stream         # that it was launched on
    cdef dict launched_on              # handles of streams -> the Stream that others own, or None
    cdef object __weakref__

    cdef int require_made(self) except -1
    cdef int note_stream(self, Stream stream) except -1
    cdef int prepare_slow(self, Packed* packed, unsigned int shared, Stream stream, tuple arguments) except -1
    # Ends a use of memory that sleeps, or was freed.
    cdef int end_refused(self, Access* access, Packed* packed, tuple arguments) except -1
    cdef int keep_with(self, Record record, tuple arguments) except -1  # with a graph
    # What a node that is a launch of this kernel does; the answer has to live as long as packed, which the params point at.
    cdef object describe_node(self, const Dimensions* size, tuple arguments, Packed* packed, NodeParams* out_params)
    cdef int check_arguments(self, tuple arguments, const Packed* packed) except -1  # still have the memory that was packed
    # The driver refused to have a node launch it; exec_ is 0 where the graph did.
    cdef int raise_unchanged(self, int code, uintptr_t exec_, uintptr_t node, const Dimensions* size) except -1
    cdef int permit_shared(self, unsigned int shared) except -1
    cdef object ask(self, str question, object sizes)  # of occupancy.py
    cdef Stream stream_from(self, object stream)  # a caller's, or the current one; ValueError where it is another device's
    cdef int launch_on(self, const Dimensions* size, const Extras* extras, Stream stream, tuple arguments) except -1
    cdef int raise_refused(self, int code, const Dimensions* size, Stream stream) except -1

cdef class Launcher:
    cdef readonly Kernel kernel
    cdef Stream chosen                 # None: the current stream of each call
    cdef Dimensions size
    cdef object __weakref__

cdef Kernel make_kernel(Loaded loaded, uintptr_t handle, int device_index, str name, object signature)
cdef int read_dimensions(object value, str name, unsigned int* out) except -1
cdef unsigned int read_shared(object shared) except? 0
