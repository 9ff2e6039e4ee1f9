/* Copies and fills on the raw driver. */
#include "raw.h"

static CUdeviceptr to, origin;
static void *host;

static void prepare(void) {
    DO(cuMemAlloc(&to, 4 * large));
    DO(cuMemAlloc(&origin, 4 * large));
    DO(cuMemHostAlloc(&host, large, 0));
    memset(host, 1, large);
}

static void h2d_1kib(void) { DO(cuMemcpyHtoDAsync(to, host, 1024, stream)); }

static void fill_1kib(void) { DO(cuMemsetD8Async(to, 0, 1024, stream)); }

/* 4,096 copies of 16 KiB: a batch where the driver has them (the form of CUDA 12.8), else none; and a loop. */
enum { PIECES = 4096, PIECE = 16384 };
static CUdeviceptr dsts[PIECES], srcs[PIECES];
static size_t sizes[PIECES];
static CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream);

static void list_pieces(void) {
    CUdriverProcAddressQueryResult found;
    for (size_t i = 0; i < PIECES; i++) {
        dsts[i] = to + i * PIECE % (4 * large - PIECE + 1);
        srcs[i] = (CUdeviceptr)host + i * PIECE % (large - PIECE + 1);
        sizes[i] = PIECE;
    }
    DO(cuGetProcAddress("cuMemcpyBatchAsync", (void **)&batch, 12080, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    if (batch == NULL)
        refuse("cuGetProcAddress", CUDA_ERROR_NOT_FOUND);
}

/* The same of 8 to 32 KiB, 20 on average, one behind the other: see Accelrt.mixed of peers/with_accelrt.py. */
static size_t mixed_bytes;

static void list_mixed(void) {
    mixed_bytes = 0;
    for (size_t i = 0; i < PIECES; i++) {
        sizes[i] = (8 + i * 7919 % 25) << 10;
        dsts[i] = to + mixed_bytes % (2 * large);
        srcs[i] = (CUdeviceptr)host + mixed_bytes % (large / 2);
        mixed_bytes += sizes[i];
    }
}

static void many_16kib(void) {
    struct { int order; CUmemLocation src, dst; unsigned flags; } attributes = {1, {0}, {0}, 0};  /* CUmemcpyAttributes */
    size_t first = 0, failed;
    DO(batch(dsts, srcs, sizes, PIECES, &attributes, &first, 1, &failed, stream));
}

static void many_loop(void) {
    for (int i = 0; i < PIECES; i++)
        DO(cuMemcpyAsync(dsts[i], srcs[i], PIECE, stream));
}

static void h2d_large(void) { DO(cuMemcpyHtoDAsync(to, host, large, stream)); }

static void d2d_large(void) { DO(cuMemcpyDtoDAsync(to, origin, 4 * large, stream)); }

static void prepare_1gib(void) {
    DO(cuMemFree(to));
    DO(cuMemFree(origin));
    DO(cuMemAlloc(&to, 16 * large));
    DO(cuMemAlloc(&origin, 16 * large));
}

static void d2d_1gib(void) { DO(cuMemcpyDtoDAsync(to, origin, 16 * large, stream)); }

static void fill_1gib(void) { DO(cuMemsetD32Async(to, 0, 4 * large, stream)); }

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("h2d_1kib", prepare))
        return 1;
    row("h2d_1kib", h2d_1kib, 100, 1);
    row("fill_1kib", fill_1kib, 100, 1);
    if (ready("many_16kib", list_pieces)) {
        row("many_16kib", many_16kib, 1, PIECES);
        rate("many_16kib_rate", many_16kib, 4, (double)PIECES * PIECE);
    }
    row("many_loop", many_loop, 1, PIECES);
    if (batch != NULL && ready("many_mixed", list_mixed)) {
        row("many_mixed", many_16kib, 1, PIECES);
        rate("many_mixed_rate", many_16kib, 4, (double)mixed_bytes);
    }
    rate("h2d_rate", h2d_large, 10, (double)large);
    rate("d2d_rate", d2d_large, 10, 8.0 * (double)large);
    if (!ready("elementwise_rate", prepare_1gib))
        return 1;
    rate("elementwise_rate", d2d_1gib, 10, 32.0 * (double)large);
    rate("uniform_rate", fill_1gib, 10, 16.0 * (double)large);
    return 0;
}
