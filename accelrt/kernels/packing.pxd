# Arguments: values that a launch passes, as the kernel's parameters take them.
from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from accelrt.runtime.capture_record cimport Record
from accelrt.streams.stream cimport Stream

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
    Kind pointee_kind     # of what a pointer points at
    size_t pointee        # its bytes; 0 where the signature does not say
    PyObject* fitting     # the last dtype of an Array that was found to fit; kept by the Parameters

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
    cdef readonly Py_ssize_t count  # -1: not known, any number is taken
    cdef readonly str name          # of the kernel
    cdef readonly int device_index
    cdef readonly bint told         # by a signature
    cdef dict fitting               # index -> a parameter's fitting
    cdef object __weakref__

    cdef Parameter* at(self, Py_ssize_t index) noexcept

cdef Parameters make_parameters(uintptr_t function, str name, int device_index, object signature)
# Fills packed, whose pointers are valid as long as the arguments and the answer, which is None unless memory was needed.
cdef object pack(Parameters parameters, tuple arguments, uintptr_t stream, Packed* packed)
# Before the launch: it comes behind what the owners of others' arrays put into their streams.
cdef int follow_producers(Parameters parameters, tuple arguments, Stream stream) except -1
# The same in a capture: what the arguments point at is kept by its record.
cdef int keep_memory(Parameters parameters, tuple arguments, Record record) except -1
# The same while the race detector is on, which is told.
cdef int announce_memory(Parameters parameters, tuple arguments, Stream stream, str call) except -1
cdef list uses_of(Parameters parameters, tuple arguments)  # what it is told: (address, bytes, "r" or "w")
# The same: other streams' memory is not handed out before the kernel is done with it.  A launch that is refused after it
# leaves a use too many, which costs a free an event.
cdef int note_memory(Parameters parameters, tuple arguments, Stream stream, bint captured) except -1
# Directly before the use begins (accelrt/uses): whether each Buffer and Array still has the memory that was packed.
cdef int look_again(Parameters parameters, tuple arguments, const Packed* packed) except -1
cdef int refuse_asleep(Parameters parameters, tuple arguments, const Packed* packed) except -1  # inside the use
