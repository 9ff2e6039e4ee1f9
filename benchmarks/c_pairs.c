/* Allocation through accelrt's C API: a loop that bench_alloc calls without the GIL. */
#include <time.h>

#include "accelrt.h"

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Allocates and frees count times; writes when it began and ended, in nanoseconds of the monotonic clock. */
int pairs(int device, size_t size, uintptr_t stream, long count, int64_t *out_start, int64_t *out_end) {
    int code = ACCELRT_SUCCESS;
    *out_start = now_ns();
    for (long step = 0; step < count && code == ACCELRT_SUCCESS; step++) {
        uintptr_t address = 0;
        code = accelrt_allocate(device, size, stream, &address);
        if (code == ACCELRT_SUCCESS)
            code = accelrt_release(device, address);
    }
    *out_end = now_ns();
    return code;
}
