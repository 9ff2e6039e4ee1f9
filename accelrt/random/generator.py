"""Generator: random numbers of one device, from a seed and an offset."""

from __future__ import annotations

import operator
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy

from accelrt.core.dtypes import BY_NAME
from accelrt.devices.device import device as device_type
from accelrt.devices.device import device_ordinal, get_device_properties
from accelrt.graphs.graph import RandomState
from accelrt.kernels.elementwise_plan import LIMITS
from accelrt.kernels.elementwise_source import FLOATS, IN_FLOAT
from accelrt.random.graph_states import states_of
from accelrt.random.launches import MOST_PLANS, Launch, checked_array, name_of, plan_for
from accelrt.random.seeds import DEFAULT_SEED, checked_offset, random_seed, read_state, seed_of
from accelrt.runtime import init
from accelrt.runtime.lifetimes import capture_of
from accelrt.streams.stream import Stream, current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelrt.annotations import DeviceArgument
    from accelrt.arrays.array import Array
    from accelrt.runtime.lifetimes import Record

    Numbers = Callable[..., tuple[str, tuple[Any, ...]]]

MOST_THREADS = 1 << 26  # of a geometry: kernels step by 16 times as many elements, in 32 bits
EXACT = {name: 1 << BY_NAME[name].precision for name in FLOATS}  # all integers up to it are exact
WIDE_RANGE = 1 << 28  # from here on integers are drawn of 64 bits, as torch's are

_defaults: dict[int, Generator] = {}
# By what a call depends on: its launches, and what their kernels take for its values.
_launches: dict[tuple[Any, ...], tuple[tuple[Launch, tuple[Any, ...]], ...]] = {}


def finite(value: float, name: str) -> float:
    number = float(value)
    if not isfinite(number):
        raise ValueError(f"{name} is {number}; pass a finite number")
    return number


def is_default(state: RandomState, device: int) -> bool:
    """Tells whether it is of the device's default generator, which every capture may draw from."""
    default = _defaults.get(device)
    return default is not None and default.shared_state is state


class Generator:
    """Random numbers of one device (Philox 4x32-10): the same bits as torch's for the same seed and offset.

        generator = accelrt.random.Generator("cuda:0").manual_seed(3)
        generator.uniform(array)
        generator.normal(array, mean=0.0, std=2.0)

    Arguments:
        device: int, "cuda:1", an object with an index; None is the current device.
        seed: int, as of manual_seed(), or None for the seed that all new generators have.
    Raises:
        ValueError, TypeError: seed is no such int, or device names none.

    Each call that draws puts a kernel into a stream and moves the offset on; the host waits for nothing.  In
    a capture of a graph the seed and the offset are those of each replay; generators other than the device's
    default one have to be registered before (CUDAGraph.register_generator_state).  Copies and pickles begin
    with the same state.

    Attributes:
        device: accelrt.device.
        geometry: (int, int), multiprocessors and threads that each holds, which decide where each number of
            the sequence goes in arrays of more elements than that; None is the device's own.  Another GPU's
            gives that GPU's numbers: (132, 2048) an H100's or H200's.
    """

    def __init__(self, device: DeviceArgument | None = None, *, seed: int | None = None) -> None:
        self._ordinal = device_ordinal(device)
        self._state = RandomState(DEFAULT_SEED if seed is None else seed_of(seed))
        self._geometry: tuple[int, int] | None = None
        self._own_geometry: tuple[int, int] | None = None

    @property
    def device(self) -> device_type:
        """The device whose numbers it draws."""
        return device_type(self._ordinal)

    @property
    def shared_state(self) -> RandomState:
        """The seed and the offset, which generators that draw from one sequence share."""
        return self._state

    @property
    def geometry(self) -> tuple[int, int]:
        """(int, int): the multiprocessors, and threads of each, of the device that it draws like.

        Raises:
            ValueError, TypeError: what is assigned is not 1 or more of 256 threads or more each, or too many.
        """
        if self._geometry is not None:
            return self._geometry
        if self._own_geometry is None:
            facts = get_device_properties(self._ordinal)
            self._own_geometry = facts.multi_processor_count, facts.max_threads_per_multi_processor
        return self._own_geometry

    @geometry.setter
    def geometry(self, value: tuple[int, int] | None) -> None:
        if value is not None:
            processors, threads = map(operator.index, value)
            if processors < 1 or threads < 256 or processors * threads > MOST_THREADS:
                raise ValueError(
                    f"geometry is {value!r}; pass multiprocessors, 1 or more, and threads of each, 256 up"
                )
            value = processors, threads
        self._geometry = value

    # --- the state
    # ---------------------------------------------------------------------------------------------

    def _refuse_capture(self, what: str) -> None:
        if init.is_initialized():
            stream = current_stream(self._ordinal)
            if capture_of(self._ordinal, stream.handle)[0]:
                raise RuntimeError(
                    f"{what} is not possible while the current stream captures: the seed and the offset "
                    "are those of each replay; call it outside of the capture"
                )

    def manual_seed(self, seed: int) -> Generator:
        """Sets the seed, and the offset to 0.

        Arguments:
            seed: int, from -2**63 to 2**64 - 1; a float counts without its fraction, as in torch.
        Returns:
            the generator.
        Raises:
            ValueError, TypeError: it is no such int.
            RuntimeError: the current stream captures.
        """
        number = seed_of(seed)
        self._refuse_capture("manual_seed")
        self._state.put(number, 0)
        return self

    def seed(self) -> int:
        """Sets a seed of 53 bits from the system's entropy, and the offset to 0.

        Returns:
            int, the seed.
        Raises:
            RuntimeError: the current stream captures.
        """
        self._refuse_capture("seed")
        number = random_seed()
        self._state.put(number, 0)
        return number

    def initial_seed(self) -> int:
        """Returns the seed, from 0 to 2**64 - 1.

        Raises:
            RuntimeError: the current stream captures.
        """
        self._refuse_capture("initial_seed")
        return self._state.seed

    def get_offset(self) -> int:
        """Returns how many words of each thread's sequence were used; a multiple of 4.

        Raises:
            RuntimeError: the current stream captures.
        """
        self._refuse_capture("get_offset")
        return self._state.offset

    def set_offset(self, offset: int) -> Generator:
        """Goes to an offset.

        Arguments:
            offset: int, the words of each thread's sequence that count as used, a multiple of 4 below 2**64.
        Returns:
            the generator.
        Raises:
            ValueError, TypeError: it is no such int.
            RuntimeError: the current stream captures.
        """
        number = checked_offset(offset)
        self._refuse_capture("set_offset")
        self._state.put(self._state.seed, number)
        return self

    def get_state(self) -> bytes:
        """Returns the seed and the offset in torch's format: 8 bytes each, little endian.

        Raises:
            RuntimeError: the current stream captures.
        """
        self._refuse_capture("get_state")
        return self._state.seed.to_bytes(8, "little") + self._state.offset.to_bytes(8, "little")

    def set_state(self, state: object) -> Generator:
        """Goes to a state.

        Arguments:
            state: what get_state returned, here or in torch: 16 bytes, bytes-like or an array of uint8; of 8
                bytes, a seed, the offset is 0.
        Returns:
            the generator.
        Raises:
            TypeError, ValueError: it is none.
            RuntimeError: the current stream captures.
        """
        seed, offset = read_state(state)
        self._refuse_capture("set_state")
        self._state.put(seed, offset)
        return self

    def clone_state(self) -> Generator:
        """Returns a generator of the same device with a state of its own that is equal to this one's."""
        clone = self.graphsafe_get_state()
        clone._state = RandomState(self._state.seed, self._state.offset)
        return clone

    def graphsafe_get_state(self) -> Generator:
        """Returns a generator that shares this one's state: what either draws, both move on."""
        other = Generator(self._ordinal)
        other._state, other._geometry = self._state, self._geometry
        return other

    def graphsafe_set_state(self, generator: Generator) -> Generator:
        """Shares another generator's state from now on, also in captures.

        Arguments:
            generator: Generator, of the same device.
        Returns:
            the generator itself.
        Raises:
            TypeError, ValueError: it is no Generator, or of another device.
        """
        if not isinstance(generator, Generator):
            raise TypeError(f"generator is of type {type(generator).__name__}; pass a Generator")
        if generator._ordinal != self._ordinal:
            raise ValueError(f"generator is of device {generator._ordinal}, and this one of {self._ordinal}")
        self._state = generator._state
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild, (self._ordinal, self._state.seed, self._state.offset, self._geometry)

    def __repr__(self) -> str:
        state = self._state
        return (
            f"<accelrt.random.Generator of device {self._ordinal}, seed {state.seed}, offset {state.offset}>"
        )

    # --- numbers
    # -----------------------------------------------------------------------------------------------

    def uniform(self, out: Any, low: float = 0.0, high: float = 1.0, *, stream: Any = None) -> Any:
        """Fills an array with numbers from low to below high, each as likely (torch.Tensor.uniform_).

        Arguments:
            out: Array on the generator's device, of any strides, of float16, bfloat16, float32 or float64; or
                another library's array there.
            low, high: float, finite, low <= high.
            stream: Stream or handle as int; None is the device's current one.
        Returns:
            out.
        Raises:
            TypeError, ValueError: the array is not of such a type, not on the device, read-only or overlaps
                itself, or the limits are none.
            RuntimeError: the stream captures, and the generator is not registered with the graph.
            CompileError, CompilerNotFoundError: of the first call for a type.
        """
        self._draw("uniform", _uniform_values, out, (_plain(low), _plain(high)), stream)
        return out

    def normal(self, out: Any, mean: float = 0.0, std: float = 1.0, *, stream: Any = None) -> Any:
        """Fills an array with normally distributed numbers (torch.Tensor.normal_).

        Arguments:
            out, stream: as of uniform.
            mean: float.
            std: float, the standard deviation, 0 or more.
        Returns, Raises: as uniform.

        On the host device the numbers are a GPU's, but for those of float64 that its approximate reciprocal
        rounds otherwise (accelrt/random/host_math.py).
        """
        self._draw("normal", _normal_values, out, (_plain(mean), _plain(std)), stream)
        return out

    def integers(self, out: Any, low: int, high: int | None = None, *, stream: Any = None) -> Any:
        """Fills an array with integers from low to below high (torch.randint).

        Arguments:
            out: as of uniform, and of every type of integers and bool.
            low, high: int; without high they go from 0 to below low.  What the type holds exactly.
            stream: as of uniform.
        Returns, Raises: as uniform.

        As in torch a number is the remainder of 32 drawn bits, or from a range of 2**28 on of 64: some are
        likelier than others, by up to range / 2**32 (2**64) of their probability.
        """
        limits = (0, operator.index(low)) if high is None else (operator.index(low), operator.index(high))
        self._draw("integers", _integer_values, out, limits, stream)
        return out

    def bernoulli(self, out: Any, p: float = 0.5, *, stream: Any = None) -> Any:
        """Fills an array with 1 where a number is drawn that has the probability p, and 0 elsewhere
        (torch.Tensor.bernoulli_).

        Arguments:
            out: as of integers.
            p: float, 0 to 1.
            stream: as of uniform.
        Returns, Raises: as uniform.
        """
        self._draw("bernoulli", _bernoulli_values, out, (_probability(p),), stream)
        return out

    def permutation(self, out: Any, *, stream: Any = None) -> Any:
        """Fills an array with the integers from 0 to below its size, in random order.

        Arguments:
            out: as of integers, of a type that holds its size exactly.
            stream: as of uniform.
        Returns, Raises: as uniform.

        Up to 1024 elements every order is as likely: drawn keys are ranked.  Above that each integer goes
            through a Feistel network of 24 rounds whose keys are drawn, so that 2**64 seeds and the offset
            select the order.
        """
        self._draw("permutation", _permutation_values, out, (), stream)
        return out

    def _draw(self, name: str, numbers: Numbers, out: Any, values: tuple[Any, ...], stream: Any) -> None:
        """Fills an array.

        Arguments:
            name: str, of the distribution.
            values: ints and floats, which stay what they are while a call is known by them.
            numbers: checks its values for an Array, and gives the type of C that is drawn and what the kernel
                takes for them.
        """
        ordinal = self._ordinal
        if type(stream) is not Stream or stream.device_index != ordinal:
            stream = _stream_of(stream, ordinal)
        array = checked_array(out, ordinal, stream)
        key = (
            *(name, values, array.dtype, array.shape, array.strides, array.ptr % array.itemsize),
            *(ordinal, self._geometry),
        )
        launches = _launches.get(key)
        if launches is None:
            number, passed = numbers(array, *values)
            plan = plan_for(name, number, array, ordinal, self.geometry) if array.size else ()
            launches = tuple((launch, passed) for launch in plan)
            if len(_launches) >= MOST_PLANS:
                _launches.clear()
            _launches[key] = launches
        for (kernel, blocks, words, middle), passed in launches:
            captured, record = capture_of(ordinal, stream.handle)
            if captured:
                memory, seed, offset = self._take_in(record, words, stream)
            else:
                memory = None
                seed, offset = self._state.take(words)
            if kernel is not None:  # else the parts that follow draw, and this one's share is left out
                kernel.launch(blocks, 256, (memory, seed, offset, *middle, array, *passed), stream=stream)

    def _take_in(self, record: Record | None, words: int, stream: Stream) -> tuple[Array, int, int]:
        """Tells where the seed and the offset of a capture's launch lie; 0, and what to add to the offset."""
        states = states_of(record, stream)
        if self._state not in states.registered and not is_default(self._state, self._ordinal):
            raise RuntimeError(
                f"{self!r} is not registered with the graph that is being captured; call "
                "graph.register_generator_state(generator) before the capture"
            )
        memory, used = states.take(self._state, words, stream)
        return memory, 0, used


def rebuild(ordinal: int, seed: int, offset: int, geometry: tuple[int, int] | None) -> Generator:
    """A generator again of what its pickle holds."""
    generator = Generator(ordinal)
    generator._state.put(seed, offset)
    generator._geometry = geometry
    return generator


def _stream_of(stream: Any, device: int) -> Stream:
    if stream is None:
        return current_stream(device)
    chosen = Stream.from_any(stream, device)
    if chosen.device_index != device:
        raise ValueError(f"stream is of device {chosen.device_index}, and the generator of device {device}")
    return chosen


def _plain(value: Any) -> float:
    """A number that can be looked up, of anything that float() takes."""
    # A tuple of types: a union would be made anew for each draw.
    return value if isinstance(value, (int, float)) else float(value)


def _probability(p: Any) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability goes from 0 to 1")
    return _plain(p)


def _kind_of_floats(array: Array) -> str:
    kind = name_of(array.dtype)
    if kind not in EXACT:
        raise TypeError(f"out is of {array.dtype}; these numbers are of {', '.join(EXACT)}")
    return kind


def _uniform_values(array: Array, low: float, high: float) -> tuple[str, tuple[float, ...]]:
    """Rounds the limits as torch rounds them, to float32 first for small floats: the kernel takes their
    begin, how far they go, and their end."""
    kind, dtype = _kind_of_floats(array), array.dtype
    begin: Any
    end: Any
    with numpy.errstate(over="ignore"):
        begin, end = (
            dtype.type(numpy.float32(value) if kind in IN_FLOAT else value)
            for value in (finite(low, "low"), finite(high, "high"))
        )
        width = end - begin
    if not (low <= high and isfinite(float(width))):
        raise ValueError(f"low is {low} and high is {high}; low is at most high, and both are of {dtype}")
    return _number_of(kind), (float(begin), float(width), float(end))


def _normal_values(array: Array, mean: float, std: float) -> tuple[str, tuple[float, ...]]:
    """Rounds the mean and the standard deviation to the type of C that is drawn."""
    number = _number_of(_kind_of_floats(array))
    kind = numpy.float64 if number == "double" else numpy.float32
    if not std >= 0:
        raise ValueError(f"std is {std}; it is 0 or more")
    with numpy.errstate(over="ignore"):
        return number, (float(kind(finite(mean, "mean"))), float(kind(finite(std, "std"))))


def _integer_values(array: Array, first: int, end: int) -> tuple[str, tuple[int, ...]]:
    name = name_of(array.dtype)
    exact = EXACT.get(name, 0)
    least, most = LIMITS.get(name, (-exact, exact))
    if not least <= first < end <= most + 1:
        raise ValueError(
            f"integers from {first} to below {end} are none of {name}; it holds {least} to {most}, and "
            "low is below high"
        )
    wide = end - first >= WIDE_RANGE
    return "accelrt_long" if wide else "accelrt_word", ((end - first) % (1 << 64), first % (1 << 64))


def _bernoulli_values(array: Array, p: float) -> tuple[str, tuple[float, ...]]:
    number = _number_of(name_of(array.dtype))
    return number, (float(p) if number == "double" else float(numpy.float32(p)),)


def _permutation_values(array: Array) -> tuple[str, tuple[()]]:
    name, size = name_of(array.dtype), array.size
    most = EXACT.get(name) or LIMITS[name][1]
    if size - 1 > most:
        raise ValueError(f"out has {size} elements, and {name} holds integers up to {most}")
    return "accelrt_long", ()


def _number_of(kind: str) -> str:
    return "double" if kind == "float64" else "float"
