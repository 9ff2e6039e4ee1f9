"""Pickles of plain data are read; of all others nothing is run."""

import collections
import contextlib
import io
import os
import pickle
import pickletools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelrt.errors import SnapshotError
from accelrt.memory.history.plain_pickle import PlainUnpickler, loads

pytestmark = pytest.mark.own_process
PROTOCOLS = range(6)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 126), 1 << 126)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(0, 99), inner)
        | st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=40,
)


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_data_is_read_as_pickle_reads_it(thing, protocol):
    for dumps in (pickle.dumps, pickle._dumps):
        assert loads(dumps(thing, protocol)) == thing


def test_what_is_shared_stays_shared():
    frames = [{"line": 1}]
    found = loads(pickle.dumps([frames, frames, {"a": frames}]))
    assert found[0] is found[1] is found[2]["a"]


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/this-must-not-be",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "thing",
    [Evil(), [{"a": Evil()}], os.system, collections.OrderedDict(a=1), b"bytes", {1, 2}, 1j, bytearray(b"1")],
    ids=["reduce", "deep", "function", "class", "bytes", "set", "complex", "bytearray"],
)
def test_anything_else_is_refused_and_nothing_is_run(thing, protocol, monkeypatch):
    content = pickle.dumps(thing, protocol)
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("it was run"))
    with pytest.raises(SnapshotError, match=r"plain|alone") as caught:
        loads(content, "some.pickle")
    assert str(caught.value).startswith("some.pickle: at byte ")
    assert 0 <= caught.value.offset < len(content)


def test_every_opcode_alone_is_refused_or_harmless():
    for opcode in range(256):
        for rest in (b"", b"." * 300, b"\0" * 300, b"\xff" * 300, b"os\nsystem\n" * 30):
            try:
                found = loads(bytes([opcode]) + rest)
            except SnapshotError:
                continue
            assert found is None or type(found) in (int, float, str, bool, list, dict, tuple)


IMPORTING = (
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
)


@pytest.mark.parametrize("name", IMPORTING)
def test_each_opcode_that_imports_or_calls_is_named(name):
    code = next(op.code for op in pickletools.opcodes if op.name == name)
    with pytest.raises(SnapshotError, match=f"the opcode {name} would import or call") as caught:
        loads(b"\x80\x04N" + code.encode("latin-1") + b"os\nsystem\n.")
    assert caught.value.offset == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "1 more bytes were expected, 0 are left"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x04.", "one object on its stack"),
        (b"(N.", "one object on its stack"),
        (b"NN.", "one object on its stack"),
        (b"e.", "a mark was expected"),
        (b"Na.", "the stack, which is empty"),
        (b"(Ne.", "the stack, which is empty"),
        (b"N(Ne.", "a list was expected, to append to, not NoneType"),
        (b"N(NNu.", "a dict and pairs"),
        (b"}(NNu.", "keys are str or int here, not NoneType"),
        (b"}(Nu.", "a dict and pairs"),
        (b"h\x05.", "object 5 of the file was expected before"),
        (b"Nr\xff\xff\xff\x7f.", "object 2,147,483,647 in a file of 7 bytes"),
        (b"X\xff\xff\xff\xff.", "4,294,967,295 more bytes were expected, 1 are left"),
        (b"\x8d" + b"\xff" * 8 + b".", "18,446,744,073,709,551,615 more bytes"),
        (b"\x95" + b"\xff" * 8 + b".", "a frame that ends beyond"),
        (b"\x8b\xff\xff\xff\x7f.", "an integer of 2,147,483,647 bytes"),
        (b"\x8c\x02\xff\xff.", "text in UTF-8 was expected"),
        (b"I" + b"9" * 100 + b"\n.", "a number of at most"),
        (b"I0x10\n.", "a number was expected"),
        (b"\x86.", "2 objects were expected on the stack, 0 are there"),
    ],
)
def test_what_is_wrong_is_said_with_the_byte(content, words):
    with pytest.raises(SnapshotError) as caught:
        loads(content)
    assert words in str(caught.value)


def test_a_file_of_containers_alone_is_refused():
    with pytest.raises(SnapshotError, match="dicts and lists in a file of"):
        loads(b"(" + b"}" * 1_000_000 + b"l.")
    assert loads(b"]\x94(" + b"h\0" * 10_000 + b"e.")[0]  # of one list alone


def tuples_in_tuples(depth):
    """A tuple that holds the next one twice, and so on: small, and for ever to hash."""
    return b"N\x85" + b"2\x86" * depth


@pytest.mark.parametrize(
    "key",
    [
        *(tuples_in_tuples(60), tuples_in_tuples(60) + b"q\x010h\x01", b"NN\x86\x940" * 3 + b"h\x02"),
        *(b"K\x01\x85", b"(t", b"G" + bytes(8), b"\x88", b"]"),
    ],
)
@pytest.mark.parametrize("form", [b"}%bNs.", b"}(%bNu.", b"(%bNd.", b"}(X\x01\0\0\0aN%bNu."])
def test_keys_that_may_take_long_to_hash_are_refused(key, form):
    with pytest.raises(SnapshotError, match="a dict's keys are str or int here, not "):
        loads(form % key)


def test_numbers_of_objects_are_believed_as_far_as_a_pickler_counts():
    many = [str(number) for number in range(3000)]
    for protocol in PROTOCOLS:
        for dumps in (pickle.dumps, pickle._dumps):
            assert loads(dumps([many, many, *many], protocol)) == [many, many, *many]
    for number in (b"r\xff\xff\0\0", b"p100000\n", b"p99999999999999999999\n"):
        with pytest.raises(SnapshotError, match=r"object [\d,]+ in a file of .* bytes: it is damaged"):
            loads(b"N" + number + b"0" * 24_000 + b".")
    assert loads(b"Nr\0\x10\0\0" + b"N0" * 12_000 + b"0K\x07\x940h\x01.") == 7  # the second that is kept


@pytest.mark.parametrize(
    "content",
    [
        *(b"]" * 24_000, b"(" * 24_000, b"N" * 24_000, b"N\x85" * 12_000, b"N" + b"2" * 24_000),
        *(b"N" + b"r\xc0\x13\0\0" * 4_000, b"N" + b"\x94" * 24_000, b"(" + b"}" * 8_000 + b"l."),
        *(b"\x8b\xff\xff\xff\x7f" + bytes(24_000), b"\x96" + b"\xff" * 7 + b"\x7f" + bytes(24_000)),
        *(b"I" + b"9" * 24_000 + b"\n.", b"\x95\0\0\0\0\0\0\0\1" + bytes(24_000)),
    ],
)
def test_a_small_file_takes_little_memory(content):
    tracemalloc.start()
    try:
        with contextlib.suppress(SnapshotError):
            loads(content)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(PLAIN, st.sampled_from(PROTOCOLS), st.randoms(use_true_random=False))
def test_frames_that_overlap_hide_nothing(thing, protocol, chance):
    content = pickle.dumps(thing, protocol)
    places = [at for _, _, at in pickletools.genops(content)][1:]
    for at in sorted(chance.choices(places, k=3) if places else [], reverse=True):
        left = len(content) - at
        content = content[:at] + b"\x95" + chance.randint(0, left).to_bytes(8, "little") + content[at:]
    assert loads(content) == pickle.loads(content) == thing


@pytest.mark.parametrize("number", [b"+1", b"-1", b" 1", b"0x1", b"1_0", b"1L", b"1.0", b"", b"nan"])
@pytest.mark.parametrize("opcode", [b"g", b"p"])
def test_numbers_of_objects_are_digits(opcode, number):
    with pytest.raises(SnapshotError, match="a number was expected"):
        loads(b"Nq\x01" + opcode + number + b"\n0.")


def test_the_unpickler_imports_nothing_by_itself_either():
    for protocol in PROTOCOLS:
        with pytest.raises(pickle.UnpicklingError, match="it would import"):
            PlainUnpickler(io.BytesIO(pickle.dumps(os.system, protocol))).load()
    for content in (b"Pnumber\n.", b"NQ."):
        with pytest.raises(pickle.UnpicklingError, match="persistent"):
            PlainUnpickler(io.BytesIO(content)).load()


def test_a_deep_pickle_is_read_without_recursion():
    found = loads(b"]q\0" * 100_000 + b"a" * 99_999 + b".")
    assert type(found) is list


def test_content_is_bytes():
    with pytest.raises(TypeError, match="pass bytes"):
        loads(bytearray(b"N."))
