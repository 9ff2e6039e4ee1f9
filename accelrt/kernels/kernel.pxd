# Kernels and their launches.
from libc.stdint cimport uintptr_t

from accelrt.kernels.packing cimport Packed, Parameters
from accelrt.runtime.capture_record cimport Record
from accelrt.streams.stream cimport Stream
from accelrt.uses.access cimport Access

cdef struct Dimensions:
    unsigned int[3] grid   # blocks
    unsigned int[3] block  # threads
    unsigned int shared    # bytes of dynamic shared memory

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
    cdef int end_asleep(self, Access* access, Packed* packed, tuple arguments) except -1  # ends a use of memory that sleeps
    cdef int keep_with(self, Record record, tuple arguments) except -1  # with a graph
    # A kernel node of a graph, or for exec_ of an instance of it, becomes a launch of this kernel.
    cdef int change_node(self, uintptr_t graph, uintptr_t exec_, uintptr_t node, const Dimensions* size,
                         tuple arguments) except -1
    cdef int permit_shared(self, unsigned int shared) except -1
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
