"""Files that only look like traces: each is refused in one line, and none is read into memory first."""

import io
import os
import random
import tracemalloc
import zipfile

import numpy as np
import pytest
from cli_command import accelrt, write_trace
from mutations import mutated

from accelrt.errors import RecordError
from accelrt.tools import traces
from accelrt.tools.traces.npz_archive import COLUMNS, load
from accelrt.tools.traces.trace import EVENT_LIMIT

GOOD = [(1, 7, 100, 0), (1, 8, 0, 1), (0, 7, 0, 3), (1, 7, 50, 0), (0, 8, 0, 0)]
MIB = 1 << 20


def npy(array):
    """An array as the bytes of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array))
    return file.getvalue()


def archive(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def good_members():
    rows = np.array(GOOD, dtype=np.int64)
    return {f"{name}.npy": npy(column) for name, column in zip(COLUMNS, rows.T, strict=True)}


def refusal(path):
    with pytest.raises(RecordError) as caught:
        load(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 600
    return text


def declaring(shape, dtype="'<i8'", version=b"\x01\x00"):
    """The header of a .npy file, of any shape and dtype, without the entries."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text


def test_members_that_are_no_arrays_are_not_taken_for_some(tmp_path):
    members = {name.removesuffix(".npy"): content for name, content in good_members().items()}
    assert "lacks op, id, size, stream" in refusal(archive(tmp_path / "bare.npz", members))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "op is damaged"),
        (b"op", "op is damaged"),
        (declaring("(5,)"), "5 entries of int64 are declared, in 0 bytes"),
        (declaring("(-5,)"), "-5 entries"),
        (declaring("(1 << 60,)"), "op is damaged"),
        (declaring(f"({1 << 62},)"), "a trace has at most"),
        (declaring("(True,)") + b"1" * 8, "bool"),
        (declaring("()") + b"1" * 8, "op has 0 dimensions"),
        (declaring("(5,)", "'<f8'") + b"\xff" * 40, "op has dtype float64"),
        (declaring("(5,)", "'|O'") + b"1" * 40, "op has dtype object"),
        (declaring("(5,)", "'<M8[s]'") + b"1" * 40, "op has dtype datetime64"),
        (declaring("(5,)", "[('a', '<i8')]") + b"1" * 40, "op has dtype [('a'"),
        (declaring("(5,)", "'nonsense'") + b"1" * 40, "op is damaged"),
        (declaring("(5,)", version=b"\x03\x00") + b"1" * 40, "its format is 3.0"),
        (declaring("(" * 60), "op is damaged"),
        (declaring("(5,)") + b"1" * 41, "in 41 bytes"),
    ],
)
def test_an_array_that_is_not_what_it_declares_is_refused(tmp_path, content, words):
    path = archive(tmp_path / "bad.npz", good_members() | {"op.npy": content})
    text = refusal(path)
    assert words in text or (words == "bool" and "op" in text)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_numpy_does_not_write_is_refused(tmp_path, method):
    assert "compressed" in refusal(archive(tmp_path / "other.npz", good_members(), method))


def peak_of_refusal(path):
    tracemalloc.start()
    try:
        text = refusal(path)
        return text, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    content = npy(np.ones(EVENT_LIMIT + 1, dtype=np.int8))
    path = archive(tmp_path / "many.npz", dict.fromkeys(good_members(), content))
    assert path.stat().st_size < 50_000
    text, peak = peak_of_refusal(path)
    assert f"{EVENT_LIMIT + 1:,} entries" in text
    assert f"at most {EVENT_LIMIT:,} events" in text
    assert peak < 4 * MIB
    content = npy(np.ones((EVENT_LIMIT + MIB, 1), dtype=np.int64))
    text, peak = peak_of_refusal(archive(tmp_path / "large.npz", good_members() | {"size.npy": content}))
    assert f"size has {len(content):,} bytes" in text
    assert peak < 4 * MIB


def test_a_long_directory_is_not_read_as_a_whole(tmp_path):
    members = {f"{number:0100}": b"" for number in range(12_000)}
    path = archive(tmp_path / "long.npz", good_members() | members, zipfile.ZIP_STORED)
    text, peak = peak_of_refusal(path)
    assert "not an npz archive" in text
    assert peak < 16 * MIB


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    fifo = tmp_path / "fifo.npz"
    os.mkfifo(fifo)
    with pytest.raises(RecordError, match="no regular file"):
        traces.load(fifo)
    with pytest.raises(IsADirectoryError):
        traces.load(tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_a_mutated_file_is_a_trace_or_refused(tmp_path, seed):
    chance = random.Random(seed)
    plain = write_trace(tmp_path / "plain.npz", GOOD).read_bytes()
    packed = archive(tmp_path / "packed.npz", good_members()).read_bytes()
    path, refused = tmp_path / "mutated.npz", []
    tracemalloc.start()
    try:
        for number in range(100):
            content = mutated(chance, packed if number % 2 else plain)
            path.write_bytes(content)
            try:
                load(path)
            except RecordError as error:
                refused.append(str(error))
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
    finally:
        tracemalloc.stop()
    assert len(refused) > 50
    assert all(len(text.splitlines()) == 1 for text in refused)


@pytest.mark.parametrize("change", ["names", "objects", "cut", "floats"])
def test_the_command_refuses_each_in_one_line(tmp_path, change):
    members = good_members()
    if change == "names":
        members = {name.removesuffix(".npy"): content for name, content in members.items()}
    elif change == "objects":
        members["id.npy"] = declaring("(5,)", "'|O'") + b"1" * 40
    elif change == "floats":
        members["size.npy"] = npy(np.full(5, np.nan))
    path = archive(tmp_path / "bad.npz", members)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-30])
    done = accelrt("replay", path, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("accelrt replay: ")
    assert len(done.stderr.splitlines()) == 1
