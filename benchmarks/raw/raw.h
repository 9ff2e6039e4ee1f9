/* What the C programs share: timing as in timing.py, and what they say about each row, as in words.py. */
#ifndef RAW_H
#define RAW_H
#include <cuda.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 400 };

typedef void (*work_fn)(void);

static jmp_buf escape;       /* out of a row whose call was refused */
static const char *row_now;  /* the row that is being timed */
static int64_t budget_ns;    /* for one row */
static int least = 7;        /* batches, however long they take */
static size_t large = (size_t)64 << 20;
static CUdevice device;
static CUcontext context;
static CUstream stream;

static void refuse(const char *call, CUresult code) {
    const char *name = "unknown code";
    cuGetErrorName(code, &name);
    printf("{\"row\": \"%s\", \"error\": \"%s answered %s\"}\n", row_now, call, name);
    longjmp(escape, 1);
}

#define DO(call) do { CUresult code_ = (call); if (code_) refuse(#call, code_); } while (0)

/* The module of empty.ptx, beside this file. */
static inline CUmodule empty_kernels(void) {
    static char image[4096];
    char path[4096] = __FILE__;
    CUmodule module;
    strcpy(strrchr(path, '/') + 1, "empty.ptx");
    FILE *file = fopen(path, "r");
    if (file == NULL || fread(image, 1, sizeof image - 1, file) == 0)
        DO(CUDA_ERROR_FILE_NOT_FOUND);
    DO(cuModuleLoadData(&module, image));
    return module;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void nothing(void) { __asm__ volatile(""); }

/* Nanoseconds a call, one sample a batch; settled says whether the wait for the device is timed too. */
static int sample(work_fn work, int batch, int settled, double *samples) {
    int taken = 0;
    int64_t deadline = 0;
    for (int round = -1; round < MOST; round++) { /* the first round warms up */
        if (taken >= least && now_ns() > deadline)
            break;
        int64_t start = now_ns();
        for (int i = 0; i < batch; i++)
            work();
        if (settled)
            DO(cuCtxSynchronize());
        double each = (double)(now_ns() - start) / batch;
        DO(cuCtxSynchronize());
        if (round < 0)
            deadline = now_ns() + budget_ns;
        else
            samples[taken++] = each;
    }
    qsort(samples, taken, sizeof(double), by_size);
    return taken;
}

static void print_row(double value, double low, double high, double loop, int batches) {
    printf("{\"cells\": {\"%s\": {\"value\": %.3f, \"p10\": %.3f, \"p90\": %.3f, \"loop\": %.3f, \"batches\": %d}}}\n",
           row_now, value, low, high, loop, batches);
    fflush(stdout);
}

/* One row in nanoseconds per operation, of which a call of work holds per. */
static inline void row(const char *key, work_fn work, int batch, int per) {
    double samples[MOST], empty[MOST];
    row_now = key;
    if (setjmp(escape))
        return;
    int loops = sample(nothing, batch, 0, empty);
    double loop = empty[loops / 2];
    int taken = sample(work, batch, 0, samples);
    print_row((samples[taken / 2] - loop) / per, (samples[taken / 10] - loop) / per,
              (samples[taken - 1 - taken / 10] - loop) / per, loop / per, taken);
}

/* One row in GB/s; a call of work moves so many bytes. */
static inline void rate(const char *key, work_fn work, int batch, double bytes) {
    double samples[MOST];
    row_now = key;
    if (setjmp(escape))
        return;
    int taken = sample(work, batch, 1, samples);
    print_row(bytes / samples[taken / 2], bytes / samples[taken - 1 - taken / 10], bytes / samples[taken / 10], 0,
              taken);
}

/* Runs prepare, whose failure is the row's. */
static int ready(const char *key, work_fn prepare) {
    row_now = key;
    if (setjmp(escape))
        return 0;
    prepare();
    return 1;
}

static void open_device(void) {
    DO(cuInit(0));
    DO(cuDeviceGet(&device, 0));
    DO(cuDevicePrimaryCtxRetain(&context, device));
    DO(cuCtxSetCurrent(context));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static int begin(int argc, char **argv) {
    int quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    budget_ns = quick ? 10000000 : 200000000;
    if (quick) {
        least = 3;
        large = (size_t)4 << 20;
    }
    return ready("device", open_device);
}
#endif
