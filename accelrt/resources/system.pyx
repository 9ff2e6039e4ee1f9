"""SystemResource: memory of the system's own allocator, on devices that reach it."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free

cimport accelrt.driver.registry as registry
from accelrt.errors import not_supported
from accelrt.resources.checks import refuse
from accelrt.resources.resource cimport Resource
from accelrt.resources.resource import Resource as ResourceType
from accelrt.runtime.lifetimes cimport keep_until_passed
from accelrt.status cimport refuse_copy
from accelrt.streams.stream cimport Stream, mark_used

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t size) noexcept nogil

cdef enum:
    ALIGNMENT = 256  # bytes, of a GPU's allocations
    PAGEABLE_MEMORY_ACCESS = 88  # CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS


cdef class SystemMemory:
    # What malloc gave, freed with the object.
    cdef void* start

    def __dealloc__(self):
        free(self.start)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it owns memory of this process")


cdef class SystemResource(Resource):
    """SystemResource(device=None)\n--\n\n\
    Memory of the system's own allocator (malloc), which the host and the device use at one address: on systems with HMM
    or ATS, where the device's pageable_memory_access is 1.

    Arguments:
        device: int, "cuda:1", ...; None is the current device.
    Raises:
        ValueError, TypeError: device names none.
        NotSupportedError: the device does not reach such memory.

    It goes back once the stream is past the work that came before, since the system's allocator knows no streams.
    """
    cdef dict held  # address -> SystemMemory

    def __cinit__(self, *_, **__):
        self.held = {}

    def __init__(self, device: DeviceArgument | None = None) -> None:
        cdef int reaches = 0, ordinal, code
        ResourceType.__init__(self, device)
        ordinal = self.device_index
        with nogil:
            code = registry.active().device_attribute(ordinal, PAGEABLE_MEMORY_ACCESS, &reaches)
        if code or not reaches:
            raise not_supported(
                f"device {ordinal} does not reach memory of the system's allocator (its pageable_memory_access is 0), for "
                "which the system needs HMM or ATS; use a ManagedResource, or a PinnedResource for memory of the host",
                "device_attribute",
            )

    def take(self, nbytes: int, stream: Stream) -> int:
        cdef SystemMemory memory = SystemMemory()
        cdef size_t size = nbytes
        if posix_memalign(&memory.start, ALIGNMENT, size):
            memory.start = NULL
            refuse(self, nbytes, "the system has no such memory")
        address = <uintptr_t>memory.start
        self.held[address] = memory
        return address

    def give_back(self, address: int, nbytes: int, stream: Stream) -> None:
        cdef uintptr_t handle = mark_used(stream)
        memory = self.held.pop(address, None)
        if memory is None:
            raise ValueError(f"{address:#x} is not allocated from {self!r}, or was given back")
        keep_until_passed(self.device_index, handle, memory)
