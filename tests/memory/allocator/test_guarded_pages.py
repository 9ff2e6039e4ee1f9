"""Pages that went home before the stream that freed them was asked: nobody gets them from under its work."""

import itertools
import threading

import pytest
from beside import Gate
from child import in_own_process

import accelrt
from accelrt import testing
from accelrt.memory import caching_allocator_alloc as ALLOC
from accelrt.memory import caching_allocator_delete as FREE
from accelrt.testing import Interleaver

MIB = 1 << 20
pytestmark = [pytest.mark.own_process, pytest.mark.host]
ROOM = {"ACCELRT_HOST_DEVICES": "1", "ACCELRT_HOST_MEMORY": "64MiB"}


class Memory:
    """A live block on one stream, of pages that are another's."""

    def __init__(self, nbytes, device=0, taker=None):
        self.nbytes = nbytes
        self.owner, self.taker = accelrt.Stream(device), taker or accelrt.Stream(device)
        for address in [ALLOC(16 * MIB, device, self.owner) for _ in range(2)]:
            FREE(address)
        FREE(ALLOC(30 * MIB, device, self.taker))  # leaves a segment for empty_cache to unmap
        self.ptr = ALLOC(nbytes, device, self.taker)
        accelrt.synchronize(device)
        assert accelrt.memory_reserved(device) == 32 * MIB
        self.gate = threading.Event()

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def free_under_work(self):
        self.taker.launch_host_func(lambda: self.gate.wait(300))
        accelrt.fill(self, 7, stream=self.taker)
        FREE(self.ptr)

    def finish(self):
        self.gate.set()
        self.taker.synchronize()
        accelrt.empty_cache()
        assert accelrt.memory_reserved() == 0


def refused():
    with pytest.raises(accelrt.OutOfMemoryError):
        ALLOC(100 * MIB, 0, 0)


@pytest.mark.parametrize("gives_back", ["empty_cache", "refused"])
@in_own_process(**ROOM)
def test_what_is_freed_while_memory_goes_back_stays_as_long_as_work_uses_it(gives_back):
    testing.use_device()
    interleaver = Interleaver()
    first = {"empty_cache": accelrt.empty_cache, "refused": refused}[gives_back]
    memory = Memory(20 * MIB)
    rows = interleaver.places(first)
    memory.free_under_work()
    memory.finish()
    waited = max(number for number, row in rows if row == "device_synchronize")
    assert any(row == "memory_unmap" for _, row in rows[waited:])
    for (number, row), when in itertools.product(rows[waited:], ("before", "after")):
        memory = Memory(20 * MIB)
        outcome, freed = interleaver.run_beside(first, memory.free_under_work, number, when, f"{when} {row}")
        assert outcome.kind == freed.kind == "done"
        memory.finish()  # raises where the work met an address that is not mapped
    interleaver.close()


@in_own_process(ACCELRT_HOST_DEVICES="1", ACCELRT_HOST_MEMORY="40MiB")
def test_a_stream_is_asked_for_guarded_pages_before_its_own_capture_begins():
    memory = Memory(22 * MIB)
    graph, target = accelrt.CUDAGraph(), accelrt.Buffer(64)
    with Gate(memory.taker) as gate:
        FREE(memory.ptr)
        timer = threading.Timer(0.3, gate.open.set)
        with accelrt.stream(memory.taker):
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                timer.start()
                FREE(ALLOC(30 * MIB, 0, memory.owner))  # waits for the work before the capture
            finally:
                target.fill(1)
                graph.capture_end()
    timer.join()
    accelrt.memory.audit()


@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_pages_of_a_stream_that_cannot_be_asked_now_are_no_reason_to_refuse():
    memory = Memory(20 * MIB, 1, accelrt.default_stream(1))
    target = accelrt.Buffer(64, 0)
    with accelrt.graph(accelrt.CUDAGraph(), capture_error_mode="relaxed"):
        target.fill(1)
        FREE(memory.ptr)
        FREE(ALLOC(18 * MIB, 1, memory.owner))  # larger than what is left, smaller than what is guarded
        assert accelrt.memory_reserved(1) == 48 * MIB
    accelrt.memory.audit()
