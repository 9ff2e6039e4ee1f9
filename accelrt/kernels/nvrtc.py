"""NVRTC, through cuda.bindings, which finds and loads it when it is first called."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core import files
from accelrt.errors import CompileError, CompilerNotFoundError
from accelrt.kernels.apart import call_apart
from accelrt.kernels.diagnostics import error_text
from accelrt.kernels.image import ModuleImage
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

ADVICE = (
    "pip install 'accelrt[kernels]' brings it; with cuda-bindings 12 it is 'accelrt[kernels-cu12]' "
    "(cuda-bindings takes NVRTC and nvJitLink of its own major version)"
)
NOWHERE = "/dev/null/"  # a folder that cannot be there
# The getters of an image; one with "Size" after the name tells its bytes.
GETTERS = {"cubin": "nvrtcGetCUBIN", "ptx": "nvrtcGetPTX", "ltoir": "nvrtcGetLTOIR"}

_loaded: Compiler | None = None


class Compiler(NamedTuple):
    """The NVRTC of this process.

    Attributes:
        version: pair of int, as nvrtcVersion gives it.
        path: str, the library's file; "" where it is not known.
        stamp: bytes, changes where another library is installed: the file's size and time.
        numbers: tuple of int, the architectures that it makes machine code for, such as 90.
    """

    version: tuple[int, int]
    path: str
    stamp: bytes
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"


class Program(NamedTuple):
    """A source to compile, and how.

    Attributes:
        text: str, the source.  name: str, what messages call it.
        headers: mapping of str, from what an #include says to the header's text.
        folders: sequence of str, where other headers are looked for.
        options: sequence of str.  arch: str.  kind: str, of KINDS.
        expressions: sequence of str, whose lowered names are wanted.
    """

    text: str
    name: str
    headers: Mapping[str, str]
    folders: Sequence[str]
    options: Sequence[str]
    arch: str
    kind: str
    expressions: Sequence[str]


def load() -> Compiler:
    """NVRTC, loaded at the first call.

    Raises:
        CompilerNotFoundError: it is not installed.
    """
    global _loaded
    if _loaded is None:
        major, minor = map(int, call("nvrtcVersion"))
        (numbers,) = call("nvrtcGetSupportedArchs")
        path = path_of_loaded("libnvrtc.so")
        _loaded = Compiler((major, minor), path, files.stamp(path), tuple(map(int, numbers)))
    return _loaded


def path_of_loaded(name: str) -> str:
    """The file of a library that this process has loaded; "" where it has none of that name."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            path = line[line.find("/") :].rstrip("\n") if "/" in line else ""
            if os.path.basename(path).startswith(name):
                return path
    return ""


def toolkit_folders(compiler: Compiler) -> list[str]:
    """The folders of an NVRTC's headers, such as cuda_fp16.h: those beside it, else those that
    cuda.pathfinder finds, which may take longer than to compile a kernel."""
    above = os.path.dirname(os.path.dirname(os.path.realpath(compiler.path)))
    beside = [
        os.path.join(above, "include"),  # of a toolkit, and of CUDA 13's packages
        os.path.join(os.path.dirname(above), "cuda_runtime", "include"),  # of CUDA 12's packages
        os.path.join(os.path.dirname(above), "..", "include"),  # of a toolkit's targets/
    ]
    folders = [folder for folder in beside if os.path.isfile(os.path.join(folder, "cuda_fp16.h"))][:1]
    if not folders:
        elsewhere = header_folder("cudart")
        folders = [elsewhere] if elsewhere and is_of(elsewhere, compiler.version[0]) else []
    if not folders:
        return []
    beside = [os.path.join(folders[0], "cccl"), os.path.join(os.path.dirname(above), "cuda_cccl", "include")]
    cccl = [folder for folder in beside if os.path.isdir(folder)] or [header_folder("cccl") or ""]
    folders += filter(None, cccl[:1])
    return [os.path.abspath(folder) for folder in folders]


def is_of(folder: str, major: int) -> bool:
    """Tells whether the headers of a folder are of a CUDA of that number."""
    try:
        with open(os.path.join(folder, "cuda.h"), errors="replace") as file:
            version = re.search(r"#define CUDA_VERSION (\d+)", file.read())
    except OSError:
        return False
    return version is not None and int(version[1]) // 1000 == major


def header_folder(name: str) -> str | None:
    try:
        folder: str | None = init.later("cuda.pathfinder").find_nvidia_header_directory(name)
    except (ImportError, AttributeError, RuntimeError, ValueError):  # no pathfinder, or an old one
        return None
    return folder


def call(name: str, *arguments: Any) -> tuple[Any, ...]:
    """The results of a function of NVRTC; Failure where it fails."""
    try:
        code, *results = getattr(init.later("cuda.bindings.nvrtc"), name)(*arguments)
    except (ImportError, RuntimeError) as error:  # no bindings, or no library
        raise CompilerNotFoundError(
            f"NVRTC, CUDA's compiler at run time, was not found ({reason_of(error)}): {ADVICE}"
        ) from error
    if int(code):
        raise Failure(name, getattr(code, "name", str(code)))
    return tuple(results)


def reason_of(error: Exception) -> str:
    """The first line of what cuda.bindings says."""
    return (str(error) or type(error).__name__).splitlines()[0].strip(" :.")


class Failure(Exception):
    """A function of NVRTC failed; becomes a CompileError where the log is at hand."""

    def __init__(self, function: str, name: str) -> None:
        super().__init__(f"{function} answered {name}")


def compile_program(program: Program) -> ModuleImage:
    """Compiles it.

    Raises:
        CompileError: the compiler refused it.
        CompilerNotFoundError: NVRTC is not installed.
    """
    compiler = load()
    return call_apart(lambda _: compile_with(compiler, program))


def compile_with(compiler: Compiler, program: Program) -> ModuleImage:
    names = [name.encode() for name in program.headers]
    texts = [text.encode() for text in program.headers.values()]
    try:
        (handle,) = call(
            "nvrtcCreateProgram",
            program.text.encode(errors="surrogateescape"),
            called(program).encode(errors="surrogateescape"),
            len(names),
            texts or None,
            names or None,
        )
    except Failure as failure:
        raise CompileError(f"{compiler.name}: {failure}", "", program.name, compiler.name) from None
    try:
        return compile_handle(handle, program, compiler)
    finally:
        call("nvrtcDestroyProgram", handle)


def called(program: Program) -> str:
    """The name that the compiler is told.

    It looks for what a source includes in the folder of the source's name, or in the working folder where
    the name has none; a key of the cache knows neither.  (--no-source-include would forbid headers to include
    what lies beside them too.)
    """
    return program.name if os.path.dirname(program.name) in program.folders else NOWHERE + program.name


def compile_handle(handle: Any, program: Program, compiler: Compiler) -> ModuleImage:
    options = options_of(program)
    try:
        for expression in program.expressions:
            call("nvrtcAddNameExpression", handle, expression.encode())
        call("nvrtcCompileProgram", handle, len(options), options)
        lowered = {
            expression: call("nvrtcGetLoweredName", handle, expression.encode())[0].decode()
            for expression in program.expressions
        }
        (size,) = call(f"{GETTERS[program.kind]}Size", handle)
        data = bytearray(size)
        call(GETTERS[program.kind], handle, data)
    except Failure as failure:
        log = log_of(handle)
        text = error_text(log, {program.name: program.text, **program.headers}) or str(failure)
        raise CompileError(
            f"{compiler.name} refused {program.name} for {program.arch}:\n{text}",
            log,
            program.name,
            compiler.name,
        ) from None
    return ModuleImage(bytes(data), program.kind, program.arch, lowered, log_of(handle), compiler.name)


def options_of(program: Program) -> list[bytes]:
    options = [*program.options, f"--gpu-architecture={program.arch}"]
    if program.kind == "ltoir":
        options.append("--dlink-time-opt")
    options += [f"--include-path={folder}" for folder in program.folders]
    return [option.encode(errors="surrogateescape") for option in options]


def log_of(handle: Any) -> str:
    (size,) = call("nvrtcGetProgramLogSize", handle)
    if size <= 1:
        return ""
    log = bytearray(size)
    call("nvrtcGetProgramLog", handle, log)
    text = log.rstrip(b"\0").decode(errors="replace")
    return text.replace(NOWHERE, "").strip("\n")
