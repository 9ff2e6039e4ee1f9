"""Writes the stubs of the compiled modules from their sources: what type checkers and editors read of them.

A stub has the functions whose results are annotated, and the classes, with their docstrings and the
module's; an attribute has its entry of the class's.  Types come from
annotations, which Cython does not read, and from types of C that arguments and attributes are declared with.
What neither says stands in the source behind `# stub:`, a line of the stub each.  setup.py runs this; the
tests check what comes out by mypy and stubtest.
"""

import ast
import builtins
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
Classes = dict[str, str]  # name -> module
# Where the names of annotations come from, beside the classes of the package.
SOURCES = {
    "typing": "Any ClassVar Generic Literal NamedTuple NoReturn Protocol Self SupportsBytes SupportsIndex "
    "SupportsInt TextIO TypeAlias TypeVar final overload",
    "collections.abc": "AsyncGenerator Callable Coroutine Generator Iterable Iterator Mapping Sequence",
    "contextlib": "AbstractContextManager",
    "types": "ModuleType TracebackType",
    "ctypes": "c_void_p",
    "os": "PathLike",
    "dataclasses": "dataclass",
    "numpy.typing": "DTypeLike NDArray",
    "threading": "local",
    "_thread": "RLock",
    "accelrt.annotations": "DeviceArgument Index Memory Shape",
}
MODULES = {name: f"import {name}" for name in ("builtins", "os", "pickle", "socket", "threading")}
MODULES["np"] = "import numpy as np"
# Types of C, and of Python as Cython spells them, by what Python passes for them.
TYPES = {
    "bint": "bool",
    "float": "float",
    "double": "float",
    "object": "object",
    "str": "str",
    "bytes": "bytes",
    "char": "bytes",
    "list": "list[Any]",
    "tuple": "tuple[Any, ...]",
    "dict": "dict[Any, Any]",
    "set": "set[Any]",
}
INSIDE = re.compile(r"\s|$|#(?! stub: )")  # how a line of a class's body begins
INCLUDE = re.compile(r'^include "(\w+\.pxi)"$', re.M)
ATTRIBUTE_TEXT = re.compile(r"        (\w+(?:, \w+)*): (.*)")


def python_type(c_type: str | None, classes: Classes) -> str:
    """The annotation for an argument or attribute that is declared with a type of C or of Cython."""
    word = c_type.split()[-1] if c_type else "object"
    if word in TYPES:
        return TYPES[word]
    return word if word in classes else "int"


def split_top(text: str) -> list[str]:
    """The parts of text between commas that no bracket or string encloses."""
    parts, depth, quote, start = [], 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


PARAMETER = re.compile(
    r"(?P<stars>\*{0,2})(?:(?P<type>(?:const )?(?:unsigned )?(?:long )?\w+)\** \**)?(?P<name>\w+)"
    r"(?: not None| or None)?(?:\s*:\s*(?P<annotation>[^=]+?))?(?:\s*=\s*(?P<default>.+))?$",
    re.S,
)


def parameter(text: str, classes: Classes) -> str:
    """One parameter of a signature as a stub has it."""
    if text in ("*", "/", "self", "cls"):
        return text
    match = PARAMETER.match(text)
    if match is None:
        raise SystemExit(f"{text!r} is no parameter that stubgen.py reads")
    annotation, default = match["annotation"], match["default"]
    if annotation is None:
        annotation = python_type(match["type"], classes)
        if default == "None" and "None" not in annotation and annotation != "object":
            annotation += " | None"
    if default is None:
        return f"{match['stars']}{match['name']}: {annotation}"
    if not re.fullmatch(r"-?[\d.]+(e-?\d+)?|None|True|False|\(\)|\"[^\"]*\"|'[^']*'", default):
        default = "..."
    return f"{match['stars']}{match['name']}: {annotation} = {default}"


class Source:
    """A .pyx with what its .pxd declares, read for the stub."""

    def __init__(self, path: Path, classes: Classes) -> None:
        lines = INCLUDE.sub(lambda match: path.with_name(match[1]).read_text(), path.read_text()).splitlines()
        self.lines: list[str] = [line.removesuffix("  # no-cython-lint") for line in lines]
        self.classes = classes
        self.attributes: dict[str, dict[str, tuple[str, str]]] = {}  # class -> name -> (access, type)
        declared = path.with_suffix(".pxd")
        if declared.exists():
            self.read_attributes(declared.read_text())
        self.read_attributes("\n".join(self.lines))

    def read_attributes(self, text: str) -> None:
        """Notes the readonly and public attributes of each cdef class."""
        name = None
        for line in text.splitlines():
            if match := re.match(r"cdef class (\w+)", line):
                name = match[1]
            elif line and not line[0].isspace() and not line.startswith("#"):
                name = None
            match = re.match(r"    cdef (readonly|public) ([\w ]*\w) +\**(\w+(?:, *\w+)*) *(?:#.*)?$", line)
            if match and name:
                for attribute in match[3].split(","):
                    kind = python_type(match[2].strip(), self.classes)
                    self.attributes.setdefault(name, {})[attribute.strip()] = (match[1], kind)

    def signature(self, at: int) -> tuple[str, str, str | None, int]:
        """(name, parameters, result or None, the line behind the signature) of the function at a line."""
        text, end = self.lines[at], at + 1
        while not re.search(r":\s*(#.*)?$", text) or text.count("(") > text.count(")"):
            text += " " + self.lines[end].partition("  #")[0].strip()
            end += 1
        match = re.match(r"\s*(?:async )?def (\w+)\((.*)\)\s*(?:->\s*(.+?))?\s*:\s*(?:#.*)?$", text)
        if match is None:
            raise SystemExit(f"{text!r} is no signature that stubgen.py reads")
        return match[1], match[2], match[3], end

    def docstring(self, at: int, indent: str) -> list[str]:
        """The lines of the docstring that begins at a line; empty where there is none."""
        while at < len(self.lines) and not self.lines[at].strip():
            at += 1
        if at == len(self.lines) or not self.lines[at].startswith(indent + '"""'):
            return []
        end = at
        while self.lines[end].count('"""') + (end != at) * 1 < 2:
            end += 1
        return self.lines[at : end + 1]

    def function(self, at: int, indent: str, decorators: list[str]) -> list[str]:
        """The stub of the function at a line, as lines; empty where it is left out."""
        name, parameters, result, end = self.signature(at)
        if result is None:
            return []
        arguments = [parameter(part, self.classes) for part in split_top(parameters)]
        if re.fullmatch(r"__(eq|contains|getitem|setitem|delitem)__", name) and "/" not in arguments:
            arguments.append("/")
        head = f"{indent}def {name}({', '.join(arguments)}) -> {result}:"
        if re.match(r"\s*async", self.lines[at]):
            head = head.replace("def ", "async def ", 1)
        doc = self.docstring(end, indent + "    ")
        return [*decorators, *([head, *doc] if doc else [head + " ..."])]

    def document(self, members: list[str], at: int, indent: str) -> None:
        """Gives the last stub that was said of the function at a line the function's docstring."""
        name, _, _, end = self.signature(at)
        doc = self.docstring(end, indent + "    ")
        stubs = [index for index, line in enumerate(members) if line.startswith(f"{indent}def {name}(")]
        if doc and stubs:
            members[stubs[-1] : stubs[-1] + 1] = [members[stubs[-1]].removesuffix(" ..."), *doc]

    def said_in_class(self, at: int) -> set[str]:
        """The names that `# stub:` lines of the class at a line give."""
        names: set[str] = set()
        while at < len(self.lines) and INSIDE.match(self.lines[at]):
            if match := re.match(r"    # stub: (?:def )?(\w+)", self.lines[at]):
                names.add(match[1])
            at += 1
        return names

    def class_body(self, at: int, name: str) -> tuple[list[str], int]:
        """The stub of a class's members, and the line behind the class."""
        doc, stubbed, decorators = self.docstring(at, "    "), self.said_in_class(at), list[str]()
        at = self.lines.index(doc[0], at) + len(doc) if doc else at
        members = without_signature(doc)
        texts = attribute_texts(doc)
        for attribute, (access, kind) in self.attributes.get(name, {}).items():
            if attribute.startswith("_") or attribute in stubbed:
                continue
            text = texts.get(attribute)
            if access == "public":
                members += [f"    {attribute}: {kind}", *([f"    {text}"] if text else [])]
            else:
                head = f"    def {attribute}(self) -> {kind}:"
                members += ["    @property", *([head, f"        {text}"] if text else [head + " ..."])]
        while at < len(self.lines):
            line = self.lines[at]
            if not INSIDE.match(line):
                break
            if line.startswith("    # stub: "):
                members.append("    " + line.partition("# stub: ")[2])
                if match := re.match(r"    (\w+):", members[-1]):
                    members += [f"    {text}"] if (text := texts.get(match[1])) else []
            elif re.match(r"    @(property|staticmethod|classmethod|\w+\.setter)", line):
                decorators.append(line)
            elif match := re.match(r"    (?:async )?def (\w+)", line):
                if match[1] in stubbed:
                    self.document(members, at, "    ")
                else:
                    members += self.function(at, "    ", decorators)
                decorators = []
            elif re.match(r"    \w+: [^#]", line):
                members.append(line)
            elif re.match(r"    cdef ", line):
                decorators = []
            at += 1
        return members, at

    def body(self) -> list[str]:
        """The stub's lines, without its imports."""
        stub, at, head = list[str](), 0, ""
        stubbed = {match[1] for line in self.lines if (match := re.match(r"# stub: def (\w+)", line))}
        names_all = any(re.match(r"(def .*\) -> |# stub: )", line) for line in self.lines)
        names_all = names_all and not any(line.startswith("__all__ = ") for line in self.lines)
        while at < len(self.lines):
            line = self.lines[at]
            if re.match(r"# stub: class ", line) and re.match(r"(cdef )?class |@", self.lines[at + 1]):
                head = line.removeprefix("# stub: ")
            elif line.startswith(("# stub: ", "__all__ = ")):
                stub.append(line.removeprefix("# stub: "))
            elif match := re.match(r"(?:async )?def (\w+)", line):
                if match[1] in stubbed:
                    self.document(stub, at, "")
                else:
                    stub += self.function(at, "", [])
            elif match := re.match(r"(cdef )?class (\w+)(\([^#]*\))?:", line):
                bases = re.sub(r"namedtuple\(.*\)", "NamedTuple", (match[3] or "")[1:-1])
                members, end = self.class_body(at + 1, match[2])
                is_said = any(re.search(r"\) -> .*:$|# stub: ", each) for each in self.lines[at + 1 : end])
                if head or is_said or (names_all and not match[2].startswith("_")):
                    before = self.lines[at - 1].replace("@cython.final", "@final")
                    stub += [before] if before.startswith(("@dataclass", "@final")) else []
                    head = head or f"class {match[2]}" + (f"({bases})" if bases else "") + ":"
                    stub += [head, *members, ""] if members else [head + " ...", ""]
                    head = ""
                at = end - 1
            at += 1
        return stub


def without_signature(doc: list[str]) -> list[str]:
    """The lines of a class's docstring without the signature that it begins with for inspect."""
    ends = next((index for index, line in enumerate(doc) if line.endswith(r"\n--\n\n" "\\")), None)
    return doc if ends is None else ['    """' + doc[ends + 1].lstrip(), *doc[ends + 2 :]]


def attribute_texts(doc: list[str]) -> dict[str, str]:
    """Attribute -> its entry under Attributes in a class's docstring, as a docstring of one line."""
    texts: dict[str, list[str]] = {}
    heads = [index for index, line in enumerate(doc) if line.startswith("    Attributes")]
    entries: list[str] = []
    for line in doc[heads[0] + 1 :] if heads else ():
        if match := ATTRIBUTE_TEXT.match(line):
            entries = match[1].split(", ")
            texts |= {name: [match[2]] for name in entries}
        elif line.startswith(" " * 12):
            for name in entries:
                texts[name].append(line.strip())
        else:
            break
    return {name: f'"""{" ".join(lines)}"""' for name, lines in texts.items()}


def classes_of_package() -> Classes:
    """Class -> the module that defines it; of two that have the name, the compiled one."""
    modules: dict[str, str] = {}
    for suffix in (".pyx", ".py"):
        for path in sorted((ROOT / "accelrt").rglob(f"*{suffix}")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for name in re.findall(r"^(?:cdef )?class (\w+)", path.read_text(), re.M):
                modules.setdefault(name, module)
    return modules


def imports_for(text: str, module: str, classes: Classes) -> list[str]:
    """The import lines for the names that a stub's text uses and does not define."""
    tree = ast.parse(text)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    own |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    sources = {name: source for source, names in SOURCES.items() for name in names.split()}
    lines = set()
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)} - set(re.findall(r"@(\w+)\.", text))
    for name in sorted(used - own):
        if name == "Device":
            lines.add("from accelrt.devices.device import device as Device")
        elif name in MODULES:
            lines.add(MODULES[name])
        elif name in sources or classes.get(name, module) != module:
            lines.add(f"from {sources.get(name) or classes[name]} import {name}")
        elif not hasattr(builtins, name):
            raise SystemExit(f"{module}: where does {name} come from?  Say so in SOURCES of stubgen.py")
    return sorted(lines, key=lambda line: (line.startswith("from accelrt"), line))


def write_stub(path: Path, classes: Classes) -> None:
    """Writes the stub beside a .pyx; leaves one that says the same as it is."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    source = Source(path, classes)
    text = "\n".join(source.body())
    if not text:
        return
    head = [*source.docstring(0, ""), *imports_for(text, module, classes)]
    text = "\n".join(head) + "\n\n" + text.strip() + "\n"
    stub = path.with_suffix(".pyi")
    if not stub.exists() or stub.read_text() != text:
        stub.write_text(text)


def write_all() -> None:
    """Writes the stubs of all compiled modules."""
    classes = classes_of_package()
    for path in sorted((ROOT / "accelrt").rglob("*.pyx")):
        write_stub(path, classes)
