"""The allocator's settings string, "key:value,key:value" in ACCELRT_ALLOC_CONF, read into Settings.

The syntax and the names are those of torch's PYTORCH_ALLOC_CONF (once PYTORCH_CUDA_ALLOC_CONF).  What each
key does, which may change after first use, and what becomes of every pair of them stands in DESIGN.md beside
it.
"""

from collections.abc import Iterator, Mapping

from accelrt import env
from accelrt.allocator.settings.keys import KEYS, Value, complaint
from accelrt.errors import SettingsError

VARIABLE = "ACCELRT_ALLOC_CONF"
DEFAULT = "default"  # the value that takes any key back to its default
SHOWN = 80  # characters of a refused text that an error quotes

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any

Given = dict[str, tuple[Value, str]]  # what the text names: the value, and the one way to write it


class Settings:
    """The allocator's settings, in bytes; immutable, equal when the same keys are named with equal values.

    parse() and merge() make them; Settings() holds the defaults.  Each key of the text is an attribute
    (Key.attribute), sizes in bytes and without _mb; DESIGN.md says what each is.  What a key that is not
    named becomes beside those that are: see implied.
    """

    named: tuple[str, ...]  # the keys that the text names, in the order of KEYS
    text: str  # the text that parse() reads as these settings

    __slots__ = ("named", "text", *(key.attribute for key in KEYS.values()))

    def __init__(self, given: Mapping[str, tuple[Value, str]] | None = None, source: str = VARIABLE) -> None:
        given = given or {}
        problem = complaint(given)
        if problem is not None:
            raise SettingsError(f"{source}: {problem[0]}", problem[1])
        values = {name: value for name, (value, _) in given.items()}
        values = {**{name: key.default for name, key in KEYS.items()}, **implied(values), **values}
        for name, key in KEYS.items():
            object.__setattr__(self, key.attribute, values[name])
        object.__setattr__(self, "named", tuple(name for name in KEYS if name in given))
        object.__setattr__(self, "text", ",".join(f"{name}:{given[name][1]}" for name in self.named))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the keys' attributes

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set: Settings are immutable; merge() makes new ones")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted: Settings are immutable; merge() makes new ones")

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Settings) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[object, ...]:
        return (parse, (self.text,))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Settings({self.text!r})"

    def describe(self) -> dict[str, object]:
        """A snapshot's "allocator_settings", with torch's keys; sizes are bytes, -1 is no limit."""
        divisions = self.roundup_power2_divisions
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": self.max_split_size,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": self.pinned_num_register_threads,
            "release_lock_on_cudamalloc": self.release_lock_on_cudamalloc,
            "pinned_use_cuda_host_register": self.pinned_use_cuda_host_register,
            "roundup_power2_divisions": {str(1 << index): count for index, count in enumerate(divisions)},
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
        }


def implied(values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns what the keys that are not named become because of those that are."""
    whole = values.get("backend") == "cudaMallocAsync" or "max_split_size_mb" in values
    grows = values.get("expandable_segments", not whole)
    segment = values.get("large_segment_size_mb", KEYS["large_segment_size_mb"].default)
    return {"expandable_segments": grows, "stitching": grows, "max_non_split_rounding_mb": segment}


def parse(text: str, source: str = VARIABLE) -> Settings:
    """Settings from text.

    Arguments:
        text: "key:value,key:value"; empty means all defaults.  The value "default" names the key's default.
        source: where the text comes from, for the error.
    Raises:
        SettingsError, a ValueError: an unknown key, a key given twice, a value that is not allowed, text
            that is no key with a value, or two options that contradict.
    """
    return Settings(without_defaults(read(text, source)), source)


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from ACCELRT_ALLOC_CONF, without a variable all defaults.  Raises what parse does.

    torch's own PYTORCH_ALLOC_CONF is not read: it may be meant for a torch in the same process.
    """
    return parse(env.text(VARIABLE) if environ is None else environ.get(VARIABLE, ""))


def merge(
    settings: Settings, text: str, *, used: bool = False, source: str = "set_allocator_settings"
) -> Settings:
    """Settings in which the keys that a text names are replaced, and no others.

    Arguments:
        text: as in parse; "key:default" takes a key back to its default.
        used: whether the allocator has been used, after which backend, expandable_segments and
            piece_size_mb are fixed.  To name them with what they are already is no change.
    Raises:
        SettingsError: what parse raises; a contradiction of the result; a change to what is fixed.
    """
    named = read(text, source)
    given: dict[str, tuple[Value, str] | None] = dict(read(settings.text, source))
    merged = Settings(without_defaults(given | named), source)
    if used:
        check_fixed(settings, merged, tuple(named), source)
    return merged


def check_fixed(old: Settings, new: Settings, named: tuple[str, ...], source: str) -> None:
    for name, key in KEYS.items():
        was, becomes = getattr(old, key.attribute), getattr(new, key.attribute)
        if not key.fixed or was == becomes:
            continue
        cause = (name,) if name in named else tuple(other for other in named if other == "max_split_size_mb")
        through = "" if name in cause else f", as {cause[0]} would have it"
        raise SettingsError(
            f"{source}: {name} cannot change from {was} to {becomes}{through}: it is fixed after the first "
            f"use, since {key.fixed}; set it in {VARIABLE}, or before the first allocation",
            tuple(dict.fromkeys((*cause, name))),
        )


def without_defaults(read: Mapping[str, tuple[Value, str] | None]) -> Given:
    return {name: pair for name, pair in read.items() if pair is not None}


def read(text: str, source: str) -> dict[str, tuple[Value, str] | None]:
    """Returns what each key that the text names is; None is its default."""
    found: dict[str, tuple[Value, str] | None] = {}
    for item in items(text):
        name, colon, value = (part.strip() for part in item.partition(":"))
        key = KEYS.get(name)
        if key is None:
            raise SettingsError(f"{source}: {unknown(name, value)}")
        if not colon:
            raise SettingsError(f"{source}: {name} has no value; write {name}:VALUE, {may_be(name)}", (name,))
        if name in found:
            raise SettingsError(f"{source}: {name} is given twice, again as {shown(value)}", (name,))
        try:
            found[name] = None if value == DEFAULT else key.read(value)
        except ValueError:
            raise SettingsError(f"{source}: {name} is {shown(value)}; {may_be(name)}", (name,)) from None
    return found


def keys_in(text: str, source: str) -> tuple[str, ...]:
    """The keys that a text names, those too that it takes back to their default."""
    return tuple(read(text, source))


def items(text: str) -> Iterator[str]:
    """The parts of a text between those commas that stand in no list."""
    if not text.strip():
        return
    start, inside = 0, False
    for index, letter in enumerate(text):
        if letter in "[]":
            inside = letter == "["
        elif letter == "," and not inside:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def may_be(name: str) -> str:
    return f"it may be {KEYS[name].allowed}"


def shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


def unknown(name: str, value: str) -> str:
    known = f"the keys are {', '.join(KEYS)}"
    if not name:
        return f"a key is missing before {shown(value)}; {known}" if value else f"a key is missing; {known}"
    from accelrt.core.instead import meant

    near = meant(name[:SHOWN], KEYS)
    guess = f"; did you mean {near}" if near else ""
    return f"{shown(name)}, given {shown(value)}, is not a key{guess}; {known}"
