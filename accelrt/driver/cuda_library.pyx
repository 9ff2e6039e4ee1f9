"""The only calls of accelrt that go through cuda.bindings.

Its wrappers raise Python exceptions where libcuda or one of its functions is missing, and take the GIL
to do so.  Here, at open, that is welcome; in a row it is not.  So the rows call the addresses that the
library itself gives out, and this module fetches them.
"""
from cuda.bindings.cydriver cimport (
    CU_GET_PROC_ADDRESS_LEGACY_STREAM,
    CUresult,
    cuGetErrorName,
    cuGetProcAddress,
    cuInit,
)

from accelrt.driver.table cimport Table
from accelrt.status cimport NOT_SUPPORTED, SUCCESS

cdef str reason = ""


cdef int start() except -1:
    global reason
    cdef int answer
    cdef const char* name = NULL
    reason = ""
    with nogil:
        answer = cuInit(0)
    if answer != SUCCESS:
        cuGetErrorName(<CUresult>answer, &name)
        reason = f"cuInit answered {name.decode() if name else 'a code without a name'} ({answer})"
    return answer


cdef int resolve(Symbol* symbols, int total, Table* table, Table* blank) except -1:
    global reason
    cdef int index, code = SUCCESS
    cdef Symbol* symbol
    for index in range(total):
        symbol = &symbols[index]
        symbol.function[0] = find(symbol.name, symbol.version)
        if symbol.function[0] != NULL:
            continue
        if symbol.row == NULL:
            reason = f"NVIDIA's driver has no {symbol.name.decode()} of version {symbol.version}"
            code = NOT_SUPPORTED
        else:
            symbol.row[0] = (<void**>blank)[symbol.row - <void**>table]
    return code


cdef void* find(const char* name, int version) except? NULL:
    # LEGACY_STREAM: stream 0 is the legacy default stream, whatever this process was compiled with.
    cdef void* address = NULL
    cdef int code = cuGetProcAddress(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL)
    return address if code == SUCCESS else NULL
