"""The settings string as an object: AllocatorSettings, whose arguments are the keys (keys.py)."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from operator import index

from accelrt.allocator.settings.keys import KEYS, document_settings, python_value, type_of
from accelrt.allocator.settings.settings import Settings, parse, unknown
from accelrt.core.arguments import checked_type

__all__ = ["AllocatorSettings"]

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any, Self

SOURCE = "AllocatorSettings"


class AllocatorSettings:
    __doc__ = document_settings()

    __slots__ = ("_values", "named", "text")
    _values: dict[str, Any]
    named: tuple[str, ...]
    text: str

    __signature__ = Signature(
        [
            Parameter(key.name, Parameter.KEYWORD_ONLY, default=None, annotation=f"{type_of(key)} | None")
            for key in KEYS.values()
        ]
    )

    def __init__(self, **keys: object) -> None:
        for name in keys:
            if name not in KEYS:
                raise TypeError(f"{SOURCE}: {unknown(name, repr(keys[name]))}")
        chosen = {name: value for name, value in keys.items() if value is not None}
        text = ",".join(f"{name}:{text_of(name, value)}" for name, value in chosen.items())
        fill(self, parse(text, SOURCE))
        if more := [name for name in self.named if name not in chosen]:
            raise TypeError(
                f"{SOURCE}: a value has a comma in it, and sets {', '.join(more)} too; pass each by name"
            )
        for name, value in chosen.items():
            check_type(name, value, self._values[name])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a string, "key:value,key:value".

        Arguments:
            text: str, as of ACCELRT_ALLOC_CONF.
        Returns:
            AllocatorSettings.
        Raises:
            SettingsError: as of ACCELRT_ALLOC_CONF.
            TypeError: text is no str.
        """
        checked_type(text, "text", str, "'key:value,key:value'")
        return of_settings(cls, parse(text, SOURCE))

    def replace(self, **keys: object) -> Self:
        """Makes the same settings with other values of the keys that are given; None takes one out.

        Arguments, Raises: as AllocatorSettings.
        """
        return type(self)(**{**{name: self._values[name] for name in self.named}, **keys})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{name} cannot be set: {SOURCE} are immutable; replace({name}=...) makes new ones"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted: {SOURCE} are immutable; replace() makes new ones")

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, AllocatorSettings) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).parse, (self.text,)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self._values[name]!r}" for name in self.named)
        return f"{type(self).__name__}({shown})"


def reader_of(name: str) -> property:
    def read(settings: AllocatorSettings) -> object:
        return settings._values[name]

    return property(read, doc=f"{type_of(KEYS[name])}: {KEYS[name].allowed}.")


for _name in KEYS:
    setattr(AllocatorSettings, _name, reader_of(_name))


def of_settings(kind: type[Any], settings: Settings) -> Any:
    """Makes an object of AllocatorSettings, or of a class that derives from it, of what was parsed."""
    settings_object = kind.__new__(kind)
    fill(settings_object, settings)
    return settings_object


def fill(typed: AllocatorSettings, settings: Settings) -> None:
    values = {name: python_value(key, getattr(settings, key.attribute)) for name, key in KEYS.items()}
    object.__setattr__(typed, "_values", values)
    object.__setattr__(typed, "named", settings.named)
    object.__setattr__(typed, "text", settings.text)


def with_values(settings: AllocatorSettings, values: Mapping[str, object]) -> AllocatorSettings:
    """Makes the same with values that are in force otherwise, whether or not a string could say them
    together."""
    changed = {name: value for name, value in values.items() if value != settings._values[name]}
    copy = of_settings(AllocatorSettings, parse(settings.text, SOURCE))
    now = {**settings._values, **changed}
    named = tuple(n for n in KEYS if now[n] is not None and (n in changed or n in settings.named))
    object.__setattr__(copy, "_values", now)
    object.__setattr__(copy, "named", named)
    object.__setattr__(copy, "text", ",".join(f"{name}:{text_of(name, now[name])}" for name in named))
    return copy  # type: ignore[no-any-return]


def text_of(name: str, value: object) -> str:
    """Writes a value as the settings string has it."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, Mapping):
        return f"[{','.join(f'{size}:{number(name, count)}' for size, count in value.items())}]"
    return number(name, value)


def number(name: str, value: object) -> str:
    if isinstance(value, float):
        return repr(float(value))  # NumPy's floats too
    try:
        return str(index(value))  # type: ignore[arg-type]
    except TypeError:
        raise wrong_type(name, value) from None


def check_type(name: str, value: object, back: object) -> None:
    """Refuses a value whose text alone was right, such as "64" for 64 and True for 1."""
    if isinstance(value, Mapping) and isinstance(back, dict | int):
        return
    kinds = (int, float) if type(back) is float else (type(back),)
    if isinstance(value, bool | str) and type(value) not in kinds:
        raise wrong_type(name, value)


def wrong_type(name: str, value: object) -> TypeError:
    return TypeError(
        f"{SOURCE}: {name} is {value!r} of type {type(value).__name__}; pass {type_of(KEYS[name])}"
    )
