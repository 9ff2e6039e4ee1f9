"""y = a * x + y, three ways: an elementwise kernel, a captured one, and a kernel in CUDA C++.

python saxpy.py
"""

import os

import numpy as np

import accelrt

SOURCE = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += a * x[i];
}
"""
THREADS = 256


def captured(kernel: accelrt.ElementwiseKernel, a: float, x: accelrt.Array, y: accelrt.Array) -> None:
    """Captures the kernel once, and replays it twice."""
    graph = accelrt.CUDAGraph()
    with accelrt.graph(graph):
        kernel(a, x, y, out=y)
    for _ in range(2):
        graph.replay()


def in_cuda(a: float, x: accelrt.Array, y: accelrt.Array) -> None:
    """Compiles the kernel, or finds it in the cache, and launches it."""
    kernel = accelrt.compile(SOURCE).function("saxpy", "float a, const float* x, float* y, int n")
    kernel[-(-x.size // THREADS), THREADS](a, x, y, x.size)


def run() -> None:
    """Runs them all and compares with NumPy."""
    a, n = 2.5, 1 << 20
    numbers = np.arange(n, dtype=np.float32) / n
    x, y = accelrt.asarray(numbers), accelrt.asarray(numbers)
    kernel = accelrt.elementwise("T a, T x, T y", "T z", "z = a * x + y", name="saxpy")
    kernel(a, x, y, out=y)
    captured(kernel, a, x, y)
    in_cuda(a, x, y)
    launches = 4
    np.testing.assert_allclose(y.numpy(), numbers * (1 + launches * a), rtol=1e-5)
    print(f"{n} elements, {launches} launches: right")


def main() -> None:
    if not accelrt.is_available() or os.environ.get("ACCELRT_DRIVER") == "host":
        accelrt.init(driver="host")
    run()
    accelrt.synchronize()  # a graph that died keeps its arrays until its replays are known to be done
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
