"""The host driver: an embedded device that executes on CPU threads and refuses what a GPU refuses.

Here are the settings, and the rows of devices, of modules, functions and launches, and of captures and graphs.

A kernel is a C function that is called once for each block of the grid, with the block's place and pointers to the
arguments' values; `accelrt/kernels/DESIGN.md` has the declaration.  The blocks of a launch run on the thread that serves
the stream, which others help where there is much to do (`queue.pyx`).

A module is a shared object: `module_load` takes its path, which contains a slash and ends with a NUL, or its bytes, an
ELF image whose length the section headers tell.  For a kernel NAME it exports `accelrt_block_NAME`, or NAME, and
`const size_t NAME_parameters[]`, the sizes of its parameters, with 0 at the end.  `module_register` makes a module of one
function at an address.

A module that is unloaded lives on until no work in a queue or a graph names its functions.  Libraries are opened and
closed under no lock, since their initialisers may do anything.
"""
import errno
import os

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport FILE, fclose, fopen, fprintf, snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strcmp, strlen

from accelrt import env
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.memory cimport count_physicals, count_takings, devices_with_access, fill_memory
from accelrt.driver.host.queue cimport (
    BRANCH, CALL, COPY, COPY_3D, FILL, KERNEL, RECORD, REPLAY, WAIT, Graph, HostFunction, HostModule, HostStream,
    Launch, Node, Plan, Ticket, Work, count_calls_beside_ends, count_gone_calls, count_held_ends, count_operations,
    count_streams, crew_open, delay_ends, drain_device, drop_launch, drop_module, drop_plan, drop_ticket, enqueue,
    find_stream, follow_legacy_order, hold_end_open, is_legacy, kernel_fn, lock, mark, new_handle, peek_stream,
    queue_open, take_unused_modules, unlock,
)
from accelrt.driver.host.ranges cimport (
    memory_counts, memory_figures, memory_open, memory_open_errno, take_lack_of_addresses,
)
from accelrt.driver.host.stream cimport (
    abandon_tickets, add_node, begin_capture, beside_capture, break_capture, change_plan, check_implicit, check_unsafe,
    count_events, end_capture, exchange_mode, fill_stream, find_body, find_node, find_planned, free_graph, gate,
    gate_any, gate_close, gate_devices, gate_is_new, gate_open, keep_body, new_condition, plan_of, prepare_branch,
    prepare_set, put_in, shape_changed, tickets_for,
)
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.registry import explain_refusals
from accelrt.driver.table cimport (
    CAPTURE_ACTIVE, CAPTURE_INVALIDATED, CAPTURE_NONE, CAPTURE_RELAXED, CONDITION_IF, CONDITION_WHILE,
    LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, LOG_BYTES, TEXT_BYTES, Table,
)
from accelrt.status cimport (
    CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, COOPERATIVE_LAUNCH_TOO_LARGE, GRAPH_UPDATE_FAILURE, INIT_FAILED,
    INVALID_CLUSTER_SIZE, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NO_HOST_MEMORY, OPERATING_SYSTEM,
    PEER_ACCESS_UNSUPPORTED, keep_init_error,
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
        file = headers ? memfd_create("accelrt-kernels", MFD_CLOEXEC) : -1;
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

cdef enum:  # what a device takes, by the numbers of CUdevice_attribute; those of an H200
    MOST_THREADS = 1024
    MOST_DEEP = 64                # threads in a block's z
    MOST_WIDE_GRID = 0x7FFFFFFF   # blocks in x; in y and z:
    MOST_DEEP_GRID = 65535
    THREADS_AT_ONCE = 2048        # of a multiprocessor
    BLOCKS_AT_ONCE = 32
    SHARED = 48 << 10             # bytes of a block's memory, unless the function's attribute was set
    MOST_SHARED = 227 << 10       # up to which it may be
    SHARED_AT_ONCE = 228 << 10
    MOST_CLUSTER = 8              # blocks

cdef enum:
    MOST_PARAMETERS = 4096   # bytes, of all of a kernel's
    MOST_ALIGNED = 16
    ATTRIBUTES = 16          # CUfunction_attribute of CUDA 13
    ATTRIBUTE_THREADS = 0
    ATTRIBUTE_DYNAMIC = 8    # MAX_DYNAMIC_SHARED_SIZE_BYTES
    ATTRIBUTE_CARVEOUT = 9

cdef struct Exec:
    uintptr_t handle
    Plan* plan
    Ticket* last  # of the last launch

cdef Table table

# Guarded by the queue's lock.
cdef AddressMap modules
cdef AddressMap functions
cdef unsigned long images = 0
cdef AddressMap graphs
cdef AddressMap execs

include "driver_rows.pxi"


def read_settings():
    """The host driver's settings, as the environment has them.

    Returns:
        dict: devices (ACCELRT_HOST_DEVICES, 2), memory in bytes of each (ACCELRT_HOST_MEMORY, 1GiB), delay_us in
        microseconds before each operation (ACCELRT_HOST_DELAY_US, 0), end_delay_us in microseconds within each end of a
        capture (ACCELRT_HOST_END_DELAY_US, 0), threads that a kernel runs on
        (ACCELRT_HOST_THREADS, 0: as many as the process may use processors).
    Raises:
        ValueError: one is malformed; the text names it, its value and what is allowed.
    """
    return {
        "devices": env.value("ACCELRT_HOST_DEVICES"),
        "memory": env.value("ACCELRT_HOST_MEMORY"),
        "delay_us": env.value("ACCELRT_HOST_DELAY_US"),
        "end_delay_us": env.value("ACCELRT_HOST_END_DELAY_US"),
        "threads": env.value("ACCELRT_HOST_THREADS"),
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
    try:  # an interruption too is the caller's to hear of, and nothing was opened
        settings = read_settings()
        devices, memory, delay_us = settings["devices"], settings["memory"], settings["delay_us"]
        end_delay_us, threads = settings["end_delay_us"], settings["threads"]
    except BaseException as error:
        keep_init_error(error)
        return INIT_FAILED
    code = memory_open(devices, memory)
    if code == 0:
        queue_open(delay_us, end_delay_us)
        crew_open(threads)
        gate_open(devices)
    return code


def open_error():
    """Why the devices' memory could not be made, as str; empty where it could."""
    cdef int error = memory_open_errno()
    if error == 0:
        return ""
    limit = limit_text("RLIMIT_FSIZE", "a file", "ulimit -f") if error == errno.EFBIG else ""
    return f"a file for the device's memory cannot be made: {os.strerror(error)}{limit}"


cdef str limit_text(str which, str what, str command):
    import resource

    soft = resource.getrlimit(getattr(resource, which))[0]
    return "" if soft == resource.RLIM_INFINITY else f"; this process is limited to {soft} bytes {what} ({command})"


def cause_of_refusal():
    """What the calling thread's last request for memory lacked, where that was not the device's memory; else ""."""
    if not take_lack_of_addresses():
        return ""
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


cdef int device_count(int* out_count) noexcept nogil:
    cdef int code = gate_any()
    out_count[0] = gate_devices() if code == 0 else 0
    return code


cdef int device_name(int device, char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "accelrt host device")
    return gate(device)


cdef int device_uuid(int device, char* out_uuid) noexcept nogil:
    memset(out_uuid, 0, 16)
    snprintf(out_uuid, 16, "accelrt-host-%02d", device)
    return gate(device)


cdef int device_pci_bus_id(int device, char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "host:%d", device)
    return gate(device)


cdef int launch_limit(int attribute) noexcept nogil:
    # What a kernel's launch may ask for.
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
    return BLOCKS_AT_ONCE if attribute == 106 else 0  # MAX_BLOCKS_PER_MULTIPROCESSOR


cdef int device_attribute(int device, int attribute, int* out_value) noexcept nogil:
    # Numbers of CUdevice_attribute; what a CPU has no figure for is 0.
    cdef int code = gate(device)
    if code or attribute < 1 or attribute > 147:  # the last one of CUDA 13.0
        return code if code else INVALID_VALUE
    out_value[0] = 0
    if attribute == 10:    # WARP_SIZE
        out_value[0] = 32
    elif attribute == 16:    # MULTIPROCESSOR_COUNT
        out_value[0] = <int>sysconf(_SC_NPROCESSORS_ONLN)
    elif attribute in (41, 95, 102, 120):  # UNIFIED_ADDRESSING, COOPERATIVE_LAUNCH, VIRTUAL_MEMORY_..., CLUSTER_LAUNCH
        out_value[0] = 1
    else:
        out_value[0] = launch_limit(attribute)
    return 0


cdef int device_memory(int device, size_t* out_total) noexcept nogil:
    cdef size_t ignored
    cdef int code = gate(device)
    return code if code else memory_figures(device, &ignored, out_total)


cdef int memory_info(int device, size_t* out_free, size_t* out_total) noexcept nogil:
    cdef int code = gate(device)
    return code if code else memory_figures(device, out_free, out_total)


cdef int current_device(int* out_device) noexcept nogil:
    out_device[0] = device_plus_one - 1
    return gate_any()


cdef int set_device(int device) noexcept nogil:
    global device_plus_one
    cdef int code = gate_any() if device == -1 else gate(device)
    if code == 0:
        device_plus_one = device + 1
    return code


cdef int can_access_peer(int device, int peer, int* out_can) noexcept nogil:
    cdef int code = gate(device)
    if code == 0:
        code = gate(peer)
    out_can[0] = device != peer
    return code


cdef int enable_peer(int device, int peer) noexcept nogil:
    cdef int code = gate(device)
    if code == 0:
        code = gate(peer)
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
            dlclose(module.library)
        free(module)
        module = following


# --- modules -----------------------------------------------------------------------------------------------

cdef int keep_module(int device, HostModule* made, uintptr_t* out_module) noexcept nogil:
    # Under the lock.
    if map_reserve(&modules):
        return NO_HOST_MEMORY
    made.device = device
    made.holders = 1
    made.handle = new_handle()
    map_insert(&modules, made.handle, made)
    out_module[0] = made.handle
    return 0


cdef int module_load(int device, const char* image, uintptr_t* out_module) noexcept nogil:
    global images
    cdef HostModule* made
    cdef unsigned long number
    cdef int code = gate(device)
    out_module[0] = 0
    if code or image == NULL:
        return code if code else INVALID_VALUE
    lock()
    code = check_unsafe()
    images += 1
    number = images
    unlock()
    if code:
        return code
    close_unused()
    made = <HostModule*>calloc(1, sizeof(HostModule))
    if made == NULL:
        return NO_HOST_MEMORY
    made.library = open_library(image, number)
    if made.library == NULL:
        free(made)
        return INVALID_IMAGE
    lock()
    code = keep_module(device, made, out_module)
    unlock()
    if code:
        dlclose(made.library)
        free(made)
    return code


cdef int module_log(int device, const char* image, char* out_log) noexcept nogil:
    global images
    cdef void* library
    cdef const char* said
    cdef unsigned long number
    cdef int code = gate(device)
    memset(out_log, 0, LOG_BYTES)
    if code or image == NULL:
        return code if code else INVALID_VALUE
    lock()
    images += 1
    number = images
    unlock()
    dlerror()  # forgets what an earlier call said
    library = open_library(image, number)
    if library != NULL:
        dlclose(library)
        return 0
    said = dlerror()
    if said != NULL:
        snprintf(out_log, LOG_BYTES, "%s", said)
    return 0


cdef int module_register(
    int device, uintptr_t function, const char* name, size_t count, void* sizes, uintptr_t* out_module
) noexcept nogil:
    cdef HostModule* made
    cdef HostFunction* only = NULL
    cdef int code = gate(device)
    out_module[0] = 0
    if code or function == 0 or name == NULL or (count and sizes == NULL):
        return code if code else INVALID_VALUE
    close_unused()
    made = <HostModule*>calloc(1, sizeof(HostModule))
    if made == NULL:
        return NO_HOST_MEMORY
    lock()
    code = add_function(made, <kernel_fn>function, name, count, <const size_t*>sizes, &only)
    if code == 0:
        code = keep_module(device, made, out_module)
        if code:
            map_remove(&functions, only.handle)
    unlock()
    if code:
        free(only)
        free(made)
    return code


cdef int module_unload(int device, uintptr_t module) noexcept nogil:
    cdef HostModule* found
    cdef HostFunction* function
    cdef int code = gate(device)
    if code:
        return code
    lock()
    code = check_unsafe()
    found = <HostModule*>map_find(&modules, module) if code == 0 else NULL
    if code == 0 and (found == NULL or found.device != device):
        code = INVALID_HANDLE
    if code == 0:
        map_remove(&modules, module)
        function = found.functions
        while function != NULL:
            map_remove(&functions, function.handle)
            function = function.next
        drop_module(found)
    unlock()
    close_unused()
    return code


# --- functions ---------------------------------------------------------------------------------------------

cdef size_t aligned(size_t offset, size_t size) noexcept nogil:
    # As C lays a struct out, where a size's lowest bit is its alignment.
    cdef size_t alignment = min(size & (~size + 1), <size_t>MOST_ALIGNED)
    return (offset + alignment - 1) & ~(alignment - 1)


cdef int add_function(
    HostModule* module, kernel_fn fn, const char* name, size_t count, const size_t* sizes, HostFunction** out_function
) noexcept nogil:
    # Under the lock.  One allocation holds the function, its parameters and its name.
    cdef HostFunction* made
    cdef size_t index, offset = 0
    if count > MOST_PARAMETERS:
        return INVALID_VALUE
    made = <HostFunction*>calloc(1, sizeof(HostFunction) + 2 * count * sizeof(size_t) + strlen(name) + 1)
    if made == NULL or map_reserve(&functions):
        free(made)
        return NO_HOST_MEMORY
    made.sizes = <size_t*>(made + 1)
    made.offsets = made.sizes + count
    made.name = <char*>(made.offsets + count)
    memcpy(made.name, name, strlen(name) + 1)
    for index in range(count):
        if sizes[index] == 0 or sizes[index] > MOST_PARAMETERS:
            free(made)
            return INVALID_VALUE
        made.sizes[index] = sizes[index]
        made.offsets[index] = aligned(offset, sizes[index])
        offset = made.offsets[index] + sizes[index]
    if offset > MOST_PARAMETERS:
        free(made)
        return INVALID_VALUE
    made.count = count
    made.fn = fn
    made.module = module
    made.most_shared = SHARED
    made.handle = new_handle()
    made.next = module.functions
    module.functions = made
    map_insert(&functions, made.handle, made)
    out_function[0] = made
    return 0


cdef int look_up(HostModule* module, const char* name, HostFunction** out_function) noexcept nogil:
    # Under the lock, which the library's symbols do not need, but the module does.
    cdef char[512] first
    cdef char[512] second
    cdef const size_t* sizes
    cdef size_t count = 0
    cdef void* found
    out_function[0] = module.functions
    while out_function[0] != NULL and strcmp(out_function[0].name, name):
        out_function[0] = out_function[0].next
    if out_function[0] != NULL:
        return 0
    if module.library == NULL or snprintf(second, sizeof(second), "%s_parameters", name) >= <int>sizeof(second):
        return NOT_FOUND
    snprintf(first, sizeof(first), "accelrt_block_%s", name)
    found = dlsym(module.library, first)
    if found == NULL:
        found = dlsym(module.library, name)
    sizes = <const size_t*>dlsym(module.library, second)
    if found == NULL or sizes == NULL:
        return NOT_FOUND
    while sizes[count] and count < MOST_PARAMETERS:
        count += 1
    return add_function(module, <kernel_fn>found, name, count, sizes, out_function)


cdef int module_function(uintptr_t module, const char* name, uintptr_t* out_function) noexcept nogil:
    cdef HostModule* of_
    cdef HostFunction* found = NULL
    cdef int code = gate_any()
    out_function[0] = 0
    if code:
        return code
    lock()
    of_ = <HostModule*>map_find(&modules, module)
    code = INVALID_HANDLE if of_ == NULL else look_up(of_, name, &found)
    if code == 0:
        out_function[0] = found.handle
    unlock()
    return code


cdef int module_global(uintptr_t module, const char* name, uintptr_t* out_address, size_t* out_size) noexcept nogil:
    # The module keeps its library, which is closed under no lock, as long as its owner may ask.
    cdef HostModule* of_
    cdef void* library = NULL
    cdef void* address = NULL
    cdef int code = gate_any()
    out_address[0] = out_size[0] = 0
    if code:
        return code
    lock()
    of_ = <HostModule*>map_find(&modules, module)
    if of_ == NULL:
        code = INVALID_HANDLE
    else:
        library = of_.library
    if code == 0 and (library == NULL or not find_object(library, name, &address, out_size)):
        out_size[0] = 0
        code = NOT_FOUND
    unlock()
    if code == 0:
        out_address[0] = <uintptr_t>address
    return code


cdef HostFunction* find_function(uintptr_t function) noexcept nogil:
    # Under the queue's lock; NULL where it is none.
    return <HostFunction*>map_find(&functions, function)


cdef int function_attribute(uintptr_t function, int attribute, int* out_value) noexcept nogil:
    cdef HostFunction* found
    cdef int code = gate_any()
    out_value[0] = 0
    if code or attribute < 0 or attribute >= ATTRIBUTES:
        return code if code else INVALID_VALUE
    lock()
    found = find_function(function)
    if found == NULL:
        code = INVALID_HANDLE
    elif attribute == ATTRIBUTE_THREADS:
        out_value[0] = MOST_THREADS
    elif attribute == ATTRIBUTE_DYNAMIC:
        out_value[0] = found.most_shared
    elif attribute == ATTRIBUTE_CARVEOUT:
        out_value[0] = -1
    unlock()
    return code


cdef int function_attribute_set(uintptr_t function, int attribute, int value) noexcept nogil:
    cdef HostFunction* found
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_function(function)
    if found == NULL:
        code = INVALID_HANDLE
    elif attribute == ATTRIBUTE_DYNAMIC and 0 <= value <= MOST_SHARED:
        found.most_shared = value
    elif not (attribute == ATTRIBUTE_CARVEOUT and -1 <= value <= 100):
        code = INVALID_VALUE
    unlock()
    return code


cdef int function_parameter(uintptr_t function, size_t index, size_t* out_offset, size_t* out_size) noexcept nogil:
    cdef HostFunction* found
    cdef int code = gate_any()
    out_offset[0] = out_size[0] = 0
    if code:
        return code
    lock()
    found = find_function(function)
    if found == NULL or index >= found.count:
        code = INVALID_HANDLE if found == NULL else INVALID_VALUE
    else:
        out_offset[0] = found.offsets[index]
        out_size[0] = found.sizes[index]
    unlock()
    return code


# --- occupancy: as if each processor were a multiprocessor of an H200 -----------------------------------------

cdef int blocks_at_once(size_t threads, size_t shared_bytes) noexcept nogil:
    cdef size_t count = min(<size_t>BLOCKS_AT_ONCE, THREADS_AT_ONCE // threads)
    if threads > MOST_THREADS or shared_bytes > MOST_SHARED:
        return 0
    return <int>(min(count, SHARED_AT_ONCE // shared_bytes) if shared_bytes else count)


cdef int check_function(uintptr_t function) noexcept nogil:
    cdef int code = gate_any()
    if code == 0:
        lock()
        code = 0 if find_function(function) != NULL else INVALID_HANDLE
        unlock()
    return code


cdef int occupancy_blocks(uintptr_t function, int threads, size_t shared_bytes, int* out_blocks) noexcept nogil:
    cdef int code = check_function(function)
    out_blocks[0] = 0
    if code or threads <= 0:
        return code if code else INVALID_VALUE
    out_blocks[0] = blocks_at_once(threads, shared_bytes)
    return 0


cdef int occupancy_block_size(
    uintptr_t function, size_t shared_bytes, int limit, int* out_grid, int* out_threads
) noexcept nogil:
    cdef int code = check_function(function)
    out_grid[0] = out_threads[0] = 0
    if code or limit < 0:
        return code if code else INVALID_VALUE
    out_threads[0] = min(limit, <int>MOST_THREADS) if limit else MOST_THREADS
    out_grid[0] = blocks_at_once(out_threads[0], shared_bytes) * <int>sysconf(_SC_NPROCESSORS_ONLN)
    return 0


cdef bint are_clusters(const unsigned int* grid, const unsigned int* cluster) noexcept nogil:
    cdef unsigned long long blocks = <unsigned long long>cluster[0] * cluster[1] * cluster[2]
    if cluster[0] > MOST_CLUSTER or cluster[1] > MOST_CLUSTER or blocks == 0 or blocks > MOST_CLUSTER:
        return False
    return grid[0] % cluster[0] == 0 and grid[1] % cluster[1] == 0 and grid[2] % cluster[2] == 0


cdef int occupancy_clusters(int device, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z, int* out_clusters) noexcept nogil:  # no-cython-lint
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] cluster = [cluster_x, cluster_y, cluster_z]
    cdef size_t threads = <size_t>block_x * block_y * block_z
    cdef int code = gate(device)
    out_clusters[0] = 0
    if code == 0:
        code = check_function(function)
    if code:
        return code
    if not are_clusters(grid, cluster):
        return INVALID_CLUSTER_SIZE
    if threads == 0:
        return INVALID_VALUE
    out_clusters[0] = <int>(blocks_at_once(threads, shared_bytes) * sysconf(_SC_NPROCESSORS_ONLN)
                            // (cluster_x * cluster_y * cluster_z))
    return 0


# --- launches ----------------------------------------------------------------------------------------------

cdef bint fits(const unsigned int* grid, const unsigned int* block) noexcept nogil:
    cdef unsigned long long threads = <unsigned long long>block[0] * block[1]
    if block[0] > MOST_THREADS or block[1] > MOST_THREADS or block[2] > MOST_DEEP:
        return False
    if threads * block[2] == 0 or threads * block[2] > MOST_THREADS:
        return False
    if grid[0] == 0 or grid[1] == 0 or grid[2] == 0:
        return False
    return grid[0] <= MOST_WIDE_GRID and grid[1] <= MOST_DEEP_GRID and grid[2] <= MOST_DEEP_GRID


cdef int make_launch(
    HostFunction* function, const unsigned int* grid, const unsigned int* block, unsigned int shared_bytes,
    void** arguments, Launch** out_launch
) noexcept nogil:
    # A launch with one holder, checked as a GPU checks it, and its arguments copied; under the queue's lock.
    cdef Launch* made
    cdef size_t count = function.count, index, size = 0
    cdef char* values
    if not fits(grid, block) or shared_bytes > <unsigned int>function.most_shared or (count and arguments == NULL):
        return INVALID_VALUE
    for index in range(count):
        if arguments[index] == NULL:
            return INVALID_VALUE
        size = function.offsets[index] + function.sizes[index]
    # One allocation: the launch, pointers, and what they point at, aligned as malloc's.
    size += sizeof(Launch) + count * sizeof(void*) + MOST_ALIGNED
    made = <Launch*>malloc(size)
    if made == NULL:
        return NO_HOST_MEMORY
    made.arguments = <void**>(made + 1)
    values = <char*>aligned(<size_t>(made.arguments + count), MOST_ALIGNED)
    for index in range(count):
        made.arguments[index] = values + function.offsets[index]
        memcpy(made.arguments[index], arguments[index], function.sizes[index])
    memcpy(made.grid, grid, sizeof(made.grid))
    memcpy(made.block, block, sizeof(made.block))
    made.shared_bytes = shared_bytes
    made.function = function
    made.holders = 1
    function.module.holders += 1
    out_launch[0] = made
    return 0


cdef int put_launch_in(
    int device, uintptr_t stream, uintptr_t function, const unsigned int* grid, const unsigned int* block,
    unsigned int shared_bytes, void** arguments
) noexcept nogil:
    cdef HostFunction* found
    cdef Work work
    cdef int code
    memset(&work, 0, sizeof(Work))
    work.kind = KERNEL
    lock()
    found = find_function(function)
    if found == NULL or found.module.device != device:
        code = INVALID_HANDLE
    else:
        code = make_launch(found, grid, block, shared_bytes, arguments, &work.launch)
    if code == 0:
        code = put_in(find_stream(device, stream), &work, NULL, NULL)
        drop_launch(work.launch)
    unlock()
    return code


cdef int kernel_launch(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    cdef int code = gate(device)
    return code if code else put_launch_in(device, stream, function, grid, block, shared_bytes, arguments)


cdef int kernel_launch_with(int device, uintptr_t stream, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments, unsigned int flags, unsigned int cluster_x, unsigned int cluster_y, unsigned int cluster_z) noexcept nogil:  # no-cython-lint
    # What a GPU would run at once runs in turn here; what it would refuse is refused.
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    cdef unsigned int[3] cluster = [cluster_x, cluster_y, cluster_z]
    cdef unsigned long long room
    cdef int code = gate(device)
    if code or flags & ~(LAUNCH_COOPERATIVE | LAUNCH_PROGRAMMATIC):
        return code if code else INVALID_VALUE
    if cluster_x and not are_clusters(grid, cluster):
        return INVALID_CLUSTER_SIZE
    if flags & LAUNCH_COOPERATIVE and fits(grid, block):
        room = blocks_at_once(block_x * block_y * block_z, shared_bytes)
        if <unsigned long long>grid_x * grid_y * grid_z > room * <unsigned long long>sysconf(_SC_NPROCESSORS_ONLN):
            return COOPERATIVE_LAUNCH_TOO_LARGE
    return put_launch_in(device, stream, function, grid, block, shared_bytes, arguments)


# --- captures and graphs -----------------------------------------------------------------------------------

cdef Graph* find_graph(uintptr_t graph) noexcept nogil:
    # Or a body; under the queue's lock.
    cdef Graph* found = <Graph*>map_find(&graphs, graph)
    return found if found != NULL else find_body(graph)


cdef int capture_begin(int device, uintptr_t stream, int mode) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else begin_capture(found, NULL, mode)
    unlock()
    return code


cdef int capture_end(int device, uintptr_t stream, uintptr_t* out_graph) noexcept nogil:
    cdef HostStream* found
    cdef Graph* graph = NULL
    cdef int code = gate(device)
    out_graph[0] = 0
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    if found != NULL and hold_end_open(found):
        found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else map_reserve(&graphs)
    if code == 0:
        code = end_capture(found, &graph)
    if code == 0 and graph.within != NULL:
        out_graph[0] = graph.handle
    elif code == 0:
        out_graph[0] = new_handle()
        map_insert(&graphs, out_graph[0], graph)
    unlock()
    return code


cdef int capture_status(int device, uintptr_t stream, int* out_status, uint64_t* out_id) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    out_status[0] = CAPTURE_NONE
    out_id[0] = 0
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    if found == NULL:
        code = INVALID_HANDLE
    elif is_legacy(found):
        code = CAPTURE_IMPLICIT if beside_capture(found) else 0
    elif found.capture != NULL:
        out_status[0] = CAPTURE_INVALIDATED if found.capture.broken else CAPTURE_ACTIVE
        out_id[0] = 0 if found.capture.broken else found.capture.id
    unlock()
    return code


cdef int stream_is_capturing(int device, uintptr_t stream, int* out_status) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    out_status[0] = CAPTURE_NONE
    if code:
        return code
    lock()
    found = peek_stream(device, stream)
    if found == NULL:
        code = INVALID_HANDLE
    elif is_legacy(found):
        code = CAPTURE_IMPLICIT if beside_capture(found) else 0
    elif found.capture != NULL:
        out_status[0] = CAPTURE_INVALIDATED if found.capture.broken else CAPTURE_ACTIVE
    unlock()
    return code


cdef int capture_mode_exchange(int mode, int* out_before) noexcept nogil:
    cdef int code = gate_any()
    if code or mode < 0 or mode > CAPTURE_RELAXED:
        return code if code else INVALID_VALUE
    out_before[0] = exchange_mode(mode)
    return 0


cdef int graph_destroy(uintptr_t graph) noexcept nogil:
    cdef Graph* found
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = <Graph*>map_remove(&graphs, graph)
    if found != NULL:
        free_graph(found)
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int graph_node_count(uintptr_t graph, size_t* out_count) noexcept nogil:
    cdef Graph* found
    cdef int code = gate_any()
    if code or graph == 0:
        return code if code else INVALID_VALUE
    lock()
    found = find_graph(graph)
    out_count[0] = found.count if found != NULL else 0
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int graph_instantiate(int device, uintptr_t graph, uint64_t flags, uintptr_t* out_exec) noexcept nogil:
    cdef Graph* found
    cdef Exec* made
    cdef int code = gate(device)
    out_exec[0] = 0
    if code:
        return code
    made = <Exec*>calloc(1, sizeof(Exec))
    if made == NULL:
        return NO_HOST_MEMORY
    lock()
    found = <Graph*>map_find(&graphs, graph)
    code = INVALID_VALUE if found == NULL else check_unsafe()
    if code == 0:
        code = map_reserve(&execs)
    if code == 0:
        made.plan = plan_of(found)
        code = 0 if made.plan != NULL else NO_HOST_MEMORY
    if code == 0:
        made.handle = new_handle()
        map_insert(&execs, made.handle, made)
        out_exec[0] = made.handle
    unlock()
    if code:
        free(made)
    return code


cdef int graph_update(uintptr_t exec_, uintptr_t graph, int* out_result, uintptr_t* out_node) noexcept nogil:
    cdef Exec* found
    cdef Graph* to
    cdef Plan* plan
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = <Exec*>map_find(&execs, exec_)
    to = <Graph*>map_find(&graphs, graph)
    out_result[0] = 0
    out_node[0] = 0
    if found == NULL or to == NULL:
        code = INVALID_VALUE
    else:
        out_result[0] = shape_changed(found.plan, to, out_node)
        if out_result[0]:
            code = GRAPH_UPDATE_FAILURE
    if code == 0:
        plan = plan_of(to)  # launches under way keep the old one
        if plan == NULL:
            code = NO_HOST_MEMORY
        else:
            drop_plan(found.plan)
            found.plan = plan
    unlock()
    return code


cdef int launch_in_turn(Exec* exec_, HostStream* on, const Work* replay) noexcept nogil:
    # One launch of an instantiated graph runs at a time, whichever the streams.
    cdef Work work
    cdef void* tickets = NULL
    cdef int code = follow_legacy_order(on)
    if code == 0 and exec_.last != NULL and not exec_.last.done:
        memset(&work, 0, sizeof(Work))
        work.kind = WAIT
        code = enqueue(on, &work, exec_.last, NULL)
    if code == 0:
        code = tickets_for(exec_.plan, &tickets)
    if code == 0:
        code = enqueue(on, replay, NULL, tickets)
        if code:
            abandon_tickets(exec_.plan, tickets)
    if code == 0:
        drop_ticket(exec_.last)
        exec_.last = mark(on, &code)
    return code


cdef int graph_launch(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    cdef Exec* found
    cdef HostStream* on
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    memset(&work, 0, sizeof(Work))
    work.kind = REPLAY
    lock()
    found = <Exec*>map_find(&execs, exec_)
    on = find_stream(device, stream)
    if found == NULL or on == NULL:
        code = INVALID_VALUE if found == NULL else INVALID_HANDLE
    elif on.capture != NULL:
        code = break_capture(on, CAPTURE_UNSUPPORTED)
    else:
        code = check_implicit(on)
    if code == 0:
        work.plan = found.plan
        code = launch_in_turn(found, on, &work)
    unlock()
    return code


cdef int graph_upload(int device, uintptr_t exec_, uintptr_t stream) noexcept nogil:
    # There is nowhere to upload to; the handles are still checked.
    cdef HostStream* on
    cdef int code = gate(device)
    if code:
        return code
    lock()
    on = find_stream(device, stream)
    if map_find(&execs, exec_) == NULL or on == NULL:
        code = INVALID_VALUE if on != NULL else INVALID_HANDLE
    elif on.capture != NULL:
        code = break_capture(on, CAPTURE_UNSUPPORTED)
    unlock()
    return code


cdef int graph_exec_destroy(uintptr_t exec_) noexcept nogil:
    cdef Exec* found
    cdef int code = gate_any()
    if code:
        return code
    lock()
    code = check_unsafe()
    found = <Exec*>map_remove(&execs, exec_) if code == 0 else NULL
    if found != NULL:
        drop_plan(found.plan)
        drop_ticket(found.last)
    unlock()
    free(found)
    return INVALID_VALUE if code == 0 and found == NULL else code


# --- what a graph is made of: its nodes, its edges, a drawing, its conditions ------------------------------

cdef enum:  # CUgraphNodeType
    TYPE_KERNEL = 0
    TYPE_MEMCPY = 1
    TYPE_MEMSET = 2
    TYPE_HOST = 3
    TYPE_EVENT_WAIT = 6
    TYPE_EVENT_RECORD = 7
    TYPE_CONDITIONAL = 13


cdef int type_of(int kind) noexcept nogil:
    # What sets a condition is a kernel on a GPU.
    if kind == COPY or kind == COPY_3D:
        return TYPE_MEMCPY
    if kind == FILL:
        return TYPE_MEMSET
    if kind == BRANCH:
        return TYPE_CONDITIONAL
    if kind == WAIT:
        return TYPE_EVENT_WAIT
    if kind == RECORD:
        return TYPE_EVENT_RECORD
    return TYPE_HOST if kind == CALL else TYPE_KERNEL


cdef const char* type_name(int kind) noexcept nogil:
    cdef int type_ = type_of(kind)
    if type_ == TYPE_MEMCPY:
        return "MEMCPY"
    if type_ == TYPE_MEMSET:
        return "MEMSET"
    if type_ == TYPE_CONDITIONAL:
        return "CONDITIONAL"
    if type_ == TYPE_EVENT_WAIT:
        return "EVENT_WAIT"
    if type_ == TYPE_EVENT_RECORD:
        return "EVENT_RECORD"
    return "HOST" if type_ == TYPE_HOST else "KERNEL"


# --- lists -------------------------------------------------------------------------------------------------

cdef int graph_nodes(uintptr_t graph, size_t room, void* nodes, size_t* out_count) noexcept nogil:
    cdef Graph* found
    cdef size_t index
    cdef int code = gate_any()
    out_count[0] = 0
    if code:
        return code
    lock()
    found = find_graph(graph)
    if found != NULL:
        out_count[0] = min(<size_t>found.count, room) if room else found.count
        for index in range(min(<size_t>found.count, room)):
            (<uintptr_t*>nodes)[index] = found.nodes[index].handle
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef size_t list_edges(const Graph* graph, size_t room, uintptr_t* origins, uintptr_t* targets) noexcept nogil:
    # Answers how many there are; writes those that have room.
    cdef size_t count = 0
    cdef int index, step
    for index in range(graph.count):
        for step in range(graph.nodes[index].after.count):
            if count < room:
                origins[count] = graph.nodes[graph.nodes[index].after.nodes[step]].handle
                targets[count] = graph.nodes[index].handle
            count += 1
    return count


cdef int graph_edges(uintptr_t graph, size_t room, void* origins, void* targets, size_t* out_count) noexcept nogil:
    cdef Graph* found
    cdef size_t count
    cdef int code = gate_any()
    out_count[0] = 0
    if code:
        return code
    lock()
    found = find_graph(graph)
    if found != NULL:
        count = list_edges(found, room, <uintptr_t*>origins, <uintptr_t*>targets)
        out_count[0] = min(count, room) if room else count
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int graph_node_type(uintptr_t graph, uintptr_t node, int* out_type) noexcept nogil:
    cdef Graph* found
    cdef Node* place
    cdef int code = gate_any()
    if code:
        return code
    code = INVALID_VALUE
    lock()
    found = find_graph(graph)
    place = NULL if found == NULL else find_node(found.nodes, found.count, node)
    if place != NULL:
        out_type[0] = type_of(place.work.kind)
        code = 0
    unlock()
    return code


# --- a drawing ---------------------------------------------------------------------------------------------

cdef void write_nodes(FILE* file, const Graph* graph) noexcept nogil:
    # Nodes are named by their handles; a conditional node's body is a cluster that it points into.
    cdef int index, step
    cdef const Graph* body
    for index in range(graph.count):
        fprintf(file, "\"%llx\" [label=\"%d\\n%s\"];\n", <unsigned long long>graph.nodes[index].handle, index,
                type_name(graph.nodes[index].work.kind))
        for step in range(graph.nodes[index].after.count):
            fprintf(file, "\"%llx\" -> \"%llx\";\n",
                    <unsigned long long>graph.nodes[graph.nodes[index].after.nodes[step]].handle,
                    <unsigned long long>graph.nodes[index].handle)
        body = graph.nodes[index].work.body
        if body != NULL:
            fprintf(file, "subgraph \"cluster_%llx\" {\nlabel=\"%s\";\n", <unsigned long long>body.handle,
                    "while" if graph.nodes[index].work.repeats else "if")
            write_nodes(file, body)
            fprintf(file, "}\n")
            if body.count:
                fprintf(file, "\"%llx\" -> \"%llx\" [style=dashed];\n",
                        <unsigned long long>graph.nodes[index].handle, <unsigned long long>body.nodes[0].handle)


cdef int graph_dot(uintptr_t graph, const char* path, unsigned int flags) noexcept nogil:
    cdef Graph* found
    cdef FILE* file
    cdef bint written = False
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_graph(graph)
    file = fopen(path, "w") if found != NULL else NULL
    if file != NULL:
        fprintf(file, "digraph dot {\n")
        write_nodes(file, found)
        written = fprintf(file, "}\n") > 0
        written = fclose(file) == 0 and written
    unlock()
    if found == NULL:
        return INVALID_VALUE
    return 0 if written else OPERATING_SYSTEM


# --- conditions --------------------------------------------------------------------------------------------

cdef int conditional_create(int device, uintptr_t stream, uint64_t* out_condition) noexcept nogil:
    cdef HostStream* found
    cdef int code = gate(device)
    out_condition[0] = 0
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else new_condition(found, out_condition)
    unlock()
    return code


cdef int conditional_set(int device, uintptr_t stream, uint64_t condition, uintptr_t address) noexcept nogil:
    cdef HostStream* found
    cdef Work work
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else prepare_set(found, condition, address, &work)
    if code == 0:
        code = add_node(found, &work)
    unlock()
    return code


cdef int conditional_add(int device, uintptr_t stream, uint64_t condition, int kind, uintptr_t* out_body) noexcept nogil:
    cdef HostStream* found
    cdef Work work
    cdef int code = gate(device)
    out_body[0] = 0
    if code or kind < CONDITION_IF or kind > CONDITION_WHILE:
        return code if code else INVALID_VALUE
    lock()
    found = find_stream(device, stream)
    code = INVALID_HANDLE if found == NULL else prepare_branch(found, condition, kind == CONDITION_WHILE, &work)
    if code == 0:
        code = add_node(found, &work)
        if code:
            free(work.body)
        else:
            keep_body(work.body)
            out_body[0] = work.body.handle
    unlock()
    return code


cdef int capture_begin_to(int device, uintptr_t stream, uintptr_t body, int mode) noexcept nogil:
    cdef HostStream* found
    cdef Graph* to
    cdef int code = gate(device)
    if code:
        return code
    lock()
    found = find_stream(device, stream)
    to = find_body(body)
    if found == NULL or to == NULL:
        code = INVALID_VALUE if found != NULL else INVALID_HANDLE
    else:
        code = begin_capture(found, to, mode)
    unlock()
    return code


# --- kernel nodes ------------------------------------------------------------------------------------------

cdef Node* find_kernel_node(uintptr_t graph, uintptr_t node) noexcept nogil:
    # Under the lock; NULL where it is none.
    cdef Graph* found = find_graph(graph)
    cdef Node* place = NULL if found == NULL else find_node(found.nodes, found.count, node)
    return place if place != NULL and place.work.kind == KERNEL else NULL


cdef int kernel_node(uintptr_t graph, uintptr_t node, uintptr_t* out_function, unsigned int* out_grid_x, unsigned int* out_grid_y, unsigned int* out_grid_z, unsigned int* out_block_x, unsigned int* out_block_y, unsigned int* out_block_z, unsigned int* out_shared_bytes, uintptr_t* out_arguments) noexcept nogil:  # no-cython-lint
    cdef Node* found
    cdef const Launch* launch
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_kernel_node(graph, node)
    if found != NULL:
        launch = found.work.launch
        out_function[0] = launch.function.handle
        out_grid_x[0], out_grid_y[0], out_grid_z[0] = launch.grid[0], launch.grid[1], launch.grid[2]
        out_block_x[0], out_block_y[0], out_block_z[0] = launch.block[0], launch.block[1], launch.block[2]
        out_shared_bytes[0] = launch.shared_bytes
        out_arguments[0] = <uintptr_t>launch.arguments
    unlock()
    return 0 if found != NULL else INVALID_VALUE


cdef int change_exec(uintptr_t exec_, uintptr_t node, Launch* launch) noexcept nogil:
    # Launches under way keep the old plan; without them it is changed in place.
    cdef Exec* found = <Exec*>map_find(&execs, exec_)
    cdef Plan* plan
    cdef Node* place
    cdef bint changed = False
    if found == NULL:
        return INVALID_VALUE
    if found.plan.holders == 1:
        place = find_planned(found.plan, node)
        if place == NULL or place.work.kind != KERNEL:
            return INVALID_VALUE
        drop_launch(place.work.launch)
        place.work.launch = launch
        launch.holders += 1
        return 0
    plan = change_plan(found.plan, node, launch, &changed)
    if plan == NULL or not changed:
        drop_plan(plan)
        return INVALID_VALUE if plan != NULL else NO_HOST_MEMORY
    drop_plan(found.plan)
    found.plan = plan
    return 0


cdef int kernel_node_set(uintptr_t graph, uintptr_t exec_, uintptr_t node, uintptr_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, void** arguments) noexcept nogil:  # no-cython-lint
    cdef unsigned int[3] grid = [grid_x, grid_y, grid_z]
    cdef unsigned int[3] block = [block_x, block_y, block_z]
    cdef Node* found
    cdef HostFunction* of_
    cdef Launch* launch = NULL
    cdef int code = gate_any()
    if code:
        return code
    lock()
    found = find_kernel_node(graph, node)
    of_ = find_function(function)
    if found == NULL or of_ == NULL:
        code = INVALID_VALUE if found == NULL else INVALID_HANDLE
    elif of_.module.device != found.work.launch.function.module.device:
        code = INVALID_VALUE
    else:
        code = make_launch(of_, grid, block, shared_bytes, arguments, &launch)
    if code == 0 and exec_:
        code = change_exec(exec_, node, launch)
    elif code == 0:
        drop_launch(found.work.launch)
        found.work.launch = launch
        launch.holders += 1
    drop_launch(launch)
    unlock()
    return code


# --- what tests ask ----------------------------------------------------------------------------------------

def live_objects():
    """What is alive on the host device, by kind: dict of counts; bytes are those held of every device.

    For tests: what was made has to be gone again.
    """
    cdef size_t[4] memory
    cdef size_t graph_count, exec_count, module_count
    memset(memory, 0, sizeof(memory))
    if gate_any():
        return {}
    with nogil:
        memory_counts(memory)
        lock()
        graph_count, exec_count, module_count = graphs.count, execs.count, modules.count
        streams, events, queued = count_streams(), count_events(), count_operations()
        unlock()
    return {
        "allocations": memory[0], "bytes": memory[1], "reservations": memory[2], "physical": count_physicals(),
        "host_allocations": memory[3], "graphs": graph_count, "execs": exec_count, "streams": streams,
        "events": events, "operations": queued, "modules": module_count,
    }


def calls_of_gone_streams():
    """How many calls named a stream that had been destroyed, or an object of another kind.

    For tests: where the host device answers INVALID_HANDLE, a GPU's driver may crash.
    """
    lock()
    count = count_gone_calls()
    unlock()
    return count


def calls_beside_ends():
    """How many calls were about a stream, or an event, of a capture that another thread was ending; with
    stream_is_capturing alone not counted.

    For tests: the host device answers them, where a GPU's driver may crash.  There are some only where ends take their
    time (delay_capture_ends).
    """
    lock()
    count = count_calls_beside_ends()
    unlock()
    return count


def frees_under_work():
    """How many times memory was unmapped, unregistered or closed while queued work named it, or freed while work that the
    call does not wait for did; the arguments of kernels, and replays under way, count as their work.

    For tests: the host device may have the work done before, where a GPU faults.
    """
    lock()
    count = count_takings()
    unlock()
    return count


def opened_to(uintptr_t address):
    """The devices that may use a mapped page, as memory_access was told: list of ordinals, empty where there is none.

    For tests: kernels of the host device reach all memory.
    """
    cdef uint64_t devices = devices_with_access(address)
    return [device for device in range(64) if devices >> device & 1]


def delay_capture_ends(long microseconds, bint hold=False):
    """How long each end of a capture takes from now on, other threads' calls coming in between; for tests.

    Arguments:
        hold: bool, and not before this is called again without it.
    """
    lock()
    delay_ends(microseconds, hold)
    unlock()


def held_capture_ends():
    """How many threads are within the end of a capture just now; for tests."""
    lock()
    count = count_held_ends()
    unlock()
    return count


begin_table(&table, b"host")
table.open = open_driver
table.close = close_driver
fill_driver(&table)
fill_stream(&table)
fill_memory(&table)
finish_table(&table)
offer("host", &table)
explain_refusals(cause_of_refusal)
