// thrust::complex, which is the standard library's complex here.
#pragma once
#ifndef accelrt_scan

#include <complex>

namespace thrust {
using ::std::abs;
using ::std::arg;
using ::std::complex;
using ::std::conj;
using ::std::exp;
using ::std::log;
using ::std::norm;
using ::std::polar;
using ::std::pow;
using ::std::sqrt;
}  // namespace thrust

#endif
