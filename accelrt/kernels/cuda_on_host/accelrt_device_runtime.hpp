// What CUDA's runtime has for device code: the conditions of graphs, and launches that depend on each other.
#pragma once

#define __cudart_builtin__
#define CUDARTAPI

typedef unsigned long long cudaGraphConditionalHandle;

extern "C" {

// The handle of a condition is the address of its value (accelrt/driver/host/work.pxd).
accelrt_inline void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value) {
    __atomic_store_n((unsigned int*)handle, value, __ATOMIC_RELAXED);
}

// A kernel of the host device begins when those before it in its stream are over.
accelrt_inline void cudaTriggerProgrammaticLaunchCompletion(void) {}
accelrt_inline void cudaGridDependencySynchronize(void) {}

}  // extern "C"
