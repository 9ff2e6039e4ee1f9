"""Which two settings cannot stand together, and why.  DESIGN.md shows the same as a table of every pair."""

from collections.abc import Callable, Mapping

from accelrt.memory.settings.keys import Value, asks

__all__ = ["CONTRADICTIONS", "NEEDS", "Contradiction", "Need", "complaint"]

Clash = Callable[[Value, Value], bool]


class Contradiction:
    """Two keys, both named, whose values cannot both be had."""

    __slots__ = ("clash", "first", "second", "why")

    def __init__(self, first: str, second: str, clash: Clash, why: str) -> None:
        self.first = first
        self.second = second
        self.clash = clash  # of the two values
        self.why = why


class Need:
    """A key that does nothing without another one."""

    __slots__ = ("key", "met", "needed", "why")

    def __init__(self, key: str, needed: str, met: Callable[[Value, Value | None], bool], why: str) -> None:
        self.key = key
        self.needed = needed
        self.met = met  # of the key's value and of the needed key's, None where that is not named
        self.why = why  # says what to do


def both_ask(first: Value, second: Value) -> bool:
    return asks(first) and asks(second)


def off_and_asks(first: Value, second: Value) -> bool:
    return first is False and asks(second)


def not_above(first: Value, second: Value) -> bool:
    return isinstance(first, int) and isinstance(second, int) and first <= second


def below(first: Value, second: Value) -> bool:
    return isinstance(first, int) and isinstance(second, int) and first < second


# With cudaMallocAsync the driver decides sizes, splitting, growth and reuse; these would be ignored.
OF_NATIVE = {
    "max_split_size_mb": "the driver splits its memory as it likes",
    "roundup_power2_divisions": "the driver rounds sizes itself",
    "garbage_collection_threshold": "the driver keeps no idle blocks of ours to collect",
    "expandable_segments": "the driver's pool grows by itself",
    "large_segment_size_mb": "there are no segments of ours",
    "max_non_split_rounding_mb": "the driver splits its memory as it likes",
    "release_lock_on_cudamalloc": "no lock of ours is held while the driver allocates",
    "graph_capture_record_stream_reuse": "the driver decides when captured memory is used again",
    "stitching": "pages of the driver's pool cannot be mapped a second time",
    "growth_slack": "the driver decides when its pool grows",
    "piece_size_mb": "the driver chooses its physical pages",
}
WHOLE = "a limit on splitting is for whole segments, and segments that grow have no blocks too large to split"

CONTRADICTIONS: tuple[Contradiction, ...] = (
    *(Contradiction("backend", name, both_ask, why) for name, why in OF_NATIVE.items()),
    Contradiction("max_split_size_mb", "expandable_segments", both_ask, WHOLE),
    Contradiction("max_split_size_mb", "large_segment_size_mb", not_above,
                  "every large segment would be too large to split; make the first greater"),
    Contradiction("max_split_size_mb", "stitching", both_ask,
                  "stitching needs segments that grow, and a limit on splitting is for whole segments"),
    Contradiction("max_split_size_mb", "growth_slack", both_ask,
                  "slack is for stitching, and a limit on splitting is for whole segments"),
    Contradiction("max_split_size_mb", "piece_size_mb", both_ask,
                  "whole segments are not made of pieces"),
    Contradiction("max_non_split_rounding_mb", "large_segment_size_mb", below,
                  "a large segment could not be used for what it was made for; make the first no less"),
    Contradiction("expandable_segments", "stitching", off_and_asks,
                  "only pages of segments that grow can be mapped a second time"),
    Contradiction("expandable_segments", "growth_slack", off_and_asks,
                  "slack chooses between growing and stitching, and whole segments are never stitched"),
    Contradiction("expandable_segments", "piece_size_mb", off_and_asks,
                  "whole segments are not made of pieces"),
    Contradiction("stitching", "growth_slack", off_and_asks,
                  "slack chooses between growing and stitching"),
)  # fmt: skip

NEEDS: tuple[Need, ...] = (
    Need("max_non_split_rounding_mb", "max_split_size_mb", lambda _, needed: needed is not None,
         "it bounds the waste of blocks too large to split; give max_split_size_mb too, or leave it out"),
    Need("pinned_num_register_threads", "pinned_use_cuda_host_register",
         lambda value, needed: value == 1 or needed is True,
         "the threads only register memory; give pinned_use_cuda_host_register:True too, or leave it out"),
)  # fmt: skip


def complaint(given: Mapping[str, tuple[Value, str]]) -> tuple[str, tuple[str, str]] | None:
    """The first thing that is wrong with what a text names, and the two keys it is about; None if nothing is.

    Arguments:
        given: by key, the value and how it is written.
    """
    for pair in CONTRADICTIONS:
        if pair.first in given and pair.second in given:
            (first, first_text), (second, second_text) = given[pair.first], given[pair.second]
            if pair.clash(first, second):
                return (
                    f"{pair.first}:{first_text} contradicts {pair.second}:{second_text}: {pair.why}; "
                    f"leave out {pair.first} or {pair.second}",
                    (pair.first, pair.second),
                )
    for need in NEEDS:
        if need.key in given:
            value, text = given[need.key]
            needed = given.get(need.needed, (None, ""))[0]
            if not need.met(value, needed):
                return (
                    f"{need.key}:{text} does nothing without {need.needed}: {need.why}",
                    (need.key, need.needed),
                )
    return None
