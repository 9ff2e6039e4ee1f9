"""The Sphinx extension that puts into the site what is made of data, and links the names that prose uses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

from . import pages, pictures, reference, tables

MARKER = re.compile(r"^<!-- made: (\w+)(?: (\S+))? -->$", re.M)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
STACKED = range(3, 7)  # columns of tables that are lists on a phone; wider ones are scrolled
NAME = re.compile(r"([A-Za-z_][\w.]*)(?:\(.*\))?", re.S)


def write_pages(app: Sphinx) -> None:
    reference.write(Path(app.srcdir) / "reference" / "api")
    pages.write(Path(app.srcdir))


def fill_markers(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces lines such as <!-- made: settings --> by what a function of tables returns; mends links."""
    if not docname.startswith("made/"):  # where it is done
        source[0] = pages.relinked(source[0], Path("docs", f"{docname}.md"), docname)
    source[0] = MERMAID.sub(lambda match: pictures.flowchart(match[1]), source[0])
    source[0] = MARKER.sub(lambda match: tables.MADE[match[1]](*filter(None, [match[2]])), source[0])


def is_in_first_column(node: nodes.Node) -> bool:
    cell = node.parent
    while cell is not None and not isinstance(cell, nodes.entry):
        cell = cell.parent
    return cell is not None and cell.parent.index(cell) == 0


def class_around(node: nodes.Node) -> str:
    """The class in whose description a node stands, as a dotted name; empty where in none."""
    while node is not None:
        if isinstance(node, desc) and node["objtype"] == "class":
            return str(node[0]["ids"][0]) if node[0]["ids"] else ""
        node = node.parent
    return ""


def resolve(name: str, owner: str = "") -> str | None:
    """The name in the reference that a name in prose means.

    Arguments:
        owner: the class whose text it is, whose own names come first.
    """
    known = reference.targets()
    if f"{owner}.{name}" in known:
        return known[f"{owner}.{name}"]
    if name.startswith("cuda."):
        name = f"accelrt.{name.removeprefix('cuda.')}"
    for candidate in (name, f"accelrt.{name}", f"accelrt.memory.{name}"):
        if candidate in known:
            return known[candidate]
    return None


class LinkNames(SphinxPostTransform):
    """Links code in prose that names something public: `cuda.Stream`, `MemPool.sleep()`, `empty_cache()`."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            self.link(literal)

    def link(self, literal: nodes.literal) -> None:
        text = literal.astext()
        match = NAME.fullmatch(text)
        if match is None or isinstance(literal.parent, nodes.reference | pending_xref | nodes.title):
            return
        if self.env.current_document.docname.endswith("_names") and is_in_first_column(literal):
            return  # a name of the other library
        if not (text.endswith(")") or "." in text or text[:1].isupper() or "_" in text):
            return  # a word such as `copy` or `device` is an argument as often
        target = resolve(match[1], class_around(literal))
        objects = self.env.get_domain("py").objects  # type: ignore[attr-defined]
        if target in objects:
            found = objects[target]
            node = make_refnode(
                self.app.builder,
                self.env.current_document.docname,
                found.docname,
                found.node_id,
                literal.deepcopy(),
                target,
            )
            literal.replace_self(node)


class NarrowTables(SphinxPostTransform):
    """Prepares tables for a phone, where site.css has each row of three to six cells stand as a list.

    The cells get their column's heading, which is hidden where the table is one; names in cells may break
    behind a dot or an underscore.
    """

    default_priority = 6  # after LinkNames
    formats = ("html",)

    def run(self, **_: Any) -> None:
        for table in self.document.findall(nodes.table):
            heads = [[entry.astext() for entry in row] for head in table.findall(nodes.thead) for row in head]
            for literal in list(table.findall(nodes.literal)):
                self.allow_breaks(literal)
            if len(heads) == 1 and len(heads[0]) in STACKED:
                table["classes"].append("stacked")
                for body in table.findall(nodes.tbody):
                    for row in body:
                        self.label(row, heads[0])

    def allow_breaks(self, literal: nodes.literal) -> None:
        parts = re.split(r"(?<=[._/])(?=\w)", literal.astext())
        literal.children = []
        for part in parts:
            literal += nodes.raw("", "<wbr>", format="html") if literal.children else nodes.Text("")
            literal += nodes.Text(part)

    def label(self, row: nodes.Node, heads: list[str]) -> None:
        for head, cell in list(zip(heads, row.children, strict=True))[1:]:
            if head and cell.astext():
                cell.children[0].insert(0, nodes.inline("", f"{head}: ", classes=["column"]))


def find_annotation(app: Sphinx, env: Any, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Where a signature names a type by its bare name: its entry, or the text alone."""
    if node.get("refdomain") != "py":
        return None
    target = resolve(str(node["reftarget"]).removeprefix("accelrt.").rpartition(".")[2])
    objects = env.get_domain("py").objects
    if target in objects and objects[target].objtype in ("class", "exception"):
        found = objects[target]
        return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content, target)
    return content


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write_pages)
    app.connect("source-read", fill_markers)
    app.connect("missing-reference", find_annotation)
    app.add_post_transform(LinkNames)
    app.add_post_transform(NarrowTables)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
