"""Every two keys of the settings string together, settings merged at run time, and what DESIGN.md says."""

import itertools
from pathlib import Path

import pytest
from settings_samples import COMPANION, GOOD, MIB, attributes

import accelrt
from accelrt.allocator.settings.keys import CONTRADICTIONS, KEYS, NEEDS
from accelrt.allocator.settings.settings import Settings, merge, parse
from accelrt.errors import SettingsError

DESIGN = (Path(accelrt.__file__).parent / "allocator" / "settings" / "DESIGN.md").read_text()
FIXED = ("backend", "expandable_segments", "piece_size_mb")


def outcome(text):
    """The settings, or the error."""
    try:
        return parse(text)
    except SettingsError as error:
        return error


def effect(name, text):
    """What a key changes from the defaults."""
    settings = outcome(f"{name}:{text}")
    if isinstance(settings, SettingsError):  # it needs another key
        return {KEYS[name].attribute: GOOD[name][text]}
    return dict(attributes(settings).items() - attributes(Settings()).items())


def together(first, second):
    """Every pair of values of two keys, with what comes of them."""
    for one, two in itertools.product(GOOD[first], GOOD[second]):
        yield one, two, outcome(f"{first}:{one},{second}:{two}")


def symbol(first, second):
    """What becomes of two keys over all values, in one letter: see DESIGN.md."""
    singles = [outcome(f"{name}:{text}") for name in (first, second) for text in GOOD[name]]
    if any(names_both(found, first, second) for found in singles):
        return "n"
    return "x" if any(names_both(found, first, second) for *_, found in together(first, second)) else "."


def names_both(found, first, second):
    return isinstance(found, SettingsError) and set(found.keys) == {first, second}


def matrix():
    """The table of all pairs as DESIGN.md shows it."""
    names = list(KEYS)
    lines = ["    " + "".join(f"{number:>3}" for number in range(1, len(names)))]
    for row, name in enumerate(names):
        cells = "".join(f"{symbol(other, name):>3}" for other in names[:row])
        lines.append(f"{row + 1:>3} {cells}  {name}".rstrip())
    return "\n".join(lines)


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(KEYS, 2)))
def test_two_keys_give_both_effects_or_an_error_that_names_both(first, second):
    for one, two, found in together(first, second):
        if isinstance(found, Settings):
            both = {**effect(first, one), **effect(second, two)}
            assert both == {**effect(second, two), **effect(first, one)}
            assert attributes(found) == {**attributes(Settings()), **both}
            assert set(found.named) == {first, second}
        elif names_both(found, first, second):
            assert f"{first}:" in str(found)
            assert f"{second}:" in str(found)
            assert "leave" in str(found)
        else:  # one of the two cannot stand alone either, and says the same
            alone = [outcome(f"{first}:{one}"), outcome(f"{second}:{two}")]
            assert str(found) in map(str, alone)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(KEYS, 2)))
def test_the_order_in_the_text_does_not_matter(first, second):
    for one, two, found in together(first, second):
        swapped = outcome(f"{second}:{two},{first}:{one}")
        assert str(swapped) == str(found)


def test_the_tables_of_pairs_are_what_happens():
    happens = {frozenset(pair): symbol(*pair) for pair in itertools.combinations(KEYS, 2)}
    tables = dict.fromkeys(happens, ".")
    tables.update({frozenset((pair.first, pair.second)): "x" for pair in CONTRADICTIONS})
    tables.update({frozenset((need.key, need.needed)): "n" for need in NEEDS})
    assert happens == tables
    assert {need.key for need in NEEDS} == set(COMPANION)


def test_the_design_shows_every_pair():
    assert matrix() in DESIGN


def test_the_design_shows_every_key():
    section = DESIGN[DESIGN.index("\n| key | unit | default |") :].split("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in section.splitlines()[3:]]
    assert [row[0] for row in rows] == list(KEYS)
    for name, _unit, default, _does, changes in rows:
        assert attributes(parse(f"{name}:{default}")) == attributes(Settings())
        assert changes == ("no" if name in FIXED else "yes")
    assert tuple(name for name, key in KEYS.items() if key.fixed) == FIXED


def test_a_value_that_asks_for_nothing_goes_with_everything():
    quiet = ["stitching:False", "growth_slack:auto", "piece_size_mb:auto", "roundup_power2_divisions:1"]
    assert (
        parse(",".join([*quiet, "backend:cudaMallocAsync", "expandable_segments:False"])).stitching is False
    )
    assert parse(",".join([*quiet, "max_split_size_mb:64"])).max_split_size == 64 * MIB


@pytest.mark.parametrize(
    "text", ["max_split_size_mb:64", "backend:cudaMallocAsync", "expandable_segments:False"]
)
def test_without_growing_segments_nothing_is_stitched(text):
    settings = parse(text)
    assert (settings.expandable_segments, settings.stitching) == (False, False)


def test_the_rounding_of_unsplit_blocks_follows_the_large_segments():
    assert parse("large_segment_size_mb:40").max_non_split_rounding_size == 40 * MIB


def test_merging_replaces_the_named_keys_alone():
    old = parse("growth_slack:0.5,garbage_collection_threshold:0.8")
    new = merge(old, "growth_slack:0.25,pinned_max_cached_size_mb:0", used=True)
    assert new == parse("garbage_collection_threshold:0.8,growth_slack:0.25,pinned_max_cached_size_mb:0")
    assert merge(new, "") == new
    assert merge(new, "garbage_collection_threshold:default").named == (
        "pinned_max_cached_size_mb",
        "growth_slack",
    )
    assert old.growth_slack == 0.5


def test_merging_refuses_what_contradicts_what_is_there():
    with pytest.raises(SettingsError, match=r"^set_allocator_settings: stitching:False contradicts"):
        merge(parse("growth_slack:0.5"), "stitching:False")
    assert merge(parse("growth_slack:0.5"), "stitching:False,growth_slack:default").stitching is False


@pytest.mark.parametrize(
    ("name", "text"),
    [("backend", "cudaMallocAsync"), ("expandable_segments", "False"), ("piece_size_mb", "4")],
)
def test_what_is_fixed_changes_before_first_use_only(name, text):
    changed = merge(Settings(), f"{name}:{text}", used=False)
    assert changed == parse(f"{name}:{text}")
    with pytest.raises(SettingsError, match=f"{name} cannot change from") as caught:
        merge(Settings(), f"{name}:{text}", used=True)
    assert caught.value.keys == (name,)
    assert KEYS[name].fixed in str(caught.value)
    assert merge(changed, f"{name}:{text}", used=True) == changed
    with pytest.raises(SettingsError, match=f"{name} cannot change"):
        merge(changed, f"{name}:default", used=True)


def test_what_is_fixed_is_not_changed_by_what_implies_it():
    with pytest.raises(
        SettingsError, match=r"^set_allocator_settings: expandable_segments cannot change"
    ) as caught:
        merge(Settings(), "max_split_size_mb:64", used=True)
    assert caught.value.keys == ("max_split_size_mb", "expandable_segments")
    split = parse("max_split_size_mb:64")
    with pytest.raises(SettingsError, match="as max_split_size_mb would have it"):
        merge(split, "max_split_size_mb:default", used=True)
    whole = parse("expandable_segments:False")
    assert merge(whole, "max_split_size_mb:64", used=True).max_split_size == 64 * MIB


@pytest.mark.parametrize("name", [name for name in KEYS if name not in FIXED])
def test_every_other_key_changes_after_first_use(name):
    start = parse("expandable_segments:False" if "split" in name else "")
    for text in GOOD[name]:
        merged = merge(start, ",".join(filter(None, [f"{name}:{text}", COMPANION.get(name)])), used=True)
        assert getattr(merged, KEYS[name].attribute) == GOOD[name][text]
