# Owners of memory: Buffer on a device, PinnedBuffer on the host, page-locked; and the user's own memory, page-locked for
# as long as a RegisteredMemory lives.
from cpython.buffer cimport Py_buffer
from libc.stdint cimport uintptr_t

from accelrt.streams.stream cimport Stream

cdef class Buffer:
    cdef readonly uintptr_t ptr     # 0 once freed, and for 0 bytes
    cdef readonly size_t nbytes
    cdef readonly int device_index
    cdef readonly Stream stream     # whose order the memory follows; None before __init__
    cdef int exports                # DLPack tensors on the bytes that are alive
    cdef bint live                  # made, and not freed: what has no address may also have 0 bytes
    cdef bint kept                  # the memory is released by the keeper's end, not by the Buffer
    cdef object keeper              # of memory that other processes have too (accelrt/sharing); None once freed
    cdef object __weakref__

cdef class PinnedBuffer:
    cdef readonly uintptr_t ptr     # 0 once freed, and for 0 bytes
    cdef readonly size_t nbytes
    cdef int exports                # views of the bytes that are alive
    cdef bint live                  # as of a Buffer
    cdef object __weakref__

cdef class RegisteredMemory:
    cdef readonly uintptr_t ptr   # 0 once unregistered, and for 0 bytes
    cdef readonly size_t nbytes
    cdef int device_index         # whose driver locked it
    cdef Py_buffer view           # keeps the memory where it is
    cdef bint viewed
    cdef object __weakref__

cdef Buffer new_buffer(size_t nbytes, Stream stream)  # on the stream's device; for callers who know that both will do
cdef int raise_freed(object owner, str name) except -1  # ValueError: it was freed, or never made
