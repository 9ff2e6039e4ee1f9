/* What interop/torch_allocator.cpp calls of accelrt, and what it is told: one table of C functions, which
   torch_table.pyx fills.  torch's allocator object is compiled against torch's headers; nothing of torch is known here. */
#ifndef ACCELRT_TORCH_TABLE_H
#define ACCELRT_TORCH_TABLE_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { TORCH_TABLE_VERSION = 5, TORCH_TEXT = 1024, TORCH_STATS = 9, TORCH_HANDLE = 256 };
enum { TORCH_UNKNOWN, TORCH_CAPTURE, TORCH_THREAD, TORCH_HOLDER };  /* what a pool is begun for */
enum { TORCH_LIVE = 1, TORCH_PENDING = 2 };                         /* a block's state; 0 is free */

/* torch's filters of what a pool takes have no other mark than the type of what they hold, by its name in C++: a
   capture's is a function of CUDAGraph, a thread's one of the bindings that holds the thread. */
static inline int accelrt_torch_purpose(const char *type, const void *held) {
    if (strstr(type, "9CUDAGraph") != NULL) return strstr(type, "child") == NULL ? TORCH_CAPTURE : TORCH_UNKNOWN;
    if (strstr(type, "registerCudaPluggableAllocator") != NULL && held == (const void *)pthread_self()) return TORCH_THREAD;
    return TORCH_UNKNOWN;
}

struct TorchCounter { int64_t current, peak, allocated, freed; };
/* counters: as stats.pxd orders them; of both kinds, the small, the large one. */
struct TorchStats {
    struct TorchCounter counters[TORCH_STATS][3];
    struct TorchCounter oversize_allocations, oversize_segments;
    int64_t retries, refusals, waits, device_allocations, device_frees, max_split;
};
struct TorchTiming { int64_t total, largest, least, count; };  /* of calls of the driver, in microseconds */
struct TorchPinnedStats {
    struct TorchCounter segments, segment_bytes, blocks, block_bytes;
    struct TorchTiming take, give;
};
struct TorchBlock {
    uint64_t address, size, requested, stream, pool[2];  /* pool: as torch names it */
    int state, opens, large, expandable;                 /* opens: the first of its segment: its serial, over 0 */
    uint32_t tag;
};
struct TorchEvent {
    uint64_t address, size, stream, pool[2];
    int action, device;  /* action: as history_types.pxd numbers them */
    uint32_t tag;
};
typedef void (*TorchWatcher)(const struct TorchEvent *event);
/* Where a pool's segments come from: functions, of which make_source makes what set_up_pool takes. */
typedef void *(*TorchTake)(size_t size, int device, void *stream);
typedef void (*TorchGive)(void *address, size_t size, int device, void *stream);
struct TorchSource;

struct TorchTable {
    int version;
    /* memory; a text says what went wrong: above 0 for a lack of memory, below for everything else */
    int (*alloc)(size_t size, int device, void *stream, uintptr_t *out_address, char *text);
    /* Not 0: no live block begins there; where it does not answer, that goes to stderr. */
    int (*release)(void *address, int device, int answers);
    void (*record_stream)(void *address, void *stream);
    int (*device_at)(uintptr_t address);                /* -1: not of accelrt's pools */
    size_t (*size_of)(int device, uintptr_t address);   /* of a live block; 0: none begins there */
    int (*base_of)(int device, uintptr_t address, uintptr_t *out_base, size_t *out_size);  /* of the segment */
    int (*plain_alloc)(int device, size_t size, uintptr_t *out_address, char *text);      /* past the cache */
    void (*plain_free)(uintptr_t address);
    /* The device is to use the other one's memory; where both are one, the memory of all that it reaches. */
    int (*reach)(int device, int other, char *text);
    void (*empty)(void);
    void (*empty_pool)(uint64_t first, uint64_t second);
    size_t (*largest)(int device);
    void (*set_fraction)(double fraction, int device);
    double (*get_fraction)(int device);
    int (*init)(int count, char *text);
    /* figures */
    void (*totals)(int device, int64_t *out_allocated, int64_t *out_reserved);
    void (*read_stats)(int device, struct TorchStats *out_stats);
    void (*reset_peaks)(int device);
    void (*reset_accumulated)(int device);
    int (*blocks)(int device, struct TorchBlock **out_blocks, size_t *out_count);  /* to be freed; in address order */
    void (*release_blocks)(struct TorchBlock *blocks);
    /* pools, as torch names them */
    int (*begin_pool)(int device, uint64_t first, uint64_t second, int purpose, uintptr_t stream, char *text);
    void (*end_pool)(int device, uint64_t first, uint64_t second);
    void (*release_pool)(int device, uint64_t first, uint64_t second);
    int (*enter_pool)(int device, uint64_t first, uint64_t second);  /* the calling thread, for one allocation */
    void (*leave_pool)(int device, uint64_t first, uint64_t second);
    /* The pool of torch's default memory, for one allocation of the calling thread; not 0: it is none of that pool's. */
    int (*enter_home)(int device, void *stream);
    void (*leave_home)(int device);
    struct TorchSource *(*make_source)(TorchTake take, TorchGive give);  /* for good; NULL: the host has no memory */
    int (*set_up_pool)(int device, uint64_t first, uint64_t second, const struct TorchSource *source, int whole, int lends);
    int (*pool_uses)(int device, uint64_t first, uint64_t second);
    /* checkpoints */
    int (*save_pool)(int device, uint64_t first, uint64_t second, void **out_state, char *text);
    int (*restore_pool)(void *state, uintptr_t **out_live, size_t *out_live_count, uintptr_t **out_freed,
                        size_t *out_freed_count, char *text);
    void (*forget)(uintptr_t *addresses);
    void (*forget_state)(void *state);
    /* page-locked memory */
    int (*pinned_hit)(size_t size, uintptr_t *out_address);  /* of the cache alone; not 0: ask the next one */
    int (*pinned_alloc)(int device, size_t size, uintptr_t *out_address, char *text);  /* device: whose driver gives it */
    void (*pinned_release)(uintptr_t address);
    int (*pinned_use)(uintptr_t address, int device, void *stream);  /* below 0: it is not accelrt's */
    void (*pinned_empty)(void);
    void (*pinned_stats)(struct TorchPinnedStats *out_stats);
    void (*pinned_reset)(int peaks);  /* 0: the sums */
    int (*settle)(int device);        /* waits for the device's work; not 0: a capture is under way, or it failed */
    int (*watch)(TorchWatcher watcher);  /* NULL: no longer; called under locks of the pool's, on any thread */
    /* between processes; these take the GIL.  handle has room for TORCH_HANDLE bytes; out_memory is given to close_shared
       once, whatever still uses it: it is unmapped when the device's work is done */
    int (*share)(int device, uintptr_t address, char *handle, size_t *out_length, size_t *out_offset, char *text);
    int (*open_shared)(const char *handle, size_t length, int device, uintptr_t *out_base, void **out_memory, char *text);
    void (*close_shared)(void *memory);
};
#endif
