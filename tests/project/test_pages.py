"""The pages for whoever works on accelrt: what they name is there, and each is read in one sitting."""

import ast
import importlib
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
NO_MODULES = {"accelrt.device_interfaces"}  # a group of entry points
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
        found.add(Path(folder))
    return {str(path) for path in found} | FOREIGN


def files_named(text):
    """Paths in backticks, without placeholders: files of a source's suffix, folders, and "name.*"."""
    for name in re.findall(r"`([^`\s]+)`", text):
        is_path = re.fullmatch(r"[./]*\w[\w./-]*(\.\*)?", name) and name[0] != "/" and "NAME" not in name
        is_path = is_path and name not in SUFFIXES
        if is_path and name.endswith((*SUFFIXES, "/", ".*")):
            yield name.rstrip("/")


def are_there(name, files, folder=TOP):
    """Whether some file's path ends with a name; one that begins with ../ goes from the page's folder."""
    if name.startswith("../"):
        return any(folder.glob(name))
    if name.endswith(".*"):
        return any(f"/{name[:-1]}" in f"/{file}" for file in files)
    return any(f"/{file}".endswith(f"/{name}") for file in files)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_a_page_names_are_there(page):
    files = files_of_project()
    names = list(files_named((TOP / page).read_text()))
    assert [name for name in names if not are_there(name, files, (TOP / page).parent)] == []


def test_a_file_that_is_not_there_is_seen():
    text = "`a.pyx`, `../b/c.py`, `N/*.py`, `x/NAME.py`, `d`, `.pyx`, `e/f/`, `g.*` and `<e.h>`"
    assert list(files_named(text)) == ["a.pyx", "../b/c.py", "e/f", "g.*"]
    assert [are_there(f"../{name}/DESIGN.md", set(), ROOT / "core") for name in ("driver", "x")] == [
        True,
        False,
    ]
    assert [are_there("b/c.py", {name}) for name in ("a/b/c.py", "ab/c.py")] == [True, False]
    assert [are_there("g.*", {name}) for name in ("a/g.pyx", "a/gh.pyx")] == [True, False]


def names_absent(text):
    """Dotted names below accelrt, in backticks, that are neither modules nor in one."""
    for name in set(re.findall(r"`(accelrt(?:\.\w+)+)(?:\(|`)", text)):
        thing, parts = accelrt, name.split(".")
        try:
            for count, part in enumerate(parts[1:], 2):
                thing = getattr(thing, part, None) or importlib.import_module(".".join(parts[:count]))
        except ImportError:
            if name not in NO_MODULES:
                yield name


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_dotted_names_of_a_page_are_there(page):
    assert list(names_absent((TOP / page).read_text())) == []


def test_a_dotted_name_that_is_not_there_is_seen():
    text = "`accelrt.memory.dump_snapshot(path)`, `accelrt.core.files`, `accelrt.no` and `accelrt.core.here`"
    assert sorted(names_absent(text)) == ["accelrt.core.here", "accelrt.no"]


def strays(text):
    """(name, file) of what a page says is in a file, "`poll` (`miss.pyx`)", and is not."""
    name, file = r"`([a-z_]\w*)`", r"`([\w./]+)\.(?:pyx|pxd|py)`"
    pairs = re.findall(rf"{name} \({file}\)", text)
    pairs += [pair[::-1] for pair in re.findall(rf"\({file}, {name}", text)]
    sources = [path for path in ROOT.rglob("*.p[yx]*") if path.suffix in (".py", ".pyx", ".pxd")]
    for name, file in pairs:
        stem = re.sub(r"^(\.\./)+", "", file)
        texts = [path.read_text() for path in sources if str(path.with_suffix("")).endswith(f"/{stem}")]
        if not any(re.search(rf"\b{name}\b", source) for source in texts):
            yield name, file


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_finds_in_a_file_is_in_it(page):
    assert list(strays((TOP / page).read_text())) == []


def test_a_function_that_is_in_no_such_file_is_seen():
    text = "`pin` (`allocator/miss.pyx`), `poll` (`miss.pyx`), (`miss.pyx`, `poll`), (`heaps.pyx`, `fly`)"
    assert list(strays(text)) == [("pin", "allocator/miss"), ("fly", "heaps")]


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


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_a_packages_list_forgets_no_module(package):
    listed = {name.strip("/") for name in listed_in(TOP / package)}
    modules = {path.stem for path in (TOP / package).iterdir() if path.suffix in (".py", ".pyx", ".pxd")}
    modules |= {path.parent.name for path in (TOP / package).glob("*/__init__.py")}
    assert not listed or sorted(modules - listed - {"__init__"}) == []


def test_the_picture_of_the_floors_is_that_of_the_test_that_holds_them():
    script = runpy.run_path(str(TOP / "docs" / "floors.py"))
    text = script["page"](runpy.run_path(str(script["ARROWS"])))
    assert script["PAGE"].read_text() == text, "python docs/floors.py --write"


def test_the_picture_leaves_out_what_follows_from_the_rest():
    needed = runpy.run_path(str(TOP / "docs" / "floors.py"))["needed"]
    assert needed([set(), {0}, {0, 1}, {0, 2}]) == [set(), {0}, {1}, {2}]
    assert needed([set(), set(), {0, 1}]) == [set(), set(), {0, 1}]
