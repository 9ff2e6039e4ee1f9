// What CUDA declares here, device code of the host has already.
