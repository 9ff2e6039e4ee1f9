"""The pages for whoever works on accelrt: what they name is there, and each is read in one sitting."""

import ast
import re
import runpy
from pathlib import Path

import pytest

import accelrt

pytestmark = pytest.mark.own_process
ROOT = Path(accelrt.__file__).parent
TOP = ROOT.parent
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".md", ".h", ".hpp", ".c", ".toml", ".json", ".npz")
FOREIGN = {"cuda.h", "cudaTypedefs.h"}
MOST_LINES = {"accelrt/DESIGN.md": 165, "CONTRIBUTING.md": 200}
PAGES = sorted(
    path.relative_to(TOP)
    for pattern in (
        "accelrt/**/[A-Z]*.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/*.md",
        "docs/decisions/*.md",
        "docs/floors.md",
    )
    for path in TOP.glob(pattern)
)


def files_of_project():
    """Paths from the top, of all but what tools write."""
    found = {path.relative_to(TOP) for path in TOP.iterdir() if path.is_file()}
    for folder in (".ci", "accelrt", "benchmarks", "docs", "examples", "tests"):
        found |= {path.relative_to(TOP) for path in (TOP / folder).rglob("*")}
    return {str(path) for path in found} | FOREIGN


def files_named(text):
    """Paths in backticks that name one file of a source's suffix, without placeholders."""
    for name in re.findall(r"`([^`\s]+)`", text):
        if name.endswith(SUFFIXES) and re.fullmatch(r"[\w./-]+", name) and name[0] not in "/":
            yield re.sub(r"^(\.\./)+", "", name)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_a_page_names_are_there(page):
    files = files_of_project()
    names = list(files_named((TOP / page).read_text()))
    assert [name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_a_file_that_is_not_there_is_seen():
    assert list(files_named("`a.pyx`, `../b/c.py`, `N/*.py`, `d` and `<e.h>`")) == ["a.pyx", "b/c.py"]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_read_in_one_sitting(page):
    assert len((TOP / page).read_text().splitlines()) <= MOST_LINES.get(str(page), 150)


def listed_in(package):
    """The modules that a package's text lists: names at the starts of lines, before two blanks."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    for line in text.splitlines():
        if found := re.match(r"(\w[\w, /]*?) {2,}\S", line):
            yield from re.split(r", ?", found[1])


PACKAGES = sorted(path.parent.relative_to(TOP) for path in ROOT.rglob("__init__.py") if path.parent != ROOT)


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_modules_that_a_package_lists_are_there(package):
    there = {path.name.partition(".")[0] for path in (TOP / package).iterdir()}
    assert [name for name in listed_in(TOP / package) if name.strip("/") not in there] == []


def test_the_picture_of_the_floors_is_that_of_the_test_that_holds_them():
    script = runpy.run_path(str(TOP / "docs" / "floors.py"))
    text = script["page"](runpy.run_path(str(script["ARROWS"])))
    assert script["PAGE"].read_text() == text, "python docs/floors.py --write"


def test_the_picture_leaves_out_what_follows_from_the_rest():
    needed = runpy.run_path(str(TOP / "docs" / "floors.py"))["needed"]
    assert needed([set(), {0}, {0, 1}, {0, 2}]) == [set(), {0}, {1}, {2}]
    assert needed([set(), set(), {0, 1}]) == [set(), set(), {0, 1}]
