/* A libcuda of two devices that does nothing but keep contexts, for tests of the cuda driver's own logic:
 * which context a row runs in, what it does where a function is missing, when a copy waits.
 *
 * Addresses below 0x10000 are memory of a device, those below 0x20000 page-locked, the rest pageable.
 * What takes an address, a stream, an event, a graph or a module is refused where no context is current, the copies and
 * fills with INVALID_VALUE, as an H200 does between ranges that are mapped from several handles.
 * Settings: FAKE_INIT, what cuInit answers; FAKE_MISSING, a function that is not there; FAKE_VERSION, the driver's
 * (13000); FAKE_ACTIVE, a device whose primary context another library has; FAKE_PAGEABLE, the devices reach pageable memory; FAKE_POOL, MiB that the stream-ordered
 * pool can hold; FAKE_PARAMETERS, how many parameters, of 8 bytes each, a kernel has (1).  Work is complete at once, but while fake_busy(1) is in force.  That pool hands out what was given back only after a trim, as if all of it were in pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, DEVICES = 2, DEPTH = 8 };

static __thread uintptr_t contexts[DEPTH];
static __thread int depth;
static int retained[DEVICES], synchronized, streams, asked, refused;
static volatile int busy;
static uintptr_t seen = -1;  /* the context of the last call that wants one; -1: none was made */

EXPORT int fake_retained(int device) { return retained[device]; }
EXPORT int fake_synchronized(void) { return synchronized; }
EXPORT int fake_refused(void) { return refused; }  /* attributes that it does not know */
EXPORT void fake_busy(int state) { busy = state; }
EXPORT int fake_depth(void) { return depth; }
EXPORT uintptr_t fake_seen(void) { uintptr_t last = seen; seen = -1; return last; }
EXPORT int fake_asked(void) { int calls = asked; asked = 0; return calls; }  /* calls that ask for or change the context */

static uintptr_t current(void) { return depth ? contexts[depth - 1] : 0; }
static int setting(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
static int wants_context(void) { return (seen = current()) ? 0 : INVALID_CONTEXT; }
static int wants_memory(void) { return wants_context() ? INVALID_VALUE : 0; }
#define WANT_CONTEXT if (wants_context()) return INVALID_CONTEXT

static int init(unsigned flags) { return flags ? INVALID_VALUE : setting("FAKE_INIT"); }
static int error_name(int code, const char **name) { *name = "CUDA_ERROR_FAKE"; return code ? 0 : 0; }
static int version(int *out) { *out = setting("FAKE_VERSION") ? setting("FAKE_VERSION") : 13000; return 0; }
static int count(int *out) { *out = DEVICES; return 0; }
static int device(int *out, int ordinal) { *out = ordinal; return 0; }
static int attribute(int *out, int number, int of) {
    *out = of >= 0 && ((number == 88 && setting("FAKE_PAGEABLE")) || (number == 89 && setting("FAKE_CONCURRENT")));
    if (of >= 0 && (number == 108 || number == 109))  /* the persisting L2 cache and the largest window */
        *out = number == 108 ? 4 << 20 : 16 << 20;
    if (number == 110)  /* virtual memory that network cards reach: the first device's alone */
        *out = of == 0;
    return number > 147 && !setting("FAKE_VERSION") ? refused++, INVALID_VALUE : 0;  /* the last of CUDA 13.0 */
}
static int state(int of, unsigned *flags, int *active) { *flags = 0; *active = getenv("FAKE_ACTIVE") && of == setting("FAKE_ACTIVE"); return 0; }
static int retain(uintptr_t *out, int of) { retained[of]++; *out = 0xC000 + of; return 0; }
static int get_current(uintptr_t *out) { asked++; *out = current(); return 0; }
static int set_current(uintptr_t to) {  /* none pops the one on top */
    asked++;
    depth += to ? !depth : -(depth > 0);
    if (to)
        contexts[depth - 1] = to;
    return 0;
}
static int push(uintptr_t to) { asked++; contexts[depth++] = to; return 0; }
static int pop(uintptr_t *out) { asked++; *out = contexts[--depth]; return 0; }
EXPORT void fake_set(uintptr_t to) { set_current(to); }
static int of_context(int *out) { *out = (int)(current() & 0xF); return current() ? 0 : INVALID_CONTEXT; }
static int memory_info(size_t *free_, size_t *total) { *free_ = *total = current(); return wants_context(); }
/* By number of the stream.  0x800 is of a context that is no primary one, 0x900 of none; what nobody made, of the first. */
static uintptr_t contexts_of[0x100];
static int stream_create(uintptr_t *out, unsigned flags, int priority) {
    *out = 0x100 + ++streams + flags * 0 + priority * 0;
    contexts_of[streams & 0xFF] = current();
    return wants_context();
}
static int stream_context(uintptr_t stream, uintptr_t *out) {
    *out = stream == 0x800 ? 0xD001 : stream == 0x900 ? 0 : stream > 0x100 && stream <= 0x100 + (uintptr_t)streams ? contexts_of[stream & 0xFF] : 0xC000;
    return *out ? wants_context() : INVALID_HANDLE;
}
static int left(int code) { return code == 0 && busy ? NOT_READY : code; }
static volatile int waiting;
EXPORT int fake_waiting(void) { return waiting; }  /* whether a thread waits just now */
static int await(int code) { for (; left(code) == NOT_READY; waiting = 0) { waiting = 1; usleep(1000); } return code; }
static int stream_query(void) { return left(wants_context()); }
static int event_query(uintptr_t event) { return left(event ? 0 : INVALID_VALUE); }
static int stream_synchronize(void) { synchronized++; return await(wants_context()); }
static int is_capturing(uintptr_t stream, int *status) { *status = stream == 0x777; return 0; }
static int copy(uintptr_t dst, uintptr_t src, size_t size, uintptr_t stream) { return dst && src && size && stream + 1 ? wants_memory() : INVALID_VALUE; }
static int pointers;
EXPORT int fake_pointers(void) { int calls = pointers; pointers = 0; return calls; }  /* questions what an address is */
#define POOLED 0x18010
static int address_range(uintptr_t *start, size_t *size, uintptr_t at) {
    *start = at & ~0xFFul, *size = 0x100;
    return at == POOLED ? wants_context() : INVALID_VALUE;
}
static int pointer(unsigned count, const int *numbers, void **out, uintptr_t at) {
    pointers++;
    for (unsigned i = 0; i < count; i++)  /* 2 is the kind of memory, 9 the device's ordinal, others are of the range */
        *(int *)out[i] = numbers[i] == 2 ? (at < 0x10000 ? 2 : at < 0x20000 ? 1 : 0) : numbers[i] != 9 || at < 0x10000 ? 0 : -2;
    for (unsigned i = 0; i < count && at == POOLED; i++)  /* where in the pool, as driver 580 has it, and how much */
        if (numbers[i] == 11 || numbers[i] == 12)
            *(size_t *)out[i] = numbers[i] == 11 ? 0x40 : 0x100;
    return wants_context();
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
static int pool_of(uintptr_t *out, int *location, int type) {
    *out = type == 2 && location[0] == 1 ? 0xB000 + (unsigned)location[1] : type == 1 && location[0] == 2 ? 0xE000 : 0;
    return *out ? 0 : INVALID_VALUE;
}
static int pool_alloc(uintptr_t *out, size_t size, uintptr_t pool, uintptr_t stream) {
    WANT_CONTEXT;
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
    WANT_CONTEXT;
    if (stream == 0x888)
        return INVALID_HANDLE;
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
static int access_by_peer[0x10];
static int pool_set_access(uintptr_t pool, const int *wanted, size_t count) {  /* CUmemAccessDesc: location type and id, flags */
    access_by_peer[wanted[1] & 0xF] = wanted[2];
    return pool && count == 1 && wanted[0] == 1 ? 0 : INVALID_VALUE;
}
static int pool_get_access(int *out, uintptr_t pool, const int *location) {
    *out = pool == 0xA000u + location[1] ? 3 : access_by_peer[location[1] & 0xF];
    return location[0] == 1 ? 0 : INVALID_VALUE;
}
/* Physical memory; a handle tells the device, whether it is for other processes, and whether network cards reach it. */
static int mem_create(uintptr_t *out, size_t size, const int *props, uint64_t flags) {
    *out = 0xAA000 + (unsigned)props[3] * 0x100 + (unsigned)props[1] * 0x10 + ((const unsigned char *)(props + 6))[1];
    return size && flags == 0 ? wants_context() : INVALID_VALUE;
}
/* Pools that the caller makes; a handle tells the device and the limit, of page-locked memory the node, and whether it is for
 * other processes; of managed memory the place.  The props: what kind of memory, how it leaves the process (files), type and number of the location, and
 * the limit behind 8 bytes more. */
static int pool_create(uintptr_t *out, const int *props) {
    int of_device = props[2] == 1, of_host = props[2] == 2 && props[1] == 0 && props[3] == 0;
    size_t limit = *(const size_t *)(props + 6);
    if (props[0] == 2) {
        *out = 0xF0000 + (unsigned)props[2] * 0x1000 + (unsigned)props[3];
        return props[1] || limit ? INVALID_VALUE : 0;
    }
    *out = (of_device && props[1] ? 0xC0000 : 0xE0000 + (unsigned)props[2] * 0x1000 + (unsigned)props[1] * 0x100)
        + (unsigned)props[3] + limit * 0x100000;
    return props[0] == 1 && (of_device || of_host || props[2] == 3) ? 0 : INVALID_VALUE;
}
static int pool_import(uintptr_t *out, uintptr_t file, int type, uint64_t flags) {
    WANT_CONTEXT;
    *out = 0xD0000 + file;
    return type == 1 && flags == 0 ? 0 : INVALID_VALUE;
}
static int pointer_export(char *out, uintptr_t address) { WANT_CONTEXT; memset(out, (int)(address & 0xFF), 64); return 0; }
static int pointer_import(uintptr_t *out, uintptr_t pool, const char *data) {
    WANT_CONTEXT;
    *out = pool + (unsigned char)data[63];
    return 0;
}
static int function_name(const char **out, uintptr_t function) {
    WANT_CONTEXT;
    *out = "kernel of the stand-in";
    return function ? 0 : INVALID_VALUE;
}
/* Batches of copies, in the forms of 12.8, 13.0 and 13.2; attributes: order, two locations of type and id, flags. */
static int batch(const char *form, size_t count, const int *with, uintptr_t stream) {
    note("%s %zu on %#lx: order %d, src %d %d, dst %d %d, flags %d\n", form, count, (unsigned long)stream, with[0], with[1], with[2], with[3], with[4], with[5]);
    return stream == 0x888 ? INVALID_VALUE : wants_memory();
}
/* Of several kinds, of which each begins at a copy behind the one before. */
static int batch_of(const char *form, size_t count, const int *with, const size_t *firsts, size_t kinds, uintptr_t stream) {
    int code = firsts[0] == 0 && kinds ? batch(form, count, with, stream) : INVALID_VALUE;
    for (size_t kind = 1; kind < kinds && code == 0; kind++) {
        with += 6;
        note("from %zu: order %d, src %d %d, dst %d %d, flags %d\n", firsts[kind], with[0], with[1], with[2], with[3], with[4], with[5]);
        code = firsts[kind] > firsts[kind - 1] && firsts[kind] < count ? 0 : INVALID_VALUE;
    }
    return code;
}
static int batch_12_8(void *dsts, void *srcs, void *sizes, size_t count, const int *with, size_t *firsts, size_t kinds, size_t *failed, uintptr_t stream) {
    return dsts && srcs && sizes && failed ? batch_of("12.8", count, with, firsts, kinds, stream) : INVALID_VALUE;
}
static int batch_13_0(void *dsts, void *srcs, void *sizes, size_t count, const int *with, size_t *firsts, size_t kinds, uintptr_t stream) {
    return dsts && srcs && sizes ? batch_of("13.0", count, with, firsts, kinds, stream) : INVALID_VALUE;
}
static int copy_with(uintptr_t dst, uintptr_t src, size_t size, const int *with, uintptr_t stream) {
    return dst && src && size ? batch("13.2", 1, with, stream) : INVALID_VALUE;
}
/* An operation: two operands of a type, an address, a pitch, lines and a location; width, height and depth; order, flags. */
static int batch_3d(const char *form, size_t count, const char *operations, unsigned long long flags, uintptr_t stream) {
    const size_t *words = (const size_t *)operations;
    note("%s 3d %zu on %#lx: src %#zx %zu %zu, dst %#zx %zu %zu, %zu %zu %zu, order %d\n", form, count, (unsigned long)stream, words[1], words[2], words[3], words[6], words[7], words[8], words[10], words[11], words[12], *(const int *)(words + 13));
    return *(const int *)words == 1 && *(const int *)(words + 5) == 1 && !flags ? wants_memory() : INVALID_VALUE;
}
static int batch_3d_12_8(size_t count, const char *operations, size_t *failed, unsigned long long flags, uintptr_t stream) { return failed ? batch_3d("12.8", count, operations, flags, stream) : INVALID_VALUE; }
static int batch_3d_13_0(size_t count, const char *operations, unsigned long long flags, uintptr_t stream) { return batch_3d("13.0", count, operations, flags, stream); }
static int event_create(uintptr_t *out, unsigned flags) { static int made; *out = 0x500 + ++made + flags * 0; return wants_context(); }
static int event_destroy(uintptr_t event) { return event ? wants_context() : INVALID_VALUE; }
static int event_record(uintptr_t event, uintptr_t stream) {
    if (stream == 0x888)
        return INVALID_HANDLE;
    note("record on %#lx\n", (unsigned long)stream);
    return event ? wants_context() : INVALID_VALUE;
}
static int event_synchronize(uintptr_t event) { note("synchronize\n"); return await(event ? wants_context() : INVALID_VALUE); }
static int device_synchronize(void) { note("synchronize device\n"); return await(wants_context()); }
static int record_device(uintptr_t context, uintptr_t event) { note("record device %lu\n", (unsigned long)(context & 0xF)); return event ? wants_context() : INVALID_VALUE; }
static int wait_event(uintptr_t stream, uintptr_t event, unsigned flags) {
    note("wait on %#lx\n", (unsigned long)stream);
    return event && flags < 2 ? wants_context() : INVALID_VALUE;
}
static int capture_info(uintptr_t stream, int *status, uint64_t *id) {
    *status = stream == 0x777;
    *id = 7;
    if (stream == 0x888)
        return INVALID_HANDLE;
    return stream > 2 || current() ? 0 : INVALID_CONTEXT;
}
static int capture_site(uintptr_t stream, int *status) { *status = stream == 0x777; return wants_context(); }
static int add_node(void *node, void *graph, void *after, void *edges, size_t count, char *params) {
    static uintptr_t bodies[1] = {0x900};
    if (*(int *)params != 13)  /* no condition */
        return node && graph && !edges ? wants_context() : INVALID_VALUE;
    *(uintptr_t **)(params + 32) = bodies;  /* conditional.phGraph_out of CUgraphNodeParams */
    return node && !graph && !after && !edges && !count ? wants_context() : INVALID_VALUE;
}
/* An image that begins with "bad" is PTX that does not compile; with options[0] == 5 values[0] is the log of errors. */
static int load_data(uintptr_t *out, const char *image) { *out = 0x700; return strncmp(image, "bad", 3) ? wants_context() : 218; }
static int load_data_ex(uintptr_t *out, const char *image, unsigned count, const int *options, void **values) {
    if (count == 2 && options[0] == 5 && options[1] == 6 && !strncmp(image, "bad", 3))
        snprintf(values[0], (size_t)values[1], "ptxas fake, line 3; error : a word\nptxas fatal");
    return load_data(out, image);
}
static int handle_out(uintptr_t *out) { *out = 0x700; return wants_context(); }
static int parameter(uintptr_t function, size_t index, size_t *offset, size_t *size) {
    size_t count = setting("FAKE_PARAMETERS") ? setting("FAKE_PARAMETERS") : 1;
    *offset = 8 * index;
    *size = 8;
    return index < count && function ? wants_context() : INVALID_VALUE;
}
/* The attributes of each stream by its lowest 8 bits and their numbers, as cuda.h lays them out: 0x888 is no stream. */
static char attributes[256][11][64];
static int set_attribute(uintptr_t stream, int number, const char *value) {
    if (number != 1 && number != 3 && (number < 8 || number > 10))
        return INVALID_VALUE;
    if (stream == 0x888)
        return INVALID_HANDLE;
    memcpy(attributes[stream & 0xFF][number], value, 64);
    return wants_context();
}
static int get_attribute(uintptr_t stream, int number, char *out) {
    if (number != 1 && number != 3 && (number < 8 || number > 10))
        return INVALID_VALUE;
    memcpy(out, attributes[stream & 0xFF][number], 64);
    return wants_context();
}
/* Limits 0 to 6, of each device; a persisting L2 cache (6) of 4 MiB at most, in pieces of 1 MiB. */
static size_t limits[2][7] = {{1024, 1 << 20, 8 << 20, 2, 2048, 64, 0}, {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0}};
static int get_limit(size_t *out, int number) {
    if (number < 0 || number > 6)
        return 215;
    *out = limits[current() & 1][number];
    return wants_context();
}
static int set_limit(int number, size_t value) {
    if (number < 0 || number > 6)
        return 215;
    limits[current() & 1][number] = number != 6 ? value : value > 4 << 20 ? 4 << 20 : value & ~(size_t)0xFFFFF;
    return wants_context();
}
static int loading_mode(int *out) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    *out = mode && !strcmp(mode, "EAGER") ? 1 : 2;
    return 0;
}
static int harmless(void) { return 0; }  /* for functions whose arguments do not matter here */
static int exchange_mode(int *mode) { static __thread int kept; int before = kept; kept = *mode; *mode = before; return 0; }

/* What moves of managed memory were asked for: calls, and the kind and number of the last place. */
struct location { int kind, place; };
static int moves[4];  /* single ones, by the older function, batches, the last place's number */
EXPORT int fake_moves(int which) { return moves[which]; }
static int prefetch(uint64_t address, size_t size, struct location where, unsigned flags, void *stream) {
    moves[0]++;
    moves[3] = where.place;
    return wants_context();
}
static int prefetch_old(uint64_t address, size_t size, int device, void *stream) {
    moves[1]++;
    moves[3] = device;
    return wants_context();
}
static int prefetch_advice(uint64_t address, size_t size, int advice, struct location where) { return wants_context(); }
static int advice_old(uint64_t address, size_t size, int advice, int device) { moves[3] = device; return wants_context(); }
static int move_batch(uint64_t *addresses, size_t *sizes, size_t count, struct location *places, size_t *firsts,
                      size_t place_count, unsigned long long flags, void *stream) {
    moves[2]++;
    for (size_t i = 0; i < count; i++)
        if (place_count != count || firsts[i] != i || !sizes[i])
            return INVALID_VALUE;
    moves[3] = places[count - 1].place;
    return (uintptr_t)stream > 1 ? wants_context() : INVALID_VALUE;
}
static int discard_batch(uint64_t *addresses, size_t *sizes, size_t count, unsigned long long flags, void *stream) {
    moves[2]++;
    return (uintptr_t)stream > 1 ? wants_context() : INVALID_VALUE;
}

/* Nodes 0x41 and 0x42 copy 64 bytes of pageable or page-locked memory to a device.  Words are those of CUDA_MEMCPY3D, which
 * begins 32 bytes into CUgraphNodeParams. */
enum { SRC_TYPE = 4, SRC_HOST, SRC_DEVICE, DST_TYPE = 15, DST_DEVICE = 17, WIDTH = 22, IN_NODE = 4 };
static int changed_sides;
EXPORT int fake_changed_sides(void) { return changed_sides; }  /* the kinds of memory that a copy was changed to: src * 16 + dst */
static int node_type(uintptr_t node, int *type) {
    if (node == 0x41 || node == 0x42)
        *type = 1;
    return wants_context();
}
static int copy_node(uintptr_t node, uint64_t *words) {
    words[SRC_TYPE] = 1;
    words[SRC_HOST] = node == 0x41 ? 0x30000 : 0x10000;
    words[DST_TYPE] = 2;
    words[DST_DEVICE] = 0x1000;
    words[WIDTH] = 64;
    words[WIDTH + 1] = words[WIDTH + 2] = 1;
    return wants_context();
}
static int set_node(uintptr_t exec, uintptr_t node, const uint64_t *params) {
    changed_sides = (int)(params[IN_NODE + SRC_TYPE] & 0xF) * 16 + (int)(params[IN_NODE + DST_TYPE] & 0xF);
    return wants_context();
}

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
    {"cuMemcpyAsync", 4000, copy}, {"cuPointerGetAttributes", 7000, pointer},
    {"cuMemGetAddressRange", 3020, address_range},
    {"cuDeviceTotalMem", 3020, total_memory}, {"cuDeviceGetDefaultMemPool", 11020, default_pool},
    {"cuMemAllocFromPoolAsync", 11020, pool_alloc}, {"cuMemFreeAsync", 11020, pool_free},
    {"cuMemPoolTrimTo", 11020, pool_trim}, {"cuMemPoolGetAttribute", 11020, pool_get},
    {"cuMemPoolSetAttribute", 11020, pool_set}, {"cuEventCreate", 2000, event_create},
    {"cuEventDestroy", 4000, event_destroy}, {"cuEventRecord", 2000, event_record},
    {"cuEventSynchronize", 2000, event_synchronize}, {"cuStreamWaitEvent", 3020, wait_event},
    {"cuDevicePrimaryCtxGetState", 7000, state}, {"cuStreamGetCaptureInfo", 10010, capture_info}, {"cuThreadExchangeStreamCaptureMode", 10010, exchange_mode},
    {"cuDeviceGetName", 2000, harmless}, {"cuDeviceGetUuid", 11040, harmless}, {"cuDeviceGetPCIBusId", 4010, harmless},
    {"cuDeviceCanAccessPeer", 4000, harmless}, {"cuMemGetAllocationGranularity", 10020, harmless},
    {"cuMemAddressReserve", 10020, harmless}, {"cuMemAddressFree", 10020, harmless},
    {"cuStreamGetCaptureInfo", 12030, capture_site}, {"cuGraphAddNode", 12030, add_node},
    {"cuCtxSynchronize", 2000, device_synchronize}, {"cuCtxRecordEvent", 12050, record_device}, {"cuCtxEnablePeerAccess", 4000, wants_context},
    {"cuCtxGetStreamPriorityRange", 5050, wants_context}, {"cuMemAlloc", 3020, wants_context},
    {"cuMemFree", 3020, wants_context}, {"cuMemCreate", 10020, mem_create}, {"cuMemRelease", 10020, wants_context},
    {"cuMemMap", 10020, wants_context}, {"cuMemSetAccess", 10020, wants_context}, {"cuMemUnmap", 10020, wants_context},
    {"cuMemExportToShareableHandle", 10020, wants_context}, {"cuMemImportFromShareableHandle", 10020, wants_context},
    {"cuMemHostAlloc", 2020, wants_context}, {"cuMemFreeHost", 2000, wants_context},
    {"cuMemHostRegister", 6050, wants_context}, {"cuMemHostUnregister", 4000, wants_context},
    {"cuMemAllocManaged", 6000, wants_context}, {"cuMemPrefetchAsync", 12020, prefetch}, {"cuMemPrefetchAsync", 8000, prefetch_old},
    {"cuMemAdvise", 12020, prefetch_advice}, {"cuMemAdvise", 8000, advice_old}, {"cuMemRangeGetAttribute", 8000, wants_context},
    {"cuMemPrefetchBatchAsync", 13000, move_batch}, {"cuMemDiscardBatchAsync", 13000, discard_batch},
    {"cuMemDiscardAndPrefetchBatchAsync", 13000, move_batch},
    {"cuStreamGetCtx", 9020, stream_context}, {"cuStreamDestroy", 4000, wants_context}, {"cuStreamGetFlags", 5050, wants_context},
    {"cuStreamGetPriority", 5050, wants_context}, {"cuLaunchHostFunc", 10000, wants_context},
    {"cuEventRecordWithFlags", 11010, wants_context}, {"cuEventElapsedTime", 2000, wants_context},
    {"cuMemcpyPeerAsync", 4000, wants_memory}, {"cuMemcpy3DAsync", 3020, wants_memory}, {"cuMemsetD8Async", 3020, wants_memory},
    {"cuMemsetD16Async", 3020, wants_memory}, {"cuMemsetD32Async", 3020, wants_memory},
    {"cuStreamBeginCapture", 10010, wants_context}, {"cuStreamEndCapture", 10000, wants_context},
    {"cuStreamBeginCaptureToGraph", 12030, wants_context}, {"cuStreamUpdateCaptureDependencies", 12030, wants_context},
    {"cuGraphConditionalHandleCreate", 12030, wants_context}, {"cuGraphDestroy", 10000, wants_context},
    {"cuGraphGetNodes", 10000, wants_context}, {"cuGraphGetEdges", 12030, wants_context},
    {"cuGraphNodeGetType", 10000, node_type}, {"cuGraphDebugDotPrint", 11030, wants_context},
    {"cuGraphInstantiateWithFlags", 11040, wants_context}, {"cuGraphExecUpdate", 12000, wants_context},
    {"cuGraphUpload", 11010, wants_context}, {"cuGraphLaunch", 10000, wants_context},
    {"cuGraphExecDestroy", 10000, wants_context}, {"cuModuleLoadData", 2000, load_data}, {"cuModuleLoadDataEx", 2010, load_data_ex},
    {"cuArray3DCreate", 3020, handle_out}, {"cuArrayDestroy", 2000, wants_context},
    {"cuArray3DGetDescriptor", 3020, wants_context}, {"cuTexObjectCreate", 5000, handle_out},
    {"cuMipmappedArrayCreate", 5000, handle_out}, {"cuMipmappedArrayDestroy", 5000, wants_context},
    {"cuMipmappedArrayGetLevel", 5000, handle_out},
    {"cuTexObjectDestroy", 5000, wants_context}, {"cuSurfObjectCreate", 5000, handle_out},
    {"cuSurfObjectDestroy", 5000, wants_context},
    {"cuModuleUnload", 2000, wants_context}, {"cuModuleGetFunction", 2000, handle_out},
    {"cuLaunchKernel", 4000, wants_context}, {"cuIpcGetEventHandle", 4010, wants_context},
    {"cuIpcOpenEventHandle", 4010, wants_context}, {"cuIpcGetMemHandle", 4010, wants_context},
    {"cuModuleGetGlobal", 3020, wants_context}, {"cuFuncGetAttribute", 2020, wants_context},
    {"cuFuncSetAttribute", 9000, wants_context}, {"cuFuncGetParamInfo", 12040, parameter},
    {"cuLaunchKernelEx", 11060, wants_context}, {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050, wants_context},
    {"cuOccupancyMaxPotentialBlockSize", 6050, wants_context}, {"cuOccupancyMaxActiveClusters", 11070, wants_context},
    {"cuOccupancyMaxPotentialClusterSize", 11070, wants_context}, {"cuOccupancyAvailableDynamicSMemPerBlock", 10020, wants_context},
    {"cuGraphKernelNodeGetParams", 12000, wants_context}, {"cuGraphKernelNodeSetParams", 12000, wants_context},
    {"cuGraphExecKernelNodeSetParams", 10010, wants_context}, {"cuGraphCreate", 10000, wants_context},
    {"cuGraphKernelNodeSetAttribute", 11000, wants_context}, {"cuGraphKernelNodeGetAttribute", 11000, wants_context},
    {"cuGraphClone", 10000, wants_context}, {"cuGraphNodeFindInClone", 10000, wants_context},
    {"cuGraphNodeSetParams", 12020, wants_context}, {"cuGraphExecNodeSetParams", 12020, set_node},
    {"cuGraphDestroyNode", 10000, wants_context}, {"cuGraphAddDependencies", 12030, wants_context},
    {"cuGraphRemoveDependencies", 12030, wants_context}, {"cuGraphNodeSetEnabled", 11060, wants_context},
    {"cuGraphNodeGetEnabled", 11060, wants_context}, {"cuGraphMemcpyNodeGetParams", 10000, copy_node},
    {"cuGraphMemsetNodeGetParams", 10000, wants_context}, {"cuGraphHostNodeGetParams", 10000, wants_context},
    {"cuGraphEventRecordNodeGetEvent", 11010, wants_context}, {"cuGraphEventWaitNodeGetEvent", 11010, wants_context},
    {"cuGraphChildGraphNodeGetGraph", 10000, wants_context}, {"cuGraphMemAllocNodeGetParams", 11040, wants_context},
    {"cuGraphMemFreeNodeGetParams", 11040, wants_context}, {"cuDeviceGetGraphMemAttribute", 11040, harmless},
    {"cuDeviceSetGraphMemAttribute", 11040, harmless}, {"cuDeviceGraphMemTrim", 11040, harmless},
    {"cuStreamSetAttribute", 11000, set_attribute}, {"cuStreamGetAttribute", 11000, get_attribute},
    {"cuCtxGetLimit", 3010, get_limit}, {"cuCtxSetLimit", 3010, set_limit},
    {"cuCtxResetPersistingL2Cache", 11000, wants_context}, {"cuModuleGetLoadingMode", 11070, loading_mode},
    {"cuMemcpyBatchAsync", 12080, batch_12_8}, {"cuMemcpyBatchAsync", 13000, batch_13_0},
    {"cuMemcpy3DBatchAsync", 12080, batch_3d_12_8}, {"cuMemcpy3DBatchAsync", 13000, batch_3d_13_0},
    {"cuMemcpyWithAttributesAsync", 13020, copy_with},
    {"cuMemGetDefaultMemPool", 13000, pool_of}, {"cuGraphNodeGetToolsId", 13010, wants_context},
    {"cuGraphExecGetId", 13010, wants_context},
    {"cuMemPoolSetAccess", 11020, pool_set_access}, {"cuMemPoolGetAccess", 11020, pool_get_access},
    {"cuMemPoolCreate", 11020, pool_create}, {"cuMemPoolDestroy", 11020, harmless},
    {"cuMemPoolExportToShareableHandle", 11020, wants_context},
    {"cuMemPoolImportFromShareableHandle", 11020, pool_import}, {"cuFuncGetName", 12030, function_name},
    {"cuMemPoolExportPointer", 11020, pointer_export}, {"cuMemPoolImportPointer", 11020, pointer_import},
    {"cuIpcOpenMemHandle", 11000, wants_context}, {"cuIpcCloseMemHandle", 4010, wants_context},
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
