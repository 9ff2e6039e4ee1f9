"""Calls of the driver that are refused while work is under way: nothing that the work uses may go.

A stream waits in a host function; behind it stands a fill of the memory.  Then what would let the memory go
is done, and one call of the driver's, or all from one on, answers a code instead.  After it memory of the
same size is taken and filled, the host function ends, and the fill runs: neither may it find its memory
unmapped, which loses the host device, nor may its bytes appear in memory that was handed out meanwhile.
"""

import contextlib
import gc
import threading

import numpy as np
from child import wrap_host

import accelrt
from accelrt.driver import registry

NBYTES = 4 << 20
# Refusals, none of which says that the work is done.  What says that the device is lost (700, 719, ...) does.
CODES = (1, 2, 3, 101, 201, 400, 600, 801, 900, 901, 905, 906, 908, 999)
SECONDS = 30
PATIENCE = 0.02  # seconds for what is done; what takes longer waits for the work


class Busy:
    """Work under way on a stream: a host function that waits, and a fill of some memory behind it."""

    def __init__(self, fill):
        self.stream, self.gate = accelrt.Stream(), threading.Event()
        self.stream.launch_host_func(lambda: self.gate.wait(SECONDS))
        fill(self.stream)


class Case:
    """What is done to memory that is in use: prepare makes it, fill uses it, act would let it go."""

    def prepare(self):
        self.memory = accelrt.Buffer(NBYTES)

    def fill(self, stream):
        self.memory.fill(0xAB, stream=stream)

    def act(self):
        raise NotImplementedError

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


CASES = {
    each.__name__: each for each in (Free, FreeAndAllocate, FreePool, FreeOnItsStream, FreePinned, DropGraph)
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
    case.prepare()
    accelrt.synchronize()
    busy, taken = Busy(case.fill), []
    thread = threading.Thread(target=act, args=(case,))
    try:
        registry.begin_trace()
        if fault is not None:
            registry.arm(**fault)
        thread.start()
        thread.join(PATIENCE)
        registry.disarm()
        if not thread.is_alive():  # else it waits for the work, as it may
            taken = [accelrt.Buffer(NBYTES) for _ in range(3)]
            for each in taken:
                each.fill(9)
    finally:
        registry.disarm()
        busy.gate.set()
        thread.join()
        registry.end_trace()
    accelrt.synchronize()
    check_filled(taken)
    case.finish()
    calls = registry.traced_calls(thread.ident)
    return {row: sum(row == other for other, _ in calls) for row, _ in calls}


def settle():
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    accelrt.memory.audit()
    accelrt.memory.host_audit()


def try_case(name, codes=CODES, known=()):
    """In a process of its own: each row of a case, each code, the first, second and every call."""
    wrap_host()
    case, trials = CASES[name](), 0
    attempt(case)
    settle()
    rows = attempt(case)
    settle()
    for row, count in rows.items():
        for code in codes:
            for call, mode in ((1, "once"), (2, "once"), (1, "onward")):
                if call > count or (name, row, code) in known:
                    continue
                where = f"{name}: {row} answers {code} at call {call}, {mode}"
                try:
                    attempt(case, {"call": call, "code": code, "mode": mode, "rows": [row]})
                    settle()
                    assert accelrt.memory_allocated() == 0, (
                        f"{accelrt.memory_allocated()} bytes stay allocated"
                    )
                except Exception as error:
                    raise AssertionError(f"{where}: {error}") from error
                trials += 1
    print(trials)
