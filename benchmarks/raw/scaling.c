/* First memory for each of many streams, and captures beside many graphs, on the raw driver: what bench_scaling.py
 * makes accelrt do, as few calls as it takes. */
#include "raw.h"

enum { PAGE = 2 << 20, COLD = 4000, GRAPHS = 20000, SAMPLE = 100, QUICK = 16 };

static int cold, graphs, sampled;
static CUdeviceptr target;

static void prepare(void) { DO(cuMemAlloc(&target, 1024)); }

/* Addresses of their own, a page, its mapping and the access to it. */
static void map_page(void) {
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle page;
    CUdeviceptr address;
    DO(cuMemAddressReserve(&address, PAGE, 0, 0, 0));
    DO(cuMemCreate(&page, PAGE, &kind, 0));
    DO(cuMemMap(address, PAGE, 0, page, 0));
    DO(cuMemSetAccess(address, PAGE, &access, 1));
}

static void capture(void) {
    CUgraph graph;
    CUgraphExec made;
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DO(cuMemsetD8Async(target, 1, 1000, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&made, graph, 0));
}

static double mean(work_fn work, int count) {
    int64_t start = now_ns();
    for (int i = 0; i < count; i++)
        work();
    return (double)(now_ns() - start) / count;
}

static void say(const char *key, double value) {
    row_now = key;
    print_row(value, value, value, 0, 1);
}

static void measure_cold(void) {
    CUstream made;
    for (int i = 0; i < cold; i++)
        DO(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    say("cold", mean(map_page, cold));
}

static void measure_captures(void) {
    say("capture_alone", mean(capture, sampled));
    mean(capture, graphs);
    say("capture_beside", mean(capture, sampled));
}

int main(int argc, char **argv) {
    int quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    cold = quick ? QUICK : COLD;
    graphs = quick ? QUICK : GRAPHS;
    sampled = quick ? QUICK : SAMPLE;
    if (!begin(argc, argv) || !ready("capture_alone", prepare))
        return 1;
    if (ready("cold", measure_cold))
        ready("capture_beside", measure_captures);
    return 0;
}
