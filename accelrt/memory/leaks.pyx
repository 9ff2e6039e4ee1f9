"""What is still live when the process ends (ACCELRT_LEAKS=1): device memory, page-locked memory, streams, events, and
private pools with their MemPools and graphs.

What the interpreter frees as it ends, such as the variables of modules, is no leak, so the report is made by C code that
runs after that (Py_AtExit), when there is no Python any more.  What Python knows of each block, its stack, its tag and the
object that owns it, is written down before, when the exit begins.
"""
import gc
import os
import warnings

from libc.stdint cimport uintptr_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport free
from libc.string cimport strdup

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_remove, map_reserve
from accelrt.core.printable import printable
from accelrt.core.process import call_at_exit
from accelrt.allocator.device_pools cimport MAX_DEVICES, pool_if_made
from accelrt.allocator.holdings cimport LiveBlock, LivePool, list_live, list_live_pools
from accelrt.memory.history.recording import is_recording, record_history
from accelrt.allocator.pinned.block cimport PinnedStats
from accelrt.allocator.pinned.pool cimport read_pinned_stats
from accelrt.memory.live_blocks import described, live_blocks, named
from accelrt.streams.event cimport events_in_use
from accelrt.streams.stream_pool cimport streams_in_use

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

cdef dict owners():
    # The objects of accelrt's that have memory, by its address.
    cdef dict found = {}
    for thing in gc.get_objects():
        kind = type(thing)
        try:
            module = kind.__module__
            address = getattr(thing, "ptr", 0) if isinstance(module, str) and module.startswith("accelrt.") else 0
        except Exception:  # a metaclass of others
            continue
        if address and found.get(address) != "Array":  # an Array says more than the Buffer that it views
            found[address] = kind.__name__
    return found


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


def write_down():
    """Keeps what is known of the blocks that are live now, for the report that this process asked for."""
    global reachable_blocks, reachable_bytes
    cdef int ordinal
    if owner_process != getpid():
        return
    gc.collect()
    known = owners()
    reachable_blocks = reachable_bytes = 0
    for ordinal in range(MAX_DEVICES):
        if pool_if_made(ordinal) != NULL:
            found = live_blocks(ordinal)
            reachable_blocks += len(found)
            reachable_bytes += sum([block["size"] for block in found])
            for block in found[:DESCRIBED]:
                owner = known.get(block["address"])
                note(block["address"], ", ".join([*([owner] if owner else []), *described(named(block))]))


def start():
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
    if not headed:
        fprintf(stderr, "accelrt: nothing is live at the end of process %d (ACCELRT_LEAKS)\n", getpid())
    if reachable_blocks <= live_blocks_left or reachable_bytes < live_bytes_left:
        return
    blocks = reachable_blocks - live_blocks_left
    fprintf(stderr, "  still reachable when the exit began, and freed by it: ")
    print_size(reachable_bytes - live_bytes_left)
    fprintf(stderr, " of memory in %zu block%s\n", blocks, plural(blocks))


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


call_at_exit("memory.leaks", "leaks", write_down)
