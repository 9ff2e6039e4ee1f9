# The Cython API: accelrt's hot paths for nogil code of other projects.
#
#     from accelrt.api cimport allocate, import_accelrt, release
#     import_accelrt()    # once, when your module is imported
#
# No CUDA header is needed, here or at your side: handles and addresses are uintptr_t, and 0 is none; as a
# stream it is the device's legacy default stream.  A function answers a status code, 0 for success; what
# the others mean is in accelrt/status.pxd (the numbers are those of CUresult) and in status_text().
# None takes the GIL, except that the process's first use initialises accelrt, as in Python; call
# import_accelrt() with ACCELRT_DRIVER set, or accelrt.init() before.  Any thread may call, best without the GIL: a call
# may wait for another thread's call of the driver, and that for a function of Python's.  device is an ordinal.
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from accelrt.status cimport (
    CAP_REACHED, CAPTURE_INVALID, CAPTURE_UNJOINED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, ILLEGAL_STATE, INVALID_DEVICE,
    INVALID_HANDLE, INVALID_VALUE, NOT_ALLOCATED, NOT_READY, NOT_SUPPORTED, NO_HOST_MEMORY, OUT_OF_MEMORY,
    POOL_CAP_REACHED, SLEEPING, SUCCESS,
)

cdef enum:
    API_VERSION = 1   # raised when a signature below changes
    API_REVISION = 6  # raised when functions are added; a module that uses one not installed cannot be imported

# --- place ---

# The calling thread's current device; no driver call where there is only one.
cdef int current_device(int* out_device) noexcept nogil
# The calling thread's current stream of a device, as set in Python; 0 on threads that Python never saw.
cdef int current_stream(int device, uintptr_t* out_stream) noexcept nogil

# --- memory ---

# size bytes on a device, in the order of stream; the address is a multiple of 512, and 0 for size 0.
# OUT_OF_MEMORY, after the cache's idle memory went back to the device in vain; CAP_REACHED by the process's limit
# (set_per_process_memory_fraction), POOL_CAP_REACHED by a MemPool's,
# SLEEPING by a MemPool that sleeps; copies, fills and graphs over memory of such a pool are answered SLEEPING too.
# Here and below INVALID_HANDLE for a stream that the driver does not know, or that is another device's.
cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil
# Gives memory of that device back; 0 does nothing.  NOT_ALLOCATED for any other address not handed out.
cdef int release(int device, uintptr_t address) noexcept nogil
# Another stream uses the memory: once released, it is not handed out before that work is done.
cdef int record_stream(int device, uintptr_t address, uintptr_t stream) noexcept nogil

# What the calling thread allocates on the device goes to a memory pool, until end_pool: torch's
# beginAllocateCurrentThreadToPool.  A pool is named by the two numbers of MemPool.id or CUDAGraph.pool(), and made if
# need be; it is held meanwhile.  Pools nest, the innermost counts.  NOT_SUPPORTED by another backend than accelrt's own,
# INVALID_VALUE for the pool of a Reservation, which has no memory but what is committed.
cdef int begin_pool(int device, uint64_t id0, uint64_t id1) noexcept nogil
# Ends the thread's latest begin_pool of that pool; INVALID_VALUE where there is none.
cdef int end_pool(int device, uint64_t id0, uint64_t id1) noexcept nogil

# --- page-locked host memory, of one cache for all devices ---

# size bytes; the address is a multiple of 64, of 4096 for sizes above 1 MiB, and 0 for size 0.
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
cdef int event_create(int device, bint timing, uintptr_t* out_event) noexcept nogil  # timing: event_elapsed takes it
cdef int event_destroy(int device, uintptr_t event) noexcept nogil            # complete or not; it does not wait
cdef int event_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil  # behind what the stream has so far
cdef int event_query(int device, uintptr_t event) noexcept nogil              # NOT_READY while not complete
cdef int event_synchronize(int device, uintptr_t event) noexcept nogil        # waits
# Milliseconds between two records of events with timing; NOT_READY while not complete, INVALID_HANDLE if not recorded.
cdef int event_elapsed(uintptr_t start, uintptr_t end, float* out_milliseconds) noexcept nogil
# The stream waits for all that was put into other, of any device, so far.
cdef int stream_wait_stream(int device, uintptr_t stream, int other_device, uintptr_t other) noexcept nogil

# From pools: yours alone until it is returned, and then neither used nor destroyed by you.  Returning what is not out
# is INVALID_HANDLE.  A stream, non-blocking; a lower priority is more urgent, 0 is usual.  Its work may go on when it is
# returned: it is leased again when that is complete.
cdef int stream_lease(int device, int priority, uintptr_t* out_stream) noexcept nogil
cdef int stream_return(int device, uintptr_t stream) noexcept nogil
# An event; blocking: event_synchronize sleeps.  Its last record may be a former holder's: record it, then ask or wait.
cdef int event_lease(int device, bint timing, bint blocking, uintptr_t* out_event) noexcept nogil
cdef int event_return(int device, uintptr_t event) noexcept nogil

# --- work; all of it is put into a stream of the device and runs later ---

# Between any two of device and host memory; host memory that is not page-locked is staged.
cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil
# count elements of width 1, 2 or 4 bytes.
cdef int fill(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil
# A kernel, by Kernel.handle or the driver's own CUfunction; arguments are pointers to the values, which are read before
# it returns.  INVALID_VALUE beyond the device's or the kernel's limits.  Nothing is checked or noted beyond what the
# driver does: memory of another stream is yours to record, and what a captured launch uses, the Kernel too, to keep; and
# the Kernel has to live until the launch is done.  More than 48 KiB of dynamic shared memory a launch in Python permits.
cdef int kernel_launch(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y,
                       unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
                       unsigned int shared_bytes, void** arguments) noexcept nogil
# What a kernel of the host device is told of the block that it is called for, void (*)(const KernelBlock*, void**)
# (docs/guide/kernels.md).
cdef struct KernelBlock:
    unsigned int[3] grid       # blocks in the grid: x, y, z
    unsigned int[3] block      # threads in a block
    unsigned int[3] index      # which block this call is for
    unsigned int shared_bytes  # of dynamic shared memory
    void* shared               # that memory; NULL for none
    int* failed                # set it to 1 where the kernel fails
# graph is CUDAGraph.raw_cuda_graph_exec(); keep the CUDAGraph alive until all its replays are done.  For others:
# graph_launch.
cdef int graph_replay(int device, uintptr_t graph, uintptr_t stream) noexcept nogil
# Gives a node of an instance (CUDAGraph.raw_cuda_graph_exec(), GraphNode.id) other parameters for later launches; for 0 the
# node of the graph itself (raw_cuda_graph()), for later instances.  Others: graph_raw, and the driver's handle of the node.
# Not while another thread launches or changes the instance.  Nothing is kept or noted: memory and kernels live until
# launches that use them are done, and what Python knows of the node is as it was: change a node here or there.
# As of kernel_launch, whose arguments are copied; the kernel may be another one, of the same context.
cdef int graph_set_kernel(int device, uintptr_t graph, uintptr_t graph_exec, uintptr_t node, uintptr_t function,
                          unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                          unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                          void** arguments) noexcept nogil
# Of a copy, between memory of the kinds and devices that it was made for, none of it ordinary host memory.
cdef int graph_set_copy(int device, uintptr_t graph, uintptr_t graph_exec, uintptr_t node, uintptr_t dst, uintptr_t src,
                        size_t size) noexcept nogil
# As of fill.
cdef int graph_set_fill(int device, uintptr_t graph, uintptr_t graph_exec, uintptr_t node, uintptr_t dst, unsigned int value,
                        int width, size_t count) noexcept nogil

# --- captures and the graphs that they make; a graph is changed and destroyed by one thread at a time ---

cdef enum:  # modes: whose calls that are unsafe beside a capture break it (CUDA driver API, CUstreamCaptureMode)
    CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2
cdef enum:  # what a stream is in
    CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_BROKEN = 2
cdef enum:  # what a graph is: empty once its capture failed, ready to be launched
    GRAPH_EMPTY = 0, GRAPH_CAPTURING = 1, GRAPH_CAPTURED = 2, GRAPH_READY = 3

# Begins to capture a stream into a new graph, which is to be destroyed whatever becomes of it; 0 on failure.  What is
# allocated on capturing streams comes from a private pool, by the numbers of begin_pool, or for 0, 0 one of the
# graph's own, and keeps its addresses until the graph is destroyed.  What else nodes point at, and Python functions
# among them, you keep.  Other streams join by waiting for an event of the capture, and have to be joined back.
cdef int capture_begin(int device, uintptr_t stream, int mode, uint64_t id0, uint64_t id1,
                       uintptr_t* out_graph) noexcept nogil
# On the thread that began it, unless in relaxed mode.  Where it fails, the stream is out of the capture, the memory
# back in the pool, and the graph GRAPH_EMPTY.
cdef int capture_end(uintptr_t graph) noexcept nogil
cdef int capture_status(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil  # id: if active
# The calling thread's mode: in CAPTURE_RELAXED its calls break no capture.  Put it back afterwards.
cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil
cdef int graph_instantiate(uintptr_t graph) noexcept nogil                   # GRAPH_CAPTURED becomes GRAPH_READY
cdef int graph_launch(uintptr_t graph, uintptr_t stream) noexcept nogil      # ILLEGAL_STATE unless GRAPH_READY
cdef int graph_status(uintptr_t graph, int* out_state, size_t* out_nodes) noexcept nogil  # nodes: once captured
cdef int graph_pool(uintptr_t graph, uint64_t* out_id0, uint64_t* out_id1) noexcept nogil  # to share with others
cdef int graph_raw(uintptr_t graph, uintptr_t* out_graph, uintptr_t* out_exec) noexcept nogil  # the driver's; 0: none
# In any state; launches still complete.  What the driver refuses to give back now waits.
cdef int graph_destroy(uintptr_t graph) noexcept nogil

# --- status codes in words ---

cdef const char* status_name(int code) noexcept nogil  # "OUT_OF_MEMORY"; "UNKNOWN" for a number not listed
cdef const char* status_text(int code) noexcept nogil  # a sentence

# Takes the GIL and raises what a code stands for, as Python's functions do; call names what answered it.  Answers -1, as
# functions of Python's C API do that set an exception.
cdef int raise_failure(int code, const char* call) except -1 nogil

# Writes what Python's error would say now of a request of allocate that was answered OUT_OF_MEMORY: what holds the memory,
# and what to do.  At most room bytes, the last of them 0; answers the text's length without that, or 0 where it cannot be
# told.  Takes the GIL.
cdef size_t explain_refusal(int device, size_t size, uintptr_t stream, char* out_text, size_t room) noexcept nogil
# The same of the calling thread's last request of allocate or allocate_pinned that was answered OUT_OF_MEMORY, CAP_REACHED
# or POOL_CAP_REACHED; 0 where none was.
cdef size_t explain_last_refusal(char* out_text, size_t room) noexcept nogil

# The version and the revision of the accelrt that is installed.
cdef int api_version() noexcept nogil
cdef int api_revision() noexcept nogil


cdef inline int check_status(int code, const char* call) except -1 nogil:
    # For the border to Python: nothing for SUCCESS, else an exception.
    return raise_failure(code, call) if code else 0


cdef inline int import_accelrt() except -1:
    # Compares the version that your module was compiled against with the installed one.
    if api_version() != API_VERSION:
        raise ImportError(
            f"this module was built for accelrt's Cython API {API_VERSION}, installed is {api_version()}; rebuild it"
        )
    return 0
