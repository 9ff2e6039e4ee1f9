/* Launches of kernels that do nothing, on the raw driver. */
#include "raw.h"

static CUfunction one, sixteen;
static CUdeviceptr memory;

static void prepare(void) {
    CUmodule module = empty_kernels();
    DO(cuModuleGetFunction(&one, module, "empty_1"));
    DO(cuModuleGetFunction(&sixteen, module, "empty_16"));
    DO(cuMemAlloc(&memory, 1024));
}

static void launch_1(void) {
    void *arguments[] = {&memory};
    DO(cuLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void launch_16(void) {
    long long integers[] = {1, 2, 3, 4};
    double reals[] = {.5, 1.5, 2.5, 3.5};
    void *arguments[16];
    for (int i = 0; i < 16; i++)
        arguments[i] = i < 8 ? (void *)&memory : i < 12 ? (void *)&integers[i - 8] : (void *)&reals[i - 12];
    DO(cuLaunchKernel(sixteen, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

int main(int argc, char **argv) {
    if (!begin(argc, argv) || !ready("launch_1", prepare))
        return 1;
    row("launch_1", launch_1, 500, 1);
    row("launch_16", launch_16, 500, 1);
    row("launch_nogil", launch_1, 500, 1);
    return 0;
}
