"""Keeps the results: the fastest candidates by device model, where they are kept, and what they depend on."""

from __future__ import annotations

import os
import sys
import warnings
from _thread import RLock
from collections.abc import Callable

from accelrt import env
from accelrt.core import process
from accelrt.core.arguments import checked_type
from accelrt.devices.device import current_device, get_device_properties
from accelrt.devices.versions import driver_version
from accelrt.runtime import init
from accelrt.tunable.results_file import Key, Result, check_field, merge, read

__all__ = [
    "Result",
    "get_filename",
    "get_results",
    "get_validators",
    "read_file",
    "register_validator",
    "set_filename",
    "write_file",
    "write_file_on_exit",
]

_lock = RLock()
_known: dict[str, dict[Key, Result]] = {}  # by model
_unwritten: dict[int, dict[Key, Result]] = {}  # by ordinal: found here, and in no file yet
_loaded: set[tuple[str, str]] = set()  # files that were looked into, by model
_validators: dict[str, Callable[[], str]] = {}
_filename = ""
_inserts_ordinal = True
_writes_itself = True
_models: dict[int, str] = {}
_paths: dict[int, str] = {}


def forget_in_child() -> None:
    global _lock
    _lock = RLock()


process.call_at_fork("tunable.results", "tools", child=forget_in_child)


def model_of(ordinal: int) -> str:
    """Returns what a device is called among the validators: results are good for devices of one name."""
    model = _models.get(ordinal)
    if model is None:
        facts = get_device_properties(ordinal)
        name = f"{facts.name} {facts.major}.{facts.minor} {facts.multi_processor_count}"
        model = _models[ordinal] = name.replace(",", " ")
    return model


def register_validator(name: str, function: Callable[[], str]) -> None:
    """Adds what results depend on, such as the version of a library that candidates call.

    Arguments:
        name: str, such as "MYLIB_VERSION".
        function: of no arguments, which returns a str, without commas.  A file whose validators say something
            else is not used.
    Raises:
        ValueError, TypeError: the name cannot stand in a file, or function cannot be called.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; pass a function of no arguments that returns a str")
    check_field(name, "name")
    if (
        name in validators_of(0 if not init.is_initialized() else current_device())
        and name not in _validators
    ):
        raise ValueError(f"name is {name!r}, which is a validator of accelrt's own")
    _validators[name] = function


def validators_of(ordinal: int) -> dict[str, str]:
    built_in = {
        "VERSION": sys.modules["accelrt"].__version__,
        "DRIVER": init.chosen_driver(),
        "DRIVER_VERSION": ".".join(map(str, driver_version())),
        "DEVICE": model_of(ordinal),
    }
    more = {name: check_field(function(), f"validator {name}") for name, function in _validators.items()}
    return built_in | more


def get_validators() -> tuple[tuple[str, str], ...]:
    """Returns (name, value) of each thing that results depend on, for the current device."""
    return tuple(validators_of(current_device()).items())


def file_for(
    ordinal: int, variable: str = "ACCELRT_TUNABLE_FILENAME", chosen: str = "", inserts: bool = True
) -> str:
    """A file's name with a device's ordinal in it: for %d, or before the suffix."""
    name = chosen or env.value(variable)
    if "%d" in name:
        return str(name.replace("%d", str(ordinal)))
    if not inserts:
        return str(name)
    stem, suffix = os.path.splitext(name)
    return f"{stem}{ordinal}{suffix}"


def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
    """Names the file of results, which is read at the next use of an operation.

    Arguments:
        filename: str; "%d" in it stands for the current device's ordinal.  Devices of two models need two
            files.
        insert_device_ordinal: bool, puts the ordinal before the suffix, as without a call of this function,
            where the file is accelrt_tunable0.csv, or what ACCELRT_TUNABLE_FILENAME says.
    Raises:
        TypeError, ValueError: it is no str, or empty.
    """
    global _filename, _inserts_ordinal
    checked_type(filename, "filename", str, "a str")
    if not filename:
        raise ValueError("filename is empty; pass the name of a file")
    with _lock:
        _filename, _inserts_ordinal = filename, bool(insert_device_ordinal)
        _paths.clear()


def get_filename() -> str:
    """Returns the name of the file of results for the current device."""
    return filename_of(current_device())


def filename_of(ordinal: int) -> str:
    path = _paths.get(ordinal)
    if path is None:
        path = _paths[ordinal] = file_for(ordinal, chosen=_filename, inserts=_inserts_ordinal)
    return path


def find(ordinal: int, operation: str, params: str) -> Result | None:
    """Returns what is known of some arguments; the device's file is read first."""
    model = model_of(ordinal)
    if (filename_of(ordinal), model) not in _loaded:
        load(ordinal)
    return _known.get(model, {}).get((operation, params))


def load(ordinal: int) -> None:
    path = filename_of(ordinal)
    entry = path, model_of(ordinal)
    with _lock:  # another thread waits until what the file says is known
        if entry in _loaded:
            return
        try:
            take(path, ordinal)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            warnings.warn(f"results of tuning are not read: {error}", RuntimeWarning, stacklevel=5)
        finally:
            _loaded.add(entry)


def take(path: str, ordinal: int) -> bool:
    validators, results = read(path)
    if not validators and not results:
        return False
    own = validators_of(ordinal)
    wrong = [name for name in own.keys() | validators.keys() if own.get(name) != validators.get(name)]
    if wrong:
        text = ", ".join(
            f"{name} is {validators.get(name)} there and {own.get(name)} here" for name in sorted(wrong)
        )
        warnings.warn(
            f"results of tuning in {path} are not used: {text}; "
            f"they stay in {path}.rejected once there are new ones",
            RuntimeWarning,
            stacklevel=5,
        )
        return False
    with _lock:
        results_here = _known.setdefault(model_of(ordinal), {})
        _known[model_of(ordinal)] = results | results_here
    return True


def add(ordinal: int, result: Result) -> None:
    """Keeps what was found, and writes it unless write_file_on_exit(False) was called."""
    key = result.operation, result.params
    with _lock:
        _known.setdefault(model_of(ordinal), {})[key] = result
        _unwritten.setdefault(ordinal, {})[key] = result
    if _writes_itself:
        write_or_warn(ordinal)


def write_or_warn(ordinal: int) -> None:
    try:
        write(ordinal, filename_of(ordinal))
    except OSError as error:
        warnings.warn(
            f"results of tuning are not written: {error}; they are tried again at the exit",
            RuntimeWarning,
            stacklevel=5,
        )


def write(ordinal: int, path: str) -> None:
    with _lock:
        results = dict(_known.get(model_of(ordinal), {}))
        fresh = dict(_unwritten.get(ordinal, {}))
    merged = merge(path, validators_of(ordinal), results, fresh)
    with _lock:
        newest = _known.setdefault(model_of(ordinal), {})
        _known[model_of(ordinal)] = merged | {key: newest[key] for key in newest.keys() - merged.keys()}
        left = _unwritten.get(ordinal, {})
        for key, result in fresh.items():
            if left.get(key) is result:
                del left[key]


def get_results() -> tuple[Result, ...]:
    """Returns the results known for the current device: (operation, params, candidate, time) of each."""
    ordinal = current_device()
    find(ordinal, "", "")
    return tuple(result for _, result in sorted(_known.get(model_of(ordinal), {}).items()))


def read_file(filename: str | None = None) -> bool:
    """Reads results for the current device; those that are known already stay.

    Arguments:
        filename: str; None is get_filename().
    Returns:
        bool: False where the file is not there or is empty, or its validators do not hold here, of which a
        RuntimeWarning says which.
    Raises:
        ValueError: a line is malformed.
        OSError: the file cannot be read.
    """
    try:
        return take(get_filename() if filename is None else os.fspath(filename), current_device())
    except FileNotFoundError:
        return False


def write_file(filename: str | None = None) -> bool:
    """Writes what is known for the current device, merged with what the file says.

    Arguments:
        filename: str; None is get_filename().
    Returns:
        bool: False where nothing is known, and nothing is written.
    Raises:
        OSError: the file cannot be written.
    """
    ordinal = current_device()
    if not get_results():
        return False
    write(ordinal, get_filename() if filename is None else os.fspath(filename))
    return True


def write_file_on_exit(val: bool) -> None:
    """Has results written without being asked to: each when it is found, and at the exit what could not be
    written then.  On at first.

    Arguments:
        val: bool.
    """
    global _writes_itself
    _writes_itself = bool(val)


def finish() -> None:
    for ordinal, left in list(_unwritten.items()):
        if _writes_itself and left:
            write_or_warn(ordinal)


process.call_at_exit("tunable.results", "tunable", finish)
