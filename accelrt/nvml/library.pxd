# NVIDIA's management library: opened once a process, asked by the names of its functions.
#
# A session belongs to the process that opened it.  A thread that calls NVML holds the session meanwhile, without
# the GIL; a fork waits until none does, so that the child finds no lock of the library taken, and the child has
# no session.  Order of locks: nothing is taken while the session is held, the GIL neither.
from libc.stdint cimport uint64_t

ctypedef void* Device  # nvmlDevice_t

cdef enum:
    MAX_FUNCTIONS = 128
    TEXT = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, and the size of a name

cdef enum:  # nvmlReturn_t, those that accelrt tells apart
    OK = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    UNSUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13

# Answers OK and holds the session, which it opens where there is none, or a code and holds nothing.
cdef int hold() noexcept nogil
cdef void let_go() noexcept nogil
cdef uint64_t session() noexcept nogil  # while held: the number of the session, 1 and up; handles go with it
# That session answered UNINITIALIZED, for another user of the library shut it down.  Not for a caller that holds it.
cdef void lose(uint64_t number) noexcept nogil
cdef void* address(int function) noexcept nogil  # while held: of function(...); NULL where the library lacks it
cdef int function(str names) except -1  # number of a function; several names, by blanks, are tried in turn
