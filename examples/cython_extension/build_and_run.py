"""Builds the extension in a folder of its own and uploads from four threads at once."""

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import accelrt

HERE = Path(__file__).parent


def build(folder):
    for name in ("setup.py", "upload.pyx"):
        shutil.copy(HERE / name, folder)
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, check=True)
    sys.path.insert(0, folder)


def main():
    import upload

    data = [np.random.default_rng(seed).integers(0, 256, 3_000_001, dtype=np.uint8) for seed in range(4)]
    out = [np.zeros_like(each) for each in data]
    with ThreadPoolExecutor(4) as threads:  # the work is done without the GIL, so they run side by side
        list(threads.map(lambda pair: upload.there_and_back(0, *pair, 1 << 18), zip(data, out, strict=True)))
    assert all((there == back).all() for there, back in zip(data, out, strict=True))
    try:
        upload.there_and_back(1000, data[0], out[0], 1 << 18)
    except accelrt.CudaError as error:
        print(error)
    print(f"Cython: 4 arrays there and back; {accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    if not accelrt.is_available():
        accelrt.init(driver="host")
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        main()
