/* What torch calls of a plugged allocator, as C; see torch_table.pyx, the only file that includes this. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "torch_table.h"
#define ACCELRT_EXPORT __attribute__((visibility("default")))

struct PoolName { uint64_t first, second; };  /* std::pair<unsigned long long, unsigned long long> */

/* libstdc++'s std::function: what it holds, a function that manages that, one that calls it. */
struct Filter {
    void *held[2];
    int (*manage)(void *result, const void *held, int operation);
    void *call;
};
struct TypeInfo { void *table; const char *name; };  /* std::type_info */

static int accelrt_purpose(const struct Filter *filter) {
    const struct TypeInfo *type[2] = {NULL, NULL};
    if (filter == NULL || filter->manage == NULL) return TORCH_UNKNOWN;
    filter->manage(type, filter->held, 0);  /* 0: the type of what is held */
    if (type[0] == NULL || type[0]->name == NULL) return TORCH_UNKNOWN;
    return accelrt_torch_purpose(type[0]->name, filter->held[0]);
}

/* What raises torch's errors, found by prepare. */
struct Place { const char *function, *file; uint32_t line; };                 /* c10::SourceLocation */
struct String { char *text; size_t size; union { char near[16]; size_t room; }; };  /* libstdc++'s std::string */
static struct {
    void *(*new_exception)(size_t size);
    void (*raise)(void *error, void *type, void (*destroy)(void *));
    void *(*new_bytes)(size_t size);
    void (*delete_bytes)(void *);
    void (*make_error)(void *error, struct Place place, struct String *text);
    void **memory_table;  /* of c10::OutOfMemoryError's virtual functions */
    void *memory_type;
    void (*fail)(const char *function, const char *file, uint32_t line, const char *text);
} torchs;

static void accelrt_raise(const char *function, const char *text) {  /* RuntimeError */
    torchs.fail(function, "accelrt", 0, text);
}

static void accelrt_raise_memory(const char *function, const char *text) {  /* torch.OutOfMemoryError */
    struct Place place = {function, "accelrt", 0};
    struct String message;
    void **error;
    if (torchs.memory_type == NULL) accelrt_raise(function, text);
    error = torchs.new_exception(1024);  /* several times the size of a c10::Error */
    message.size = strlen(text);
    message.room = message.size < 16 ? 16 : message.size;
    message.text = torchs.new_bytes(message.room + 1);
    memcpy(message.text, text, message.size + 1);
    torchs.make_error(error, place, &message);
    if (message.text != message.near) torchs.delete_bytes(message.text);
    error[0] = torchs.memory_table + 2;  /* past the offset and the type */
    torchs.raise(error, torchs.memory_type, (void (*)(void *))torchs.memory_table[2]);
}

static struct Hooks {
    int (*alloc)(size_t, int, void *, uintptr_t *, char *);
    void (*free)(void *, int);
    void (*record_stream)(void *, void *);
    void (*reset)(void);
    size_t (*largest)(int);
    void (*memory_fraction)(double, int);
    int (*init)(int, char *);
    int (*begin_pool)(int, uint64_t, uint64_t, int, char *);
    void (*end_pool)(int, uint64_t, uint64_t);
    void (*release_pool)(int, uint64_t, uint64_t);
} hooks;

ACCELRT_EXPORT void *accelrt_torch_hook_alloc(size_t size, int device, void *stream) {
    uintptr_t address;
    char text[TORCH_TEXT];
    int code = hooks.alloc(size, device, stream, &address, text);
    if (__builtin_expect(code != 0, 0)) {
        if (code > 0) accelrt_raise_memory("accelrt_torch_hook_alloc", text);
        accelrt_raise("accelrt_torch_hook_alloc", text);
    }
    return (void *)address;
}
ACCELRT_EXPORT void accelrt_torch_hook_free(void *address, size_t size, int device, void *stream) {
    hooks.free(address, device);
}
ACCELRT_EXPORT void accelrt_torch_hook_record_stream(void *address, void *stream) {
    hooks.record_stream(address, stream);
}
ACCELRT_EXPORT void accelrt_torch_hook_reset(void) { hooks.reset(); }
ACCELRT_EXPORT void accelrt_torch_hook_memory_fraction(double fraction, int device) {
    hooks.memory_fraction(fraction, device);
}
ACCELRT_EXPORT void accelrt_torch_hook_init(int count) {
    char text[TORCH_TEXT];
    if (hooks.init(count, text)) accelrt_raise("accelrt_torch_hook_init", text);
}
ACCELRT_EXPORT void accelrt_torch_hook_begin_pool(
    int device, struct PoolName pool, const struct Filter *filter
) {
    char text[TORCH_TEXT];
    if (hooks.begin_pool(device, pool.first, pool.second, accelrt_purpose(filter), text))
        accelrt_raise("accelrt_torch_hook_begin_pool", text);
}
ACCELRT_EXPORT void accelrt_torch_hook_end_pool(int device, struct PoolName pool) {
    hooks.end_pool(device, pool.first, pool.second);
}
ACCELRT_EXPORT void accelrt_torch_hook_release_pool(int device, struct PoolName pool) {
    hooks.release_pool(device, pool.first, pool.second);
}

/* Calls that torch makes under no lock of its own release the GIL, where they have it: the thread that has a lock of
   accelrt's may be waiting for Python. */
static void *accelrt_leave_gil(void) {
    return accelrt_interpreter_is_gone() || !accelrt_holds_gil() ? NULL : PyEval_SaveThread(); /* core/interpreter.pxd */
}
static void accelrt_enter_gil(void *state) {
    if (state != NULL) PyEval_RestoreThread((PyThreadState *)state);
}

#define TORCH_HOOKS "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
#define TORCH_POOL "St4pairIyyE"
#define TORCH_STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

/* Functions of torch's whose C++ names say that it calls what is above as it is declared there. */
static const char *accelrt_setters[] = {
    "_ZN5torch4cuda22CUDAPluggableAllocator21createCustomAllocator"
    "ESt8functionIFPvmiP11CUstream_stEES2_IFvS3_miS5_EE",
    TORCH_HOOKS "11set_init_fnESt8functionIFviEE",
    TORCH_HOOKS "12set_reset_fnESt8functionIFvvEE",
    TORCH_HOOKS "22set_memory_fraction_fnESt8functionIFvdiEE",
    TORCH_HOOKS "20set_record_stream_fnESt8functionIFvPvP11CUstream_stEE",
    TORCH_HOOKS "26set_begin_allocate_to_poolESt8functionIFvi" TORCH_POOL "S3_IFbP11CUstream_stEEEE",
    TORCH_HOOKS "27set_end_allocate_to_pool_fnESt8functionIFvi" TORCH_POOL "EE",
    TORCH_HOOKS "16set_release_poolESt8functionIFvi" TORCH_POOL "EE",
    NULL,
};

/* What of this torch lacks, or NULL; raises: whether a lack of memory can be told as torch does. */
static const char *accelrt_find(void *library, int *raises) {
    for (const char **name = accelrt_setters; *name != NULL; name++)
        if (dlsym(library, *name) == NULL) return *name;
    *(void **)&torchs.fail = dlsym(library, "_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
    if (torchs.fail == NULL) return "c10::detail::torchCheckFail(char const*, char const*, unsigned, char const*)";
    *(void **)&torchs.new_exception = dlsym(library, "__cxa_allocate_exception");
    *(void **)&torchs.raise = dlsym(library, "__cxa_throw");
    *(void **)&torchs.new_bytes = dlsym(library, "_Znwm");
    *(void **)&torchs.delete_bytes = dlsym(library, "_ZdlPv");
    *(void **)&torchs.make_error = dlsym(library, "_ZN3c105ErrorC1ENS_14SourceLocation" "E" TORCH_STRING);
    torchs.memory_table = dlsym(library, "_ZTVN3c1016OutOfMemoryErrorE");
    torchs.memory_type = dlsym(library, "_ZTIN3c1016OutOfMemoryErrorE");
    *raises = torchs.new_exception && torchs.raise && torchs.new_bytes && torchs.delete_bytes
        && torchs.make_error && torchs.memory_table && torchs.memory_type;
    if (!*raises) torchs.memory_type = NULL;
    return NULL;
}

/* cacheInfo, which cuDNN's benchmark mode calls, has no setter, and raises.  The allocator object gets a table of
   virtual functions of its own: a copy of its class's with that one entry changed.  Nothing is changed unless the
   object, the table and the entry are what torch's symbols say. */
static void accelrt_cache_info(void *self, signed char device, size_t *largest) { *largest = hooks.largest(device); }
static int accelrt_answer_cache_info(void *library) {
    void ***place = dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE");
    void **table = dlsym(library, "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
    void *entry = dlsym(library, TORCH_HOOKS "9cacheInfoEaPm");
    void **object = place == NULL ? NULL : (void **)*place;
    const ElfW(Sym) *symbol = NULL;
    Dl_info info;
    void **copy;
    size_t found = 0, count;
    if (object == NULL || table == NULL || entry == NULL || object[0] != table + 2) return 0;
    if (!dladdr1(table, &info, (void **)&symbol, RTLD_DL_SYMENT) || symbol == NULL) return 0;
    count = symbol->st_size / sizeof(void *);
    for (size_t index = 2; index < count; index++)
        if (table[index] == entry) found = found ? count : index;
    if (found == 0 || found == count || (copy = malloc(symbol->st_size)) == NULL) return 0;
    memcpy(copy, table, symbol->st_size);
    copy[found] = (void *)accelrt_cache_info;
    object[0] = copy + 2;
    return 1;
}
static void *accelrt_open(const char *path) { return dlopen(path, RTLD_LAZY | RTLD_NOLOAD); }
