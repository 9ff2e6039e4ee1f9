/* Streams, events and the current device on the raw driver. */
#include "raw.h"

static CUevent event;

static void make_event(void) {
    CUstream other;
    DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DO(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DO(cuEventRecord(event, other));
}

static void stream_make(void) {
    CUstream made;
    DO(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    DO(cuStreamDestroy(made));
}

static void stream_query(void) { DO(cuStreamQuery(stream)); }

static void event_make(void) {
    CUevent made;
    DO(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    DO(cuEventDestroy(made));
}

static void event_record(void) { DO(cuEventRecord(event, stream)); }

static void event_cycle(void) {
    CUevent made;
    DO(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    DO(cuEventRecord(made, stream));
    DO(cuEventDestroy(made));
}

static void wait_event(void) { DO(cuStreamWaitEvent(stream, event, 0)); }

static void current_device(void) {
    CUdevice current;
    DO(cuCtxGetDevice(&current));
}

static void with_device(void) {
    CUcontext popped;
    DO(cuCtxPushCurrent(context));
    DO(cuCtxPopCurrent(&popped));
}

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("wait_event", make_event))
        return 1;
    row("stream_make", stream_make, 200, 1);
    row("stream_query", stream_query, 200, 1);
    row("event_make", event_make, 200, 1);
    row("wait_event", wait_event, 200, 1);
    row("event_record", event_record, 200, 1);
    row("event_cycle", event_cycle, 200, 1);
    row("current_device", current_device, 2000, 1);
    row("with_device", with_device, 2000, 1);
    return 0;
}
