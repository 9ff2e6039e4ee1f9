"""Snapshots written in both forms and read back, whole and damaged."""

import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest
from made_up_history import MadeUpRecorder, made_events, made_history
from mutations import mutated

from accelrt.errors import SnapshotError
from accelrt.memory.history import compact_form, snapshots
from accelrt.memory.history.memory_history import ACTIONS, EVENT, EVENT_BYTES, History, collected, copied
from accelrt.memory.history.snapshot_file import dump_snapshot, load_snapshot, write_history

pytestmark = pytest.mark.own_process
FORMS = {"compact": "made.accelrt", "torch": "made.pickle"}
MIB = 1 << 20


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


def file_of(folder, form, history):
    path = folder / FORMS[form]
    write_history(path, history, form)
    return path


def test_an_event_has_the_recorders_layout():
    assert EVENT.itemsize == EVENT_BYTES
    offsets = {name: EVENT.fields[name][1] for name in EVENT.names}
    assert offsets == {
        **{"time_ns": 0, "address": 8, "size": 16, "stream": 24, "pool": 32},
        **{"stack": 48, "tag": 52, "thread": 56, "action": 60, "device": 62},
    }
    assert len(ACTIONS) == 22


def test_what_is_written_is_read_back(tmp_path, form):
    history = made_history(5000)
    assert load_snapshot(file_of(tmp_path, form, history)) == history.snapshot()


@pytest.mark.parametrize("history", [History(), made_history(0), made_history(3, devices=1)])
def test_a_small_history_is_read_back(tmp_path, form, history):
    assert load_snapshot(file_of(tmp_path, form, history)) == history.snapshot()


def test_numbers_of_64_bits_are_kept(tmp_path, form):
    history = made_history(100, devices=1)
    for name in ("address", "size", "stream"):
        history.events[0][name][::7] = (1 << 64) - 1
    history.events[0]["pool"][::5] = ((1 << 63) + 1, (1 << 64) - 1)
    assert load_snapshot(file_of(tmp_path, form, history)) == history.snapshot()


def test_texts_of_every_kind_are_kept(tmp_path, form):
    history = made_history(500, devices=1)
    for number, words in enumerate(("", "accelrt", "shared", "ü\0\n\ud800", "x" * 300), 1):
        history.tags[number] = words
    history.frames[1] = [{"filename": "/ö\udcff.py", "line": 0, "name": "<module>"}]
    assert load_snapshot(file_of(tmp_path, form, history)) == history.snapshot()


def test_the_torch_form_is_a_pickle_with_torchs_keys(tmp_path):
    history = made_history(3000)
    found = pickle.loads(file_of(tmp_path, "torch", history).read_bytes())
    wanted = history.snapshot()
    assert found["device_traces"] == wanted["device_traces"]
    assert found["segments"] == wanted["segments"]
    assert found["external_annotations"] == wanted["external_annotations"]
    assert len({id(event["frames"]) for event in found["device_traces"][0]}) <= 51


def test_only_torchs_actions_are_in_the_traces():
    found = made_history(20_000, devices=1).snapshot()
    assert {event["action"] for event in found["device_traces"][0]} == set(ACTIONS[:9])
    assert {event["action"] for event in found["accelrt"]["events"][0]} == set(ACTIONS[9:])
    noted = [event for event in found["accelrt"]["events"][0] if event["action"].startswith("annotation")]
    assert {event["name"] for event in noted} == {"forward", "backward", "kv cache", "name", "shared"}
    refused = [event for event in found["device_traces"][0] if event["action"] == "oom"]
    assert all("device_free" in event and "addr" not in event for event in refused)
    assert {end["stage"] for end in found["external_annotations"]} == {"START", "END"}


def test_events_are_copied_in_chunks_from_the_oldest_on():
    history = made_history(200_000, devices=1)
    for oldest in (0, 70_000):
        found, first = copied(MadeUpRecorder(history, oldest), 0, oldest + 150_000)
        assert np.array_equal(found, history.events[0][:150_000])
        assert first == oldest


def test_a_file_appears_whole_or_not_at_all(tmp_path, form):
    path = file_of(tmp_path, form, made_history(10))
    before = path.read_bytes()
    broken = made_history(10)
    broken.frames[1] = None
    with pytest.raises(TypeError):
        write_history(path, broken, form)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


# --- files that are no snapshots ---------------------------------------------------------------------------


def refusal(path):
    with pytest.raises(SnapshotError) as caught:
        load_snapshot(path)
    text = str(caught.value)
    assert str(path) in text
    assert len(text.splitlines()) == 1
    assert len(text) < 600
    return caught.value


def test_a_snapshot_cut_anywhere_is_refused(tmp_path, form):
    whole = file_of(tmp_path, form, made_history(6, devices=1, stacks=4)).read_bytes()
    path = tmp_path / "cut"
    for length in range(0, len(whole), 1 if form == "compact" else 3):
        path.write_bytes(whole[:length])
        assert refusal(path).offset is not None


def test_a_compact_file_with_any_bit_changed_is_refused(tmp_path):
    whole = file_of(tmp_path, "compact", made_history(8, devices=1, stacks=3)).read_bytes()
    path = tmp_path / "changed"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        refusal(path)


def test_a_mutated_pickle_is_a_snapshot_or_refused(tmp_path):
    chance = random.Random(5)
    whole = file_of(tmp_path, "torch", made_history(12, stacks=3)).read_bytes()
    by_python = pickle.dumps(made_history(12, stacks=3).snapshot())
    path, refused = tmp_path / "mutated", 0
    tracemalloc.start()
    try:
        for number in range(1500):
            path.write_bytes(mutated(chance, whole if number % 2 else by_python))
            try:
                load_snapshot(path)
            except SnapshotError:
                refused += 1
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert refused > 750


def test_sections_whose_content_is_wrong_are_refused_though_their_checksums_are_right(tmp_path):
    path = tmp_path / "odd"
    random_bytes = random.Random(7)
    for name in (b"INFO", b"STRS", b"STKS", b"TAGS", b"EVTS", b"SEGS", b"LAST", b"WHAT"):
        for length in (0, 1, 3, 4, 7, 8, 12, 16, 20, 64, 80, 200):
            for filling in (b"\0" * length, b"\xff" * length, random_bytes.randbytes(length)):
                section = compact_form.section(name, filling)
                path.write_bytes(b"".join([compact_form.beginning(compact_form.SNAPSHOT), *section]))
                refusal(path)


def section_file(path, *parts):
    path.write_bytes(b"".join([compact_form.beginning(compact_form.SNAPSHOT), *parts]))
    return path


def test_what_a_file_names_has_to_be_in_it(tmp_path):
    events = made_events(4)
    events["stack"] = 9
    path = section_file(tmp_path / "stacks", *compact_form.event_section(0, 0, events.tobytes()))
    assert "stack 9 is named" in str(refusal(path))
    events["stack"], events["action"] = 0, 99
    path = section_file(tmp_path / "actions", *compact_form.event_section(0, 0, events.tobytes()))
    assert "action 99" in str(refusal(path))
    path = section_file(tmp_path / "devices", *compact_form.event_section(1 << 31, 0, b""))
    assert "device 2,147,483,648" in str(refusal(path))


def test_a_file_of_another_kind_is_refused_with_what_was_expected(tmp_path):
    path = tmp_path / "other"
    for content in (b"", b"PK\x03\x04", b"op,id,size\n", b"\x7fELF", b"\x89PNG\r\n\x1a\n" + b"\0" * 20):
        path.write_bytes(content)
        assert "expected" in str(refusal(path))
    with pytest.raises(IsADirectoryError):
        load_snapshot(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_snapshot(tmp_path / "nowhere")


def test_a_later_format_is_named(tmp_path):
    import zlib

    whole = bytearray(file_of(tmp_path, "compact", made_history(1)).read_bytes())
    whole[8:10] = b"\x09\x00"
    whole[12:16] = zlib.crc32(bytes(whole[:12])).to_bytes(4, "little")
    (tmp_path / "later").write_bytes(bytes(whole))
    assert "format 9" in str(refusal(tmp_path / "later"))


# --- dump_snapshot -----------------------------------------------------------------------------------------


def test_the_name_chooses_the_form(tmp_path, monkeypatch):
    history = made_history(50)
    monkeypatch.setattr(snapshots, "history_now", lambda device, call: history)
    for name, starts in (("a.pickle", b"\x80"), ("a.PKL", b"\x80"), ("a.accelrt", b"\x89"), ("a", b"\x89")):
        dump_snapshot(tmp_path / name)
        assert (tmp_path / name).read_bytes()[:1] == starts
        assert load_snapshot(tmp_path / name) == history.snapshot()
    dump_snapshot(str(tmp_path / "b"), "torch")
    assert (tmp_path / "b").read_bytes()[:1] == b"\x80"
    with pytest.raises(ValueError, match="it may be 'torch', 'compact' or None"):
        dump_snapshot(tmp_path / "c", "json")


def test_segments_settings_and_figures_are_collected():
    made = made_history(100)
    segments = [[segment for segment in made.segments if segment["device"] == device] for device in range(2)]
    states = [(device, segments[device], len(made.events[device])) for device in range(2)]
    history = collected(MadeUpRecorder(made), states, made.settings)
    made.dropped = [0, 0]  # the made-up ring has everything
    assert history.snapshot() == made.snapshot()
    assert collected(MadeUpRecorder(made), states[1:], {}).snapshot()["device_traces"][0] == []
