"""The devices' default generators, and functions of them with torch.cuda.random's names.

Each is seeded from the system's entropy when it is first used.  A child of a fork that comes before that has
seeds of its own; one that comes after it cannot use the devices.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from accelrt.arrays.exchange import empty
from accelrt.devices.device import current_device, device_count, device_ordinal
from accelrt.random.generator import Generator, _defaults
from accelrt.random.seeds import checked_offset, random_seed, read_state, seed_of
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import DTypeLike

    from accelrt.annotations import DeviceArgument, Shape
    from accelrt.arrays.array import Array
    from accelrt.streams.stream import Stream

__all__ = [
    "_get_rng_state_offset",
    "_set_rng_state_offset",
    "default_generators",
    "fork_rng",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "rand",
    "randn",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


class DefaultGenerators(tuple[Generator, ...]):
    """default_generators[i] is the generator that device i has by default; the first use of one initialises
    accelrt.  It is a tuple, as torch's, whose items are made when they are asked for."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        init.init()
        count = device_count()
        if not -count <= index < count:
            raise IndexError(f"default_generators[{index}]: there are {count} devices")
        ordinal = index % count
        generator = _defaults.get(ordinal)
        if generator is None:
            new = Generator(ordinal)
            new.shared_state.put(random_seed(), 0)  # also in a capture, where seed() is refused
            generator = _defaults.setdefault(ordinal, new)
        return generator

    def __iter__(self) -> Iterator[Generator]:
        return (self[index] for index in range(len(self)))

    def __contains__(self, generator: object) -> bool:
        return generator in tuple(self)

    def __eq__(self, other: object) -> bool:
        return self is other or tuple(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __add__(self, other: Any) -> Any:
        return tuple(self) + tuple(other)

    def index(self, *arguments: Any) -> int:
        return tuple(self).index(*arguments)

    def count(self, generator: object) -> int:
        return tuple(self).count(generator)

    def __repr__(self) -> str:
        return "<accelrt.random.default_generators>"

    def __reduce__(self) -> str:
        return "default_generators"  # this module's


default_generators: DefaultGenerators = DefaultGenerators()


def of_device(device: DeviceArgument | None) -> Generator:
    init.init()
    generator: Generator = default_generators[device_ordinal(device)]
    return generator


def rand(
    *shape: Shape,
    dtype: DTypeLike = "float32",
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
    generator: Generator | None = None,
) -> Array:
    """Returns a new Array of numbers from 0 to below 1, each as likely, with torch.rand's bits for the same
    seed.

    Arguments:
        shape: ints, or one tuple of them.
        dtype: float16, bfloat16, float32 or float64.
        device, stream: as of accelrt.empty(); None is the generator's device where there is a generator.
        generator: Generator, or None for the device's default one.
    Raises:
        OutOfMemoryError: the device has no room.
        TypeError, ValueError, RuntimeError, CompileError, CompilerNotFoundError: as of Generator.uniform().
    """
    return _drawn("uniform", shape, dtype, device, stream, generator)


def randn(
    *shape: Shape,
    dtype: DTypeLike = "float32",
    device: DeviceArgument | None = None,
    stream: Stream | int | None = None,
    generator: Generator | None = None,
) -> Array:
    """Returns a new Array of normally distributed numbers of mean 0 and standard deviation 1.

    Arguments, Raises: as rand.
    """
    return _drawn("normal", shape, dtype, device, stream, generator)


def _drawn(law: str, shape: Any, dtype: Any, device: Any, stream: Any, generator: Generator | None) -> Array:
    if len(shape) == 1:
        (shape,) = shape
    if device is None and stream is None and generator is not None:
        device = generator.device
    array = empty(shape, dtype, device, stream)
    chosen = of_device(array.device_index) if generator is None else generator
    getattr(chosen, law)(array, stream=array.stream)
    return array


def manual_seed(seed: int) -> None:
    """Seeds the current device's default generator; before initialisation, the device that is current then.

    Arguments:
        seed: int, from -2**63 to 2**64 - 1; a float counts without its fraction, as in torch.
    Raises:
        ValueError, TypeError: it is no such int.

    Where there is no device it does nothing.  Of calls before initialisation the last one counts; they come
    before what lazy_call queued, in order with those of the other functions here.
    """
    number = seed_of(seed)

    def call() -> None:
        if device_count():
            default_generators[current_device()].manual_seed(number)

    init.lazy_call(call, seed=True)


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices.

    Arguments, Raises: as manual_seed.
    """
    number = seed_of(seed)

    def call() -> None:
        for generator in default_generators:
            generator.manual_seed(number)

    init.lazy_call(call, seed_all=True)


def seed() -> None:
    """Seeds the current device's default generator from the system's entropy; without a device it does
    nothing."""

    def call() -> None:
        if device_count():
            default_generators[current_device()].seed()

    init.lazy_call(call, state=True)


def seed_all() -> None:
    """Seeds the default generators of all devices with one seed from the system's entropy."""

    def call() -> None:
        number = default_generators[0].seed() if len(default_generators) else 0
        for generator in default_generators:
            generator.manual_seed(number)

    init.lazy_call(call, state=True)


def initial_seed() -> int:
    """Returns the seed of the current device's default generator; initialises accelrt."""
    return of_device(None).initial_seed()


def get_rng_state(device: DeviceArgument | None = "cuda") -> bytes:
    """Returns the state of a device's default generator in torch's format, 16 bytes; initialises accelrt.

    Arguments:
        device: int, "cuda:1", an object with an index; None or "cuda" is the current device.
    """
    return of_device(named(device)).get_state()


def _get_rng_state_offset(device: DeviceArgument | None = "cuda") -> int:
    """The offset of a device's default generator; initialises accelrt.  Arguments as of get_rng_state."""
    return of_device(named(device)).get_offset()


def _set_rng_state_offset(offset: int, device: DeviceArgument | None = "cuda") -> None:
    """Has a device's default generator go to an offset, now or once accelrt is initialised.

    Arguments:
        offset: int, a multiple of 4 below 2**64.
        device: as of get_rng_state.
    Raises:
        TypeError, ValueError: it is no offset.
    """
    number = checked_offset(offset)
    init.lazy_call(lambda: of_device(named(device)).set_offset(number), state=True)


def get_rng_state_all() -> list[bytes]:
    """Returns get_rng_state of each device."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: object, device: DeviceArgument | None = "cuda") -> None:
    """Sets the state of a device's default generator, now or once accelrt is initialised.

    Arguments:
        new_state: what get_rng_state returned, here or in torch: bytes-like, or an array of uint8.
        device: as of get_rng_state.
    Raises:
        TypeError, ValueError: it is no state.
    """
    seed, offset = read_state(new_state)
    state = seed.to_bytes(8, "little") + offset.to_bytes(8, "little")
    init.lazy_call(lambda: of_device(named(device)).set_state(state), state=True)


def set_rng_state_all(new_states: Iterable[object]) -> None:
    """Sets the state of each device's default generator, from the first device on.

    Arguments:
        new_states: iterable of states, as set_rng_state takes them; get_rng_state_all returned one, say.
    Raises:
        TypeError, ValueError: one is no state.
    """
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


@contextmanager
def fork_rng(devices: Sequence[DeviceArgument] | None = None, enabled: bool = True) -> Iterator[None]:
    """Returns a context at whose end default generators have the state again that they had at its beginning.

    Arguments:
        devices: sequence of devices; None is all of them.
        enabled: bool, False does nothing.
    """
    if not enabled:
        yield
        return
    generators = list(default_generators) if devices is None else [of_device(each) for each in devices]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def named(device: DeviceArgument | None) -> DeviceArgument | None:
    return None if device == "cuda" else device  # also on the host device, whose name is another
