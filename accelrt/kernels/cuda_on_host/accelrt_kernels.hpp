// What CUDA declares in device code, for kernels in CUDA C on the host device.
#pragma once

#ifdef accelrt_scan  // only looked through for its kernels

#include "accelrt_macros.hpp"

#else

#define accelrt_with_threads
#include "accelrt_functions.hpp"

#include "accelrt_threads.hpp"

#include "accelrt_device_runtime.hpp"

#include "assert.h"

// Inline assembly is PTX; an error here names its line.
#define asm _Pragma("GCC error \"inline assembly is PTX, which the host device does not run\"") __asm__

#endif
