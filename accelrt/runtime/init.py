"""Initialisation at first use: once a process, by whichever thread comes first, never on import."""

import os
from _thread import get_ident

from accelrt import env
from accelrt.core import names, process

if getattr(process, "call_at_fork", None) is None:  # what is compiled is loaded once a process
    raise ImportError(
        "accelrt was imported by an interpreter of this process that has ended (Py_Finalize), and cannot be "
        "imported by another one: keep one interpreter for as long as the process lives"
    )

from accelrt.driver import registry
from accelrt.errors import DeferredCudaCallError, DriverNotFoundError, ForkedError, describe_codes
from accelrt.status import FORK_TEXT, describe, name_of, text_of

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HOST_ADVICE = "for the embedded host device set ACCELRT_DRIVER=host or call accelrt.init(driver='host')"

_lock = process.ForkSafeLock()
_importers_lock = process.ForkSafeLock()  # guards _importers, and is held for no import
_importers: "dict[int, process.ForkSafeLock]" = {}  # thread -> what it holds while it imports
_imported: "dict[str, Any]" = {}
_queued: "list[tuple[Callable[[], object], str]]" = []
_seeds: "list[tuple[Callable[[], object], str, str]]" = []  # run before those; the third is the kind
_when_opened: "list[Callable[[], object]]" = []
_opened: str | None = None  # the driver, also in a child of a fork, which cannot use it
_initialized_pid: int | None = None
_initializing: tuple[int, int] | None = None  # process and thread
_warned_of_old = False


def chosen_driver() -> str:
    """The driver that this process uses, or will use at first use: "cuda" or "host" (or a test's "faults").

    Raises:
        ValueError: ACCELRT_DRIVER names none.
    """
    active = registry.opened_name()
    if active == "forked" and _opened is not None:
        return _opened
    if active not in ("sentinel", "forked"):
        return active
    name = env.value("ACCELRT_DRIVER")
    return "cuda" if name == "auto" else name


def runs_on_host() -> bool:
    """Tells whether the driver is the host device's, also behind a test's "faults".

    Raises:
        ValueError: as of chosen_driver.
    """
    name = chosen_driver()
    return (registry.wrapped_driver() if name == "faults" else name) == "host"


def is_initialized() -> bool:
    """Tells whether this process has initialised a driver."""
    return _initialized_pid == os.getpid()


def count_unopened() -> int:
    """Returns how many devices there are, found without a driver call: a process that only asks this may
    fork."""
    name = chosen_driver()
    if name in env.DRIVERS and name != "cuda":
        return int(later(registry.DRIVERS[name]).read_settings()["devices"])
    return int(later("accelrt.devices.discovery").count())


def later(name: str) -> "Any":
    """A module of ours that few programs need, imported at its first use.

    A fork waits until it is there: a child of a fork in the middle of an import would wait for ever for the
    lock of the module that another thread of its parent held.

    Raises:
        ImportError: the thread is in the midst of importing it, from which a signal's handler or a destructor
            came here: whether the module has a name is not known yet, so it is no AttributeError.
    """
    module: Any = _imported.get(name)
    if module is None:
        with _importers_lock:
            importing = _importers.setdefault(get_ident(), process.ForkSafeLock())
        with importing:
            module = names.module_named(name)
            if getattr(module.__spec__, "_initializing", False):  # some have no spec
                raise ImportError(
                    f"this thread is importing {name} just now, and a signal's handler or a destructor that "
                    "came in the midst asked for it; ask for it once before, or after the import",
                    name=name,
                )
            _imported[name] = module
            process.stop_counting_functions()
    return module


def words_of(code: int) -> tuple[str, str]:
    """A code's name and what the CUDA runtime says of it; of accelrt's own codes, below 0, its sentence."""
    if code < 0:
        return describe(code)
    try:
        return name_of(code), later("accelrt.runtime.error_texts").error_text(code, "cudaGetErrorString")
    except ImportError:  # without the runtime's Python package
        return describe(code)


describe_codes(words_of)


def is_available() -> bool:
    """Tells whether there is a device to use.  Opens no driver, so that a fork after it is safe."""
    if not is_initialized():
        return count_unopened() > 0
    process.check()
    return registry.active_device_count() > 0


def init(driver: str | None = None) -> None:
    """Initialises accelrt, which otherwise happens at the first use of a device.

    Arguments:
        driver: "auto", "cuda" or "host"; None is the environment's ACCELRT_DRIVER, and without it "auto",
            which is "cuda".  Nothing ever falls back to the host device by itself.
    Raises:
        DriverNotFoundError: there is no NVIDIA driver or device.
        ForkedError: this process was forked from one that had initialised.
        RuntimeError: another driver is in use already.
        ValueError: no such driver, or a malformed setting of the host device.
        DeferredCudaCallError: a call queued by lazy_call failed.
    """
    global _initialized_pid, _initializing
    with _lock:
        if _initializing == (os.getpid(), get_ident()):
            return
        name = driver_wanted(driver)
        if is_initialized() and not _queued and not _seeds:
            process.check()
            return
        _initializing = os.getpid(), get_ident()
        try:
            if registry.driver_name() == "sentinel":
                open_driver(name)
            run_queued()
            _initialized_pid = os.getpid()
        except BaseException:
            registry.set_aside()  # whatever stopped it, an interruption too: the next use tries again
            raise
        finally:
            _initializing = None


def driver_wanted(driver: str | None) -> str:
    active = registry.opened_name()
    if active == "forked":
        raise ForkedError(FORK_TEXT)
    name = chosen_driver() if driver in (None, "auto") else driver
    if name not in registry.DRIVERS:
        raise ValueError(f"driver {driver!r} is not known; it may be {', '.join(('auto', *env.DRIVERS))}")
    if active != "sentinel" and driver not in (None, "auto") and name != active:
        raise RuntimeError(f"driver {name!r} was asked for, but this process already runs on {active!r}")
    return name


def open_driver(name: str) -> None:
    global _opened, _warned_of_old
    if name in env.DRIVERS and name != "cuda":
        later(registry.DRIVERS[name]).read_settings()  # names a malformed one, before the driver refuses it
    from accelrt.allocator.settings import apply

    env.value("ACCELRT_PUBLISH")  # malformed ones are named before the driver is opened
    env.value("ACCELRT_LEAKS")
    env.value("ACCELRT_RECORD_STACKS")
    env.warn_of_unknown()
    apply.read_environment()
    code = registry.open_and_activate(name)
    if code:
        raise DriverNotFoundError(reason(name, code))
    _opened = name
    process.remember(name)
    process.come_first_at_exit()
    for call in _when_opened:
        call()
    if name == "cuda" and not _warned_of_old:
        _warned_of_old = True  # first: where warnings are errors, the next use goes on without
        later("accelrt.devices.versions").warn_of_what_is_old()


def when_opened(call: "Callable[[], object]") -> None:
    """Has a function of a package above this one called each time that a driver was opened."""
    _when_opened.append(call)


def reason(name: str, code: int) -> str:
    cause = later(registry.DRIVERS[name]).open_error() if name in env.DRIVERS else ""
    if name != "cuda":
        return f"the {name} driver did not open: {cause or text_of(code)}"
    advice = later("accelrt.devices.versions").advice_to_upgrade()
    why = (cause or text_of(code)).rstrip(".")  # the text of another library may be a sentence
    return f"no NVIDIA device can be used: {why}{advice}; {HOST_ADVICE}"


def run_queued() -> None:
    queue: list[Any]
    while queue := _seeds or _queued:  # a call may queue others
        call, origin = queue[0][:2]
        try:
            call()
        except Exception as error:
            raise DeferredCudaCallError(
                f"CUDA call failed lazily at initialization with error: {error}\n\n"
                f"CUDA call was originally invoked at:\n\n{origin}"
            ) from error
        del queue[0]


def lazy_call(
    call: "Callable[[], object]", *, seed: bool = False, seed_all: bool = False, state: bool = False
) -> None:
    """Runs a function as soon as accelrt is initialised: now, or at first use.

    Arguments:
        call: a function of no arguments.  If it fails at initialisation, that raises
            DeferredCudaCallError with the traceback of the call that queued it, and it stays queued.
        seed: bool, it seeds the current device's generator: it takes the place of the last such call.
        seed_all: bool, it seeds all devices' generators: it takes the place of the last such call.
        state: bool, it changes a generator's state in another way.
            Calls of these three kinds run before all others, in the order in which they were made.
    """
    if is_initialized():
        call()
        return
    import traceback  # half of what importing accelrt would take

    origin = "".join(traceback.format_stack()[:-1])
    kind = "seed_all" if seed_all else "seed" if seed else "state" if state else ""
    with _lock:
        if not kind:
            _queued.append((call, origin))
            return
        if kind != "state":
            _seeds[:] = [queued for queued in _seeds if queued[2] != kind]
        _seeds.append((call, origin, kind))


def is_in_bad_fork() -> bool:
    """Tells whether this process was forked from one that had initialised, so that it can use no device."""
    return registry.opened_name() == "forked"


# By torch.cuda's names.
_lazy_call = lazy_call
_lazy_init = init
_is_in_bad_fork = is_in_bad_fork


# A child would have half done what other threads initialise and import.
process.hold_through_forks("runtime.init", "initialisation", [_lock, _importers_lock], _importers)
registry.on_first_use(init)
