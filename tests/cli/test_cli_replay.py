"""accelrt replay: what it measures, how it answers, and which device it takes."""

import json
import os
import pty
import re
import select
import subprocess
import sys

import pytest
from cli_command import RECORDED, ROOT, TRACES, accelrt, write_trace

KEYS = [
    "schema",
    "driver",
    "events",
    "peak_live",
    "peak_reserved",
    "ratio",
    "ns_per_event",
    "ooms",
    "virtual_memory_calls",
]
MIB = 1 << 20
PAIR = [(1, 0, 3 * MIB, 0), (0, 0, 0, 0)]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def replay_json(*arguments, **environment):
    done = accelrt("replay", *arguments, "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def refused_json(*arguments, **environment):
    """Of a replay that could not allocate everything: it fails, and says so in one line."""
    done = accelrt("replay", *arguments, "--json", **environment)
    assert done.returncode == 1
    assert re.fullmatch(
        r"accelrt replay: out of memory: \d of \d allocations were refused; .* --memory\n", done.stderr
    )
    return json.loads(done.stdout)


@pytest.fixture
def pair(tmp_path):
    return write_trace(tmp_path / "pair.npz", PAIR)


def test_json_has_exactly_the_keys(pair):
    answer = replay_json(pair)
    assert list(answer) == KEYS
    assert (answer["driver"], answer["events"], answer["peak_live"], answer["ooms"]) == (
        "host",
        2,
        3 * MIB,
        0,
    )
    assert answer["peak_reserved"] >= 3 * MIB
    assert answer["ratio"] == pytest.approx(answer["peak_reserved"] / (3 * MIB), abs=1e-6)
    assert answer["ns_per_event"] > 0


def test_repeat_gives_one_object_a_pass_with_peaks_of_its_own(tmp_path):
    kept = [*PAIR, (1, 1, 5 * MIB, 1), (1, 2, 0, 0)]
    answers = replay_json(write_trace(tmp_path / "kept.npz", kept), "--repeat", 4)
    assert [list(answer) for answer in answers] == [KEYS] * 4
    assert {answer["peak_live"] for answer in answers} == {5 * MIB}
    assert (
        len({answer["peak_reserved"] for answer in answers}) == 1
    )  # what a pass left live is freed after it


def test_repeat_prints_a_line_a_pass(pair):
    lines = accelrt("replay", pair, "--repeat", 3).stdout.splitlines()
    assert lines[0].startswith("driver: host")
    assert lines[1].split() == [
        "pass",
        "events",
        "peak",
        "live",
        "peak",
        "reserved",
        "ratio",
        "ns/event",
        "ooms",
        "vm_calls",
    ]
    assert [line.split()[:3] for line in lines[2:]] == [[str(n), "2", "3,145,728"] for n in (1, 2, 3)]


def test_an_empty_trace_has_no_ratio(tmp_path):
    empty = write_trace(tmp_path / "empty.npz", [])
    answer = replay_json(empty)
    assert (answer["events"], answer["ratio"], answer["ns_per_event"]) == (0, None, 0.0)
    assert accelrt("replay", empty).returncode == 0


def test_an_allocation_that_does_not_fit_is_counted_and_skipped(tmp_path):
    events = [(1, 0, 6 * MIB, 0), (1, 1, 6 * MIB, 0), (0, 1, 0, 0), (0, 0, 0, 0), (1, 2, 6 * MIB, 0)]
    trace = write_trace(tmp_path / "large.npz", events)
    answers = refused_json(trace, "--memory", "8MiB", "--repeat", 2)
    assert [(answer["ooms"], answer["ratio"]) for answer in answers] == [(1, None)] * 2
    assert {answer["peak_live"] for answer in answers} == {12 * MIB}
    assert refused_json(trace, ACCELRT_HOST_MEMORY="8MiB")["ooms"] == 1
    assert replay_json(trace)["ooms"] == 0
    done = accelrt("replay", trace, "--memory", "8MiB")
    assert (done.returncode, done.stdout.count("reserved / live       -")) == (1, 1)


@pytest.mark.parametrize("size", ["1xB", "1KB", "", "\u0663GiB"])
def test_a_size_that_is_none_blames_the_option(pair, size):
    done = accelrt("replay", pair, "--memory", size)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"accelrt replay: --memory={size!r} is no size")


def test_a_trace_larger_than_any_device_is_counted_as_out_of_memory(tmp_path):
    trace = write_trace(tmp_path / "absurd.npz", [(1, 0, (1 << 60) - 1, 0), (0, 0, 0, 0)])
    assert refused_json(trace)["ooms"] == 1


def test_without_a_gpu_it_falls_back_and_says_so_in_its_first_line(pair):
    for setting in (None, "auto", ""):
        done = accelrt("replay", pair, ACCELRT_DRIVER=setting, **NO_GPU)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[0].startswith("driver: host (fell back")
        assert "no NVIDIA device" in done.stdout.splitlines()[0]
        assert done.stdout.count("fell back") == 1
    assert replay_json(pair, ACCELRT_DRIVER=None, **NO_GPU)["driver"] == "host"


def test_the_host_device_that_was_asked_for_is_no_fallback(pair):
    for done in (accelrt("replay", pair), accelrt("replay", pair, "--driver", "host", ACCELRT_DRIVER="cuda")):
        assert done.returncode == 0
        assert done.stdout.startswith("driver: host")
        assert "fell back" not in done.stdout


def test_a_gpu_that_was_asked_for_and_is_not_there_is_an_error(pair):
    for done in (
        accelrt("replay", pair, "--driver", "cuda", **NO_GPU),
        accelrt("replay", pair, ACCELRT_DRIVER="cuda", **NO_GPU),
    ):
        assert (done.returncode, done.stdout) == (1, "")
        assert "no NVIDIA device can be used" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (["--memory", "1 elephant"], {}, "1 elephant"),
        ([], {"ACCELRT_HOST_MEMORY": "nothing"}, "nothing"),
        ([], {"ACCELRT_DRIVER": "gpu"}, "gpu"),
        (["--repeat", "0"], {}, "0 is not a number from 1 on"),
        (["--repeat", "many"], {}, "many"),
        (["--driver", "gpu"], {}, "gpu"),
    ],
)
def test_a_malformed_argument_or_setting_is_named(pair, arguments, settings, words):
    done = accelrt("replay", pair, *arguments, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def seen_on_a_terminal(*arguments):
    """Standard error as a terminal shows it."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "accelrt", *arguments]
    settings = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "0"}
    subprocess.run(
        command, stderr=theirs, stdout=subprocess.DEVNULL, env=os.environ | settings, cwd=ROOT, check=True
    )
    waiting, _, _ = select.select([ours], [], [], 0)
    shown = os.read(ours, 4096) if waiting else b""
    os.close(theirs)
    os.close(ours)
    return shown.decode()


def test_a_terminal_shows_a_bar_that_is_wiped_out(pair):
    shown = seen_on_a_terminal("replay", str(pair))
    assert "0 of 2" in shown
    assert shown.endswith(" \r")
    assert seen_on_a_terminal("replay", str(pair), "--json") == ""


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_traces_need_no_more_than_with_torch(name):
    events, peak_live, torch_ratio = RECORDED[name]
    answer = replay_json(TRACES / f"{name}.npz")
    assert (answer["events"], answer["peak_live"], answer["ooms"]) == (events, peak_live, 0)
    assert peak_live <= answer["peak_reserved"] <= torch_ratio * peak_live
