"""The Cython API; see api.pxd."""
from libc.string cimport memcpy, memset

from accelrt.core.interpreter cimport interpreter_is_gone
from accelrt.core.slots cimport Slot
from accelrt.devices.device cimport current_ordinal, ordinal_of
from accelrt.driver.guard cimport captures_open
from accelrt.driver.node_params cimport NODE_COPY, NODE_FILL, NODE_KERNEL, NodeParams, SIDES_ASKED
cimport accelrt.driver.registry as registry
from accelrt.driver.table cimport EVENT_BLOCKING_SYNC, EVENT_DEFAULT, EVENT_DISABLE_TIMING
cimport accelrt.graphs.nodes as graphs
from accelrt.allocator.pool cimport MAX_DEVICES, pool_if_made
cimport accelrt.allocator.pool as pool
from accelrt.allocator.heaps cimport thread_number
cimport accelrt.allocator.private.routes as routes
cimport accelrt.allocator.readers as readings
cimport accelrt.allocator.pinned.cache as pinned
from accelrt.runtime.init import later
cimport accelrt.status as status
from accelrt.streams.stream cimport current_handle, device_of_stream
cimport accelrt.runtime.lifetimes as lifetimes
from accelrt.runtime.lifetimes cimport note_record, return_event_handle, take_event_handle
from accelrt.runtime.access cimport begin_nogil_use, end_nogil_use, is_awake


cdef extern from *:
    """
    /* What explain_last_refusal explains: of this thread's last refused request; code 0: there was none. */
    static __thread struct { int code, device; size_t size; uintptr_t stream; } accelrt_last_refusal;
    """
    struct Refusal:
        int code
        int device         # -1: page-locked memory
        size_t size
        uintptr_t stream
    Refusal last_refusal "accelrt_last_refusal"


cdef inline int note_refusal(int code, int device, size_t size, uintptr_t stream) noexcept nogil:
    # Returns the code.
    if code and (code == OUT_OF_MEMORY or code == CAP_REACHED or code == POOL_CAP_REACHED):
        last_refusal.code, last_refusal.device = code, device
        last_refusal.size, last_refusal.stream = size, stream
    return code


cdef inline bint outside(int device) noexcept nogil:
    return device < 0 or device >= MAX_DEVICES


cdef inline int check_stream(int device, uintptr_t stream) noexcept nogil:
    # INVALID_HANDLE for a stream that the driver does not know, or that is another device's.
    cdef int owner
    cdef int code
    if outside(device):
        return INVALID_DEVICE
    code = device_of_stream(device, stream, &owner)
    return INVALID_HANDLE if code == 0 and owner != device else code


cdef int current_device(int* out_device) noexcept nogil:
    return current_ordinal(out_device)


cdef int current_stream(int device, uintptr_t* out_stream) noexcept nogil:
    if outside(device):
        return INVALID_DEVICE
    out_stream[0] = current_handle(device)
    return 0


cdef int allocate(int device, size_t size, uintptr_t stream, uintptr_t* out_address) noexcept nogil:
    cdef int code = check_stream(device, stream)
    if code:
        return code
    return note_refusal(pool.allocate(device, size, stream, out_address), device, size, stream)


cdef int release(int device, uintptr_t address) noexcept nogil:
    if outside(device):
        return INVALID_DEVICE
    return pool.release(device, address)


cdef int record_stream(int device, uintptr_t address, uintptr_t stream) noexcept nogil:
    cdef int code = check_stream(device, stream)
    return code if code else pool.use_on(device, address, stream)


cdef int begin_pool(int device, uint64_t id0, uint64_t id1) noexcept nogil:
    if outside(device):
        return INVALID_DEVICE
    return routes.begin_pool(device, id0, id1)


cdef int end_pool(int device, uint64_t id0, uint64_t id1) noexcept nogil:
    cdef int code, count
    if outside(device):
        return INVALID_DEVICE
    if pool_if_made(device) == NULL:  # nothing was begun there, unless by the parent of this process
        code = registry.active().device_count(&count)
        return code if code else INVALID_VALUE
    return routes.end_pool(device, id0, id1, thread_number())


cdef int allocate_pinned(size_t size, uintptr_t* out_address) noexcept nogil:
    return note_refusal(pinned.allocate_pinned(size, out_address), -1, size, 0)


cdef int release_pinned(uintptr_t address) noexcept nogil:
    return pinned.release_pinned(address)


cdef int record_pinned_stream(int device, uintptr_t address, uintptr_t stream) noexcept nogil:
    cdef int code = check_stream(device, stream)
    return code if code else pinned.use_pinned_on(address, device, stream)


cdef int stream_query(int device, uintptr_t stream) noexcept nogil:
    return registry.active().stream_query(device, stream)


cdef int stream_synchronize(int device, uintptr_t stream) noexcept nogil:
    return registry.active().stream_synchronize(device, stream)


cdef int release_after(int device, uintptr_t address, uintptr_t event) noexcept nogil:
    if outside(device):
        return INVALID_DEVICE
    return pool.release_after(device, address, event, event)


cdef int64_t memory_allocated(int device) noexcept nogil:
    return 0 if outside(device) else readings.allocated_bytes(pool_if_made(device))


cdef int64_t memory_reserved(int device) noexcept nogil:
    return 0 if outside(device) else readings.reserved_bytes(pool_if_made(device))


cdef int stream_wait_event(int device, uintptr_t stream, uintptr_t event) noexcept nogil:
    cdef int code = registry.active().stream_wait_event(device, stream, event)
    return code if code else pool.stream_waits(device, stream, event)


cdef int event_create(int device, bint timing, uintptr_t* out_event) noexcept nogil:
    return registry.active().event_create(device, EVENT_DEFAULT if timing else EVENT_DISABLE_TIMING, out_event)


cdef int event_destroy(int device, uintptr_t event) noexcept nogil:
    return registry.active().event_destroy(device, event)


cdef int event_record(int device, uintptr_t event, uintptr_t stream) noexcept nogil:
    cdef int code = registry.active().event_record(device, event, stream)
    if code == 0 and captures_open():
        note_record(device, event, stream)
    return code


cdef int event_query(int device, uintptr_t event) noexcept nogil:
    return registry.active().event_query(device, event)


cdef int event_synchronize(int device, uintptr_t event) noexcept nogil:
    return registry.active().event_synchronize(device, event)


cdef int event_elapsed(uintptr_t start, uintptr_t end, float* out_milliseconds) noexcept nogil:
    return registry.active().event_elapsed(start, end, out_milliseconds)


cdef int stream_wait_stream(int device, uintptr_t stream, int other_device, uintptr_t other) noexcept nogil:
    cdef uintptr_t event
    cdef int code
    if outside(device) or outside(other_device):
        return INVALID_DEVICE
    code = take_event_handle(other_device, EVENT_DISABLE_TIMING, &event)
    if code:
        return code
    code = event_record(other_device, event, other)
    if code == 0:
        code = registry.active().stream_wait_event(device, stream, event)
    return_event_handle(other_device, event)
    return code


cdef int stream_lease(int device, int priority, uintptr_t* out_stream) noexcept nogil:
    if outside(device):
        return INVALID_DEVICE
    return lifetimes.take_handle(device, priority, out_stream)


cdef int stream_return(int device, uintptr_t stream) noexcept nogil:
    return lifetimes.return_handle(device, stream)


cdef int event_lease(int device, bint timing, bint blocking, uintptr_t* out_event) noexcept nogil:
    cdef unsigned int flags = EVENT_BLOCKING_SYNC if blocking else EVENT_DEFAULT
    if outside(device):
        return INVALID_DEVICE
    return take_event_handle(device, flags if timing else flags | EVENT_DISABLE_TIMING, out_event)


cdef int event_return(int device, uintptr_t event) noexcept nogil:
    return return_event_handle(device, event)


cdef int copy(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil:
    cdef Slot* section = begin_nogil_use()
    cdef int code = SLEEPING
    if section == NULL:
        return NO_HOST_MEMORY
    if is_awake(dst) and is_awake(src):
        code = registry.active().copy(device, stream, dst, src, size)
    end_nogil_use(section)
    return code


cdef int fill(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil:
    cdef Slot* section = begin_nogil_use()
    cdef int code = SLEEPING
    if section == NULL:
        return NO_HOST_MEMORY
    if is_awake(dst):
        code = registry.active().fill(device, stream, dst, value, width, count)
    end_nogil_use(section)
    return code


cdef int kernel_launch(
    int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments
) noexcept nogil:
    return registry.active().kernel_launch(
        device, stream, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, arguments)


cdef int graph_replay(int device, uintptr_t graph, uintptr_t stream) noexcept nogil:
    return registry.active().graph_launch(device, graph, stream)


cdef int graph_set_kernel(
    int device, uintptr_t graph, uintptr_t graph_exec, uintptr_t node, uintptr_t function, unsigned int grid_x,
    unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
    unsigned int shared_bytes, void** arguments
) noexcept nogil:
    cdef NodeParams params
    memset(&params, 0, sizeof(params))
    params.type, params.function, params.arguments = NODE_KERNEL, function, arguments
    params.grid[0], params.grid[1], params.grid[2] = grid_x, grid_y, grid_z
    params.block[0], params.block[1], params.block[2] = block_x, block_y, block_z
    params.shared_bytes = shared_bytes
    return registry.active().graph_node_set(device, graph, graph_exec, node, &params)


cdef int graph_set_copy(
    int device, uintptr_t graph, uintptr_t graph_exec, uintptr_t node, uintptr_t dst, uintptr_t src, size_t size
) noexcept nogil:
    cdef NodeParams params
    memset(&params, 0, sizeof(params))
    params.type, params.dst, params.src, params.sides = NODE_COPY, dst, src, SIDES_ASKED
    params.width, params.height, params.depth = size, 1, 1
    return registry.active().graph_node_set(device, graph, graph_exec, node, &params)


cdef int graph_set_fill(
    int device, uintptr_t graph, uintptr_t graph_exec, uintptr_t node, uintptr_t dst, unsigned int value, int width,
    size_t count
) noexcept nogil:
    cdef NodeParams params
    memset(&params, 0, sizeof(params))
    params.type, params.dst, params.value, params.element = NODE_FILL, dst, value, width
    params.width, params.height, params.depth = count, 1, 1
    return registry.active().graph_node_set(device, graph, graph_exec, node, &params)


cdef int capture_begin(int device, uintptr_t stream, int mode, uint64_t id0, uint64_t id1,
                       uintptr_t* out_graph) noexcept nogil:
    if outside(device):
        return INVALID_DEVICE
    return graphs.begin_graph(device, stream, mode, id0, id1, out_graph)


cdef int capture_end(uintptr_t graph) noexcept nogil:
    return graphs.end_graph(graph)


cdef int capture_status(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil:
    return registry.active().capture_status(device, stream, out_status, out_id)


cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil:
    return registry.active().capture_mode_exchange(mode, out_before)


cdef int graph_instantiate(uintptr_t graph) noexcept nogil:
    return graphs.instantiate_graph(graph)


cdef int graph_launch(uintptr_t graph, uintptr_t stream) noexcept nogil:
    return graphs.launch_graph(graph, stream)


cdef int graph_status(uintptr_t graph, int* out_state, size_t* out_nodes) noexcept nogil:
    return graphs.read_graph(graph, out_state, out_nodes)


cdef int graph_pool(uintptr_t graph, uint64_t* out_id0, uint64_t* out_id1) noexcept nogil:
    return graphs.read_graph_pool(graph, out_id0, out_id1)


cdef int graph_raw(uintptr_t graph, uintptr_t* out_graph, uintptr_t* out_exec) noexcept nogil:
    return graphs.read_raw_graph(graph, out_graph, out_exec)


cdef int graph_destroy(uintptr_t graph) noexcept nogil:
    return graphs.destroy_graph(graph)


cdef const char* status_name(int code) noexcept nogil:
    return status.status_name(code)


cdef const char* status_text(int code) noexcept nogil:
    return status.status_text(code)


cdef int raise_failure(int code, const char* call) except -1 nogil:
    return -1 if interpreter_is_gone() else raise_in_python(code, call)


cdef int raise_in_python(int code, const char* call) except -1 nogil:
    with gil:
        status.raise_status(code, call.decode())
    return 0


cdef size_t explain_refusal(int device, size_t size, uintptr_t stream, char* out_text, size_t room) noexcept nogil:
    if outside(device) or interpreter_is_gone():
        if room:
            out_text[0] = 0
        return 0
    with gil:
        return write_refusal(OUT_OF_MEMORY, device, size, stream, out_text, room)


cdef size_t explain_last_refusal(char* out_text, size_t room) noexcept nogil:
    if last_refusal.code == 0 or interpreter_is_gone():
        if room:
            out_text[0] = 0
        return 0
    with gil:
        return write_refusal(last_refusal.code, last_refusal.device, last_refusal.size, last_refusal.stream, out_text, room)


cdef size_t write_refusal(int code, int device, size_t size, uintptr_t stream, char* out_text, size_t room) noexcept:
    cdef bytes text
    cdef size_t written
    try:
        live = later("accelrt.memory.live")
        if device < 0:
            text = str(live.explained_pinned(size, "")).encode()
        else:
            text = str(live.explained(ordinal_of(device), size, stream, code, "", None)).encode()
    except Exception:  # the status code has to do
        text = b""
    written = min(<size_t>len(text), room - 1) if room else 0
    if room:
        memcpy(out_text, <const char*>text, written)
        out_text[written] = 0
    return len(text)


cdef int api_version() noexcept nogil:
    return API_VERSION


cdef int api_revision() noexcept nogil:
    return API_REVISION
