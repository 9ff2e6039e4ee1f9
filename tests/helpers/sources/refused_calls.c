/* Loaded by LD_PRELOAD: a call that accelrt's modules make for memory, a descriptor or a thread fails, by its number. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#define NEXT(type, name, arguments)                              \
    static type(*next) arguments;                                \
    if (!next)                                                   \
        next = (type(*) arguments)dlsym(RTLD_NEXT, #name);
#define REFUSED is_refused(__builtin_return_address(0))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static long calls, refused;  /* refused: 0 for none */
static int all_later;

void refuse_call(long number, int and_later) {
    all_later = and_later;
    __atomic_store_n(&calls, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&refused, number, __ATOMIC_SEQ_CST);
}

long count_calls(void) {
    __atomic_store_n(&refused, 0, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}

static int is_refused(void *caller) {
    long number = __atomic_load_n(&refused, __ATOMIC_SEQ_CST), call;
    Dl_info module;
    if (number == 0 || !dladdr(caller, &module) || !strstr(module.dli_fname, "/accelrt/"))
        return 0;
    call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    return call == number || (all_later && call > number);
}

void *malloc(size_t size) {
    return REFUSED ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return REFUSED ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
    return REFUSED ? NULL : __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return REFUSED ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
    *memory = REFUSED ? NULL : __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

void *mmap64(void *address, size_t size, int protection, int flags, int file, off64_t offset) {
    NEXT(void *, mmap64, (void *, size_t, int, int, int, off64_t))
    if (!REFUSED)
        return next(address, size, protection, flags, file, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

int memfd_create(const char *name, unsigned flags) {
    NEXT(int, memfd_create, (const char *, unsigned))
    if (!REFUSED)
        return next(name, flags);
    errno = EMFILE;
    return -1;
}

int ftruncate64(int file, off64_t size) {
    NEXT(int, ftruncate64, (int, off64_t))
    if (!REFUSED)
        return next(file, size);
    errno = ENOSPC;
    return -1;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    NEXT(int, pthread_create, (pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))
    return REFUSED ? EAGAIN : next(thread, attributes, function, argument);
}
