"""Builds accelrt's extensions; everything declarative stands in pyproject.toml.

ACCELRT_BUILD chooses release (the default), debug (no optimisation, C assertions, checked indexing),
or profile (release with symbols and line tracing).  ACCELRT_SANITIZE_BUILD=thread|address adds that
sanitizer.  cuda.h comes from CUDA_HOME or CUDA_PATH where they are set, else from the PyPI package of
the CUDA runtime's headers (of CUDA 13 or 12), else from /usr/local/cuda.
"""

import importlib.util
import os
import re
import runpy
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LIBRARY = "accelrt.lib.libaccelrt"
OLDEST_HEADERS = "12.3"  # the first with conditional nodes
KINDS = {
    "release": (["-O3", "-fno-tree-slp-vectorize", "-g0"], {}),
    "debug": (["-O0", "-g3"], {"boundscheck": True, "wraparound": True, "cdivision": False}),
    "profile": (["-O3", "-g", "-DCYTHON_TRACE_NOGIL=1"], {"linetrace": True}),
}
# No hot path runs through these: a release compiles them for size, a quarter less, and without the names of
# their functions, which a profiler would show.  What allocates, copies, launches and replays keeps both.
COLD = """
allocator.audit core.process driver.registry driver.testing memory.history.plain_pickle memory.live
memory.mempool nccl.host_for_tests nvml.library readings.nvml_calls sharing.mapping status
"""
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": False,  # inspect.signature reads the functions themselves
    "freethreading_compatible": False,
    "annotation_typing": False,  # annotations are for the stubs; types of C are declared as such
    "auto_pickle": False,  # a copy made field by field would own what the original owns
}


def load_generator(folder, name):
    """A module of accelrt's that writes sources, imported without accelrt."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "accelrt" / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_stubs():
    """Writes what type checkers read of accelrt and of accelrt.memory, from the table of public names."""
    table = runpy.run_path(str(ROOT / "accelrt" / "core" / "names.py"))
    module_of, unlisted = table["module_of"], table["UNLISTED"].split()
    found = dict.fromkeys([*table["MODULES"].split(), *unlisted], "")
    found |= module_of(table["NOW"]) | module_of(table["LATER"]) | module_of(table["UNDERSCORED"])
    unlisted += module_of(table["UNDERSCORED"])
    write_stub("accelrt", found, unlisted, "__version__: str\n")
    underscored = module_of(table["UNDERSCORED_MEMORY"])
    write_stub("accelrt/memory", module_of(table["MEMORY"]) | underscored, underscored)


def write_stub(package, found, unlisted=(), more=""):
    """Writes the imports of found, name -> module of accelrt ("" for accelrt itself), and __all__."""
    sources = {name: f"accelrt.{module}" if module else "." for name, module in found.items()}
    lines = [f"from {source} import {name} as {name}\n" for name, source in sources.items()]
    listed = "".join(f'    "{name}",\n' for name in found if name not in unlisted)
    text, path = "".join(lines) + f"\n{more}__all__ = [\n{listed}]\n", ROOT / package / "__init__.pyi"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def cuda_include():
    """The folder that holds cuda.h."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec else []
    packaged = [f"{root}/{name}" for root in roots for name in ("cu13", "cuda_runtime")]
    folders = [Path(home, "include") for home in (*homes, *packaged, "/usr/local/cuda")]
    for folder in folders:
        if (folder / "cuda.h").is_file():
            check_headers(folder)
            return str(folder)
    raise SystemExit(
        "cuda.h was not found in " + ", ".join(map(str, folders)) + "; install the PyPI package "
        f"nvidia-cuda-runtime, or set CUDA_HOME to a toolkit of CUDA {OLDEST_HEADERS} or later. "
        "No GPU is needed."
    )


def check_headers(folder):
    """Raises SystemExit where the headers are older than what accelrt's sources name, or incomplete."""
    found = re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text(errors="replace"))
    number = int(found[1]) if found else 0
    version = f"{number // 1000}.{number % 1000 // 10}"
    advice = "install the PyPI package nvidia-cuda-runtime, or set CUDA_HOME to a newer toolkit"
    if version_pair(version) < version_pair(OLDEST_HEADERS):
        raise SystemExit(
            f"{folder}/cuda.h is of CUDA {version}; accelrt needs the headers of CUDA {OLDEST_HEADERS} "
            f"or later: {advice}."
        )
    if not (folder / "cudaTypedefs.h").is_file():
        raise SystemExit(f"{folder} has cuda.h of CUDA {version} but no cudaTypedefs.h; {advice}.")


def version_pair(text):
    return tuple(map(int, text.split(".")))


def options(kind, name=""):
    """What the compiler and the linker are given for the module of a name below accelrt."""
    flags = [*KINDS[kind][0], "-fvisibility=hidden", "-pthread", "-std=c11"]
    links = ["-pthread", "-Wl,-z,noseparate-code"]  # else up to a page of padding between a library's parts
    if sanitizer := os.environ.get("ACCELRT_SANITIZE_BUILD"):
        flags += [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g"]
        links += [f"-fsanitize={sanitizer}"]
    elif kind == "release" and name in COLD.split():
        flags += ["-Os"]
        links += ["-Wl,--strip-all"]
    return {"extra_compile_args": flags, "extra_link_args": links}


def c_library(kind):
    """The C API as a shared library, which is no module of Python's and links none of it."""
    made = Extension(LIBRARY, ["accelrt/lib/libaccelrt.c"], include_dirs=["accelrt/include"], **options(kind))
    made.depends = ["accelrt/lib/loader.h", "accelrt/include/accelrt.h"]
    made.extra_link_args += ["-Wl,-soname,libaccelrt.so", "-ldl"]
    return made


def extension(path, kind):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module_options = options(kind, name.removeprefix("accelrt."))
    made = Extension(name, [str(path.relative_to(ROOT))], **module_options)
    if name.startswith("accelrt.driver.cuda"):
        made.include_dirs = [cuda_include()]
    return made


class ParallelBuild(build_ext):
    """Compiles the extensions side by side, on every core unless -j says otherwise."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def get_ext_filename(self, name):
        # The C library has no version of Python in its name.  It is asked for with and without its package.
        if name in (LIBRARY, LIBRARY.rpartition(".")[2]):
            return f"{name.replace('.', os.sep)}.so"
        return super().get_ext_filename(name)


class PackagedTrace(build_py):
    """Puts the demo's trace into the package; in the repository the demo finds it where the benchmarks do."""

    def run(self):
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "accelrt", "tools", "cli")
            self.mkpath(str(folder))
            self.copy_file(str(ROOT / "benchmarks" / "traces" / "gpt2.npz"), str(folder / "gpt2.npz"))


def extensions():
    kind = os.environ.get("ACCELRT_BUILD", "release")
    if kind not in KINDS:
        raise SystemExit(f"ACCELRT_BUILD={kind!r} is not known; it may be {', '.join(KINDS)}")
    load_generator("driver", "rowgen").write_all()
    load_generator("include", "headergen").write_all()
    write_stubs()
    load_generator("core", "stubgen").write_all()
    made = [extension(path, kind) for path in sorted((ROOT / "accelrt").rglob("*.pyx"))]
    directives = {**DIRECTIVES, **KINDS[kind][1]}
    compiled = cythonize(
        made, compiler_directives=directives, nthreads=os.cpu_count() or 1, include_path=[str(ROOT)]
    )
    return [*compiled, c_library(kind)]


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild, "build_py": PackagedTrace})
