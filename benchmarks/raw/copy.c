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
    rate("h2d_rate", h2d_large, 10, (double)large);
    rate("d2d_rate", d2d_large, 10, 8.0 * (double)large);
    if (!ready("elementwise_rate", prepare_1gib))
        return 1;
    rate("elementwise_rate", d2d_1gib, 10, 32.0 * (double)large);
    rate("uniform_rate", fill_1gib, 10, 16.0 * (double)large);
    return 0;
}
