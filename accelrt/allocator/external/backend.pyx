# cython: embedsignature=False
"""Where the allocator's memory comes from: accelrt's own pool, the driver's, or a library's.

The choice is the process's, and is made before the first use of any device's memory.  The library's functions are the
backend pluggable: called with the device current, in relaxed capture mode, and never under the pool's lock.  In the other
direction, this module's file is such a library: it exports accelrt's pool in the ABI of torch's CUDAPluggableAllocator.
"""
import os

from libc.stdint cimport uintptr_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport calloc, free

from accelrt.driver.capture_guard cimport (
    GONE, as_refusal, go_relaxed, is_captured_event, is_device_lost, meaning_of, record_behind, restore_mode,
)
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_DISABLE_TIMING
from accelrt.errors import ArgumentTypeError, NotSupportedError
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.pool cimport use_on
cimport accelrt.allocator.pool as native
from accelrt.allocator.pool_settings cimport limit_of_fraction
from accelrt.allocator.private.private_types cimport Source
from accelrt.allocator.read_stats cimport allocated_bytes, reserved_bytes
from accelrt.allocator.types cimport Pool
from accelrt.allocator.external.external_pool cimport cuda_malloc_async_backend
from accelrt.allocator.external.external_types cimport ExternalPool, Record, Sharer
from accelrt.allocator.settings.apply cimport backend_name, choose_backend
from accelrt.allocator.settings.apply import backend_to_come, read_environment
from accelrt.status cimport (
    FORKED, INVALID_DEVICE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, refuse_copy, refuse_unmade, status_name,
    status_text,
)

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


cdef int mark(ExternalPool* pool, Sharer* sharer) noexcept nogil:
    # The event after which the stream does not use the memory any more.
    cdef uintptr_t event = 0
    cdef int code = as_refusal(pool.table.event_create(sharer.device, EVENT_DISABLE_TIMING, &event))
    if code == 0:
        code = record_behind(pool.table, sharer.device, event, sharer.stream)
        if code:
            pool.table.event_destroy(sharer.device, event)
    if code == 0:
        sharer.event = event
    return code


cdef int mark_all(ExternalPool* pool, Record* record) noexcept nogil:
    # The work that counts is what is there now; a stream that is gone uses nothing more.
    cdef Sharer** link = &record.sharers
    cdef Sharer* sharer
    cdef int code
    while link[0] != NULL:
        sharer = link[0]
        code = mark(pool, sharer) if sharer.event == 0 else 0
        if meaning_of(code) == GONE:
            link[0] = sharer.next
            free(sharer)
        elif code:
            return code
        else:
            link = &sharer.next
    return 0


cdef int drop_done(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    cdef Sharer* sharer
    cdef int code = 0
    while record.sharers != NULL and code == 0:
        sharer = record.sharers
        if wait:
            code = pool.table.event_synchronize(sharer.device, sharer.event)
        else:
            code = pool.table.event_query(sharer.device, sharer.event)
        if not is_device_lost(code) and (is_captured_event(code) or meaning_of(code) == GONE):
            # It says nothing: recorded anew next time.
            pool.table.event_destroy(sharer.device, sharer.event)
            sharer.event = 0
            return NOT_READY
        if code == 0 or is_device_lost(code):
            code = pool.table.event_destroy(sharer.device, sharer.event)
        if code == 0:
            record.sharers = sharer.next
            free(sharer)
    return code


cdef int part(ExternalPool* pool, Record* record, bint wait) noexcept nogil:
    # All events are recorded before one is asked for.
    cdef int mode
    cdef int code = mark_all(pool, record)
    if code == 0:
        code = go_relaxed(pool.table, &mode)
    if code:
        return code
    code = drop_done(pool, record, wait)
    restore_mode(pool.table, mode)
    return code


cdef int trim(ExternalPool* pool, uintptr_t stream) noexcept nogil:
    return 0  # the ABI has no word for it


cdef void fill_pluggable(Pluggable* plug) noexcept nogil:
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

    def allocator(self):
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

    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
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


def change_current_allocator(allocator):
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


def select_backend(name):
    """Chooses the backend by its name, as the setting `backend` of ACCELRT_ALLOC_CONF does.

    Arguments:
        name: "native", accelrt's own pool; or "cudaMallocAsync", the driver's stream-ordered pool.  The host device
            has no such pool, and says so at the first allocation.
    Raises:
        RuntimeError: a device's memory was used already, from another backend.
        ValueError: no such backend.
    """
    read_environment()
    if name == "native":
        choose_backend(NULL, "select_backend")
    elif name == "cudaMallocAsync":
        choose_backend(cuda_malloc_async_backend(), "select_backend")
    elif name == "pluggable":
        raise ValueError("backend 'pluggable' is chosen by change_current_allocator(CUDAPluggableAllocator(...))")
    else:
        raise ValueError(f"backend {name!r} is not known; it may be native or cudaMallocAsync")


cdef str backend_in_effect():
    return backend_to_come() or backend_name()


def get_allocator_backend():
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


def library_path():
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


cdef inline bint outside(int device) noexcept nogil:
    return device < 0 or device >= MAX_DEVICES


cdef void complain(const char* call, int device, int code) noexcept nogil:
    fprintf(stderr, "accelrt: %s on device %d answered %s: %s\n", call, device, status_name(code), status_text(code))


cdef void complain_of_memory(size_t size, int device, int code) noexcept nogil:
    cdef Pool* made = NULL if outside(device) else pool_if_made(device)
    fprintf(
        stderr, "accelrt: accelrt_torch_alloc of %zu bytes on device %d answered %s: %s; accelrt reserved %lld "
        "bytes there, of which %lld are live\n", size, device, status_name(code), status_text(code),
        <long long>reserved_bytes(made), <long long>allocated_bytes(made))


cdef void* torch_alloc(size_t size, int device, void* stream) noexcept nogil:
    cdef uintptr_t address = 0
    cdef int code = INVALID_DEVICE
    if size == 0:
        return NULL
    if not outside(device):
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
    if not outside(device):
        code = use_on(device, <uintptr_t>address, <uintptr_t>stream)
        if code == 0:
            code = native.release(device, <uintptr_t>address)
    if code and code != FORKED:
        complain("accelrt_torch_free", device, code)


cdef void torch_record_stream(void* address, void* stream) noexcept nogil:
    cdef int device = 0
    cdef int code
    if address == NULL:
        return
    code = native.locate(0, <uintptr_t>address, &device)
    if code == 0:
        code = use_on(device, <uintptr_t>address, <uintptr_t>stream)
    if code:
        complain("accelrt_torch_record_stream", device, code)


cdef void torch_reset() noexcept nogil:
    cdef int device, code
    for device in range(MAX_DEVICES):
        code = native.empty(device)
        if code:
            complain("accelrt_torch_reset", device, code)


cdef void torch_memory_fraction(double fraction, int device) noexcept nogil:
    cdef size_t total = 0
    cdef int code = INVALID_DEVICE if outside(device) else 0
    if code == 0 and not 0 <= fraction <= 1:
        code = INVALID_VALUE
    if code == 0:
        code = registry.active().device_memory(device, &total)
    if code == 0:
        code = native.set_limit(device, limit_of_fraction(fraction, total))
    if code:
        complain("accelrt_torch_memory_fraction", device, code)


exported.alloc = torch_alloc
exported.free = torch_free
exported.record_stream = torch_record_stream
exported.reset = torch_reset
exported.memory_fraction = torch_memory_fraction
