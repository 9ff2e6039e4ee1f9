"""The public names of accelrt, and a page of Markdown for each part of them.

Names come from accelrt/core/names.py and the modules' own __all__, signatures and docstrings from the stubs
of compiled modules and the source of the others.  accelrt has to be built; no driver is opened.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path

import accelrt
from accelrt.core import names

from . import docstrings

ROOT = Path(accelrt.__file__).parent
PUBLIC_MODULES = {f"accelrt.{name}" for name in (names.MODULES + " " + names.UNLISTED).split()}
INTEROP = ("torch", "cupy", "numba", "rmm", "cuda_core")

# Classes that are made when the library is there that they derive from, and what has their methods.
STAND_INS = {"accelrt.interop.cuda_core.MemoryResource": "_Resource"}

# Page: title, and the modules whose public names it has: their own, and those of accelrt that they define.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "devices": ("Devices", ("accelrt.devices", "accelrt.runtime")),
    "streams": ("Streams and events", ("accelrt.streams",)),
    "memory": ("Memory", ("accelrt.memory", "accelrt.allocator")),
    "arrays": ("Buffers, arrays and copies", ("accelrt.arrays",)),
    "kernels": ("Kernels", ("accelrt.kernels",)),
    "graphs": ("Graphs", ("accelrt.graphs",)),
    "random": ("Random numbers", ("accelrt.random",)),
    "errors": ("Exceptions", ("accelrt.errors",)),
    "readings": ("Readings of a device", ("accelrt.readings",)),
    "resources": ("Resources of memory", ("accelrt.resources",)),
    "identity": ("Which device is which", ("accelrt.identity", "accelrt.visible", "accelrt.nvml")),
    "sharing": ("Memory between processes", ("accelrt.sharing",)),
    "collectives": ("Collectives", ("accelrt.nccl", "accelrt.comm")),
    "interop": ("Under other libraries", tuple(f"accelrt.interop.{name}" for name in INTEROP)),
    "interface": ("Device interfaces", ("accelrt.interface",)),
    "sanitizer": ("The race detector", ("accelrt.sanitizer",)),
    "tunable": ("Tunable operations", ("accelrt.tunable",)),
    "testing": ("For tests", ("accelrt.testing",)),
    "profilers": ("For profilers", ("accelrt.nvtx", "accelrt.profiler")),
    "publish": ("For monitors", ("accelrt.publish",)),
    "green_contexts": ("Green contexts", ("accelrt.green_contexts",)),
    "checkpoint": ("Process checkpoints", ("accelrt.checkpoint",)),
    "gds": ("GPUDirect Storage", ("accelrt.gds",)),
    "include": ("Headers and library", ("accelrt.include",)),
}


INTRODUCTION = """\
Every public name, by what it is about. Most stand in `accelrt` itself, as torch.cuda's do in `torch.cuda`;
the general index and the search find each by its name. Where nothing else is said, a device is an int,
`"cuda:1"`, `"host:0"` or an object with an `index`, and None the current one; a stream is a `Stream`, a
handle as int, or None for the current one; what is neither raises a ValueError or a TypeError
(`InvalidDeviceError`). Any call that reaches the driver may raise `CudaError`, and the first one what
`init()` raises."""


@dataclass
class Entry:
    """One public object.

    Attributes:
        name: str, the dotted name that it is shown under.
        aliases: list of str, other public names of it.
        node: the definition in a stub or a source; None where there is none.
        value: the object; None where it needs a library that is not installed.
    """

    name: str
    value: object
    node: ast.FunctionDef | ast.ClassDef | None
    overloads: list[ast.FunctionDef] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)

    @property
    def is_class(self) -> bool:
        return isinstance(self.value, type) or isinstance(self.node, ast.ClassDef)

    @property
    def doc(self) -> str:
        own = ast.get_docstring(self.node, clean=False) if self.node is not None else None
        return own or (
            getattr(self.value, "__doc__", None) or "" if self.node or callable(self.value) else ""
        )


@functools.cache
def definitions(module: str) -> dict[str, list[ast.FunctionDef | ast.ClassDef]]:
    """The functions and classes of a module, by name, of its stub where it has one."""
    stem = ROOT.parent / module.replace(".", "/")
    paths = (stem.with_suffix(".pyi"), stem.with_suffix(".py"), stem / "__init__.py")
    path = next((path for path in paths if path.exists()), None)
    found: dict[str, list[ast.FunctionDef | ast.ClassDef]] = {}
    for node in ast.parse(path.read_text()).body if path else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
    return found


def entry_of(name: str, value: object, module: str) -> Entry:
    """The entry of a value that a module has under a name."""
    home = getattr(value, "__module__", None)
    nodes = definitions(home if isinstance(home, str) else module).get(getattr(value, "__name__", ""), [])
    nodes = nodes or definitions(module).get(STAND_INS.get(name, name).rpartition(".")[2], [])
    nodes = [of_any_device(node) for node in nodes]
    overloads = [node for node in nodes if isinstance(node, ast.FunctionDef) and is_overload(node)]
    rest = [node for node in nodes if node not in overloads]
    return Entry(name, value, rest[-1] if rest else overloads[-1] if overloads else None, overloads)


def of_any_device(node: ast.FunctionDef | ast.ClassDef) -> ast.FunctionDef | ast.ClassDef:
    """A definition as users call it: what @reading decorates is written of a target, and takes any device."""
    if isinstance(node, ast.FunctionDef) and any(
        ast.unparse(mark) == "reading" for mark in node.decorator_list
    ):
        called = ast.parse("def reading(device: DeviceArgument | None = None): ...").body[0]
        node.args = called.args
    return node


def is_overload(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def page_of(module: str) -> str:
    """The page that has what a module defines."""
    for page, (_, prefixes) in PAGES.items():
        if any(f"{module}.".startswith(f"{prefix}.") for prefix in prefixes):
            return page
    raise LookupError(f"no page of the reference has what {module} defines: docs/sitegen/reference.py, PAGES")


@functools.cache
def contents() -> dict[str, list[Entry]]:
    """The entries of each page: those of accelrt itself first, classes before functions."""
    pages: dict[str, list[Entry]] = {page: [] for page in PAGES}
    by_value: dict[int, Entry] = {}

    def add(name: str, value: object, module: str, page: str) -> None:
        known = by_value.get(id(value)) if callable(value) else None
        if known is not None:
            known.aliases.append(name)
            return
        entry = entry_of(name, value, module)
        pages[page].append(entry)
        by_value[id(value)] = entry

    homes = names.module_of(names.NOW) | names.module_of(names.LATER)
    for name in accelrt.__all__:
        if f"accelrt.{name}" not in PUBLIC_MODULES:
            module = f"accelrt.{homes[name]}"
            add(f"accelrt.{name}", getattr(accelrt, name), module, page_of(module))
    for page, (_, modules) in PAGES.items():
        for module in modules:
            if (
                module in PUBLIC_MODULES
                or module.startswith("accelrt.interop.")
                or module == "accelrt.errors"
            ):
                holder = importlib.import_module(module)
                for name in public_names(holder):
                    add(f"{module}.{name}", getattr(holder, name, None), module, page)
    for entries in pages.values():
        entries.sort(key=lambda entry: (entry.name.count("."), not entry.is_class, entry.name.lower()))
    return pages


def public_names(module: object) -> list[str]:
    """The names of a module's __all__, or those that it defines or takes from below accelrt."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if callable(value) and str(getattr(value, "__module__", "")).startswith("accelrt.")
        ]
    return [name for name in listed if not name.startswith("_")]


class Unquoted(ast.NodeTransformer):
    """Annotations without their quotes, with the whole names of what accelrt has itself."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(f"accelrt.{node.id}", mode="eval").body if node.id in accelrt.__all__ else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        is_literal = ast.unparse(node.value).rpartition(".")[2] == "Literal"
        return node if is_literal else self.generic_visit(node)  # whose texts are values, and no types

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node


def annotation_text(node: ast.expr) -> str:
    return ast.unparse(Unquoted().visit(copy.deepcopy(node)))


def signature_of(node: ast.FunctionDef, drop_first: bool = False) -> str:
    """The arguments and what is returned, as written, without the quotes of annotations.

    Arguments:
        drop_first: leave out the first argument, self.
    """
    arguments = copy.deepcopy(node.args)
    if drop_first:
        (arguments.posonlyargs or arguments.args).pop(0)
    for argument in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ):
        if argument is not None and argument.annotation is not None:
            argument.annotation = Unquoted().visit(argument.annotation)
    returned = f" -> {annotation_text(node.returns)}" if node.returns is not None else ""
    return f"({ast.unparse(arguments)}){returned}"


def directive(kind: str, head: str, options: dict[str, str], body: str, depth: int) -> str:
    """A directive of Sphinx's domain for Python, in a fence of as many colons as its depth asks."""
    fence = ":" * (5 - depth)
    lines = [f":{name}: {value}".rstrip() for name, value in options.items()]
    return "\n".join([f"{fence}{{py:{kind}}} {head}", *lines, "", body, fence, ""])


def members(entry: Entry) -> list[str]:
    """The public methods and properties of a class, each as a directive."""
    texts: list[str] = []
    if not isinstance(entry.node, ast.ClassDef):
        return texts
    module, _, class_name = entry.name.rpartition(".")
    seen: set[str] = set()
    for node in [*entry.node.body, *of_hidden_bases(entry)]:
        if isinstance(node, ast.AnnAssign) and is_field(node, entry.doc):
            options = {"module": module, "type": annotation_text(node.annotation)}
            texts.append(directive("attribute", f"{class_name}.{ast.unparse(node.target)}", options, "", 1))
        if not isinstance(node, ast.FunctionDef) or not is_shown(node):
            continue
        marks = {ast.unparse(decorator) for decorator in node.decorator_list}
        if any(mark.endswith((".setter", ".deleter")) for mark in marks):
            continue
        body = docstrings.markdown(ast.get_docstring(node))
        options = {"module": module}
        if node.name in seen:
            options["no-index"] = ""
        seen.add(node.name)
        if "property" in marks or "cached_property" in marks:
            if node.returns is not None:
                options["type"] = annotation_text(node.returns)
            texts.append(directive("property", f"{class_name}.{node.name}", options, body, 1))
            continue
        options |= {mark: "" for mark in ("classmethod", "staticmethod") if mark in marks}
        head = f"{class_name}.{node.name}{signature_of(node, 'staticmethod' not in marks)}"
        texts.append(directive("method", head, options, body, 1))
    return texts


def of_hidden_bases(entry: Entry) -> list[ast.FunctionDef]:
    """The documented members that a class has from bases of accelrt which no page shows."""
    shown = {id(each.value) for entries in contents().values() for each in entries}
    taken = {node.name for node in getattr(entry.node, "body", ()) if isinstance(node, ast.FunctionDef)}
    nodes: list[ast.FunctionDef] = []
    for base in getattr(entry.value, "__mro__", ())[1:]:
        home = str(base.__module__)
        if not home.startswith("accelrt.") or id(base) in shown:
            continue
        body = getattr(entry_of(base.__name__, base, home).node, "body", ())
        nodes += [
            node
            for node in body
            if isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and node.name not in taken
            and ast.get_docstring(node)
        ]
    return nodes


def is_field(node: ast.AnnAssign, doc: str) -> bool:
    """A public field of a class whose docstring does not list it."""
    name = ast.unparse(node.target)
    return not name.startswith("_") and re.search(rf"\b{name}\b.*:", doc) is None


def is_shown(node: ast.FunctionDef) -> bool:
    """Public members, and special methods that say what they do."""
    if node.name.startswith("__") and node.name != "__init__":
        return bool(ast.get_docstring(node))
    return not node.name.startswith("_")


def head_of_class(entry: Entry) -> str:
    """The arguments of a class: those of its __init__ or __new__."""
    name = entry.name.rpartition(".")[2]
    for method in entry.node.body if isinstance(entry.node, ast.ClassDef) else ():
        if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__new__"):
            return name + signature_of(method, drop_first=True).removesuffix(" -> None")
    return name


def bases_line(entry: Entry) -> str:
    bases = [
        base for base in getattr(entry.value, "__bases__", ()) if base.__name__ not in ("object", "Plain")
    ]
    shown = [
        base.__name__ if base.__module__ == "builtins" else f"{base.__module__}.{base.__name__}"
        for base in bases
    ]
    shown = [f"accelrt.{name.rpartition('.')[2]}" if name.startswith("accelrt.") else name for name in shown]
    return f"Bases: {', '.join(f'`{name}`' for name in shown)}" if shown else ""


def render(entry: Entry) -> str:
    """An entry as Markdown."""
    module, _, name = entry.name.rpartition(".")
    options = {"module": module}
    also = f"Also {', '.join(f'`{alias}`' for alias in entry.aliases)}." if entry.aliases else ""
    if entry.is_class:
        parts = [bases_line(entry), docstrings.markdown(entry.doc), also, *members(entry)]
        return directive("class", head_of_class(entry), options, "\n\n".join(filter(None, parts)), 0)
    body = "\n\n".join(filter(None, (docstrings.markdown(entry.doc), also)))
    if isinstance(entry.node, ast.FunctionDef):
        texts = [
            directive("function", name + signature_of(node), options | {"no-index": ""}, "", 0)
            for node in entry.overloads[:-1]
        ]
        last = entry.overloads[-1] if entry.overloads else entry.node
        return "\n".join([*texts, directive("function", name + signature_of(last), options, body, 0)])
    if callable(entry.value):
        return directive("function", f"{name}{signature_at_run_time(entry.value)}", options, body, 0)
    return directive("data", name, options | {"type": type(entry.value).__name__}, body, 0)


def signature_at_run_time(value: object) -> str:
    try:
        return str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"


def summary(entry: Entry) -> str:
    sentence = docstrings.first_sentence(entry.doc)
    return f"| `{entry.name}` | {sentence} |"


def page(name: str) -> str:
    """A page of the reference as Markdown."""
    title, modules = PAGES[name]
    entries = contents()[name]
    own = [module for module in modules if module in PUBLIC_MODULES or ".interop." in module]
    lines = [f"# {title}", ""]
    groups = [("accelrt", [entry for entry in entries if entry.name.count(".") == 1])]
    groups += [
        (module, [entry for entry in entries if entry.name.rpartition(".")[0] == module]) for module in own
    ]
    groups += [("accelrt.errors", [entry for entry in entries if entry.name.startswith("accelrt.errors.")])]
    groups = [(module, group) for module, group in groups if group or module in own]
    for module, group in groups:
        if len(groups) > 1:
            lines += [f"## {module}", ""]
        if module in own:
            lines += [f"```{{py:module}} {module}\n```", "", module_text(module), ""]
        if group:
            lines += ["| name | |", "| --- | --- |", *map(summary, group), ""]
        lines += [render(entry) for entry in group]
    return "\n".join(lines) + "\n"


def module_text(module: str) -> str:
    return docstrings.markdown(importlib.import_module(module).__doc__, drop_files=True)


def index() -> str:
    """The page that lists the pages, and the names on each."""
    lines = ["# Names by subject", "", INTRODUCTION, ""]
    for name, (title, _) in PAGES.items():
        listed = ", ".join(f"`{entry.name}`" for entry in contents()[name])
        lines += [f"**[{title}]({name}.md)**: {listed}", ""]
    return "\n".join([*lines, "```{toctree}", ":hidden:", *PAGES, "```", ""])


@functools.cache
def targets() -> dict[str, str]:
    """Each dotted name that prose may use -> the name that its entry is shown under."""
    found: dict[str, str] = {}
    for entries in contents().values():
        for entry in entries:
            for name in (entry.name, *entry.aliases):
                found[name] = entry.name
                for member in member_names(entry):
                    found[f"{name}.{member}"] = f"{entry.name}.{member}"
    return found


def member_names(entry: Entry) -> list[str]:
    if not isinstance(entry.node, ast.ClassDef):
        return []
    return [node.name for node in entry.node.body if isinstance(node, ast.FunctionDef) and is_shown(node)]


def write(folder: Path) -> None:
    """Writes all pages into a folder; a page that says the same is left as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: page(name) for name in PAGES} | {"index": index()}
    for path in folder.glob("*.md"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
