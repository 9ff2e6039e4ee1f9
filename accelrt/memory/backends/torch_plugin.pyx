"""accelrt's pool as C symbols in the ABI of torch's CUDAPluggableAllocator, for any library that loads one.

    void *accelrt_torch_alloc(size_t size, int device, void *stream);             // NULL: no memory, or size 0
    void accelrt_torch_free(void *address, size_t size, int device, void *stream);  // NULL: nothing
    void accelrt_torch_record_stream(void *address, void *stream);
    void accelrt_torch_reset(void);                                               // empties every cache
    void accelrt_torch_memory_fraction(double fraction, int device);

They may be called from any thread and take no GIL, except that the process's first use of accelrt initialises
it, as everywhere.  The ABI has no way to say why: each failure is one line on stderr.
"""
from libc.stdint cimport SIZE_MAX, uintptr_t
from libc.stdio cimport fprintf, stderr

cimport accelrt.driver.registry as registry
cimport accelrt.memory.allocator.pool as pool
from accelrt.memory.allocator.read_stats cimport allocated_bytes, reserved_bytes
from accelrt.memory.allocator.types cimport Pool
from accelrt.status cimport FORKED, INVALID_DEVICE, INVALID_VALUE, status_name, status_text

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
    return device < 0 or device >= pool.MAX_DEVICES


cdef void complain(const char* call, int device, int code) noexcept nogil:
    fprintf(stderr, "accelrt: %s on device %d answered %s: %s\n", call, device, status_name(code), status_text(code))


cdef void complain_of_memory(size_t size, int device, int code) noexcept nogil:
    cdef Pool* made = NULL if outside(device) else pool.pool_if_made(device)
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
        code = pool.allocate(device, size, <uintptr_t>stream, &address)
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
        code = pool.use_on(device, <uintptr_t>address, <uintptr_t>stream)
        if code == 0:
            code = pool.release(device, <uintptr_t>address)
    if code and code != FORKED:
        complain("accelrt_torch_free", device, code)


cdef void torch_record_stream(void* address, void* stream) noexcept nogil:
    cdef int device = 0
    cdef int code
    if address == NULL:
        return
    code = pool.locate(0, <uintptr_t>address, &device)
    if code == 0:
        code = pool.use_on(device, <uintptr_t>address, <uintptr_t>stream)
    if code:
        complain("accelrt_torch_record_stream", device, code)


cdef void torch_reset() noexcept nogil:
    cdef int device, code
    for device in range(pool.MAX_DEVICES):
        code = pool.empty(device)
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
        code = pool.set_limit(device, SIZE_MAX if fraction == 1 else <size_t>(fraction * total))
    if code:
        complain("accelrt_torch_memory_fraction", device, code)


exported.alloc = torch_alloc
exported.free = torch_free
exported.record_stream = torch_record_stream
exported.reset = torch_reset
exported.memory_fraction = torch_memory_fraction
