"""NVIDIA's driver behind the driver table.

Importing this module loads no library and makes no call; open does.  Until then the table has no row
but open and close.  The rows stand with their subjects: context (devices, and the waits that a signal may end), memory,
stream (with events and copies), graph (captures, graphs and their nodes, sharing between processes), and kernel (modules,
functions, launches, kernel nodes).
"""
from posix.types cimport pid_t
from posix.unistd cimport getpid

cimport accelrt.driver.cuda.context as cuda_context
from accelrt.driver.cuda.context cimport count_devices, fill_context, fill_waits
from accelrt.driver.cuda.graph cimport fill_graph
from accelrt.driver.cuda.kernel cimport fill_kernel
from accelrt.driver.cuda.memory cimport fill_memory
from accelrt.driver.cuda.stream cimport fill_stream
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.table cimport Table
from accelrt.status cimport INIT_FAILED, NO_DEVICE, SUCCESS, keep_init_error

cdef Table table
cdef Table blank           # all rows unfilled: what a row goes back to where its function is missing
cdef pid_t opened_by = 0   # the process that the driver was opened in


cdef int open_driver() noexcept nogil:
    with gil:
        return open_with_gil()


cdef int open_with_gil() noexcept:
    # A second call in the same process answers as the first did, or tries again where that failed.
    global opened_by
    cdef int code
    if opened_by == getpid():
        return SUCCESS
    try:
        code = bring_up()
    except Exception as error:
        cuda_context.reason = f"NVIDIA's driver library cannot be used: {error}"
        return NO_DEVICE
    except BaseException as error:  # an interruption: the caller is told, and the next call tries again
        keep_init_error(error)
        return INIT_FAILED
    if code == SUCCESS:
        opened_by = getpid()
    return code


cdef int bring_up() except -1:
    cdef int code = cuda_context.start()
    if code == SUCCESS:
        code = fill_all()
    if code == SUCCESS:
        code = count_devices()
        if code != SUCCESS:
            cuda_context.reason = f"the driver started, but asking for its devices answered code {code}"
    return code


cdef int fill_all() except -1:
    cdef int code = fill_context(&table, &blank)
    fill_memory(&table, &blank)
    fill_stream(&table, &blank)
    fill_graph(&table, &blank)
    fill_kernel(&table, &blank)
    fill_waits(&table, &blank)
    finish_table(&table)
    return code


cdef int close_driver() noexcept nogil:
    # The driver tears itself down after the process's last atexit function, and the callbacks that are
    # still queued go with it: the code that gave them data has waited for them.
    return SUCCESS


def open_error():
    """Why open did not answer SUCCESS, as text; "" where it did or was not called yet."""
    return cuda_context.reason


begin_table(&blank, b"cuda")
begin_table(&table, b"cuda")
table.open = open_driver
table.close = close_driver
finish_table(&table)
offer("cuda", &table)
