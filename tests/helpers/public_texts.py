"""The public names of accelrt with their docstrings, and what these lack.

The rules, for what help() and editors show:
- Every function, class, method and attribute has a text.  That of an attribute may be an entry of its
  class's Attributes or Arguments.  Functions and methods say first what they do, in the third person.
- Every parameter is named under Arguments.  Of a class the entry may stand under Attributes; a record (a
  dataclass, a named tuple), an exception, and a class whose text says that it is made by something public,
  need none, for users do not make them.
- A result other than None has Returns, unless the text begins with "Returns", "Tells", "Makes" or "Opens".
- What a callable raises (raised_errors) stands under Raises, but for what accelrt's own docstring tells of
  every call.
- "Arguments, Raises: as X." hands all of this on to X, which must be public and have it.
- Special methods, and what overrides a method of a base class, need nothing: Python or the base says it.
"""

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from raised_errors import raised_by

import accelrt
from accelrt import errors

# Modules with public names that the reference has no page of.
FURTHER = ("accelrt.interop.torch_memory_saver", "accelrt.interop.vllm", "accelrt.tools.traces")
# What a source raises that callers never meet: it is caught there, or of arguments that are not theirs.
NEVER_MET = {
    "accelrt.publish.published": {"PermissionError"},
    "accelrt.gds.GdsFile": {"UnregisteredFileError"},
    "accelrt.GraphDefinition.clone": {"TypeError"},
    "accelrt.GreenContext.Stream": {"ValueError"},
    "accelrt.GreenContext.set_context": {"TypeError"},
    "accelrt.memory.select_backend": {"TypeError"},
}
ROOT = Path(accelrt.__file__).parents[1]
SECTION = r"(?:Arguments|Returns|Raises|Attributes|Yields)"
HEAD = re.compile(rf"(?:^|(?<=\.  )|(?<=\. ))({SECTION}(?:, {SECTION})*)(?: \([^)]*\))?:(.*)")
ENTRY = re.compile(r"(\*{0,2}\w+(?:\.\w+)*(?:, \*{0,2}\w+(?:\.\w+)*)*): ")
REFERENCE = re.compile(r"\bas (?:of |in )?((?:\w+\.)*\w+)")
MADE_BY = re.compile(r"\b(?:[Mm]ade|[Rr]eturned|[Gg]iven) by ((?:\w+\.)*\w+)")
VERB = re.compile(r"[A-Z][a-z-]+s\b")
NOUNS = {"Bytes", "Milliseconds", "Rows", "This", "Seconds"}
SAYS_RESULT = ("Returns ", "Tells ", "Makes ", "Opens ")


def sitegen(module: str):
    """Returns a module of docs/sitegen."""
    if str(ROOT / "docs") not in sys.path:
        sys.path.append(str(ROOT / "docs"))
    return importlib.import_module(f"sitegen.{module}")


def sections_of(doc: str) -> dict[str, list[str]]:
    """Returns the lines of each section of a docstring; of several under one head, the same lines."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in doc.splitlines():
        match = HEAD.search(line)
        if match:
            current = [match[2].strip()] if match[2].strip() else []
            for name in match[1].split(", "):
                sections[name] = current
        elif current is not None and (line.startswith(" ") or goes_on(current, line)):
            current.append(line)
        else:
            current = None if line.strip() or not current else current
    return sections


def goes_on(section: list[str], line: str) -> bool:
    """Tells whether a line without indentation continues a section's prose, which began behind its head."""
    return bool(section and line.strip()) and section[-1][0] != " " and not section[-1].endswith(".")


def entries_of(lines: list[str]) -> set[str]:
    """Returns the names that a section has an entry for."""
    lines = [line for line in lines if line.strip()]
    least = min(map(indent_of, lines), default=0)
    entries = [ENTRY.match(line.strip()) for line in lines if indent_of(line) == least]
    return {name.lstrip("*") for match in entries if match for name in match[1].split(", ")}


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


@dataclass(frozen=True)
class Public:
    """A public function, class, method or attribute.

    Attributes:
        name: str, dotted, as users write it.
        module, kind: str, where it is defined: kind is the class, or "".
        nodes: the definitions in a stub or source, several where it is overloaded.
        doc: str, without the signature that compiled classes begin with.
        value: the object; None of members, and where it needs a library that is not installed.
        owner: the class of a method or attribute, else None.
    """

    name: str
    module: str
    kind: str
    nodes: tuple[ast.AST, ...]
    doc: str
    value: object = None
    owner: "Public | None" = None

    @property
    def is_class(self) -> bool:
        return any(isinstance(node, ast.ClassDef) for node in self.nodes)

    @property
    def is_attribute(self) -> bool:
        return all(isinstance(node, ast.AnnAssign) or "property" in marks_of(node) for node in self.nodes)

    @property
    def is_record(self) -> bool:
        node = self.nodes[0]
        return isinstance(node, ast.ClassDef) and (
            any("dataclass" in mark for mark in marks_of(node))
            or any(ast.unparse(base) in ("NamedTuple", "Enum", "IntEnum") for base in node.bases)
        )

    @property
    def is_never_called(self) -> bool:
        """Tells whether users do not call it: an exception, a record, or what something else makes."""
        if isinstance(self.value, type) and issubclass(self.value, BaseException):
            return True
        makers = MADE_BY.findall(" ".join(self.doc.split())) if self.is_class else []
        return self.is_record or any(resolved(maker, self.name) for maker in makers)

    @functools.cached_property
    def sections(self) -> dict[str, list[str]]:
        return sections_of(self.doc)

    def parameters(self) -> set[str]:
        """Returns the names of the parameters, without self and those of no concern to callers."""
        if inspect.isfunction(self.value):  # of what a decorator made of it
            return set(inspect.signature(self.value).parameters)
        named: set[str] = set()
        for node in self.functions():
            args = node.args
            positional = [*args.posonlyargs, *args.args]
            if (self.owner or self.is_class) and "staticmethod" not in marks_of(node):
                positional = positional[1:]
            every = [*positional, *args.kwonlyargs, args.vararg, args.kwarg]
            named |= {each.arg for each in every if each is not None}
        return {name for name in named if not name.startswith("_")}

    def functions(self) -> list[ast.FunctionDef]:
        nodes = list(self.nodes)
        if self.is_class:
            nodes = [each for each in nodes[0].body if getattr(each, "name", "") in ("__init__", "__new__")]
        return [node for node in nodes if isinstance(node, ast.FunctionDef)]

    def result(self) -> str:
        """Returns the annotation of what is returned; "None" for classes."""
        if self.is_class:
            return "None"
        results = [ast.unparse(node.returns) for node in self.functions() if node.returns is not None]
        return results[-1].strip("\"'") if results else "None"


def marks_of(node: ast.AST) -> set[str]:
    return {ast.unparse(mark) for mark in getattr(node, "decorator_list", ())}


@functools.cache
def public_objects() -> dict[str, Public]:
    """Returns every public object, members too, by the name that the reference shows it under."""
    objects: dict[str, Public] = {}
    reference = sitegen("reference")
    entries = [entry for of_page in reference.contents().values() for entry in of_page]
    for module in map(importlib.import_module, FURTHER):
        for name in module.__all__:
            value = getattr(module, name)
            entries.append(reference.entry_of(f"{module.__name__}.{name}", value, module.__name__))
    for entry in entries:
        if entry.node is None:
            assert not isinstance(entry.value, type | types.FunctionType), f"no source of {entry.name}"
            continue
        value = entry.value
        module = str(getattr(value, "__module__", ""))
        module = module if module.startswith("accelrt") else entry.name.rpartition(".")[0]
        nodes = tuple(entry.overloads) or (entry.node,)
        doc = sitegen("docstrings").without_signature(entry.doc)
        kind = entry.node.name if isinstance(entry.node, ast.ClassDef) else ""
        public = objects[entry.name] = Public(entry.name, module, kind, nodes, doc, value)
        objects |= {each.name: each for each in members_of(public, value)}
    return objects


def members_of(owner: Public, value: object) -> list[Public]:
    """Returns the public methods and attributes that a class defines and no base of it does."""
    if not isinstance(owner.nodes[0], ast.ClassDef):
        return []
    inherited = {name for base in getattr(value, "__mro__", ())[1:] for name in vars(base)}
    nodes: dict[str, list[ast.AST]] = {}
    for node in owner.nodes[0].body:
        name = ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else getattr(node, "name", "_")
        if not name.startswith("_") and not any(mark.endswith("setter") for mark in marks_of(node)):
            nodes.setdefault(name, []).append(node)
    return [
        Public(f"{owner.name}.{name}", owner.module, owner.kind, tuple(of_name), doc_of(of_name), owner=owner)
        for name, of_name in nodes.items()
        if name not in inherited
    ]


def doc_of(nodes: list[ast.AST]) -> str:
    docs = [ast.get_docstring(node) for node in nodes if not isinstance(node, ast.AnnAssign)]
    return next((doc for doc in reversed(docs) if doc), "")


def resolved(name: str, seen_from: str) -> "Public | None":
    """Returns the public object that a text means by a name: of the same class or module, or of accelrt."""
    parts = seen_from.split(".")[:-1]
    holders = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    places = [f"{seen_from}.{name}", *(f"{holder}.{name}" for holder in holders), name]
    return next((public_objects()[place] for place in places if place in public_objects()), None)


def referred(public: Public, section: str) -> list[Public]:
    """Returns the public objects that a section of a docstring refers to by "as"."""
    names = REFERENCE.findall(" ".join(line.strip() for line in public.sections.get(section, ())))
    return [other for name in names if (other := resolved(name, public.name))]


def lacks_text(public: Public) -> bool:
    if public.doc:
        return False
    owner = public.owner
    if owner is None or not public.is_attribute:
        return True
    listed = [entries_of(owner.sections.get(section, [])) for section in ("Attributes", "Arguments")]
    return public.name.rpartition(".")[2] not in set.union(*listed)


def lacks_verb(public: Public) -> bool:
    """Tells whether a text does not begin with what is done, or as half a question where nothing is done."""
    words = public.doc.split()
    if not words:
        return False
    if public.is_class or public.is_attribute:
        return words[0] in ("What", "Whether", "How", "Where", "Why", "When")
    return VERB.match(words[0]) is None or words[0] in NOUNS


def lacking_arguments(public: Public, seen: frozenset[str] = frozenset()) -> set[str]:
    """Returns the parameters that no entry names, here or where the section refers to."""
    if public.is_attribute or public.is_never_called:
        return set()
    lacking = public.parameters() - entries_of(public.sections.get("Arguments", []))
    lacking -= entries_of(public.sections.get("Attributes", []))
    if not lacking:
        return set()
    for other in referred(public, "Arguments"):
        if other.name not in seen:
            lacking -= other.parameters() - lacking_arguments(other, seen | {public.name})
    return lacking


def dangling(public: Public) -> set[str]:
    """Returns the sections that consist of "as X", where X is nothing public or lacks that section."""
    texts = {name: " ".join(line.strip() for line in lines) for name, lines in public.sections.items()}
    bare = [name for name, text in texts.items() if text.startswith("as ")]
    others = {name: referred(public, name)[:1] for name in bare}
    return {
        name
        for name in bare
        if not others[name]
        or not (name in others[name][0].sections or lacks_no_section(others[name][0], name))
    }


def lacks_no_section(public: Public, name: str) -> bool:
    return name == "Returns" and not lacks_returns(public)


def lacks_returns(public: Public) -> bool:
    if public.is_attribute or public.result() in ("None", "NoReturn"):
        return False
    return not ({"Returns", "Yields"} & set(public.sections)) and not public.doc.startswith(SAYS_RESULT)


def exception(name: str) -> type[BaseException] | None:
    kind = vars(builtins).get(name) or vars(errors).get(name)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None


def told_errors(public: Public, seen: frozenset[str] = frozenset()) -> set[type[BaseException]]:
    """Returns the exceptions that stand under Raises, here or where the section refers to."""
    names = re.findall(r"[A-Z]\w+", " ".join(public.sections.get("Raises", ())))
    told = {kind for name in names if (kind := exception(name))}
    for other in referred(public, "Raises"):
        if other.name not in seen:
            told |= told_errors(other, seen | {public.name})
    return told


def lacking_raises(public: Public) -> set[str]:
    """Returns what is raised and stands under Raises neither itself nor by a class that it derives from."""
    if public.is_never_called:
        return set()
    name = "__init__" if public.is_class else public.name.rpartition(".")[2]
    raised = raised_by(public.module, public.kind, name) - NEVER_MET.get(public.name, set())
    told = told_errors(public)
    return {name for name in raised if not any(issubclass(exception(name) or object, each) for each in told)}


def unknown_errors(public: Public) -> set[str]:
    """Returns the entries under Raises that name no exception."""
    names = {name.rpartition(".")[2] for name in entries_of(public.sections.get("Raises", []))}
    return {name for name in names if exception(name) is None}


def lacks_signature(public: Public) -> bool:
    """Tells whether inspect, and so help(), finds no parameters where the stub or source has some."""
    value = public.value
    if public.owner is not None:
        value = getattr(public.owner.value, public.name.rpartition(".")[2], None)
    if public.is_attribute or value is None:
        return False
    try:
        told = set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return True
    return bool(public.functions()) and told <= {"args", "kwargs"} < public.parameters() | {"args", "kwargs"}
