/* Capture and replay of ten small copies on the raw driver. */
#include "raw.h"

static CUdeviceptr to, origin;
static CUgraphExec replayed;

static void prepare(void) {
    DO(cuMemAlloc(&to, 1024));
    DO(cuMemAlloc(&origin, 1024));
}

static CUgraphExec capture(void) {
    CUgraph graph;
    CUgraphExec made;
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 10; i++)
        DO(cuMemcpyAsync(to, origin, 1024, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiate(&made, graph, 0));
    DO(cuGraphDestroy(graph));
    return made;
}

static void capture_10(void) { DO(cuGraphExecDestroy(capture())); }

static void prepare_replay(void) { replayed = capture(); }

static void replay_10(void) { DO(cuGraphLaunch(replayed, stream)); }

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("capture_10", prepare))
        return 1;
    row("capture_10", capture_10, 20, 1);
    if (ready("replay_10", prepare_replay))
        row("replay_10", replay_10, 50, 1);
    return 0;
}
