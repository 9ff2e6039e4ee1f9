"""Sums in shared memory: one kernel in CUDA C, on a GPU and on the host device.

python block_sums.py
"""

import os

import numpy as np

import accelrt

SOURCE = """
// Each block adds its part of x: first its warps by shuffles, then their sums through shared memory.
extern "C" __global__ void __launch_bounds__(256) sum(const float* __restrict__ x, double* total, int n) {
    __shared__ double of_warps[8];
    const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    double mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += x[i];
    for (int by = warpSize / 2; by; by /= 2)
        mine += __shfl_down_sync(0xffffffff, mine, by);
    if (lane == 0)
        of_warps[warp] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int other = 1; other < 8; other++)
            mine += of_warps[other];
        atomicAdd(total, mine);
    }
}
"""


def run() -> None:
    """Sums whole numbers, whose sum is exact."""
    n = 1 << 18
    x = accelrt.asarray(np.arange(n, dtype=np.float32))
    total = accelrt.zeros(1, "float64")
    kernel = accelrt.compile(SOURCE).function("sum", "const float* x, double* total, int n")
    kernel[16, 256](x, total, n)
    found = float(total.numpy()[0])
    assert found == n * (n - 1) / 2
    print(f"{n} numbers, {found:.0f} in all: right")


def main() -> None:
    if not accelrt.is_available() or os.environ.get("ACCELRT_DRIVER") == "host":
        accelrt.init(driver="host")  # compiled by g++ there, and by NVRTC for a GPU
    run()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
