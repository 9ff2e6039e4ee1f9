"""Tells what is live, where a request is refused and at the end of the process."""
cimport cython
import gc
import os
import resource
import warnings
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free
from libc.string cimport strdup

from accelrt.allocator.pinned.block cimport PinnedStats
from accelrt.allocator.pinned.cache cimport read_pinned_stats
from accelrt.allocator.pool cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.private.routes cimport private_of
from accelrt.allocator.readers cimport list_live, list_live_pools, LiveBlock, LivePool
from accelrt.allocator.readers import holdings, rounded_request
from accelrt.allocator.external.external_pool cimport backend_name
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.printable import printable
from accelrt.core.process import call_at_exit
from accelrt.devices.device cimport known_devices
from accelrt.driver.registry import driver_name
cimport accelrt.driver.registry as registry
from accelrt.errors import OutOfMemoryError
from accelrt.memory.explain import causes_of, pinned_text, text_of
from accelrt.memory.history.recording import is_recording, record_history, tag_stats
from accelrt.memory.live_blocks import by_stack, described, live_blocks, named
from accelrt.runtime.init import later
from accelrt.status cimport CAP_REACHED, OUT_OF_MEMORY, POOL_CAP_REACHED, refuse_copy
from accelrt.runtime.lifetimes cimport events_in_use, streams_in_use


# --- refusal ----------------------------------------------------------------------------------------------------------
# The out of memory error: its fields, its text, and the functions that are told of it.
#
# Nothing here holds a lock, allocates device memory, or is run before a request was refused.  What fails while the figures
# are read leaves a short text: the error itself is always raised.

cdef extern from *:
    """
    static __thread int accelrt_telling;  /* this thread is inside an observer */
    """
    int telling "accelrt_telling"

cdef dict REFUSED_BY = {OUT_OF_MEMORY: "device", CAP_REACHED: "limit", POOL_CAP_REACHED: "pool"}
# Fields of the error under their own names; the others are in its state.
cdef tuple FIELDS = (
    "device", "requested", "rounded", "capacity", "free", "limit", "refused_by", "reserved", "live", "pending", "idle",
    "largest_free", "stitched", "sleeping", "managed", "stream", "pool", "by_pool", "by_stream", "by_tag", "stacks",
    "pending_events", "used_by_others", "processes", "settings",
)


# --- what is read ----------------------------------------------------------------------------------------------

cdef dict no_holdings():
    # Of a device whose pool was never made.
    return {
        "reserved": 0, "live": 0, "pending": 0, "idle": 0, "largest_free": 0, "limit": None, "granule": 0, "page_size": 0,
        "largest_page": 0, "deferred": 0, "virtual_memory": False, "stitching": False, "splits": True, "capturing": False,
        "stitched": 0, "sleeping": 0, "managed": 0,
        "streams": [], "pools": [], "events": [], "stacks": [], "external": False,
    }


cdef dict read_device(int ordinal):
    # A refusal of the driver leaves zeros, which say so.
    cdef size_t unused = 0, capacity = 0
    with nogil:
        registry.active().memory_info(ordinal, &unused, &capacity)
    return {"free": unused, "capacity": capacity, "devices": known_devices()}


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
    facts["used_by_others"] = max(facts["capacity"] - facts["free"] - facts["reserved"], 0)
    facts["available"] = available_bytes()
    looks = facts["refused_by"] == "device" and facts["used_by_others"]
    facts["processes"] = ask_processes(source, ordinal) if looks else []
    facts.update(read_recording(ordinal, facts["stacks"]))
    return facts


# --- the errors ------------------------------------------------------------------------------------------------

def explained(
    int ordinal, size: int, uintptr_t stream, int code, str cause, source: Callable[[int], object],
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


# stub: def explained_wake(ordinal: int, pool: tuple[int, int], size: int, code: int, call: str, waking: str, source: Callable[[int], object]) -> OutOfMemoryError: ...  # no-cython-lint
def explained_wake(
    int ordinal, tuple pool, size: int, int code, str call, str waking, source: Callable[[int], object],
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


def explained_pinned(size: int, str cause) -> OutOfMemoryError:
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

cdef object turn = object()  # in whose critical section the tuple below is read and replaced
cdef tuple observers = ()  # of OutOfMemoryObserver, in order


cdef tuple observers_now():
    with cython.critical_section(turn):
        return observers


cdef class OutOfMemoryObserver:
    """OutOfMemoryObserver()\n--\n\n\
    A registered function; remove() ends it.  Made by attach_out_of_memory_observer."""

    cdef object function
    cdef object __weakref__

    def __reduce__(self):
        refuse_copy(self, "it is one registration; attach the function again")

    def remove(self) -> None:
        """Ends the registration; again, it does nothing.  A call that is under way goes on."""
        global observers
        with cython.critical_section(turn):
            observers = tuple([other for other in observers if other is not self])

    def __repr__(self):
        state = "" if self in observers_now() else ", removed"
        return f"<accelrt.memory.OutOfMemoryObserver {self.function!r}{state}>"


def attach_out_of_memory_observer(fn: Callable[[int, int, int, int], object]) -> OutOfMemoryObserver:
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
    with cython.critical_section(turn):
        observers = (*observers, observer)
    return observer


def tell(error: OutOfMemoryError, int ordinal) -> None:
    """Calls the observers of an error that is about to be raised."""
    global telling
    if telling:
        return
    telling = 1
    try:
        for observer in observers_now():
            function = (<OutOfMemoryObserver>observer).function
            try:
                function(ordinal, error.requested, error.capacity, error.free)
            except Exception as failure:
                PyErr_SetObject(type(failure), failure)
                PyErr_WriteUnraisable(function)
    finally:
        telling = 0


# --- handles -----------------------------------------------------------------------------------------------------

def handles_in_use() -> tuple[int, int]:
    """Counts the streams and events in use, of Streams, Events and nogil code, on all devices: (streams, events)."""
    cdef size_t streams
    cdef long events
    with nogil:
        streams, events = streams_in_use(), events_in_use()
    return streams, max(events, 0)


# --- leaks ------------------------------------------------------------------------------------------------------------
# What is still live when the process ends (ACCELRT_LEAKS=1): device memory, page-locked memory, streams, events, and
# private pools with their MemPools and graphs.
#
# What the interpreter frees as it ends, such as the variables of modules, is no leak, so the report is made by C code that
# runs after that (Py_AtExit), when there is no Python any more.  What Python knows of each block, its stack, its tag and the
# object that owns it, is written down before, when the exit begins.

cdef extern from "Python.h":
    int Py_AtExit(void (*function)() noexcept nogil)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef enum:
    SHOWN = 20         # blocks and pools of a device that are listed
    DESCRIBED = 10000  # blocks that are described, the largest

cdef AddressMap notes          # address -> what Python knew of the block there, a C string
cdef size_t reachable_blocks = 0  # that were live when the exit began; those that are not at its end, Python freed
cdef size_t reachable_bytes = 0
cdef int owner_process = 0     # that asked for the report; 0: none did


# --- when the exit begins: Python's part -----------------------------------------------------------------------

cdef LiveBlock[MAX_DEVICES][SHOWN] reachable  # when the exit began, by device, the largest first
cdef size_t[MAX_DEVICES] reachable_count


cdef str known_of(dict block, dict owners):
    # What is known of a live block: the object that has it, who holds that, pool, tag and stack.
    cdef list parts = []
    owner = owners.get(block["address"])
    if owner is not None:
        holder = later("accelrt.memory.holders").holder_of(owner, (owners,))
        parts = [type(owner).__name__, *([f"held by {holder}"] if holder else [])]
    return ", ".join([*parts, *described(named(block))])


cdef int note(uintptr_t address, str text) except -1:
    cdef bytes encoded = printable(text).encode(errors="replace")
    cdef char* copy
    if not encoded or map_reserve(&notes):
        return 0
    copy = strdup(encoded)
    free(map_remove(&notes, address))
    if copy != NULL:
        map_insert(&notes, address, copy)
    return 0


def write_down() -> None:
    """Keeps what is known of the blocks that are live now, for the report that this process asked for."""
    global reachable_blocks, reachable_bytes
    cdef int ordinal
    cdef size_t index
    if owner_process != getpid():
        return
    gc.collect()
    owners = later("accelrt.memory.holders").owners()
    reachable_blocks = reachable_bytes = 0
    for ordinal in range(MAX_DEVICES):
        reachable_count[ordinal] = 0
        if pool_if_made(ordinal) != NULL:
            found = live_blocks(ordinal)
            reachable_blocks += len(found)
            reachable_bytes += sum([block["size"] for block in found])
            for index, block in enumerate(found[:SHOWN]):
                reachable[ordinal][index] = LiveBlock(block["address"], block["size"], block["stream"])
                reachable_count[ordinal] += 1
                note(block["address"], known_of(block, owners))
            for block in found[SHOWN:DESCRIBED]:
                owner = owners.get(block["address"])
                kind = [] if owner is None else [type(owner).__name__]
                note(block["address"], ", ".join([*kind, *described(named(block))]))


def start() -> None:
    """Has the process report what is live when it ends, and records the stacks of what is allocated from now on, unless
    more is recorded already."""
    global owner_process
    if owner_process == os.getpid():
        return
    if owner_process == 0 and Py_AtExit(&report_at_exit):
        told = "ACCELRT_LEAKS: nothing will be reported: the interpreter has no room for one more function at its exit"
        warnings.warn(told, RuntimeWarning, stacklevel=1)
        return
    owner_process = os.getpid()
    if not is_recording():
        record_history("state", "state")


# --- after the interpreter: C's part ---------------------------------------------------------------------------

cdef int headed = 0  # whether the report's first line is written


cdef void head() noexcept nogil:
    global headed
    if not headed:
        fprintf(stderr, "accelrt: still live at the end of process %d (ACCELRT_LEAKS):\n", getpid())
    headed = 1


cdef void print_size(size_t size) noexcept nogil:
    if size >> 20:
        fprintf(stderr, "%.2f MiB", size / 1048576.0)
    else:
        fprintf(stderr, "%zu bytes", size)


cdef const char* plural(long long count) noexcept nogil:
    if count == 1:
        return ""
    return "s"


cdef void report_block(const LiveBlock* block) noexcept nogil:
    cdef const char* known = <const char*>map_find(&notes, block.address)
    fprintf(stderr, "    ")
    print_size(block.size)
    fprintf(stderr, " at %#zx, stream %#zx", <size_t>block.address, <size_t>block.stream)
    if known != NULL:
        fprintf(stderr, ": %s", known)
    fprintf(stderr, "\n")


cdef size_t live_blocks_left = 0
cdef size_t live_bytes_left = 0


cdef void report_memory(int device) noexcept nogil:
    global live_blocks_left, live_bytes_left
    cdef LiveBlock[SHOWN] blocks
    cdef size_t count = 0, total = 0, index
    if not list_live(device, blocks, SHOWN, &count, &total):
        head()
        fprintf(stderr, "  device %d: not read, since another thread is inside its allocator\n", device)
        return
    if count == 0:
        return
    head()
    live_blocks_left += count
    live_bytes_left += total
    fprintf(stderr, "  device %d: ", device)
    print_size(total)
    fprintf(stderr, " of memory in %zu block%s\n", count, plural(count))
    if pool_if_made(device).external != NULL:
        return
    for index in range(min(count, <size_t>SHOWN)):
        report_block(&blocks[index])
    if count > SHOWN:
        fprintf(stderr, "    and %zu smaller ones\n", count - SHOWN)


cdef void report_pools(int device) noexcept nogil:
    cdef LivePool[SHOWN] pools
    cdef size_t index, count = list_live_pools(device, pools, SHOWN)
    for index in range(count):
        head()
        fprintf(stderr, "  device %d, pool (%llu, %llu): %d graphs, %d MemPools; reserved ", device, pools[index].first,
                pools[index].second, pools[index].graphs, pools[index].users)
        print_size(pools[index].reserved)
        fprintf(stderr, ", live ")
        print_size(pools[index].live)
        fprintf(stderr, "\n")


cdef void report_reachable() noexcept nogil:
    # Of what was live when the exit began, the rest.
    cdef size_t blocks
    cdef int device
    if not headed:
        fprintf(stderr, "accelrt: nothing is live at the end of process %d (ACCELRT_LEAKS)\n", getpid())
    if reachable_blocks <= live_blocks_left or reachable_bytes < live_bytes_left:
        return
    blocks = reachable_blocks - live_blocks_left
    fprintf(stderr, "  still reachable when the exit began, and freed by it: ")
    print_size(reachable_bytes - live_bytes_left)
    fprintf(stderr, " of memory in %zu block%s\n", blocks, plural(blocks))
    for device in range(MAX_DEVICES):
        if reachable_count[device]:
            report_freed(device)


cdef void report_freed(int device) noexcept nogil:
    # The largest blocks that the exit freed, and who held them.
    cdef LiveBlock[SHOWN] left
    cdef size_t count = 0, total = 0, index, other
    if not list_live(device, left, SHOWN, &count, &total):
        return
    for index in range(reachable_count[device]):
        for other in range(min(count, <size_t>SHOWN)):
            if left[other].address == reachable[device][index].address:
                break
        else:
            report_block(&reachable[device][index])


cdef void report_at_exit() noexcept nogil:
    cdef PinnedStats pinned
    cdef size_t streams
    cdef long events
    cdef int device
    if owner_process != getpid():  # a child of a fork has none of its parent's
        return
    for device in range(MAX_DEVICES):
        report_memory(device)
        report_pools(device)
    pinned = read_pinned_stats()
    if pinned.blocks.current:
        head()
        fprintf(stderr, "  page-locked memory: ")
        print_size(pinned.block_bytes.current)
        fprintf(stderr, " in %lld block%s\n", pinned.blocks.current, plural(pinned.blocks.current))
    streams, events = streams_in_use(), events_in_use()
    if streams:
        head()
        fprintf(stderr, "  streams: %zu\n", streams)
    if events > 0:
        head()
        fprintf(stderr, "  events: %ld\n", events)
    report_reachable()


call_at_exit("memory.live", "leaks", write_down)
