"""Every ordered pair of libraries exchanges arrays, as exchange.py tries and prints it."""

import json
from pathlib import Path

import pytest
from child import run_python

import accelrt

pytestmark = pytest.mark.own_process
PROGRAM = Path(__file__).with_name("exchange.py")
PEERS = {"torch": "torch", "CuPy": "cupy", "numba": "numba.cuda", "cuda.core": "cuda.core"}
OFFERED = {"DLPack": 18, "CUDA Array Interface": 15}  # with every library there


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the program says; it ends with 1 where something is wrong, which the tests say better."""
    path = tmp_path_factory.mktemp("exchange") / "report.json"
    root = str(Path(accelrt.__file__).parents[1])
    done = run_python(PROGRAM, "--json", path, PYTHONPATH=root)
    print(done.stdout, done.stderr)
    assert path.exists(), done.stdout + done.stderr
    return json.loads(path.read_text())


def offered(report):
    return [row for row in report["rows"] if not row["not_offered"]]


def name(row):
    return f"{row['producer']} -> {row['consumer']} by {row['protocol']}"


def test_bytes_arrive_and_live_as_long_as_their_last_holder(report):
    assert {name(row): row["contents"] for row in offered(report)} == {
        name(row): "works" for row in offered(report)
    }
    assert report["bytes_left"] == 0


def test_a_consumer_sees_what_the_producers_stream_has_yet_to_write(report):
    answers = {name(row): row["order"] for row in offered(report)}
    sides = (*PEERS, "numpy", "accelrt")
    told = {
        pair: answer for pair, answer in answers.items() if answer not in ("works", "the CPU has no streams")
    }
    assert {pair: answer for pair, answer in told.items() if answer.partition(":")[0] not in sides} == {}
    assert not any(answer.startswith("accelrt") for answer in told.values())


def test_accelrt_exchanges_with_every_library_both_ways(report):
    there = {row["producer"] for row in report["rows"]} - {"accelrt"}
    assert there
    for other in there - {"numba", "cuda.core"}:
        assert {(row["producer"], row["consumer"]) for row in offered(report)} >= {
            (other, "accelrt"),
            ("accelrt", other),
        }


@pytest.mark.gpu
def test_every_pair_of_the_libraries_that_are_there_is_tried(report):
    if report["missing"]:
        pytest.skip(f"not installed: {report['missing']}")
    assert len(report["rows"]) == 2 * 6 * 5
    for protocol, count in OFFERED.items():
        assert len([row for row in offered(report) if row["protocol"] == protocol]) == count


@pytest.mark.gpu
def test_accelrt_exchanges_with_numba_and_cuda_core(report):
    there = {row["producer"] for row in report["rows"]}
    pairs = {(row["producer"], row["consumer"]) for row in offered(report)}
    for other in there & {"numba", "cuda.core"}:
        assert pairs >= {(other, "accelrt"), ("accelrt", other)}
