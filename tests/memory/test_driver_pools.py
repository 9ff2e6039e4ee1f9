"""Pools of the driver's whose memory other processes may have: DriverPool(ipc_enabled=True)."""

import copy
import gc
import multiprocessing
import os
import pickle
import queue
import threading

import numpy as np
import pytest
from beside import SECONDS, Caller, Gate, park
from child import in_fork, in_own_process, wrap_host

import accelrt
from accelrt import memory
from accelrt.memory.driver_pool import DriverMemory
from accelrt.memory.ipc_handles import IPCAllocationHandle, IPCBufferDescriptor
from accelrt.resources import DriverPoolResource

NBYTES = 1 << 20


@pytest.fixture
def pool():
    try:
        made = memory.DriverPool(ipc_enabled=True, max_size=1 << 26)
    except accelrt.NotSupportedError:
        pytest.skip("the driver makes no pools that leave the process")
    yield made
    gc.collect()
    accelrt.synchronize()
    assert made._owned.value is None or made.used_mem_current == 0
    made.close()


# --- what the other process runs ------------------------------------------------------------------


def opened(kept, handle, descriptor):
    kept["pool"] = memory.DriverPool.from_allocation_handle(handle)
    kept["memory"] = DriverMemory.from_ipc_descriptor(kept["pool"], descriptor)
    return seen(kept["memory"])


def seen(held):
    out = np.zeros(held.nbytes, np.uint8)
    accelrt.copy(out, held)
    return sorted(set(out.tolist()))


def seen_there(kept):
    return seen(kept["memory"])


def filled_there(kept, value):
    accelrt.copy(kept["memory"], np.full(NBYTES, value, np.uint8))
    accelrt.synchronize()


def closed_there(kept):
    kept.pop("memory").free()
    kept.pop("pool").close()
    accelrt.synchronize()


def refused_there(kept):
    """What the process that opened them says of handing them on."""
    answers = []
    for attribute, held in (("allocation_handle", kept["pool"]), ("ipc_descriptor", kept["memory"])):
        try:
            getattr(held, attribute)
        except ValueError as error:
            answers.append(str(error))
    try:
        kept["pool"].allocate(64)
    except ValueError as error:
        answers.append(str(error))
    return answers


def made_there(kept):
    kept["pool"] = memory.DriverPool(ipc_enabled=True)
    kept["memory"] = kept["pool"].allocate(NBYTES)
    filled_there(kept, 9)
    return kept["pool"].allocation_handle, kept["memory"].ipc_descriptor


def opened_of_a_third(kept, handle, descriptor):
    try:
        pool = memory.DriverPool.from_allocation_handle(handle)
        DriverMemory.from_ipc_descriptor(pool, descriptor)
    except accelrt.CudaError as error:
        return error.name
    return "opened"


# --- memory of such a pool ------------------------------------------------------------------------


def test_a_pool_gives_device_memory_and_counts_it(pool):
    assert pool.is_ipc_enabled
    assert not pool.is_mapped
    assert not memory.DriverPool().is_ipc_enabled
    assert pool.handle != 0
    assert pool != memory.DriverPool()
    held = pool.allocate(NBYTES)
    assert not held.managed
    assert memory.address_info(held.ptr).kind == "device"
    assert pool.used_mem_current >= NBYTES
    accelrt.copy(held, np.full(NBYTES, 3, np.uint8))
    assert seen(held) == [3]
    assert repr(held) == f"<accelrt.memory.DriverMemory {NBYTES} bytes, device 0>"
    array = accelrt.asarray(held)
    assert int(array.numpy()[5]) == 3
    del array
    held.free()
    accelrt.synchronize()
    pool.trim_to(0)
    assert pool.used_mem_current == 0
    assert pool.reserved_mem_current <= 1 << 25  # a GPU's driver keeps one piece
    pool.release_threshold = 1 << 20
    assert pool.release_threshold == 1 << 20
    assert pool.access(0) == "rw"


def test_a_pool_that_is_closed_refuses_and_its_memory_stays(pool):
    held = pool.allocate(NBYTES)
    accelrt.copy(held, np.full(NBYTES, 4, np.uint8))
    pool.close()
    pool.close()
    for use in (lambda: pool.allocate(8), lambda: pool.used_mem_current, lambda: pool.allocation_handle):
        with pytest.raises(ValueError, match="the pool was closed; make another one"):
            use()
    assert seen(held) == [4]
    held.free()


USES = {
    "pool_get": lambda pool: pool.used_mem_high,
    "pool_set": lambda pool: setattr(pool, "release_threshold", 5),
    "pool_trim": lambda pool: pool.trim_to(0),
    "pool_access_get": lambda pool: pool.access(1),
    "pool_access_set": lambda pool: pool.set_access(1, "rw"),
    "pool_export": lambda pool: pool.allocation_handle.close(),
    "pool_alloc": lambda pool: pool.allocate(NBYTES).free(),
}


def test_streams_are_taken_by_handle_and_by_protocol(pool):
    class Foreign:
        def __cuda_stream__(self):
            return 0, stream.handle

    stream = accelrt.Stream()
    for given in (stream, stream.handle, Foreign()):
        with pool.allocate(NBYTES, given) as held:
            assert held.stream == stream
    with pytest.raises(TypeError, match="stream is 'x' of type str; pass a Stream, a handle as int"):
        pool.allocate(NBYTES, "x")


def test_pools_are_keys_and_a_block_ends_one():
    own = {memory.DriverPool(0), memory.DriverPool(0), memory.DriverPool(0, managed=True)}
    assert len(own) == 2
    with memory.DriverPool(0, ipc_enabled=True) as first, memory.DriverPool(0, ipc_enabled=True) as second:
        assert first != second
        assert len({first, second, first}) == 2
    for pool in (first, second):
        with pytest.raises(ValueError, match="the pool was closed"):
            pool.allocate(NBYTES)
    assert {first: 1}[first] == 1


@pytest.mark.host
@in_own_process
def test_a_pool_that_is_closed_beside_a_call_goes_at_its_end():
    faults = wrap_host()
    uses = [*USES.items(), ("pool_alloc", lambda pool: DriverPoolResource(pool=pool).buffer(NBYTES).free())]
    for number, (row, use) in enumerate(uses, 1):
        pool = memory.DriverPool(ipc_enabled=True)
        caller = park(row, lambda use=use, pool=pool: use(pool))
        pool.close()
        assert faults.call_counts()["pool_destroy"] == number - 1
        with pytest.raises(ValueError, match="the pool was closed"):
            use(pool)
        assert faults.go_on()
        caller.result()
        assert faults.call_counts()["pool_destroy"] == number, row


@pytest.mark.host
@in_own_process
def test_memory_that_is_freed_beside_a_copy_goes_back_behind_it_or_is_refused():
    faults = wrap_host()
    pool, target = memory.DriverPool(ipc_enabled=True), accelrt.Buffer(NBYTES)
    for row, frees in (("copy_async", 0), ("pointer_device", 1)):
        held = pool.allocate(NBYTES)
        before = faults.call_counts()["managed_pool_free"]
        caller = park(row, lambda held=held: accelrt.copy(target, held, blocking=False))
        held.free()
        assert faults.call_counts()["managed_pool_free"] == before + frees
        if not frees:
            accelrt.synchronize()
            pool.trim_to(0)  # the device would have it back, if it did not wait for the copy
        assert faults.go_on()
        if frees:
            with pytest.raises(ValueError, match="src is a DriverMemory that was freed"):
                caller.result()
        else:
            caller.result()
        assert faults.call_counts()["managed_pool_free"] == before + 1
        accelrt.synchronize()
        with pytest.raises(ValueError, match="was given back"):
            _ = held.ptr


@pytest.mark.host
@pytest.mark.parametrize("kind", ["ipc_enabled", "managed"])
@in_own_process
def test_what_the_driver_refuses_to_take_back_is_tried_again(kind):
    faults = wrap_host()
    pool = memory.DriverPool(**{kind: True})
    held = pool.allocate(NBYTES)
    address = held.ptr
    faults.arm(1, 999, "once", ["managed_pool_free"])
    with pytest.raises(accelrt.CudaError):
        held.free()
    assert held.ptr == address
    faults.arm(1, 999, "once", ["managed_pool_free"])
    del held
    assert faults.fired()
    faults.disarm()
    assert pool.used_mem_current == NBYTES
    pool.trim_to(0)  # which tries again
    accelrt.synchronize()
    assert pool.used_mem_current == 0


@pytest.mark.host
@in_own_process
def test_a_handle_that_is_closed_beside_its_use_is_closed_at_its_end():
    faults = wrap_host()
    pool = memory.DriverPool(ipc_enabled=True)
    memory_of_it, handle = pool.allocate(NBYTES), pool.allocation_handle
    number = handle.fileno()
    caller = park("pool_import", lambda: memory.DriverPool.from_allocation_handle(handle))
    handle.close()
    os.fstat(number)
    assert faults.go_on()
    theirs = caller.result()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    caller = park("pool_pointer_import", lambda: opened_beside(theirs, memory_of_it))
    theirs.close()
    assert faults.go_on()
    caller.result().free()


def opened_beside(pool, held):
    return DriverMemory.from_ipc_descriptor(pool, held.ipc_descriptor)


def test_a_pool_lives_as_long_as_its_memory(pool):
    held = memory.DriverPool(ipc_enabled=True).allocate(NBYTES)
    gc.collect()
    accelrt.copy(held, np.full(NBYTES, 5, np.uint8))
    assert isinstance(held.ipc_descriptor, IPCBufferDescriptor)
    assert seen(held) == [5]


def test_no_capture_allocates_and_what_dies_beside_one_goes_back_later(pool):
    stream, graph, buffer = accelrt.Stream(), accelrt.CUDAGraph(), accelrt.Buffer(64)
    held = pool.allocate(NBYTES, stream)
    with accelrt.graph(graph, stream=stream):
        buffer.fill(1)
        del held
        gc.collect()
        with pytest.raises(accelrt.CaptureError):
            pool.allocate(64)
    assert pool.used_mem_current >= NBYTES
    pool.trim_to(0)
    assert pool.used_mem_current == 0


@pytest.mark.host
@in_own_process
def test_a_pool_is_destroyed_behind_its_last_memory():
    """That of memory which dies beside a capture too, and goes back later."""
    faults, stream, graph = wrap_host(), accelrt.Stream(), accelrt.CUDAGraph()
    pools = [memory.DriverPool(ipc_enabled=True) for _ in range(2)]
    held = [pool.allocate(NBYTES, stream) for pool in pools]
    accelrt.synchronize()
    del pools
    with accelrt.graph(graph, stream=stream):
        accelrt.Buffer(64).fill(1)
        del held[0]
    faults.begin_trace()
    held.clear()
    memory.DriverPool(managed=True).trim_to(0)
    faults.end_trace()
    calls = [row for row, _ in faults.traced_calls(threading.get_ident())]
    assert [row for row in calls if row in ("managed_pool_free", "pool_destroy")] == [
        *("managed_pool_free", "pool_destroy"),
        *("managed_pool_free", "pool_destroy"),
    ]


@pytest.mark.host
def test_a_pool_of_thousands_of_pieces_is_full_when_its_limit_is():
    """Each piece takes the first gap of the file that has room, found by one walk over the others."""
    pool = memory.DriverPool(ipc_enabled=True, max_size=1 << 25)
    pieces = []
    with pytest.raises(accelrt.OutOfMemoryError):
        while True:
            pieces.append(pool.allocate(4096))
    assert len(pieces) == (1 << 25) // 4096
    del pieces
    pool.trim_to(0)
    assert pool.used_mem_current == pool.reserved_mem_current == 0


@pytest.mark.host
def test_pieces_in_the_gaps_of_a_pools_file_share_no_bytes():
    pool = memory.DriverPool(ipc_enabled=True, max_size=1 << 25)
    sizes = [4096, 3 * 4096, 2 * 4096, 5 * 4096] * 8
    pieces = {number: pool.allocate(size) for number, size in enumerate(sizes)}
    for number in range(0, len(sizes), 3):  # gaps of every size, and of two pieces in a row
        del pieces[number]
        if number % 2:
            del pieces[number + 1]
    pool.trim_to(0)
    held = pool.reserved_mem_current
    assert held == sum(sizes[number] for number in pieces)
    for number, size in enumerate((6 * 4096, 4096, 4096, 2 * 4096, 9 * 4096, 4096), 100):
        pieces[number] = pool.allocate(size)
    assert pool.reserved_mem_current == held + 20 * 4096
    for number, piece in pieces.items():
        accelrt.copy(piece, np.full(piece.nbytes, number, np.uint8))
    assert {number: seen(piece) for number, piece in pieces.items()} == {
        number: [number] for number in pieces
    }


def test_what_is_no_pool_for_others_is_refused(pool):
    for wrong in (-1, True, "8", 1 << 60):
        with pytest.raises(ValueError, match="max_size is"):
            memory.DriverPool(ipc_enabled=True, max_size=wrong)
    for given in ({"ipc_enabled": True}, {"max_size": 4096}):
        with pytest.raises(
            ValueError, match="no pool of managed memory is for other processes, or has a limit"
        ):
            memory.DriverPool(managed=True, **given)
    with pytest.raises(ValueError, match="preferred_location is of managed memory; pass managed=True too"):
        memory.DriverPool(preferred_location="cpu")
    places = {**dict.fromkeys(("cpu:", "cpu:x", "cpu:-1"), "is not understood"), 99: "99"}
    for place, text in {**places, "cpu:1234567890": "a NUMA node has a number of its system's"}.items():
        with pytest.raises(ValueError, match=text):
            memory.DriverPool(managed=True, preferred_location=place)
    with pytest.raises(ValueError, match="not ipc_enabled; make one with"):
        memory.DriverPool().allocation_handle  # noqa: B018
    with pytest.raises(accelrt.OutOfMemoryError):
        pool.allocate(1 << 40)
    with pytest.raises(TypeError, match="pass an IPCAllocationHandle"):
        memory.DriverPool.from_allocation_handle("7")
    with pytest.raises(ValueError, match="a file descriptor is an int"):
        memory.DriverPool.from_allocation_handle(-1)
    with open(os.devnull) as file, pytest.raises(accelrt.CudaError, match="pool_import"):
        memory.DriverPool.from_allocation_handle(file.fileno())
    descriptor = pool.allocate(64).ipc_descriptor
    with pytest.raises(ValueError, match="pool is this process's own"):
        DriverMemory.from_ipc_descriptor(pool, descriptor)
    with pytest.raises(TypeError, match="pass what ipc_descriptor gave"):
        DriverMemory.from_ipc_descriptor(pool, b"")
    with pytest.raises(TypeError, match="pass a DriverPool"):
        DriverMemory.from_ipc_descriptor(7, descriptor)
    with pytest.raises(TypeError, match=r"pool is of type int; memory is made by DriverPool.allocate"):
        DriverMemory(7, 64, accelrt.current_stream())
    for payload, nbytes, text in (
        (b"", 8, "payload is"),
        (bytes(64), 0, "nbytes is"),
        (bytes(64), True, "nbytes"),
    ):
        with pytest.raises(ValueError, match=text):
            IPCBufferDescriptor(payload, nbytes)


@pytest.mark.parametrize("managed", [True, False])
def test_memory_of_other_pools_has_no_descriptor(managed):
    try:
        held = memory.DriverPool(managed=managed, ipc_enabled=not managed).allocate(64)
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no such pool")
    if managed:
        with pytest.raises(ValueError, match="not ipc_enabled"):
            held.ipc_descriptor  # noqa: B018
    held.free()
    with pytest.raises(ValueError, match="given back" if not managed else "not ipc_enabled"):
        held.ipc_descriptor  # noqa: B018


def test_handles_are_closed_once_and_are_not_copied(pool):
    with pool.allocation_handle as handle:
        assert not os.get_inheritable(handle.fileno())
        assert repr(handle) == f"<accelrt.memory.IPCAllocationHandle {handle.fileno()}>"
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.copy(handle)
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.deepcopy(handle)
        number = handle.fileno()
    with pytest.raises(ValueError, match="the handle was closed"):
        handle.fileno()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)
    handle.close()
    with pytest.raises(TypeError, match="made by DriverPool"):
        IPCAllocationHandle()
    with pytest.raises(TypeError):
        pickle.dumps(pool)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        pool.allocation_handle  # noqa: B018
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


# --- between processes ----------------------------------------------------------------------------


def test_another_process_opens_memory_and_both_write_it(pool, other):
    held = pool.allocate(NBYTES)
    accelrt.copy(held, np.full(NBYTES, 7, np.uint8))
    accelrt.synchronize()
    assert other.call(opened, pool.allocation_handle, held.ipc_descriptor) == [7]
    other.call(filled_there, 8)
    assert seen(held) == [8]
    answers = other.call(refused_there)
    assert len(answers) == 3
    assert all("another process's, which alone" in answer for answer in answers)
    other.call(closed_there)


def test_a_third_process_needs_the_owners_handle(pool, other):
    held, wrong = pool.allocate(NBYTES), memory.DriverPool(ipc_enabled=True)
    assert other.call(opened_of_a_third, wrong.allocation_handle, held.ipc_descriptor) == "INVALID_VALUE"
    assert other.call(opened_of_a_third, pool.allocation_handle, held.ipc_descriptor) == "opened"


def opened_larger(kept, handle, descriptor):
    kept["pool"] = memory.DriverPool.from_allocation_handle(handle)
    try:
        DriverMemory.from_ipc_descriptor(
            kept["pool"], IPCBufferDescriptor(descriptor.payload, descriptor.nbytes * 100)
        )
    except ValueError as error:
        # What another process's pool has, a GPU's driver does not say here.
        used = kept["pool"].used_mem_current if os.environ.get("ACCELRT_DRIVER", "host") == "host" else 0
        DriverMemory.from_ipc_descriptor(kept.pop("pool"), descriptor).free()
        return str(error), used
    return "opened"


def test_a_descriptor_of_more_bytes_than_there_are_is_refused(pool, other):
    held = pool.allocate(NBYTES)
    refusal, used = other.call(opened_larger, pool.allocation_handle, held.ipc_descriptor)
    assert refusal.startswith(f"descriptor says {100 * NBYTES} bytes, and the allocation has ")
    assert used == 0


def test_an_owner_survives_the_death_of_who_opened_its_memory(pool, other):
    held = pool.allocate(NBYTES)
    accelrt.copy(held, np.full(NBYTES, 7, np.uint8))
    accelrt.synchronize()
    assert other.call(opened, pool.allocation_handle, held.ipc_descriptor) == [7]
    other.kill()
    accelrt.copy(held, np.full(NBYTES, 6, np.uint8))
    assert seen(held) == [6]


@pytest.mark.host
def test_memory_stays_when_its_owner_is_killed_until_it_is_freed_here(other):
    handle, descriptor = other.call(made_there)
    kept = {}
    assert opened(kept, handle, descriptor) == [9]
    other.kill()
    assert seen_there(kept) == [9]
    filled_there(kept, 1)
    assert seen_there(kept) == [1]
    assert repr(kept["memory"]).startswith(f"<accelrt.memory.DriverMemory {NBYTES} bytes, mapped")
    closed_there(kept)


def test_a_queue_carries_handles(pool):
    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(pool.allocation_handle)
    with queue.get(timeout=300) as handle:
        assert memory.DriverPool.from_allocation_handle(handle).is_mapped
    queue.close()
    queue.join_thread()


def test_a_child_of_a_fork_can_use_none_and_takes_nothing_from_its_parent(pool):
    held = pool.allocate(NBYTES)
    accelrt.copy(held, np.full(NBYTES, 2, np.uint8))

    def refused():
        for use in (
            held.free,
            lambda: pool.allocate(8),
            lambda: pool.allocation_handle,
            lambda: held.ipc_descriptor,
        ):
            with pytest.raises(accelrt.ForkedError):
                use()
        pool.close()
        gc.collect()

    assert in_fork(refused) == 0
    assert seen(held) == [2]


@pytest.mark.parametrize("end", [DriverMemory.free, lambda memory: None])
def test_memory_of_a_threads_default_stream_goes_back_behind_it_on_another_thread(pool, end):
    stream, handed_over, freed = accelrt.per_thread_stream(), queue.SimpleQueue(), threading.Event()

    def use():
        with Gate(stream):
            memory = pool.allocate(NBYTES, stream)
            accelrt.fill(memory, 7, stream=stream)
            handed_over.put(memory)
            del memory
            assert freed.wait(SECONDS)
        stream.synchronize()

    user = Caller(use).begin()
    memory = handed_over.get()
    end(memory)
    del memory
    again = pool.allocate(NBYTES, stream)  # the same handle is another stream here
    accelrt.fill(again, 1, stream=stream)
    freed.set()
    user.result()
    contents = np.zeros(NBYTES, np.uint8)
    accelrt.copy(contents, again, stream=stream)
    assert (contents == 1).all()
