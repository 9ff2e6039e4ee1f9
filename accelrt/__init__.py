"""accelrt: torch.cuda's runtime without torch.

A caching memory allocator, streams, events and graph capture for Python and Cython, on NVIDIA GPUs and on
an embedded host device.  Importing it touches no driver; the first use of a device does.

Where a function says no more, a device is an int, "cuda:1", "host:0" or an object with an index, and None the
current one; a stream is a Stream, a handle as int, or None for the current one.  What is neither raises a
ValueError or a TypeError (InvalidDeviceError).  Each call that reaches the driver may raise CudaError, and
the first one what init() raises.  What is imported when it is first asked for raises ImportError where a
signal's handler or a destructor asks for it in the midst of that import.
"""

try:
    import accelrt.status  # noqa: F401  the first that is compiled
except ModuleNotFoundError as error:
    if error.name != "accelrt.status":
        raise
    raise ImportError(
        f"{__path__[0]} is accelrt's source, not compiled for this Python, and hides any accelrt that is "
        "installed: start Python in another directory, or compile this one with 'python -m pip install -e .'"
    ) from None

import os as _os
import sys as _sys

from accelrt import env, memory, sanitizer  # noqa: F401  memory and sanitizer are public
from accelrt.core import names
from accelrt.core.process import stop_counting_functions as _stop_counting_functions
from accelrt.core.version import VERSION as __version__  # noqa: F401
from accelrt.runtime import init as lazy

_later = names.module_of(names.LATER)
_underscored = names.module_of(names.UNDERSCORED)
_modules = {*names.MODULES.split(), *names.UNLISTED.split()}


def _import_now() -> list[str]:
    here, now = globals(), names.module_of(names.NOW)
    for name, module in now.items():
        here[name] = getattr(names.module_named(f"accelrt.{module}"), name)
    return sorted([*now, *_later, *names.MODULES.split()])


__all__ = _import_now()


def __getattr__(name: str) -> object:
    """Imports what few programs ask for when it is first asked for."""
    if name in _modules:
        return lazy.later(f"accelrt.{name}")
    if name in _later or name in _underscored:
        module = _later.get(name) or _underscored[name]
        value = globals()[name] = getattr(lazy.later(f"accelrt.{module}"), name)
        return value
    instead = lazy.later("accelrt.core.instead")
    text = instead.explain(f"module 'accelrt' has no attribute {name!r}", instead.OF_ACCELRT.get(name))
    raise AttributeError(text, name=name, obj=_sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _start_what_is_asked_for() -> None:
    """Starts what variables of the environment turn on, each time that a driver was opened."""
    if env.value("ACCELRT_PUBLISH"):
        lazy.later("accelrt.publish").start()
    if env.value("ACCELRT_RECORD"):
        lazy.later("accelrt.memory.history.drain").start_by_environment(_os.getpid() != _imported_in)
    if env.value("ACCELRT_LEAKS"):  # after it: what is recorded already stays
        lazy.later("accelrt.memory.live").start()


def _processes_of(ordinal: int) -> object:
    return lazy.later("accelrt.readings").gpu_processes(ordinal)


def _sharing() -> object:
    return lazy.later("accelrt.sharing.handles")


def _conversion() -> object:
    return lazy.later("accelrt.kernels.conversion")


_imported_in = _os.getpid()
lazy.when_opened(_start_what_is_asked_for)
names.module_named("accelrt.memory.caching").ask_processes(_processes_of)
names.module_named("accelrt.arrays.array").provide_later(_sharing, _conversion)
_stop_counting_functions()
