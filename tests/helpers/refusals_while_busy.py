"""Calls of the driver that are refused while work is under way: nothing that the work uses may go.

A stream waits in a host function; behind it stands a fill of the memory.  Then what would let the memory go
is done, and one call of the driver's, or all from one on, answers a code instead.  After it memory of the
same size is taken and filled, the host function ends, and the fill runs: neither may it find its memory
unmapped, which the host device counts, nor may its bytes appear in memory that was handed out meanwhile.

Codes that mean the device is lost let memory go.  There the fill is over before, so that the host device
lives, and what the stream waits for is a host function alone.
"""

import contextlib
import ctypes
import gc
import importlib
import itertools
import os
import threading

import numpy as np
from child import wrap_host

import accelrt
from accelrt import memory as allocators
from accelrt.driver import testing
from accelrt.driver.host import driver as host

NBYTES = 4 << 20
LOST = (700, 709, 719)  # the device, and its work with it
# Refusals, none of which says that the work is done.
CODES = (1, 2, 3, 101, 201, 400, 600, 801, 900, 901, 905, 906, 908, 999)
SECONDS = 300
PATIENCE = 0.02  # seconds for what is done; what takes longer waits for the work


class Busy:
    """Work under way on a stream: a host function that waits, and a fill of some memory behind it.

    Where the device is going to be lost, the fill stands before it, and is over.
    """

    def __init__(self, fill, lost=False):
        self.stream, self.gate = accelrt.Stream(), threading.Event()
        if lost:
            fill(self.stream)
            self.stream.synchronize()
        self.stream.launch_host_func(lambda: self.gate.wait(SECONDS))
        if not lost:
            fill(self.stream)


class Case:
    """What is done to memory that is in use: prepare makes it, fill uses it, act would let it go.

    Attributes:
        lost: whether the code of this trial means that the device is lost.
    """

    lost = False

    def begin(self):
        """Once, before the first trial."""

    def prepare(self):
        self.memory = accelrt.Buffer(NBYTES)

    def fill(self, stream):
        self.memory.fill(0xAB, stream=stream)

    def act(self):
        raise NotImplementedError

    def look(self):
        """What has to hold while the work is under way."""

    def take(self):
        """Memory, filled with 9, that must not be what is in use."""
        taken = [accelrt.Buffer(NBYTES) for _ in range(3)]
        for each in taken:
            each.fill(9)
        return taken

    def finish(self):
        self.memory = None


class Free(Case):
    """Memory is freed that another stream uses, and given back to the device."""

    def act(self):
        self.memory.free()
        accelrt.empty_cache()


class FreeAndAllocate(Case):
    """Memory is freed, and asked for again."""

    def act(self):
        self.again = []
        self.memory.free()
        for _ in range(3):
            taken = accelrt.Buffer(NBYTES)
            taken.fill(9)
            self.again.append(taken)

    def finish(self):
        super().finish()
        again, self.again = self.again, None
        check_filled(again)


class FreePool(Case):
    """Memory of a pool of its own, which is dropped with it."""

    def prepare(self):
        self.pool = accelrt.MemPool()
        with accelrt.use_mem_pool(self.pool):
            self.memory = accelrt.Buffer(NBYTES)

    def act(self):
        self.memory = self.pool = None
        accelrt.empty_cache()

    def finish(self):
        self.memory = self.pool = None


class FreeOnItsStream(Case):
    """Memory of the stream itself, which is dropped with it; an idle search may find it."""

    def prepare(self):
        self.memory = None

    def fill(self, stream):
        self.memory = accelrt.Buffer(NBYTES, stream=stream)
        self.memory.fill(0xAB, stream=stream)

    def act(self):
        self.memory.free()
        accelrt.empty_cache()
        accelrt.Buffer(NBYTES).free()


class FreePinned(Case):
    """Page-locked memory that a copy reads is freed, and given back to the system."""

    def prepare(self):
        self.memory = accelrt.PinnedBuffer(NBYTES)
        np.frombuffer(self.memory, np.uint8)[:] = 3
        self.into = accelrt.Buffer(NBYTES)

    def fill(self, stream):
        self.into.copy_from(self.memory, stream=stream, blocking=False)

    def act(self):
        self.memory.free()
        accelrt.host_empty_cache()
        again = accelrt.PinnedBuffer(NBYTES)
        np.frombuffer(again, np.uint8)[:] = 9
        self.memory = again

    def finish(self):
        held = np.zeros(NBYTES, np.uint8)
        self.into.copy_to(held)
        assert (held == 3).all(), f"the copy read {np.unique(held)}"
        self.memory = self.into = None


class FreeAndMiss(Case):
    """Memory is freed and asked for again where a limit leaves no other: the request waits, or is refused."""

    def prepare(self):
        self.again = None
        accelrt.set_per_process_memory_fraction(NBYTES / accelrt.mem_get_info()[1], 0)
        super().prepare()

    def act(self):
        self.memory.free()
        self.again = accelrt.Buffer(NBYTES)

    def look(self):
        assert self.lost or self.again is None, "memory that is in use was handed out"

    def take(self):
        return []

    def finish(self):
        self.memory = self.again = None
        accelrt.set_per_process_memory_fraction(1.0, 0)


class CopyAndFree(Case):
    """A copy raises where it is to wait for its end; the page-locked memory that it writes is freed."""

    def prepare(self):
        super().prepare()
        self.memory.fill(5)
        self.into, self.taken = accelrt.PinnedBuffer(NBYTES), []

    def fill(self, stream):
        self.stream = stream

    def act(self):
        if self.lost:
            return  # the copy would run on the host device, which lives
        try:
            self.memory.copy_to(self.into, stream=self.stream)
        finally:
            self.into = self.into.free()

    def take(self):
        self.taken = [accelrt.PinnedBuffer(NBYTES) for _ in range(2)]
        for each in self.taken:
            np.frombuffer(each, np.uint8)[:] = 9
        return []

    def finish(self):
        for each in self.taken:
            held = np.frombuffer(each, np.uint8)
            assert (held == 9).all(), f"memory that a copy writes was handed out: it holds {np.unique(held)}"
            del held
        self.memory = self.into = self.stream = self.taken = None


class DropGraph(Case):
    """A graph is replayed and dropped, with the memory that it uses."""

    def fill(self, stream):
        self.graph = accelrt.CUDAGraph()
        with accelrt.graph(self.graph):
            self.memory.fill(0xAB)
        with accelrt.stream(stream):
            self.graph.replay()

    def act(self):
        self.graph = self.memory = None
        accelrt.empty_cache()


class EmptyPool(FreePool):
    """Idle memory of a pool is given back, which stays."""

    def act(self):
        self.memory.free()
        self.pool.empty_cache()

    def take(self):
        with accelrt.use_mem_pool(self.pool):
            return super().take()

    def finish(self):
        self.memory = self.pool = None


class Sleep(EmptyPool):
    """A pool sleeps; when it is awake again its memory holds what the work wrote."""

    def act(self):
        self.pool.sleep()

    def take(self):
        return Case.take(self)

    def finish(self):
        if self.pool.is_asleep():
            self.pool.wake()
        held = np.zeros(NBYTES, np.uint8)
        self.memory.copy_to(held)
        assert self.lost or (held == 0xAB).all(), f"after the sleep it holds {np.unique(held)}"
        self.memory = self.pool = None


class Restore(EmptyPool):
    """A pool is to become what it was before its memory was freed, which cannot be while that is in use."""

    def prepare(self):
        super().prepare()
        self.state, self.restored = allocators.get_checkpoint_state(self.pool.id), None

    def act(self):
        self.memory.free()
        with contextlib.suppress(RuntimeError):
            self.restored = allocators.set_checkpoint_state(self.state)

    def look(self):
        assert self.lost or self.restored is None, "a checkpoint was restored over memory that is in use"

    def finish(self):
        for address in self.restored.became_live if self.restored else ():
            accelrt.caching_allocator_delete(address)
        self.memory = self.pool = self.state = None


class DropShared(Case):
    """Memory is shared with nobody in the end: its handle is dropped, and so is it."""

    def begin(self):
        importlib.import_module("accelrt.sharing")

    def prepare(self):
        self.memory = accelrt.zeros(NBYTES, dtype=np.uint8)
        self.handle = self.memory.share()

    def fill(self, stream):
        self.memory.fill_(0xAB, stream=stream)

    def act(self):
        self.memory = self.handle = None
        gc.collect()
        accelrt.ipc_collect()
        accelrt.empty_cache()

    def finish(self):
        self.memory = self.handle = None
        accelrt.ipc_collect()


class GiveToLibrary(Case):
    """Memory of a library's allocator, in the place of accelrt's, is freed, and then waited for."""

    def begin(self):
        path = os.environ["BOOKS"]  # sources/pluggable.c
        self.library = ctypes.CDLL(path)
        self.live = self.library.books_live
        self.live.restype = ctypes.c_size_t
        self.plug(allocators.CUDAPluggableAllocator(path, "books_alloc", "books_free"))

    def plug(self, allocator):
        allocators.change_current_allocator(allocator)

    def fill(self, stream):  # the host device fills no memory that is not its own
        self.memory.record_stream(stream)

    def act(self):
        self.memory.free()
        for _ in range(2):
            accelrt.Buffer(64).free()
        accelrt.empty_cache()

    def look(self):
        assert self.lost or self.live() >= NBYTES, "memory that is in use was given back to its library"

    def take(self):
        return []


class GiveToFunctions(GiveToLibrary):
    """The same of an allocator of two Python functions, as RMM's are."""

    def plug(self, allocator):
        alloc, give = self.library.books_alloc, self.library.books_free
        alloc.restype = ctypes.c_void_p
        alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        give.argtypes, give.restype = [ctypes.c_void_p, *alloc.argtypes], None
        super().plug(allocators.CallbackAllocator(alloc, give, "functions"))


class GivePoolToLibrary(GiveToLibrary):
    """A pool whose segments are a library's is dropped."""

    def plug(self, allocator):
        self.allocator = allocator

    def prepare(self):
        self.pool = accelrt.MemPool(self.allocator)
        with accelrt.use_mem_pool(self.pool):
            super().prepare()

    def act(self):
        self.memory = self.pool = None
        for _ in range(2):
            accelrt.Buffer(64).free()
        accelrt.empty_cache()

    def finish(self):
        super().finish()
        self.pool = None


CASES = {
    each.__name__: each
    for each in (
        *(Free, FreeAndAllocate, FreePool, FreeOnItsStream, FreePinned, DropGraph, EmptyPool, Sleep, Restore),
        *(FreeAndMiss, CopyAndFree, DropShared, GiveToLibrary, GiveToFunctions, GivePoolToLibrary),
    )
}


def check_filled(taken):
    for each in taken:
        held = np.zeros(NBYTES, np.uint8)
        each.copy_to(held)
        assert (held == 9).all(), f"memory that was in use was handed out: it holds {np.unique(held)}"


def act(case):
    """In a thread of its own, for it may wait for the work."""
    with contextlib.suppress(accelrt.CudaError):  # a refusal that is told
        case.act()


def attempt(case, fault=None):
    """One trial; raises AssertionError where something was let go."""
    case.lost = fault is not None and fault["code"] in LOST
    case.prepare()
    accelrt.synchronize()
    busy, taken = Busy(case.fill, case.lost), []
    thread = threading.Thread(target=act, args=(case,))
    try:
        testing.begin_trace()
        if fault is not None:
            testing.arm(**fault)
        thread.start()
        thread.join(PATIENCE)
        testing.disarm()
        case.look()
        if not thread.is_alive():  # else it waits for the work, as it may
            taken = case.take()
    finally:
        testing.disarm()
        busy.gate.set()
        thread.join()
        testing.end_trace()
    accelrt.synchronize()
    assert host.frees_under_work() == 0, "memory was taken away under queued work"
    check_filled(taken)
    case.finish()
    calls = testing.traced_calls(thread.ident)
    return {row: sum(row == other for other, _ in calls) for row, _ in calls}


def settle():
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    accelrt.memory.audit()
    accelrt.memory.host_audit()


def trials_of(rows, codes, sweep):
    """Trials: each row, each code, at the first, the second and every call, or at one of these in turn."""
    for number, (row, count) in enumerate(rows.items()):
        for turn, code in enumerate(codes, number):
            ways = [(1, "once"), (1, "onward"), *([(2, "once")] if count > 1 else [])]
            for call, mode in ways if sweep else [ways[turn % len(ways)]]:
                yield {"call": call, "code": code, "mode": mode, "rows": [row]}


def try_case(name, codes=CODES, sweep=True):
    """In a process of its own: all trials of a case; prints how many they are."""
    wrap_host()
    case, trials = CASES[name](), 0
    case.begin()
    attempt(case)
    settle()
    rows = attempt(case)
    settle()
    for fault in trials_of(rows, codes, sweep):
        try:
            attempt(case, fault)
            settle()
            left = accelrt.memory_allocated()
            assert left == 0, f"{left} bytes stay allocated"
        except Exception as error:
            raise AssertionError(f"{name}, {fault}: {error}") from error
        trials += 1
    print(trials)


# --- the stream-ordered pool, on the stand-in for NVIDIA's library -----------------------------------


class Ordered:
    """Memory of the driver's stream-ordered pool, which may hear of a free only behind all streams' work.

    The stand-in says which calls came; while it is busy, no stream is idle.
    """

    STREAMS = (0x300, 0x310, 0x320)

    def __init__(self):
        testing.wrap("cuda")
        accelrt.init(driver="faults")
        allocators.select_backend("cudaMallocAsync")
        self.library, self.text = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(1 << 16)
        accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(1))

    def calls(self):
        self.library.fake_calls(self.text)
        return self.text.value.decode().splitlines()

    def attempt(self, sharers, fault=None):
        """Frees memory that streams use; raises AssertionError where the driver hears of it too early."""
        own, *others = self.STREAMS[: 1 + sharers]
        address = accelrt.caching_allocator_alloc(512, 0, own)
        for stream in others:
            accelrt.record_stream(address, stream)
        self.calls()
        self.library.fake_busy(1)
        testing.begin_trace()
        if fault is not None:
            testing.arm(**fault)
        try:
            with contextlib.suppress(accelrt.CudaError):
                accelrt.caching_allocator_delete(address)
            rows = [row for row, _ in testing.traced_calls(threading.get_ident())]
            with contextlib.suppress(accelrt.CudaError):
                accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
        finally:
            testing.disarm()
            testing.end_trace()
            self.library.fake_busy(0)
        calls = self.calls()
        if fault is None or fault["code"] not in LOST:
            self.check_order(calls, address >> 32, own, others)
        accelrt.empty_cache()
        assert accelrt.memory_stats()["active_bytes.all.current"] == 0
        calls += self.calls()
        frees = [call for call in calls if call.startswith(f"free {address >> 32} ")]
        assert len(frees) == 1, calls
        allocators.audit()
        return {row: rows.count(row) for row in rows}

    def check_order(self, calls, number, own, others):
        frees = [at for at, call in enumerate(calls) if call.startswith(f"free {number} on ")]
        for at in frees:
            stream = calls[at].split()[-1]
            followed = {
                record.removeprefix("record on ")
                for record, wait in itertools.pairwise(calls[:at])
                if record.startswith("record on ") and wait == f"wait on {stream}"
            }
            missing = {f"{each:#x}" for each in (own, *others)} - followed - {stream}
            assert not missing, f"freed on {stream} before the work of {missing}: {calls}"


def try_ordered(codes=CODES, sweep=True):
    """In a process of its own, on the stand-in for libcuda; prints how many trials there are."""
    ordered, trials = Ordered(), 0
    for sharers in (0, 2):
        ordered.attempt(sharers)
        rows = ordered.attempt(sharers)
        for fault in trials_of(rows, codes, sweep):
            try:
                ordered.attempt(sharers, fault)
            except Exception as error:
                raise AssertionError(f"{sharers} streams share it, {fault}: {error}") from error
            trials += 1
    print(trials)
