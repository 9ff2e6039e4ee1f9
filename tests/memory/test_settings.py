"""The settings string: each key, each refusal, the text back from the settings, and rounded sizes."""

import copy
import pickle
from contextlib import suppress

import pytest
from child import run_code
from hypothesis import given, reject
from hypothesis import strategies as st
from settings_samples import BAD, COMPANION, GOOD, MIB, attributes

import accelrt
from accelrt.allocator.settings.keys import KEYS, read_divisions, written
from accelrt.allocator.settings.settings import Settings, from_environment, parse
from accelrt.errors import SettingsError


def each(samples):
    return [(name, text) for name, texts in samples.items() for text in texts]


def test_every_key_has_samples():
    assert set(GOOD) == set(KEYS) == set(BAD)


@pytest.mark.parametrize(("name", "text"), each(GOOD))
def test_an_allowed_value_becomes_its_attribute(name, text):
    settings = parse(",".join(filter(None, [f"{name}:{text}", COMPANION.get(name)])))
    value = getattr(settings, KEYS[name].attribute)
    assert value == GOOD[name][text]
    assert type(value) is type(GOOD[name][text])
    assert name in settings.named


@pytest.mark.parametrize(("name", "text"), each(BAD))
def test_a_refused_value_is_named_with_its_key_and_what_is_allowed(name, text):
    with pytest.raises(SettingsError) as caught:
        parse(f"stitching:True,{name}:{text}" if name != "stitching" else f"{name}:{text}")
    assert caught.value.keys == (name,)
    message = str(caught.value)
    assert message.startswith(f"ACCELRT_ALLOC_CONF: {name} is '{text[:20]}")
    assert message.endswith(f"; it may be {KEYS[name].allowed}")
    assert len(message) < 500


@pytest.mark.parametrize("name", KEYS)
def test_a_key_given_twice_is_refused(name):
    text = next(iter(GOOD[name]))
    with pytest.raises(SettingsError, match=f"{name} is given twice") as caught:
        parse(f"{name}:{text},{name}:{text}")
    assert caught.value.keys == (name,)


@pytest.mark.parametrize("name", KEYS)
def test_a_key_without_a_value_is_refused(name):
    with pytest.raises(SettingsError, match=f"{name} has no value; write {name}:VALUE"):
        parse(name)


@pytest.mark.parametrize("name", KEYS)
def test_a_misspelt_key_is_met_with_the_nearest_and_with_all(name):
    with pytest.raises(SettingsError) as caught:
        parse(f"{name[:-1]}:True")
    assert f"{name[:-1]!r}, given 'True', is not a key; did you mean {name}; " in str(caught.value)
    assert str(caught.value).endswith(", ".join(KEYS))


def test_a_key_like_no_other_is_met_with_all():
    with pytest.raises(SettingsError, match="'zzz', given '1', is not a key; the keys are ") as caught:
        parse("zzz:1")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["stitching:True,", ",", ",stitching:True", "stitching:True,,backend:native", ":"]
)
def test_an_empty_item_is_refused(text):
    with pytest.raises(SettingsError, match="a key is missing"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["stitching:True;backend:native", "stitching:True backend:native", "stitching=True", "stitching:True:"],
)
def test_garbage_after_a_value_or_a_key_is_refused(text):
    with pytest.raises(SettingsError, match="stitching"):
        parse(text)


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_nothing_named_means_the_defaults(text):
    assert parse(text) == Settings()
    expected = {key.attribute: key.default for key in KEYS.values()}
    assert attributes(Settings()) == expected
    assert Settings().named == ()


def test_spaces_around_keys_and_values_do_not_matter():
    assert parse(" stitching : False ,\tbackend: native\n") == parse("backend:native,stitching:False")


@pytest.mark.parametrize("name", KEYS)
def test_default_names_the_default(name):
    assert parse(f"{name}:default") == Settings()


def test_the_environment_is_read_where_no_other_is_given(monkeypatch):
    monkeypatch.setenv("ACCELRT_ALLOC_CONF", "growth_slack:0.5")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "growth_slack:0.75")
    assert from_environment().growth_slack == 0.5
    assert from_environment({"ACCELRT_ALLOC_CONF": "piece_size_mb:4"}).piece_size == 4 * MIB
    assert from_environment({}) == Settings()


def test_settings_do_not_change_and_travel():
    settings = parse("growth_slack:0.5,roundup_power2_divisions:[4:2,>:8]")
    with pytest.raises(AttributeError, match="immutable"):
        settings.growth_slack = 0.25
    with pytest.raises(AttributeError, match="immutable"):
        del settings.growth_slack
    for other in (copy.copy(settings), copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert other == settings
        assert attributes(other) == attributes(settings)
        assert hash(other) == hash(settings)
    assert settings != Settings()
    assert settings != settings.text
    assert repr(settings) == "Settings('roundup_power2_divisions:[4:2,>:8],growth_slack:0.5')"


def test_an_error_travels():
    with pytest.raises(SettingsError) as caught:
        parse("stitching:maybe")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.keys) == (str(caught.value), ("stitching",))


def test_a_snapshot_describes_them_with_torchs_keys():
    text = "max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:[2:4,>:2]"
    described = parse(text).describe()
    assert described == {
        "PYTORCH_CUDA_ALLOC_CONF": parse(text).text,
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << i): 4 if i < 2 else 2 for i in range(16)},
        "graph_capture_record_stream_reuse": False,
    }
    assert Settings().describe()["max_split_size"] == -1


named = st.lists(st.sampled_from(each(GOOD)), max_size=4, unique_by=lambda pair: pair[0])


@given(named)
def test_settings_come_back_from_their_text(pairs):
    try:
        settings = parse(",".join(f"{name}:{text}" for name, text in pairs))
    except SettingsError:
        reject()
    assert parse(str(settings)) == settings
    assert attributes(parse(str(settings))) == attributes(settings)
    assert str(parse(str(settings))) == str(settings)


@given(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]), min_size=16, max_size=16))
def test_divisions_come_back_from_their_text(divisions):
    text = written(tuple(divisions))
    assert read_divisions(text) == (tuple(divisions), text)


pieces = st.sampled_from([*KEYS, *":,[]> \n", "True", "False", "64", "0.5", "native", "auto", "default", "é"])


@given(st.one_of(st.text(), st.lists(pieces, max_size=12).map("".join)))
def test_any_text_gives_settings_or_the_error(text):
    with suppress(SettingsError):
        assert isinstance(parse(text), Settings)


@pytest.fixture(scope="module")
def block_size():
    """The size of the block that serves a request, or that would, where the device has no room for it."""

    def of(divisions, size):
        accelrt.memory.set_allocator_settings(f"roundup_power2_divisions:{divisions}")
        before = accelrt.memory_allocated()
        try:
            with accelrt.Buffer(size):
                return accelrt.memory_allocated() - before
        except accelrt.OutOfMemoryError as error:
            return error.rounded

    yield of
    accelrt.memory.set_allocator_settings("roundup_power2_divisions:default")


@pytest.mark.parametrize(
    ("divisions", "size", "rounded"),
    [
        ("0", 1, 512), ("1", 513, 1024), ("4", 0, 0), ("4", 2048, 2048), ("4", 2049, 2560),
        ("4", 1200, 1536), ("2", 5 * MIB, 6 * MIB), ("4", 5 * MIB, 5 * MIB), ("4", 5 * MIB + 1, 6 * MIB),
        ("4", 8 * MIB, 8 * MIB), ("4", 8 * MIB - 1, 8 * MIB), ("[4:1,8:2,>:4]", 7 * MIB, 7 * MIB),
        ("[4:1,8:2,>:4]", 9 * MIB, 12 * MIB), ("[4:1,8:2,>:4]", 17 * MIB, 20 * MIB), ("[8:2]", 3000, 3072),
        ("[8:2]", 17 * MIB, 17 * MIB), ("[>:2]", 65 << 30, 96 << 30), ("[32768:2]", 260 << 30, 384 << 30),
    ],
)  # fmt: skip
def test_a_size_is_rounded_within_its_class(block_size, divisions, size, rounded):
    assert block_size(divisions, size) == rounded


@given(st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]), st.integers(1, 1 << 28))
def test_a_rounded_size_is_the_least_of_the_steps_that_suffice(block_size, count, size):
    rounded = block_size(count, size)
    if count > 1 and size > 512 * count:
        floor = next(1 << n for n in range(60) if size < 2 << n)
        assert rounded == min(at for k in range(count + 1) if (at := floor + k * floor // count) >= size)
    else:
        assert rounded == min(at for at in (size // 512 * 512, size // 512 * 512 + 512) if at >= size)
    assert rounded % 512 == 0


@pytest.mark.own_process
def test_reading_settings_loads_nothing_heavy():
    code = (
        "import collections.abc, sys, accelrt\nbefore = set(sys.modules)\n"
        "from accelrt.allocator.settings import settings\n"
        "settings.parse('roundup_power2_divisions:[4:2,>:8]')\nprint(sorted(set(sys.modules) - before))"
    )
    package = "accelrt.allocator.settings"
    assert eval(run_code(code)) == [f"{package}.{name}" for name in ("keys", "settings")]
