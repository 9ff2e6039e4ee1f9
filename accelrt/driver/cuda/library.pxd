# NVIDIA's library: brought up once, and asked for the functions that the rows call.
from accelrt.driver.table cimport Table

# One function of the library.  Its version names the ABI: the same that cudaTypedefs.h writes into the
# name of the pointer's type, so that a function whose signature changed since is no trouble.
cdef struct Symbol:
    const char* name  # without a version suffix
    int version       # 12000 is 12.0
    void** function   # where its address goes; NULL is left there where the driver lacks it
    void** row        # the row that cannot work without it; NULL where no row can

cdef str reason  # why open failed; "" while it did not

# Both raise where the library is missing or too old to be asked for its functions.
cdef int start() except -1  # a status code
# Leaves unfilled, as in blank, the rows whose function is missing.  NOT_SUPPORTED where no row can work.
cdef int resolve(Symbol* symbols, int total, Table* table, Table* blank) except -1
