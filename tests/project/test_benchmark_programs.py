"""What the benchmarks of random allocation, of settings and of training do, as far as no GPU is needed."""

import os
import subprocess
import sys

import numpy
import pytest
from test_benchmarks import FOLDER, modules, said_by, start

__all__ = ["modules"]  # the fixture


def test_random_steps_free_all_that_they_allocate_within_the_bound(modules):
    largest, bound = 1000, 20_000
    steps, peak = modules("random_steps").steps(largest, 2000, bound)
    live, seen, most = {}, set(), 0
    for slot, size in steps:
        if size:
            assert slot not in seen
            assert 1 <= size <= largest
            seen.add(slot)
            live[slot] = size
        else:
            del live[slot]
        most = max(most, sum(live.values()))
    assert live == {}
    assert seen == set(range(2000))
    assert bound - largest < most == peak <= bound


def test_random_steps_are_the_same_each_time_and_others_for_another_size(modules):
    steps = modules("random_steps").steps
    assert steps(1000, 500) == steps(1000, 500)
    slots = [[slot for slot, _ in steps(largest, 500)[0]] for largest in (1000, 2000)]
    assert slots[0] != slots[1]


def test_random_steps_allocate_with_the_probability_asked_for(modules):
    steps, _ = modules("random_steps").steps(1000, 20_000)
    last = max(place for place, (_, size) in enumerate(steps) if size)
    assert 20_000 / (last + 1) == pytest.approx(0.73, abs=0.015)


@pytest.mark.parametrize("loop", ["pointers", "sized", "objects", "bare"])
def test_a_loop_gives_back_everything_as_its_allocator_wants_it(modules, loop):
    module = modules("random_steps")
    steps, _ = module.steps(1000, 300)
    given, back = [], []

    def alloc(size):
        given.append((len(given) + 1, size))
        return given[-1][0]

    slots = [None] * 300
    assert getattr(module, loop)(steps, slots, alloc, lambda *words: back.append(words)) > 0
    assert slots == [None] * 300
    expected = {"pointers": [(address,) for address, _ in given], "sized": given}.get(loop, [])
    assert sorted(back) == expected
    assert len(given) == (0 if loop == "bare" else 300)


def test_a_walk_whose_time_runs_out_leaves_nothing_allocated(modules, monkeypatch):
    bench = modules("bench_random")
    sequence, _ = bench.steps(1000, 1000)
    owned = set()

    def alloc(size):
        owned.add(len(owned) + 1)
        return len(owned)

    subjects = modules("random_subjects")
    allocator = subjects.Allocator(bench.bare, alloc, owned.discard, lambda: 0, lambda: None)
    play = modules("random_steps").pointers
    monkeypatch.setattr(bench, "perf_counter", iter([0.0, 1.0, bench.SECONDS]).__next__)
    live = [None] * 1000
    total, (each, done) = bench.walk(sequence, live, play, alloc, lambda address: None)
    assert total > 0
    assert (len(each), done) == (1, bench.CHUNK)
    assert any(live)
    bench.clear(live, allocator)
    assert not any(live)


def test_settings_are_tabulated_for_every_trace(modules):
    suite = said_by("stitching", "--quick")
    assert suite["errors"] == []
    stitching = modules("stitching")
    assert suite["columns"] == list(stitching.STRINGS[:2])
    for row in suite["rows"]:
        if row["unit"] != "count":
            assert set(row["cells"]) == set(suite["columns"]), row["key"]
        assert all(cell["value"] >= 0 for cell in row["cells"].values())


def test_a_replay_that_counts_no_calls_leaves_their_cells_empty(modules):
    stitching = modules("stitching")
    one = {"peak_reserved": 300, "peak_live": 200, "ns_per_event": 5.0}
    counted = [{**one, "virtual_memory_calls": calls} for calls in (40, 30, 20, 10)]
    keys = {row.key for row in stitching.rows(("gnn",))}
    full = stitching.cells("gnn", counted)
    assert set(full) == keys
    assert [full[f"gnn.calls.{which}"]["value"] for which in (1, 2, 4)] == [40, 30, 10]
    assert set(stitching.cells("gnn", [one] * 4)) == {key for key in keys if "calls" not in key}
    assert full["gnn.ratio"]["value"] == 1.5


@pytest.mark.parametrize(
    "command", ["torch_training", "torch_training --compiled", "torch_handover", "torch_pairs"]
)
def test_what_needs_torch_says_why_it_does_not_run_without_a_gpu(modules, command):
    script, *arguments = command.split()
    suite = said_by(script, *arguments, "--quick")
    assert suite["errors"] == []
    assert set(suite["absent"]) == set(suite["columns"]) == set(modules(script).COLUMNS)


PLAYER = """
import sys
import turns
from words import say

def work(name, count):
    for step in range(count):
        say(step=[name, step])
        yield "step"
    if name == "b":
        sys.exit("b failed")
    say(cells={name: count})

turns.serve(work(sys.argv[1], int(sys.argv[2])))
"""


def test_processes_take_turns_until_each_has_ended(modules, tmp_path, monkeypatch):
    turns, order = modules("turns"), []
    play = turns.Player.play

    def watched(player):
        before = len(player.words)
        play(player)
        order.extend(word["step"] for word in player.words[before:] if "step" in word)

    monkeypatch.setattr(turns.Player, "play", watched)
    commands = {
        name: ([sys.executable, "-c", PLAYER, name, str(count)], {"PYTHONPATH": str(FOLDER)})
        for name, count in (("a", 3), ("b", 1), ("c", 2))
    }
    ended = turns.take_turns(commands, 60)
    assert order == [["a", 0], ["b", 0], ["c", 0], ["a", 1], ["c", 1], ["a", 2]]
    assert [ended[name][0][-1] for name in "ac"] == [{"cells": {"a": 3}}, {"cells": {"c": 2}}]
    assert [end for _, end in ended.values()] == ["", "the process ended with 1: b failed\n", ""]


def test_a_process_that_holds_up_the_turns_is_killed(modules):
    turns = modules("turns")
    stuck = [sys.executable, "-c", "import sys, time; sys.stdin.readline(); time.sleep(600)"]
    ((words, end),) = turns.take_turns({"stuck": (stuck, {})}, 1).values()
    assert words == []
    assert end.startswith("the process ended with -9")


TINY = """
import compiled_process
import training_process
from peers import gpt

compiled_process.VOCABULARY = training_process.VOCABULARY = 32
compiled_process.TRAINED = {"gpt": (2, 8)}
compiled_process.INFERRED = {"gpt": [(1, 4), (2, 8)]}
compiled_process.SLICE = 2
training_process.repeatable()
run = compiled_process.Run("gpt", "cpu", 5, 8, layers=1, width=16, heads=2)
print(list(run.turns()))
print({key: cell["value"] for key, cell in run.cells.items() if "median" not in key})
"""


def test_a_compiled_model_works_by_turns():
    pytest.importorskip("torch")
    paths = os.pathsep.join([str(FOLDER), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", TINY]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    turns, values = done.stdout.splitlines()
    assert turns == str(["train", "train", "captured", "infer", "infer"])
    assert values == str({"train.losses": 5.0, "infer.losses": 8.0, "skips": 0.0})


def test_training_changes_its_shapes_and_repeats_them_in_each_process(modules):
    process = modules("training_process")
    images, tokens = process.image_shapes(200), process.token_shapes(200)
    assert images == process.image_shapes(200)
    assert all(16 <= batch <= 48 and 128 <= side <= 224 for batch, side in images)
    assert all(2 <= batch <= 8 and 128 <= length <= 896 for batch, length in tokens)
    assert len(set(images)) > 40
    assert len(set(tokens)) > 80


@pytest.mark.parametrize(
    ("losses", "weights", "same", "error"),
    [
        (["a", "b", "c"], "w", 3, None),
        (["a", "x", "c"], "v", 2, "differs from step 2 on"),
        (["a", "b", "c"], "v", 3, "the losses are torch's, the weights in the end are not"),
    ],
)
def test_training_compares_losses_bit_for_bit(modules, losses, weights, same, error):
    training = modules("torch_training")
    suite = modules("suite").Suite("training", training.ROWS, list(training.COLUMNS))
    suite.keep("gpt.losses", "torch", {"losses": ["a", "b", "c"], "weights": "w"})
    suite.keep("gpt.losses", training.PLUGGED, {"losses": losses, "weights": weights})
    training.compare(suite)
    assert suite.cells["gpt.losses"]["torch"]["value"] == 3
    assert suite.cells["gpt.losses"][training.PLUGGED]["value"] == same
    assert [each["error"] for each in suite.errors] == ([error] if error else [])


def test_training_holds_each_step_against_torchs_of_the_same_batch(modules):
    training = modules("torch_training")
    suite = modules("suite").Suite("training", training.ROWS, list(training.COLUMNS))
    theirs = [50.0 + step for step in range(training.WARM + 3)]
    ours = [1000.0] * training.WARM + [1.5 * theirs[-3], 1.25 * theirs[-2], 0.5 * theirs[-1]]
    for column, times in (("torch", theirs), (training.PLUGGED, ours)):
        suite.keep("gpt.median", column, {"value": 1.0, "times": times})
    training.pair_steps(suite, "gpt")
    ratios = {column: cell["value"] for column, cell in suite.cells["gpt.paired"].items()}
    assert ratios == {"torch": 1.0, training.PLUGGED: 1.25}


def test_losses_without_torchs_own_are_no_result(modules):
    training = modules("torch_training")
    suite = modules("suite").Suite("training", training.ROWS, list(training.COLUMNS))
    suite.keep("resnet.losses", training.PLUGGED, {"losses": ["a"], "weights": "w", "value": 1.0})
    training.compare(suite)
    assert suite.cells["resnet.losses"] == {}
    assert [each["column"] for each in suite.errors] == [training.PLUGGED]


def test_bandwidth_of_collectives_is_measured_by_nccl_tests_formula(modules):
    factor = modules("bench_nccl").factor
    assert [factor(call, 4) for call in ("all_reduce", "all_gather", "broadcast")] == [1.5, 0.75, 1]
    said = said_by("bench_nccl", "--most-mib", "1", "--rounds", "1", "--calls", "all_reduce", "exchange")
    assert [row["call"] for row in said["rows"]] == ["all_reduce", "exchange"]
    assert all(row["GB/s"]["accelrt"] > 0 for row in said["rows"])
    assert said["ranks"] == 2


def test_a_sleep_and_a_wake_are_measured_and_checked():
    said = said_by("bench_sleep", "--gib", "0.1")
    names = [f"{name} {step}" for name in ("first", "second", "discard") for step in ("sleep", "wake")]
    assert [row["what"] for row in said["rows"]] == names
    for row in said["rows"]:
        assert row["bytes"] >= row["copied"] >= 0
        assert (row["copied"] == 0) == row["what"].startswith("discard")
    assert said["raw"] == {}


def test_an_engines_sleep_is_measured_by_part_and_checked():
    said = said_by("sleep_engine", "--gib", "0.1", "--graphs", "6", "--shapes", "3")
    assert [row["round"] for row in said["rows"]] == ["first", "second"]
    for row in said["rows"]:
        assert row["sleep bytes"] == row["wake bytes"] >= 2 * int(0.1 * 2**30), "of both devices"
    assert [each["device"] for each in said["asleep"]] == [0, 1]
    for each in said["asleep"]:
        named = {"context", "modules", "libraries", "pages", "graphs", "communicators", "accelrt's own"}
        assert set(each["parts"]) == named
        assert each["parts"]["accelrt's own"] == 0, "all of it sleeps"
    assert (said["graphs"], said["raw"]) == (6, {})


def test_managed_memory_is_measured_and_checked():
    said = said_by("bench_managed", "--gib", "0.01", "--rounds", "1")
    assert list(said["GB/s"]) == ["accelrt"]  # on the host device, which has no driver beside it
    assert len(said["GB/s"]["accelrt"]) == 6
    assert all(rate > 0 for rate in said["GB/s"]["accelrt"].values())
    refused = start("bench_managed", "--gib", "1")
    assert refused.returncode == 1
    assert "more than a quarter" in refused.stderr


@pytest.mark.parametrize(
    ("mode", "count"),
    [("updates", 3000), ("commits", 1500), ("graphs", 25), ("definitions", 500), ("streams", 1500)],
)
def test_a_long_run_does_all_that_it_was_asked_for(mode, count):
    said = said_by("long_runs", mode, "--count", str(count))
    assert (said["mode"], said["done"], said["of"]) == (mode, count, count)


def test_a_long_run_ends_when_its_seconds_are_over():
    assert said_by("long_runs", "commits", "--seconds", "0")["done"] == 0


LOSSY_PAGES = """
import random_commits
change = random_commits.change_pages
def lossy(run, cache, model, pages):
    change(run, cache, model, pages)
    model.update({page: (value + 1) % 256 for page, value in model.items()})
random_commits.change_pages = lossy
"""
# A replay that forgets what it was given; and arrays of which one is taken for unused.
FORGETFUL = """
replay = long_runs.accelrt.GraphParameters.replay
long_runs.accelrt.GraphParameters.replay = lambda self, **given: replay(self)
"""
BLIND = """
used = long_runs.used_by
long_runs.used_by = lambda work: used(work)[1:] or used(work)
"""
# A change of which the graph never learns; and functions that the model does not call.
UNTOLD = """
import random_definitions
random_definitions.accelrt.DefinitionNode.update = lambda self, **changes: None
"""
UNTOLD_LATE = """
import random_definitions
class Late(random_definitions.Definitions):
    begun = 0
    def __init__(self, *arguments):
        super().__init__(*arguments)
        Late.begun += 1
        if Late.begun == 2:
            random_definitions.accelrt.DefinitionNode.update = lambda self, **changes: None
long_runs.Definitions = Late
"""
# Pieces whose uses nothing orders.
UNORDERED = """
import random_streams
random_streams.Streams.begin = lambda self, stream, *pieces: None
"""
UNCOUNTED = """
import definition_model
definition_model.DEEDS["host"] = lambda node, conditions: None
"""


@pytest.mark.parametrize(
    ("mode", "wrong", "said"),
    [
        ("commits", LOSSY_PAGES, "lost its contents"),
        ("graphs", FORGETFUL, "differ after"),
        ("graphs", BLIND, "was found in a graph"),
        ("definitions", UNTOLD, "when read again"),
        ("definitions", UNCOUNTED, "times, not 0"),
        ("streams", UNORDERED, "of a piece of kind"),
    ],
)
def test_a_long_run_sees_what_differs(tmp_path, mode, wrong, said):
    done = wrong_run(tmp_path, mode, wrong)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_difference_comes_again_by_the_seed_that_is_said(tmp_path):
    first = wrong_run(tmp_path, "definitions", UNTOLD_LATE).stderr
    assert "operations with --seed 1\n" not in first
    assert wrong_run(tmp_path, "definitions", UNTOLD, first.split()[-1]).stderr == first


def wrong_run(folder, mode, wrong, seed="1"):
    arguments = ["long_runs.py", mode, "--count", "1000", "--seed", seed]
    text = f"import sys; sys.argv = {arguments}\nimport long_runs\n{wrong}\nlong_runs.main()\n"
    (folder / "wrong.py").write_text(text)
    environment = {**os.environ, "ACCELRT_DRIVER": "host", "PYTHONPATH": str(FOLDER)}
    command = [sys.executable, str(folder / "wrong.py")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_a_kv_cache_needs_little_more_than_its_sequences(modules, monkeypatch):
    bench = modules("bench_kv")
    counts = {"grown": 0, "ended": 0}

    def grow(slot, nbytes):
        counts["grown"] += 1
        return nbytes if nbytes == bench.TOKEN else 0

    def end(slot):
        counts["ended"] += 1

    caches = bench.Caches(grow, end, lambda: 2 * bench.MIB, lambda: None)
    monkeypatch.setitem(bench.SUBJECTS, "none", bench.Subject("json", lambda longest: caches))
    cells = bench.measure("none", True)
    assert counts["ended"] == cells["token"]["ended"] >= bench.QUICK_ENDED
    assert counts["grown"] == cells["token"]["steps"]
    begun = counts["ended"] + bench.SEQUENCES
    assert bench.QUICK_ENDED * bench.TOKEN <= cells["copied"]["value"] * (1 << 30) <= begun * bench.TOKEN
    assert cells["kv.ratio"]["value"] == 2 * bench.MIB / cells["kv.ratio"]["live"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_copies_are_measured_from_every_node(nodes):
    devices = said_by("bench_numa", "--mib", "1", "--rounds", "1", ACCELRT_HOST_NODES=str(nodes))["devices"]
    assert len(devices) == 2
    for each in devices:
        assert [int(node) for node in each["rates"]] == list(range(nodes))
        assert all(rate > 0 for found in each["rates"].values() for rate in found.values())
        assert each["default_node"] in (range(nodes) if nodes > 1 else (None, 0))


def test_a_folder_of_traces_is_replayed_and_its_calls_counted(tmp_path):
    ops = {"op": [1, 1, 0, 0], "id": [0, 1, 0, 1], "size": [5 << 20, 3 << 20, 0, 0], "stream": [0, 1, 0, 1]}
    numpy.savez(tmp_path / "two_streams.npz", **ops)
    done = start("replay_raw", str(tmp_path), "--seconds", "50")
    assert done.returncode == 0, done.stderr
    name, ratio, *_, calls = [cell.strip() for cell in done.stdout.splitlines()[-1].strip("|").split("|")]
    assert (name, ratio) == ("two_streams", "1.250")
    first, *later = map(int, calls.split())
    assert first > 0
    assert later == [0, 0, 0]
