/* Allocation on the raw driver: the stream-ordered pool, which keeps what is freed, and pinned memory. */
#include "raw.h"

enum { LIVE = 200 };

static CUdeviceptr live[LIVE];
static size_t sizes[5 * LIVE];
static int slots[5 * LIVE];

static void pair(size_t size) {
    CUdeviceptr address;
    DO(cuMemAllocAsync(&address, size, stream));
    DO(cuMemFreeAsync(address, stream));
}

static void pair_512(void) { pair(512); }

static void pair_4mib(void) { pair((size_t)4 << 20); }

static void keep_memory(void) {
    CUmemoryPool pool;
    cuuint64_t all = ~(cuuint64_t)0;
    DO(cuDeviceGetDefaultMemPool(&pool, device));
    DO(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

/* As peers/churn.py: each slot is replaced five times, by 512 bytes to 4 MiB. */
static void prepare_mixed(void) {
    srand(20);
    for (int i = 0; i < 5 * LIVE; i++) {
        slots[i] = (i * 77) % LIVE; /* 77 and 200 share no divisor, so every slot comes in every round */
        sizes[i] = (size_t)512 << (rand() % 13);
        sizes[i] += rand() % sizes[i];
    }
    for (int i = 0; i < LIVE; i++)
        DO(cuMemAllocAsync(&live[i], sizes[i], stream));
}

static void mixed_200(void) {
    for (int i = 0; i < 5 * LIVE; i++) {
        DO(cuMemFreeAsync(live[slots[i]], stream));
        DO(cuMemAllocAsync(&live[slots[i]], sizes[i], stream));
    }
}

static void pinned_1mib(void) {
    void *memory;
    DO(cuMemHostAlloc(&memory, (size_t)1 << 20, 0));
    DO(cuMemFreeHost(memory));
}

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("pair_512", keep_memory))
        return 1;
    row("pair_512", pair_512, 200, 1);
    row("pair_4mib", pair_4mib, 200, 1);
    if (ready("mixed_200", prepare_mixed))
        row("mixed_200", mixed_200, 1, 5 * LIVE);
    row("pinned_1mib", pinned_1mib, 20, 1);
    return 0;
}
