"""The only calls of accelrt that go through cuda.bindings.

It finds and loads libcuda.  Its functions are taken by name from the module when a driver is opened, not cimported, so
that a build fits every cuda-bindings of CUDA 12.9 and 13 and needs none itself.  They raise Python exceptions where
libcuda or one of its functions is missing, and take the GIL to do so.  Here, at open, that is welcome; in a row it is
not.  So the rows call the addresses that libcuda itself gives out, and this module fetches them.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer

from accelrt.driver.cuda.types cimport CU_GET_PROC_ADDRESS_LEGACY_STREAM
from accelrt.driver.table cimport Table
from accelrt.status cimport NOT_SUPPORTED, SUCCESS

# Which value means an exception differs between releases of cuda-bindings, so the exception itself is asked for.
ctypedef int (*init_fn)(unsigned int flags) except * nogil
ctypedef int (*error_name_fn)(int code, const char** out_name) except * nogil
ctypedef int (*proc_address_fn)(
    const char* name, void** out_address, int version, unsigned long long flags, int* out_status) except * nogil

cdef init_fn cuInit = NULL
cdef error_name_fn cuGetErrorName = NULL
cdef proc_address_fn cuGetProcAddress = NULL
cdef str reason = ""


cdef void* exported(object module, str name, const char* signature) except NULL:
    # A function that a Cython module exports.  The capsule's name is its signature.
    try:
        return PyCapsule_GetPointer(module.__pyx_capi__[name], signature)
    except (KeyError, ValueError):
        raise RuntimeError(
            f"the installed cuda-bindings does not export {name} as {signature.decode()!r}; "
            "install a cuda-bindings from 12.9 on, below 14"
        ) from None


cdef int load() except -1:
    global cuInit, cuGetErrorName, cuGetProcAddress
    from cuda.bindings import cydriver

    cuInit = <init_fn>exported(cydriver, "cuInit", b"CUresult (unsigned int)")
    cuGetErrorName = <error_name_fn>exported(cydriver, "cuGetErrorName", b"CUresult (CUresult, char const **)")
    cuGetProcAddress = <proc_address_fn>exported(
        cydriver, "cuGetProcAddress",
        b"CUresult (char const *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *)")
    return 0


cdef int start() except -1:
    global reason
    cdef int answer
    cdef const char* name = NULL
    reason = ""
    load()
    with nogil:
        answer = cuInit(0)
    if answer != SUCCESS:
        cuGetErrorName(answer, &name)
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
