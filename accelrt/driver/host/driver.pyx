"""The host driver: an embedded device that executes on CPU threads and refuses what a GPU refuses.

Here are the settings and the rows about devices; the package's docstring says where the others are.
"""
import errno
import os

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.string cimport memset

from accelrt import env
from accelrt.driver.host.graph cimport fill_graph, graph_counts
from accelrt.driver.host.kernel cimport (
    BLOCKS_AT_ONCE, MOST_DEEP, MOST_DEEP_GRID, MOST_SHARED, MOST_THREADS, MOST_WIDE_GRID, SHARED, SHARED_AT_ONCE,
    THREADS_AT_ONCE, count_modules, fill_kernel,
)
from accelrt.driver.host.memory cimport count_physicals, count_takings, devices_with_access, fill_memory
from accelrt.driver.host.queue cimport (
    count_calls_beside_ends, count_gone_calls, count_held_ends, count_operations, count_streams, crew_open, delay_ends,
    drain_device, lock, queue_open, unlock,
)
from accelrt.driver.host.ranges cimport memory_counts, memory_figures, memory_open, memory_open_errno, take_lack_of_addresses
from accelrt.driver.host.stream cimport (
    count_events, fill_stream, gate, gate_any, gate_close, gate_devices, gate_is_new, gate_open,
)
from accelrt.driver.registry cimport begin_table, finish_table, offer
from accelrt.driver.registry import explain_refusals
from accelrt.driver.table cimport TEXT_BYTES, Table
from accelrt.status cimport INIT_FAILED, INVALID_VALUE, PEER_ACCESS_UNSUPPORTED, keep_init_error

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    enum:
        _SC_NPROCESSORS_ONLN

# The calling thread's current device; -1 before it chose one.
cdef extern from *:
    """
    static __thread int accelrt_device_plus_one;
    """
    int device_plus_one "accelrt_device_plus_one"

cdef Table table

include "driver_rows.pxi"


def read_settings():
    """The host driver's settings, as the environment has them.

    Returns:
        dict: devices (ACCELRT_HOST_DEVICES, 2), memory in bytes of each (ACCELRT_HOST_MEMORY, 1GiB), delay_us in
        microseconds before each operation (ACCELRT_HOST_DELAY_US, 0), end_delay_us in microseconds within each end of a
        capture (ACCELRT_HOST_END_DELAY_US, 0), threads that a kernel runs on
        (ACCELRT_HOST_THREADS, 0: as many as the process may use processors).
    Raises:
        ValueError: one is malformed; the text names it, its value and what is allowed.
    """
    return {
        "devices": env.value("ACCELRT_HOST_DEVICES"),
        "memory": env.value("ACCELRT_HOST_MEMORY"),
        "delay_us": env.value("ACCELRT_HOST_DELAY_US"),
        "end_delay_us": env.value("ACCELRT_HOST_END_DELAY_US"),
        "threads": env.value("ACCELRT_HOST_THREADS"),
    }


cdef int open_driver() noexcept nogil:
    cdef int code
    if not gate_is_new():  # open already, or for ever shut
        return gate_any()
    with gil:
        code = open_with_settings()
    return code


cdef int open_with_settings() noexcept:
    cdef int code
    cdef int devices
    cdef size_t memory
    cdef long delay_us, end_delay_us
    cdef int threads
    try:  # an interruption too is the caller's to hear of, and nothing was opened
        settings = read_settings()
        devices, memory, delay_us = settings["devices"], settings["memory"], settings["delay_us"]
        end_delay_us, threads = settings["end_delay_us"], settings["threads"]
    except BaseException as error:
        keep_init_error(error)
        return INIT_FAILED
    code = memory_open(devices, memory)
    if code == 0:
        queue_open(delay_us, end_delay_us)
        crew_open(threads)
        gate_open(devices)
    return code


def open_error():
    """Why the devices' memory could not be made, as str; empty where it could."""
    cdef int error = memory_open_errno()
    if error == 0:
        return ""
    limit = limit_text("RLIMIT_FSIZE", "a file", "ulimit -f") if error == errno.EFBIG else ""
    return f"a file for the device's memory cannot be made: {os.strerror(error)}{limit}"


cdef str limit_text(str which, str what, str command):
    import resource

    soft = resource.getrlimit(getattr(resource, which))[0]
    return "" if soft == resource.RLIM_INFINITY else f"; this process is limited to {soft} bytes {what} ({command})"


def cause_of_refusal():
    """What the calling thread's last request for memory lacked, where that was not the device's memory; else ""."""
    if not take_lack_of_addresses():
        return ""
    limit = limit_text("RLIMIT_AS", "of addresses", "ulimit -v")
    return f"the host has no addresses left for it{limit or '; see vm.max_map_count'}"


cdef int close_driver() noexcept nogil:
    cdef int code = gate_any()
    if code:
        return code
    lock()
    code = drain_device(-1)  # interrupted or not, the interpreter goes on to exit
    unlock()
    gate_close()
    return code


# --- devices -----------------------------------------------------------------------------------------------

cdef int driver_version(int* out_version) noexcept nogil:
    out_version[0] = 13000
    return 0


cdef int device_count(int* out_count) noexcept nogil:
    cdef int code = gate_any()
    out_count[0] = gate_devices() if code == 0 else 0
    return code


cdef int device_name(int device, char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "accelrt host device")
    return gate(device)


cdef int device_uuid(int device, char* out_uuid) noexcept nogil:
    memset(out_uuid, 0, 16)
    snprintf(out_uuid, 16, "accelrt-host-%02d", device)
    return gate(device)


cdef int device_pci_bus_id(int device, char* out_text) noexcept nogil:
    snprintf(out_text, TEXT_BYTES, "host:%d", device)
    return gate(device)


cdef int launch_limit(int attribute) noexcept nogil:
    # What a kernel's launch may ask for.
    if attribute in (1, 2, 3):  # MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y
        return MOST_THREADS
    if attribute == 4:   # MAX_BLOCK_DIM_Z
        return MOST_DEEP
    if attribute == 5:   # MAX_GRID_DIM_X
        return MOST_WIDE_GRID
    if attribute in (6, 7):  # MAX_GRID_DIM_Y, _Z
        return MOST_DEEP_GRID
    if attribute == 8:   # MAX_SHARED_MEMORY_PER_BLOCK
        return SHARED
    if attribute == 39:  # MAX_THREADS_PER_MULTIPROCESSOR
        return THREADS_AT_ONCE
    if attribute == 81:  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        return SHARED_AT_ONCE
    if attribute == 97:  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return MOST_SHARED
    return BLOCKS_AT_ONCE if attribute == 106 else 0  # MAX_BLOCKS_PER_MULTIPROCESSOR


cdef int device_attribute(int device, int attribute, int* out_value) noexcept nogil:
    # Numbers of CUdevice_attribute; what a CPU has no figure for is 0.
    cdef int code = gate(device)
    if code or attribute < 1 or attribute > 147:  # the last one of CUDA 13.0
        return code if code else INVALID_VALUE
    out_value[0] = 0
    if attribute == 10:    # WARP_SIZE
        out_value[0] = 32
    elif attribute == 16:    # MULTIPROCESSOR_COUNT
        out_value[0] = <int>sysconf(_SC_NPROCESSORS_ONLN)
    elif attribute in (41, 95, 102, 120):  # UNIFIED_ADDRESSING, COOPERATIVE_LAUNCH, VIRTUAL_MEMORY_..., CLUSTER_LAUNCH
        out_value[0] = 1
    else:
        out_value[0] = launch_limit(attribute)
    return 0


cdef int device_memory(int device, size_t* out_total) noexcept nogil:
    cdef size_t ignored
    cdef int code = gate(device)
    return code if code else memory_figures(device, &ignored, out_total)


cdef int memory_info(int device, size_t* out_free, size_t* out_total) noexcept nogil:
    cdef int code = gate(device)
    return code if code else memory_figures(device, out_free, out_total)


cdef int current_device(int* out_device) noexcept nogil:
    out_device[0] = device_plus_one - 1
    return gate_any()


cdef int set_device(int device) noexcept nogil:
    global device_plus_one
    cdef int code = gate_any() if device == -1 else gate(device)
    if code == 0:
        device_plus_one = device + 1
    return code


cdef int can_access_peer(int device, int peer, int* out_can) noexcept nogil:
    cdef int code = gate(device)
    if code == 0:
        code = gate(peer)
    out_can[0] = device != peer
    return code


cdef int enable_peer(int device, int peer) noexcept nogil:
    cdef int code = gate(device)
    if code == 0:
        code = gate(peer)
    return PEER_ACCESS_UNSUPPORTED if code == 0 and device == peer else code


def live_objects():
    """What is alive on the host device, by kind: dict of counts; bytes are those held of every device.

    For tests: what was made has to be gone again.
    """
    cdef size_t[4] memory
    cdef size_t[2] graphs
    memset(memory, 0, sizeof(memory))
    if gate_any():
        return {}
    with nogil:
        memory_counts(memory)
        lock()
        graph_counts(graphs)
        streams, events, queued, modules = count_streams(), count_events(), count_operations(), count_modules()
        unlock()
    return {
        "allocations": memory[0], "bytes": memory[1], "reservations": memory[2], "physical": count_physicals(),
        "host_allocations": memory[3], "graphs": graphs[0], "execs": graphs[1], "streams": streams,
        "events": events, "operations": queued, "modules": modules,
    }


def calls_of_gone_streams():
    """How many calls named a stream that had been destroyed, or an object of another kind.

    For tests: where the host device answers INVALID_HANDLE, a GPU's driver may crash.
    """
    lock()
    count = count_gone_calls()
    unlock()
    return count


def calls_beside_ends():
    """How many calls were about a stream, or an event, of a capture that another thread was ending; with
    stream_is_capturing alone not counted.

    For tests: the host device answers them, where a GPU's driver may crash.  There are some only where ends take their
    time (delay_capture_ends).
    """
    lock()
    count = count_calls_beside_ends()
    unlock()
    return count


def frees_under_work():
    """How many times memory was unmapped, unregistered or closed while queued work named it, or freed while work that the
    call does not wait for did; the arguments of kernels, and replays under way, count as their work.

    For tests: the host device may have the work done before, where a GPU faults.
    """
    lock()
    count = count_takings()
    unlock()
    return count


def opened_to(uintptr_t address):
    """The devices that may use a mapped page, as memory_access was told: list of ordinals, empty where there is none.

    For tests: kernels of the host device reach all memory.
    """
    cdef uint64_t devices = devices_with_access(address)
    return [device for device in range(64) if devices >> device & 1]


def delay_capture_ends(long microseconds, bint hold=False):
    """How long each end of a capture takes from now on, other threads' calls coming in between; for tests.

    Arguments:
        hold: bool, and not before this is called again without it.
    """
    lock()
    delay_ends(microseconds, hold)
    unlock()


def held_capture_ends():
    """How many threads are within the end of a capture just now; for tests."""
    lock()
    count = count_held_ends()
    unlock()
    return count


begin_table(&table, b"host")
table.open = open_driver
table.close = close_driver
fill_driver(&table)
fill_stream(&table)
fill_graph(&table)
fill_kernel(&table)
fill_memory(&table)
finish_table(&table)
offer("host", &table)
explain_refusals(cause_of_refusal)
