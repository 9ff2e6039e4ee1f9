"""What functions of accelrt raise, read from the sources: what they raise themselves, and what those raise
that they call by name.

A reading, no proof: an exception that is passed on by a variable or through a table of functions is not seen.
"""

import functools
import re
from pathlib import Path

import accelrt

PACKAGE = Path(accelrt.__file__).parent
FUNCTION = re.compile(
    r"( *)(?:cpdef|cdef|async def|def)\b(?! +(?:class|struct|enum|extern|union))[^=]*?(\w+)\("
)
CLASS = re.compile(r"(?:cdef )?class (\w+)(?:\(([^)]*)\))?:")
IMPORT = re.compile(r"^ *from (accelrt[\w.]*) c?import \(?([^()\n]+)\)?", re.M)
LATER = re.compile(r"(\w+) = (?:lazy\.)?later\(\"(accelrt[\w.]*)\"\)")
CONSTRUCTORS = ("__cinit__", "__init__")

# What no text has to tell: what only a broken program meets (a second __init__ among it), and what methods
# raise that a derived class has to have.
UNTOLD = {"AssertionError", "AttributeError", "KeyboardInterrupt", "MemoryError", "NotImplementedError"}
SECOND_CALL = (
    r"[^\n]*(?:(?:made already|recorded already|is entered); make another|an? \w+ is initialised once)"
)
RAISED = re.compile(rf"\braise ([A-Z][\w.]+)(?![\w.])(?!\(f?\"{SECOND_CALL})")

# What any call may raise that takes a device or a stream, reaches the driver, or imports: accelrt's docstring
# tells of it, so nobody who calls these has to.
CONVERTERS = {
    *("raise_status", "status_error", "ordinal_of", "ordinal_of_slow", "parse", "stream_of", "set_device"),
    *("device", "device_ordinal", "init", "later", "Rows", "refuse_unmade", "refuse_copy"),
}

Key = tuple[str, str, str]  # module, class or "", name


class Sources:
    """The functions of the package by where they are, and of which class each is derived."""

    def __init__(self) -> None:
        self.texts: dict[Key, str] = {}
        self.imported: dict[str, dict[str, tuple[str, str]]] = {}
        self.bases: dict[tuple[str, str], list[str]] = {}
        for suffix in ("pyx", "py"):
            for path in PACKAGE.rglob(f"*.{suffix}"):
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                self.read(module.removesuffix(".__init__"), path.read_text())

    def read(self, module: str, text: str) -> None:
        flat = re.sub(r"\(\s*([^()]*?)\s*\)", lambda match: f"({' '.join(match[1].split())})", text)
        imported = self.imported[module] = {}
        for match in IMPORT.finditer(flat):
            for part in match[2].partition("#")[0].split(","):
                if words := part.split():
                    imported[words[-1]] = (match[1], words[0])
        for match in LATER.finditer(text):
            imported[match[1]] = (match[2], "")
        lines: dict[Key, list[str]] = {}
        kind, key = "", None
        for line in re.sub(r'"""(?:.|\n)*?"""|(?<= )#.*', "", text).splitlines():
            if match := CLASS.match(line):
                kind = match[1]
                self.bases[module, kind] = [base.strip() for base in (match[2] or "").split(",") if base]
            elif line and line[0] not in " #@)":
                kind = ""
            if match := FUNCTION.match(line):
                if len(match[1]) == (4 if kind else 0):
                    key = (module, kind, match[2])
                    line = ""
            elif line.strip(" )") and len(line) - len(line.lstrip()) <= (4 if key and key[1] else 0):
                key = None
            if key:
                lines.setdefault(key, []).append(line)
        self.texts |= {key: "\n".join(body) for key, body in lines.items()}

    def own(self, key: Key) -> set[str]:
        """Returns the names of what a function raises itself."""
        return {name.rpartition(".")[2] for name in RAISED.findall(self.texts[key])} - UNTOLD

    def called(self, key: Key) -> list[Key]:
        """Returns the functions of the package that a function calls by name; no class without arguments."""
        calls = set(re.findall(r"(?<![\w.])((?:\w+\.)?\w+)\((\)?)", self.texts[key]))
        calls = {(name, end) for name, end in calls if name.rpartition(".")[2] not in CONVERTERS}
        functions = [(self.function(key, name), end) for name, end in sorted(calls)]
        return [each for each, end in functions if each and not (end and each[2] in CONSTRUCTORS)]

    def function(self, caller: Key, name: str) -> Key | None:
        """Returns the function that a name means in a caller; None where it is none of the package's."""
        module, kind, _ = caller
        holder, _, name = name.rpartition(".")
        if holder == "self":
            return self.method(module, kind, name)
        if holder:
            source, inner = self.imported[module].get(holder, ("", ""))
            keys = [(f"{source}.{inner}".strip("."), "", name), (source, inner, name)]
        else:
            source, inner = self.imported[module].get(name, (module, name))
            keys = [(source, "", inner), *((source, inner, each) for each in CONSTRUCTORS)]
        return next((key for key in keys if key in self.texts), None)

    def method(self, module: str, kind: str, name: str) -> Key | None:
        if (module, kind, name) in self.texts:
            return module, kind, name
        for base in self.bases.get((module, kind), ()):
            source, inner = self.imported[module].get(base, (module, base))
            if (source, inner) in self.bases and (source, inner) != (module, kind):
                return self.method(source, inner, name)
        return None


@functools.cache
def sources() -> Sources:
    return Sources()


def raised_by(module: str, kind: str, name: str) -> set[str]:
    """Returns the names of what a function raises, itself or in a function that it calls by name.

    Arguments:
        module, kind, name: str, where it is: kind is its class, or "".
    """
    texts = sources()
    names = CONSTRUCTORS if name == "__init__" else (name,)
    keys = [key for each in names if (key := texts.method(module, kind, each))]
    return {error for key in keys for each in (key, *texts.called(key)) for error in texts.own(each)}
