"""Builds accelrt's extensions; everything declarative stands in pyproject.toml.

ACCELRT_BUILD chooses release (the default), debug (no optimisation, C assertions, checked indexing),
or profile (release with symbols and line tracing).  ACCELRT_SANITIZE_BUILD=thread|address adds that
sanitizer.  cuda.h comes from CUDA_HOME or CUDA_PATH where they are set, else from the PyPI package of
the CUDA runtime's headers (of CUDA 13 or 12), else from /usr/local/cuda.  What else is needed, Cython and a
C compiler with Python's headers, is looked for before anything is compiled.
"""

import ast
import hashlib
import importlib.util
import itertools
import logging
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

ROOT = Path(__file__).parent
PACKAGE = (ROOT / "accelrt").resolve()
LIBRARY = "accelrt.lib.libaccelrt"
# What Cython would write into every module, once: functions that Python calls, arguments, imports, errors.
SHARED = "accelrt.core.cython_utilities"
NOT_SHARED = ("MemoryView",)  # which no module uses
# Modules whose functions users' projects cimport, and so compare by the texts of their signatures.
CIMPORTED = ("accelrt.api", "accelrt.status")
# What Cython before 3.3.1 writes for "x.attribute = value": the old value goes before the new one is there,
# so whatever runs at its end, and every thread that it lets on, would find an object that is gone.
OLD_VALUE_FIRST = re.compile(
    r"^( *)__Pyx_(X?)GOTREF\((.+)\);\n *__Pyx_\2DECREF\(\3\);\n *(.+->.+?) = (.+);$", re.MULTILINE
)
NEW_VALUE_FIRST = r"\1__Pyx_\2GOTREF(\3);\n\1__Pyx_\2DECREF_SET(\4, \5);"
# What Cython writes for a list comprehension: an element that the list has no memory for is let go of here,
# and once more by the caller.
DROPPED_TWICE = "int result = PyList_Append(list, x);\n    Py_DECREF(x);"
DROPPED_ONCE = "int result = PyList_Append(list, x);\n    if (likely(result == 0)) Py_DECREF(x);"
# What it writes for the end of a with statement: an exception has no traceback that there was no memory for.
TRACEBACK = re.compile(
    r"(__Pyx_XGOTREF\((__pyx_t_\d+)\);\s+\{\s+PyObject\* __pyx_temp\[3\] = \{__pyx_t_\d+, __pyx_t_\d+, )\2\}"
)
TRACEBACK_OR_NONE = r"\1(\2 ? \2 : Py_None)}"
# What writes sources: no part of a wheel.
NOT_INSTALLED = ("accelrt.core.stubgen", "accelrt.driver.rowgen", "accelrt.include.headergen")
CMAKE_VERSION = """\
set(PACKAGE_VERSION "%s")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""
PKG_CONFIG = """\
package=${pcfiledir}/../..
Name: accelrt
Description: The accelerator runtime of torch.cuda without torch
Version: %s
Cflags: -I${package}/include
Libs: -L${package}/lib -Wl,-rpath,${package}/lib -laccelrt
"""
SETTINGS_STUB = '''\
"""%(module)s"""
from collections.abc import Mapping
from inspect import Signature
from typing import Literal, Self

__all__ = ["AllocatorSettings"]

class AllocatorSettings:
    """%(doc)s"""
    text: str
    named: tuple[str, ...]
    __signature__: Signature
    def __init__(
        self,
        *,
%(arguments)s    ) -> None: ...
    @classmethod
    def parse(cls, text: str) -> Self:
        """%(parse)s"""
    def replace(
        self,
        *,
%(arguments)s    ) -> Self:
        """%(replace)s"""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
%(attributes)s
def with_values(settings: AllocatorSettings, values: Mapping[str, object]) -> AllocatorSettings:
    """%(with_values)s"""
'''
OLDEST_HEADERS = "12.3"  # the first with conditional nodes
KINDS = {
    "release": (["-O3", "-fno-tree-slp-vectorize", "-g0", "-fno-ident"], {}),
    "debug": (["-O0", "-g3"], {"boundscheck": True, "wraparound": True, "cdivision": False}),
    "profile": (["-O3", "-g", "-DCYTHON_TRACE_NOGIL=1"], {"linetrace": True}),
}
# No hot path runs through these: a release compiles them for size, a quarter to a third less, and without the
# names of their functions and the tables by which profilers and debuggers walk through them.  What allocates,
# copies, launches and replays keeps all three.
COLD = """
allocator.audit allocator.backing.pages allocator.external.external_pool allocator.private.routes
allocator.private.sleep allocator.readers arrays.managed core.process driver.cuda.memory driver.host.driver
driver.host.graphs driver.host.memory driver.registry driver.testing graphs.edits graphs.nodes
memory.history.recording memory.mempool memory.pool_checkpoint memory.reservation nccl.ranks nvml.library
resources.resource runtime.lifetimes sharing.mapping status
"""
# Calls that a history with C's frames walks through go by these, which keep what that needs.
WALKED = """
allocator.backing.pages allocator.external.external_pool allocator.private.routes arrays.managed
memory.history.recording memory.mempool memory.pool_checkpoint memory.reservation resources.resource
runtime.lifetimes
"""
UNWALKED = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
FOR_SIZE = [
    *("-Os", "-fomit-frame-pointer"),
    # From 3.12 on Python.h forces each count of references to be inline, a tenth of the code.
    "-Dalways_inline=unused",
    # Without Cython's short cuts to modules' globals, bound methods' functions, small integers' digits, the
    # thread's exception and the arguments of a class that is called.
    *("-DCYTHON_USE_DICT_VERSIONS=0", "-DCYTHON_UNPACK_METHODS=0", "-DCYTHON_USE_PYLONG_INTERNALS=0"),
    *("-DCYTHON_FAST_THREAD_STATE=0", "-DCYTHON_VECTORCALL_TPNEW=0"),
]
# Functions of the other modules through which no hot path runs either: they set up, refuse, describe.  They
# and Cython's own that raise or import are cold to the compiler: small, and calls of them out of the way.
RARE = """
allocator.external.torch_table answer_cache_info begin_share choose_home limit_fraction open_shared
allocator.external.torch_table prepare restore_state set_sharing share_block
allocator.pinned.cache add_pool change_pinned checked_limit checked_switch pinned_settings wait_all
allocator.pool make_pool want_settings
api write_refusal
arrays.array __array__ __reduce__ __repr__ astype feeds_queue provide_later provide_methods raise_dead
arrays.array raise_freed record_host_stream share unanswered wrap_numpy
arrays.copy raise_refused raise_scattered raise_shapes refuse_sides
arrays.exchange describe_object raise_device
devices.device __repr__ can_device_access_peer check_host get_device_capability get_device_name
devices.device get_device_properties
driver.cuda.driver describe_node exported open_driver resolve
driver.guard guard_table note_main_thread
graphs.bindings __init__ __reduce__ _bind allot bind blocks_of find graph_state memory_of moved_elsewhere
graphs.bindings nodes_to_bind place_of raise_changed raise_unfit read require_as_made require_made
graphs.bindings require_state same_place state_of take_over word_of work_of_node
graphs.graph __repr__ abandon begin_body begin_on capture_begin capture_body capture_end
graphs.graph debug_dump drop_bound edges enter_body if_ kernel_node_params make_exec make_instance
graphs.graph node_graph node_id nodes note_made refuse_sleeping register_capture_hook
graphs.graph register_capture_pre_hook register_destruction_hook register_generator_state
graphs.graph register_replay_hook register_replay_pre_hook reset take_over update_from upload while_
interop.cupy_memory __init__ __repr__ allocate_pinned connect
kernels.elementwise __init__ __reduce_ex__ __repr__ elementwise make_call refuse_count
kernels.kernel __init__ __repr__ available_dynamic_shared_memory explain find_global from_handle function
kernels.kernel function_of global_address host_kernel latest_kernels load make_kernel max_active_clusters
kernels.kernel max_potential_block_size max_potential_cluster_size name_suspects occupancy permit_shared
kernels.kernel raise_refused refuse refuse_asleep refuse_elsewhere set_attributes sleep
memory.caching __init__ ask audit backend_in_effect change_current_allocator checked_size_slow find_memory
memory.caching free_after get_per_process_memory_fraction memory_snapshot out_of_memory
memory.caching out_of_memory_to_wake raise_for_address raise_refusal register_free_memory_callback
memory.caching require_native select_backend set_per_process_memory_fraction tell_log unexplained
runtime.access await_uses before_wait_slow capture_of destroy_pool fingerprint free_in_pool is_blocking
runtime.access set_sync_debug_mode
streams.stream __repr__ clamped_priority default_of from_ipc_handle get_access_policy_window
streams.stream get_stream_from_external ipc_handle open_by_id priority_range reset_access_policy_window
streams.stream set_access_policy_window set_attributes
"""
RARE_OF_CYTHON = (  # the names of C functions
    r"__Pyx_(?:AddTraceback|CreateCodeObjectForTraceback|GetVtable|"
    r"ImportFromPxd_\w+|ImportFunction_\w+|ImportType_\w+|ImportVoidPtr_\w+|PyCode_New|WriteUnraisable|"
    r"copy_spec_to_module)"
)
DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": False,  # inspect.signature reads the functions themselves
    "freethreading_compatible": True,  # what the GIL guards elsewhere has locks: core/DESIGN.md
    "annotation_typing": False,  # annotations are for the stubs; types of C are declared as such
    "auto_pickle": False,  # a copy made field by field would own what the original owns
    # What a destructor cannot raise goes to sys.unraisablehook alone.  Cython would print it by PyErr_Print
    # before, which ends the process, in the middle of the destructor and on any thread, for a SystemExit.
    "unraisable_tracebacks": False,
}


def load_generator(folder, name):
    """A module of accelrt's that writes sources, imported without accelrt."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "accelrt" / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_version():
    """Writes the version of pyproject.toml for accelrt.__version__, CMake and pkg-config."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    write(ROOT / "accelrt/core/version.py", f'"""Written by setup.py."""\n\nVERSION = "{version}"\n')
    write(ROOT / "accelrt/lib/accelrt-config-version.cmake", CMAKE_VERSION % version)
    write(ROOT / "accelrt/lib/pkgconfig/accelrt.pc", PKG_CONFIG % version)


def write(path, text):
    """Writes a file; an unchanged one keeps its time."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def drop_orphans(package):
    """Deletes modules and stubs whose source is gone from the tree: Python would import them rather than a
    module of their name that is written in Python."""
    kept = {f"{SHARED.rpartition('.')[2]}.pyx", "__init__.pyx", "typed.pyx"}
    for path in [*package.rglob("*.cpython-*.so"), *package.rglob("*.pyi")]:
        source = path.with_name(f"{path.name.partition('.')[0]}.pyx")
        if source.name not in kept and not source.exists():
            path.unlink()


def write_stubs():
    """Writes what type checkers read of accelrt and of accelrt.memory, from the table of public names."""
    table = runpy.run_path(str(ROOT / "accelrt" / "core" / "names.py"))
    module_of, unlisted = table["module_of"], table["UNLISTED"].split()
    homes = dict.fromkeys([*table["MODULES"].split(), *unlisted], "")
    homes |= module_of(table["NOW"]) | module_of(table["LATER"]) | module_of(table["UNDERSCORED"])
    unlisted += module_of(table["UNDERSCORED"])
    write_stub("accelrt", homes, unlisted, "__version__: str\n")
    underscored = module_of(table["UNDERSCORED_MEMORY"])
    write_settings_stub()
    write_stub("accelrt/memory", module_of(table["MEMORY"]) | underscored, underscored)


def write_settings_stub():
    """Writes what type checkers read of AllocatorSettings, whose arguments are the settings string's keys."""
    folder = ROOT / "accelrt/allocator/settings"
    keys = runpy.run_path(str(folder / "keys.py"))
    types = {name: keys["type_of"](key) for name, key in keys["KEYS"].items()}
    no_limit = {name: keys["python_value"](key, key.default) is None for name, key in keys["KEYS"].items()}
    arguments = "".join(f"        {name}: {kind} | None = None,\n" for name, kind in types.items())
    attributes = "".join(
        f"    @property\n    def {name}(self) -> {kind}{' | None' * no_limit[name]}: ...\n"
        for name, kind in types.items()
    )
    source = ast.parse((folder / "typed.py").read_text())
    functions = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef)]
    texts = {each.name: ast.get_docstring(each, clean=False) for each in functions}
    texts |= {"module": ast.get_docstring(source), "doc": keys["document_settings"]()}
    write(folder / "typed.pyi", SETTINGS_STUB % {**texts, "arguments": arguments, "attributes": attributes})


def write_stub(package, homes, unlisted=(), more=""):
    """Writes the text, the imports of found, name -> module of accelrt ("" for itself), and __all__."""
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()), clean=False)
    sources = {name: f"accelrt.{module}" if module else "." for name, module in homes.items()}
    lines = [f"from {source} import {name} as {name}\n" for name, source in sources.items()]
    listed = "".join(f'    "{name}",\n' for name in homes if name not in unlisted)
    imports = f'"""{text}"""\n\n' + "".join(lines)
    write(ROOT / package / "__init__.pyi", imports + f"\n{more}__all__ = [\n{listed}]\n")


def check_tools():
    """Raises SystemExit that names all that the build needs and does not find."""
    python, include = "python{}.{}".format(*sys.version_info), Path(sysconfig.get_path("include"))
    lacks = []
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    count = 2 if Path(command[0]).name in ("ccache", "sccache") else 1
    if absent := [word for word in command[:count] if not shutil.which(word)]:
        lacks.append(
            f"a C compiler: {absent[0]} was not found. Install gcc (apt install gcc, or dnf install gcc), or "
            "name another compiler by the variable CC."
        )
    if not (include / "Python.h").is_file():
        lacks.append(
            f"Python.h, which is not in {include}. Install {python}-dev (by apt) or {python}-devel (by dnf)."
        )
    if not importlib.util.find_spec("Cython"):
        lacks.append("Cython. Install the PyPI package 'cython>=3.1,<4', or build with build isolation.")
    try:
        cuda_include()
    except SystemExit as error:
        lacks.append(str(error))
    if lacks:
        raise SystemExit("accelrt cannot be built here. What is missing:\n- " + "\n- ".join(lacks))


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


def headers_version(folder):
    """The version of CUDA that the headers of a folder are of, as text."""
    match = re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text(errors="replace"))
    number = int(match[1]) if match else 0
    return f"{number // 1000}.{number % 1000 // 10}"


def check_headers(folder):
    """Raises SystemExit where the headers are older than what accelrt's sources name, or incomplete."""
    version = headers_version(folder)
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
    # Cython would compress a module's texts, which costs time at import; a wheel compresses them better.
    flags += ["-DCYTHON_COMPRESS_STRINGS=0"]
    flags += ["-DCYTHON_SMALL_CODE=__attribute__((cold))"]  # which Cython defines too late for make_rare_cold
    # Else there is up to a page of padding between a library's parts, and a second table of its names.
    links = ["-pthread", "-Wl,-z,noseparate-code", "-Wl,--hash-style=gnu"]
    if sanitizer := os.environ.get("ACCELRT_SANITIZE_BUILD"):
        flags += [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-g"]
        links += [f"-fsanitize={sanitizer}"]
    elif kind == "release" and name in COLD.split():
        flags += FOR_SIZE if name in WALKED.split() else FOR_SIZE + UNWALKED
        links += ["-Wl,--strip-all"]
    return {"extra_compile_args": flags, "extra_link_args": links}


def c_library(kind):
    """The C API as a shared library, which is no module of Python's and links none of it."""
    library = Extension(
        LIBRARY, ["accelrt/lib/libaccelrt.c"], include_dirs=["accelrt/include"], **options(kind)
    )
    library.depends = ["accelrt/lib/loader.h", "accelrt/include/accelrt.h"]
    library.extra_link_args += ["-Wl,-soname,libaccelrt.so", "-ldl"]
    return library


def shared_module(kind):
    """The module of Cython's own functions, in a list; an older Cython writes them into every module."""
    import Cython  # late: check_tools says so where there is none

    if version_pair(".".join(Cython.__version__.split(".")[:2])) < (3, 3):
        return []
    source = f"{SHARED.replace('.', '/')}.c"  # which Cython writes
    return [Extension(SHARED, [source], **options(kind, SHARED.removeprefix("accelrt.")))]


def extension(path, kind):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module_options = options(kind, name.removeprefix("accelrt."))
    module = Extension(name, [str(path.relative_to(ROOT))], **module_options)
    if name.startswith("accelrt.driver.cuda"):
        module.include_dirs = [cuda_include()]
    return module


def write_shared_module(source, force):
    """Has Cython write the module of its own functions, unless this version of Cython has."""
    from Cython.Build.SharedModule import generate_shared_module
    from Cython.Compiler.Options import CompilationOptions
    from Cython.Utils import file_generated_by_this_cython

    if force or not file_generated_by_this_cython(source):
        generate_shared_module(
            CompilationOptions(
                shared_c_file_path=source,
                module_name=SHARED,
                compiler_directives=directives(),
                shared_utility_features_disabled=NOT_SHARED,
            )
        )


def digest_signatures():
    """Has Cython write digests of the signatures that modules know each other's functions by: the texts are a
    seventieth of what a wheel installs, which has no declarations to cimport but those of CIMPORTED."""
    from Cython.Compiler.ModuleNode import ModuleNode
    from Cython.Compiler.PyrexTypes import CFuncType

    text = CFuncType.signature_string

    def digest(signature):
        return hashlib.sha256(text(signature).encode()).hexdigest()[:6]

    def digesting(generate):
        def generate_digesting(node, scope, *arguments):
            CFuncType.signature_string = text if scope.qualified_name in CIMPORTED else digest
            generate(node, scope, *arguments)
            CFuncType.signature_string = text

        return generate_digesting

    for name in ("generate_c_function_export_code", "generate_c_function_import_code_for_module"):
        setattr(ModuleNode, name, digesting(getattr(ModuleNode, name)))
    multiprocessing.set_start_method("fork", force=True)  # those who translate beside this process do it too


def mend_references(source):
    """Has the C of a module store an attribute's new value before the old one goes, as Cython 3.3.1 does, let
    go of an element once, and leave a with statement without a traceback."""
    path = ROOT / source
    text = OLD_VALUE_FIRST.sub(NEW_VALUE_FIRST, path.read_text()).replace(DROPPED_TWICE, DROPPED_ONCE)
    write(path, TRACEBACK.sub(TRACEBACK_OR_NONE, text))


def make_rare_cold(name, source):
    """Has the C of a module below accelrt call cold what no hot path runs through."""
    mangled = "".join(f"_{len(part)}{part}" for part in ("accelrt", *name.split(".")))
    rows = [line.split() for line in RARE.splitlines()]
    names = "|".join(function for module, *functions in rows[1:] for function in functions if module == name)
    own = rf"__pyx_(?:pw|pf|f){mangled}_(?:\d+[A-Za-z]\w*?_)?\d*(?:{names or 'none'})"
    declaration = rf"^static (?!CYTHON_SMALL_CODE)(?=[^;(=]*\b(?:{RARE_OF_CYTHON}|{own})\()"
    path = ROOT / source
    text = re.sub(declaration, "static CYTHON_SMALL_CODE ", path.read_text(), flags=re.MULTILINE)
    write(path, text)


class Stamp:
    """What results were built with, in a file of the build folder."""

    def __init__(self, path, facts):
        self.path, self.text = Path(path), repr(facts)

    def differs(self):
        """Whether the results are of another build, or one that did not end; without a file they are not."""
        return self.path.exists() and self.path.read_text() != self.text

    def write(self, text=None):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.text if text is None else text)


class ParallelBuild(build_ext):
    """Compiles what changed side by side, on every core unless -j says otherwise, and counts the modules.

    An editable install builds in a folder of its own that goes afterwards.  So modules in the tree that are
    newer than their sources are taken from there.
    """

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        if not self.inplace:
            self.extensions = [module for module in self.extensions if module.name not in NOT_INSTALLED]
        base, kept = self.get_finalized_command("build").build_base, sysconfig.get_config_var("SOABI")
        flags = [
            (module.name, module.extra_compile_args, module.extra_link_args) for module in self.extensions
        ]
        variables = {name: os.environ.get(name) for name in ("CFLAGS", "CPPFLAGS", "LDFLAGS")}
        facts = (flags, variables, headers_version(Path(cuda_include())))
        ships = not (self.inplace or self.editable_mode)
        if ships:
            digest_signatures()
        sources = Stamp(f"{base}/sources.stamp", (directives(), NOT_SHARED, *["digests"] * ships))
        stamps = [sources, Stamp(f"{self.build_temp}/modules.stamp", facts)]
        stamps += [Stamp(f"{base}/inplace-{kept}.stamp", facts)] * bool(self.inplace)
        self.translate(sources.differs())
        self.force = self.force or stamps[1].differs()
        if self.inplace and not self.force and not stamps[2].differs():
            self.take_from_tree()
        for stamp in stamps:
            if stamp.differs():
                stamp.write("")  # until this build has ended
        self.changed = [module for module in self.extensions if self.is_behind(module)]
        self.count = itertools.count(1)
        super().run()
        for stamp in stamps:
            stamp.write()

    def translate(self, force):
        """Has Cython write the C of what changed."""
        import Cython  # late: where there is none, check_tools says so
        from Cython.Build import Dependencies, cythonize

        # Cython translates anew what another version of it wrote.  Its own declarations are as new as their
        # installation, which for a build in isolation is now.
        theirs, timestamp = str(Path(Cython.__file__).parent), Dependencies.DependencyTree.timestamp
        Dependencies.DependencyTree.timestamp = lambda tree, path: (
            0 if str(path).startswith(theirs) else timestamp(tree, path)
        )
        modules = [module for module in self.extensions if module.name != LIBRARY]
        options = {"compiler_directives": directives(), "nthreads": self.parallel, "force": force or None}
        if modules[-1].name == SHARED:
            options["shared_utility_qualified_name"] = SHARED
            write_shared_module(modules.pop().sources[0], force)
        for module, translated in zip(
            modules, cythonize(modules, include_path=[str(ROOT)], **options), strict=True
        ):
            module.sources, module.include_dirs = translated.sources, translated.include_dirs
            mend_references(module.sources[0])
            make_rare_cold(module.name.removeprefix("accelrt."), module.sources[0])
            # Not CUDA's headers, which are as new as their installation too: their version counts.
            module.depends = [path for path in translated.depends if PACKAGE in Path(path).resolve().parents]

    def take_from_tree(self):
        """Copies modules of the tree, with their times, to where they would be built, if they are newer."""
        for module in self.extensions:
            in_tree, built = ROOT / self.get_ext_filename(module.name), self.built_file(module)
            if in_tree.exists() and newer_group([str(in_tree)], str(built)):
                built.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(in_tree), str(built))

    def built_file(self, module):
        return Path(self.build_lib, self.get_ext_filename(module.name))

    def is_behind(self, module):
        return self.force or newer_group(
            [*module.sources, *module.depends], str(self.built_file(module)), "newer"
        )

    def build_extension(self, module):
        super().build_extension(module)
        if module in self.changed:
            self.announce(f"[{next(self.count)}/{len(self.changed)}] {module.name}", logging.INFO)

    def get_ext_filename(self, name):
        # The C library has no version of Python in its name.  It is asked for with and without its package.
        if name in (LIBRARY, LIBRARY.rpartition(".")[2]):
            return f"{name.replace('.', os.sep)}.so"
        return super().get_ext_filename(name)


class PackagedTrace(build_py):
    """Puts the demo's trace into the package; in the repository the demo finds it where the benchmarks do."""

    def find_package_modules(self, package, folder):
        modules = super().find_package_modules(package, folder)
        return [
            module for module in modules if self.editable_mode or ".".join(module[:2]) not in NOT_INSTALLED
        ]

    def run(self):
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "accelrt", "tools", "cli")
            self.mkpath(str(folder))
            self.copy_file(str(ROOT / "benchmarks" / "traces" / "gpt2.npz"), str(folder / "gpt2.npz"))


def kind_of_build():
    kind = os.environ.get("ACCELRT_BUILD", "release")
    if kind not in KINDS:
        raise SystemExit(f"ACCELRT_BUILD={kind!r} is not known; it may be {', '.join(KINDS)}")
    return kind


def directives():
    return {**DIRECTIVES, **KINDS[kind_of_build()][1]}


def extensions():
    kind = kind_of_build()
    check_tools()
    drop_orphans(PACKAGE)
    write_version()
    load_generator("driver", "rowgen").write_all()
    load_generator("include", "headergen").write_all()
    write_stubs()
    load_generator("core", "stubgen").write_all()
    paths = sorted((ROOT / "accelrt").rglob("*.pyx"))
    return [*(extension(path, kind) for path in paths), *shared_module(kind), c_library(kind)]


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild, "build_py": PackagedTrace})
