"""The keys of the allocator's settings string: what each may be in text, what it is in bytes, and which two
cannot stand together, and why.  DESIGN.md shows the latter as a table of every pair.

Everything here is text and arithmetic; typing, re and numpy are left out because importing them costs more
than all of it.
"""

from collections.abc import Callable, Mapping

MIB = 1 << 20
GIB = 1 << 30
MOST_MB = 1 << 40  # requests of 2**60 bytes are refused unseen, so no size in MiB needs more
AUTO = -1.0  # the pool chooses
UNLIMITED = -1  # the greatest size_t to a reader that takes it for one, as in torch's snapshots
DIVISION_CLASSES = 16  # [1, 2) MiB with all below it, [2, 4) MiB, ..., [32, 64) GiB with all above it
MOST_DIVISIONS = 64
MOST_THREADS = 128

Value = bool | int | float | str | tuple[int, ...]
# From a value's text to the value and the one way in which that value is written; ValueError if not allowed.
Reader = Callable[[str], tuple[Value, str]]


class Key:
    """One key: its name in text, the attribute of Settings that holds it, and what it may be."""

    __slots__ = ("allowed", "attribute", "default", "field", "fixed", "name", "read")

    def __init__(
        self,
        name: str,
        default: Value,
        allowed: str,
        read: Reader,
        attribute: str = "",
        fixed: str = "",
        field: str = "",
    ) -> None:
        self.name: str = name
        self.default: Value = default
        self.allowed: str = allowed  # completes "it may be ..."
        self.read: Reader = read
        self.attribute: str = attribute or name.removesuffix("_mb")
        self.field: str = field  # of PoolSettings (pool_settings.pxd), where a pool reads it as it is
        self.fixed: str = fixed  # why it cannot change after first use; empty where it can


def asks(value: Value) -> bool:
    """Tells whether a value asks for anything; what does not (off, none, auto, native) goes with every
    other."""
    if isinstance(value, tuple):
        return max(value) > 1
    return bool(value) and value not in ("native", AUTO)


def read_backend(text: str) -> tuple[Value, str]:
    if text not in ("native", "cudaMallocAsync"):
        raise ValueError(text)
    return text, text


def read_boolean(text: str) -> tuple[Value, str]:
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True", text


def whole(text: str) -> int:
    """A number of decimal digits; int() alone takes signs, underscores and other scripts' digits too."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(text)
    return int(text)


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def megabytes(least: int, most: int = MOST_MB, step: int = 1) -> Reader:
    """A reader of sizes in MiB, which become bytes."""

    def read(text: str) -> tuple[Value, str]:
        number = whole(text)
        if not least <= number <= most or number % step:
            raise ValueError(text)
        return number * MIB, str(number)

    return read


def fraction(zero: bool, one: bool) -> Reader:
    """A reader of fractions between 0 and 1, with or without the two ends."""

    def read(text: str) -> tuple[Value, str]:
        if not text or any(letter not in "0123456789.eE+-" for letter in text):
            raise ValueError(text)
        number = float(text)
        if text.startswith("-") or not (0 < number < 1 or (zero and number == 0) or (one and number == 1)):
            raise ValueError(text)
        return number, repr(number)

    return read


def read_threads(text: str) -> tuple[Value, str]:
    number = whole(text)
    if not is_power_of_two(number) or number > MOST_THREADS:
        raise ValueError(text)
    return number, str(number)


def read_piece_size(text: str) -> tuple[Value, str]:
    return (0, text) if text == "auto" else megabytes(2, 512, 2)(text)


def read_reserve(text: str) -> tuple[Value, str]:
    """A fraction of the device's memory, or with a G behind it GiB, which become bytes."""
    if text == "auto":
        return AUTO, text
    if not text.endswith("G"):
        return fraction(False, True)(text)
    digits = text[:-1]
    if not digits or any(letter not in "0123456789." for letter in digits):
        raise ValueError(text)
    gibibytes = float(digits)
    if not 2 * MIB <= gibibytes * GIB <= MOST_MB * MIB:
        raise ValueError(text)
    size = int(gibibytes * GIB)
    return size, gibibytes_text(size)


def gibibytes_text(size: int) -> str:
    """Writes bytes as GiB, with the fewest decimals that read_reserve reads back; 30 are exact."""
    decimals = (f"{size / GIB:.{places}f}" for places in range(31))
    return next(text for text in decimals if int(float(text) * GIB) == size) + "G"


def read_slack(text: str) -> tuple[Value, str]:
    return (AUTO, text) if text == "auto" else fraction(True, True)(text)


def read_divisions(text: str) -> tuple[Value, str]:
    divisions = read_list(text[1:-1]) if text[:1] == "[" and text[-1:] == "]" else (count_of(text),) * 16
    return divisions, written(divisions)


def count_of(text: str) -> int:
    number = whole(text)
    if number > MOST_DIVISIONS or (number and not is_power_of_two(number)):
        raise ValueError(text)
    return number


def read_list(text: str) -> tuple[int, ...]:
    """The divisions of each class, from "256:1,512:2,>:4" in ascending order.

    A size stands for the class that begins with it, the first one also for those below; ">" is every class
    above the last one named.  A class that nothing names is 0, off.
    """
    divisions = [0] * DIVISION_CLASSES
    above = 0  # the first class that is still to come
    for entry in text.split(","):
        size, colon, count = (part.strip() for part in entry.partition(":"))
        if not colon or above > DIVISION_CLASSES:
            raise ValueError(text)
        number = count_of(count)
        if size == ">":
            divisions[above:] = [number] * (DIVISION_CLASSES - above)
            above = DIVISION_CLASSES + 1  # nothing may follow
            continue
        index = whole(size).bit_length() - 1
        if not is_power_of_two(whole(size)) or not above <= index < DIVISION_CLASSES:
            raise ValueError(text)
        divisions[index if above else 0 : index + 1] = [number] * (1 if above else index + 1)
        above = index + 1
    return tuple(divisions)


def written(divisions: tuple[int, ...]) -> str:
    """Divisions as the shortest text that read_divisions reads back."""
    if len(set(divisions)) == 1:
        return str(divisions[0])
    last = DIVISION_CLASSES - 1
    low = next(i for i in range(last) if divisions[i + 1] != divisions[0])
    high = next(i for i in range(last, 0, -1) if divisions[i - 1] != divisions[last])
    named = [f"{1 << i}:{divisions[i]}" for i in range(low, high)]
    return f"[{','.join(named)},>:{divisions[last]}]"


TRUE_OR_FALSE = "True or False"
DIVISIONS = (
    f"0, or a power of two from 1 to {MOST_DIVISIONS}, or a list of them such as [256:1,512:2,>:4] in which "
    "the sizes are powers of two from 1 to 32768 (MiB), ascend, and may end with >"
)
BACKEND = "native or cudaMallocAsync; an allocator of your own comes with change_current_allocator"
RESERVE = "auto, a fraction above 0, up to 1, or GiB such as 40G"
PIECES = "auto, or a whole number of MiB from 2 to 512 that is a multiple of 2"

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("backend", "native", BACKEND, read_backend,
            fixed="memory from one backend cannot be given back to the other"),
        Key("max_split_size_mb", UNLIMITED, "a whole number of MiB above 20", megabytes(21),
            field="max_split"),
        Key("roundup_power2_divisions", (0,) * DIVISION_CLASSES, DIVISIONS, read_divisions),
        Key("garbage_collection_threshold", 0.0, "a fraction above 0 and below 1", fraction(False, False),
            field="collect"),
        Key("expandable_segments", True, TRUE_OR_FALSE, read_boolean,
            fixed="the segments that exist were made the other way", field="virtual_memory"),
        Key("large_segment_size_mb", 20 * MIB, "a whole number of MiB, 12 or more, that is a multiple of 2",
            megabytes(12, step=2), field="large_segment"),
        Key("max_non_split_rounding_mb", 20 * MIB, "a whole number of MiB, 20 or more", megabytes(20),
            attribute="max_non_split_rounding_size", field="max_rounding"),
        Key("per_process_memory_fraction", 1.0, "a fraction above 0, up to 1", fraction(False, True),
            field="fraction"),
        Key("release_lock_on_cudamalloc", False, TRUE_OR_FALSE, read_boolean),
        Key("pinned_use_cuda_host_register", False, TRUE_OR_FALSE, read_boolean),
        Key("pinned_num_register_threads", 1, f"a power of two from 1 to {MOST_THREADS}", read_threads),
        Key("pinned_use_background_threads", False, TRUE_OR_FALSE, read_boolean),
        Key("pinned_max_round_threshold_mb", UNLIMITED, "a whole number of MiB, 0 or more", megabytes(0),
            attribute="pinned_max_round_threshold"),
        Key("pinned_max_cached_size_mb", UNLIMITED, "a whole number of MiB, 0 or more", megabytes(0)),
        Key("graph_capture_record_stream_reuse", False, TRUE_OR_FALSE, read_boolean),
        Key("stitching", True, TRUE_OR_FALSE, read_boolean, field="stitching"),
        Key("growth_slack", AUTO, "auto, or a fraction from 0 to 1", read_slack, field="slack"),
        Key("piece_size_mb", 0, PIECES, read_piece_size,
            fixed="the physical pieces that exist have the other size", field="page_size"),
        Key("throw_on_cudamalloc_oom", False, TRUE_OR_FALSE, read_boolean, field="rejects"),
        Key("pinned_reserve_segment_size_mb", 0, "a whole number of MiB, 0 or more", megabytes(0)),
        Key("pinned_free_catch_all", False, TRUE_OR_FALSE, read_boolean),
        Key("expandable_segments_reserve", AUTO, RESERVE, read_reserve, field="reserve"),
    )
}  # fmt: skip

# Which values of Python's a reader's text stands for, as types are written: AllocatorSettings takes them and
# gives them.
TYPES = {
    "read_backend": 'Literal["native", "cudaMallocAsync"]',
    "read_boolean": "bool",
    "megabytes": "int",
    "fraction": "float",
    "read_threads": "int",
    "read_piece_size": 'int | Literal["auto"]',
    "read_reserve": "float | str",
    "read_slack": 'float | Literal["auto"]',
    "read_divisions": 'int | Mapping[int | Literal[">"], int]',
}


def type_of(key: Key) -> str:
    """Answers the type of a key's values in Python, as an annotation has it."""
    return TYPES.get(key.read.__qualname__.partition(".")[0], "bool | int | float | str")


def python_value(key: Key, value: Value) -> object:
    """Turns a value into what AllocatorSettings has: sizes in the key's unit or as "40G", None for no limit,
    "auto", and divisions that differ as a dict like their text."""
    if isinstance(value, tuple):
        text = written(value)
        parts = [part.split(":") for part in text.strip("[]").split(",")]
        return (
            value[0] if text[0] != "[" else {size if size == ">" else int(size): int(n) for size, n in parts}
        )
    if isinstance(value, bool | str):
        return value
    if value == key.default and key.allowed.startswith("auto,"):
        return "auto"
    if key.read is read_reserve and isinstance(value, int):
        return gibibytes_text(value)
    if isinstance(value, int) and value < 0:
        return None
    return value // MIB if key.name.endswith("_mb") else value


SETTINGS = """Holds what ACCELRT_ALLOC_CONF says, with types: immutable, and equal by what the keys say.

        settings = accelrt.memory.AllocatorSettings(garbage_collection_threshold=0.8, growth_slack="auto")
        accelrt.memory.set_allocator_settings(settings)
        print(f"ACCELRT_ALLOC_CONF={{settings}}")              # for programs to come

    Arguments are given by name; one that is None, or left out, is not set.  Each is an attribute too: what it
    is set to, or else what it is without that, with None for no limit.

    Arguments:
        {arguments}
    Attributes:
        text: str, the settings string; so is str(settings).
        named: tuple of str, the keys that are set.
    Raises:
        SettingsError: a value that is not allowed, or two keys that contradict each other.
        TypeError: a value of another type, or an unknown key.
    """


def document_settings() -> str:
    """Writes the docstring of AllocatorSettings: every key, its type, its default and what it may be."""
    lines = []
    for key in KEYS.values():
        default = python_value(key, key.default)
        shown = "no limit" if default is None else repr(default)
        lines.append(f"{key.name}: {type_of(key)} ({shown}), {key.allowed.partition(';')[0]}.")
    return SETTINGS.format(arguments="\n        ".join(lines))


Clash = Callable[[Value, Value], bool]


class Contradiction:
    """Two keys, both named, whose values cannot both be had."""

    __slots__ = ("clash", "first", "second", "why")

    def __init__(self, first: str, second: str, clash: Clash, why: str) -> None:
        self.first: str = first
        self.second: str = second
        self.clash: Clash = clash  # of the two values
        self.why: str = why


class Need:
    """A key that does nothing without another one."""

    __slots__ = ("key", "met", "needed", "why")

    def __init__(self, key: str, needed: str, met: Callable[[Value, Value | None], bool], why: str) -> None:
        self.key: str = key
        self.needed: str = needed
        # Of the key's value and of the needed key's, None where that is not named.
        self.met: Callable[[Value, Value | None], bool] = met
        self.why: str = why  # says what to do


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
    "throw_on_cudamalloc_oom": "the driver is asked in any case",
    "expandable_segments_reserve": "the driver's pool grows by itself",
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
    Contradiction("max_split_size_mb", "expandable_segments_reserve", both_ask,
                  "whole segments reserve no addresses to grow into"),
    Contradiction("expandable_segments", "expandable_segments_reserve", off_and_asks,
                  "whole segments reserve no addresses to grow into"),
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
