# Sleep and wake of private pools, for the modules beside it.
from libc.stdint cimport uint64_t

# Answer a SleepResult; call is what the user called, for errors.
cdef object put_to_sleep(str call, int ordinal, uint64_t first, uint64_t second, object keep, object exports)
cdef object wake_up(str call, int ordinal, uint64_t first, uint64_t second)
