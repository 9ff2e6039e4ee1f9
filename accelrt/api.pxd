# The Cython door: accelrt's hot paths for nogil code of other projects.
#
#     from accelrt.api cimport allocate, import_accelrt, release
#     import_accelrt()    # once, when your module is imported
#
# No CUDA header is needed, here or at your side: handles and addresses are uintptr_t, and 0 is none; as a
# stream it is the device's legacy default stream.  A function answers a status code, 0 for success; what
# the others mean is in accelrt/status.pxd (the numbers are those of CUresult) and in status_text().
# None takes the GIL, except that the process's first use initialises accelrt, as in Python; call
# import_accelrt() with ACCELRT_DRIVER set, or accelrt.init() before, to choose the moment.  Every function
# may be called from any thread.  device is an ordinal, 0 to device_count() - 1.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED,
    OUT_OF_MEMORY, POOL_CAP_REACHED, SUCCESS,
)

cdef enum:
    API_VERSION = 1  # raised when a signature below changes

# --- place ---

# The calling thread's current device; no driver call where there is only one.
cdef int current_device(int* out_device) noexcept nogil
# The calling thread's current stream of a device, as set in Python; 0 on threads that Python never saw.
cdef int current_stream(int device, uintptr_t* out_stream) noexcept nogil

# --- memory ---

# size bytes on a device, in the order of stream; the address is a multiple of 512, and 0 for size 0.
# OUT_OF_MEMORY, after the cache's idle memory went back to the device in vain; POOL_CAP_REACHED by a MemPool's limit.
cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
# Gives memory of that device back; 0 does nothing.  NOT_ALLOCATED for any other address not handed out.
cdef int release(int device, uintptr_t address) noexcept nogil
# Another stream uses the memory: once released, it is not handed out before that work is done.
cdef int record_stream(int device, uintptr_t address, uintptr_t stream) noexcept nogil

# What the calling thread allocates on the device goes to a memory pool, until end_pool: torch's
# beginAllocateCurrentThreadToPool.  A pool is named by the two numbers of MemPool.id or CUDAGraph.pool(), and made if
# need be; it is held meanwhile.  Pools nest, the innermost counts.  NOT_SUPPORTED by another backend than accelrt's own.
cdef int begin_pool(int device, uint64_t id0, uint64_t id1) noexcept nogil
# Ends the thread's latest begin_pool of that pool; INVALID_VALUE where there is none.
cdef int end_pool(int device, uint64_t id0, uint64_t id1) noexcept nogil

# --- page-locked host memory, of one cache for all devices ---

# size bytes; the address is a multiple of 64, of 4096 from 32 KiB on, and 0 for size 0.
cdef int allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil
# Gives such memory back; 0 does nothing.  NOT_ALLOCATED for any other address not handed out.
cdef int release_pinned(uintptr_t address) noexcept nogil
# Work on a stream of the device uses the memory that contains the address: once released, it is not handed out
# before that work is done.  What a graph uses has to be kept, or recorded for each stream that it is replayed on.
cdef int record_pinned_stream(int device, uintptr_t address, uintptr_t stream) noexcept nogil

# Gives memory back as of a recorded event: it is free once that is complete, and a stream that waits for the event
# by the stream_wait_event below may take it at once.  Keep the event, unrecorded anew, until it is complete.
cdef int release_after(int device, uintptr_t address, uintptr_t event) noexcept nogil
# Bytes: of live blocks, and held from the device.
cdef int64_t memory_allocated(int device) noexcept nogil
cdef int64_t memory_reserved(int device) noexcept nogil

# --- streams and events; an event belongs to the device that it was made for ---

cdef int stream_query(int device, uintptr_t stream) noexcept nogil            # NOT_READY while work is left
cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil      # waits
cdef int stream_wait_event(int device, uintptr_t stream, uintptr_t event) noexcept nogil  # the stream waits, not you
cdef int event_create(int device, bint timing, uintptr_t* out_event) noexcept nogil
cdef int event_destroy(int device, uintptr_t event) noexcept nogil
cdef int event_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil
cdef int event_query(int device, uintptr_t event) noexcept nogil              # NOT_READY while not complete
cdef int event_synchronize(int device, uintptr_t event) noexcept nogil        # waits

# --- work; all of it is put into a stream of the device and runs later ---

# Between any two of device and host memory; host memory that is not page-locked is staged.
cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil
# count elements of width 1, 2 or 4 bytes.
cdef int fill(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil
# graph is CUDAGraph.raw_cuda_graph_exec; keep the CUDAGraph alive until all its replays are done.
cdef int graph_replay(int device, uintptr_t graph, uintptr_t stream) noexcept nogil

# --- status codes in words ---

cdef const char* status_name(int code) noexcept nogil  # "OUT_OF_MEMORY"
cdef const char* status_text(int code) noexcept nogil  # a sentence

# The version of the accelrt that is installed.
cdef int api_version() noexcept nogil


cdef inline int import_accelrt() except -1:
    # Compares the version that your module was compiled against with the installed one.
    if api_version() != API_VERSION:
        raise ImportError(
            f"this module was built for accelrt's Cython API {API_VERSION}, installed is {api_version()}; rebuild it"
        )
    return 0
