"""The host driver: an embedded device that executes on CPU threads and refuses what a GPU refuses.

Here are the settings, and the rows of devices, of stream-ordered pools, and of modules, functions and launches.

A kernel is a C function that is called once for each block of the grid, with the block's place and pointers to the
arguments' values; `accelrt/kernels/DESIGN.md` has the declaration.  The blocks of a launch run on the thread that serves
the stream, which others help where there is much to do (`machine.pyx`).

A module is a shared object: `module_load` takes its path, which contains a slash and ends with a NUL, or its bytes, an
ELF image whose length the section headers tell.  For a kernel NAME it exports `accelrt_block_NAME`, or NAME, and
`const size_t NAME_parameters[]`, the sizes of its parameters, with 0 at the end.  `module_register` makes a module of one
function at an address.

A module that is unloaded lives on until no work in a queue or a graph names its functions.  Libraries are opened and
closed under no lock, since their initialisers may do anything.

rowgen.py puts the gate around a function ROW_gated, and around a function ROW_locked the queue's lock too, with what finds
the stream, the graph, the function and so on that it names.
"""
import errno
import os

from libc.stdint cimport SIZE_MAX, int64_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcmp, strlen

from accelrt import env
from accelrt.core.descriptors cimport close_kept, keep_number, number_of
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.host_pages cimport close_file, copy_file, empty_part, prefer_node
from accelrt.driver.host.graphs cimport execs, fill_graphs, foreign_ends, graphs, own_children
from accelrt.driver.host.machine cimport (
    HOST_MEMORY, LACKS_FILE, MANAGED, MANAGED_PAGE, MAX_HOST_DEVICES, PAGE, PLAIN, POOLED, Range,
    calls_beside_ends as beside_ends, follow_legacy_order,
    count_streams, crew_open, delay_ends, drain_device, drop_launch, drop_module, drop_room, drop_ticket, find_room,
    find_stream, gone_calls, held_ends, known_device, lock, lock_memory, make_file, mark, memory as all_memory,
    memory_counts, memory_figures, memory_open, new_handle, open_errno, operations, queue_open, rounded, show, take_bytes,
    take_lack_of_addresses, take_unused_modules, uncharge, unlock, unlock_memory,
)
from accelrt.driver.host.memory cimport (
    check_location, count_arrays, count_physicals, devices_with_access, file_size, fill_memory, forget_variables,
    free_plain, know_variable, make_managed, make_plain, place as place_range, prefer_place, range_of, take_away,
    takings,
)
from accelrt.driver.host.pools cimport (
    FOLLOWS_EVENTS, FOLLOWS_INTERNALLY, FileId, HEADER, Header, HostPool, MOST_RESERVED, MOST_USED_BYTES, PROT_READ,
    POOL_CHUNK, PROT_WRITE, Pointer, Pooled, RESERVED_BYTES, THRESHOLD, USED_BYTES, id_of, pread, pwrite,
)
from accelrt.driver.host.stream cimport (
    check_unsafe, enter, events, fill_stream, gate, gate_any, gate_close, gate_device, gate_devices, gate_is_new,
    gate_open, put_in, ATTRIBUTES, ATTRIBUTE_CARVEOUT, ATTRIBUTE_DYNAMIC, ATTRIBUTE_SCHEDULING, ATTRIBUTE_THREADS,
    ATTRIBUTE_WIDE, BLOCKS_AT_ONCE, MOST_DEEP, MOST_DEEP_GRID, MOST_SHARED, MOST_THREADS, MOST_WIDE_GRID, SHARED,
    SHARED_AT_ONCE, THREADS_AT_ONCE, aligned, are_clusters, blocks_at_once, check_launch, find_function, fits, functions,
    make_launch, most_cluster,
)
from accelrt.driver.host.textures cimport texture_limit
from accelrt.driver.host.work cimport KERNEL, HostFunction, HostModule, HostStream, Work, begin_work, kernel_fn
from accelrt.driver.managed cimport LOCATION_CURRENT_NODE, LOCATION_DEVICE, LOCATION_HOST, LOCATION_NODE, LOCATION_NONE
from accelrt.driver.memory cimport (
    KIND_DEVICE, KIND_HOST, KIND_MANAGED, MAX_PITCH, MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN,
)
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.registry import explain_refusals
from accelrt.driver.node_params cimport LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC
from accelrt.driver.table cimport LOG_BYTES, TEXT_BYTES, Table
from accelrt.status cimport (
    CAPTURE_UNSUPPORTED, INIT_FAILED, INVALID_CLUSTER_SIZE, INVALID_DEVICE, INVALID_HANDLE,
    INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NO_HOST_MEMORY, OPERATING_SYSTEM, OUT_OF_MEMORY, PEER_ACCESS_UNSUPPORTED,
    keep_init_error,
)

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    enum:
        _SC_NPROCESSORS_ONLN

# The calling thread's current device; -1 before it chose one.
cdef extern from *:
    """
    static __thread int accelrt_device_plus_one;
    """
    int device_plus_one "accelrt_device_plus_one"

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <dlfcn.h>
    #include <elf.h>
    #include <link.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>

    /* An image's bytes as a file of its own.  Two files must not have one name, since dlopen knows libraries by name: the
     * number is spelled in ways to write "this directory". */
    static void* accelrt_open_image(const char* image, unsigned long number) {
        unsigned long long headers;
        unsigned short each, count;
        char path[256] = "/proc/self";
        size_t size, done = 0;
        void* library = NULL;
        int file;
        memcpy(&headers, image + 0x28, 8);
        memcpy(&each, image + 0x3A, 2);
        memcpy(&count, image + 0x3C, 2);
        size = headers + (size_t)each * count;
        file = headers ? accelrt_lift(memfd_create("accelrt-kernels", MFD_CLOEXEC)) : -1;
        if (file < 0)
            return NULL;
        while (done < size) {
            ssize_t written = write(file, image + done, size - done);
            if (written <= 0)
                break;
            done += written;
        }
        for (; number; number >>= 1)
            strcat(path, number & 1 ? "/." : "//");
        snprintf(path + strlen(path), sizeof path - strlen(path), "/fd/%d", file);
        if (done == size)
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        close(file);
        return library;
    }
    static void* accelrt_open_library(const char* image, unsigned long number) {
        if (!memcmp(image, "\\177ELF", 4))
            return accelrt_open_image(image, number);
        return strchr(image, '/') ? dlopen(image, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    /* Where an object of a library lies, and its size; not functions, nor variables that each thread has. */
    static int accelrt_find_object(void* library, const char* name, void** address, size_t* size) {
        Dl_info info;
        ElfW(Sym)* symbol = NULL;
        *address = dlsym(library, name);
        if (*address == NULL || !dladdr1(*address, &info, (void**)&symbol, RTLD_DL_SYMENT) || symbol == NULL
                || info.dli_saddr != *address || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT)
            return 0;
        *size = symbol->st_size;
        return 1;
    }
    """
    int find_object "accelrt_find_object"(void* library, const char* name, void** address, size_t* size) noexcept nogil
    void* open_library "accelrt_open_library"(const char* image, unsigned long number) noexcept nogil
    void* dlsym(void* library, const char* name) noexcept nogil
    int dlclose(void* library) noexcept nogil
    const char* dlerror() noexcept nogil

cdef enum:
    MOST_PARAMETERS = 4096   # bytes, of all of a kernel's

cdef Table table
cdef int node_count = 1  # of the host's memory; written at open

# Guarded by the queue's lock.
cdef AddressMap modules
cdef unsigned long images = 0

include "driver_rows.pxi"


def read_settings() -> dict[str, int]:
    """The host driver's settings, as the environment has them.

    Returns:
        dict: devices (ACCELRT_HOST_DEVICES, 2), memory in bytes of each (ACCELRT_HOST_MEMORY, 1GiB), delay_us in
        microseconds before each operation (ACCELRT_HOST_DELAY_US, 0), end_delay_us in microseconds within each end of a
        capture (ACCELRT_HOST_END_DELAY_US, 0), threads that a kernel runs on
        (ACCELRT_HOST_THREADS, 0: as many as the process may use processors), nodes of the host's memory that the devices
        are nearest to by turns (ACCELRT_HOST_NODES, 1).
    Raises:
        ValueError: one is malformed; the text names it, its value and what is allowed.
    """
    return {
        "devices": env.value("ACCELRT_HOST_DEVICES"),
        "memory": env.value("ACCELRT_HOST_MEMORY"),
        "delay_us": env.value("ACCELRT_HOST_DELAY_US"),
        "end_delay_us": env.value("ACCELRT_HOST_END_DELAY_US"),
        "threads": env.value("ACCELRT_HOST_THREADS"),
        "nodes": env.value("ACCELRT_HOST_NODES"),
    }


cdef int open_driver() noexcept nogil:
    cdef int code
    if not gate_is_new():  # open already, or for ever shut
        return gate_any()
    with gil:
        code = open_with_settings()
    return code


cdef int open_with_settings() noexcept:
    cdef int code
    cdef int devices
    cdef size_t memory
    cdef long delay_us, end_delay_us
    cdef int threads
    global node_count
    try:  # an interruption too is the caller's to hear of, and nothing was opened
        settings = read_settings()
        devices, memory, delay_us = settings["devices"], settings["memory"], settings["delay_us"]
        end_delay_us, threads = settings["end_delay_us"], settings["threads"]
        node_count = max(settings["nodes"], 1)
    except BaseException as error:
        keep_init_error(error)
        return INIT_FAILED
    code = memory_open(devices, memory)
    if code == 0:
        queue_open(delay_us, end_delay_us)
        crew_open(threads)
        gate_open(devices)
    return code


def open_error() -> str:
    """Tells why the devices' memory could not be made, as str; empty where it could."""
    if open_errno == 0:
        return ""
    limit = limit_text("RLIMIT_FSIZE", "a file", "ulimit -f") if open_errno == errno.EFBIG else ""
    return f"a file for the device's memory cannot be made: {os.strerror(open_errno)}{limit}"


cdef str limit_text(str which, str what, str command):
    import resource

    soft = resource.getrlimit(getattr(resource, which))[0]
    return "" if soft == resource.RLIM_INFINITY else f"; this process is limited to {soft} bytes {what} ({command})"


def cause_of_refusal() -> str:
    """Returns what the calling thread's last request for memory lacked, where that was not the device's memory; else ""."""
    cdef int lack = take_lack_of_addresses()
    if not lack:
        return ""
    if lack == LACKS_FILE:
        return "other code of this process closed the file of the host device's memory (os.closerange, say)"
    limit = limit_text("RLIMIT_AS", "of addresses", "ulimit -v")
    return f"the host has no addresses left for it{limit or '; see vm.max_map_count'}"


cdef int close_driver() noexcept nogil:
    cdef int code = gate_any()
    if code:
        return code
    lock()
    code = drain_device(-1)  # interrupted or not, the interpreter goes on to exit
    unlock()
    gate_close()
    return code


# --- devices -----------------------------------------------------------------------------------------------

cdef int driver_version(int* out_version) noexcept nogil:
    out_version[0] = 13000
    return 0


cdef int device_count_gated(int* out_count) noexcept nogil:
    out_count[0] = gate_devices()
    return 0


cdef int device_name_gated(char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "accelrt host device")
    return 0


cdef int device_uuid_gated(int device, char* out_uuid) noexcept nogil:
    memset(out_uuid, 0, 16)
    snprintf(out_uuid, 16, "accelrt-host-%02d", device)
    return 0


cdef int device_pci_bus_id_gated(int device, char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "host:%d", device)
    return 0


cdef int launch_limit(int attribute) noexcept nogil:
    # What a kernel's launch may ask for, and what textures are made of.
    if attribute in (1, 2, 3):  # MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y
        return MOST_THREADS
    if attribute == 4:   # MAX_BLOCK_DIM_Z
        return MOST_DEEP
    if attribute == 5:   # MAX_GRID_DIM_X
        return MOST_WIDE_GRID
    if attribute in (6, 7):  # MAX_GRID_DIM_Y, _Z
        return MOST_DEEP_GRID
    if attribute == 8:   # MAX_SHARED_MEMORY_PER_BLOCK
        return SHARED
    if attribute == 39:  # MAX_THREADS_PER_MULTIPROCESSOR
        return THREADS_AT_ONCE
    if attribute == 81:  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        return SHARED_AT_ONCE
    if attribute == 97:  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return MOST_SHARED
    return BLOCKS_AT_ONCE if attribute == 106 else texture_limit(attribute)  # MAX_BLOCKS_PER_MULTIPROCESSOR


cdef int device_attribute_gated(int device, int attribute, int* out_value) noexcept nogil:
    # Numbers of CUdevice_attribute; what a CPU has no figure for is 0.
    if attribute < 1 or attribute > 147:  # the last one of CUDA 13.0
        return INVALID_VALUE
    if attribute == 10:    # WARP_SIZE
        out_value[0] = 32
    elif attribute == 16:    # MULTIPROCESSOR_COUNT
        out_value[0] = <int>sysconf(_SC_NPROCESSORS_ONLN)
    elif attribute in (15, 31, 41, 78, 95, 120, 126):
        # GPU_OVERLAP, CONCURRENT_KERNELS, UNIFIED_ADDRESSING, STREAM_PRIORITIES_SUPPORTED, COOPERATIVE_LAUNCH,
        # CLUSTER_LAUNCH, MEM_SYNC_DOMAIN_COUNT
        out_value[0] = 1
    elif attribute in (19, 83, 86, 89, 91, 99, 102, 103, 115, 119, 125, 142, 144):
        # CAN_MAP_HOST_MEMORY, MANAGED_MEMORY, HOST_NATIVE_ATOMIC_SUPPORTED, CONCURRENT_MANAGED_ACCESS,
        # CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, HOST_REGISTER_SUPPORTED, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        # HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, MEMORY_POOLS_SUPPORTED, MEMPOOL_SUPPORTED_HANDLE_TYPES (files),
        # IPC_EVENT_SUPPORTED, HOST_NUMA_MEMORY_POOLS_SUPPORTED, HOST_MEMORY_POOLS_SUPPORTED
        out_value[0] = 1
    elif attribute == 11:   # MAX_PITCH
        out_value[0] = MAX_PITCH
    elif attribute == 40:   # ASYNC_ENGINE_COUNT: copies to and from the device, beside kernels
        out_value[0] = 2
    elif attribute == 134:  # HOST_NUMA_ID
        out_value[0] = device % node_count
    else:
        out_value[0] = launch_limit(attribute)
    return 0


# --- limits of contexts ------------------------------------------------------------------------------------
# They are kept as a GPU keeps them, and limit nothing: kernels have the host's stacks and its heap.  But as there stacks
# take memory of the device, one for each thread that runs at once; those of a new context are not counted.

cdef enum:  # CUlimit numbers
    UNSUPPORTED_LIMIT = 215  # the status
    STACK_SIZE = 0
    PENDING_LAUNCHES = 4
    FETCH_GRANULARITY = 5
    MOST_LIMITS = 6
    MOST_STACK = 512 << 10
    MOST_FETCHED = 128

cdef size_t[MAX_HOST_DEVICES][MOST_LIMITS] changed_limits  # 0: as it began, else one more than it is
cdef size_t[MOST_LIMITS] first_limits = [1024, 1 << 20, 8 << 20, 0, 2048, 64]


cdef bint has_limit(int limit) noexcept nogil:
    # Kernels wait for none that they launch from compute capability 9.0 on, and no L2 cache here keeps lines.
    return 0 <= limit < MOST_LIMITS and first_limits[limit] != 0


cdef int limit_get_gated(int device, int limit, size_t* out_value) noexcept nogil:
    if not has_limit(limit):
        return UNSUPPORTED_LIMIT
    lock()
    out_value[0] = changed_limits[device][limit] - 1 if changed_limits[device][limit] else first_limits[limit]
    unlock()
    return 0


cdef size_t counted_stacks(size_t size) noexcept nogil:
    cdef size_t more = size - first_limits[STACK_SIZE] if size > first_limits[STACK_SIZE] else 0
    return more * THREADS_AT_ONCE * <size_t>sysconf(_SC_NPROCESSORS_ONLN)


cdef int resize_stacks(int device, size_t value) noexcept nogil:
    cdef size_t before = 0, after = counted_stacks(value)
    cdef long offset = 0
    cdef int code = 0
    if changed_limits[device][STACK_SIZE]:
        before = counted_stacks(changed_limits[device][STACK_SIZE] - 1)
    lock_memory()
    if after > before:
        code = take_bytes(device, after - before, &offset)
    else:
        uncharge(device, before - after)
    unlock_memory()
    return code


cdef int limit_set_gated(int device, int limit, size_t value) noexcept nogil:
    cdef int code = 0
    if not has_limit(limit):
        return UNSUPPORTED_LIMIT
    if limit == STACK_SIZE and value > MOST_STACK or limit == FETCH_GRANULARITY and value > MOST_FETCHED or value >> 60:
        return INVALID_VALUE
    if limit != FETCH_GRANULARITY and limit != PENDING_LAUNCHES:
        value = rounded(value, 16)
    lock()
    if limit == STACK_SIZE:
        code = resize_stacks(device, value)
    if code == 0:
        changed_limits[device][limit] = value + 1
    unlock()
    return code


cdef int device_memory_gated(int device, size_t* out_total) noexcept nogil:
    cdef size_t ignored
    return memory_figures(device, &ignored, out_total)


cdef int memory_info_gated(int device, size_t* out_free, size_t* out_total) noexcept nogil:
    lock()
    settle_pools()
    unlock()
    return memory_figures(device, out_free, out_total)


cdef int current_device(int* out_device) noexcept nogil:
    out_device[0] = device_plus_one - 1
    return gate_any()


cdef int set_device(int device) noexcept nogil:
    global device_plus_one
    cdef int code = gate_any() if device == -1 else enter(device)
    if code == 0:
        device_plus_one = device + 1
    return code


cdef int can_access_peer_gated(int device, int peer, int* out_can) noexcept nogil:
    out_can[0] = device != peer
    return gate(peer)


cdef int enable_peer_gated(int device, int peer) noexcept nogil:
    cdef int code = gate(peer)
    return PEER_ACCESS_UNSUPPORTED if code == 0 and device == peer else code


cdef void close_unused() noexcept nogil:
    # Without the lock.
    cdef HostModule* module
    cdef HostModule* following
    cdef HostFunction* function
    lock()
    module = take_unused_modules()
    unlock()
    while module != NULL:
        following = module.next
        while module.functions != NULL:
            function = module.functions
            module.functions = function.next
            free(function)
        if module.library != NULL:
            forget_variables(module)
            dlclose(module.library)
        free(module)
        module = following


# --- stream-ordered pools ----------------------------------------------------------------------------------
#
# Each device has one of its memory and one of managed memory, and the process one of page-locked memory.  The caller makes
# others; but for managed memory theirs is in a file, which other processes may have.  Memory that was freed serves its
# stream at once, and others when that stream is past the free; what is idle then, above the threshold, is given up when the
# pool is next asked for anything.  No capture takes them.

cdef uint64_t POOL_MARK = 0x6C6F6F7074726C65
cdef uint64_t POINTER_MARK = 0x7265746E696F7074

cdef HostPool[MAX_HOST_DEVICES] plain_pools
cdef HostPool[MAX_HOST_DEVICES] managed_pools
cdef HostPool* own_pinned   # the process's own of page-locked memory; NULL before it is first asked for
cdef HostPool* all_pools    # those that were asked for, the newest first


cdef HostPool* list_pool(HostPool* pool) noexcept nogil:
    global all_pools
    pool.handle, pool.alive, pool.after = new_handle(), True, all_pools
    all_pools = pool
    return pool


cdef HostPool* pool_of(int device, int kind) noexcept nogil:
    # Under the lock.
    cdef HostPool* pool = &managed_pools[device] if kind == MANAGED else &plain_pools[device]
    pool.kind, pool.device, pool.preferred_kind, pool.preferred = kind, device, LOCATION_DEVICE, device
    return pool if pool.handle else list_pool(pool)


cdef HostPool* find_pool(uintptr_t handle) noexcept nogil:
    cdef HostPool* pool = all_pools
    while pool != NULL and (pool.handle != handle or not pool.alive):
        pool = pool.after
    return pool


cdef bint is_past(const Pooled* block) noexcept nogil:
    return block.ticket == NULL or block.ticket.done


cdef void count_pooled(HostPool* pool, int attribute, int64_t change) noexcept nogil:
    # The peak of a figure has the next number.
    pool.values[attribute] += change
    pool.values[attribute + 1] = max(pool.values[attribute + 1], pool.values[attribute])


cdef int take_room(const HostPool* pool, size_t size) noexcept nogil:
    # Of the device, which has no page-locked memory.
    cdef long offset = 0
    cdef int code
    if pool.device == HOST_MEMORY:
        return 0
    lock_memory()
    code = take_bytes(pool.device, size, &offset)
    unlock_memory()
    return code


cdef void give_room(const HostPool* pool, size_t size) noexcept nogil:
    if pool.device != HOST_MEMORY:
        lock_memory()
        uncharge(pool.device, size)
        unlock_memory()


cdef void forget_block(HostPool* pool, Pooled** slot) noexcept nogil:
    # Whose memory is gone.
    cdef Pooled* block = slot[0]
    slot[0] = block.next
    count_pooled(pool, RESERVED_BYTES, -<int64_t>block.size)
    if block.used:
        count_pooled(pool, USED_BYTES, -<int64_t>block.taken)
    if pool.kind == POOLED and not pool.imported:
        empty_part(number_of(pool.file), block.offset, block.size)
        give_room(pool, block.size)
    drop_ticket(block.ticket)
    free(block)


cdef void give_up_idle(HostPool* pool, size_t keep) noexcept nogil:
    cdef Pooled** slot = &pool.blocks
    while slot[0] != NULL:
        if slot[0].used or not is_past(slot[0]) or pool.values[RESERVED_BYTES] <= keep:
            slot = &slot[0].next
            continue
        take_away(slot[0].address, pool.kind, pool.device)
        forget_block(pool, slot)


cdef void drop_destroyed() noexcept nogil:
    # Pools that were destroyed, and of which nothing is allocated any more.
    cdef HostPool** slot = &all_pools
    cdef HostPool* pool
    while slot[0] != NULL:
        pool = slot[0]
        if not pool.alive:
            give_up_idle(pool, 0)
        if pool.alive or pool.blocks != NULL:
            slot = &pool.after
            continue
        slot[0] = pool.after
        close_kept(pool.file)
        free(pool)


cdef void settle_pools() noexcept nogil:
    # Gives up what is idle above the thresholds, as a wait does on a GPU.
    cdef HostPool* pool = all_pools
    while pool != NULL:
        give_up_idle(pool, pool.values[THRESHOLD])
        pool = pool.after
    drop_destroyed()


cdef Pooled* idle_pooled(HostPool* pool, int device, uintptr_t stream, size_t size, size_t most) noexcept nogil:
    # The smallest that fits and has less than so many bytes, for a stream of a device.
    cdef Pooled* block = pool.blocks
    cdef Pooled* best = NULL
    cdef bint is_its_own
    while block != NULL:
        is_its_own = block.stream == stream and block.stream_on == device
        if not block.used and size <= block.size < most and (is_its_own or is_past(block)):
            if best == NULL or block.size < best.size:
                best = block
        block = block.next
    return best


cdef int check_pool_stream(int device, uintptr_t stream, HostStream** out_stream) noexcept nogil:
    out_stream[0] = find_stream(device, stream)
    if out_stream[0] == NULL:
        return INVALID_HANDLE
    return CAPTURE_UNSUPPORTED if out_stream[0].capture != NULL else 0


cdef int take_pooled(HostPool* pool, int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    # Under the lock.
    cdef size_t whole = rounded(size, MANAGED_PAGE if pool.kind == MANAGED else PAGE if size >= 1 << 20 else 4096)
    cdef HostStream* on
    cdef Pooled* block
    cdef int code = check_pool_stream(device, stream, &on)
    if size == 0 or size >> 60:
        return INVALID_VALUE if size == 0 else OUT_OF_MEMORY
    if code:
        return code
    block = idle_pooled(pool, device, stream, whole, 2 * whole)
    if block == NULL:
        give_up_idle(pool, pool.values[THRESHOLD])
        code = add_pooled(pool, whole, &block)
    if code == OUT_OF_MEMORY:
        give_up_idle(pool, 0)
        code = add_pooled(pool, whole, &block)
    if code == OUT_OF_MEMORY:  # what is idle for this stream alone, however large
        block = idle_pooled(pool, device, stream, whole, SIZE_MAX)
        code = 0 if block != NULL else OUT_OF_MEMORY
    if code == 0:
        drop_ticket(block.ticket)
        block.ticket, block.used, block.taken = NULL, True, rounded(size, 512)  # as NVIDIA's driver counts
        count_pooled(pool, USED_BYTES, block.taken)
        out_address[0] = block.address
    return code


cdef int add_pooled(HostPool* pool, size_t size, Pooled** out_block) noexcept nogil:
    cdef Pooled* block = <Pooled*>calloc(1, sizeof(Pooled))
    cdef int code
    if block == NULL:
        return NO_HOST_MEMORY
    if pool.kind == MANAGED:
        code = make_managed(pool.device, size, &block.address)
    elif pool.kind == PLAIN:
        code = make_plain(pool.device, size, &block.address)
    else:
        code = make_part(pool, size, &block.offset, &block.address)
    if code:
        free(block)
        return code
    if pool.kind == MANAGED and pool.preferred_kind != LOCATION_NONE:
        prefer_place(block.address, pool.preferred_kind, pool.preferred)
    keep_block(pool, block, size)
    out_block[0] = block
    return 0


cdef void keep_block(HostPool* pool, Pooled* block, size_t size) noexcept nogil:
    # By their places in the pool's file; without one, the newest first.
    cdef Pooled** slot = &pool.blocks
    while slot[0] != NULL and slot[0].offset < block.offset:
        slot = &slot[0].next
    block.size, block.next = size, slot[0]
    slot[0] = block
    count_pooled(pool, RESERVED_BYTES, size)


cdef int make_part(HostPool* pool, size_t size, long* out_offset, uintptr_t* out_address) noexcept nogil:
    # The first part of the pool's file that is free and large enough.
    cdef Pooled* block = pool.blocks
    cdef long offset = HEADER
    cdef int code
    while block != NULL and block.offset < offset + <long>size:
        offset = block.offset + <long>block.size
        block = block.next
    if <size_t>offset + size > pool.limit:
        return OUT_OF_MEMORY
    code = take_room(pool, size)
    if code:
        return code
    code = map_part(pool, offset, size, out_address)
    if code:
        give_room(pool, size)
    out_offset[0] = offset
    return code


cdef int map_part(const HostPool* pool, long offset, size_t size, uintptr_t* out_address) noexcept nogil:
    cdef Range part
    cdef void* room = find_room(size, 4096, 0)
    if room == NULL:
        return OUT_OF_MEMORY
    if not show(room, size, number_of(pool.file), offset, PROT_READ | PROT_WRITE):
        drop_room(room, size)
        return OUT_OF_MEMORY
    prefer_node(room, size, pool.node)
    part = range_of(POOLED, pool.device, <uintptr_t>room, size)
    return place_range(&all_memory, &part, out_address)


cdef Pooled** place_in(HostPool* pool, uintptr_t address) noexcept nogil:
    # Of the block that begins there; of NULL where none does.
    cdef Pooled** slot = &pool.blocks
    while slot[0] != NULL and slot[0].address != address:
        slot = &slot[0].next
    return slot


cdef Pooled** find_pooled(int device, uintptr_t address, HostPool** out_pool) noexcept nogil:
    # NULL: it is no address of any pool of the device's, nor of page-locked memory.
    cdef HostPool* pool = all_pools
    cdef Pooled** slot
    while pool != NULL:
        if pool.device == device or pool.device == HOST_MEMORY:
            slot = place_in(pool, address)
            if slot[0] != NULL:
                out_pool[0] = pool
                return slot
        pool = pool.after
    return NULL


cdef int give_pooled(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    cdef HostStream* on
    cdef HostPool* pool = NULL
    cdef Pooled** slot = find_pooled(device, address, &pool)
    cdef Pooled* block
    cdef int code = check_pool_stream(device, stream, &on)
    if code == 0 and (slot == NULL or not slot[0].used):
        code = INVALID_VALUE
    if code == 0:
        code = follow_legacy_order(on)
    if code:
        return code
    block = slot[0]
    block.ticket = mark(on, &code)
    if code == 0:
        block.used, block.stream_on, block.stream = False, device, stream
        count_pooled(pool, USED_BYTES, -<int64_t>block.taken)
        drop_destroyed()
    return code


cdef int memory_free(int device, uintptr_t address) noexcept nogil:
    # Memory of pools too.
    cdef HostPool* pool = NULL
    cdef Pooled** slot
    cdef int code = free_plain(device, address)
    if code == 0 and address:
        lock()
        slot = find_pooled(device, address, &pool)
        if slot != NULL:
            forget_block(pool, slot)
            drop_destroyed()
        unlock()
    return code


cdef int pool_get_locked(HostPool* pool, int attribute, uint64_t* out_value) noexcept nogil:
    if not FOLLOWS_EVENTS <= attribute <= MOST_USED_BYTES:
        return INVALID_VALUE
    give_up_idle(pool, pool.values[THRESHOLD])
    # How memory may be used again is kept as whether it may not, and is of no effect: it is past its stream's frees, or is
    # the stream's own.
    out_value[0] = not pool.values[attribute] if attribute <= FOLLOWS_INTERNALLY else pool.values[attribute]
    return 0


cdef int pool_set_locked(HostPool* pool, int attribute, uint64_t value) noexcept nogil:
    if not FOLLOWS_EVENTS <= attribute <= MOST_USED_BYTES or attribute == RESERVED_BYTES or attribute == USED_BYTES:
        return INVALID_VALUE
    if value and (attribute == MOST_RESERVED or attribute == MOST_USED_BYTES):
        return INVALID_VALUE
    if attribute <= FOLLOWS_INTERNALLY:
        pool.values[attribute] = value == 0
    elif attribute == THRESHOLD:
        pool.values[attribute] = value
    else:
        pool.values[attribute] = pool.values[attribute - 1]
    return 0


cdef int pool_access_set_locked(HostPool* pool, int peer, int access) noexcept nogil:
    if not known_device(peer):
        return INVALID_DEVICE
    if access not in (MEMORY_CLOSED, MEMORY_READ, MEMORY_WRITTEN) or peer == pool.device and access != MEMORY_WRITTEN:
        return INVALID_VALUE
    pool.access[peer] = access
    return 0


cdef int pool_access_get_locked(HostPool* pool, int peer, int* out_access) noexcept nogil:
    if not known_device(peer):
        return INVALID_DEVICE
    out_access[0] = MEMORY_WRITTEN if peer == pool.device else pool.access[peer]
    return 0


# Of the pools that each device has.

cdef int async_alloc_locked(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    return take_pooled(pool_of(device, PLAIN), device, stream, size, out_address)


cdef int managed_pool_alloc_locked(int device, uintptr_t stream, size_t size, uintptr_t* out_address) noexcept nogil:
    return take_pooled(pool_of(device, MANAGED), device, stream, size, out_address)


cdef int async_free_locked(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    return give_pooled(device, stream, address)


cdef int managed_pool_free_locked(int device, uintptr_t stream, uintptr_t address) noexcept nogil:
    return give_pooled(device, stream, address)


cdef int default_pool_locked(int device, int kind, uintptr_t* out_pool) noexcept nogil:
    global own_pinned
    cdef int code = 0
    if kind == KIND_HOST:
        code = make_pool(HOST_MEMORY, 0, &own_pinned) if own_pinned == NULL else 0
        out_pool[0] = own_pinned.handle if code == 0 else 0
    elif kind == KIND_DEVICE or kind == KIND_MANAGED:
        out_pool[0] = pool_of(device, PLAIN if kind == KIND_DEVICE else MANAGED).handle
    else:
        code = INVALID_VALUE
    return code


# Of those that the caller makes.

cdef HostPool* add_pool(int device, int file, size_t limit) noexcept nogil:
    # Under the lock; takes the file.  NULL: no memory.
    cdef HostPool* pool = <HostPool*>calloc(1, sizeof(HostPool))
    if pool == NULL:
        close_file(file)
        return NULL
    pool.kind, pool.device, pool.file, pool.limit, pool.node = POOLED, device, keep_number(file), limit, -1
    pool.made = True
    drop_destroyed()
    return list_pool(pool)


cdef int make_pool(int device, size_t limit, HostPool** out_pool) noexcept nogil:
    # Under the lock.  Of 0, more than there is: nothing of a file takes memory before it is used.  A limit is of whole
    # chunks, as NVIDIA's driver has it (580.159.04).
    cdef Header header
    cdef int file
    if limit >> 60:
        return INVALID_VALUE
    header.mark, header.limit = POOL_MARK, HEADER + (rounded(limit, POOL_CHUNK) if limit else <size_t>1 << 42)
    header.device = device
    file = make_file("accelrt-pool", header.limit)
    if file < 0:
        return OPERATING_SYSTEM
    if pwrite(file, &header, sizeof(Header), 0) != sizeof(Header):
        close_file(file)
        return OPERATING_SYSTEM
    out_pool[0] = add_pool(device, file, header.limit)
    return 0 if out_pool[0] != NULL else NO_HOST_MEMORY


cdef int pool_create_locked(int device, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil:
    cdef HostPool* pool = NULL
    cdef int code = make_pool(device, limit, &pool)
    if code == 0:
        pool.shared, out_pool[0] = shared, pool.handle
    return code


cdef int pinned_pool_create_locked(int kind, int node, size_t limit, bint shared, uintptr_t* out_pool) noexcept nogil:
    # NVIDIA's driver has none of the calling thread's node, and shares none of whichever (cuMemPoolCreate).
    cdef HostPool* pool = NULL
    cdef int code
    if kind != LOCATION_NODE and (kind != LOCATION_HOST or shared):
        return INVALID_VALUE
    if kind == LOCATION_NODE and not 0 <= node < node_count:
        return INVALID_VALUE
    code = make_pool(HOST_MEMORY, limit, &pool)
    if code == 0:
        pool.node, pool.shared, out_pool[0] = node if kind == LOCATION_NODE else -1, shared, pool.handle
    return code


cdef int managed_pool_create_locked(int device, int kind, int place, uintptr_t* out_pool) noexcept nogil:
    cdef HostPool* pool = NULL
    cdef int code = 0
    if kind == LOCATION_CURRENT_NODE:
        return INVALID_VALUE
    if kind != LOCATION_NONE:
        code = check_location(kind, place)
    if code:
        return code
    pool = add_pool(device, -1, 0)
    if pool == NULL:
        return NO_HOST_MEMORY
    pool.kind, pool.preferred_kind, pool.preferred, out_pool[0] = MANAGED, kind, place, pool.handle
    return 0


cdef int pool_import_locked(int device, int file, uintptr_t* out_pool) noexcept nogil:
    cdef Header header
    cdef HostPool* pool
    cdef int own
    header.mark = header.limit = 0
    if pread(file, &header, sizeof(Header), 0) != sizeof(Header) or header.mark != POOL_MARK:
        return INVALID_VALUE
    if file_size(file) != <long>header.limit:
        return INVALID_VALUE
    own = copy_file(file)
    if own < 0:
        return OPERATING_SYSTEM
    pool = add_pool(HOST_MEMORY if header.device == HOST_MEMORY else device, own, header.limit)
    if pool == NULL:
        return NO_HOST_MEMORY
    pool.imported, pool.access[device], out_pool[0] = True, MEMORY_WRITTEN, pool.handle
    return 0


cdef int pool_destroy_locked(HostPool* pool) noexcept nogil:
    if pool == own_pinned or not pool.made:
        return INVALID_VALUE
    pool.alive = False
    drop_destroyed()
    return 0


cdef int pool_export_locked(HostPool* pool, int* out_file) noexcept nogil:
    # NVIDIA's driver exports no pool that it imported.
    out_file[0] = -1
    if pool.imported or not pool.shared:
        return INVALID_VALUE
    out_file[0] = copy_file(number_of(pool.file))
    return 0 if out_file[0] >= 0 else OPERATING_SYSTEM


cdef int pool_alloc_locked(
    int device, uintptr_t stream, HostPool* pool, size_t size, uintptr_t* out_address
) noexcept nogil:
    if pool.imported or pool.device != device and pool.device != HOST_MEMORY:
        return INVALID_VALUE
    return take_pooled(pool, device, stream, size, out_address)


cdef int pool_pointer_export_locked(int device, uintptr_t address, char* out_ipc) noexcept nogil:
    cdef HostPool* pool = NULL
    cdef Pooled** slot = find_pooled(device, address, &pool)
    cdef Pointer pointer
    memset(out_ipc, 0, 64)
    if slot == NULL or not slot[0].used or not pool.shared:
        return INVALID_VALUE
    pointer.mark, pointer.file = POINTER_MARK, id_of(number_of(pool.file))
    pointer.offset, pointer.size = slot[0].offset, slot[0].size
    memcpy(out_ipc, &pointer, sizeof(Pointer))
    return 0


cdef bint is_part_of(const Pointer* pointer, const HostPool* pool) noexcept nogil:
    cdef FileId file = id_of(number_of(pool.file))
    if pointer.mark != POINTER_MARK or pointer.file.place != file.place or pointer.file.number != file.number:
        return False
    if pointer.offset % 4096 or pointer.size % 4096 or pointer.size == 0:
        return False
    return HEADER <= pointer.offset < pool.limit and pointer.size <= pool.limit - pointer.offset


cdef int pool_pointer_import_locked(
    int device, HostPool* pool, const char* handle, uintptr_t* out_address
) noexcept nogil:
    cdef Pointer pointer
    cdef Pooled* block
    cdef int code
    memcpy(&pointer, handle, sizeof(Pointer))
    if not pool.imported or not is_part_of(&pointer, pool) or pool.device != device and pool.device != HOST_MEMORY:
        return INVALID_VALUE
    block = <Pooled*>calloc(1, sizeof(Pooled))
    if block == NULL:
        return NO_HOST_MEMORY
    code = map_part(pool, pointer.offset, pointer.size, &block.address)
    if code:
        free(block)
        return code
    block.offset, block.used, block.taken = pointer.offset, True, pointer.size
    keep_block(pool, block, pointer.size)
    count_pooled(pool, USED_BYTES, pointer.size)
    out_address[0] = block.address
    return 0


cdef int pool_trim_locked(HostPool* pool, size_t keep) noexcept nogil:
    give_up_idle(pool, keep)
    return 0


# --- modules -----------------------------------------------------------------------------------------------

cdef HostModule* find_module(uintptr_t module) noexcept nogil:
    return <HostModule*>map_find(&modules, module)


cdef int keep_module(int device, HostModule* module, uintptr_t* out_module) noexcept nogil:
    # Under the lock.
    if map_reserve(&modules):
        return NO_HOST_MEMORY
    module.device = device
    module.holders = 1
    module.handle = new_handle()
    map_insert(&modules, module.handle, module)
    out_module[0] = module.handle
    return 0


cdef int next_image(bint checks, unsigned long* out_number) noexcept nogil:
    global images
    cdef int code
    lock()
    code = check_unsafe() if checks else 0
    images += 1
    out_number[0] = images
    unlock()
    return code


cdef int module_load_gated(int device, const char* image, uintptr_t* out_module) noexcept nogil:
    cdef HostModule* module
    cdef unsigned long number
    cdef int code = INVALID_VALUE if image == NULL else next_image(True, &number)
    if code:
        return code
    close_unused()
    module = <HostModule*>calloc(1, sizeof(HostModule))
    if module == NULL:
        return NO_HOST_MEMORY
    module.library = open_library(image, number)
    if module.library == NULL:
        free(module)
        return INVALID_IMAGE
    lock()
    code = keep_module(device, module, out_module)
    unlock()
    if code:
        dlclose(module.library)
        free(module)
    return code


cdef int module_log(int device, const char* image, char* out_log) noexcept nogil:
    cdef void* library
    cdef const char* message
    cdef unsigned long number
    cdef int code = enter(device)
    memset(out_log, 0, LOG_BYTES)
    if code or image == NULL:
        return code if code else INVALID_VALUE
    next_image(False, &number)
    dlerror()  # forgets what an earlier call said
    library = open_library(image, number)
    message = dlerror()
    if library != NULL:
        dlclose(library)
    elif message != NULL:
        snprintf(out_log, LOG_BYTES, "%s", message)
    return 0


cdef int module_register_gated(
    int device, uintptr_t function, const char* name, size_t count, void* sizes, uintptr_t* out_module
) noexcept nogil:
    cdef HostModule* module
    cdef HostFunction* only = NULL
    cdef int code
    if function == 0 or name == NULL or (count and sizes == NULL):
        return INVALID_VALUE
    close_unused()
    module = <HostModule*>calloc(1, sizeof(HostModule))
    if module == NULL:
        return NO_HOST_MEMORY
    lock()
    code = add_function(module, <kernel_fn>function, name, count, <const size_t*>sizes, &only)
    if code == 0:
        code = keep_module(device, module, out_module)
        if code:
            map_remove(&functions, only.handle)
    unlock()
    if code:
        free(only)
        free(module)
    return code


cdef int forget_module(int device, uintptr_t module) noexcept nogil:
    # Under the lock.
    cdef HostModule* forgotten
    cdef HostFunction* function
    cdef int code = check_unsafe()
    if code:
        return code
    forgotten = find_module(module)
    if forgotten == NULL or forgotten.device != device:
        return INVALID_HANDLE
    map_remove(&modules, module)
    function = forgotten.functions
    while function != NULL:
        map_remove(&functions, function.handle)
        function = function.next
    drop_module(forgotten)
    return 0


cdef int module_unload_gated(int device, uintptr_t module) noexcept nogil:
    cdef int code
    lock()
    code = forget_module(device, module)
    unlock()
    close_unused()
    return code


# --- functions ---------------------------------------------------------------------------------------------

cdef int add_function(
    HostModule* module, kernel_fn fn, const char* name, size_t count, const size_t* sizes, HostFunction** out_function
) noexcept nogil:
    # Under the lock.  One allocation holds the function, its parameters and its name.
    cdef HostFunction* function
    cdef size_t index, offset = 0
    if count > MOST_PARAMETERS:
        return INVALID_VALUE
    function = <HostFunction*>calloc(1, sizeof(HostFunction) + 2 * count * sizeof(size_t) + strlen(name) + 1)
    if function == NULL or map_reserve(&functions):
        free(function)
        return NO_HOST_MEMORY
    function.sizes = <size_t*>(function + 1)
    function.offsets = function.sizes + count
    function.name = <char*>(function.offsets + count)
    memcpy(function.name, name, strlen(name) + 1)
    for index in range(count):
        if sizes[index] == 0 or sizes[index] > MOST_PARAMETERS:
            free(function)
            return INVALID_VALUE
        function.sizes[index] = sizes[index]
        function.offsets[index] = aligned(offset, sizes[index])
        offset = function.offsets[index] + sizes[index]
    if offset > MOST_PARAMETERS:
        free(function)
        return INVALID_VALUE
    function.count = count
    function.fn = fn
    function.module = module
    function.attributes[ATTRIBUTE_THREADS], function.attributes[ATTRIBUTE_DYNAMIC] = MOST_THREADS, SHARED
    function.attributes[ATTRIBUTE_CARVEOUT] = -1  # the driver's choice
    function.handle = new_handle()
    function.next = module.functions
    module.functions = function
    map_insert(&functions, function.handle, function)
    out_function[0] = function
    return 0


cdef int look_up(HostModule* module, const char* name, HostFunction** out_function) noexcept nogil:
    # Under the lock, which the library's symbols do not need, but the module does.
    cdef char[512] first
    cdef char[512] second
    cdef const size_t* sizes
    cdef size_t count = 0
    cdef void* symbol
    out_function[0] = module.functions
    while out_function[0] != NULL and strcmp(out_function[0].name, name):
        out_function[0] = out_function[0].next
    if out_function[0] != NULL:
        return 0
    if module.library == NULL or snprintf(second, sizeof(second), "%s_parameters", name) >= <int>sizeof(second):
        return NOT_FOUND
    snprintf(first, sizeof(first), "accelrt_block_%s", name)
    symbol = dlsym(module.library, first)
    if symbol == NULL:
        symbol = dlsym(module.library, name)
    sizes = <const size_t*>dlsym(module.library, second)
    if symbol == NULL or sizes == NULL:
        return NOT_FOUND
    while sizes[count] and count < MOST_PARAMETERS:
        count += 1
    return add_function(module, <kernel_fn>symbol, name, count, sizes, out_function)


cdef int module_function_locked(HostModule* module, const char* name, uintptr_t* out_function) noexcept nogil:
    cdef HostFunction* function = NULL
    cdef int code = look_up(module, name, &function)
    if code == 0:
        out_function[0] = function.handle
    return code


cdef int module_global_locked(HostModule* module, const char* name, uintptr_t* out_address, size_t* out_size) noexcept nogil:
    # The module keeps its library, which is closed under no lock, as long as its owner may ask.
    cdef void* address = NULL
    if module.library == NULL or not find_object(module.library, name, &address, out_size):
        out_size[0] = 0
        return NOT_FOUND
    out_address[0] = <uintptr_t>address
    return know_variable(module, module.device, out_address[0], out_size[0])


cdef int function_attribute_locked(uintptr_t function, int attribute, int* out_value) noexcept nogil:
    cdef const HostFunction* host_function
    if attribute < 0 or attribute >= ATTRIBUTES:
        return INVALID_VALUE
    host_function = find_function(function)
    if host_function == NULL:
        return INVALID_HANDLE
    out_value[0] = host_function.attributes[attribute]
    return 0


cdef int function_attribute_set_locked(HostFunction* function, int attribute, int value) noexcept nogil:
    cdef int least = 0, most = -1
    if attribute == ATTRIBUTE_DYNAMIC:
        most = MOST_SHARED
    elif attribute == ATTRIBUTE_CARVEOUT:
        least, most = -1, 100  # percent
    elif attribute == ATTRIBUTE_WIDE:
        most = 1
    elif attribute == ATTRIBUTE_SCHEDULING:
        most = 2
    if not least <= value <= most:
        return INVALID_VALUE
    function.attributes[attribute] = value
    return 0


cdef int function_parameter_locked(
    HostFunction* function, size_t index, size_t* out_offset, size_t* out_size
) noexcept nogil:
    if index >= function.count:
        return INVALID_VALUE
    out_offset[0] = function.offsets[index]
    out_size[0] = function.sizes[index]
    return 0


cdef int function_name_locked(HostFunction* function, char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "%s", function.name)
    return 0


# --- occupancy: as if each processor were a multiprocessor of an H200 -----------------------------------------

cdef int occupancy_blocks_locked(HostFunction* function, int threads, size_t shared_bytes, int* out_blocks) noexcept nogil:
    if threads <= 0:
        return INVALID_VALUE
    out_blocks[0] = blocks_at_once(threads, shared_bytes)
    return 0


cdef int occupancy_block_size_locked(
    HostFunction* function, size_t shared_bytes, int limit, int* out_grid, int* out_threads
) noexcept nogil:
    if limit < 0:
        return INVALID_VALUE
    out_threads[0] = min(limit, <int>MOST_THREADS) if limit else MOST_THREADS
    out_grid[0] = blocks_at_once(out_threads[0], shared_bytes) * <int>sysconf(_SC_NPROCESSORS_ONLN)
    return 0


cdef int occupancy_clusters_locked(
    HostFunction* function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y,
    unsigned int cluster_z, int* out_clusters
) noexcept nogil:
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef int[3] cluster = [<int>cluster_x, <int>cluster_y, <int>cluster_z]
    cdef size_t threads = <size_t>block_x * block_y * block_z
    if not are_clusters(function, grid, cluster):
        return INVALID_CLUSTER_SIZE
    if threads == 0:
        return INVALID_VALUE
    out_clusters[0] = <int>(blocks_at_once(threads, shared_bytes) * sysconf(_SC_NPROCESSORS_ONLN)
                            // (cluster_x * cluster_y * cluster_z))
    return 0


cdef int occupancy_cluster_size_locked(
    HostFunction* function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, int* out_blocks
) noexcept nogil:
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    if not fits(grid, block) or shared_bytes > <unsigned int>function.attributes[ATTRIBUTE_DYNAMIC]:
        return INVALID_VALUE
    out_blocks[0] = most_cluster(function)
    return 0


cdef int occupancy_shared_locked(HostFunction* function, int blocks, int threads, size_t* out_bytes) noexcept nogil:
    if blocks <= 0 or threads <= 0 or blocks > blocks_at_once(threads, 0):
        return INVALID_VALUE
    out_bytes[0] = min(<size_t>function.attributes[ATTRIBUTE_DYNAMIC], SHARED_AT_ONCE // <size_t>blocks)
    return 0


# --- launches ----------------------------------------------------------------------------------------------

cdef int put_launch_in(
    int device, uintptr_t stream, uintptr_t function, const unsigned int* grid, const unsigned int* block,
    unsigned int shared_bytes, const int* cluster, unsigned int flags, void** arguments
) noexcept nogil:
    cdef HostFunction* launched
    cdef Work work
    cdef int code
    begin_work(&work, KERNEL)
    work.cooperative, work.programmatic = flags & LAUNCH_COOPERATIVE, flags & LAUNCH_PROGRAMMATIC != 0
    work.cluster[0], work.cluster[1], work.cluster[2] = cluster[0], cluster[1], cluster[2]
    lock()
    launched = find_function(function)
    if launched == NULL or launched.module.device != device:
        code = INVALID_HANDLE
    else:
        code = make_launch(launched, grid, block, shared_bytes, arguments, &work.launch)
    if code == 0:
        code = check_launch(&work)
        if code == 0:
            code = put_in(find_stream(device, stream), &work, NULL, NULL)
        drop_launch(work.launch)
    unlock()
    return code


cdef int kernel_launch_gated(
    int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments
) noexcept nogil:
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    cdef int[3] cluster = [0, 0, 0]
    return put_launch_in(device, stream, function, grid, block, shared_bytes, cluster, 0, arguments)


cdef int kernel_launch_with_gated(
    int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments,
    unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z
) noexcept nogil:
    # What a GPU would run at once runs in turn here; what it would refuse is refused.
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    cdef int[3] cluster = [<int>cluster_x, <int>cluster_y, <int>cluster_z]
    if flags & ~(LAUNCH_COOPERATIVE | LAUNCH_PROGRAMMATIC):
        return INVALID_VALUE
    return put_launch_in(device, stream, function, grid, block, shared_bytes, cluster, flags, arguments)


# --- what tests ask ----------------------------------------------------------------------------------------

def live_objects() -> dict[str, int]:
    """Returns what is alive on the host device, by kind: dict of counts; bytes are those held of every device.

    For tests: what was made has to be gone again.
    """
    cdef size_t[4] memory
    cdef size_t graph_count, exec_count, module_count, stream_count, event_count, queued, array_count, texture_count
    if gate_any():
        return {}
    with nogil:
        lock()
        settle_pools()
        graph_count, exec_count, module_count = graphs.count, execs.count, modules.count
        stream_count, event_count, queued = count_streams(), events.count, operations
        unlock()
        memory_counts(memory)
        count_arrays(&array_count, &texture_count)
    return {
        "allocations": memory[0], "bytes": memory[1], "reservations": memory[2], "physical": count_physicals(),
        "host_allocations": memory[3], "graphs": graph_count, "execs": exec_count, "streams": stream_count,
        "events": event_count, "operations": queued, "modules": module_count,
        "arrays": array_count, "textures": texture_count,
    }


def calls_of_gone_streams() -> int:
    """Returns how many calls named a stream that had been destroyed, or an object of another kind.

    For tests: where the host device answers INVALID_HANDLE, a GPU's driver may crash.
    """
    return read_count(&gone_calls)


def calls_beside_ends() -> int:
    """Returns how many calls were about a stream, or an event, of a capture that another thread was ending; with
    stream_is_capturing alone not counted.

    For tests: the host device answers them, where a GPU's driver may crash.  There are some only where ends take their
    time (delay_capture_ends).
    """
    return read_count(&beside_ends)


def children_of_themselves() -> int:
    """Returns how many times a graph was to be a child of itself, or of a graph within it.

    For tests: where the host device answers INVALID_VALUE, a GPU's driver dies.
    """
    return read_count(&own_children)


def continuations_of_others() -> int:
    """Returns how many times a capture was to go on after something that is no node of it.

    For tests: where the host device answers INVALID_VALUE, a GPU's driver dies.
    """
    return read_count(&foreign_ends)


def frees_under_work() -> int:
    """Returns how many times memory was unmapped, unregistered or closed while queued work named it, or freed while work
    that the call does not wait for did; the arguments of kernels, and replays under way, count as their work.

    For tests: the host device may have the work done before, where a GPU faults.
    """
    return read_count(&takings)


cdef size_t read_count(const size_t* count) noexcept nogil:
    cdef size_t value
    lock()
    value = count[0]
    unlock()
    return value


def opened_to(uintptr_t address) -> list[int]:
    """The devices that may use a mapped page, as memory_access was told: list of ordinals, empty where there is none.

    For tests: kernels of the host device reach all memory.
    """
    cdef uint64_t devices = devices_with_access(address)
    return [device for device in range(64) if devices >> device & 1]


def delay_capture_ends(long microseconds, bint hold=False) -> None:
    """Sets how long each end of a capture takes, other threads' calls coming in between; for tests.

    Arguments:
        hold: bool, and not before this is called again without it.
    """
    lock()
    delay_ends(microseconds, hold)
    unlock()


def held_capture_ends() -> int:
    """Returns how many threads are within the end of a capture just now; for tests."""
    return read_count(&held_ends)


begin_table(&table, b"host")
table.open = open_driver
table.close = close_driver
fill_driver(&table)
fill_stream(&table)
fill_memory(&table)
fill_graphs(&table)
finish_table(&table)
offer("host", &table)
explain_refusals(cause_of_refusal)
