// What a text may ask of its compiler.
#pragma once

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 900  // the limits of the host device are those of an H200
#define __ACCELRT_HOST_DEVICE__ 1
