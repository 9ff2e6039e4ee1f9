# The contract between accelrt and a device: one C struct of function pointers.
#
# Every row returns a status code (accelrt/status.pxd; the numbers are those of CUresult) and takes neutral types only, so
# that a module which includes this file needs no CUDA header.  Reading rules, which rowgen.py also relies on to write the
# rows that merely forward:
#   - one row a line; an argument whose name starts with out_ is written by the row, the rest are read;
#   - handles (streams, events, graphs, ...) and device addresses are uintptr_t; 0 is "none", and for a stream the legacy
#     default stream of the device named beside it;
#   - a row given a device makes that device's primary context current for the call and puts back what the thread had
#     before, be it nothing or a context of another library; only set_device leaves it changed; a row given none needs none:
#     it runs in whatever is current, else in the context of some device;
#   - capture_status answers an id of 0 unless the capture is ACTIVE;
#   - while a thread is in capture_end, a driver may crash on any call about the streams of that capture, or an event of
#     it, but for stream_is_capturing: the active table holds such calls back (guard.pxd);
#   - out_text has TEXT_BYTES bytes, out_log LOG_BYTES, out_uuid 16, out_ipc 64;
#   - no row takes the GIL, runs Python or waits for a lock of ours, but where its comment says so, and device_, stream_ and
#     event_synchronize between begin_wait and end_wait (guard.pxd), where they look for signals and may answer INTERRUPTED.
# Rows are only ever added, at the end of their group, with TABLE_VERSION raised.
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.driver.node_params cimport NodeParams, host_fn

cdef enum:
    TABLE_VERSION = 20
    TEXT_BYTES = 256
    LOG_BYTES = 4096

cdef struct Table:
    unsigned int version  # TABLE_VERSION it was built for
    unsigned int size     # sizeof(Table)
    unsigned int rows     # rows filled, the rest answer NOT_SUPPORTED
    const char* name      # "cuda", "host", ...

    # devices and contexts
    int (*open)() noexcept nogil  # may take the GIL; called once a process, before any other row
    int (*driver_version)(int* out_version) noexcept nogil  # 13000 is 13.0
    int (*device_count)(int* out_count) noexcept nogil
    int (*device_name)(int device, char* out_text) noexcept nogil
    int (*device_uuid)(int device, char* out_uuid) noexcept nogil
    int (*device_pci_bus_id)(int device, char* out_text) noexcept nogil
    int (*device_attribute)(int device, int attribute, int* out_value) noexcept nogil  # CUdevice_attribute numbers
    int (*device_memory)(int device, size_t* out_total) noexcept nogil  # bytes, no context needed
    int (*memory_info)(int device, size_t* out_free, size_t* out_total) noexcept nogil  # bytes
    int (*current_device)(int* out_device) noexcept nogil  # of the calling thread; -1 where no context is current
    int (*set_device)(int device) noexcept nogil  # of the calling thread; -1: no context is current any more
    int (*device_synchronize)(int device) noexcept nogil
    int (*can_access_peer)(int device, int peer, int* out_can) noexcept nogil
    int (*enable_peer)(int device, int peer) noexcept nogil  # SUCCESS too where it was enabled before
    int (*limit_get)(int device, int limit, size_t* out_value) noexcept nogil  # CUlimit numbers
    int (*limit_set)(int device, int limit, size_t value) noexcept nogil  # as near as the device has it
    int (*l2_reset)(int device) noexcept nogil  # lines that the L2 cache keeps as persisting become normal ones

    # memory: plain
    int (*memory_alloc)(int device, size_t size, uintptr_t* out_address) noexcept nogil
    int (*memory_free)(int device, uintptr_t address) noexcept nogil  # waits for the device's work
    int (*pointer_device)(uintptr_t address, int* out_device) noexcept nogil  # -1: known host memory

    # memory: virtual
    int (*granularity)(int device, size_t* out_size) noexcept nogil
    int (*address_reserve)(size_t size, size_t alignment, uintptr_t* out_address) noexcept nogil
    int (*address_free)(uintptr_t address, size_t size) noexcept nogil
    int (*physical_create)(int device, size_t size, bint shared, uintptr_t* out_handle) noexcept nogil
    int (*physical_release)(uintptr_t handle) noexcept nogil  # its bytes go when the last mapping does
    int (*memory_map)(uintptr_t address, size_t size, uintptr_t handle) noexcept nogil  # a handle whole, never a part
    int (*memory_access)(uintptr_t address, size_t size, int device, int access) noexcept nogil  # MEMORY_; whole mappings
    int (*memory_unmap)(uintptr_t address, size_t size) noexcept nogil  # waits for nothing: the caller does
    # memory that another process may have: a handle leaves as a file descriptor, which the caller closes, and comes from
    # one, which the caller may close at once; the bytes go with the last handle and mapping in any process
    int (*physical_export)(uintptr_t handle, int* out_file) noexcept nogil  # INVALID_VALUE where it is not shared
    int (*physical_import)(int device, int file, uintptr_t* out_handle) noexcept nogil
    # the addresses from `at` on where the driver can give them, else others
    int (*address_reserve_at)(size_t size, size_t alignment, uintptr_t at, uintptr_t* out_address) noexcept nogil

    # memory: the driver's own stream-ordered pool of a device; the pool_ rows tell of it, and set it
    int (*async_alloc)(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil
    int (*async_free)(int device, uintptr_t stream, uintptr_t address) noexcept nogil

    # memory: host
    int (*host_alloc)(int device, size_t size, uintptr_t* out_address) noexcept nogil  # page-locked, portable
    int (*host_free)(int device, uintptr_t address) noexcept nogil  # waits for the device's work
    int (*host_register)(int device, uintptr_t address, size_t size) noexcept nogil
    int (*host_unregister)(int device, uintptr_t address) noexcept nogil

    # memory: managed, which the host and every device use at one address, and memory_free frees; a device moves it to where
    # it is used, so that there may be more of it than the device has.  prefetch and discard take ManagedRanges, in the
    # stream's order, discard with the legacy default stream nowhere and a capture none of both: CAPTURE_UNSUPPORTED, and
    # the capture is broken.  Discarded contents may be gone; one that also prefetches moves the ranges without them.
    # advise takes CUmem_advise numbers; attribute writes so many ints of a CUmem_range_attribute, devices as ordinals
    int (*managed_alloc)(int device, size_t size, unsigned int flags, uintptr_t* out_address) noexcept nogil  # MANAGED_
    int (*managed_prefetch)(int device, uintptr_t stream, void* ranges, size_t count) noexcept nogil
    int (*managed_discard)(int device, uintptr_t stream, void* ranges, size_t count, bint prefetches) noexcept nogil
    int (*managed_advise)(int device, uintptr_t address, size_t size, int advice, int kind, int place) noexcept nogil
    int (*managed_attribute)(int device, uintptr_t address, size_t size, int attribute, void* values, size_t count) noexcept nogil  # no-cython-lint
    # as the async_ rows, of managed memory that prefers a device (CUDA 13.0); a capture goes on after CAPTURE_UNSUPPORTED
    int (*managed_pool_alloc)(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil
    int (*managed_pool_free)(int device, uintptr_t stream, uintptr_t address) noexcept nogil

    # streams; stream_create may wait for the device's work, host functions included
    int (*stream_priority_range)(int device, int* out_least, int* out_greatest) noexcept nogil
    int (*stream_create)(int device, unsigned int flags, int priority, uintptr_t* out_stream) noexcept nogil
    int (*stream_destroy)(int device, uintptr_t stream) noexcept nogil  # its work still completes
    int (*stream_priority)(int device, uintptr_t stream, int* out_priority) noexcept nogil
    int (*stream_flags)(int device, uintptr_t stream, unsigned int* out_flags) noexcept nogil  # as for stream_create
    int (*stream_query)(int device, uintptr_t stream) noexcept nogil  # NOT_READY while work is left
    int (*stream_synchronize)(int device, uintptr_t stream) noexcept nogil
    int (*stream_wait_event)(int device, uintptr_t stream, uintptr_t event) noexcept nogil
    int (*stream_host_func)(int device, uintptr_t stream, host_fn fn, void* data) noexcept nogil
    int (*stream_wait_external)(int device, uintptr_t stream, uintptr_t event) noexcept nogil  # capturing: a node
    # which device a stream belongs to, whatever device says; a default stream, 0 to 2, belongs to device
    int (*stream_device)(int device, uintptr_t stream, int* out_device) noexcept nogil
    # how later work of the stream uses the L2 cache for a range of addresses; a size of 0 is none.  hit and miss are
    # CUaccessProperty numbers, of the part hit_ratio of the range and of the rest
    int (*stream_window_set)(int device, uintptr_t stream, uintptr_t address, size_t size, float hit_ratio, int hit, int miss) noexcept nogil  # no-cython-lint
    int (*stream_window_get)(int device, uintptr_t stream, uintptr_t* out_address, size_t* out_size, float* out_hit_ratio, int* out_hit, int* out_miss) noexcept nogil  # no-cython-lint
    # attributes of later work of the stream, of one number each or of two, the second being 0 else: ATTRIBUTE_ numbers
    int (*stream_attribute_set)(int device, uintptr_t stream, int attribute, int first, int second) noexcept nogil
    int (*stream_attribute_get)(int device, uintptr_t stream, int attribute, int* out_first, int* out_second) noexcept nogil
    # whether the device's primary context exists in this process, whoever made it; makes none
    int (*context_active)(int device, int* out_active) noexcept nogil

    # events
    int (*event_create)(int device, unsigned int flags, uintptr_t* out_event) noexcept nogil
    int (*event_destroy)(int device, uintptr_t event) noexcept nogil
    int (*event_record)(int device, uintptr_t event, uintptr_t stream) noexcept nogil
    int (*event_query)(int device, uintptr_t event) noexcept nogil  # NOT_READY while not complete
    int (*event_synchronize)(int device, uintptr_t event) noexcept nogil
    int (*event_elapsed)(uintptr_t start, uintptr_t end, float* out_ms) noexcept nogil
    int (*event_record_external)(int device, uintptr_t event, uintptr_t stream) noexcept nogil  # capturing: a node

    # copies and fills: ordered on the stream; host memory that is not page-locked is read, or written, before the row
    # returns.  copy_peer takes a stream of src_on, copy_across one of either device, on_device: no capture takes these two,
    # CAPTURE_UNSUPPORTED, and the capture is broken; between devices that reach each other it takes copy_async, copy
    # where no side is such host memory.  copy_3d copies depth slices of height rows of width bytes; rows begin a pitch apart
    # (width or more, MAX_PITCH at most), slices so many lines of a pitch (height or more): never in ordinary host memory
    int (*copy)(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil
    int (*copy_peer)(int dst_on, uintptr_t dst, int src_on, uintptr_t src, size_t size, uintptr_t stream) noexcept nogil
    int (*fill)(int device, uintptr_t stream, uintptr_t dst, unsigned int value, int width, size_t count) noexcept nogil  # 1, 2, 4 bytes wide  # no-cython-lint
    int (*copy_async)(int device, uintptr_t stream, uintptr_t dst, uintptr_t src, size_t size) noexcept nogil
    int (*copy_across)(int on_device, uintptr_t stream, int dst_on, uintptr_t dst, int src_on, uintptr_t src, size_t size) noexcept nogil  # no-cython-lint
    int (*copy_3d)(int device, uintptr_t stream, uintptr_t dst, size_t dst_pitch, size_t dst_lines, uintptr_t src, size_t src_pitch, size_t src_lines, size_t width, size_t height, size_t depth) noexcept nogil  # no-cython-lint
    # batches of copies: of arrays of addresses and bytes, or of PitchedCopy, none of which copies 0 bytes or uses what
    # another one writes, all in device memory or page-locked memory; how they are made the array of CopyRun says.  Where the
    # row refuses, out_done of them were put in; a capture has a node for each
    int (*copy_batch)(int device, uintptr_t stream, void* dsts, void* srcs, void* sizes, size_t count, void* runs, size_t run_count, size_t* out_done) noexcept nogil  # no-cython-lint
    int (*copy_batch_3d)(int device, uintptr_t stream, void* copies, size_t count, void* runs, size_t run_count, size_t* out_done) noexcept nogil  # no-cython-lint
    # what memory is: KIND_ numbers; the range is what one call of the driver made or was told of, 0 where it does not say
    int (*pointer_range)(uintptr_t address, int* out_kind, int* out_device, uintptr_t* out_start, size_t* out_size) noexcept nogil  # no-cython-lint
    # CUDA arrays, and how kernels read and write them; textures.pxd has what the pointers are to, and when an array or a
    # texture may go.  array_spec writes what an array was made with; no sampling makes a surface, of an array alone
    int (*array_create)(int device, void* spec, uintptr_t* out_array) noexcept nogil
    int (*array_destroy)(int device, uintptr_t array) noexcept nogil
    int (*array_spec)(int device, uintptr_t array, void* spec) noexcept nogil
    int (*array_copy)(int device, uintptr_t stream, void* copy) noexcept nogil  # never ordinary host memory
    # arrays of several levels, each half as long as the one before; a level is an array, which goes with the whole
    int (*mipmap_create)(int device, void* spec, unsigned int levels, uintptr_t* out_mipmap) noexcept nogil
    int (*mipmap_destroy)(int device, uintptr_t mipmap) noexcept nogil
    int (*mipmap_level)(int device, uintptr_t mipmap, unsigned int level, uintptr_t* out_array) noexcept nogil
    int (*texture_create)(int device, void* resource, void* sampling, uintptr_t* out_texture) noexcept nogil
    int (*texture_destroy)(int device, uintptr_t texture, bint surface) noexcept nogil

    # capture and graphs
    int (*capture_begin)(int device, uintptr_t stream, int mode) noexcept nogil
    int (*capture_end)(int device, uintptr_t stream, uintptr_t* out_graph) noexcept nogil  # 0 where broken
    int (*capture_status)(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil
    int (*capture_mode_exchange)(int mode, int* out_before) noexcept nogil  # of the calling thread
    int (*graph_destroy)(uintptr_t graph) noexcept nogil
    int (*graph_node_count)(uintptr_t graph, size_t* out_count) noexcept nogil
    int (*graph_dot)(uintptr_t graph, const char* path, unsigned int flags) noexcept nogil
    int (*graph_instantiate)(int device, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil
    # the result is a CUgraphExecUpdateResult; the node is the one of graph that does not fit, or 0
    int (*graph_update)(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil
    int (*graph_upload)(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil
    int (*graph_launch)(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil
    int (*graph_exec_destroy)(uintptr_t exec_) noexcept nogil
    # lists: with no room they count; else they write at most so many handles, and how many they wrote
    int (*graph_nodes)(uintptr_t graph, size_t room, void* nodes, size_t* out_count) noexcept nogil
    int (*graph_edges)(uintptr_t graph, size_t room, void* origins, void* targets, void* data, size_t* out_count) noexcept nogil  # no-cython-lint
    int (*graph_node_type)(uintptr_t graph, uintptr_t node, int* out_type) noexcept nogil  # CUgraphNodeType numbers
    # conditions, of the graph that the stream captures into; each is 0 when a launch begins.  _set is a node that
    # reads a 4-byte integer of the device's memory; _add is a node whose body, an empty graph that it owns, runs if
    # or while the condition is not 0; capture_begin_to captures into a body, and capture_end then answers the body
    int (*conditional_create)(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil
    int (*conditional_set)(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil
    int (*conditional_add)(int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body) noexcept nogil
    int (*capture_begin_to)(int device, uintptr_t stream, uintptr_t body, int mode) noexcept nogil
    # the graph that a stream is captured into, and the nodes that its next one comes after, a list; _continue sets these
    int (*capture_site)(int device, uintptr_t stream, size_t room, void* nodes, size_t* out_count, uintptr_t* out_graph) noexcept nogil  # no-cython-lint
    int (*capture_continue)(int device, uintptr_t stream, uintptr_t node) noexcept nogil
    # the status of capture_status alone; may be asked of a stream at any time
    int (*stream_is_capturing)(int device, uintptr_t stream, int* out_status) noexcept nogil
    # graphs made by hand.  after, origins and targets are arrays of nodes of the graph.  _add reads what the new node does,
    # and writes an allocation's address or a condition's bodies; _params tells it of a node that is no condition, with the
    # address that an allocation has, the graph that a child owns, and a kernel's arguments, valid until the node is changed
    # or gone; _set changes an instance's node, or for 0 the graph's, that is no allocation, free or condition
    int (*graph_create)(int device, uintptr_t* out_graph) noexcept nogil
    int (*graph_clone)(uintptr_t graph, uintptr_t* out_graph) noexcept nogil
    int (*graph_find_in_clone)(uintptr_t graph, uintptr_t node, uintptr_t* out_node) noexcept nogil  # of the one cloned
    int (*graph_node_add)(int device, uintptr_t graph, size_t count, void* after, NodeParams* params, uintptr_t* out_node) noexcept nogil  # no-cython-lint
    int (*graph_node_params)(uintptr_t graph, uintptr_t node, NodeParams* params) noexcept nogil
    int (*graph_node_set)(int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, NodeParams* params) noexcept nogil
    int (*graph_node_destroy)(uintptr_t graph, uintptr_t node) noexcept nogil  # and its edges
    # edges carry an EdgeData each; data is NULL where what is added carries nothing, and what is removed may carry anything
    int (*graph_edges_add)(uintptr_t graph, size_t count, void* origins, void* targets, void* data) noexcept nogil
    int (*graph_edges_remove)(uintptr_t graph, size_t count, void* origins, void* targets, void* data) noexcept nogil
    # whether an instance does a kernel, a copy or a fill, or leaves it out; the node is one of the graph.  had: what the
    # instance has of a fill, or NULL: what the graph has.  The guard leaves fills out; drivers are asked to leave out none.
    int (*graph_node_enable)(int device, uintptr_t graph, uintptr_t exec_, uintptr_t node, int enabled, NodeParams* had) noexcept nogil  # no-cython-lint
    int (*graph_node_enabled)(uintptr_t graph, uintptr_t exec_, uintptr_t node, unsigned int* out_enabled) noexcept nogil
    # for conditions of its nodes; value is what it is when a launch begins, unless it is kept: what the last one left
    int (*graph_condition)(int device, uintptr_t graph, unsigned int value, int kept, uint64_t* out_condition) noexcept nogil  # no-cython-lint
    # of memory that allocations of graphs have, by CUgraphMem_attribute numbers; _reset is for peaks
    int (*graph_memory_get)(int device, int attribute, uint64_t* out_value) noexcept nogil
    int (*graph_memory_reset)(int device, int attribute) noexcept nogil
    int (*graph_memory_trim)(int device) noexcept nogil  # what no launch has goes back to the device
    # by which tools of profiling name nodes (CUDA 13.1); the high half is their graph's, or that of an instance
    int (*graph_node_tools_id)(uintptr_t graph, uintptr_t node, uint64_t* out_id) noexcept nogil
    int (*graph_exec_id)(uintptr_t exec_, unsigned int* out_id) noexcept nogil
    # what a kernel node has beside its params, by ATTRIBUTE_ number: of a cluster three numbers, 0 for none, and else one
    int (*kernel_node_attribute_set)(uintptr_t graph, uintptr_t node, int attribute, int x, int y, int z) noexcept nogil
    int (*kernel_node_attribute_get)(uintptr_t graph, uintptr_t node, int attribute, int* out_x, int* out_y, int* out_z) noexcept nogil  # no-cython-lint

    # kernels; arguments are pointers to the values, which are read before a row returns.  An image is PTX, a cubin or a
    # fatbin for a GPU; for the host device a shared object's bytes, or the path of one (host/driver.pyx says what is in it)
    int (*module_load)(int device, const char* image, uintptr_t* out_module) noexcept nogil
    int (*module_unload)(int device, uintptr_t module) noexcept nogil
    int (*module_function)(uintptr_t module, const char* name, uintptr_t* out_function) noexcept nogil
    int (*kernel_launch)(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil  # no-cython-lint
    # a module of one function, which is at an address of the host; its parameters are count size_t, in bytes
    int (*module_register)(int device, uintptr_t function, const char* name, size_t count, void* sizes, uintptr_t* out_module) noexcept nogil  # no-cython-lint
    int (*module_global)(uintptr_t module, const char* name, uintptr_t* out_address, size_t* out_size) noexcept nogil
    int (*function_attribute)(uintptr_t function, int attribute, int* out_value) noexcept nogil  # CUfunction_attribute
    int (*function_attribute_set)(uintptr_t function, int attribute, int value) noexcept nogil
    int (*function_parameter)(uintptr_t function, size_t index, size_t* out_offset, size_t* out_size) noexcept nogil  # bytes; INVALID_VALUE past the last one  # no-cython-lint
    # blocks of so many threads that a multiprocessor holds at a time
    int (*occupancy_blocks)(uintptr_t function, int threads, size_t shared_bytes, int* out_blocks) noexcept nogil
    # the block that fills the device best, of at most limit threads (0: as many as the kernel takes), and the grid for it
    int (*occupancy_block_size)(uintptr_t function, size_t shared_bytes, int limit, int* out_grid, int* out_threads) noexcept nogil  # no-cython-lint
    int (*occupancy_clusters)(int device, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z, int* out_clusters) noexcept nogil  # no-cython-lint
    # blocks of the largest cluster that a launch may have, and bytes of dynamic shared memory with so many blocks at a time
    int (*occupancy_cluster_size)(int device, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, int* out_blocks) noexcept nogil  # no-cython-lint
    int (*occupancy_shared)(uintptr_t function, int blocks, int threads, size_t* out_bytes) noexcept nogil
    # kernel_launch with LAUNCH_ flags; a cluster_x of 0 is no clusters
    int (*kernel_launch_with)(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments, unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z) noexcept nogil  # no-cython-lint
    # loads an image that module_load refused once more, to write what the compiler or the loader says; "" for nothing
    int (*module_log)(int device, const char* image, char* out_log) noexcept nogil
    int (*module_loading)(int* out_mode) noexcept nogil  # CUmoduleLoadingMode numbers
    int (*function_name)(uintptr_t function, char* out_text) noexcept nogil  # as much of it as there is room for

    # between processes
    int (*ipc_event_export)(int device, uintptr_t event, char* out_ipc) noexcept nogil
    int (*ipc_event_open)(int device, const char* handle, uintptr_t* out_event) noexcept nogil
    int (*ipc_memory_export)(int device, uintptr_t address, char* out_ipc) noexcept nogil
    int (*ipc_memory_open)(int device, const char* handle, uintptr_t* out_address) noexcept nogil
    int (*ipc_memory_close)(int device, uintptr_t address) noexcept nogil
    # pools that the caller makes, of at most limit bytes (0: the driver's choice).  One that is shared leaves as a file, as
    # physical memory does; imported, it gives none, but opens pointers to its process's.  A destroyed one lives until all of
    # it is freed
    int (*pool_create)(int device, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil
    int (*pool_destroy)(uintptr_t pool) noexcept nogil
    int (*pool_export)(uintptr_t pool, int* out_file) noexcept nogil
    int (*pool_import)(int device, int file, uintptr_t* out_pool) noexcept nogil
    int (*pool_alloc)(int device, uintptr_t stream, uintptr_t pool, size_t size, uintptr_t* out_address) noexcept nogil
    int (*pool_pointer_export)(int device, uintptr_t address, char* out_ipc) noexcept nogil
    int (*pool_pointer_import)(int device, uintptr_t pool, const char* handle, uintptr_t* out_address) noexcept nogil
    # Gives idle memory back but for so many bytes; event: 0, or one that is over, whose stream's frees are then seen.
    int (*pool_trim)(uintptr_t pool, int device, uintptr_t event, size_t keep) noexcept nogil
    int (*pool_get)(uintptr_t pool, int attribute, uint64_t* out_value) noexcept nogil  # CUmemPool_attribute numbers
    int (*pool_set)(uintptr_t pool, int attribute, uint64_t value) noexcept nogil
    int (*pool_access_set)(uintptr_t pool, int peer, int access) noexcept nogil  # MEMORY_ numbers
    int (*pool_access_get)(uintptr_t pool, int peer, int* out_access) noexcept nogil
    # The driver's own pools, never destroyed: by KIND_ number a device's, that of managed memory which prefers it, and the
    # process's of page-locked memory, whatever the device (both CUDA 13.0).
    int (*default_pool)(int device, int kind, uintptr_t* out_pool) noexcept nogil
    # pools of page-locked memory, which serve streams of every device, and which no device uses before pool_access_set: new
    # ones are on a LOCATION_NODE, or shared with none at LOCATION_HOST
    int (*pinned_pool_create)(int kind, int node, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil
    # pools of managed memory, which streams of the device order, and which prefers a LOCATION_ or none (CUDA 13.0)
    int (*managed_pool_create)(int device, int kind, int place, uintptr_t* out_pool) noexcept nogil

    # the end of the process: nothing may be called after it
    int (*close)() noexcept nogil  # waits for callbacks that still run; leaves the devices alone

# The numbers that rows take and answer; memory.pxd, managed.pxd and node_params.pxd have more.

cdef enum:  # stream_create flags
    STREAM_BLOCKING = 0, STREAM_NON_BLOCKING = 1
cdef enum:  # event_create flags
    EVENT_DEFAULT = 0, EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2, EVENT_INTERPROCESS = 4
cdef enum:  # capture_begin and capture_mode_exchange modes
    CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2
cdef enum:  # capture_status answers
    CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2
