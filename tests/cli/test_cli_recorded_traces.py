"""Traces of recordings, of snapshots and of RMM's logs, and what becomes of events that are missing."""

import pickle

import numpy as np
import pytest
from cli_command import accelrt
from made_up_history import TIME_NS, made_history

from accelrt.errors import RecordError, SnapshotError
from accelrt.memory.history.memory_history import ACTIONS, EVENT, History
from accelrt.memory.history.snapshot_file import write_history
from accelrt.tools.traces import load

pytestmark = pytest.mark.own_process
MIB = 1 << 20
KINDS = ("compact", "torch", "torch's own", "log")


def packed(rows, device=0):
    """Events of (action, address, size, stream)."""
    events = np.zeros(len(rows), EVENT)
    for index, (action, address, size, stream) in enumerate(rows):
        events[index]["action"] = ACTIONS.index(action)
        events[index]["address"], events[index]["size"], events[index]["stream"] = address, size, stream
    events["time_ns"] = TIME_NS + np.arange(len(rows))
    events["device"] = device
    return events


def history_of(*devices, segments=()):
    events = [packed(rows, device) for device, rows in enumerate(devices)]
    return History(events, [0] * len(events), segments=list(segments), tag_figures=[{} for _ in events])


def log_of(rows):
    """The same rows as RMM logs them, which knows frees alone."""
    words = {"alloc": "allocate", "free_requested": "free", "oom": "allocate failure"}
    lines = [
        f"71,12:00:01.000123,{words[action]},{address:#x},{size},{stream:x}"
        for action, address, size, stream in rows
        if action in words
    ]
    return "\n".join(["Thread,Time,Action,Pointer,Size,Stream", *lines, ""])


def written(folder, kind, rows):
    path = folder / kind.replace(" ", "_")
    if kind == "log":
        path.write_text(log_of(rows))
    elif kind == "torch's own":
        found = history_of(rows).snapshot()
        for event in found["device_traces"][0]:
            for key in ("tag", "thread", "pool"):
                del event[key]
        del found["accelrt"], found["external_annotations"]
        path.write_bytes(pickle.dumps(found))
    else:
        write_history(path, history_of(rows), kind)
    return path


ROWS = [
    ("alloc", 0x7000, 1000, 0),
    ("alloc", 0x9000, 3 * MIB, 0x55),
    ("free_requested", 0x7000, 1000, 0),
    ("free_completed", 0x7000, 1000, 0),
    ("oom", 0, 1 << 50, 0),
    ("alloc", 0x7000, 500, 0x55),
    ("free_requested", 0x9000, 3 * MIB, 0x55),
    ("free_completed", 0x9000, 3 * MIB, 0x55),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_trace(tmp_path, kind):
    trace = load(written(tmp_path, kind, ROWS))
    assert (trace.ops, trace.slots) == ([1, 1, 0, 1, 0], [0, 1, 0, 2, 1])
    assert (trace.sizes, trace.streams) == ([1000, 3 * MIB, 0, 500, 0], [0, 1, 0, 1, 1])
    assert (trace.left, trace.peak_live, trace.notes) == ([2], 3 * MIB + 1000, ())


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_was_there_before_is_allocated_first(tmp_path, kind):
    rows = [("alloc", 0x7000, 10, 0), ("free_requested", 0x8000, 77, 5), ("free_requested", 0x6000, 0, 0)]
    trace = load(written(tmp_path, kind, rows))
    assert (trace.ops, trace.sizes) == ([1, 1, 0], [77, 10, 0])
    assert trace.slots[0] == trace.slots[2] != trace.slots[1]
    assert len(trace.notes) == 2
    assert trace.notes[0].startswith("1 ")
    assert "allocated first" in trace.notes[0] or "come first" in trace.notes[0]
    assert "unknown memory" in trace.notes[1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_is_allocated_twice_was_freed_in_between(tmp_path, kind):
    trace = load(written(tmp_path, kind, [("alloc", 0x7000, 10, 0), ("alloc", 0x7000, 20, 0)]))
    assert (trace.ops, trace.slots, trace.left) == ([1, 0, 1], [0, 0, 1], [1])
    assert "1 frees that the record lacks" in trace.notes[0]


def test_a_free_that_was_not_requested_counts_once_it_is_complete(tmp_path):
    trace = load(written(tmp_path, "compact", [("alloc", 64, 10, 0), ("free_completed", 64, 10, 0)]))
    assert (trace.ops, trace.left) == ([1, 0], [])


def test_blocks_that_no_event_allocated_are_live_from_the_beginning(tmp_path):
    made = made_history(0, devices=1)
    history = history_of([("alloc", made.segments[0]["address"], 700_000, 0)], segments=made.segments[:2])
    write_history(tmp_path / "a", history, "compact")
    trace = load(tmp_path / "a")
    assert (trace.ops, trace.sizes) == ([1, 1], [700_000, 700_000])
    assert "live at the end" in trace.notes[0] or "and stay" in trace.notes[0]


def test_the_busiest_device_is_replayed_unless_another_is_asked_for(tmp_path):
    one, two = [("alloc", 64, 10, 0)], [("alloc", 64, 20, 0), ("free_requested", 64, 20, 0)]
    write_history(tmp_path / "a", history_of(one, two, []), "compact")
    assert load(tmp_path / "a").sizes == [20, 0]
    assert "device 1 is replayed" in load(tmp_path / "a").notes[0]
    assert "1 of device 0" in load(tmp_path / "a").notes[0]
    assert (load(tmp_path / "a", 0).sizes, load(tmp_path / "a", 0).notes) == ([10], ())
    assert load(tmp_path / "a", 2).sizes == []
    with pytest.raises(RecordError, match="device 3 is none of the trace's, which are 0 to 2"):
        load(tmp_path / "a", 3)


def test_lost_events_are_told(tmp_path):
    history = history_of(ROWS)
    history.dropped = [12]
    write_history(tmp_path / "a", history, "compact")
    assert load(tmp_path / "a").notes == ("12 events were recorded and are not in the file",)


@pytest.mark.parametrize("kind", ["compact", "torch", "torch's own"])
def test_a_size_that_no_device_has_is_refused(tmp_path, kind):
    with pytest.raises(RecordError, match=r"event 1: size is 1152921504606846976; it has to be"):
        load(written(tmp_path, kind, [("alloc", 64, 10, 0), ("alloc", 128, 1 << 60, 0)]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.pop("segments"), "segments and device_traces was expected"),
        (lambda found: found.update(segments={}), "a list was expected under 'segments', not dict"),
        (lambda found: found["device_traces"].append({}), r"device_traces\[1\]: a list was expected"),
        (lambda found: found["device_traces"][0].append(7), "a dict was expected, not int"),
        (lambda found: found["device_traces"][0][0].pop("addr"), "under 'addr', and is missing"),
        (lambda found: found["device_traces"][0][2].update(size="1"), "under 'size', not str '1'"),
        (lambda found: found["device_traces"][0][1].update(addr=-1), "an integer from 0 on"),
        (lambda found: found["device_traces"][0][1].update(stream=None), "under 'stream', not NoneType"),
        (lambda found: found["device_traces"][0][1].update(frames=[{}]), "under 'filename', and is missing"),
        (lambda found: found["segments"].append({"device": 0}), r"segments\[0\]: an integer"),
        (lambda found: found.update(accelrt={"version": 2}), "version 2, of a newer accelrt"),
    ],
)
def test_a_snapshot_of_wrong_types_is_refused(tmp_path, change, words):
    found = history_of(ROWS).snapshot()
    change(found)
    path = tmp_path / "wrong.pickle"
    path.write_bytes(pickle.dumps(found))
    with pytest.raises(SnapshotError, match=words):
        load(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1,t,allocate,0x10,100", "5 columns, where 6 were expected"),
        ("1,t,grow,0x10,100,0", "the action is 'grow'"),
        ("1,t,allocate,0x10,-1,0", "the size is '-1'"),
        ("1,t,allocate,0x10,1e3,0", "the size is '1e3'"),
        ("1,t,allocate,0x10," + "9" * 30 + ",0", "the size is"),
        ("1,t,allocate,ten,100,0", "the pointer is 'ten'"),
        ("1,t,allocate,,100,0", "the pointer is ''"),
        ("1,t,allocate,0x" + "1" * 17 + ",100,0", "the pointer is"),
        ("x" * 600, "row 1"),
        ("\udcff", "1 columns"),
    ],
)
def test_a_line_that_is_none_of_a_log_is_named(tmp_path, line, words):
    path = tmp_path / "log"
    good = "1,t,allocate,0x10,100,0"
    content = f"Thread,Time,Action,Pointer,Size,Stream\n{good}\n{line}\n{good}\n"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(RecordError) as caught:
        load(path)
    assert words in str(caught.value)
    assert caught.value.row == 1
    assert len(str(caught.value)) < 400 + len(str(path))


def test_a_log_may_end_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "log"
    whole = log_of(ROWS)
    for length in range(whole.rindex("\n", 0, -1) + 2, len(whole)):
        path.write_text(whole[:length])
        trace = load(path)
        assert len(trace) == 4
        assert trace.notes == ("the last line is cut short and was left out",)


def test_logs_of_older_versions_are_read(tmp_path):
    path = tmp_path / "log"
    lines = ["Thread,Time,Action,Pointer,Size,Stream\r", "1,12:00:00:1,allocate,7f00,100,0x0\r"]
    lines += ["1,12:00:00:2,allocate failure,(nil),100,0x2\r", "1,12:00:00:3,free,7f00,100,0x0\r", ""]
    path.write_text("\n".join(lines))
    assert load(path).ops == [1, 0]


def test_a_device_of_a_file_of_one_is_refused(tmp_path):
    with pytest.raises(RecordError, match="leave out --device"):
        load(written(tmp_path, "log", ROWS), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_replays_it_and_tells_what_was_missing(tmp_path, kind):
    path = written(tmp_path, kind, [*ROWS, ("free_requested", 0x1234, 4096, 0)])
    done = accelrt("replay", path, "--json")
    assert done.returncode == 0
    assert '"events": 7, "peak_live": 3150824' in done.stdout
    assert done.stderr.startswith("accelrt replay: 1 ")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_refuses_an_evil_pickle_in_one_line(tmp_path):
    path = tmp_path / "evil.pickle"
    path.write_bytes(b"\x80\x04cos\nsystem\n(X\x10\x00\x00\x00touch /tmp/evil.tR.")
    done = accelrt("replay", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the opcode GLOBAL would import or call something" in done.stderr
    assert len(done.stderr.splitlines()) == 1
