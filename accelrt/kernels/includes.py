"""Finds the files that an #include may bring into a source: what a cache's key needs of them.

NVRTC does not tell which files it read.  So the sources are searched for #include directives, also those that
conditions or comments exclude, and every file counts that any of the searched folders has under such a name:
more than the compiler reads, never less.  What is not found this way is said to be unknown, and not cached: a
name that a macro makes, and __has_include, which depends on files that are not there.
"""

from __future__ import annotations

import os
import re

from accelrt.core import files
from accelrt.kernels.image import MOST_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONTINUED = re.compile(rb"\\[ \t]*\r?\n")
# "#" also as "%:" and "??=", with comments between it and the word.
GAP = rb"(?:[ \t]|/\*.*?\*/)*"
NAME = rb"(?:\"([^\"\n]*)\"|<([^>\n]*)>|(\S))"
DIRECTIVE = re.compile(rb"(?:#|%:|\?\?=)" + GAP + rb"(?:include(?:_next)?|import)\b" + GAP + NAME, re.S)
UNKNOWN = re.compile(rb"\.include\b|__has_include|__has_embed|#\s*embed\b|\binclude_alias\b")
# Options that bring in files in other ways.
OTHER_FILES = re.compile(r"-{1,2}(pre-?include|include|options-file|optf|.*pch.*)(=|$)|@")
FOLDER = re.compile(r"(?:-I|--include-path|-include-path)(?:=|$)|-I")


def has_include(texts: Iterable[str]) -> bool:
    """Tells whether any of the texts has an #include, or what may be one."""
    return any("include" in text or "import" in text for text in texts)


def folders_of(options: Sequence[str]) -> list[str] | None:
    """The folders that a compiler's options name for headers; None where an option reads other files."""
    folders = []
    rest = iter(options)
    for option in rest:
        if match := FOLDER.match(option):
            folders.append(option[match.end() :].strip() or next(rest, ""))
        elif OTHER_FILES.match(option):
            return None
    return folders


def included(
    texts: Iterable[str], headers: Mapping[str, str], folders: Sequence[str], toolkit: Sequence[str]
) -> list[bytes] | None:
    """The files that texts may include, each as its path and its content; None where that is not known.

    Arguments:
        texts: of the sources.
        headers: mapping from the names that an #include may say to texts, which come before all files.
        folders: searched for headers.
        toolkit: further folders, of the compiler's own headers, which are known by their size and time, and
            include none but each other.
    """
    contents: dict[str, bytes] = {}
    waiting = [(text.encode(errors="surrogateescape"), "") for text in (*texts, *headers.values())]
    while waiting:
        text, folder = waiting.pop()
        text = CONTINUED.sub(b"", text)
        if UNKNOWN.search(text):
            return None
        for quoted, angled, other in DIRECTIVE.findall(text):
            if other:
                return None
            name = os.fsdecode(quoted or angled)
            if name in headers:
                continue
            for path in candidates(name, folder, folders):
                if path not in contents and (content := content_of(path)) is not None:
                    contents[path] = content
                    waiting.append((content, os.path.dirname(path)))
            for path in candidates(name, "", toolkit):
                if path not in contents and (stamp := files.stamp(path)):
                    contents[path] = stamp
    return [part for path in sorted(contents) for part in (os.fsencode(path), contents[path])]


def candidates(name: str, beside: str, folders: Sequence[str]) -> list[str]:
    if os.path.isabs(name):
        return [os.path.normpath(name)]
    return [os.path.normpath(os.path.join(folder, name)) for folder in (beside, *folders) if folder]


def content_of(path: str) -> bytes | None:
    try:
        return files.read(path, MOST_BYTES)
    except OSError:
        return None
