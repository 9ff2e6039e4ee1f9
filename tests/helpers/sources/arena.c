/* An allocator in the ABI of torch's CUDAPluggableAllocator that answers the addresses that a test chooses from an area of
 * its own: the host's memory, or where ACCELRT_DRIVER is cuda the current device's. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

static uintptr_t next_address;
static size_t asked;
static long returned;

EXPORT uintptr_t arena_make(size_t size) {
    const char *driver = getenv("ACCELRT_DRIVER");
    uintptr_t address = 0;
    int (*allocate)(uintptr_t *, size_t);
    if (!driver || strcmp(driver, "cuda"))
        return (uintptr_t)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(void **)&allocate = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    return allocate(&address, size) ? 0 : address;
}

EXPORT void arena_next(uintptr_t address) { next_address = address; }
EXPORT size_t arena_asked(void) { return asked; }
EXPORT long arena_returned(void) { return returned; }

EXPORT void *arena_alloc(size_t size, int device, void *stream) {
    uintptr_t address = next_address;
    (void)device, (void)stream;
    next_address = 0;
    asked = size;
    return (void *)address;
}

EXPORT void arena_free(void *address, size_t size, int device, void *stream) {
    (void)address, (void)size, (void)device, (void)stream;
    returned++;
}
