/* A libcuda of two devices that does nothing but keep contexts, for tests of the cuda driver's own logic:
 * which context a row runs in, what it does where a function is missing, when a copy waits.
 *
 * Addresses below 0x10000 are memory of a device, those below 0x20000 page-locked, the rest pageable.
 * Settings: FAKE_INIT, what cuInit answers; FAKE_MISSING, a function that is not there; FAKE_STRICT, calls on
 * streams want a context; FAKE_PAGEABLE, the devices reach pageable memory; FAKE_POOL, MiB that the stream-ordered
 * pool can hold.  Work is complete at once, but while fake_busy(1) is in force.  That pool hands out what was given back only after a trim, as if all of it were in pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, DEVICES = 2, DEPTH = 8 };

static __thread uintptr_t contexts[DEPTH];
static __thread int depth;
static int retained[DEVICES], synchronized, streams;
static volatile int busy;

EXPORT int fake_retained(int device) { return retained[device]; }
EXPORT int fake_synchronized(void) { return synchronized; }
EXPORT int fake_depth(void) { return depth; }
EXPORT void fake_busy(int state) { busy = state; }

static uintptr_t current(void) { return depth ? contexts[depth - 1] : 0; }
static int setting(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
static int wants_context(void) { return setting("FAKE_STRICT") && !current() ? INVALID_CONTEXT : 0; }

static int init(unsigned flags) { return flags ? INVALID_VALUE : setting("FAKE_INIT"); }
static int error_name(int code, const char **name) { *name = "CUDA_ERROR_FAKE"; return code ? 0 : 0; }
static int version(int *out) { *out = 13000; return 0; }
static int count(int *out) { *out = DEVICES; return 0; }
static int device(int *out, int ordinal) { *out = ordinal; return 0; }
static int attribute(int *out, int number, int of) { *out = of >= 0 && number == 88 && setting("FAKE_PAGEABLE"); return 0; }
static int retain(uintptr_t *out, int of) { retained[of]++; *out = 0xC000 + of; return 0; }
static int get_current(uintptr_t *out) { *out = current(); return 0; }
static int set_current(uintptr_t to) { if (!depth) depth = 1; contexts[depth - 1] = to; return 0; }
static int push(uintptr_t to) { contexts[depth++] = to; return 0; }
static int pop(uintptr_t *out) { *out = contexts[--depth]; return 0; }
static int of_context(int *out) { *out = (int)(current() & 0xF); return current() ? 0 : INVALID_CONTEXT; }
static int memory_info(size_t *free_, size_t *total) { *free_ = *total = current(); return current() ? 0 : INVALID_CONTEXT; }
static int stream_create(uintptr_t *out, unsigned flags, int priority) { *out = 0x100 + ++streams + flags * 0 + priority * 0; return current() ? 0 : INVALID_CONTEXT; }
static int left(int code) { return code == 0 && busy ? NOT_READY : code; }
static int await(int code) { while (left(code) == NOT_READY) usleep(1000); return code; }
static int stream_query(uintptr_t stream) { return left(stream > 2 ? wants_context() : current() ? 0 : INVALID_CONTEXT); }
static int event_query(uintptr_t event) { return left(event ? wants_context() : INVALID_VALUE); }
static int stream_synchronize(uintptr_t stream) { synchronized++; return await(stream ? 0 : 0); }
static int is_capturing(uintptr_t stream, int *status) { *status = stream == 0x777; return 0; }
static int copy(uintptr_t dst, uintptr_t src, size_t size, uintptr_t stream) { return dst && src && size && stream + 1 ? 0 : INVALID_VALUE; }
static int pointer(unsigned *out, int number, uintptr_t at) {
    *out = number == 2 ? (at < 0x10000 ? 2 : 1) : 0;
    return at < 0x20000 ? 0 : INVALID_VALUE;
}

static char text[1 << 16];  /* the calls of the pool and of events since fake_calls, one a line */
static size_t used, cached, high, sizes[1 << 10];
static int serial;

static void note(const char *format, ...) {
    size_t length = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + length, sizeof text - length, format, values);
    va_end(values);
}

EXPORT void fake_calls(char *out) { strcpy(out, text); text[0] = 0; }

static int total_memory(size_t *out, int of) { *out = (size_t)1 << (30 + of * 0); return 0; }
static int default_pool(uintptr_t *out, int of) { *out = 0xA000 + of; return 0; }
static int pool_alloc(uintptr_t *out, size_t size, uintptr_t pool, uintptr_t stream) {
    note("alloc %zu on %#lx\n", size, (unsigned long)stream);
    if (used + cached + size > (size_t)setting("FAKE_POOL") << 20)
        return pool ? 2 : INVALID_VALUE;
    used += size;
    high = used + cached > high ? used + cached : high;
    sizes[++serial] = size;
    *out = (uintptr_t)serial << 32;
    return 0;
}
static int pool_free(uintptr_t at, uintptr_t stream) {
    note("free %lu on %#lx\n", (unsigned long)(at >> 32), (unsigned long)stream);
    used -= sizes[at >> 32];
    cached += sizes[at >> 32];
    return 0;
}
static int pool_trim(uintptr_t pool, size_t keep) { note("trim\n"); cached = 0; return pool ? (int)keep : INVALID_VALUE; }
static int pool_get(uintptr_t pool, int number, uint64_t *out) {
    *out = number == 5 ? used + cached : number == 6 ? high : pool;
    return 0;
}
static int pool_set(uintptr_t pool, int number, uint64_t *value) {
    if (number == 6)
        high = used + cached;
    note("set %d to %lu\n", number, (unsigned long)*value);
    return pool ? 0 : INVALID_VALUE;
}
static int event_create(uintptr_t *out, unsigned flags) { static int made; *out = 0x500 + ++made + flags * 0; return 0; }
static int event_destroy(uintptr_t event) { return event ? 0 : INVALID_VALUE; }
static int event_record(uintptr_t event, uintptr_t stream) { note("record on %#lx\n", (unsigned long)stream); return event ? 0 : INVALID_VALUE; }
static int event_synchronize(uintptr_t event) { note("synchronize\n"); return await(event ? 0 : INVALID_VALUE); }
static int device_synchronize(void) { note("synchronize device\n"); return await(current() ? 0 : INVALID_CONTEXT); }
static int record_device(uintptr_t context, uintptr_t event) { note("record device %lu\n", (unsigned long)(context & 0xF)); return event ? 0 : INVALID_VALUE; }
static int wait_event(uintptr_t stream, uintptr_t event, unsigned flags) {
    note("wait on %#lx\n", (unsigned long)stream);
    return event ? (int)flags : INVALID_VALUE;
}
static int capture_info(uintptr_t stream, int *status, uint64_t *id) { *status = stream == 0x777; *id = 7; return 0; }
static int exchange_mode(int *mode) { static __thread int kept; int before = kept; kept = *mode; *mode = before; return 0; }

EXPORT int cuGetProcAddress_v2(const char *name, void **out, int wanted, uint64_t flags, int *status);

static const struct { const char *name; int since; void *function; } FUNCTIONS[] = {
    {"cuInit", 2000, init}, {"cuGetErrorName", 6000, error_name}, {"cuGetProcAddress", 12000, cuGetProcAddress_v2},
    {"cuDriverGetVersion", 2020, version}, {"cuDeviceGetCount", 2000, count}, {"cuDeviceGet", 2000, device},
    {"cuDeviceGetAttribute", 2000, attribute}, {"cuDevicePrimaryCtxRetain", 7000, retain},
    {"cuCtxGetCurrent", 4000, get_current}, {"cuCtxSetCurrent", 4000, set_current},
    {"cuCtxPushCurrent", 4000, push}, {"cuCtxPopCurrent", 4000, pop}, {"cuCtxGetDevice", 2000, of_context},
    {"cuMemGetInfo", 3020, memory_info}, {"cuStreamCreateWithPriority", 5050, stream_create},
    {"cuStreamQuery", 2000, stream_query}, {"cuEventQuery", 2000, event_query},
    {"cuStreamSynchronize", 2000, stream_synchronize}, {"cuStreamIsCapturing", 10000, is_capturing},
    {"cuMemcpyAsync", 4000, copy}, {"cuPointerGetAttribute", 4000, pointer},
    {"cuDeviceTotalMem", 3020, total_memory}, {"cuDeviceGetDefaultMemPool", 11020, default_pool},
    {"cuMemAllocFromPoolAsync", 11020, pool_alloc}, {"cuMemFreeAsync", 11020, pool_free},
    {"cuMemPoolTrimTo", 11020, pool_trim}, {"cuMemPoolGetAttribute", 11020, pool_get},
    {"cuMemPoolSetAttribute", 11020, pool_set}, {"cuEventCreate", 2000, event_create},
    {"cuEventDestroy", 4000, event_destroy}, {"cuEventRecord", 2000, event_record},
    {"cuEventSynchronize", 2000, event_synchronize}, {"cuStreamWaitEvent", 3020, wait_event},
    {"cuCtxSynchronize", 2000, device_synchronize}, {"cuCtxRecordEvent", 12050, record_device},
    {"cuStreamGetCaptureInfo", 10010, capture_info}, {"cuThreadExchangeStreamCaptureMode", 10010, exchange_mode},
};

EXPORT int cuGetProcAddress_v2(const char *name, void **out, int wanted, uint64_t flags, int *status) {
    const char *missing = getenv("FAKE_MISSING");
    *out = NULL;
    if (status)
        *status = flags > 2;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!strcmp(name, FUNCTIONS[i].name) && wanted == FUNCTIONS[i].since && !(missing && !strcmp(name, missing)))
            *out = FUNCTIONS[i].function;
    return *out ? 0 : NOT_FOUND;
}
