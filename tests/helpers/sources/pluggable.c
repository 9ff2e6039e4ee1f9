/* An allocator in the ABI of torch's CUDAPluggableAllocator that keeps books, for test_backends.py.
 *
 * It hands out the host's memory, or where ACCELRT_DRIVER is cuda the current device's.  What it is given back
 * it overwrites first, where it can, so that whoever still reads it sees. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t live, most = SIZE_MAX;
static long allocations, frees, refusals;
static int last_device = -1;
static void *last_stream;

EXPORT size_t books_live(void) { return live; }
EXPORT long books_allocations(void) { return allocations; }
EXPORT long books_frees(void) { return frees; }
EXPORT long books_refusals(void) { return refusals; }
EXPORT int books_device(void) { return last_device; }
EXPORT void *books_stream(void) { return last_stream; }
EXPORT void books_limit(size_t bytes) { most = bytes; }

static int on_gpu(void) {
    const char *driver = getenv("ACCELRT_DRIVER");
    return driver && !strcmp(driver, "cuda");
}

static void *take(size_t size) {
    uintptr_t address = 0;
    int (*allocate)(uintptr_t *, size_t);
    if (!on_gpu())
        return aligned_alloc(512, (size + 511) / 512 * 512);
    *(void **)&allocate = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    return allocate(&address, size) ? NULL : (void *)address;
}

static void give(void *address, size_t size) {
    int (*release)(uintptr_t);
    if (!on_gpu()) {
        memset(address, 0xDD, size);
        free(address);
        return;
    }
    *(void **)&release = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2");
    release((uintptr_t)address);
}

EXPORT void *books_alloc(size_t size, int device, void *stream) {
    void *address = NULL;
    pthread_mutex_lock(&lock);
    if (live + size <= most)
        address = take(size);
    if (address) {
        live += size;
        allocations++;
        last_device = device;
        last_stream = stream;
    } else {
        refusals++;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

EXPORT void books_free(void *address, size_t size, int device, void *stream) {
    pthread_mutex_lock(&lock);
    give(address, size);
    live -= size;
    frees++;
    last_device = device;
    last_stream = stream;
    pthread_mutex_unlock(&lock);
}
