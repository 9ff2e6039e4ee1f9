"""AllocatorSettings: the settings string as an object, every key of it, both ways."""

import copy
import inspect
import os
import pickle

import pytest
from child import in_own_process
from settings_samples import BAD, COMPANION, GOOD

import accelrt
from accelrt.allocator.settings import settings
from accelrt.allocator.settings.keys import KEYS, TYPES, python_value, type_of
from accelrt.memory import AllocatorSettings

VALUES = [(key, text) for key, texts in GOOD.items() for text in texts]


@pytest.mark.parametrize(("key", "text"), VALUES)
def test_every_value_goes_to_python_and_back(key, text):
    string = f"{key}:{text}" + (f",{COMPANION[key]}" if key in COMPANION else "")
    typed = AllocatorSettings.parse(string)
    parsed = settings.parse(string)
    assert (typed.text, typed.named) == (parsed.text, parsed.named)
    assert str(typed) == typed.text
    values = {name: getattr(typed, name) for name in typed.named}
    again = AllocatorSettings(**values)
    assert again == typed
    assert hash(again) == hash(typed)
    assert all(getattr(again, name) == getattr(typed, name) for name in KEYS)


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in BAD.items() for text in texts])
def test_what_the_string_refuses_is_refused_as_a_value_too(key, text):
    with pytest.raises((ValueError, TypeError), match=key):
        AllocatorSettings(**{key: text or "''"})


def test_values_have_the_keys_units_and_types():
    typed = AllocatorSettings(
        large_segment_size_mb=40,
        roundup_power2_divisions={256: 1, 512: 2, ">": 4},
        garbage_collection_threshold=0.8,
        growth_slack="auto",
        piece_size_mb=6,
        stitching=True,
    )
    assert typed.text == (
        "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.8,large_segment_size_mb:40,"
        "stitching:True,growth_slack:auto,piece_size_mb:6"
    )
    assert typed.roundup_power2_divisions == {256: 1, 512: 2, ">": 4}
    assert (typed.large_segment_size_mb, typed.max_non_split_rounding_mb) == (40, 40)
    assert (typed.growth_slack, typed.piece_size_mb, typed.max_split_size_mb) == ("auto", 6, None)
    assert repr(typed).startswith("AllocatorSettings(roundup_power2_divisions={256: 1, 512: 2, '>': 4}, garb")
    assert AllocatorSettings().text == repr(AllocatorSettings())[18:-1] == ""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"max_split_size_mb": "64"}, r"max_split_size_mb is '64' of type str; pass int"),
        ({"roundup_power2_divisions": True}, "roundup_power2_divisions is 'True'; it may be 0"),
        ({"stitching": 1}, r"stitching is '1'; it may be True or False"),
        ({"growth_slack": [1]}, r"growth_slack is \[1\] of type list; pass float \| Literal\[\"auto\"\]"),
        ({"garbage_collection_threshold": "0.8"}, "is '0.8' of type str; pass float"),
        ({"growth_slak": 0.1}, r"'growth_slak', given '0\.1', is not a key; did you mean growth_slack"),
        ({"max_split_size_mb": 5}, "max_split_size_mb is '5'; it may be a whole number of MiB above 20"),
        ({"backend": "cudaMallocAsync", "stitching": True}, "contradicts stitching:True"),
        ({"backend": "native,stitching:False"}, "has a comma in it, and sets stitching too"),
        ({"max_non_split_rounding_mb": 64}, "does nothing without max_split_size_mb"),
    ],
)
def test_what_is_wrong_is_said(keys, words):
    with pytest.raises((ValueError, TypeError), match=words):
        AllocatorSettings(**keys)


def test_numbers_of_numpy_are_numbers():
    np = pytest.importorskip("numpy")
    typed = AllocatorSettings(large_segment_size_mb=np.int64(40), growth_slack=np.float64(0.25))
    assert typed.text == "large_segment_size_mb:40,growth_slack:0.25"


def test_it_is_immutable_and_makes_others():
    typed = AllocatorSettings(growth_slack=0.1)
    with pytest.raises(AttributeError, match=r"replace\(growth_slack=\.\.\.\) makes new ones"):
        typed.growth_slack = 0.2
    with pytest.raises(AttributeError, match="immutable"):
        del typed.text
    other = typed.replace(growth_slack=0.2, stitching=True)
    assert (typed.growth_slack, other.text) == (0.1, "stitching:True,growth_slack:0.2")
    assert other.replace(growth_slack=None).text == "stitching:True"
    for same in (copy.copy(other), copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert same == other
        assert same.stitching is True
    assert other != other.text
    with pytest.raises(TypeError, match="text is 5 of type int; pass 'key:value,key:value'"):
        AllocatorSettings.parse(5)


def test_every_key_is_an_argument_an_attribute_and_documented():
    signature = inspect.signature(AllocatorSettings)
    assert list(signature.parameters) == list(KEYS)
    for name, key in KEYS.items():
        assert signature.parameters[name].annotation == f"{type_of(key)} | None"
        assert f"        {name}: {type_of(key)} (" in AllocatorSettings.__doc__
        assert getattr(AllocatorSettings(), name) == python_value(key, key.default)
        assert key.allowed in getattr(AllocatorSettings, name).__doc__


def test_every_reader_has_a_type():
    readers = {key.read.__qualname__.partition(".")[0] for key in KEYS.values()}
    assert readers <= TYPES.keys(), "a new reader: say in TYPES what its values are in Python"


@in_own_process(ACCELRT_ALLOC_CONF="growth_slack:0.25")
def test_what_is_in_force_is_read_back():
    in_force = accelrt.memory.settings_in_force
    assert in_force() == AllocatorSettings(growth_slack=0.25)
    assert not accelrt.is_initialized()
    accelrt.Buffer(64).free()
    accelrt.memory.set_allocator_settings(AllocatorSettings(garbage_collection_threshold=0.5))
    assert in_force().text == accelrt.memory.allocator_settings()["text"]
    assert (in_force().growth_slack, in_force().garbage_collection_threshold) == (0.25, 0.5)
    accelrt.configure_pinned(pinned_num_register_threads=4, pinned_max_cached_size_mb=8)
    assert (in_force().pinned_num_register_threads, in_force().pinned_max_cached_size_mb) == (4, 8)
    assert "pinned_max_cached_size_mb:8" in in_force().text
    accelrt.configure_pinned(pinned_max_cached_size_mb=None)
    assert in_force().pinned_max_cached_size_mb is None
    assert "pinned_max_cached_size_mb" not in in_force().text
    with pytest.raises(accelrt.errors.SettingsError, match="piece_size_mb cannot change"):
        accelrt.memory.set_allocator_settings(AllocatorSettings(piece_size_mb=6))
    assert in_force().piece_size_mb == "auto"
    with pytest.raises(TypeError, match="pass 'key:value,key:value' or AllocatorSettings"):
        accelrt.memory.set_allocator_settings({"stitching": True})


@in_own_process
def test_the_text_is_for_programs_that_are_started():
    os.environ["ACCELRT_ALLOC_CONF"] = str(AllocatorSettings(stitching=False, large_segment_size_mb=40))
    assert accelrt.memory.settings_in_force().large_segment_size_mb == 40
    accelrt.Buffer(64).free()
    assert accelrt.memory.settings_in_force().stitching is False
