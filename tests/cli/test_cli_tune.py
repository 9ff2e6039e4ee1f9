"""accelrt tune: what it tries, which it calls best, and that running with it gives what was promised."""

import json
import re

import pytest
from cli_command import TRACES, accelrt, write_trace

from accelrt.allocator.settings import settings
from accelrt.tools.cli.commands.tune import CHOICES, Trial, Tuner, best_of, candidates, verdict

pytestmark = pytest.mark.own_process
MIB = 1 << 20
ROWS = [(1, 0, 3 * MIB, 0), (1, 1, 30 * MIB, 0), (0, 0, 0, 0), (1, 2, 12 * MIB, 0), (0, 1, 0, 0)]
FEW = ("--keys", "expandable_segments,garbage_collection_threshold")
BEST = [("gnn", "stitching,growth_slack"), ("vit_serve", "piece_size_mb,roundup_power2_divisions")]


def trial(text="", peak=100, calls=10, time=1.0, ooms=0):
    return Trial(text, peak, None, calls, time, ooms)


def test_every_candidate_is_a_string_that_accelrt_takes():
    for base in ("", "expandable_segments:False", "growth_slack:0.02", "max_split_size_mb:64"):
        for capped in (False, True):
            texts = list(candidates(base, list(CHOICES), capped))
            assert texts[0] == base
            assert len(set(texts)) == len(texts)
            assert all(settings.parse(text).text == text for text in texts)
            assert any("garbage_collection" in text for text in texts) == capped


def test_the_best_reserves_least_and_then_calls_least():
    least, calm, far = trial("a:1", 1000, 50), trial("b:1", 1010, 20), trial("c:1", 1011, 1)
    assert best_of([least, calm, far]) == calm
    assert best_of([least, far]) == least
    assert best_of([trial("a:1,b:1", time=1), trial("c:1", time=9), trial("d:1", time=8)]).settings == "d:1"
    assert best_of([trial("a:1", time=1), trial("", time=9)]).settings == ""
    assert best_of([trial("a:1", 10, ooms=1), trial("", 99)]).settings == ""
    assert best_of([trial("a:1", 10, ooms=3), trial("", 99, ooms=2)]).settings == ""


def test_what_the_best_gains_is_told_and_that_the_defaults_are_best():
    defaults = trial("", 1000, 50)
    assert verdict(defaults, defaults, 9).startswith(
        "the defaults are best: none of 9 others reserves over 1 % less"
    )
    assert verdict(defaults, trial("a:1", 900, 40), 9) == (
        "these settings reserve 10.0 % less than the defaults, and make 40 driver calls, the defaults 50"
    )
    assert "about as much as the defaults, and make 40 driver calls" in verdict(
        defaults, trial("a:1", 1001, 40), 9
    )
    refusing = trial("", 1000, 50, ooms=3)
    assert verdict(refusing, trial("a:1", 900, 40, ooms=1), 9) == (
        "the defaults refuse 3 allocations, these settings 1"
    )


def test_times_that_differ_as_the_defaults_do_among_themselves_are_noise():
    tuner = Tuner(None, None, None, 0, (), False, times=[100.0, 110.0, 104.0])
    assert [tuner.is_noise(trial(time=time)) for time in (89.9, 90.0, 104.0, 120.0, 120.1)] == [
        *(False, True, True, True, False)
    ]


def test_the_defaults_pass_several_times_and_times_like_theirs_are_marked(tmp_path):
    path = write_trace(tmp_path / "small.npz", ROWS)
    done = accelrt("tune", path, *FEW)
    assert re.search(r"~ as fast as the defaults, by noise: .* ns/event in 3 passes", done.stdout)
    assert re.search(r"[\d,.]+ ~ +0 +\(the defaults\)", done.stdout)
    assert re.search(r"^(the defaults are best: |these settings reserve )", done.stdout, re.M)


@pytest.mark.parametrize(("name", "keys"), BEST)
def test_running_with_the_best_string_gives_the_promised_peak(name, keys):
    done = accelrt("tune", TRACES / f"{name}.npz", "--keys", keys)
    assert (done.returncode, done.stderr) == (0, "")
    string = done.stdout.splitlines()[-1].removeprefix("ACCELRT_ALLOC_CONF=")
    promised = int(re.search(r"best: peak reserved ([\d,]+) bytes", done.stdout)[1].replace(",", ""))
    for _ in range(2):
        again = accelrt("replay", TRACES / f"{name}.npz", "--json", ACCELRT_ALLOC_CONF=string)
        assert json.loads(again.stdout)["peak_reserved"] == promised
    plain = json.loads(accelrt("replay", TRACES / f"{name}.npz", "--json").stdout)
    assert promised <= 1.01 * plain["peak_reserved"]


def test_the_answer_in_json_has_every_trial(tmp_path):
    path = write_trace(tmp_path / "small.npz", ROWS)
    done = accelrt("tune", path, "--json", "--capacity", "64MiB", "--capacity", "1GiB", *FEW)
    found = json.loads(done.stdout)
    assert (found["events"], found["peak_live"]) == (5, 42 * MIB)
    assert [run["capacity"] for run in found["runs"]] == [64 * MIB, 1024 * MIB]
    for run in found["runs"]:
        assert run["best"] in run["trials"]
        assert run["defaults_are_best"] == (run["best"]["settings"] == "")
        assert len(run["defaults_ns_per_event"]) == 3
        assert {"settings", "peak_reserved", "fragmentation", "driver_calls", "ns_per_event", "ooms"} == {
            *run["best"]
        }
        assert any("garbage_collection_threshold" in each["settings"] for each in run["trials"])


def test_a_capacity_that_no_settings_serve_is_told(tmp_path):
    path = write_trace(tmp_path / "small.npz", ROWS)
    done = accelrt("tune", path, "--capacity", "8MiB", *FEW)
    assert done.returncode == 1
    assert "none of them serves the trace: 2 allocations were refused at least" in done.stdout


def test_settings_of_the_environment_do_not_matter(tmp_path):
    path = write_trace(tmp_path / "small.npz", ROWS)
    answers = [
        json.loads(accelrt("tune", path, "--json", *FEW, ACCELRT_ALLOC_CONF=text).stdout)["runs"][0]
        for text in (None, "max_split_size_mb:64")
    ]
    peaks = [{each["settings"]: each["peak_reserved"] for each in answer["trials"]} for answer in answers]
    shared = peaks[0].keys() & peaks[1].keys()
    assert "" in shared
    assert all(peaks[0][text] == peaks[1][text] for text in shared)


@pytest.mark.parametrize(
    ("rows", "arguments", "words"),
    [
        ([], [], "has no allocation"),
        (ROWS, ["--capacity", "much"], "--capacity='much' is no size"),
        (ROWS, ["--device", "1"], "leave out --device"),
        (ROWS, ["--keys", "colour"], "'colour' is none of those tried, stitching"),
        ([(0, 1, 0, 0)], [], "frees id 1, which is not live"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(tmp_path, rows, arguments, words):
    done = accelrt("tune", write_trace(tmp_path / "bad.npz", rows), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
