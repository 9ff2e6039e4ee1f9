"""Other allocators behind accelrt's functions, and accelrt behind torch's."""
import os
from cpython.exc cimport PyErr_Fetch, PyErr_Restore, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strlen

from accelrt.allocator.external.external_pool cimport backend_name, choose_backend
from accelrt.allocator.external.external_pool import choose_by_name
from accelrt.allocator.external.external_types cimport ExternalPool, Record, lock_external, unlock_external
from accelrt.allocator.external.torch_types cimport (
    TORCH_CAPTURE, TORCH_HOLDER, TORCH_TEXT, TORCH_THREAD, TorchTable,
)
from accelrt.allocator.heaps cimport thread_number
from accelrt.allocator.history_types cimport CONTEXT_ALL, CONTEXT_STATE
from accelrt.allocator.pinned.cache cimport record_deferred_pinned
from accelrt.allocator.pool cimport (
    MAX_DEVICES, empty, locate, pool_if_made, record_deferred_uses, release, set_limit, take_stack_of,
    try_allocate, use_across, use_on, wants_stack,
)
cimport accelrt.allocator.pool as native
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.private.routes cimport (
    begin_pool, end_expected_capture, end_thread_route, expect_capture_on, expect_idle, hide_replays, release_pool,
    retain_pool,
)
from accelrt.allocator.readers cimport active_bytes, allocated_bytes, largest_free, limit_of, reserved_bytes
from accelrt.allocator.settings.apply import backend_to_come, read_environment
from accelrt.allocator.types cimport Pool
from accelrt.core.integers cimport checked_address_int
from accelrt.core.interpreter cimport PyGILState_Check, PyThread_get_thread_ident, PyThreadState_SetAsyncExc
from accelrt.core.locks cimport (
    add_count, load_count, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, store_count,
)
from accelrt.core.process cimport FORK_POOLS, at_fork
from accelrt.core.process import call_at_exit
from accelrt.driver.guard cimport (
    GONE, count_out_told_capture, drop_with_gil, expect_told_capture, go_relaxed, is_device_lost, make_thread_state,
    meaning_of, restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport CAPTURE_ACTIVE, CAPTURE_NONE
from accelrt.errors import ArgumentTypeError, NotSupportedError
from accelrt.status cimport (
    CAP_REACHED, DEINITIALIZED, FORKED, INVALID_DEVICE, INVALID_VALUE, NO_HOST_MEMORY, NOT_ALLOCATED, NOT_READY,
    NOT_SUPPORTED, OUT_OF_MEMORY, POOL_CAP_REACHED, UNKNOWN, refuse_copy, refuse_unmade, status_name, status_text,
)
from accelrt.uses.events cimport Use as StreamUse, ask_use, drop_use, mark_use


# stub: TORCH_MARK: int

# --- backend ----------------------------------------------------------------------------------------------------------
# Where the allocator's memory comes from: accelrt's own pool, the driver's, or a library's.
#
# The choice is the process's, and is made before the first use of any device's memory.  The library's functions are the
# backend pluggable: called with the device current, in relaxed capture mode, and never under the pool's lock.  In the other
# direction, this module's file is such a library: it exports accelrt's pool in the ABI of torch's CUDAPluggableAllocator.

# --- the backend pluggable -----------------------------------------------------------------------------------

cdef int enter(ExternalPool* pool, Visit* visit) noexcept nogil:
    # A library calls cudaMalloc on the current device.
    cdef int code = pool.table.current_device(&visit.device)
    if code == 0:
        code = go_relaxed(pool.table, &visit.mode)
    if code == 0 and visit.device != pool.device:
        code = pool.table.set_device(pool.device)
        if code:
            restore_mode(pool.table, visit.mode)
    return code


cdef void leave(ExternalPool* pool, const Visit* visit) noexcept nogil:
    # A library's functions run between these: with the pool's device current, in relaxed capture mode.
    restore_mode(pool.table, visit.mode)
    if visit.device != pool.device:
        pool.table.set_device(visit.device)  # -1 where the thread had no device


cdef int open_device(ExternalPool* pool) noexcept nogil:
    return 0


cdef int take(ExternalPool* pool, Record* record) noexcept nogil:
    cdef const Pluggable* plug = <const Pluggable*>pool.backend
    cdef Visit visit
    cdef int code = enter(pool, &visit)
    if code:
        return code
    record.address = <uintptr_t>plug.alloc(record.size, pool.device, <void*>record.stream)
    leave(pool, &visit)
    return 0 if record.address else OUT_OF_MEMORY


cdef int give(ExternalPool* pool, const Record* record) noexcept nogil:
    cdef const Pluggable* plug = <const Pluggable*>pool.backend
    cdef Visit visit
    cdef int code = enter(pool, &visit)
    if code:
        return code
    plug.free(<void*>record.address, record.size, pool.device, <void*>record.stream)
    leave(pool, &visit)
    return 0


cdef void drop(ExternalPool* pool, StreamUse** link) noexcept nogil:
    lock_external(pool)
    drop_use(&pool.uses, link)
    unlock_external(pool)


cdef int part(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    # The work that counts is what is there now, so all events are recorded before one is asked for; a stream that is gone
    # uses nothing more.
    cdef StreamUse** link = &record.uses
    cdef int code
    while link[0] != NULL:
        code = mark_use(pool.table, link[0])
        if meaning_of(code) == GONE:
            drop(pool, link)
        elif code:
            return code
        else:
            link = &link[0].next
    while record.uses != NULL:
        code = ask_use(pool.table, record.uses, wait)
        if code and not is_device_lost(code):
            return code
        drop(pool, &record.uses)
    return 0


cdef int trim(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    return 0  # the ABI has no word for it


cdef void fill_pluggable(Pluggable* plug) noexcept nogil:
    # All but the two functions.
    plug.backend.name = b"pluggable"
    plug.backend.open = open_device
    plug.backend.take = take
    plug.backend.part = part
    plug.backend.give = give
    plug.backend.trim = trim
    plug.backend.read_reserved = NULL
    plug.backend.reset_reserved_peak = NULL


# --- the choice ----------------------------------------------------------------------------------------------

cdef list chosen_allocators = []  # allocators that were chosen: their libraries stay loaded


cdef object symbol_of(object library, object name, str path, str use):
    if not isinstance(name, str):
        raise TypeError(f"{use} is {name!r} of type {type(name).__name__}; pass the function's name as str")
    if "\0" in name:
        raise ValueError(f"{use} is {name!r}: embedded null character; C would read the name up to it only")
    import ctypes

    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        raise AttributeError(
            f"{path} exports no function {name!r}, which {use} names; check the spelling, and that the function is "
            'extern "C" and has default visibility'
        ) from None


cdef object open_library(str path):
    if "\0" in path:
        raise ValueError(f"path_to_so_file is {path!r}: embedded null character; C would read the path up to it only")
    if os.sep in path and not os.path.exists(path):
        raise FileNotFoundError(f"the allocator's library {path} does not exist")
    import ctypes

    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise OSError(f"the allocator's library {path} cannot be loaded: {error}") from error


cdef bint is_ours(str path) except -1:
    return os.path.exists(path) and os.path.samefile(path, library_path())


cdef class Allocator:
    """What change_current_allocator takes: the base of its kinds."""

    def allocator(self) -> Self:
        """What MemPool(allocator=...) takes, as in torch: the object itself."""
        return self

    def __reduce__(self):
        refuse_copy(self, "it stands for functions of this process; make another one of the same functions")


cdef class CUDAPluggableAllocator(Allocator):
    """CUDAPluggableAllocator(path_to_so_file, alloc_fn_name, free_fn_name)\n--\n\n\
    An allocator in a shared library, for change_current_allocator and MemPool.

    Arguments:
        path_to_so_file: str or path, of the library; one without a slash is looked for as dlopen does.
        alloc_fn_name: str, of `void *alloc(size_t size, int device, cudaStream_t stream)`, which returns NULL
            where it has no memory.
        free_fn_name: str, of `void free(void *ptr, size_t size, int device, cudaStream_t stream)`.
    Raises:
        FileNotFoundError, OSError: the library does not exist, or cannot be loaded.
        AttributeError: it has no such function.
        ValueError: the library is accelrt's own, whose functions would call themselves, or there is a null character in
            a name.

    Both are called from any thread without the GIL, with the device current, the size that was asked for and
    the stream that the memory was asked for on.  free is called when the other streams that were recorded on
    the memory are done with it; that it follows the work of its own stream is the library's part.
    """

    cdef object library
    cdef readonly str path
    cdef readonly str alloc_fn_name
    cdef readonly str free_fn_name

    def __init__(self, path_to_so_file: str | os.PathLike[str], alloc_fn_name: str, free_fn_name: str) -> None:
        self.path = os.fsdecode(path_to_so_file)
        if "\0" not in self.path and os.sep in self.path and is_ours(self.path):
            raise ValueError(f"{self.path} is accelrt's own allocator; it is in use without being plugged in")
        self.library = open_library(self.path)
        cdef uintptr_t alloc = symbol_of(self.library, alloc_fn_name, self.path, "alloc_fn_name")
        cdef uintptr_t give_back = symbol_of(self.library, free_fn_name, self.path, "free_fn_name")
        cdef Pluggable* plug = <Pluggable*>calloc(1, sizeof(Pluggable))  # pools may stand on it while the process lives
        if plug == NULL:
            raise MemoryError("no host memory for an allocator's record")
        fill_pluggable(plug)
        plug.alloc = <void* (*)(size_t, int, void*) noexcept nogil>alloc
        plug.free = <void (*)(void*, size_t, int, void*) noexcept nogil>give_back
        self.backend = &plug.backend
        self.source = <Source*>calloc(1, sizeof(Source))
        if self.source == NULL:
            raise MemoryError("no host memory for an allocator's record")
        self.source.alloc = plug.alloc
        self.source.free = plug.free
        self.alloc_fn_name = alloc_fn_name
        self.free_fn_name = free_fn_name

    def __repr__(self):
        return f"<accelrt.memory.CUDAPluggableAllocator {self.alloc_fn_name}, {self.free_fn_name} of {self.path}>"


cdef const Source* source_of(object allocator) except NULL:
    if isinstance(allocator, Allocator) and (<Allocator>allocator).backend == NULL:
        refuse_unmade(allocator)
    if not isinstance(allocator, Allocator) or (<Allocator>allocator).source == NULL:
        raise ArgumentTypeError(
            f"allocator is {allocator!r} of type {type(allocator).__name__}; pass a CUDAPluggableAllocator, or None"
        )
    chosen_allocators.append(allocator)
    return (<Allocator>allocator).source


def change_current_allocator(allocator: Allocator) -> None:
    """Has a library allocate instead of accelrt, for the whole process and every device.

    Arguments:
        allocator: CUDAPluggableAllocator, or CallbackAllocator, as accelrt.interop.rmm.from_rmm and
            accelrt.interop.cuda_core.from_resource make.
    Raises:
        RuntimeError: a device's memory was used already.
        TypeError: allocator is none.

    Streams, events, copies, record_stream, limits and statistics work as before.  Allocating on a stream that is
    capturing and snapshots raise NotSupportedError: they need accelrt's own pool.
    """
    if not isinstance(allocator, Allocator):
        raise TypeError(
            f"allocator is {allocator!r} of type {type(allocator).__name__}; pass a CUDAPluggableAllocator or a "
            "CallbackAllocator"
        )
    if (<Allocator>allocator).backend == NULL:
        refuse_unmade(allocator)
    read_environment()  # what the environment chose is replaced by this, not the other way round at first use
    choose_backend((<Allocator>allocator).backend, "change_current_allocator")
    chosen_allocators.append(allocator)


def select_backend(name: str) -> None:
    """Chooses the backend by its name, as the setting `backend` of ACCELRT_ALLOC_CONF does.

    Arguments:
        name: "native", accelrt's own pool; or "cudaMallocAsync", the driver's stream-ordered pool.  The host device
            has no such pool, and says so at the first allocation.
    Raises:
        RuntimeError: a device's memory was used already, from another backend.
        ValueError: no such backend.
    """
    read_environment()
    if name == "pluggable":
        raise ValueError("backend 'pluggable' is chosen by change_current_allocator(CUDAPluggableAllocator(...))")
    if name not in ("native", "cudaMallocAsync"):
        raise ValueError(f"backend {name!r} is not known; it may be native or cudaMallocAsync")
    choose_by_name(name, "select_backend")


cdef str backend_in_effect():
    return backend_to_come() or backend_name()


def get_allocator_backend() -> str:
    """Where memory comes from, or will at first use: "native", "cudaMallocAsync", "pluggable", or the name of a
    CallbackAllocator, such as "rmm".

    Raises:
        SettingsError: before first use, ACCELRT_ALLOC_CONF is malformed.
    """
    return backend_in_effect()


cdef int require_native(str feature) except -1:
    name = backend_in_effect()
    if name != "native":
        raise NotSupportedError(
            f"{feature} is not supported by the backend {name!r}, which keeps no segments of its own; choose the "
            "backend 'native'", NOT_SUPPORTED, "NOT_SUPPORTED", feature,
        )
    return 0


def library_path() -> str:
    """The file of a shared library that exports accelrt's pool in the ABI of CUDAPluggableAllocator.

    Returns:
        str, an absolute path, for torch.cuda.memory.CUDAPluggableAllocator(path, "accelrt_torch_alloc",
        "accelrt_torch_free") or any other user of dlopen in this process.  The library is loaded and ready; its
        first call initialises accelrt, as every first use does.  It also exports accelrt_torch_record_stream,
        accelrt_torch_reset and accelrt_torch_memory_fraction.
    """
    return os.path.abspath(__file__)


# --- accelrt's pool in the ABI of torch's CUDAPluggableAllocator ---------------------------------------------

# accelrt's pool as C symbols, for any library that loads this module's file.  They may be called from any thread and take
# no GIL, except that the process's first use of accelrt initialises it, as everywhere.  The ABI has no way to say why:
# each failure is one line on stderr.
#
#     void *accelrt_torch_alloc(size_t size, int device, void *stream);             // NULL: no memory, or size 0
#     void accelrt_torch_free(void *address, size_t size, int device, void *stream);  // NULL: nothing
#     void accelrt_torch_record_stream(void *address, void *stream);
#     void accelrt_torch_reset(void);                                               // empties every cache
#     void accelrt_torch_memory_fraction(double fraction, int device);

cdef extern from *:
    """
    #include <stddef.h>
    #define ACCELRT_EXPORT __attribute__((visibility("default")))
    static struct Exported {  /* set when the module is initialised; loading the file alone does not */
        void *(*alloc)(size_t, int, void *);
        void (*free)(void *, size_t, int, void *);
        void (*record_stream)(void *, void *);
        void (*reset)(void);
        void (*memory_fraction)(double, int);
    } exported;
    ACCELRT_EXPORT void *accelrt_torch_alloc(size_t size, int device, void *stream) {
        return exported.alloc ? exported.alloc(size, device, stream) : NULL;
    }
    ACCELRT_EXPORT void accelrt_torch_free(void *address, size_t size, int device, void *stream) {
        if (exported.free)
            exported.free(address, size, device, stream);
    }
    ACCELRT_EXPORT void accelrt_torch_record_stream(void *address, void *stream) {
        if (exported.record_stream)
            exported.record_stream(address, stream);
    }
    ACCELRT_EXPORT void accelrt_torch_reset(void) {
        if (exported.reset)
            exported.reset();
    }
    ACCELRT_EXPORT void accelrt_torch_memory_fraction(double fraction, int device) {
        if (exported.memory_fraction)
            exported.memory_fraction(fraction, device);
    }
    """
    struct Exported:
        void* (*alloc)(size_t size, int device, void* stream) noexcept nogil
        void (*free)(void* address, size_t size, int device, void* stream) noexcept nogil
        void (*record_stream)(void* address, void* stream) noexcept nogil
        void (*reset)() noexcept nogil
        void (*memory_fraction)(double fraction, int device) noexcept nogil
    Exported exported


cdef bint is_outside(int device) noexcept nogil:
    return device < 0 or device >= MAX_DEVICES


cdef void complain_plugged(const char* call, int device, int code) noexcept nogil:
    fprintf(stderr, "accelrt: %s on device %d answered %s: %s\n", call, device, status_name(code), status_text(code))


cdef void complain_of_memory(size_t size, int device, int code) noexcept nogil:
    cdef Pool* pool = NULL if is_outside(device) else pool_if_made(device)
    fprintf(
        stderr, "accelrt: accelrt_torch_alloc of %zu bytes on device %d answered %s: %s; accelrt reserved %lld "
        "bytes there, of which %lld are live\n", size, device, status_name(code), status_text(code),
        <long long>reserved_bytes(pool), <long long>allocated_bytes(pool))


cdef void* torch_alloc(size_t size, int device, void* stream) noexcept nogil:
    cdef uintptr_t address = 0
    cdef int code = INVALID_DEVICE
    if size == 0:
        return NULL
    if not is_outside(device):
        code = native.allocate(device, size, <uintptr_t>stream, &address)
    if code:
        complain_of_memory(size, device, code)
        return NULL
    return <void*>address


cdef void torch_free(void* address, size_t size, int device, void* stream) noexcept nogil:
    # The stream that frees is one that used the memory; where it is the one that allocated, this is no news.
    cdef int code = INVALID_DEVICE
    if address == NULL:
        return
    if not is_outside(device):
        code = use_on(device, <uintptr_t>address, <uintptr_t>stream)
        if code == 0:
            code = native.release(device, <uintptr_t>address)
    if code and code != FORKED:
        complain_plugged("accelrt_torch_free", device, code)


cdef void torch_record_stream(void* address, void* stream) noexcept nogil:
    cdef int device = 0
    cdef int code
    if address == NULL:
        return
    code = native.locate(0, <uintptr_t>address, &device)
    if code == 0:
        code = use_on(device, <uintptr_t>address, <uintptr_t>stream)
    if code:
        complain_plugged("accelrt_torch_record_stream", device, code)


cdef void torch_reset() noexcept nogil:
    cdef int device, code
    for device in range(MAX_DEVICES):
        code = native.empty(device)
        if code:
            complain_plugged("accelrt_torch_reset", device, code)


cdef void torch_memory_fraction(double fraction, int device) noexcept nogil:
    cdef size_t total = 0
    cdef int code = INVALID_DEVICE if is_outside(device) else 0
    if code == 0 and not 0 <= fraction <= 1:
        code = INVALID_VALUE
    if code == 0:
        code = registry.active().device_memory(device, &total)
    if code == 0:
        code = native.set_limit(device, limit_of_fraction(fraction, total))
    if code:
        complain_plugged("accelrt_torch_memory_fraction", device, code)


exported.alloc = torch_alloc
exported.free = torch_free
exported.record_stream = torch_record_stream
exported.reset = torch_reset
exported.memory_fraction = torch_memory_fraction


# --- callbacks --------------------------------------------------------------------------------------------------------
# Memory from two Python functions, for libraries whose allocators are Python objects.
#
# The functions run with the GIL, with the device current, in relaxed capture mode, and without the pool's lock.  The
# thread may hold the pool's relief, which is recursive, and which nothing waits for with the GIL held: so a function may
# use accelrt, and even free and allocate its memory.

cdef extern from *:
    """
    static __thread int accelrt_callback_depth;  /* allocate functions that this thread is inside of */
    static int accelrt_callbacks_over;           /* the interpreter ends: call no more functions */
    #define load_over() __atomic_load_n(&accelrt_callbacks_over, __ATOMIC_ACQUIRE)
    #define store_over() __atomic_store_n(&accelrt_callbacks_over, 1, __ATOMIC_RELEASE)
    """
    int depth "accelrt_callback_depth"
    bint load_over() noexcept nogil
    void store_over() noexcept nogil

cdef enum:
    MAX_DEPTH = 8  # a function that allocates what it is asked for from accelrt would call itself without end


# --- the rows -------------------------------------------------------------------------------------------------

cdef void tell(object error) noexcept:
    if on_failure != NULL:
        on_failure(error)


cdef uintptr_t address_in(const Callbacks* callbacks, const Record* record, int device) except? 0:
    # What the function answers: 0 and None are no memory.
    if depth > MAX_DEPTH:
        raise RecursionError("it asks accelrt for the memory, which asks it")
    answer = (<object>callbacks.allocate)(record.size, device, record.stream)
    return 0 if answer is None else checked_address_int(answer, "what it returned")


cdef uintptr_t ask(const Callbacks* callbacks, const Record* record, int device, int* out_code) noexcept:
    # With the GIL.
    global depth
    cdef uintptr_t address = 0
    out_code[0] = OUT_OF_MEMORY
    depth += 1
    try:
        address = address_in(callbacks, record, device)
        if address:
            out_code[0] = 0
    except MemoryError as error:
        tell(error)
    except Exception as error:
        out_code[0] = UNKNOWN
        name = (<bytes>callbacks.name).decode()
        failure = RuntimeError(
            f"the allocator {name!r} failed: allocate({record.size}, device {device}, stream {record.stream:#x}) raised "
            f"{type(error).__name__}: {error}; nothing was allocated"
        )
        failure.__cause__ = error
        tell(failure)
    except BaseException as error:
        out_code[0] = UNKNOWN
        tell(error)
    depth -= 1
    return address


cdef int take_from_callback(ExternalPool* pool, Record* record) noexcept nogil:
    cdef Visit visit
    cdef bint new_state
    cdef int code
    if load_over():
        return DEINITIALIZED
    code = enter(pool, &visit)
    if code:
        return code
    new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        record.address = ask(<const Callbacks*>pool.backend, record, pool.device, &code)
    leave(pool, &visit)
    return code


def report(error: BaseException, function: object) -> None:
    """Has sys.unraisablehook tell of an exception of a function that has no caller to raise it to."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(function)


cdef void call_free(const Callbacks* callbacks, const Record* record, int device) noexcept:
    # With the GIL; an exception may be under way, as where a destructor frees.  What the function raises can reach no
    # caller, for it is called late, and by whichever thread comes by; and the memory is not asked back twice.
    cdef PyObject* kind
    cdef PyObject* value
    cdef PyObject* trace
    PyErr_Fetch(&kind, &value, &trace)
    try:
        (<object>callbacks.free)(record.address, record.size, device, record.stream)
    except Exception as error:
        report(error, <object>callbacks.free)
    except BaseException as error:
        PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type(error))
    PyErr_Restore(kind, value, trace)


cdef int give_to_callback(ExternalPool* pool, const Record* record) noexcept nogil:
    cdef Visit visit
    cdef bint new_state
    cdef int code
    if load_over():  # the memory goes with the process
        return 0
    code = enter(pool, &visit)
    if code:
        return code
    new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        call_free(<const Callbacks*>pool.backend, record, pool.device)
    leave(pool, &visit)
    return 0


# --- the allocator --------------------------------------------------------------------------------------------

cdef class CallbackAllocator(Allocator):
    """CallbackAllocator(allocate, free, name="callbacks")\n--\n\n\
    An allocator of two Python functions, for change_current_allocator.

    Arguments:
        allocate: callable as allocate(size, device, stream): bytes, an ordinal, and a stream's handle as int.  It
            returns the address as int, and 0 or None, or raises MemoryError, where it has no memory.
        free: callable as free(address, size, device, stream), with what allocate was given and returned.
        name: str, what get_allocator_backend() and errors call it.
    Raises:
        TypeError, ValueError: allocate or free cannot be called, or name is no str, is empty, or names a backend of
            accelrt's own.

    Both are called from any thread, with the GIL, with the device current.  They may use accelrt, but begin no capture,
    and not wait for another thread that allocates: it may be waiting for them.  free is called when the other streams
    that were recorded on the memory are done with it; that it follows the work of its own stream is the function's part.

    What allocate raises, the allocation raises: an OutOfMemoryError of a MemoryError once nothing helped, and of any
    other Exception a RuntimeError, whose __cause__ it is.  What free raises is reported by sys.unraisablehook; the
    memory counts as given back.  At the interpreter's exit neither is called any more.
    """
    # stub: allocate: Callable[[int, int, int], int | None]
    # stub: free: Callable[[int, int, int, int], object]

    def __init__(
        self,
        allocate: Callable[[int, int, int], int | None],
        free: Callable[[int, int, int, int], object],  # no-cython-lint
        name: str = "callbacks",
    ) -> None:
        cdef Callbacks* callbacks
        for function, use in ((allocate, "allocate(size, device, stream)"), (free, "free(address, size, device, stream)")):
            if not callable(function):
                raise TypeError(f"{function!r} of type {type(function).__name__} cannot be called; pass a callable as {use}")
        if not isinstance(name, str):
            raise TypeError(f"name is {name!r} of type {type(name).__name__}; pass a str")
        if not name or "\0" in name or name in ("native", "cudaMallocAsync", "pluggable"):
            raise ValueError(f"name is {name!r}; pass a name that no backend of accelrt's has, without a null character")
        if self.backend != NULL:
            raise RuntimeError("a CallbackAllocator is initialised once")
        text = name.encode()
        callbacks = <Callbacks*>calloc(1, sizeof(Callbacks))
        if callbacks == NULL:
            raise MemoryError("no host memory for an allocator's record")
        for kept in (text, allocate, free):  # pools may stand on them for as long as the process lives
            Py_INCREF(kept)
        callbacks.name = <PyObject*>text
        callbacks.allocate = <PyObject*>allocate
        callbacks.free = <PyObject*>free
        fill_pluggable(<Pluggable*>callbacks)  # whose rows between taking and giving serve these too
        callbacks.backend.name = text
        callbacks.backend.take = take_from_callback
        callbacks.backend.give = give_to_callback
        self.backend = &callbacks.backend
        self.allocate, self.free, self.name = allocate, free, name

    def __repr__(self):
        return f"<accelrt.memory.CallbackAllocator {self.name!r}: {self.allocate!r}, {self.free!r}>"


def _stop_calling():
    store_over()


call_at_exit("allocator.external.backends", "callbacks", _stop_calling)


# --- torch hooks ------------------------------------------------------------------------------------------------------
# accelrt's pool behind torch's CUDAPluggableAllocator: every function that torch calls of such an allocator.
#
# torch takes them as addresses of C++ functions.  Their arguments are a std::pair of two integers, which arrives in
# registers as a C structure of two integers does, and a std::function, which arrives as a pointer; so plain C functions
# serve, and nothing of torch is needed to compile them.  `prepare` finds the setters by the names that C++ gives them: such
# a name spells out every argument and the C++ library, so a torch whose functions are others is refused there.
#
# torch passes a filter with each pool, which says what is allocated from it.  It is never called or copied, since the one of
# a capture dies with torch's graph, and torch does not say so when a capture fails.  What it is for is read from its type:
# a capture, which is then known by the stream that is current when it begins, or the calling thread.

cdef extern from "Python.h" nogil:
    void* PyGILState_GetThisThreadState()
    void PyEval_RestoreThread(void* state)
    void* PyEval_SaveThread()

# --- what torch calls ----------------------------------------------------------------------------------------

# These return to C++ frames, and those that raise do so from here, where no lock is held and no frame needs cleaning up:
# the exception passes through frames of C only.  torch calls free, end_pool and release_pool in destructors, where an
# exception would end the process, so those write what went wrong to stderr.

cdef extern from "torch_abi.h":
    struct Hooks:
        int (*alloc)(size_t size, int device, void* stream, uintptr_t* out_address, char* text) noexcept nogil
        void (*free)(void* address, int device) noexcept nogil
        void (*record_stream)(void* address, void* stream) noexcept nogil
        void (*reset)() noexcept nogil
        size_t (*largest)(int device) noexcept nogil
        void (*memory_fraction)(double fraction, int device) noexcept nogil
        int (*init)(int count, char* text) noexcept nogil
        int (*begin_pool)(int device, uint64_t first, uint64_t second, int purpose, char* text) noexcept nogil
        void (*end_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
        void (*release_pool)(int device, uint64_t first, uint64_t second) noexcept nogil
    Hooks hooks
    void* save_thread "accelrt_leave_gil" () noexcept nogil
    void restore_thread "accelrt_enter_gil" (void* state) noexcept nogil
    const char* find_in_torch "accelrt_find" (void* library, int* raises) noexcept nogil
    bint replace_cache_info "accelrt_answer_cache_info" (void* library) noexcept nogil
    void* open_loaded "accelrt_open" (const char* path) noexcept nogil


cdef void* leave_gil() noexcept nogil:
    return save_thread()


cdef void enter_gil(void* state) noexcept nogil:
    restore_thread(state)


cdef void complain_torch(const char* call, int device, int code) noexcept nogil:
    fprintf(stderr, "accelrt: %s on device %d answered %s: %s\n", call, device, status_name(code), status_text(code))


cdef int explain(char* text, const char* call, int device, int code) noexcept nogil:
    snprintf(text, TORCH_TEXT, "accelrt, which is torch's allocator here, could not %s on device %d: %s (%d): %s", call,
             device, status_name(code), code, status_text(code))
    return -1


# --- memory --------------------------------------------------------------------------------------------------

cdef double mib(int64_t size) noexcept nogil:
    return size / 1048576.0


cdef double amount(size_t size) noexcept nogil:
    # In what unit_of answers.
    return size / 1073741824.0 if size >= 1 << 30 else mib(size)


cdef const char* unit_of(size_t size) noexcept nogil:
    return b"GiB" if size >= 1 << 30 else b"MiB"


cdef int explain_memory(char* text, int device, size_t size) noexcept nogil:
    # Takes no GIL: torch may hold locks of its own here.  It begins with torch's words, which programs look for.
    cdef Pool* pool = pool_if_made(device)
    cdef size_t room = 0, capacity = 0
    cdef size_t limit = limit_of(pool)
    cdef int64_t reserved = reserved_bytes(pool), live = allocated_bytes(pool), active = active_bytes(pool)
    cdef int written
    registry.active().memory_info(device, &room, &capacity)  # a refusal leaves zeros
    written = snprintf(
        text, TORCH_TEXT, "CUDA out of memory. Tried to allocate %.2f %s. GPU %d has a total capacity of %.2f %s of which "
        "%.2f %s is free. It is %zu bytes of accelrt, torch's allocator here. accelrt reserved %.2f MiB: "
        "%.2f are live, %.2f given back but in use on another stream, %.2f idle, of which the largest piece has %.2f. "
        "accelrt.memory.report() shows what holds it.", amount(size), unit_of(size), device, amount(capacity),
        unit_of(capacity), amount(room), unit_of(room), size, mib(reserved), mib(live), mib(active - live),
        mib(reserved - active), mib(largest_free(pool)))
    if limit < SIZE_MAX and written > 0 and written < TORCH_TEXT:
        snprintf(text + written, TORCH_TEXT - written, " The limit is %.2f MiB (set_per_process_memory_fraction).",
                 mib(limit))
    return 1


cdef int hook_alloc(size_t size, int device, void* stream, uintptr_t* out_address, char* text) noexcept nogil:
    # 0; else there is a text: above 0 for a lack of memory, below for everything else.
    cdef int code
    out_address[0] = 0
    if size == 0:
        return 0
    if is_outside(device):
        return explain(text, "allocate", device, INVALID_DEVICE)
    if wants_stack(CONTEXT_STATE):
        take_stack_here(device, CONTEXT_STATE)
    code = try_allocate(device, size, <uintptr_t>stream, out_address)
    if code == NOT_READY:
        code = alloc_slow(size, device, <uintptr_t>stream, out_address)
    if code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED:
        return explain_memory(text, device, size)
    return explain(text, "allocate", device, code) if code else 0


cdef void take_stack_here(int device, int level) noexcept nogil:
    # torch has released the GIL; its own recorder takes it again in the same places.  Threads of C++ alone have no frames.
    cdef void* state = PyGILState_GetThisThreadState()
    if state != NULL and not PyGILState_Check():
        PyEval_RestoreThread(state)
        take_stack_of(device, level)
        PyEval_SaveThread()


cdef int alloc_slow(size_t size, int device, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    # With the GIL as it is: to release it and take it again would deadlock where torch holds a lock of its own, for which
    # another thread may wait with the GIL.
    if load_count(&open_captures):
        drop_ended()
    return native.allocate(device, size, stream, out_address)


cdef void hook_free(void* address, int device) noexcept nogil:
    # torch names the stream that the memory was allocated on, which is no news.
    cdef int code = INVALID_DEVICE
    if address == NULL:
        return
    if not is_outside(device):
        if wants_stack(CONTEXT_ALL):
            take_stack_here(device, CONTEXT_ALL)
        code = release(device, <uintptr_t>address)
    if code and code != FORKED:
        complain_torch("freeing torch's memory", device, code)


cdef void hook_record_stream(void* address, void* stream) noexcept nogil:
    # Also called for memory that torch has from elsewhere, another library's or another process's: nothing to do.
    cdef int device = 0, stream_on = 0
    cdef int code
    if address == NULL:
        return
    code = locate(0, <uintptr_t>address, &device)
    if code == 0:
        code = registry.active().stream_device(device, <uintptr_t>stream, &stream_on)
    if code == 0:
        code = use_across(device, <uintptr_t>address, stream_on, <uintptr_t>stream)
    if code and code != NOT_ALLOCATED and code != FORKED:
        complain_torch("record_stream for torch", device, code)


cdef size_t hook_largest(int device) noexcept nogil:
    # The largest block that an allocation could get now: of the device, or of what is idle.
    cdef Pool* pool = NULL if is_outside(device) else pool_if_made(device)
    cdef size_t room = 0, capacity = 0, limit = limit_of(pool)
    cdef size_t reserved = reserved_bytes(pool)
    registry.active().memory_info(device, &room, &capacity)
    if limit < SIZE_MAX:
        room = min(room, limit - reserved if limit > reserved else 0)
    return max(room, largest_free(pool))


cdef void hook_reset() noexcept nogil:
    cdef void* state = leave_gil()
    cdef int device, code
    if load_count(&open_captures):
        drop_ended()
    for device in range(MAX_DEVICES):
        code = empty(device)
        if code:
            complain_torch("empty_cache for torch", device, code)
    enter_gil(state)


cdef void hook_memory_fraction(double fraction, int device) noexcept nogil:
    cdef void* state = leave_gil()
    cdef size_t total = 0
    cdef int code = INVALID_DEVICE if is_outside(device) else 0
    if code == 0 and not 0 <= fraction <= 1:
        code = INVALID_VALUE
    if code == 0:
        code = registry.active().device_memory(device, &total)
    if code == 0:
        code = set_limit(device, limit_of_fraction(fraction, total))
    enter_gil(state)
    if code:
        complain_torch("set_per_process_memory_fraction for torch", device, code)


cdef int hook_init(int count, char* text) noexcept nogil:
    # When torch initialises CUDA: accelrt has to see the same devices.  With the GIL as it is: torch calls this once, and
    # other threads wait for that, maybe with the GIL.  So accelrt.interop.torch has accelrt initialised before.
    cdef int seen = 0
    cdef int code = registry.active().device_count(&seen)
    if code:
        return explain(text, "initialise", 0, code)
    if seen < count:
        snprintf(text, TORCH_TEXT, "torch sees %d devices and accelrt, which is torch's allocator here, %d: "
                 "CUDA_VISIBLE_DEVICES was changed between their first uses; set it before either is used", count, seen)
        return -1
    return 0


# --- pools ---------------------------------------------------------------------------------------------------

# A pool that torch uses: from begin_pool to release_pool.
cdef struct Use:
    int device
    int purpose        # TORCH_CAPTURE or TORCH_THREAD
    int state
    uint64_t[2] id     # accelrt's
    uint64_t thread    # the number of the thread that began it
    uintptr_t origin   # of a capture: the stream that it was to begin on
    uint64_t capture   # the driver's id of it, once its own thread saw it run
    bint seen          # another thread did; of an object, that its end will be told (tell_holder)
    Use* next

cdef enum:  # Use.state
    OPEN = 0   # allocations go to it
    ENDED = 1  # they no longer do; the memory is retained
    LOST = 2   # a capture that ended, of which torch has not said so: it failed, or its thread is about to say so

cdef enum:
    ANY_STATE = -1

# An id of torch's stands for a pool of torch's; where the second number has this bit, for a MemPool of accelrt's.
cdef enum:
    MARK = 62

cdef pthread_mutex_t guard   # of uses; the last in the lock order, and never held while anything is waited for
cdef Use* uses = NULL        # the latest first
cdef long open_captures = 0  # of the uses
cdef object current_stream = None  # torch's function: the handle of the calling thread's current stream on a device


cdef void translate(uint64_t first, uint64_t second, uint64_t* out_id) noexcept nogil:
    if first == 0 and second >> MARK & 1:
        out_id[0], out_id[1] = 0, second ^ <uint64_t>1 << MARK
    else:
        out_id[0], out_id[1] = first | <uint64_t>1 << MARK, second


cdef bint is_match(const Use* use, int device, const uint64_t* id, int state) noexcept nogil:
    return (use.device == device and use.id[0] == id[0] and use.id[1] == id[1]
            and (use.state == state or state == ANY_STATE and use.state != ENDED))


cdef Use** find_use(int device, const uint64_t* id, int state) noexcept nogil:
    # Returns the link to the calling thread's latest use of the pool in that state, one by use_mem_pool before one by a
    # capture; else to any thread's latest.  The link leads to NULL if there is none.
    cdef uint64_t thread = thread_number()
    cdef Use** link = &uses
    cdef Use** match = NULL
    cdef int rank, best = -1
    while link[0] != NULL:
        if is_match(link[0], device, id, state):
            if link[0].purpose == TORCH_CAPTURE:
                rank = 1 + 2 * (link[0].thread == thread)
            elif link[0].purpose == TORCH_HOLDER:
                rank = 0 if link[0].seen else 5
            else:
                rank = 0 if link[0].thread != thread else 3 + (state == ENDED)
            if rank > best:
                match, best = link, rank
        link = &link[0].next
    return link if match == NULL else match


cdef void add_use(Use* use) noexcept nogil:
    global uses
    pthread_mutex_lock(&guard)
    use.next = uses
    uses = use
    pthread_mutex_unlock(&guard)


cdef int stream_of_thread(int device, uintptr_t* out_stream) noexcept nogil:
    # Asks torch, with the GIL.
    cdef bint new_state = make_thread_state()
    with gil:
        drop_with_gil(new_state)
        try:
            out_stream[0] = current_stream(device)
        except BaseException:  # else an interruption would leave the capture expected on no stream
            return NOT_SUPPORTED
    return 0


cdef int begin_capture_use(Use* use) noexcept nogil:
    # torch begins the capture as soon as this returns.  As accelrt's own captures, it is counted before it begins.
    cdef int device = use.device
    cdef uint64_t first = use.id[0], second = use.id[1]
    cdef int code = retain_pool(device, first, second, False, 0)
    if code:
        return code
    expect_idle(device)
    expect_told_capture()
    code = expect_capture_on(device, use.origin, first, second)
    if code:
        count_out_told_capture()
        record_deferred_uses()
        record_deferred_pinned()
        release_pool(device, first, second, False)
        return code
    add_count(&open_captures, 1)
    return 0


cdef int hook_begin_pool(int device, uint64_t first, uint64_t second, int purpose, char* text) noexcept nogil:
    cdef uintptr_t stream = 0
    cdef int code = 0
    if is_outside(device):
        return explain(text, "allocate from a pool", device, INVALID_DEVICE)
    if purpose != TORCH_CAPTURE and purpose != TORCH_THREAD:
        snprintf(text, TORCH_TEXT, "accelrt, which is torch's allocator here, serves torch's pools for captures "
                 "(torch.cuda.graph) and for the calling thread (torch.cuda.use_mem_pool); this call asks for something "
                 "else, such as the body of a condition, or all threads or one stream is_outside a capture")
        return -1
    if purpose == TORCH_CAPTURE:
        code = stream_of_thread(device, &stream)
    return begin_use(device, first, second, purpose, stream, text) if code == 0 else explain(
        text, "allocate from a pool", device, code)


cdef int begin_use(int device, uint64_t first, uint64_t second, int purpose, uintptr_t stream, char* text) noexcept nogil:
    # stream: of a capture, the one that it begins on.
    cdef void* state
    cdef Use* use
    cdef int code
    if is_outside(device):
        return explain(text, "allocate from a pool", device, INVALID_DEVICE)
    use = <Use*>calloc(1, sizeof(Use))
    if use == NULL:
        return explain(text, "allocate from a pool", device, NO_HOST_MEMORY)
    use.device, use.purpose, use.thread, use.origin = device, purpose, thread_number(), stream
    translate(first, second, use.id)
    state = leave_gil()
    if load_count(&open_captures):
        drop_ended()
    if purpose == TORCH_CAPTURE:
        code = begin_capture_use(use)
    elif purpose == TORCH_HOLDER:
        use.state = ENDED
        code = retain_pool(device, use.id[0], use.id[1], True, SIZE_MAX)
    else:
        code = begin_pool(device, use.id[0], use.id[1])
    if code == 0:
        add_use(use)
    enter_gil(state)
    if code:
        free(use)
        return explain(text, "allocate from a pool", device, code)
    return 0


cdef void end_use(Use* use) noexcept nogil:
    # Of a copy of the record, without the guard.
    if use.purpose == TORCH_THREAD:
        end_thread_route(use.device, use.id[0], use.id[1], use.thread)
        return
    add_count(&open_captures, -1)
    count_out_told_capture()
    end_expected_capture(use.device, use.origin, use.id[0], use.id[1])
    record_deferred_uses()
    record_deferred_pinned()


cdef void release_use(Use* use) noexcept nogil:
    # torch does not say on which streams its graph was replayed.
    if use.purpose == TORCH_CAPTURE:
        hide_replays(use.device, use.id[0], use.id[1])
    release_pool(use.device, use.id[0], use.id[1], use.purpose != TORCH_CAPTURE)


cdef void hook_end_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] id
    cdef void* state
    cdef Use* use
    cdef Use ended
    cdef int before = ENDED
    memset(&ended, 0, sizeof(Use))
    translate(first, second, id)
    pthread_mutex_lock(&guard)
    use = find_use(device, id, ANY_STATE)[0]
    if use != NULL:
        before = use.state
        use.state = ENDED
        ended = use[0]
    pthread_mutex_unlock(&guard)
    if before == OPEN:
        state = leave_gil()
        end_use(&ended)
        enter_gil(state)


cdef void hook_release_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef uint64_t[2] id
    cdef void* state
    cdef Use** link
    cdef Use* use
    translate(first, second, id)
    pthread_mutex_lock(&guard)
    link = find_use(device, id, ENDED)
    use = link[0]
    if use != NULL:
        link[0] = use.next
    pthread_mutex_unlock(&guard)
    if use == NULL:
        return
    state = leave_gil()
    release_use(use)
    enter_gil(state)
    free(use)


# --- captures that fail --------------------------------------------------------------------------------------

cdef bint is_over(Use* use) noexcept nogil:
    # torch says nothing of a capture that fails, to begin or to end; the driver says whether its stream still captures.  A
    # capture that never ran is over for certain only on its own thread, which is past the attempt to begin it.  Another
    # thread may be ending it just now, and so asks for the status alone: which capture it is only the own thread asks.
    cdef uint64_t capture = 0
    cdef int status = CAPTURE_NONE
    if registry.active().stream_is_capturing(use.device, use.origin, &status):
        return False
    if use.thread != thread_number():
        use.seen = use.seen or status == CAPTURE_ACTIVE
        return status == CAPTURE_NONE and (use.seen or use.capture != 0)
    if registry.active().capture_status(use.device, use.origin, &status, &capture):
        return False
    if status == CAPTURE_ACTIVE and use.capture == 0:
        use.capture = capture
    if status != CAPTURE_NONE:
        return status == CAPTURE_ACTIVE and capture != use.capture
    return True


cdef bint take_ended(Use* out_use, bint* out_lost) noexcept nogil:
    # Takes the next capture that is over without torch having said so.  On its own thread torch will not say it any more,
    # so the record goes; on another it may be about to.
    cdef Use** link = &uses
    cdef Use* use
    cdef bint own, found = False
    pthread_mutex_lock(&guard)
    while link[0] != NULL and not found:
        use = link[0]
        own = use.thread == thread_number()
        found = use.purpose == TORCH_CAPTURE and (use.state == OPEN and is_over(use) or use.state == LOST and own)
        if not found:
            link = &use.next
            continue
        out_use[0] = use[0]
        out_lost[0] = not own
        use.state = LOST
        if own:
            link[0] = use.next
            free(use)
    pthread_mutex_unlock(&guard)
    return found


cdef void drop_ended() noexcept nogil:
    # Without the GIL.
    cdef Use use
    cdef bint lost = False
    memset(&use, 0, sizeof(Use))
    while take_ended(&use, &lost):
        if use.state == OPEN:
            end_use(&use)
        if not lost:
            release_use(&use)


cdef void forget_uses() noexcept nogil:
    # At import, and in a forked child, which has none of the parent's captures and pools.
    global uses
    pthread_mutex_init(&guard, NULL)
    uses = NULL
    store_count(&open_captures, 0)


forget_uses()
at_fork("allocator.external.backends", FORK_POOLS, NULL, NULL, &forget_uses)
hooks.alloc = hook_alloc
hooks.free = hook_free
hooks.record_stream = hook_record_stream
hooks.reset = hook_reset
hooks.largest = hook_largest
hooks.memory_fraction = hook_memory_fraction
hooks.init = hook_init
hooks.begin_pool = hook_begin_pool
hooks.end_pool = hook_end_pool
hooks.release_pool = hook_release_pool


# --- for accelrt.interop.torch -------------------------------------------------------------------------------

TORCH_MARK = <uint64_t>1 << MARK


def prepare(library: bytes, stream_function: Callable[[int], int]) -> tuple[str | None, bool]:
    """Finds in torch what the functions above need.

    Arguments:
        library: bytes, the path of torch's extension module, which is loaded.
        stream_function: called with an ordinal, answers the handle of the calling thread's current stream.
    Returns:
        (str or None, bool): the C++ name of what this torch lacks; whether out of memory can be raised as torch's
        OutOfMemoryError, and not only as its base RuntimeError.
    """
    global current_stream
    cdef int raises = 0
    cdef const char* lacks
    cdef void* opened = open_loaded(library)
    if opened == NULL:
        return f"the library {library!r}", False
    lacks = find_in_torch(opened, &raises)
    if lacks != NULL:
        return lacks[:strlen(lacks)].decode(), False
    current_stream = stream_function
    return None, bool(raises)


def answer_cache_info(library: bytes) -> bool:
    """Has torch's current allocator, which is this one, answer what cuDNN's benchmark mode asks: the largest block.

    Arguments:
        library: bytes, as for prepare.
    Returns:
        bool: whether it does; else torch raises RuntimeError there, as with every plugged allocator.
    """
    cdef void* opened = open_loaded(library)
    return opened != NULL and replace_cache_info(opened)


cdef double fraction_of_limit(int device) noexcept nogil:
    cdef size_t total = 0, limit = limit_of(NULL if is_outside(device) else pool_if_made(device))
    registry.active().device_memory(device, &total)
    return 1.0 if limit == SIZE_MAX or total == 0 else <double>limit / <double>total


def limit_fraction(int device) -> float:
    """The part of a device's memory that may be reserved, 1.0 where there is no limit."""
    cdef double fraction
    with nogil:
        fraction = fraction_of_limit(device)
    return fraction


cdef void torchs_name(const uint64_t* id, uint64_t* out_name) noexcept nogil:
    # The id by which torch knows a private pool; zeros for none.
    cdef uint64_t bit = <uint64_t>1 << MARK
    if id[0] & bit:
        out_name[0], out_name[1] = id[0] ^ bit, id[1]
    else:
        out_name[0], out_name[1] = 0, id[1] | bit if id[1] else 0


cdef void fill_hooks(TorchTable* table) noexcept nogil:
    table.alloc = hook_alloc
    table.release = hook_free
    table.record_stream = hook_record_stream
    table.empty = hook_reset
    table.largest = hook_largest
    table.set_fraction = hook_memory_fraction
    table.init = hook_init
    table.begin_pool = begin_use
    table.end_pool = hook_end_pool
    table.release_pool = hook_release_pool


def tell_holder(int device, pool: tuple[int, int], bint alive) -> None:
    """Says whether the object of torch's that holds a pool lives: only as it dies is the next release of the pool its own.

    Arguments:
        pool: (int, int), torch's id of it.
    """
    cdef uint64_t[2] id
    cdef Use* use
    translate(pool[0], pool[1], id)
    pthread_mutex_lock(&guard)
    use = uses
    while use != NULL:
        if use.purpose == TORCH_HOLDER and is_match(use, device, id, ENDED):
            use.seen = alive
        use = use.next
    pthread_mutex_unlock(&guard)


def open_uses() -> list[tuple[int, tuple[int, int], str, str]]:
    """Lists what torch uses of pools, 64 at most, for tests: (device, id, "capture", "thread" or "object", state)."""
    # No object is made under the guard: a garbage collection may end uses.
    cdef Use[64] copies
    cdef int index, count = 0
    cdef Use* use
    cdef list answer = []
    pthread_mutex_lock(&guard)
    use = uses
    while use != NULL and count < 64:
        copies[count] = use[0]
        count += 1
        use = use.next
    pthread_mutex_unlock(&guard)
    for index in range(count):
        use = &copies[index]
        kind = {TORCH_CAPTURE: "capture", TORCH_HOLDER: "object"}.get(use.purpose, "thread")
        answer.append((use.device, (use.id[0], use.id[1]), kind, ("open", "ended", "lost")[use.state]))
    return answer
