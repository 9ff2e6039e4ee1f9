// complex by the name that CuPy's texts have for it.
#pragma once
#ifndef accelrt_scan

#include <thrust/complex.h>

using thrust::complex;

#endif
