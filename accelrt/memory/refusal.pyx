# cython: embedsignature=False
"""The out of memory error: its fields, its text, and the functions that are told of it.

Nothing here holds a lock, allocates device memory, or is run before a request was refused.  What fails while the figures
are read leaves a short text: the error itself is always raised.
"""
import os
import resource

from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from libc.stdint cimport uint64_t, uintptr_t

from accelrt.devices.device cimport known_devices
cimport accelrt.driver.registry as registry
from accelrt.driver.registry import driver_name
from accelrt.errors import OutOfMemoryError
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.holdings import holdings, rounded_request
from accelrt.allocator.private.routes cimport private_of
from accelrt.memory.explain import causes_of, pinned_text, text_of
from accelrt.memory.history.recording import is_recording, tag_stats
from accelrt.allocator.pinned.block cimport PinnedStats
from accelrt.allocator.pinned.pool cimport read_pinned_stats
from accelrt.memory.live_blocks import by_stack
from accelrt.memory.statistics import sleeping
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.allocator.settings.apply cimport backend_name
from accelrt.status cimport CAP_REACHED, OUT_OF_MEMORY, POOL_CAP_REACHED, refuse_copy

cdef extern from *:
    """
    static __thread int accelrt_telling;  /* this thread is inside an observer */
    """
    int telling "accelrt_telling"

cdef dict REFUSED_BY = {OUT_OF_MEMORY: "device", CAP_REACHED: "limit", POOL_CAP_REACHED: "pool"}
# Fields of the error under their own names; the others are in its state.
cdef tuple FIELDS = (
    "device", "requested", "rounded", "capacity", "free", "limit", "refused_by", "reserved", "live", "pending", "idle",
    "largest_free", "stitched", "sleeping", "stream", "pool", "by_pool", "by_stream", "by_tag", "stacks",
    "pending_events", "used_by_others", "processes", "settings",
)


# --- what is read ----------------------------------------------------------------------------------------------

cdef dict no_holdings():
    # Of a device whose pool was never made.
    return {
        "reserved": 0, "live": 0, "pending": 0, "idle": 0, "largest_free": 0, "limit": None, "granule": 0, "page_size": 0,
        "largest_page": 0, "deferred": 0, "virtual_memory": False, "stitching": False, "splits": True, "capturing": False,
        "stitched": 0,
        "streams": [], "pools": [], "events": [], "stacks": [], "external": False,
    }


cdef dict read_device(int ordinal):
    # A refusal of the driver leaves zeros, which say so.
    cdef size_t free = 0, capacity = 0
    with nogil:
        registry.active().memory_info(ordinal, &free, &capacity)
    return {"free": free, "capacity": capacity, "devices": known_devices()}


cdef bint has_virtual_memory(int ordinal):
    cdef size_t granule = 0
    cdef int code
    with nogil:
        code = registry.active().granularity(ordinal, &granule)
    return code == 0 and granule


cdef tuple pool_of_request(int ordinal, uintptr_t stream):
    cdef uint64_t[2] name
    with nogil:
        private_of(ordinal, stream, name)
    return name[0], name[1]


cdef object ask_processes(object source, int ordinal):
    # None where nobody can tell: a figure less, not a reason to fail.
    try:
        found = source(ordinal)
        return [{"pid": one.pid, "memory": one.memory, "this": one.pid == os.getpid()} for one in found]
    except Exception:
        return None


cdef dict read_recording(int ordinal, list stacks):
    return {
        "recording": bool(is_recording(ordinal)),
        "stacks": by_stack(stacks, 3),
        "by_tag": {
            name: stats["allocated_bytes"]["current"] for name, stats in tag_stats(ordinal).items()
            if stats["allocated_bytes"]["current"]
        },
    }


cdef dict read_facts(int ordinal, object size, uintptr_t stream, int code, str cause, object source):
    cdef dict facts = {"device": ordinal, "requested": size, "stream": stream, "driver_cause": cause, "waking": ""}
    facts.update(holdings(ordinal) or no_holdings())
    facts.update(read_device(ordinal))
    plain = facts["reserved"] and not facts["virtual_memory"]
    facts["pageable"] = has_virtual_memory(ordinal) if plain and size <= facts["capacity"] else True
    facts["by_pool"], facts["by_stream"] = facts.pop("pools"), facts.pop("streams")
    facts["pending_events"] = facts.pop("events")
    facts["rounded"] = rounded_request(ordinal, size) if size < 1 << 60 else size
    facts["refused_by"] = REFUSED_BY.get(code, "device")
    facts["pool"] = pool_of_request(ordinal, stream) if not facts["external"] else (0, 0)
    facts["driver"] = driver_name()
    facts["backend"] = backend_name()
    facts["settings"] = allocator_settings()["text"]
    facts["sleeping"] = sleeping(ordinal)
    facts["used_by_others"] = max(facts["capacity"] - facts["free"] - facts["reserved"], 0)
    looks = facts["refused_by"] == "device" and facts["used_by_others"]
    facts["processes"] = ask_processes(source, ordinal) if looks else []
    facts.update(read_recording(ordinal, facts["stacks"]))
    return facts


# --- the errors ------------------------------------------------------------------------------------------------

def explained(int ordinal, size, uintptr_t stream, int code, str cause, source):
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


def explained_wake(int ordinal, tuple pool, size, int code, str call, str waking, source):
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


cdef object error_of(dict facts, int code, str call):
    causes = causes_of(facts)
    error = OutOfMemoryError(text_of(facts, causes), code, "OUT_OF_MEMORY", call)
    fields = vars(error)
    for name in FIELDS:
        fields[name] = facts.pop(name)
    error.state = facts
    error.causes = tuple([each.name for each in causes])
    error.advice = tuple([advice for each in causes for advice in each.advice])
    return error


cdef object lockable_bytes():
    # What this process may lock of its memory; None: without limit.  The superuser may lock all.
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


cdef object available_bytes():
    # Of the host's memory; None where the system does not tell.  /proc/meminfo, proc(5).
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def explained_pinned(size, str cause):
    """The error of a refused request of page-locked memory; size in bytes, cause as above."""
    cdef PinnedStats stats
    cdef int ordinal
    cdef bint capturing = False
    with nogil:
        stats = read_pinned_stats()
        for ordinal in range(MAX_DEVICES):
            capturing |= pool_if_made(ordinal) != NULL and pool_if_made(ordinal).captures > 0
    reserved, live = stats.segment_bytes.current, stats.block_bytes.current
    facts = {
        "requested": size, "reserved": reserved, "live": live, "idle": reserved - live, "driver_cause": cause,
        "lockable": lockable_bytes(), "available": available_bytes(), "capturing": bool(capturing),
    }
    text, advice = pinned_text(facts)
    error = OutOfMemoryError(text, OUT_OF_MEMORY, "OUT_OF_MEMORY", "allocate_pinned")
    error.requested, error.reserved, error.live, error.idle = size, reserved, live, reserved - live
    error.refused_by, error.causes, error.advice, error.state = "driver", ("page-locked",), advice, facts
    return error


# --- observers -------------------------------------------------------------------------------------------------

cdef tuple observers = ()  # of OutOfMemoryObserver, in order; replaced as a whole, under the GIL


cdef class OutOfMemoryObserver:
    """OutOfMemoryObserver()\n--\n\n\
    A registered function; remove() ends it.  Made by attach_out_of_memory_observer."""

    cdef object function
    cdef object __weakref__

    def __reduce__(self):
        refuse_copy(self, "it is one registration; attach the function again")

    def remove(self):
        """Ends the registration; again, it does nothing.  A call that is under way goes on."""
        global observers
        observers = tuple([other for other in observers if other is not self])

    def __repr__(self):
        state = "" if self in observers else ", removed"
        return f"<accelrt.memory.OutOfMemoryObserver {self.function!r}{state}>"


def attach_out_of_memory_observer(fn):
    """Has a function called whenever a request of device memory is refused, before OutOfMemoryError is raised
    (torch._C._cuda_attach_out_of_memory_observer).

        handle = accelrt.memory.attach_out_of_memory_observer(lambda *figures: print(accelrt.memory.report()))

    Arguments:
        fn: callable as fn(device, requested, device_capacity, device_free): an ordinal, and bytes.  What it returns is
            ignored.
    Returns:
        OutOfMemoryObserver, whose remove() ends it.  It holds the function; dropping it does not end it.
    Raises:
        TypeError: fn cannot be called.

    It is called on the thread that allocates, with no lock held, so it may allocate and free; what is refused to it
    is told to no observer.  An Exception that it raises is reported by sys.unraisablehook; what interrupts it, such as
    KeyboardInterrupt, is raised, from the error.  Requests of nogil code (accelrt.api) and of torch on the plug-in, which
    get a status or torch's own error, are refused without Python, so no observer is told of them.
    """
    global observers
    cdef OutOfMemoryObserver observer
    if not callable(fn):
        raise TypeError(
            f"fn is {fn!r} of type {type(fn).__name__}; pass a callable as fn(device, requested, device_capacity, "
            "device_free)"
        )
    observer = OutOfMemoryObserver.__new__(OutOfMemoryObserver)
    observer.function = fn
    observers = (*observers, observer)
    return observer


def tell(error, int ordinal):
    """Calls the observers of an error that is about to be raised."""
    global telling
    if telling:
        return
    telling = 1
    try:
        for observer in observers:
            function = (<OutOfMemoryObserver>observer).function
            try:
                function(ordinal, error.requested, error.capacity, error.free)
            except Exception as failure:
                PyErr_SetObject(type(failure), failure)
                PyErr_WriteUnraisable(function)
    finally:
        telling = 0
