/* Capture and replay of ten small copies on the raw driver, and changes of instances: other sources for 8 of 1,000 copies,
 * other pointers for 8 of 1,000 kernels, and another pointer for one. */
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

enum { NODES = 1000, REBOUND = 8 };

static CUgraphExec thousand;
static CUgraphNode rebound[REBOUND];
static CUdeviceptr sources[2][REBOUND];
static CUDA_MEMCPY3D copy;

static void prepare_rebind(void) {
    CUgraph graph;
    CUgraphNode nodes[NODES];
    size_t count = NODES;
    for (int i = 0; i < REBOUND; i++) {
        DO(cuMemAlloc(&sources[0][i], 1024));
        DO(cuMemAlloc(&sources[1][i], 1024));
    }
    DO(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < NODES; i++)
        DO(cuMemcpyAsync(to, i % (NODES / REBOUND) ? origin : sources[0][i / (NODES / REBOUND)], 1024, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphGetNodes(graph, nodes, &count));
    for (int i = 0; i < REBOUND; i++)
        rebound[i] = nodes[i * (NODES / REBOUND)];
    DO(cuGraphMemcpyNodeGetParams(rebound[0], &copy));
    DO(cuGraphInstantiate(&thousand, graph, 0));
}


static void rebind_8(void) {
    static int turn;
    turn = !turn;
    for (int i = 0; i < REBOUND; i++) {
        copy.srcDevice = sources[turn][i];
        DO(cuGraphExecMemcpyNodeSetParams(thousand, rebound[i], &copy, context));
    }
}

static CUgraphExec changed;
static CUgraphNode node;
static CUDA_KERNEL_NODE_PARAMS launch;
static CUdeviceptr pointer;
static void *arguments[] = {&pointer};

static void prepare_update(void) {
    CUgraph graph;
    DO(cuModuleGetFunction(&launch.func, empty_kernels(), "empty_1"));
    launch.gridDimX = launch.gridDimY = launch.gridDimZ = 1;
    launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
    launch.kernelParams = arguments;
    pointer = to;
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphAddKernelNode(&node, graph, NULL, 0, &launch));
    DO(cuGraphInstantiate(&changed, graph, 0));
}

static void update_1(void) {
    pointer = pointer == to ? origin : to;
    DO(cuGraphExecKernelNodeSetParams(changed, node, &launch));
}

static CUgraphExec launches;
static CUgraphNode launched[REBOUND];

static void prepare_rebind_kernels(void) {
    CUgraph graph;
    CUgraphNode before = NULL, made;
    prepare_update();
    DO(cuGraphCreate(&graph, 0));
    for (int i = 0; i < NODES; i++) {
        DO(cuGraphAddKernelNode(&made, graph, &before, before != NULL, &launch));
        if (i % (NODES / REBOUND) == 0)
            launched[i / (NODES / REBOUND)] = made;
        before = made;
    }
    DO(cuGraphInstantiate(&launches, graph, 0));
}

static void rebind_kernels_8(void) {
    static int turn;
    turn = !turn;
    for (int i = 0; i < REBOUND; i++) {
        pointer = sources[turn][i];
        DO(cuGraphExecKernelNodeSetParams(launches, launched[i], &launch));
    }
}

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("capture_10", prepare))
        return 1;
    row("capture_10", capture_10, 20, 1);
    if (ready("replay_10", prepare_replay))
        row("replay_10", replay_10, 50, 1);
    if (ready("rebind_8", prepare_rebind))
        row("rebind_8", rebind_8, 50, 1);
    if (ready("rebind_kernels_8", prepare_rebind_kernels))
        row("rebind_kernels_8", rebind_kernels_8, 50, 1);
    if (ready("update_1", prepare_update)) {
        row("update_1", update_1, 200, 1);
        row("update_node", update_1, 200, 1);
        row("update_nogil", update_1, 200, 1);
    }
    return 0;
}
