"""Builds accelrt's extensions; everything declarative stands in pyproject.toml.

ACCELRT_BUILD chooses release (the default), debug (no optimisation, C assertions, checked indexing),
or profile (release with symbols and line tracing).  ACCELRT_SANITIZE_BUILD=thread|address adds that
sanitizer.  cuda.h comes from CUDA_HOME or CUDA_PATH where they are set, else from the PyPI package of
the CUDA runtime's headers, else from /usr/local/cuda.
"""

import importlib.util
import os
import sys
from importlib.metadata import version
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
KINDS = {
    "release": (["-O3", "-fno-tree-slp-vectorize", "-g0"], {}),
    "debug": (["-O0", "-g3"], {"boundscheck": True, "wraparound": True, "cdivision": False}),
    "profile": (["-O3", "-g", "-DCYTHON_TRACE_NOGIL=1"], {"linetrace": True}),
}
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "freethreading_compatible": False,
    "auto_pickle": False,  # a copy made field by field would own what the original owns
}


def load_rowgen():
    spec = importlib.util.spec_from_file_location("rowgen", ROOT / "accelrt" / "driver" / "rowgen.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["rowgen"] = module
    spec.loader.exec_module(module)
    return module


def cuda_include():
    """The folder that holds cuda.h."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    spec = importlib.util.find_spec("nvidia")
    packaged = [f"{folder}/cu13" for folder in spec.submodule_search_locations] if spec else []
    folders = [Path(home, "include") for home in (*homes, *packaged, "/usr/local/cuda")]
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return str(folder)
    raise SystemExit(
        "cuda.h was not found in " + ", ".join(map(str, folders)) + "; install the PyPI package "
        "nvidia-cuda-runtime of CUDA 13, or set CUDA_HOME to a CUDA 13 toolkit. No GPU is needed."
    )


def extension(path, kind):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    flags, links = [*KINDS[kind][0], "-fvisibility=hidden", "-pthread", "-std=c11"], ["-pthread"]
    if sanitizer := os.environ.get("ACCELRT_SANITIZE_BUILD"):
        flags += [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g"]
        links += [f"-fsanitize={sanitizer}"]
    made = Extension(name, [str(path.relative_to(ROOT))], extra_compile_args=flags, extra_link_args=links)
    if name.startswith("accelrt.driver.cuda"):
        made.include_dirs = [cuda_include()]
        if tuple(map(int, version("cuda-bindings").split(".")[:2])) >= (13, 5):
            made.language = "c++"  # the .pxd files of 13.5 on hold C++
            flags.remove("-std=c11")
    return made


class ParallelBuild(build_ext):
    """Compiles the extensions side by side, on every core unless -j says otherwise."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()


class PackagedTrace(build_py):
    """Puts the demo's trace into the package; in the repository the demo finds it where the benchmarks do."""

    def run(self):
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "accelrt", "cli")
            self.mkpath(str(folder))
            self.copy_file(str(ROOT / "benchmarks" / "traces" / "gpt2.npz"), str(folder / "gpt2.npz"))


def extensions():
    kind = os.environ.get("ACCELRT_BUILD", "release")
    if kind not in KINDS:
        raise SystemExit(f"ACCELRT_BUILD={kind!r} is not known; it may be {', '.join(KINDS)}")
    load_rowgen().write_all()
    made = [extension(path, kind) for path in sorted((ROOT / "accelrt").rglob("*.pyx"))]
    directives = {**DIRECTIVES, **KINDS[kind][1]}
    return cythonize(
        made, compiler_directives=directives, nthreads=os.cpu_count() or 1, include_path=[str(ROOT)]
    )


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild, "build_py": PackagedTrace})
