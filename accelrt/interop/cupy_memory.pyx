"""Memory of accelrt's caches as CuPy holds it, and which stream of CuPy's it follows.

CuPy has one current stream a thread and device.  A block belongs to the one that was current when it was allocated.  If
another one is current when CuPy drops it, that stream may have used it too, so it is recorded on the block first.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport intptr_t, uintptr_t

from accelrt.devices.device cimport ordinal_of
from accelrt.errors import OutOfMemoryError
from accelrt.memory.allocator.pool cimport use_across
from accelrt.memory.caching cimport allocate_bytes, checked_request, release_bytes
from accelrt.memory.host.pool cimport use_pinned_on
from accelrt.memory.host_cache cimport allocate_host_bytes, checked_host_size, release_host_bytes
cimport accelrt.runtime.sanitizer_hooks as watch
from accelrt.status cimport refuse_copy

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define accelrt_is_gone() (!Py_IsInitialized() || Py_IsFinalizing())
    #else
    #define accelrt_is_gone() (!Py_IsInitialized() || _Py_IsFinalizing())
    #endif
    """
    bint is_gone "accelrt_is_gone"() nogil

ctypedef int (*DeviceFunction)(int skip_dispatch) except? -1
ctypedef intptr_t (*StreamFunction)(int device) except? -1

cdef enum:
    PER_THREAD = 2  # one handle for a stream of each thread

# How CuPy's modules declare these two to each other, which is what their capsules are called.
cdef const char* DEVICE_SIGNATURE = "int (int __pyx_skip_dispatch)"
cdef const char* STREAM_SIGNATURE = "intptr_t (int)"

cdef object device_memory = None   # CuPy's UnownedMemory, MemoryPointer and PinnedMemoryPointer
cdef object device_pointer = None
cdef object host_pointer = None
cdef object find_device = None     # () -> ordinal, (ordinal) -> handle: where CuPy has no such C function
cdef object find_stream = None
cdef object as_theirs = None       # accelrt's OutOfMemoryError -> one that CuPy's users catch too
cdef DeviceFunction device_of_thread = NULL
cdef StreamFunction stream_of_thread = NULL


def connect(classes, functions, translate, device_api, stream_api):
    """Learns what the two functions below hand out, and how CuPy is asked for its device and stream.

    Arguments:
        classes: CuPy's UnownedMemory, MemoryPointer and PinnedMemoryPointer.
        functions: the current device's ordinal, of no arguments; the handle of a device's current stream.
        translate: from an OutOfMemoryError of accelrt's to what is raised to CuPy.
        device_api, stream_api: the C functions of CuPy's modules, by name; where they are not as expected, functions
            are called.
    Returns:
        bool: whether the C functions are used.
    """
    global device_memory, device_pointer, host_pointer, find_device, find_stream, as_theirs
    global device_of_thread, stream_of_thread
    device_memory, device_pointer, host_pointer = classes
    find_device, find_stream = functions
    as_theirs = translate
    device, stream = device_api.get("get_device_id"), stream_api.get("get_stream_ptr")
    device_of_thread = NULL
    stream_of_thread = NULL
    if PyCapsule_IsValid(device, DEVICE_SIGNATURE) and PyCapsule_IsValid(stream, STREAM_SIGNATURE):
        device_of_thread = <DeviceFunction>PyCapsule_GetPointer(device, DEVICE_SIGNATURE)
        stream_of_thread = <StreamFunction>PyCapsule_GetPointer(stream, STREAM_SIGNATURE)
    return stream_of_thread != NULL


cdef inline int current_device() except -1:
    return find_device() if device_of_thread == NULL else device_of_thread(0)


cdef inline uintptr_t current_stream(int device) except? <uintptr_t>-1:
    return find_stream(device) if stream_of_thread == NULL else <uintptr_t>stream_of_thread(device)


cdef bint ask_user(int device, uintptr_t* out_stream) noexcept:
    # For destructors: the stream that is current on this thread; False where CuPy cannot say, as at the process's end.
    if is_gone():
        return False
    try:
        out_stream[0] = current_stream(device)
    except BaseException:
        return False
    return True


cdef class DeviceBlock:
    """Device memory that goes back to the cache with the object."""

    cdef int ordinal
    cdef uintptr_t address
    cdef uintptr_t stream  # whose order it follows
    cdef object __weakref__

    def __dealloc__(self):
        cdef uintptr_t user = 0
        if self.address == 0:
            return
        if ask_user(self.ordinal, &user) and (user != self.stream or user == PER_THREAD):
            with nogil:
                use_across(self.ordinal, self.address, self.ordinal, user)
            if watch.sanitizing:
                watch.note_use_on(self.address, self.ordinal, user)
        release_bytes(self.ordinal, self.address)

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the CuPy array")


cdef class HostBlock:
    """Page-locked memory that goes back to the cache with the object, behind the work of CuPy's current stream.

    Attributes:
        ptr, size: int, as CuPy reads them.
    """

    cdef readonly uintptr_t ptr
    cdef readonly size_t size
    cdef int ordinal       # the device that was current
    cdef object __weakref__

    def __dealloc__(self):
        cdef uintptr_t user = 0
        if self.ptr == 0:
            return
        if ask_user(self.ordinal, &user):
            with nogil:
                use_pinned_on(self.ptr, self.ordinal, user)
        release_host_bytes(self.ptr)

    def __reduce__(self):
        refuse_copy(self, "it owns its memory; copy the array on it")


def allocate(size):
    """What CuPy's set_allocator takes: device memory of CuPy's current device, in the order of its current stream.

    Arguments:
        size: int, bytes.
    Returns:
        cupy.cuda.MemoryPointer.
    Raises:
        OutOfMemoryError: the device has no room; it is CuPy's OutOfMemoryError too.
        ValueError, TypeError: size is negative or no int.
    """
    cdef int device = current_device()
    cdef DeviceBlock block = DeviceBlock.__new__(DeviceBlock)
    cdef size_t wanted
    try:
        wanted = checked_request(size, "size", device)
        block.ordinal = ordinal_of(device)
        block.stream = current_stream(device)
        block.address = allocate_bytes(device, wanted, block.stream)
    except OutOfMemoryError as error:
        raise as_theirs(error) from None
    return device_pointer(device_memory(block.address, wanted, block, device), 0)


def allocate_pinned(size):
    """What CuPy's set_pinned_memory_allocator takes: page-locked host memory.

    Arguments:
        size: int, bytes.
    Returns:
        cupy.cuda.PinnedMemoryPointer.
    Raises:
        OutOfMemoryError: the driver has no such memory; it is CuPy's OutOfMemoryError too.
        ValueError, TypeError: size is negative or no int.
    """
    cdef HostBlock block = HostBlock.__new__(HostBlock)
    cdef size_t wanted = checked_host_size(size, "size")
    block.ordinal = current_device()
    try:
        block.ptr = allocate_host_bytes(ordinal_of(block.ordinal), wanted)
    except OutOfMemoryError as error:
        raise as_theirs(error) from None
    block.size = wanted
    return host_pointer(block, 0)
