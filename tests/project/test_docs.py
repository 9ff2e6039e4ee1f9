"""The pages for users: every block of Python runs alone, every link leads somewhere, tables are whole."""

import collections
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import page_blocks
import pytest
from cli_command import ROOT
from compiled import compile_extension
from public_texts import sitegen as generator

import accelrt
from accelrt import env, errors

pytestmark = pytest.mark.own_process
DOCS = ROOT / "docs"
MADE = ("docs/made/", "docs/reference/api/")  # written when the site is built
PAGES = sorted(
    path
    for path in ("README.md", *(str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md")))
    if not path.startswith(MADE)
)
ALL_MARKDOWN = sorted(
    {*PAGES, *(str(path.relative_to(ROOT)) for folder in ("accelrt", "benchmarks", "examples", "tests")
               for path in (ROOT / folder).rglob("*.md")), *(path.name for path in ROOT.glob("*.md"))}
)  # fmt: skip
README = (ROOT / "README.md").read_text()
TOUR = (DOCS / "guide" / "tour.md").read_text()
ON_GPU = os.environ.get("ACCELRT_DRIVER", "host") != "host"
SECONDS = 300
NOT_RUN = {"", "cython", "c", "cpp", "bash", "text", "mermaid", "toml"}


def python_blocks(page):
    """(line, marks, source) of a page's blocks of Python."""
    text = (ROOT / page).read_text()
    return [
        (line, marks, source) for line, kind, marks, source in page_blocks.blocks(text) if kind == "python"
    ]


def settings(**others):
    """The environment of who has set nothing but the driver."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ACCELRT_")}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return plain | {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": paths} | others


def run(*arguments, said=None, folder=None, stderr=subprocess.PIPE, **environment):
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        env=settings(**environment),
        input=said,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + (done.stderr or "")
    return done.stdout


def device():
    return {"ACCELRT_DRIVER": "cuda" if ON_GPU else "host"}


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_blocks_of_a_page_run(page, tmp_path):
    together, missing = [], []
    for line, marks, source in python_blocks(page):
        lacks = page_blocks.absent(marks["needs"], ON_GPU)
        if lacks:
            missing.append(f"line {line} needs {lacks}")
        elif marks["alone"] or marks["needs"]:
            program = tmp_path / f"line_{line}.py"
            program.write_text(source)
            run(program, folder=tmp_path, **device())
        else:
            together.append((line, source))
    if together:
        run(page_blocks.__file__, page, said=json.dumps(together), folder=tmp_path, **device())
    elif missing:
        pytest.skip("; ".join(missing))


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_blocks_are_of_languages_that_are_known(page):
    found = {kind for _, kind, _, _ in page_blocks.blocks((ROOT / page).read_text())}
    assert found - NOT_RUN <= {"python"}


def block(text, word, language="python"):
    """The block that holds a word."""
    (found,) = [
        source for _, kind, _, source in page_blocks.blocks(text) if kind == language and word in source
    ]
    return found


@pytest.mark.parametrize("driver", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"ACCELRT_DRIVER": "host"}])
def test_the_tour_runs_with_and_without_a_gpu(driver):
    check = "\nassert (a == b).all()\n"
    figures = run("-c", block(README, "wait_event") + check, **driver)
    allocated, reserved, retries = figures.split()
    assert (int(allocated), int(retries)) == (0, 0)
    assert int(reserved) >= 2 << 20
    assert run("-c", block(README, "cuda.graph("), **driver) == "12.0\n"


def test_an_array_is_added_to_each_of_its_rows():
    rows = run("-c", block(TOUR, "axpy(numbers"), ACCELRT_DRIVER="host").splitlines()
    assert [row.strip("[] ").split() for row in rows][1] == ["8.", "11.", "14.", "17."]


def test_the_numbers_that_are_drawn_are_small_and_not_all_zero():
    drawn = "\nassert 0 < abs(noise.numpy()).max() < 1\n"
    run("-c", block(TOUR, "cuda.random.Generator") + drawn, ACCELRT_DRIVER="host")


def test_the_memory_of_a_tag_sleeps_and_wakes():
    freed, copied, seconds, asleep = run("-c", block(TOUR, "sleepable"), ACCELRT_DRIVER="host").split()
    assert int(freed) == int(asleep) >= int(copied) == 8 << 20
    assert float(seconds) > 0


def test_the_fastest_of_two_ways_is_found(tmp_path):
    environment = {"ACCELRT_DRIVER": "host", "ACCELRT_TUNABLE_FILENAME": str(tmp_path / "found.csv")}
    candidate, most = run("-c", block(TOUR, "tunable.enable()"), **environment).rsplit(maxsplit=1)
    assert (candidate in ("Default", "in rows"), float(most)) == (True, 6)
    assert f",{candidate}," in (tmp_path / "found0.csv").read_text()


def test_processes_share_memory(tmp_path):
    program = tmp_path / "shared.py"
    program.write_text(block(TOUR, "accelrt.sharing  #"))
    printed = run("-W", "error", program, stderr=subprocess.STDOUT, ACCELRT_DRIVER="host")
    assert printed.split() == [
        "[[42",
        *["42"] * 2,
        "42]",
        "[42",
        *["42"] * 2,
        "42]",
        "[42",
        *["42"] * 2,
        "42]]",
    ]


def test_a_process_reduces_as_its_launcher_places_it():
    check = "\nassert (gradients.numpy() == 1).all()\n"
    run("-c", block(TOUR, "init_from_environment") + check, ACCELRT_DRIVER="host")


def test_the_cython_example_compiles_and_runs(tmp_path):
    source = tmp_path / "example.pyx"
    source.write_text(block(README, "nogil", "cython") + "\n\ndef run():\n    return work(0, 0)\n")
    compile_extension("example", tmp_path, source)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport accelrt, example\n"
        "accelrt.is_available() or accelrt.init(driver='host')\n"
        "print(example.run(), accelrt.memory_allocated())"
    )
    assert run("-c", code).split() == ["0", "0"]


def commands(folder):
    """A folder with the commands "python" and "accelrt", as an installation has them."""
    for name, words in (("python", ""), ("accelrt", "-m accelrt")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


FILE = re.compile(r"^(?:/\*|#|//) ([\w.]+\.(?:c|cpp|pyx))\b")


@pytest.mark.parametrize("page", ["docs/guide/c.md", "docs/guide/cython.md", "docs/guide/kernels.md"])
def test_programs_of_a_page_are_built_and_run_in_an_empty_folder(page, tmp_path):
    """A block in C or Cython begins with the name of its file; one for a shell builds it, and runs try.py."""
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        pytest.skip("gcc or g++ is not installed")
    (tmp_path / "bin").mkdir()
    path = f"{commands(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}"
    driver = {"ACCELRT_DRIVER": "host"} if "kernels" in page else device()
    ran = 0
    for _, kind, _, source in page_blocks.blocks((ROOT / page).read_text()):
        name = FILE.match(source)
        if name and kind in ("c", "cpp", "cython"):
            (tmp_path / name[1]).write_text(source)
        elif kind == "bash" and "python try.py" in source:
            environment = settings(PATH=path, CFLAGS="-O0 -g0", **driver)
            subprocess.run(
                ["bash", "-e", "-c", source], cwd=tmp_path, env=environment, check=True, timeout=SECONDS
            )
            ran += 1
    assert ran == (2 if page.endswith("/c.md") else 1)


def test_a_backend_is_chosen_as_the_tour_says(pluggable):
    code = block(TOUR, "/path/to/lib.so").replace("/path/to/lib.so", pluggable)
    code = code.replace("my_alloc", "books_alloc").replace("my_free", "books_free")
    start = "import accelrt\naccelrt.is_available() or accelrt.init(driver='host')\n"
    use = "\nprint(accelrt.memory.get_allocator_backend())\naccelrt.Buffer(64)\n"
    assert run("-c", start + code + use) == "pluggable\n"
    call = block(TOUR, "select_backend").splitlines()[-1]
    refusal = f"try:\n    {call}\nexcept cuda.NotSupportedError as error:\n    print(error)\n"
    printed = run(
        "-c", f"{start}import accelrt as cuda\n{refusal}print(cuda.memory.get_allocator_backend())\n"
    )
    assert "cudaMallocAsync" in printed or "native" in printed


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_takes_its_memory_from_accelrt():
    use = (
        "if torch.cuda.is_available():\n    x = torch.zeros(1 << 20, device='cuda')\n"
        "    assert cuda.memory_allocated() >= x.nbytes\n"
    )
    start = "import torch\nif torch.version.cuda is None:\n    raise SystemExit\n"
    run("-c", start + block(TOUR, "interop.torch.install()") + use)


@pytest.mark.gpu
def test_cupy_and_numba_take_their_memory_from_accelrt():
    pytest.importorskip("cupy")
    pytest.importorskip("numba.cuda")
    use = (
        "import cupy, numpy\nfrom numba import cuda as numbas\n"
        "x, y = cupy.zeros(1 << 20, 'uint8'), numbas.to_device(numpy.zeros(1 << 20, 'uint8'))\n"
        "print(cuda.memory_allocated())"
    )
    assert run("-c", block(TOUR, "interop.cupy.install()") + use) == f"{2 << 20}\n"


@pytest.mark.gpu
@pytest.mark.parametrize("word", ["rmm.install()", "from_rmm(", "from_resource("])
def test_rmm_and_cuda_core_are_used_as_the_tour_says(word):
    for library in ("rmm", "cuda.core"):
        pytest.importorskip(library)
    use = "\nimport accelrt\nmine = accelrt.Buffer(64)\nassert accelrt.memory_allocated() >= 64\n"
    run("-c", block(TOUR, word) + use, ACCELRT_DRIVER="cuda")


def plain_blocks(page):
    text = (ROOT / page).read_text()
    return [source for _, kind, _, source in page_blocks.blocks(text) if kind in ("", "bash")]


@pytest.mark.parametrize("page", PAGES)
def test_lines_for_a_shell_are_such_and_name_what_there_is(page):
    for text in plain_blocks(page):
        if page == "README.md" or "```bash\n" in (ROOT / page).read_text():
            subprocess.run(["bash", "-n", "-c", text], check=True)
        named = text.replace(".venv/bin/activate", "").replace("build/site", "")
        for path in re.findall(r"(?<!\S)((?:\.ci|benchmarks|examples|tests|docs)/[\w./]+|setup\.py)", named):
            assert (ROOT / path).exists() or not (ROOT / ".ci").exists(), path


def test_the_two_commands_are_the_first_that_a_reader_meets():
    lines = next(text for text in plain_blocks("README.md") if "demo" in text).splitlines()
    assert lines[1] == "python -m pip install -e . && python -m accelrt demo"
    assert lines[2] == "python -m pip install -e '.[test]' && python -m pytest"
    (command,) = [text for text in plain_blocks("README.md") if "run_all.py" in text]
    assert "ACCELRT_DRIVER=cuda python3 -m pytest && python3 benchmarks/run_all.py" in command


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.M | re.S)


def anchors(text):
    """The anchors of a page's headings, as GitHub and the site make them."""
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def has_anchor(text, anchor):
    return "<!-- made:" in text or anchor in anchors(text)  # headings that are made, Sphinx checks


@pytest.mark.parametrize("page", ALL_MARKDOWN)
def test_links_within_the_tree_lead_somewhere(page):
    dead = []
    for match in LINK.finditer(CODE.sub("", (ROOT / page).read_text())):
        target = next(filter(None, match.groups()))
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        name = os.path.relpath(file, ROOT)
        if name.startswith(MADE):
            dead += [target] * (Path(name).stem not in made_pages(name))
        elif not file.exists() or (anchor and not has_anchor(file.read_text(), anchor)):
            dead.append(target)
    assert dead == []


def made_pages(name):
    """The names of the pages that are made beside one."""
    sitegen = generator("reference" if "/api/" in name else "pages")
    if "/api/" in name:
        return {*sitegen.PAGES, "index"}
    return {Path(page).stem for page in sitegen.COPIES}


def test_links_and_anchors_are_read_as_they_are_written():
    text = '# A `b` (c)\n[x](y.md#z) ![p](q.png) <img src="r.png"> `[no](no.md)`\n```\n[no](no)\n# no\n```\n'
    found = [next(filter(None, match.groups())) for match in LINK.finditer(CODE.sub("", text))]
    assert found == ["y.md#z", "q.png", "r.png"]
    assert list(anchors(text)) == ["a-b-c"]


def test_files_that_the_readme_names_are_there():
    named = re.findall(r"`((?:accelrt|benchmarks|tests)/[\w./]+)`", README)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_table_of_variables_has_every_one_that_is_read():
    package = Path(inspect.getfile(accelrt)).parent
    sources = [path for path in package.rglob("*") if path.suffix in (".py", ".pyx", ".pxd")]
    sources.remove(package / "include" / "headergen.py")  # which writes constants of C
    names = {name for path in sources for name in re.findall(r"\bACCELRT_[A-Z_]+\b", path.read_text())}
    # Of the build, a C macro, and the beginning of the names that are left to tests.
    names -= {*env.BUILD_VARIABLES, "ACCELRT_EXPORT", "ACCELRT_TEST_"}
    table = generator("tables").environment().partition("##")[0]
    assert names == set(re.findall(r"^\| `(ACCELRT_\w+)`", table, re.M))


def test_the_page_of_the_command_line_has_every_command():
    text = generator("tables").commands()
    commands = {"info", "top", "export", "demo", "record", "replay", "tune", "tune offline", "view", "plot"}
    commands |= {"checkpoint", "completion", "config", "doctor", "export-trace"}
    assert set(re.findall(r"^## accelrt (.+)$", text, re.M)) == commands


def test_the_page_of_settings_has_every_key_and_what_it_does():
    text = generator("tables").settings()
    keys = generator("tables").keys.KEYS
    assert re.findall(r"^## `(\w+)`$", text, re.M) == list(keys)


def test_the_index_of_errors_advises_on_each():
    advice = tomllib.loads((DOCS / "errors.toml").read_text())
    assert set(advice) == {name for name in errors.__all__ if getattr(errors, name).__name__ == name}
    assert {frozenset(entry) for entry in advice.values()} == {frozenset({"again", "what"})}
    assert generator("tables").error_index().count("\n- **What to do:** ") == len(advice)


def test_the_reference_has_every_public_name():
    contents = generator("reference").contents()
    shown = {
        name for entries in contents.values() for entry in entries for name in (entry.name, *entry.aliases)
    }
    modules = {*accelrt.core.names.MODULES.split()}
    assert {f"accelrt.{name}" for name in accelrt.__all__ if name not in modules} <= shown
    assert {f"accelrt.memory.{name}" for name in accelrt.memory.__all__} <= shown
    texts = [generator("reference").page(page) for page in contents]
    assert [text for text in texts if not text.startswith("# ")] == []


def test_every_function_and_class_of_the_reference_says_what_it_does():
    contents = generator("reference").contents()
    entries = [entry for entries in contents.values() for entry in entries]
    assert [entry.name for entry in entries if callable(entry.value) and not entry.doc.strip()] == []


PEERS = ("cupy", "rmm", "cuda_core")


def is_there(name):
    """Whether a dotted name below accelrt leads to something."""
    parts = name.split(".")
    thing = accelrt
    for count, part in enumerate(parts[1:], 2):
        if getattr(thing, part, None) is None:
            try:
                importlib.import_module(".".join(parts[:count]))
            except ImportError:
                return name == "accelrt.interop.cuda_core.MemoryResource"  # made where cuda.core is installed
        thing = getattr(thing, part)
    return True


@pytest.mark.parametrize("peer", PEERS)
def test_names_of_accelrt_in_a_peers_table_are_there(peer):
    data = tomllib.loads((DOCS / f"{peer}_names.toml").read_text())
    assert {part for table in data.values() for part in table} <= {"differs", "left_out"}
    named = [text.partition(":")[0] for table in data.values() for text in table.get("differs", {}).values()]
    assert len(named) > 30
    assert [name for name in named if not name.startswith("accelrt.") or not is_there(name)] == []
    left_out = [text for table in data.values() for text in table.get("left_out", {}).values()]
    assert [text for text in left_out if re.match(r"accelrt[.\w]+: ", text)] == []  # which is there after all
    notes = " ".join(left_out)
    assert [name for name in re.findall(r"\baccelrt(?:\.\w+)+", notes) if not is_there(name)] == []


def test_every_test_of_a_peer_that_does_not_pass_has_a_reason():
    data = tomllib.loads((DOCS / "cuda_core_tests.toml").read_text())
    explained = collections.Counter()
    for reason in data["reasons"]:
        explained[reason["file"], reason["kind"]] += reason["count"]
        for name in re.findall(r"\bmemory\.[A-Za-z]\w*", reason["why"]):
            assert is_there(f"accelrt.{name}")
    counted = {
        (file, kind): each[kind]
        for file, each in data["files"].items()
        for kind in ("differs", "missing")
        if kind in each
    }
    assert counted == dict(explained)
    assert sum(each["passed"] for each in data["files"].values()) > 900


def test_a_name_that_is_not_there_is_seen():
    assert not is_there("accelrt.memory.no")
    assert is_there("accelrt.MemPool.sleep")


DOCSTRING = """Does it, by `x` and some_name.

Arguments:
    size, count: int, bytes; more of it
        on the next line.
Returns:
    int, *many*.

    code = 1

The end.  Attributes (all of them):
    a: b.
"""
MARKDOWN = r"""Does it, by `x` and `some_name`.

**Arguments:**

- `size`, `count`: int, bytes; more of it on the next line.

**Returns:** int, \*many\*.

```python
code = 1
```

The end.  Attributes (all of them):

- `a`: b."""


def test_a_docstring_becomes_markdown():
    docstrings = generator("docstrings")
    assert docstrings.markdown(DOCSTRING) == MARKDOWN
    assert docstrings.first_sentence(DOCSTRING) == "Does it, by `x` and `some_name`."
    assert docstrings.markdown(f"Name(a=1)\n--\n\n{DOCSTRING}") == MARKDOWN
    assert (
        docstrings.markdown("Arguments, Raises: as Stream.wait.")
        == "**Arguments, Raises:** as `Stream.wait`."
    )


def test_marks_of_blocks_are_read():
    text = (
        "```python {needs: torch, gpu}\na\n```\n\n- x\n  ```python\n  b\n  ```\n\n```python {alone}\nc\n```\n"
        "```{toctree}\nd\n```\n"
    )
    found = [
        (line, marks["needs"], marks["alone"], source) for line, _, marks, source in page_blocks.blocks(text)
    ]
    assert found == [(2, ["torch", "gpu"], False, "a\n"), (7, [], False, "b\n"), (11, [], True, "c\n")]
    with pytest.raises(ValueError, match="needs torch"):
        list(page_blocks.blocks("```python needs torch\n```\n"))
    assert page_blocks.absent(["json", "gpu"], False) == "gpu"
    assert page_blocks.absent(["json", "no_such.module"], True) == "no_such.module"
    assert not page_blocks.absent(["json"], False)


def test_blocks_say_what_they_need_of_the_machine(monkeypatch):
    for devices, version, lacks in ((2, (13, 1), ""), (1, (13, 1), "two_devices"), (2, (13, 0), "cuda_13_1")):
        monkeypatch.setattr(accelrt, "device_count", lambda devices=devices: devices)
        monkeypatch.setattr(accelrt, "driver_version", lambda version=version: version)
        assert page_blocks.absent(["two_devices", "cuda_13_1"], True) == lacks
        assert not page_blocks.absent(["two_devices", "nccl"], False)  # the host device has both


def test_a_block_that_fails_is_named_with_its_line(tmp_path):
    with pytest.raises(AssertionError, match=r"page\.md:7"):
        run(page_blocks.__file__, "page.md", said=json.dumps([(3, "x = 1"), (7, "x")]), **device())
