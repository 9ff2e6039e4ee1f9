/* What a C author does with accelrt: memory, streams and events on threads that Python never sees. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "accelrt.h"

#define EXPORT __attribute__((visibility("default")))
enum { MOST_THREADS = 16 };

struct job {
    int device, number, rounds;
    size_t size;
    int code;
    long wrong;
};

static int run_round(struct job *job, uintptr_t first, uintptr_t second, unsigned char *host) {
    uintptr_t memory = 0;
    size_t index;
    int code = accelrt_allocate(job->device, job->size, first, &memory);
    if (code == 0)
        code = accelrt_fill(job->device, first, memory, (unsigned)job->number, 1, job->size);
    if (code == 0)
        code = accelrt_stream_wait_stream(job->device, second, job->device, first);
    if (code == 0)
        code = accelrt_copy(job->device, second, (uintptr_t)host, memory, job->size);
    if (code == 0)
        code = accelrt_record_stream(job->device, memory, second);
    if (accelrt_release(job->device, memory) && code == 0)
        code = ACCELRT_UNKNOWN;
    if (code == 0)
        code = accelrt_stream_synchronize(job->device, second);
    for (index = 0; index < job->size; index++)
        job->wrong += host[index] != (unsigned char)job->number;
    return code;
}

static void *work(void *argument) {
    struct job *job = argument;
    uintptr_t first = 0, second = 0, host = 0;
    int round;
    job->code = accelrt_stream_lease(job->device, 0, &first);
    if (job->code == 0)
        job->code = accelrt_stream_lease(job->device, 0, &second);
    if (job->code == 0)
        job->code = accelrt_allocate_pinned(job->size, &host);
    for (round = 0; round < job->rounds && job->code == 0; round++)
        job->code = run_round(job, first, second, (unsigned char *)host);
    if (host)
        accelrt_release_pinned(host);
    if (second)
        accelrt_stream_return(job->device, second);
    if (first)
        accelrt_stream_return(job->device, first);
    return NULL;
}

/* The first status that was not SUCCESS; *out_wrong counts bytes that came out wrong. */
EXPORT int on_threads(int device, int count, int rounds, size_t size, long *out_wrong) {
    struct job jobs[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    int index, started, code = 0;
    for (started = 0; started < count && started < MOST_THREADS; started++) {
        struct job job = {device, started + 1, rounds, size, 0, 0};
        jobs[started] = job;
        if (pthread_create(&threads[started], NULL, work, &jobs[started]))
            break;
    }
    *out_wrong = 0;
    for (index = 0; index < started; index++) {
        pthread_join(threads[index], NULL);
        code = code ? code : jobs[index].code;
        *out_wrong += jobs[index].wrong;
    }
    return started == count ? code : ACCELRT_OPERATING_SYSTEM;
}

EXPORT int import_accelrt(void) { return accelrt_import(); }

/* A call while the caller's thread has the GIL, and an exception of Python's is set. */
EXPORT int call_with_exception(void (*set_string)(void *, const char *), void *kind) {
    set_string(kind, "of the caller");
    return accelrt_api_version();
}
