"""Every code block of the README does what it says, and its tables and lists are whole."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child import run_python
from cli_command import ROOT
from compiled import compile_extension, compile_library

pytestmark = pytest.mark.own_process
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
PYTHON = [text for language, text in BLOCKS if language == "python"]
CYTHON = [text for language, text in BLOCKS if language == "cython"]
PLAIN = [text for language, text in BLOCKS if language == ""]
HAS_TORCH = importlib.util.find_spec("torch") is not None
COMMANDS = ["info", "top", "export", "demo", "record", "replay", "tune", "view", "plot", "export-trace"]


def block(word, blocks=PYTHON):
    """The block that holds a word; its number."""
    (found,) = [number for number, text in enumerate(blocks) if word in text]
    return found


USE, ARRAYS, RANDOM, CAPTURE, SLEEP, SHARE, COLLECTIVES, TORCH, PEERS, BACKENDS = (
    block(word)
    for word in (
        "wait_event",
        "cuda.elementwise(",
        "cuda.random.Generator",
        "cuda.graph(",
        "sleepable",
        "accelrt.sharing",
        "init_from_environment",
        "interop.torch.install()",
        "interop.cupy",
        "select_backend",
    )
)
RESOURCES, FROM_RESOURCES, TUNABLE = block("rmm.install()"), block("from_rmm("), block("tunable.enable()")


def run(text, **environment):
    """Runs a program as a user would who has not set anything."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELRT_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", text],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_is_among_those_that_are_tested():
    assert {language for language, _ in BLOCKS} == {"", "python", "cython"}
    blocks = (USE, ARRAYS, RANDOM, CAPTURE, SLEEP, SHARE, COLLECTIVES, TORCH, PEERS, RESOURCES)
    blocks += (BACKENDS, FROM_RESOURCES, TUNABLE)
    assert sorted(blocks) == list(range(len(PYTHON)))
    assert len(CYTHON) == 1
    assert len(PLAIN) == 4


def test_the_memory_of_a_tag_sleeps_and_wakes():
    given, copied, seconds, asleep = run(PYTHON[SLEEP], ACCELRT_DRIVER="host").split()
    assert int(given) == int(asleep) >= int(copied) == 8 << 20
    assert float(seconds) > 0


def test_the_fastest_of_two_ways_is_found(tmp_path):
    settings = {"ACCELRT_DRIVER": "host", "ACCELRT_TUNABLE_FILENAME": str(tmp_path / "found.csv")}
    candidate, most = run(PYTHON[TUNABLE], **settings).rsplit(maxsplit=1)
    assert (candidate in ("Default", "in rows"), float(most)) == (True, 6)
    assert f",{candidate}," in (tmp_path / "found0.csv").read_text()


def test_processes_share_memory(tmp_path):
    program = tmp_path / "shared.py"
    program.write_text(PYTHON[SHARE])
    done = run_python(program, ACCELRT_DRIVER="host")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "[[42",
        "42",
        "42",
        "42]",
        "[42",
        "42",
        "42",
        "42]",
        "[42",
        "42",
        "42",
        "42]]",
    ]
    assert done.stderr == ""


def test_a_process_reduces_as_its_launcher_places_it():
    check = "\nassert (gradients.numpy() == 1).all()\n"
    run(PYTHON[COLLECTIVES] + check, ACCELRT_DRIVER="host", RANK="0", WORLD_SIZE="1")


@pytest.mark.parametrize("driver", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"ACCELRT_DRIVER": "host"}])
def test_the_examples_run_with_and_without_a_gpu(driver):
    check = "\nassert (a == b).all()\n"
    drawn = "\nassert 0 < abs(noise.numpy()).max() < 1\n"
    parts = PYTHON[USE], check, PYTHON[ARRAYS], PYTHON[RANDOM], drawn, PYTHON[CAPTURE]
    figures, *rows = run("".join(parts), **driver).splitlines()
    allocated, reserved, retries = figures.split()
    assert (int(allocated), int(retries)) == (0, 0)
    assert int(reserved) >= 2 << 20
    assert [row.strip("[] ").split() for row in rows][1] == ["8.", "11.", "14.", "17."]


def test_the_cython_example_compiles_and_runs(tmp_path):
    source = tmp_path / "example.pyx"
    source.write_text(CYTHON[0] + "\n\ndef run():\n    return work(0, 0)\n")
    compile_extension("example", tmp_path, source)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport accelrt, example\n"
        "accelrt.is_available() or accelrt.init(driver='host')\n"
        "print(example.run(), accelrt.memory_allocated())"
    )
    assert run(code).split() == ["0", "0"]


def test_a_backend_is_chosen_as_the_readme_says(tmp_path):
    library = compile_library("pluggable", tmp_path)
    first, *rest = PYTHON[BACKENDS].splitlines()
    given = "\n".join(rest).replace("/path/to/lib.so", library)
    given = given.replace("my_alloc", "books_alloc").replace("my_free", "books_free")
    start = "import accelrt\naccelrt.is_available() or accelrt.init(driver='host')\n"
    code = f"{start}{given}\nprint(accelrt.memory.get_allocator_backend())\naccelrt.Buffer(64)\n"
    assert run(code) == "pluggable\n"
    refusal = f"try:\n    {first}\nexcept accelrt.NotSupportedError as error:\n    print(error)\n"
    said = run(f"{start}{refusal}print(accelrt.memory.get_allocator_backend())\n")
    assert "cudaMallocAsync" in said or "native" in said


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_torch_takes_its_memory_from_accelrt():
    use = (
        "if torch.cuda.is_available():\n    x = torch.zeros(1 << 20, device='cuda')\n"
        "    assert accelrt.memory_allocated() >= x.nbytes\n"
    )
    run(f"import torch\nif torch.version.cuda is None:\n    raise SystemExit\n{PYTHON[TORCH]}{use}")


@pytest.mark.gpu
def test_cupy_and_numba_take_their_memory_from_accelrt():
    pytest.importorskip("cupy")
    pytest.importorskip("numba.cuda")
    use = (
        "import accelrt, cupy, numpy\nfrom numba import cuda\n"
        "x, y = cupy.zeros(1 << 20, 'uint8'), cuda.to_device(numpy.zeros(1 << 20, 'uint8'))\n"
        "print(accelrt.memory_allocated())"
    )
    assert run(PYTHON[PEERS] + use) == f"{2 << 20}\n"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "text", [PYTHON[RESOURCES], *map(ast.unparse, ast.parse(PYTHON[FROM_RESOURCES]).body)]
)
def test_rmm_and_cuda_core_are_used_as_the_readme_says(text):
    for library in ("rmm", "cuda.core"):
        pytest.importorskip(library)
    start = "import accelrt, rmm, cuda.core\ndevice = cuda.core.Device(0)\ndevice.set_current()\n"
    use = "\nmine = accelrt.Buffer(64)\nassert accelrt.memory_allocated() >= 64\n"
    run(f"{start}stream = device.create_stream()\n{text}{use}", ACCELRT_DRIVER="cuda")


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_lines_for_a_shell_name_what_there_is(number):
    text = PLAIN[number]
    if text.startswith("accelrt info"):
        said = run("import sys; from accelrt.tools.cli.main import main; sys.argv[1:] = ['--help']; main()")
        listed = re.findall(r"^accelrt (\S+)", text, re.M)
        assert set(listed) == {*COMMANDS, "--version"}
        assert all(name in said for name in listed)
        return
    subprocess.run(["bash", "-n", "-c", text], check=True)
    for path in re.findall(r"(?<!\S)(\.?[a-z]+/[\w./]+|setup\.py)", text.replace(".venv/bin/activate", "")):
        assert (ROOT / path).exists() or not (ROOT / ".ci").exists(), path


def test_the_table_of_settings_has_every_variable_that_is_read():
    package = Path(importlib.util.find_spec("accelrt").origin).parent
    sources = [path for path in package.rglob("*") if path.suffix in (".py", ".pyx")]
    sources.remove(package / "include" / "headergen.py")  # which writes constants of C
    names = {name for path in sources for name in re.findall(r"\bACCELRT_[A-Z_]+\b", path.read_text())}
    # Of the build, a C macro, and the beginning of the names that are left to tests.
    names -= {"ACCELRT_BUILD", "ACCELRT_SANITIZE_BUILD", "ACCELRT_EXPORT", "ACCELRT_TEST_"}
    assert names == set(re.findall(r"^\| `(ACCELRT_\w+)`", README, re.M))


def test_files_that_the_readme_names_are_there():
    linked = re.findall(r"\]\(([\w./]+)\)", README)
    named = re.findall(r"`((?:accelrt|benchmarks|tests)/[\w./]+)`", README)
    assert [path for path in (*linked, *named) if not (ROOT / path).exists()] == []
