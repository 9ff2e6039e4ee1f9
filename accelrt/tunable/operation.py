"""Operations: what users register candidates for, and which of them a call runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from accelrt.core import process
from accelrt.devices.device import current_device
from accelrt.devices.device import device as device_type
from accelrt.driver.guard import has_open_captures
from accelrt.driver.registry import Rows
from accelrt.graphs.graph import is_current_stream_capturing
from accelrt.streams.stream import current_stream
from accelrt.tunable import arguments as argument_rules
from accelrt.tunable import results, results_file, switches
from accelrt.tunable.results_file import Result, check_field
from accelrt.tunable.timing import DEFAULT, Function, fastest

__all__ = ["Operation"]

F = TypeVar("F", bound=Function)
RELAXED = 2  # the mode in which this thread's waits break no capture of another thread's

operations: dict[str, Operation] = {}  # by name, the latest of each
_starting = process.ForkSafeLock()  # a signal's handler may begin a tuning of its own
_tuning: set[int] = set()  # ordinals of devices on which some thread times candidates


def forget_in_child() -> None:
    _tuning.clear()


process.call_at_fork("tunable.operation", "tools", child=forget_in_child)


class Operation:
    """Several ways to do one thing, of which a call runs the fastest that is known for its arguments.

    Arguments:
        name: str, what the operation is called in files of results.
        default: function that does it; a call runs it while nothing better is known.
        key: function of the call's arguments that returns a str, the same for arguments for which the same
            candidate is best; None makes one of the arrays' shapes and types and the other arguments' values.
        arguments: function of such a str that returns (args, kwargs) to tune with, for tune_in_file; None
            makes Arrays of random numbers.
        copies: function that copies (args, kwargs), with arrays of their own; None copies Arrays, Buffers,
            and what has clone() or copy().
        check: function of what the default and what a candidate left, each as [args, kwargs, returned], that
            returns how they differ as text, empty where they do not; None compares all arrays.
    Raises:
        ValueError, TypeError: the name has a comma or a line break in it, or a function cannot be called.

    Candidates run on the current stream, as the operation itself: they are timed there, on copies, so that
    the call's arguments are changed once.  Nothing is timed while a capture is open, or by a second thread on
    a device where one is timing; such a call runs what is known, or the default.
    """

    def __init__(
        self,
        name: str,
        default: Function,
        *,
        key: Callable[..., str] | None = None,
        arguments: Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
        copies: Callable[[Any], Any] | None = None,
        check: Callable[[Any, Any], str] | None = None,
    ) -> None:
        self.name: str = check_field(name, "name")
        if name == "Validator":
            raise ValueError("name is 'Validator', which begins another kind of line in a file of results")
        for what, function in (
            ("default", default),
            ("key", key),
            ("arguments", arguments),
            ("copies", copies),
            ("check", check),
        ):
            if not callable(function) and (function is not None or what == "default"):
                raise TypeError(f"{what} is {function!r} of type {type(function).__name__}; pass a function")
        self.default = default
        self._functions: dict[str, Function] = {DEFAULT: default}
        self._key = key
        self._arguments = arguments or argument_rules.made_of
        self._copies = copies or argument_rules.copied
        self._check = check
        operations[name] = self

    def __repr__(self) -> str:
        return f"<accelrt.tunable.Operation {self.name!r} of {', '.join(self._functions)}>"

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of the candidates, "Default" first."""
        return tuple(self._functions)

    @overload
    def candidate(self, name: str) -> Callable[[F], F]: ...
    @overload
    def candidate(self, name: str, function: F) -> F: ...
    def candidate(self, name: str, function: F | None = None) -> F | Callable[[F], F]:
        """Adds another way to do it; a decorator where no function is given.

        Arguments:
            name: str, what it is called in files of results.
            function: takes the operation's arguments.  One that does not serve some returns NotImplemented,
                or raises NotSupportedError, CompileError, OutOfMemoryError or the error of a launch that does
                not fit.
        Returns:
            the function.
        Raises:
            ValueError, TypeError: the name is taken or cannot stand in a file, or function cannot be called.
        """
        check_field(name, "name")
        if name in self._functions:
            raise ValueError(
                f"name is {name!r}, which {self.name} has already; it has {', '.join(self._functions)}"
            )
        if function is None:
            return lambda decorated: self.candidate(name, decorated)
        if not callable(function):
            raise TypeError(f"function is {function!r} of type {type(function).__name__}; pass a function")
        self._functions[name] = function
        return function

    def params_of(self, *args: Any, **kwargs: Any) -> str:
        """Returns the name of a call's arguments in files of results.

        Arguments:
            args, kwargs: those of a call of the operation.
        Raises:
            TypeError, ValueError: the arguments have no name, or one that cannot stand in a file.
        """
        name = argument_rules.name_of(args, kwargs) if self._key is None else self._key(*args, **kwargs)
        return check_field(name, f"the key of {self.name}'s arguments")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not switches.is_enabled():
            return self.default(*args, **kwargs)
        return self.chosen(args, kwargs)(*args, **kwargs)

    def chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function:
        """Returns the function that a call runs; times the candidates first where that is due.

        Arguments:
            args, kwargs: tuple and dict, those of the call.
        Raises: as params_of; and as tune where candidates are timed.
        """
        params, ordinal = self.params_of(*args, **kwargs), self.ordinal_for(args, kwargs)
        function = self.known(ordinal, params)
        if function is not None:
            return function
        if switches.tuning_is_enabled():
            with tuning(ordinal) as may_tune:
                if may_tune:
                    function = self.known(ordinal, params)  # another thread may have found it meanwhile
                    return function or self._functions[self.find(ordinal, params, args, kwargs).candidate]
        elif switches.record_untuned_is_enabled():
            path = results.file_for(ordinal, "ACCELRT_TUNABLE_UNTUNED_FILENAME")
            results_file.record_untuned(path, self.name, params)
        return self.default

    def tune(self, *args: Any, **kwargs: Any) -> Result:
        """Times the candidates for some arguments, whatever is known or enabled, and keeps the result.

        Arguments:
            args, kwargs: those of a call of the operation.
        Returns:
            Result.
        Raises:
            RuntimeError: a capture is open, or another thread times candidates on the device.
            Exception: whatever the default raises, or a candidate that fails in earnest.
        """
        params, ordinal = self.params_of(*args, **kwargs), self.ordinal_for(args, kwargs)
        with tuning(ordinal) as may_tune:
            if not may_tune:
                raise RuntimeError(
                    f"{self.name} cannot be tuned now: a capture is open, or another thread times candidates "
                    f"on device {ordinal}; tune before the capture, and one operation after the other"
                )
            return self.find(ordinal, params, args, kwargs)

    def arguments_for(self, params: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Makes arguments that have a name in files of results.

        Arguments:
            params: str, the name, as params_of returns it.
        Returns:
            (args, kwargs): tuple and dict.
        Raises:
            ValueError: none can be made of it.
        """
        return self._arguments(params)

    def ordinal_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Returns the ordinal of the device that a call runs on: its arrays', or the current one.

        Arguments:
            args, kwargs: tuple and dict, those of the call.
        """
        ordinal = argument_rules.ordinal_of_arrays([args, kwargs])
        return current_device() if ordinal is None else ordinal

    def known(self, ordinal: int, params: str) -> Function | None:
        """Returns the candidate that results name for a device and arguments; None where there is none.

        Arguments:
            ordinal: int, the device's.
            params: str, the arguments' name, as params_of returns it.
        """
        result = results.find(ordinal, self.name, params)
        if result is None:
            return None
        function = self._functions.get(result.candidate)
        if function is None:
            warnings.warn(
                f"{self.name} has no candidate {result.candidate!r}, which the results of tuning name for "
                f"{params}; it has {', '.join(self._functions)}",
                RuntimeWarning,
                stacklevel=4,
            )
        return function

    def find(self, ordinal: int, params: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
        """Times the candidates with a call's arguments, and keeps the fastest.

        Arguments:
            ordinal, params: as of known.
            args, kwargs: tuple and dict, those of the call.
        Returns:
            Result.
        Raises:
            Exception: whatever the default raises, or a candidate that fails in earnest.
        """
        switches.say(2, f"{self.name}({params}): {len(self._functions)} candidates")
        with device_type(ordinal):
            stream = current_stream(ordinal)
            best = fastest(dict(self._functions), args, kwargs, stream, self._copies, self._check)
        result = Result(self.name, params, best.name, best.time)
        switches.say(1, f"{self.name}({params}): {best.name}, {best.time:.4g} ms")
        results.add(ordinal, result)
        return result


@contextmanager
def tuning(ordinal: int) -> Iterator[bool]:
    """Tells whether the calling thread may time candidates on a device now; its waits then break no capture
    that another thread begins."""
    if has_open_captures() or is_capturing(ordinal):
        yield False
        return
    rows, exchanged, free = Rows(), list[tuple[int, int]](), False
    try:
        with _starting:
            free = ordinal not in _tuning
            _tuning.add(ordinal)
        if free:
            # One step of compiled code, so that no interruption loses the mode that was before.
            exchanged.extend(map(rows.capture_mode_exchange, (RELAXED,)))
        yield free
    finally:
        try:
            for code, before in exchanged:
                if code == 0:
                    rows.capture_mode_exchange(before)
        finally:
            if free:
                _tuning.discard(ordinal)


def is_capturing(ordinal: int) -> bool:
    with device_type(ordinal):
        return bool(is_current_stream_capturing())
