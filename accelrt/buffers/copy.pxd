# Copies and fills.
from libc.stdint cimport uintptr_t

from accelrt.streams.stream cimport Stream

# given: the 'stream' of a CUDA array on a device (-1: of the host), in the protocol's words; 0 is none to wait for.
cdef int follow_stream(uintptr_t given, int ordinal, Stream worker) except -1
