"""y = a * x with the size of block that is fastest here: found once, kept in a file, and used from then on.

python tuned_blocks.py
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial

import numpy as np

import accelrt

SOURCE = """
extern "C" __global__ void scale(float a, const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i];
}
"""
SIZES = (32, 128, 256, 512, 1024)


def candidates(on_gpu: bool) -> dict[str, Callable[..., None]]:
    """Name -> function: a kernel with blocks of many sizes, or on the host device two ways to do the same."""
    if on_gpu:
        kernel = accelrt.compile(SOURCE).function("scale", "float a, const float* x, float* y, int n")

        def launch(threads: int, a: float, x: accelrt.Array, y: accelrt.Array) -> None:
            kernel[-(-x.size // threads), threads](a, x, y, x.size)

        return {f"blocks of {threads}": partial(launch, threads) for threads in SIZES}
    whole = accelrt.elementwise("T a, T x", "T y", "y = a * x", name="scale")

    def in_rows(a: float, x: accelrt.Array, y: accelrt.Array) -> None:
        for begin in range(0, x.size, 4096):
            whole(a, x[begin : begin + 4096], out=y[begin : begin + 4096])

    return {"in rows": in_rows, "whole": lambda a, x, y: whole(a, x, out=y)}


def run(on_gpu: bool) -> None:
    ways = candidates(on_gpu)
    operation = accelrt.tunable.Operation("scale", next(iter(ways.values())))
    for name, function in ways.items():
        operation.candidate(name, function)
    accelrt.tunable.set_numerical_check_tolerances(True)
    accelrt.tunable.enable()
    numbers = np.arange(1 << 20, dtype=np.float32)
    x, y = accelrt.asarray(numbers), accelrt.empty(numbers.shape, numbers.dtype)
    operation(2.0, x, y)  # times the candidates on copies, then runs the fastest
    operation(2.0, x, y)  # runs the fastest
    np.testing.assert_array_equal(y.numpy(), 2 * numbers)
    for result in accelrt.tunable.get_results():
        print(
            f"{result.operation}({result.params}): {result.candidate}, {result.time * 1000:.1f} us", end="; "
        )
    with open(accelrt.tunable.get_filename()) as file:
        print(f"{len(file.readlines())} lines in the file")


def main() -> None:
    on_gpu = accelrt.is_available() and os.environ.get("ACCELRT_DRIVER") != "host"
    if not on_gpu:
        accelrt.init(driver="host")
    with tempfile.TemporaryDirectory() as folder:
        accelrt.tunable.set_filename(os.path.join(folder, "results.csv"))
        run(on_gpu)
    accelrt.synchronize()
    accelrt.empty_cache()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
