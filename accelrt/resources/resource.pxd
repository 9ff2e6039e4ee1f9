# What every resource has.
from libc.stdint cimport uintptr_t

cimport accelrt.driver.registry as registry
from accelrt.driver.guard cimport is_capturing
from accelrt.runtime.lifetimes cimport any_capture
from accelrt.status cimport refuse_unmade
from accelrt.streams.stream cimport Stream

cdef enum:
    ALIGNMENT = 256  # bytes, of CUDA's own allocations

cdef class Resource:
    cdef readonly int device_index
    cdef bint is_made    # its __init__ began
    cdef bint is_cached  # each piece of its memory is a block of the caching allocator, which knows who uses it
    cdef object __weakref__

cdef class Adaptor(Resource):
    cdef readonly Resource upstream


cdef inline int begin_making(Resource resource, Resource upstream) except -1:
    # Made anew it would forget what is allocated from it.  upstream, or None, is made first, so that none stands on itself.
    if resource.is_made:
        raise RuntimeError(f"{resource!r} is made already; make another one")
    if upstream is not None and not upstream.is_made:
        refuse_unmade(upstream)
    resource.is_made = True
    return 0


cdef inline bint is_captured(Stream stream):
    # Or whether a capture keeps the driver from saying, as it does of the legacy default stream.
    cdef uintptr_t handle = stream.handle
    cdef int device = stream.device_index, code = 0
    cdef bint captured = False
    if any_capture():
        with nogil:  # another thread's call may hold the driver's lock until a function of Python's has run
            captured = is_capturing(registry.active(), device, handle, &code)
    return captured or code != 0


cdef inline object aligned(object size):
    # Rounded up so that blocks of the size that lie in a row begin where kernels may read values of any type that fits in.
    cdef object step = min(ALIGNMENT, 1 << (size - 1).bit_length())
    return -(-size // step) * step
