"""Times candidates: by events on the current stream, over copies of the arguments.

Each gets copies in turn that fill the L2 cache together, is left out early where it is much slower than the
best so far, and where the numerical check is on, has to write what the default writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from accelrt.arrays.array import Buffer
from accelrt.devices.device import get_device_properties
from accelrt.errors import CompileError, CudaError, NotSupportedError, OutOfMemoryError
from accelrt.streams.stream import Event, Stream
from accelrt.tunable import switches
from accelrt.tunable.arguments import differs, nbytes_of
from accelrt.tunable.switches import say

Function = Callable[..., Any]
Copies = Callable[[Any], Any]
DEFAULT = "Default"
# Rounds before the last: how many calls, and how much slower than the best a candidate may be to stay.
ROUNDS = ((3, 1.5), (10, 1.15))
BEFORE = 2  # calls before each round
ITERATIONS = 100
MOST_COPIES = 256
# What a launch that does not fit the arguments or the device answers, and that leaves the device whole:
# INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_CLUSTER_SIZE.
UNFIT = (1, 701, 720, 912)


class Fastest(NamedTuple):
    """A candidate and its milliseconds of a call."""

    name: str
    time: float


class Turns:
    """Copies of the arguments, handed out in turn."""

    def __init__(
        self, copies: list[tuple[tuple[Any, ...], dict[str, Any]]], stream: Stream, flush: Buffer | None
    ) -> None:
        self.copies = copies
        self.stream = stream
        self.flush = flush
        self.turn: int = 0

    def call(self, function: Function) -> Any:
        args, kwargs = self.copies[self.turn % len(self.copies)]
        self.turn += 1
        return function(*args, **kwargs)

    def run(self, function: Function, times: int) -> None:
        for _ in range(times):
            self.call(function)

    def time(self, function: Function, times: int) -> float:
        """Milliseconds of a call, the mean of some."""
        self.run(function, BEFORE)
        events = [(Event(enable_timing=True), Event(enable_timing=True)) for _ in range(times)]
        for start, end in events:
            if self.flush is not None:
                self.flush.fill(0, stream=self.stream)
            start.record(self.stream)
            self.call(function)
            end.record(self.stream)
        events[-1][1].synchronize()
        return sum(start.elapsed_time(end) for start, end in events) / times


def fastest(
    candidates: dict[str, Function],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stream: Stream,
    copies: Copies,
    check: Callable[[Any, Any], str] | None,
) -> Fastest:
    """The fastest of candidates for some arguments, which stay as they are.

    Arguments:
        candidates: name -> function; "Default" is among them.
        stream: the current stream of the device on which they run.
        copies: makes a copy of (args, kwargs).
        check: of what the default and a candidate wrote and returned, how they differ, as text; None compares
            arrays.
    Raises:
        OutOfMemoryError: there is no room for a copy of the arguments.
        Exception: whatever the default raises, and what a candidate raises unless it says that it does not
            serve these arguments.
    """
    call = (args, kwargs)
    tolerances = switches.get_numerical_check_tolerances()
    turns = Turns(*prepared(call, copies, stream))
    expected = written(candidates[DEFAULT], copies(call)) if tolerances is not None else None
    best = Fastest(DEFAULT, float("inf"))
    for name in sorted(candidates, key=lambda name: name != DEFAULT):
        function = candidates[name]
        if not serves(name, function, turns):
            continue
        if expected is not None and tolerances is not None and name != DEFAULT:
            results = written(function, copies(call))
            wrong = check(expected, results) if check is not None else differs(expected, results, tolerances)
            if wrong:
                say(2, f"{name} is left out: its results are not the default's: {wrong}")
                continue
        time = timed(name, function, turns, best.time)
        if time < best.time:
            best = Fastest(name, time)
    return best


def prepared(
    call: tuple[tuple[Any, ...], dict[str, Any]], copies: Copies, stream: Stream
) -> tuple[list[tuple[tuple[Any, ...], dict[str, Any]]], Stream, Buffer | None]:
    """Copies that fill the rotating buffer, or as many as there is room for, and what flushes the cache."""
    turns = [copies(call)]
    size = max(nbytes_of(list(call)), 1)
    most = min(switches.get_rotating_buffer_size() // size + 1, MOST_COPIES)
    flush = None
    try:
        cache = get_device_properties(stream.device_index).L2_cache_size
        if switches.l2_flush_is_enabled() and cache:
            flush = Buffer(2 * cache, stream.device_index, stream)
        while len(turns) < most:
            turns.append(copies(call))
    except OutOfMemoryError:
        say(2, f"there is room for {len(turns)} copies of the arguments, not for {most}")
    return turns, stream, flush


def written(function: Function, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = call
    returned = function(*args, **kwargs)
    return [args, kwargs, returned]


def serves(name: str, function: Function, turns: Turns) -> bool:
    """Tells whether a candidate can do it: one that cannot returns NotImplemented or raises what says so."""
    returned: Any = NotImplemented
    try:
        returned = turns.call(function)
        turns.stream.synchronize()
    except (NotSupportedError, OutOfMemoryError, CompileError) as error:
        refused: Exception | None = error
    except CudaError as error:
        if error.code not in UNFIT:
            raise
        refused = error
    else:
        refused = None
    if refused is not None and name == DEFAULT:
        raise refused
    if refused is not None or returned is NotImplemented:
        say(2, f"{name} is left out: {refused or 'it does not serve these arguments'}")
        return False
    return True


def timed(name: str, function: Function, turns: Turns, best: float) -> float:
    """Milliseconds of a call; infinite for a candidate that is left out as too slow."""
    about = 0.0
    for times, most in ROUNDS:
        about = turns.time(function, times)
        if about > most * best:
            say(3, f"{name} is left out: about {about:.4g} ms")
            return float("inf")
    warmups = within(switches.get_max_warmup_duration(), switches.get_max_warmup_iterations(), about, 0)
    turns.run(function, warmups)
    time = turns.time(function, iterations(about))
    say(2, f"{name}: {time:.4g} ms")
    return time


def within(duration: int, most: int, about: float, otherwise: int) -> int:
    """Returns how many calls fit a duration and a number, of which 0 is no limit."""
    if not duration:
        return most or otherwise
    fit = int(duration / max(about, 1e-6))
    return min(fit, most) if most else fit


def iterations(about: float) -> int:
    count = within(
        switches.get_max_tuning_duration(), switches.get_max_tuning_iterations(), about, ITERATIONS
    )
    return max(1, min(count, 100_000))
