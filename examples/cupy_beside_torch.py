"""CuPy and torch on one pool: torch makes numbers, CuPy normalises them, torch goes on; nothing is copied.

python cupy_beside_torch.py
"""

import gc
import importlib.util
import sys

import accelrt
import accelrt.interop.cupy
import accelrt.interop.torch

missing = [name for name in ("torch", "cupy") if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"not installed: {', '.join(missing)}; this program hands memory from torch to CuPy and back")

accelrt.interop.torch.install()  # before torch's first allocation on a GPU
accelrt.interop.cupy.install()

import cupy  # noqa: E402
import torch  # noqa: E402

ROWS, COLUMNS, STEPS = 4096, 1024, 20


def normalised(batch: torch.Tensor) -> torch.Tensor:
    """What CuPy makes of a tensor, row by row, as a tensor again: by DLPack both ways."""
    rows = cupy.from_dlpack(batch)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= rows.std(axis=1, keepdims=True)
    return torch.from_dlpack(rows)


def step(worker: accelrt.Stream) -> None:
    """Both libraries on one stream of accelrt's: what one puts in, the other finds done in its turn."""
    theirs = torch.cuda.ExternalStream(worker.cuda_stream), cupy.cuda.Stream.from_external(worker)
    with torch.cuda.stream(theirs[0]), theirs[1]:
        batch = torch.randn(ROWS, COLUMNS, device="cuda") * 3 + 5
        address = batch.data_ptr()
        rows = normalised(batch)
        assert rows.data_ptr() == address
        assert rows.mean(1).abs().max().item() < 1e-4
        assert (rows.std(1, correction=0) - 1).abs().max().item() < 1e-3


def main() -> None:
    worker = accelrt.Stream()
    step(worker)
    reserved = accelrt.memory_reserved()
    for _ in range(STEPS):
        step(worker)
    grown = accelrt.memory_reserved() - reserved
    print(f"{STEPS} steps; the pool has {reserved >> 20} MiB, and grew by {grown} bytes after the first step")
    with cupy.cuda.Stream.from_external(worker):
        table = cupy.ones((ROWS, COLUMNS), cupy.float32)
    print(
        f"torch says {torch.cuda.memory_allocated()} bytes, with CuPy's; accelrt {accelrt.memory_allocated()}"
    )
    del table
    gc.collect()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
