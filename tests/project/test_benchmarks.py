"""The benchmarks run on the host device and say what they say they do.  No time is ever looked at."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accelrt

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = [
    "bench_alloc",
    "bench_history",
    "bench_stream",
    "bench_graph",
    "bench_copy",
    "bench_kv",
    "bench_launch",
    "bench_compile",
    "bench_import",
    "bench_random",
    "bench_readings",
    "bench_scaling",
    "replay",
]
OTHERS = ["stitching", "torch_training", "torch_handover"]  # whose columns are no libraries, or need a GPU
RATIOS = {"random": 6, "replay": 8, "kv": 1}


@pytest.fixture
def modules(monkeypatch):
    """Imports modules of the benchmarks' folder, as the scripts in it do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: __import__(name)


def start(script, *arguments, **settings):
    environment = {**os.environ, "ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "1", "CFLAGS": "-g0", **settings}
    command = [sys.executable, str(FOLDER / f"{script}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)


def said_by(script, *arguments, **settings):
    """What a benchmark says as JSON."""
    done = start(script, *arguments, "--json", **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def all_run(tmp_path_factory):
    """All benchmarks, run by one command: the finished process, and the folder of what it wrote."""
    folder = tmp_path_factory.mktemp("benchmarks")
    return start("run_all", "--quick", "--out", str(folder)), folder


@pytest.fixture(params=SCRIPTS)
def suite(request, all_run):
    """What one of them said as JSON."""
    _, folder = all_run
    said = json.loads((folder / "RESULTS.json").read_text())["benchmarks"][f"{request.param}.py"]
    assert "failed" not in said, said
    return said


def test_a_benchmark_fills_every_cell_of_accelrt(suite):
    assert suite["errors"] == []
    assert "accelrt" not in suite["absent"]
    assert suite["rows"]
    for row in suite["rows"]:
        assert math.isfinite(row["cells"]["accelrt"]["value"]), row["key"]


def test_a_benchmark_prints_nothing_but_its_json():
    assert said_by("bench_stream", "--quick")["rows"]


def test_a_benchmark_gives_a_reason_for_every_empty_column(suite):
    filled = {column for row in suite["rows"] for column in row["cells"]}
    assert filled | set(suite["absent"]) == set(suite["columns"])
    assert all(suite["absent"].values())


def test_a_benchmark_judges_no_goal_on_the_host_device(suite):
    assert all(row["goal"] is None for row in suite["rows"])


def test_a_replay_counts_bytes_that_add_up(suite):
    ratios = [row["cells"]["accelrt"] for row in suite["rows"] if row["unit"] == "ratio"]
    assert len(ratios) == RATIOS.get(suite["benchmark"], 0)
    for cell in ratios:
        assert cell["reserved"] >= cell["live"] > 0
        assert cell["value"] == cell["reserved"] / cell["live"]


def test_all_benchmarks_run_with_one_command(all_run):
    done, folder = all_run
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "RESULTS.json").read_text())
    assert set(results["benchmarks"]) == {f"{script}.py" for script in SCRIPTS + OTHERS}
    text = (folder / "RESULTS.md").read_text()
    assert text.strip() == done.stdout.strip()
    for benchmark in results["benchmarks"].values():
        for row in benchmark["rows"]:
            assert row["title"] in text


def test_results_are_written_and_the_status_is_1_where_accelrt_cannot_run(modules, monkeypatch, tmp_path):
    run_all = modules("run_all")
    monkeypatch.setattr(run_all, "BENCHMARKS", {"bench_stream.py": run_all.BENCHMARKS["bench_stream.py"]})
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--quick", "--out", str(tmp_path)])
    monkeypatch.setenv("ACCELRT_DRIVER", "host")  # which alone reads the next one
    monkeypatch.setenv("ACCELRT_HOST_DEVICES", "nonsense")
    assert run_all.main() == 1
    results = json.loads((tmp_path / "RESULTS.json").read_text())
    assert "nonsense" in results["benchmarks"]["bench_stream.py"]["absent"]["accelrt"]
    assert "nonsense" in (tmp_path / "RESULTS.md").read_text()


def test_a_process_that_dies_has_said_what_it_knew(modules):
    code = "import os; from words import say; say(version='1'); print('chatter'); os.abort()"
    path = {"PYTHONPATH": str(FOLDER)}
    words, end = modules("words").listen([sys.executable, "-c", code], 60, path)
    assert words == [{"version": "1"}]
    assert "ended with -6" in end


def test_a_row_that_fails_costs_its_own_cell(modules, capsys):
    class Peer:
        settle = staticmethod(lambda: None)

        def good(self):
            return lambda: None

        def bad(self):
            raise RuntimeError("refused")

    rows = modules("rows")
    worker = modules("worker").Worker(Peer(), True)
    for key in ("bad", "missing", "good"):
        worker.time(rows.Row(key, key))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[0]["row"] == "bad"
    assert "RuntimeError: refused" in said[0]["error"]
    assert list(said[1]["cells"]) == ["good"]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("goal", "text", "limit", "met"),
    [
        ({"amount": 120}, "<= 120", 120, True),
        ({"amount": 6, "sign": ">="}, ">= 6", 6, True),
        ({"amount": 80, "plus": "raw C"}, "<= raw C + 80", 90, False),
        ({"amount": 90, "plus": "raw C", "scale": 1.2}, "<= 1.2 x raw C + 90", 102, True),
        ({"amount": 0.25, "times": "torch"}, "<= 0.25 x torch", 250, True),
        ({"amount": 1.2, "times": "CuPy"}, "<= 1.2 x CuPy", None, None),
    ],
)
def test_a_goal_depends_on_the_columns_that_it_names(modules, goal, text, limit, met):
    cells = {"accelrt": {"value": 100}, "raw C": {"value": 10}, "torch": {"value": 1000}}
    judged = modules("rows").Goal(**goal).judged(cells)
    assert (judged["text"], judged["limit"], judged["met"]) == (text, limit, met)


def test_a_table_shows_figures_gaps_ratios_and_reasons(modules):
    rows = modules("rows")
    cells = {"accelrt": {"value": 50.25}, "torch": {"value": 1234.5}, "CuPy": {"value": 100.0}}
    row = {"key": "k", "title": "work", "unit": "ns", "cells": cells, "goal": rows.Goal(60).judged(cells)}
    suite = {
        "columns": ["accelrt", "raw C", "torch", "CuPy"],
        "rows": [row],
        "absent": {"raw C": "no\ncompiler"},
        "errors": [{"row": "k", "column": "torch", "error": "late"}],
    }
    text = modules("report").table(suite)
    assert "| work | 50.2 | - | 1,234 | 100 | <= 60, met | 1.99 |" in text
    assert "No raw C: no compiler" in text
    assert "Failed: k, torch: late" in text


@pytest.mark.parametrize("program", sorted(FOLDER.glob("raw/*.c")), ids=lambda path: path.stem)
def test_a_c_program_compiles_without_a_warning(modules, tmp_path, program):
    rawc = modules("rawc")
    rawc.compile_program(program, tmp_path / "program.o", "-c")


def test_there_are_c_programs(modules):
    found = {path.stem for path in FOLDER.glob("raw/*.c")}
    assert found == {"alloc", "copy", "graph", "launch", "readings", "scaling", "stream"}


def test_another_tree_is_a_column_beside_this_one(tmp_path):
    other = tmp_path / "accelrt"
    other.mkdir()
    for each in Path(accelrt.__file__).parent.iterdir():
        (other / each.name).symlink_to(each)
    (other / "__init__.py").unlink()
    text = Path(accelrt.__file__).read_text()
    (other / "__init__.py").write_text(f'{text}\n__version__ = "of another tree"\n')
    said = said_by("bench_stream", "--quick", "--tree", str(tmp_path))
    assert said["columns"] == ["accelrt", str(tmp_path)]
    assert said["versions"] == {"accelrt": accelrt.__version__, str(tmp_path): "of another tree"}
    assert all(set(row["cells"]) == set(said["columns"]) for row in said["rows"])
    assert said["errors"] == []
