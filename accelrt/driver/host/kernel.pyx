"""The host driver's rows for modules, functions and launches.

A kernel is a C function that is called once for each block of the grid, with the block's place and pointers to the
arguments' values; `accelrt/kernels/DESIGN.md` has the declaration.  The blocks of a launch run on the
thread that serves the stream, which others help where there is much to do (`queue.pyx`).

A module is a shared object: `module_load` takes its path, which contains a slash and ends with a NUL, or its bytes, an
ELF image whose length the section headers tell.  For a kernel NAME it exports `accelrt_block_NAME`, or NAME, and
`const size_t NAME_parameters[]`, the sizes of its parameters, with 0 at the end.  `module_register` makes a module of one
function at an address.

A module that is unloaded lives on until no work in a queue or a graph names its functions.  Libraries are opened and
closed under no lock, since their initialisers may do anything.
"""
from libc.stdint cimport uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strcmp, strlen

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.driver.host.queue cimport (
    KERNEL, HostFunction, HostModule, Launch, Work, drop_launch, drop_module, find_stream, kernel_fn, lock, new_handle,
    take_unused_modules, unlock,
)
from accelrt.driver.host.stream cimport check_unsafe, gate, gate_any, put_in
from accelrt.driver.table cimport LAUNCH_COOPERATIVE, LAUNCH_PROGRAMMATIC, LOG_BYTES, Table
from accelrt.status cimport (
    COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_CLUSTER_SIZE, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND,
    NO_HOST_MEMORY,
)

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

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    enum:
        _SC_NPROCESSORS_ONLN

cdef enum:
    MOST_PARAMETERS = 4096   # bytes, of all of a kernel's
    MOST_ALIGNED = 16
    ATTRIBUTES = 16          # CUfunction_attribute of CUDA 13
    ATTRIBUTE_THREADS = 0
    ATTRIBUTE_DYNAMIC = 8    # MAX_DYNAMIC_SHARED_SIZE_BYTES
    ATTRIBUTE_CARVEOUT = 9

# Guarded by the queue's lock.
cdef AddressMap modules
cdef AddressMap functions
cdef unsigned long images = 0

include "kernel_rows.pxi"


cdef size_t count_modules() noexcept nogil:
    return modules.count


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
