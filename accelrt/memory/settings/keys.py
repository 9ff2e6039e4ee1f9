"""The keys of the allocator's settings string: what each may be in text, and what it is in bytes.

Everything here is text and arithmetic; typing, re and numpy are left out because importing them costs more
than all of it.
"""

from collections.abc import Callable

__all__ = ["AUTO", "DIVISION_CLASSES", "KEYS", "MIB", "UNLIMITED", "Key", "Reader", "Value", "asks"]

MIB = 1 << 20
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

    __slots__ = ("allowed", "attribute", "default", "fixed", "name", "read")

    def __init__(
        self, name: str, default: Value, allowed: str, read: Reader, attribute: str = "", fixed: str = ""
    ) -> None:
        self.name = name
        self.default = default
        self.allowed = allowed  # completes "it may be ..."
        self.read = read
        self.attribute = attribute or name.removesuffix("_mb")
        self.fixed = fixed  # why it cannot change after first use; empty where it can


def asks(value: Value) -> bool:
    """Whether a value asks for anything; what does not (off, none, auto, native) goes with every other."""
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
    found = [0] * DIVISION_CLASSES
    above = 0  # the first class that is still to come
    for entry in text.split(","):
        size, colon, count = (part.strip() for part in entry.partition(":"))
        if not colon or above > DIVISION_CLASSES:
            raise ValueError(text)
        number = count_of(count)
        if size == ">":
            found[above:] = [number] * (DIVISION_CLASSES - above)
            above = DIVISION_CLASSES + 1  # nothing may follow
            continue
        index = whole(size).bit_length() - 1
        if not is_power_of_two(whole(size)) or not above <= index < DIVISION_CLASSES:
            raise ValueError(text)
        found[index if above else 0 : index + 1] = [number] * (1 if above else index + 1)
        above = index + 1
    return tuple(found)


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
PIECES = "auto, or a whole number of MiB from 2 to 512 that is a multiple of 2"

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("backend", "native", BACKEND, read_backend,
            fixed="memory from one backend cannot be given back to the other"),
        Key("max_split_size_mb", UNLIMITED, "a whole number of MiB above 20", megabytes(21)),
        Key("roundup_power2_divisions", (0,) * DIVISION_CLASSES, DIVISIONS, read_divisions),
        Key("garbage_collection_threshold", 0.0, "a fraction above 0 and below 1", fraction(False, False)),
        Key("expandable_segments", True, TRUE_OR_FALSE, read_boolean,
            fixed="the segments that exist were made the other way"),
        Key("large_segment_size_mb", 20 * MIB, "a whole number of MiB, 12 or more, that is a multiple of 2",
            megabytes(12, step=2)),
        Key("max_non_split_rounding_mb", 20 * MIB, "a whole number of MiB, 20 or more", megabytes(20),
            attribute="max_non_split_rounding_size"),
        Key("per_process_memory_fraction", 1.0, "a fraction above 0, up to 1", fraction(False, True)),
        Key("release_lock_on_cudamalloc", False, TRUE_OR_FALSE, read_boolean),
        Key("pinned_use_cuda_host_register", False, TRUE_OR_FALSE, read_boolean),
        Key("pinned_num_register_threads", 1, f"a power of two from 1 to {MOST_THREADS}", read_threads),
        Key("pinned_use_background_threads", False, TRUE_OR_FALSE, read_boolean),
        Key("pinned_max_round_threshold_mb", UNLIMITED, "a whole number of MiB, 0 or more", megabytes(0),
            attribute="pinned_max_round_threshold"),
        Key("pinned_max_cached_size_mb", UNLIMITED, "a whole number of MiB, 0 or more", megabytes(0)),
        Key("graph_capture_record_stream_reuse", False, TRUE_OR_FALSE, read_boolean),
        Key("stitching", True, TRUE_OR_FALSE, read_boolean),
        Key("growth_slack", AUTO, "auto, or a fraction from 0 to 1", read_slack),
        Key("piece_size_mb", 0, PIECES, read_piece_size,
            fixed="the physical pieces that exist have the other size"),
    )
}  # fmt: skip
