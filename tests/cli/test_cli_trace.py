"""What a file has to be to be a trace: every malformed one is refused, with the row."""

import numpy as np
import pytest
from cli_command import RECORDED, TRACES, accelrt, write_trace
from hypothesis import given
from hypothesis import strategies as st

from accelrt.errors import RecordError
from accelrt.tools.traces.npz_archive import check_pairs, load
from accelrt.tools.traces.trace import Trace, peak_of

GOOD = [(1, 7, 100, 0), (1, 8, 0, 1), (0, 7, 0, 3), (1, 7, 50, 0), (0, 8, 0, 0)]


def refusal(path):
    with pytest.raises(RecordError) as caught:
        load(path)
    return caught.value


def test_a_trace_becomes_lists_with_ids_as_slots(tmp_path):
    trace = load(write_trace(tmp_path / "good.npz", GOOD))
    assert trace == Trace([1, 1, 0, 1, 0], [0, 1, 0, 0, 1], [100, 0, 0, 50, 0], [0, 1, 3, 0, 0], [0], 100)
    assert (len(trace), trace.slot_count) == (5, 2)


def test_a_trace_may_be_empty(tmp_path):
    trace = load(write_trace(tmp_path / "empty.npz", []))
    assert (len(trace), trace.slot_count, trace.peak_live, trace.left) == (0, 0, 0, [])


def test_a_prefix_ends_with_what_is_live_there(tmp_path):
    prefix = load(write_trace(tmp_path / "good.npz", GOOD)).prefix(4)
    assert (len(prefix), sorted(prefix.left), prefix.peak_live) == (4, [0, 1], 100)


def test_shrinking_divides_sizes_and_keeps_them_above_nothing(tmp_path):
    shrunk = load(write_trace(tmp_path / "good.npz", GOOD)).shrunk(64)
    assert (shrunk.sizes, shrunk.peak_live) == ([1, 0, 0, 1, 0], 1)


def test_sizes_add_up_beyond_64_bits(tmp_path):
    size = (1 << 60) - 1
    path = write_trace(tmp_path / "large.npz", [(1, id_, size, 0) for id_ in range(40)])
    assert load(path).peak_live == 40 * size


@pytest.mark.parametrize(
    ("row", "event", "words"),
    [
        (0, (2, 7, 100, 0), "op is 2"),
        (3, (-1, 7, 50, 0), "op is -1"),
        (2, (0, 9, 0, 0), "frees id 9, which is not live"),
        (3, (0, 7, 0, 0), "frees id 7, which is not live"),
        (2, (1, 7, 100, 0), "allocates id 7, which is live"),
        (2, (0, 7, 100, 0), "size is 100 on a free"),
        (3, (1, 7, -1, 0), "size is -1"),
        (1, (1, 8, 1 << 60, 0), "size is 1152921504606846976"),
        (1, (1, 8, 1, -2), "stream is -2"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, row, event, words):
    path = write_trace(tmp_path / "bad.npz", [*GOOD[:row], event, *GOOD[row + 1 :]])
    error = refusal(path)
    assert error.row == row
    assert f"row {row}" in str(error)
    assert words in str(error)


@pytest.mark.parametrize(
    ("replaced", "words", "row"),
    [
        ({"size": None}, "lacks size", None),
        ({"op": None, "id": None}, "lacks op, id", None),
        ({"size": np.ones(5)}, "size has dtype float64", None),
        ({"op": np.ones(5, dtype=bool)}, "op has dtype bool", None),
        ({"id": np.array(["a"] * 5)}, "id has dtype <U1", None),
        ({"stream": np.zeros((5, 1), dtype=np.int64)}, "stream has 2 dimensions", None),
        ({"op": np.int64(1)}, "op has 0 dimensions", None),
        ({"size": np.zeros(3, dtype=np.int64)}, "lengths differ", 3),
        ({"id": np.array([None] * 5)}, "id has dtype object", None),
        ({"size": np.array([1 << 63, 0, 0, 1, 0], dtype=np.uint64)}, "size is 9223372036854775808", 0),
    ],
)
def test_malformed_arrays_are_refused(tmp_path, replaced, words, row):
    error = refusal(write_trace(tmp_path / "bad.npz", GOOD, **replaced))
    assert words in str(error)
    assert error.row == row


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    for name, content in (("empty", b""), ("text", b"op,id,size\n"), ("pickle", b"\x80\x04N.")):
        path = tmp_path / name
        path.write_bytes(content)
        assert "not an npz archive" in str(refusal(path))


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "not an npz archive" in str(refusal(tmp_path / "one.npy"))


def test_an_archive_cut_anywhere_is_refused(tmp_path):
    whole = write_trace(tmp_path / "good.npz", GOOD).read_bytes()
    path = tmp_path / "cut.npz"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert refusal(path).row is None


def test_an_archive_with_any_byte_changed_is_a_trace_or_refused(tmp_path):
    whole = write_trace(tmp_path / "good.npz", GOOD).read_bytes()
    path = tmp_path / "changed.npz"
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            load(path)
        except RecordError:
            refused += 1
    assert refused > len(whole) // 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_the_first_event_out_of_step_is_the_one_named(events):
    live, expected = set(), None
    for row, (allocates, name) in enumerate(events):
        if allocates == (name in live):
            expected = row
            break
        live ^= {name}
    ops = np.array([int(op) for op, _ in events], dtype=np.int64)
    names = np.array([name for _, name in events], dtype=np.int64)
    try:
        check_pairs(ops, names)
        found = None
    except RecordError as error:
        found = error.row
    assert found == expected


def test_the_peak_is_that_of_bytes_live_at_once():
    assert peak_of([1, 1, 0, 1, 0, 0], [0, 1, 0, 2, 1, 2], [5, 7, 0, 4, 0, 0]) == (12, [])
    assert peak_of([1, 0, 1], [0, 0, 1], [5, 0, 6]) == (6, [1])


def test_the_command_refuses_a_malformed_trace_in_one_line(tmp_path):
    bad = write_trace(tmp_path / "bad.npz", [*GOOD, (0, 99, 0, 0)])
    done = accelrt("replay", bad, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "accelrt replay: row 5: frees id 99, which is not live\n"


def test_the_command_names_a_file_that_is_not_there(tmp_path):
    done = accelrt("replay", tmp_path / "nowhere.npz")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere.npz" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_traces_are_traces(name):
    events, peak_live, _ = RECORDED[name]
    trace = load(TRACES / f"{name}.npz")
    assert (len(trace), trace.peak_live) == (events, peak_live)
