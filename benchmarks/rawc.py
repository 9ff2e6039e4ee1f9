"""Builds the C programs of raw/: the same work on the driver API, without Python."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

RAW = Path(__file__).with_name("raw")
FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
TIMEOUT = 60  # seconds for one compilation


def include_folders() -> list[Path]:
    """Where cuda.h may be: in the toolkit, or in the PyPI package of the CUDA headers."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.append(Path(nvcc).resolve().parents[1])
    homes.append(Path("/usr/local/cuda"))
    package = importlib.util.find_spec("nvidia")
    homes += [Path(place) / "cu13" for place in (package.submodule_search_locations or [])] if package else []
    return [home / "include" for home in homes]


def cuda_include() -> Path:
    """The folder that holds cuda.h."""
    folders = include_folders()
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return folder
    raise FileNotFoundError("cuda.h is in none of " + ", ".join(map(str, folders)))


def driver_library() -> str:
    """The path of the driver's library, as the loader finds it: libcuda.so itself is often missing."""
    ctypes.CDLL("libcuda.so.1")
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "libcuda.so" in path:
            return path
    raise FileNotFoundError("libcuda.so.1 was loaded, but /proc/self/maps does not say from where")


def compiler() -> str:
    """The C compiler."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise FileNotFoundError("there is no C compiler: neither gcc nor cc")
    return found


def compile_program(source: Path, made: Path, *more: str) -> None:
    """Compiles one C file; raises with the compiler's words."""
    command = [compiler(), *FLAGS, "-I", str(cuda_include()), str(source), *more, "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"{source.name} did not compile: {done.stderr}")


def build(name: str, folder: Path) -> Path:
    """Builds raw/<name>.c in a folder.  Answers the program, which takes --quick and speaks as words.py says.

    Raises:
        OSError, RuntimeError: a compiler, cuda.h or the driver is missing, or the program does not compile.
    """
    program = folder / name
    compile_program(RAW / f"{name}.c", program, driver_library(), "-Wl,--allow-shlib-undefined")
    return program
