// What CUDA declares in device code, for a C++ compiler of the host: types, mathematical functions and intrinsics.
// Elementwise kernels of the host device begin with this; kernels in CUDA C with accelrt_kernels.hpp.
#pragma once

#include <cstddef>
// CUDA has none of C++17's special functions, and libstdc++'s take half of a small kernel's compilation.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cfenv>
#include <climits>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <type_traits>
#include <utility>

#include <math.h>  // the overloads for float, outside of std too
#include <stdlib.h>

#include "accelrt_types.hpp"

#include "accelrt_math.hpp"

#include "accelrt_intrinsics.hpp"

#ifdef accelrt_with_threads
accelrt_inline void accelrt_yield();
#else
accelrt_inline void accelrt_yield() {}
#endif

#include "accelrt_atomics.hpp"
