"""Kernels compiled from source at run time, and linked; each result is kept for later (cache.py)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from accelrt.annotations import DeviceArgument
from accelrt.core import files
from accelrt.devices.device import get_device_capability
from accelrt.errors import CompileError
from accelrt.kernels import cache as image_cache
from accelrt.kernels import host_compiler, host_cuda, includes, jitlink, known_compiler, nvrtc
from accelrt.kernels.image import KINDS, MOST_BYTES, ModuleImage, arch_name, arch_number
from accelrt.kernels.kernel import Module
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    Source: TypeAlias = str | bytes | os.PathLike[str]
    Compiler: TypeAlias = nvrtc.Compiler | host_compiler.Compiler

__all__ = ["ModuleImage", "compile", "compile_image", "link_images"]

ARCH_OPTION = re.compile(r"--?(gpu-architecture|arch)(=|$)")
HOST = "host"  # the architecture of the host device
LTO_OPTION = re.compile(r"--?(dlink-time-opt|dlto)$")


class DeviceArch(str):
    """A device's architecture: where the compiler is older than the device, PTX does as well."""


class Request(NamedTuple):
    """A request to compile, checked.

    Attributes:
        texts: dict from each source's name to its text.
        folders: list of str, the folders where headers are looked for.
        exact: bool, False where the architecture is a device's, so that PTX will do.
    The others are compile_image's arguments.
    """

    texts: dict[str, str]
    folders: list[str]
    exact: bool
    arch: str
    kind: str
    options: tuple[str, ...]
    headers: dict[str, str]
    expressions: tuple[str, ...]
    link_options: tuple[str, ...]


def read_sources(source: Source | Sequence[Source], name: str | None) -> tuple[dict[str, str], list[str]]:
    """The texts by their names, and the folders of those that are files."""
    sources: list[Any] = list(source) if isinstance(source, (list, tuple)) else [source]
    if not sources:
        raise ValueError("source is empty; give at least one source")
    texts: dict[str, str] = {}
    folders = []
    for number, each in enumerate(sources, 1):
        called = name or "kernel.cu"
        text: object = each
        if isinstance(each, os.PathLike):
            path = os.path.abspath(each)
            text = files.read(path, MOST_BYTES)
            folders.append(os.path.dirname(path))
            called = name or path
        if called in texts:
            called = f"{called}:{number}"
        texts[text_of(called, "name")] = text_of(text, "source")
    return texts, folders


def text_of(value: object, what: str) -> str:
    """A text that a C string can hold; errors call it what."""
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} is text, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL character, at which the compiler would stop reading")
    return value


def texts_of(values: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{what} is a sequence of str, such as ({values!r},), not one str")
    return tuple(text_of(value, what) for value in values)


def compile(
    source: Source | Sequence[Source],
    *,
    arch: str | int | tuple[int, int] | None = None,
    kind: str | None = None,
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    include_paths: Sequence[str | os.PathLike[str]] = (),
    name_expressions: Sequence[str] = (),
    link_options: Sequence[str] = (),
    name: str | None = None,
    cache: bool = True,
    device: DeviceArgument | None = None,
) -> Module:
    """Compiles CUDA C++ and loads it onto a device.

    NVRTC compiles for a GPU, the system's C++ compiler for the host device, where the threads of a block run
    in turn (docs/guide/host_and_gpu.md says what they lack).

        module = accelrt.compile(source, name_expressions=["scale<float>"])
        scale = module.function("scale<float>")

    Arguments:
        arch: as compile_image takes it; None for the device's.  The host device takes no notice of it.
        kind: str, "cubin" or "ptx", which the driver compiles when it loads it; the same.
        device: int, "cuda:1", an object with an index; None is the current device.
        The others are compile_image's.
    Returns:
        Module.
    Raises:
        Those of compile_image and of Module.
    """
    if kind == "ltoir":
        raise ValueError(
            "kind='ltoir' is not loaded before link_images; leave kind out, or use compile_image"
        )
    on_host = is_host_chosen(device)
    image = compile_image(
        source,
        arch="host" if on_host else device_arch(device) if arch is None else arch,
        kind=None if on_host else kind,
        options=options,
        headers=headers,
        include_paths=include_paths,
        name_expressions=name_expressions,
        link_options=link_options,
        name=name,
        cache=cache,
    )
    return Module(image, device)


def compile_image(
    source: Source | Sequence[Source],
    *,
    arch: str | int | tuple[int, int] | None = None,
    kind: str | None = None,
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    include_paths: Sequence[str | os.PathLike[str]] = (),
    name_expressions: Sequence[str] = (),
    link_options: Sequence[str] = (),
    name: str | None = None,
    cache: bool = True,
) -> ModuleImage:
    """Compiles CUDA C++ by NVRTC, or for the host device by the system's C++ compiler.

    It needs no GPU where arch is given.

    Headers of CUDA's toolkit, such as cuda_fp16.h, are found where they are installed.  Several sources are
    compiled to LTO-IR each and linked by nvJitLink, which optimises across them.

    Arguments:
        source: str or bytes, the text; or a path, whose folder is searched for what it includes; or a list or
            tuple of these.
        arch: str, int or pair, what to compile for: "sm_90", 90 or (9, 0) for machine code, "compute_90" for
            PTX, "host" for the host device; None for the current device.
        kind: str, "cubin", "ptx" or "ltoir"; None for cubin, for PTX where arch is "compute_..."; the host
            device has shared objects alone.
        options: sequence of str, NVRTC's other options (NVRTC documentation, "Supported Compile Options"), of
            which the host device heeds those for macros, headers and the language's version.
        headers: mapping of str, from what an #include says to the header's text; comes before all files.
        include_paths: sequence of paths, the folders where other headers are looked for.
        name_expressions: sequence of str, such as "scale<float>": templates to instantiate, and C++ names
            whose mangled names are wanted; of the first source, where there are several.
        link_options: sequence of str, nvJitLink's options for several sources, such as "-ftz=1".
        name: str, what messages and __FILE__ call the source.
        cache: bool, False compiles anew and keeps nothing.
    Returns:
        A ModuleImage.
    Raises:
        CompileError: the compiler or linker refused it; the text shows its messages with the source's lines.
        CompilerNotFoundError: NVRTC or nvJitLink is not installed, or there is no C++ compiler.
        TypeError, ValueError: an argument is of the wrong type, or not allowed.
        OSError: a path cannot be read.
    """
    texts, folders = read_sources(source, name)
    if arch is None:
        arch = HOST if is_host_chosen() else device_arch()
    target = HOST if arch == HOST else arch_name(arch)
    request = Request(
        texts,
        [*folders, *paths_of(include_paths)],
        not isinstance(arch, DeviceArch),
        target,
        kind_of(kind, target),
        checked_options(options),
        {
            text_of(key, "a header's name"): text_of(text, f"the header {key}")
            for key, text in (headers or {}).items()
        },
        texts_of(name_expressions, "name_expressions"),
        texts_of(link_options, "link_options"),
    )
    return find_or_build(request) if cache else build(request, compiler_of(target))


def compiler_of(arch: str) -> Compiler:
    """The compiler for an architecture, loaded."""
    return host_compiler.find_compiler() if arch == HOST else known_compiler.load()


def find_or_build(request: Request) -> ModuleImage:
    """The image from the cache, or compiled and kept there."""
    is_host = request.arch == HOST
    key = key_of(request, host_compiler.find_compiler() if is_host else known_compiler.current_compiler())
    cached = image_cache.lookup(key) if key else None
    if cached is not None:
        return cached
    compiler = compiler_of(request.arch)
    key = key_of(request, compiler)  # of the compiler that is used now
    image = build(request, compiler)
    if key and key == key_of(request, compiler):  # else a header changed meanwhile
        image_cache.store(key, image)
    return image


def paths_of(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"include_paths is a sequence of paths, such as ({paths!r},), not one path")
    return [os.path.abspath(os.fsdecode(path)) for path in paths]


def device_arch(device: DeviceArgument | None = None) -> DeviceArch:
    """A device's architecture; None is the current device.

    Raises:
        ValueError: there is no CUDA device.
    """
    if init.chosen_driver() != "host" and init.is_available():
        major, minor = get_device_capability(device)
        if major:
            return DeviceArch(f"sm_{major}{minor}")
    raise ValueError(
        "there is no CUDA device whose architecture to compile for; give arch, such as arch='sm_90'"
    )


def is_host_chosen(device: DeviceArgument | None = None) -> bool:
    """Tells whether a device, None for the current one, is of the host; opens no driver where the choice
    tells."""
    if init.chosen_driver() in ("cuda", "host"):
        return init.chosen_driver() == "host"
    return init.is_available() and get_device_capability(device) == (0, 0)


def is_host(device: int) -> bool:
    """Tells whether a device is a host device, behind a table of tests too."""
    return get_device_capability(device) == (0, 0)


def kind_of(kind: str | None, arch: str) -> str:
    if arch == HOST:
        if kind not in (None, "so"):
            raise ValueError(
                f"kind={kind!r} is for a GPU; the host device loads shared objects, leave kind out"
            )
        return "so"
    if kind is None:
        return "cubin" if arch.startswith("sm_") else "ptx"
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not known; it may be {', '.join(KINDS)}")
    if kind == "cubin" and not arch.startswith("sm_"):
        raise ValueError(f"a cubin is for a device such as 'sm_90', not for arch={arch!r}; or ask for ptx")
    return kind


def checked_options(values: Sequence[str]) -> tuple[str, ...]:
    """The options; refuses those that have arguments of compile_image instead."""
    options = texts_of(values, "options")
    for option in options:
        if ARCH_OPTION.match(option):
            raise ValueError(f"options have {option!r}; give arch instead, such as arch='sm_90'")
        if LTO_OPTION.match(option):
            raise ValueError(f"options have {option!r}; give kind='ltoir' instead")
    return options


def key_of(request: Request, compiler: Compiler) -> str:
    """The key in the cache; "" where not all is known that the result depends on."""
    texts = [*request.texts.values(), *request.headers.values()]
    include_folders = includes.folders_of(request.options)
    if include_folders is None:
        return ""
    files: list[bytes] = []
    if includes.has_include(texts):
        folders = [*request.folders, *map(os.path.abspath, include_folders)]
        own = (
            compiler.folders
            if isinstance(compiler, host_compiler.Compiler)
            else known_compiler.header_folders(compiler)
        )
        read = includes.included(request.texts.values(), request.headers, folders, own)
        if read is None:
            return ""
        files = read
    lists = (request.options, request.expressions, request.link_options, request.folders)
    linked = len(request.texts) > 1 and request.arch != HOST
    linker = "{}.{}".format(*jitlink.version()) if linked else ""
    parts = [compiler.name, request.arch, request.kind, str(request.exact), linker]
    for each in (*lists, [part for pair in request.texts.items() for part in pair]):
        parts += [str(len(each)), *each]
    parts += [part for pair in request.headers.items() for part in pair]
    encoded = [part.encode(errors="surrogateescape") for part in parts]
    return image_cache.digest([b"nvrtc", compiler.stamp, *encoded, b"files", *files])


def build(request: Request, compiler: Compiler) -> ModuleImage:
    if isinstance(compiler, host_compiler.Compiler):
        parts = (request.texts, request.folders, request.options, request.headers, request.expressions)
        return host_cuda.build(*parts)
    arch, kind = arch_made(request, compiler)
    texts = [*request.texts.values(), *request.headers.values()]
    toolkit = known_compiler.header_folders(compiler) if includes.has_include(texts) else ()
    folders = [*request.folders, *toolkit]
    several = len(request.texts) > 1
    images = [
        nvrtc.compile_program(
            nvrtc.Program(
                text,
                name,
                request.headers,
                folders,
                request.options,
                arch,
                "ltoir" if several else kind,
                request.expressions if number == 0 else (),
            )
        )
        for number, (name, text) in enumerate(request.texts.items())
    ]
    if not several:
        return images[0]
    linked = link_images(images, arch=arch, kind=kind, options=request.link_options)
    logs = [image.log for image in (*images, linked)]
    return ModuleImage(linked.data, kind, arch, linked.names, "\n".join(filter(None, logs)), linked.compiler)


def arch_made(request: Request, compiler: nvrtc.Compiler) -> tuple[str, str]:
    """The architecture and kind to ask the compiler for.

    A device that is newer than the compiler gets the newest PTX, which the driver compiles for it.

    Raises:
        CompileError: it makes no code for the architecture.
    """
    numbers, arch = compiler.numbers, request.arch
    if not numbers or arch_number(arch) in numbers:
        return arch, request.kind
    if not request.exact and arch_number(arch) > max(numbers) and request.kind == "cubin":
        return f"compute_{max(numbers)}", "ptx"
    choices = ", ".join(str(number) for number in sorted(numbers))
    raise CompileError(
        f"{compiler.name} makes no code for {arch}; it does for {choices}",
        "",
        next(iter(request.texts)),
        compiler.name,
    )


def link_images(
    images: Sequence[ModuleImage | bytes | os.PathLike[str]],
    *,
    arch: str | int | tuple[int, int] | None = None,
    kind: str = "cubin",
    options: Sequence[str] = (),
) -> ModuleImage:
    """Links images into one module by nvJitLink; needs no GPU.

    Arguments:
        images: sequence of ModuleImage, bytes or paths: LTO-IR, cubins, PTX, fatbins and objects.
        arch: what to link for, as compile_image takes it; None for that of the first ModuleImage.
        kind: str, "cubin", or "ptx", which needs LTO-IR throughout.
        options: sequence of str, nvJitLink's other options (its documentation, "Supported Link Options").
    Returns:
        A ModuleImage, with the names of all of them.
    Raises:
        CompileError: the linker refused them.
        CompilerNotFoundError: nvJitLink is not installed.
        TypeError, ValueError: an argument is of the wrong type, or not allowed.
        OSError: a path cannot be read.
    """
    if kind not in ("cubin", "ptx"):
        raise ValueError(f"kind={kind!r} is not what a link makes; it may be cubin or ptx")
    if isinstance(images, (str, bytes, os.PathLike, ModuleImage)):
        raise TypeError("images is a sequence of images, not one image")
    inputs = [image_of(each) for each in images]
    if not inputs:
        raise ValueError("images is empty; give at least one image")
    if arch is None:
        arch = next((image.arch for image in inputs if image.arch), None)
    if arch is None:
        raise ValueError("none of the images says what it was made for; give arch, such as arch='sm_90'")
    target = arch_name(arch).replace("compute_", "sm_") if kind == "cubin" else arch_name(arch)
    flags = [f"-arch={target}", *(["-lto"] if any(image.kind == "ltoir" for image in inputs) else [])]
    flags += ["-ptx"] if kind == "ptx" else []
    linked = jitlink.link(inputs, kind, [*flags, *texts_of(options, "options")])
    return ModuleImage(linked.data, kind, target, linked.names, linked.log, linked.compiler)


def image_of(source: ModuleImage | bytes | os.PathLike[str]) -> ModuleImage:
    if isinstance(source, ModuleImage):
        return source
    if isinstance(source, os.PathLike):
        source = files.read(source, MOST_BYTES)
    if not isinstance(source, bytes):
        raise TypeError(f"an image is a ModuleImage, bytes or a path, not {type(source).__name__}")
    return ModuleImage(source, jitlink.input_kind(source), "")
