/* Exports by DLPack's C exchange API, as a consumer's C code asks for them: a loop that bench_launch calls. */
#include <stdint.h>
#include <time.h>

typedef struct managed { /* the begin of DLManagedTensorVersioned */
    uint32_t version[2];
    void *manager_ctx;
    void (*deleter)(struct managed *self);
} managed;

typedef struct { /* the begin of DLPackExchangeAPI */
    uint32_t version[2];
    void *prev_api;
    void *managed_tensor_allocator;
    int (*managed_tensor_from_py_object_no_sync)(void *array, managed **out);
} exchange_api;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Exports an array and gives the tensor back, count times, with the GIL: nanoseconds; -1 where it was refused. */
int64_t exports(const exchange_api *api, void *array, long count) {
    int64_t start = now_ns();
    for (long step = 0; step < count; step++) {
        managed *tensor = 0;
        if (api->managed_tensor_from_py_object_no_sync(array, &tensor))
            return -1;
        tensor->deleter(tensor);
    }
    return now_ns() - start;
}
