"""Builds the C or the C++ example as a shared library, loads it, and calls it: `python run.py c` or `cpp`.

CC and CXX name the compilers.
"""

import ctypes
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import accelrt

HERE = Path(__file__).parent
SIZE = ctypes.c_size_t
SUM = ctypes.POINTER(ctypes.c_uint64)


def build(source, compiler, standard, folder):
    """Compiles a source against accelrt's headers and library; returns the library, loaded."""
    path, library = Path(folder) / f"{source.stem}.so", accelrt.get_library()
    flags = ["-O2", standard, "-Wall", "-shared", "-fPIC", "-I", accelrt.get_include()]
    found = [library, f"-Wl,-rpath,{os.path.dirname(library)}"]
    subprocess.run([*shlex.split(compiler), *flags, "-o", path, source, *found], check=True)
    return ctypes.CDLL(str(path))


def run_c(folder):
    library = build(HERE / "checksum.c", os.environ.get("CC", "cc"), "-std=c99", folder)
    library.checksum.argtypes = [ctypes.c_int, ctypes.c_char_p, SIZE, SUM]
    library.explain.restype = ctypes.c_char_p
    data, found = bytes(range(256)) * 4096, ctypes.c_uint64()
    code = library.checksum(0, data, len(data), found)  # ctypes releases the GIL around it
    assert code == 0, library.explain(code).decode()
    assert found.value == sum(data)
    refused = library.checksum(1000, data, len(data), found)
    print(f"C: the sum is {found.value}; for device 1000 it said: {library.explain(refused).decode()}")


def run_cpp(folder):
    library = build(HERE / "replay.cpp", os.environ.get("CXX", "c++"), "-std=c++11", folder)
    library.replay.argtypes = [ctypes.c_int, ctypes.c_int, SIZE, SUM, ctypes.c_char_p, SIZE]
    found, text = ctypes.c_uint64(), ctypes.create_string_buffer(256)
    rounds, size = 100, 1 << 16
    code = library.replay(0, rounds, size, found, text, len(text))
    assert code == 0, text.value.decode()
    assert found.value == sum((1 + round_) * (size // 2) for round_ in range(rounds))
    assert library.replay(0, rounds, 1 << 50, found, text, len(text)) != 0
    print(f"C++: the sum is {found.value}; of 2**50 bytes it said: {text.value.decode()}")


if __name__ == "__main__":
    if not accelrt.is_available():
        accelrt.init(driver="host")
    with tempfile.TemporaryDirectory() as folder:
        {"c": run_c, "cpp": run_cpp}[sys.argv[1]](folder)
    print(f"{accelrt.memory_allocated()} bytes are still allocated")
