"""What a snapshot expands to has bounds: a small file is shown or refused at once."""

import os
import pickle
import resource
import subprocess
import sys

import pytest

from accelrt.errors import SnapshotError
from accelrt.memory.history.snapshot_file import load_snapshot
from accelrt.tools.viewer.snapshot_columns import LONGEST, MOST_FRAMES, Recording

EVENTS = [{"action": "alloc", "addr": 4096 * n, "size": 512, "stream": 0} for n in range(1000)]
BLOCKS = [{"size": 512, "state": "inactive"}] * 1000
SEGMENT = {"device": 0, "address": 4096, "total_size": 1 << 20, "stream": 0, "blocks": BLOCKS}
MIB = 1 << 20


def nested(depth):
    """A list that says itself out in 2**depth words."""
    found = ["word"]
    for _ in range(depth):
        found = [found, found]
    return found


def pairs(depth):
    found = ("word", "word")
    for _ in range(depth):
        found = (found, found)
    return found


SHARED = {
    "traces": {"segments": [], "device_traces": [EVENTS] * 10_000},
    "segments": {"segments": [SEGMENT] * 10_000, "device_traces": []},
    "blocks": {"segments": [{**SEGMENT} for _ in range(1000)], "device_traces": []},
    "events": {
        "segments": [],
        "device_traces": [],
        "accelrt": {"version": 1, "events": [EVENTS] * 10_000, "dropped": [], "tags": []},
    },
    "both": {
        "segments": [],
        "device_traces": [EVENTS],
        "accelrt": {"version": 1, "events": [EVENTS], "dropped": [], "tags": []},
    },
}


@pytest.mark.parametrize("which", SHARED)
def test_a_list_that_stands_in_many_places_is_refused(tmp_path, which):
    path = tmp_path / "small.pickle"
    path.write_bytes(pickle.dumps(SHARED[which]))
    assert path.stat().st_size < MIB
    with pytest.raises(SnapshotError, match="the same list as in another place"):
        load_snapshot(path)
    with pytest.raises(ValueError, match="stands in another place too"):
        Recording(SHARED[which])


def test_empty_lists_and_stacks_may_be_shared():
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    events = [{**event, "frames": frames} for event in EVENTS]
    recording = Recording({"segments": [], "device_traces": [events, *[[]] * 8]})
    assert len(recording.stacks) == 2


def test_a_stack_is_cut_to_its_innermost_frames():
    frames = [{"filename": "a.py", "line": 3, "name": "f"}] * 100_000
    recording = Recording({"segments": [], "device_traces": [[{**EVENTS[0], "frames": frames}]]})
    assert [len(stack) for stack in recording.stacks] == [0, MOST_FRAMES]


@pytest.mark.parametrize(
    "changed",
    [
        {"allocator_settings": {"key": nested(60)}},
        {"external_annotations": [{"stage": "START", "name": nested(60), "device": 0, "time_us": 1}]},
        {"external_annotations": [nested(60)]},
        {"device_traces": [[{**EVENTS[0], "user_metadata": nested(60)}]]},
        {"device_traces": [[{**EVENTS[0], "action": nested(60)}]]},
        {"device_traces": [[{**EVENTS[0], "pool": tuple(nested(60))}]]},
        {"device_traces": [[{**EVENTS[0], "pool": pairs(60)}]]},
        {"device_traces": [[nested(60)]]},
        {"segments": [{**SEGMENT, "address": nested(60)}]},
        {"segments": [{**SEGMENT, "segment_pool_id": nested(60)}]},
    ],
)
def test_what_says_itself_out_at_great_length_is_cut(changed):
    try:
        recording = Recording({"segments": [], "device_traces": [], **changed})
    except ValueError as error:
        said = str(error)
    else:
        said = max((*recording.strings, *recording.settings.values(), ""), key=len)
    assert len(said) <= LONGEST


def test_viewing_such_a_file_takes_little_memory(tmp_path):
    path = tmp_path / "small.pickle"
    path.write_bytes(pickle.dumps(SHARED["traces"]))
    limit = 1 << 30  # of addresses, the interpreter's and NumPy's among them
    done = subprocess.run(
        [sys.executable, "-m", "accelrt", "view", str(path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each of its threads takes memory, one a processor
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "the same list as in another place" in done.stderr
