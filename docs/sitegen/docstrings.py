"""Turns docstrings into Markdown: plain English with sections (Arguments, Returns, Raises, Attributes)."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

SECTIONS = "Arguments|Returns|Raises|Attributes|Yields"
HEADER = re.compile(rf"({SECTIONS})((?:, (?:{SECTIONS}))*)\b([^:]*):(.*)", re.S)
STARTS_SECTION = re.compile(rf"(?:{SECTIONS})(?:, (?:{SECTIONS}))*(?::| \()")
ITEM = re.compile(r"(\*{0,2}[A-Za-z_][\w.]*(?:, \*{0,2}[A-Za-z_][\w.]*)*): (.*)", re.S)
REFERS = re.compile(rf"(\b(?:{SECTIONS})(?:, (?:{SECTIONS}))*: as (?:of )?)([A-Za-z_][\w.]*\w)")
SIGNATURE = re.compile(r"^\w+\([^\n]*\)\n--\n\n")
LISTS_FILE = re.compile(r"^[\w./, *]+? {2,}\S")
CODE = re.compile(
    r"""`[^`]+`                                   # marked already
    | (?<![\w/."'-])(?:
        [A-Za-z_][\w.]*\([^()\s]*\)               # a call without blanks
      | [A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+           # a dotted name
      | [a-z_]\w*=(?:"[^"\s]*"|\w+)               # a keyword and its value
      | [A-Za-z]*_\w+                             # with an underscore
      | [A-Z][a-z]+[A-Z]\w*                       # of several words
      | CUDA[A-Z][a-z]\w*
      | (?:True|False|None|Stream|Event|Array|Buffer|Kernel|Launcher)\b(?!['-])
    )""",
    re.X,
)
# A page, to which docs/reference/api links; its underscores are escaped by then.
PAGE = re.compile(r"docs/((?:guide|reference)/[\w\\]+\.md)")
NO_CODE = {"i.e", "e.g", "NumPy", "CuPy", "PyTorch", "KiB", "MiB", "GiB", "TiB"}


def without_signature(doc: str | None) -> str:
    """A docstring without what compiled classes begin with for inspect: NAME(...) and a line."""
    return inspect.cleandoc(SIGNATURE.sub("", doc or ""))


def first_sentence(doc: str | None) -> str:
    """The first sentence, as Markdown of one line."""
    paragraph = " ".join(without_signature(doc).partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.][.:;])\s+(?=[A-Z\"(])", f"{paragraph} ")[0].strip()
    return inline(re.split(rf" (?:{SECTIONS}):", sentence)[0])


def inline(text: str) -> str:
    """Text whose code is marked and whose pages of the site are links; nothing else of it is Markdown."""
    parts, end = [], 0
    for match in CODE.finditer(text):
        word = match[0]
        if word in NO_CODE:
            continue
        parts += [escape(text[end : match.start()]), word if word.startswith("`") else f"`{word}`"]
        end = match.end()
    marked = "".join([*parts, escape(text[end:])])
    return PAGE.sub(lambda match: f"[](../../{match[1].replace(chr(92), '')})", marked)


def escape(text: str) -> str:
    return re.sub(r"([\\*_<>\[\]{}|$~`])", r"\\\1", text)


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def is_code(lines: list[str]) -> bool:
    try:
        ast.parse(dedented(lines))
    except SyntaxError:
        return False
    return True


def markdown(doc: str | None, drop_files: bool = False) -> str:
    """A docstring as Markdown.

    Arguments:
        drop_files: leave out lists of a package's files.
    """
    lines = REFERS.sub(r"\1`\2`", without_signature(doc)).splitlines()
    blocks: list[str] = []
    index = 0
    while index < len(lines):
        if not lines[index].strip():
            index += 1
            continue
        end = end_of_block(lines, index)
        block = lines[index:end]
        if indent_of(lines[index]) == 0:
            if not (drop_files and any(LISTS_FILE.match(line) for line in block)):
                blocks.append(paragraph(" ".join(line.strip() for line in block)))
        elif lines[index - 1].strip() or (ITEM.match(block[0].strip()) and not is_code(block)):
            text = items(block)
            is_prose = not text.startswith("- ") and blocks[-1].endswith(":**")
            blocks[-1:] = [f"{blocks[-1]} {text}"] if is_prose else [blocks[-1], text]
        else:
            blocks.append(f"```{'python' if is_code(block) else 'text'}\n{dedented(block)}\n```")
        index = end
    return "\n\n".join(blocks)


def end_of_block(lines: list[str], start: int) -> int:
    """The line behind the block that begins at one: of prose, of a section's entries, or of code."""
    is_indented = indent_of(lines[start]) > 0
    end = start + 1
    while end < len(lines) and lines[end].strip() and (indent_of(lines[end]) > 0) == is_indented:
        if not is_indented and STARTS_SECTION.match(lines[end]):
            return end
        end += 1
    following = next((index for index in range(end, len(lines)) if lines[index].strip()), end)
    is_code_block = is_indented and start > 0 and not lines[start - 1].strip()
    if is_code_block and end < following < len(lines) and indent_of(lines[following]) > 0:
        return end_of_code(lines, following)
    return end


def end_of_code(lines: list[str], start: int) -> int:
    """The line behind code that goes on behind a blank line."""
    end = start
    while end < len(lines) and (not lines[end].strip() or indent_of(lines[end]) > 0):
        end += 1
    return end


def dedented(block: list[str]) -> str:
    return textwrap.dedent("\n".join(block)).strip()


def paragraph(text: str) -> str:
    """Prose, or the head of a section, with what stands behind its colon."""
    header = HEADER.fullmatch(text) if STARTS_SECTION.match(text) else None
    if header is None:
        return inline(text)
    name, others, remark, rest = header.groups()
    if remark.strip():
        return f"**{name}{others}** {inline(remark.strip())}: {inline(rest.strip())}".rstrip()
    return f"**{name}{others}:** {inline(rest.strip())}".rstrip()


def items(block: list[str]) -> str:
    """The lines below a section's head: entries "name: text", or prose."""
    least = min(indent_of(line) for line in block if line.strip())
    entries: list[list[str]] = []
    for line in block:
        starts = indent_of(line) == least and (not entries or bool(ITEM.match(line.strip())))
        if not line.strip():
            continue
        if starts or (entries and indent_of(line) == least and entries[-1][-1].rstrip().endswith(".")):
            entries.append([line.strip()])
        else:
            entries[-1].append(line.strip())
    texts = [" ".join(entry) for entry in entries]
    if not any(ITEM.match(text) for text in texts):
        return inline(" ".join(texts))
    return "\n".join(f"- {entry_markdown(text)}" for text in texts)


def entry_markdown(text: str) -> str:
    match = ITEM.match(text)
    if match is None:
        return inline(text)
    names = ", ".join(f"`{name}`" for name in match[1].split(", "))
    return f"{names}: {inline(match[2])}"
