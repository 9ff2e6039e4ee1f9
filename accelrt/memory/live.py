"""Tells what is live: where a request is refused, and at the end of the process."""

from __future__ import annotations

import gc
import os
import resource
import threading
import warnings

from accelrt.allocator.external.external_pool import backend_name, report
from accelrt.allocator.pinned.cache import available_bytes
from accelrt.allocator.private.routes import pool_of_request
from accelrt.allocator.readers import driver_pool_bytes, holdings, pinned_segments, rounded_request
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.core.printable import printable
from accelrt.core.process import call_at_exit
from accelrt.devices.context_limits import thread_stacks
from accelrt.devices.device import device_count
from accelrt.driver.registry import Rows, driver_name
from accelrt.errors import OutOfMemoryError, refuse_copy
from accelrt.memory.explain import causes_of, pinned_text, text_of
from accelrt.memory.history.recording import is_recording, record_history, tag_stats
from accelrt.memory.live_blocks import by_stack, described, live_memory, named
from accelrt.runtime.init import later
from accelrt.runtime.lifetimes import (
    LEAKS_SHOWN,
    add_reachable,
    cuda_arrays,
    forget_reachable,
    report_live_at_exit,
    reports_live_at_exit,
)
from accelrt.status import name_of

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# --- refusal ----------------------------------------------------------------------------------------------
# The out of memory error: its fields, its text, and the functions that are told of it.
#
# Nothing here holds a lock, allocates device memory, or is run before a request was refused.  What fails
# while the figures are read leaves a short text: the error itself is always raised.

OUT_OF_MEMORY = 2  # CUresult
REFUSED_BY = {"OUT_OF_MEMORY": "device", "CAP_REACHED": "limit", "POOL_CAP_REACHED": "pool"}
# Fields of the error under their own names; the others are in its state.
FIELDS = (
    *("device", "requested", "rounded", "capacity", "free", "limit", "refused_by", "reserved", "live"),
    *("pending", "idle", "largest_free", "stitched", "sleeping", "managed", "stream", "pool", "by_pool"),
    *("by_stream", "by_tag", "stacks", "pending_events", "used_by_others", "processes", "settings"),
)
# Of a device whose pool was never made.
NO_HOLDINGS: dict[str, Any] = {
    **dict.fromkeys(("reserved", "live", "pending", "idle", "largest_free", "granule", "page_size"), 0),
    **dict.fromkeys(("largest_page", "deferred", "stitched", "sleeping", "managed"), 0),
    **dict.fromkeys(("virtual_memory", "stitching", "capturing", "external"), False),
    "limit": None,
    "splits": True,
}
LISTS = ("streams", "pools", "events", "stacks")  # of holdings


def ask_processes(source: Callable[[int], Any], ordinal: int) -> list[dict[str, Any]] | None:
    """The device's processes; None where nobody can tell: a figure less, not a reason to fail."""
    try:
        return [
            {"pid": one.pid, "memory": one.memory, "this": one.pid == os.getpid()} for one in source(ordinal)
        ]
    except Exception:
        return None


def read_recording(ordinal: int, stacks: list[tuple[int, int, int]]) -> dict[str, Any]:
    return {
        "recording": is_recording(ordinal),
        "stacks": by_stack(stacks, 3),
        "by_tag": {
            name: stats["allocated_bytes"]["current"]
            for name, stats in tag_stats(ordinal).items()
            if stats["allocated_bytes"]["current"]
        },
    }


def read_facts(ordinal: int, size: int, stream: int, code: int, cause: str, source: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"device": ordinal, "requested": size, "stream": stream}
    facts |= {"driver_cause": cause, "waking": ""}
    facts.update(holdings(ordinal) or NO_HOLDINGS | {name: [] for name in LISTS})
    _, unused, capacity = Rows().memory_info(ordinal)  # a refusal of the driver leaves zeros, which say so
    facts.update({"free": unused, "capacity": capacity, "devices": device_count()})
    plain = facts["reserved"] and not facts["virtual_memory"]
    facts["pageable"] = not (plain and size <= capacity) or Rows().granularity(ordinal)[1] > 0
    facts["by_pool"], facts["by_stream"] = facts.pop("pools"), facts.pop("streams")
    facts["pending_events"] = facts.pop("events")
    facts["rounded"] = rounded_request(ordinal, size) if size < 1 << 60 else size
    facts["refused_by"] = REFUSED_BY.get(name_of(code), "device")
    facts["pool"] = pool_of_request(ordinal, stream) if not facts["external"] else (0, 0)
    facts["driver"] = driver_name()
    facts["backend"] = backend_name()
    facts["settings"] = allocator_settings()["text"]
    facts["thread_stacks"] = thread_stacks(ordinal) if facts["refused_by"] == "device" else (0, 0)
    facts["arrays"] = sum(array["nbytes"] for array in cuda_arrays(ordinal))
    facts["driver_pools"] = driver_pool_bytes(ordinal)
    known = facts["reserved"] + facts["arrays"] + facts["driver_pools"]["device"]
    facts["used_by_others"] = max(facts["capacity"] - facts["free"] - known, 0)
    facts["available"] = available_bytes()
    looks = facts["refused_by"] == "device" and facts["used_by_others"]
    facts["processes"] = ask_processes(source, ordinal) if looks else []
    facts.update(read_recording(ordinal, facts["stacks"]))
    return facts


# --- the errors -------------------------------------------------------------------------------------------


def explained(
    ordinal: int, size: int, stream: int, code: int, cause: str, source: Callable[[int], Any] | None
) -> OutOfMemoryError:
    """The error of a refused request of device memory.

    Arguments:
        ordinal: int, the device.
        size: int, bytes requested.
        stream: int, the handle that the memory was asked for on.
        code: int, OUT_OF_MEMORY, CAP_REACHED or POOL_CAP_REACHED of status.pxd.
        cause: str, why the driver refused, where it told; else "".
        source: callable, from an ordinal to what NVML lists of its processes.
    Returns:
        OutOfMemoryError.
    """
    return error_of(read_facts(ordinal, size, stream, code, cause, source), code, "allocate")


def explained_wake(
    ordinal: int,
    pool: tuple[int, int],
    size: int,
    code: int,
    call: str,
    waking: str,
    source: Callable[[int], Any] | None,
) -> OutOfMemoryError:
    """The error of a pool's pages that the device does not give again.

    Arguments:
        ordinal, code, source: as above.
        pool: (int, int), its id.
        size: int, bytes of the pages.
        call: str, the function that wakes it.
        waking: str, what the text says of it.
    """
    facts = read_facts(ordinal, size, 0, code, "", source)
    facts["pool"], facts["waking"], facts["rounded"] = pool, waking, size
    return error_of(facts, code, call)


def error_of(facts: dict[str, Any], code: int, call: str) -> OutOfMemoryError:
    causes = causes_of(facts)
    error = OutOfMemoryError(text_of(facts, causes), code, "OUT_OF_MEMORY", call)
    fields = vars(error)
    for name in FIELDS:
        fields[name] = facts.pop(name)
    error.state = facts
    error.causes = tuple(each.name for each in causes)
    error.advice = tuple(advice for each in causes for advice in each.advice)
    return error


def lockable_bytes() -> int | None:
    """Bytes that this process may lock of its memory; None: without limit.  The superuser may lock all."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def explained_pinned(size: int, cause: str) -> OutOfMemoryError:
    """The error of a refused request of page-locked memory; size in bytes, cause as above."""
    segments = pinned_segments()
    reserved = sum(segment["total_size"] for segment in segments)
    live = sum(
        block["size"] for segment in segments for block in segment["blocks"] if block["state"] != "inactive"
    )
    pools = [holdings(ordinal) for ordinal in range(device_count())]
    facts = {
        **{"requested": size, "reserved": reserved, "live": live, "idle": reserved - live},
        **{"driver_cause": cause, "lockable": lockable_bytes(), "available": available_bytes()},
        "capturing": any(pool["capturing"] for pool in pools if pool),
        "driver_pools": sum(driver_pool_bytes(ordinal)["pinned"] for ordinal in range(device_count())),
    }
    text, advice = pinned_text(facts)
    error = OutOfMemoryError(text, OUT_OF_MEMORY, "OUT_OF_MEMORY", "allocate_pinned")
    error.requested, error.reserved, error.live, error.idle = size, reserved, live, reserved - live
    error.refused_by, error.causes, error.advice, error.state = "driver", ("page-locked",), advice, facts
    return error


# --- observers --------------------------------------------------------------------------------------------

_observers: dict[OutOfMemoryObserver, None] = {}  # in order; added to and taken from in one step each
_thread = threading.local()  # telling: whether the thread is inside an observer


class OutOfMemoryObserver:
    """OutOfMemoryObserver()

    A registered function; remove() ends it.  Made by attach_out_of_memory_observer."""

    _function: object = None

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it is one registration; attach the function again")

    def remove(self) -> None:
        """Ends the registration; again, it does nothing.  A call that is under way goes on."""
        _observers.pop(self, None)

    def __enter__(self) -> OutOfMemoryObserver:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "" if self in _observers else ", removed"
        return f"<accelrt.memory.OutOfMemoryObserver {self._function!r}{state}>"


def attach_out_of_memory_observer(fn: Callable[[int, int, int, int], object]) -> OutOfMemoryObserver:
    """Has a function called whenever a request of device memory is refused, before OutOfMemoryError is raised
    (torch._C._cuda_attach_out_of_memory_observer).

        handle = accelrt.memory.attach_out_of_memory_observer(lambda *figures: print(accelrt.memory.report()))

    Arguments:
        fn: callable as fn(device, requested, device_capacity, device_free): an ordinal, and bytes.  What it
            returns is ignored.
    Returns:
        OutOfMemoryObserver, whose remove() ends it.  It holds the function; dropping it does not end it.
    Raises:
        TypeError: fn cannot be called.

    It is called on the thread that allocates, with no lock held, so it may allocate and free; what is
    refused to it is told to no observer.  An Exception that it raises is reported by sys.unraisablehook;
    what interrupts it, such as KeyboardInterrupt, is raised, from the error.  Requests of nogil code
    (accelrt.api) and of torch on the plug-in, which get a status or torch's own error, are refused without
    Python, so no observer is told of them.
    """
    if not callable(fn):
        raise TypeError(
            f"fn is {fn!r} of type {type(fn).__name__}; pass a callable as fn(device, requested, "
            "device_capacity, device_free)"
        )
    observer = OutOfMemoryObserver()
    observer._function = fn
    _observers[observer] = None
    return observer


def tell(error: OutOfMemoryError, ordinal: int) -> None:
    """Calls the observers of an error that is about to be raised."""
    if getattr(_thread, "telling", False):
        return
    _thread.telling = True
    try:
        for observer in list(_observers):
            function: Any = observer._function
            try:
                function(ordinal, error.requested, error.capacity, error.free)
            except Exception as failure:
                report(failure, function)
    finally:
        _thread.telling = False


# --- leaks ------------------------------------------------------------------------------------------------
# What is still live when the process ends (ACCELRT_LEAKS=1): written down when the exit begins, and reported
# after the interpreter by runtime/lifetimes.pyx.

DESCRIBED = 10000  # blocks that are described, the largest


def known_of(block: dict[str, Any], owners: dict[int, object], names_holder: bool) -> bytes:
    """A live block's owner, who holds that, its pool, tag and stack, as the report's text."""
    parts = []
    owner = owners.get(block["address"])
    if owner is not None:
        parts.append(type(owner).__name__)
        holder = later("accelrt.memory.holders").holder_of(owner, (owners,)) if names_holder else None
        parts += [f"held by {holder}"] if holder else []
    return printable(", ".join([*parts, *described(named(block))])).encode(errors="replace")


def write_down() -> None:
    """Keeps what is known of the blocks that are live now, for the report that this process asked for."""
    if not reports_live_at_exit():
        return
    gc.collect()
    owners = later("accelrt.memory.holders").owners()
    forget_reachable()
    for ordinal in range(device_count()):
        for index, block in enumerate(live_memory(ordinal)):
            note = known_of(block, owners, index < LEAKS_SHOWN) if index < DESCRIBED else b""
            add_reachable(ordinal, block, note)


def start() -> None:
    """Has the process report what is live when it ends, and records the stacks of what is allocated from now
    on, unless more is recorded already."""
    if reports_live_at_exit():
        return
    if not report_live_at_exit():
        warnings.warn(
            "ACCELRT_LEAKS: nothing will be reported: the interpreter has no room for one more function at "
            "its exit",
            RuntimeWarning,
            stacklevel=1,
        )
        return
    if not is_recording():
        record_history("state", "state")


call_at_exit("memory.live", "leaks", write_down)
