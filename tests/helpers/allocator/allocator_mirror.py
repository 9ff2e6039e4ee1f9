"""The real allocator and its model, given the same operations; every difference raises AssertionError.

A block is named by its key, (device, serial of its segment, offset).  Stream 0 is the device's default
stream; streams 1, 2, ... are created by the mirror and can be gated: while a gate is closed its stream runs
nothing, so it is known at every moment which events are complete.
"""

import os
from contextlib import contextmanager, nullcontext
from operator import call as direct

import pytest
from allocator_offers import Offers
from model import Model, OutOfMemory
from model_blocks import FREE, LIVE, PENDING, PLAIN
from model_offers import WATCH
from model_pages import PagedModel

import accelrt
from accelrt.allocator.settings.settings import from_environment
from accelrt.driver.registry import Rows

OWN_STREAMS = tuple(range(1, 1 + int(os.environ.get("ACCELRT_TEST_STREAMS", "3"))))


class Mirror(Offers):
    """The pools of some devices, each beside its model.

    waits, if given, is a function that counts how often the process has waited for a device: then an
    operation that has to wait for a gated stream begins its wait before the gate opens.  Without it the
    gates open first.
    """

    def __init__(self, devices=(0,), waits=None):
        super().__init__(devices, waits)
        self.error = None  # the last OutOfMemoryError
        self.broken = False  # a difference was found: this mirror is of no more use
        self.checking = True
        self.bases = {}  # (device, serial) -> (address, size)
        self.streams = {
            (device, index): accelrt.Stream(device) for device in devices for index in OWN_STREAMS
        }
        self.numbers = {key: stream.cuda_stream for key, stream in self.streams.items()}
        self.numbers |= {(device, 0): 0 for device in devices}
        self.models = dict.fromkeys(devices)
        self.pool = None  # a MemPool, of all devices; what the models know it by is its id
        self.begin()

    def begin(self):
        """Starts with new models and empty pools; call it while the pools hold nothing but idle memory."""
        self.drop_pool()
        accelrt.empty_cache()
        self.bases.clear()
        for device in self.models:
            self.order_queues(device)
            self.models[device] = fresh_model(device)
            self.models[device].queues.update({stream: [] for stream in (*OWN_STREAMS, WATCH)})
        for device in self.models:
            self.set_fraction(device, 1.0)
            accelrt.reset_peak_memory_stats(device)
            self.reset_accumulated(device)

    def order_queues(self, device):
        """Makes the streams' event queues in order: a pool makes one at a stream's first use and keeps it."""
        for stream in OWN_STREAMS:
            address = accelrt.caching_allocator_alloc(1, device)
            accelrt.record_stream(address, self.streams[device, stream])
            accelrt.caching_allocator_delete(address)
        address = accelrt.caching_allocator_alloc(1, device)
        accelrt.memory.free_after(address, self.streams[device, OWN_STREAMS[0]].record_event())
        accelrt.synchronize(device)

    # operations

    def allocate(self, device, n, stream=0, run=direct, pool=None):
        """Allocates on both sides; returns the block's key; None for 0 bytes, no memory, a sleeping pool."""
        model = self.models[device]
        if pool in model.suspended:
            with self.entered(device, pool), pytest.raises(accelrt.SleepingMemoryError):
                accelrt.caching_allocator_alloc(max(n, 1), device, self.streams.get((device, stream)))
            self.check(device)
            return None
        if self.gated(device) and model.may_retry(n, stream, pool):
            queues = model.queues.items()
            self.prepare_wait(device, {stream for stream, queue in queues if not complete(queue)})
        try:
            place = model.allocate(n, stream, pool)
        except OutOfMemory as error:
            place = error
        with self.opening_gates(model.waited), self.entered(device, pool):
            try:
                got = run(accelrt.caching_allocator_alloc, n, device, self.streams.get((device, stream)))
            except accelrt.OutOfMemoryError as error:
                got = error
        self.forget_segments(device)
        self.check(device)
        if isinstance(place, OutOfMemory):
            assert isinstance(got, accelrt.OutOfMemoryError), f"{n} bytes at {got:#x}, the model has no room"
            assert got.requested == n
            self.error = got
            return None
        if isinstance(got, accelrt.OutOfMemoryError):
            raise AssertionError(f"no room for {n} bytes, the model has it at {place}") from got
        if place is None:
            assert got == 0
            return None
        self.place(device, place, got)
        return (device, *place)

    def free(self, key, run=direct):
        device, *place = key
        address, used = self.address(key), self.models[device].live[tuple(place)].uses
        self.models[device].free(tuple(place))
        run(accelrt.caching_allocator_delete, address)
        self.let_finish(device, used)
        self.check(device)

    def record_stream(self, key, stream):
        device, *place = key
        self.models[device].record_stream(tuple(place), stream)
        accelrt.record_stream(self.address(key), self.streams[device, stream])
        self.check(device)

    def empty_cache(self):
        for device in self.models:
            queues = self.models[device].queues.items()
            self.prepare_wait(device, {stream for stream, queue in queues if queue})
        for model in self.models.values():
            model.empty_cache()
        with self.opening_gates(any(model.waited for model in self.models.values())):
            accelrt.empty_cache()
        for device in self.models:
            self.forget_segments(device)
            self.check(device)

    # private pools

    def pool_id(self):
        """The mirror's MemPool, made at its first use: virtual memory only."""
        if self.pool is None:
            self.pool = accelrt.MemPool(device=next(iter(self.models)))
            for model in self.models.values():
                model.retained.add(self.pool.id)
            for device in self.models:
                with accelrt.use_mem_pool(self.pool, device):
                    pass
        return self.pool.id

    def has_pages(self):
        """Whether the devices have virtual memory, which a pool needs to sleep."""
        return all(isinstance(model, PagedModel) for model in self.models.values())

    def entered(self, device, pool):
        return nullcontext() if pool is None else accelrt.use_mem_pool(self.pool, device)

    def drop_pool(self):
        """Lets go of it: its idle memory goes with the next empty_cache, also where it sleeps."""
        if self.pool is None:
            return
        for device, model in self.models.items():
            model.retained.clear()
            model.suspended.clear()
            assert accelrt.memory.sleeping(device) == model.statistics.flat["sleeping_bytes"]
        self.pool = None

    def sleep(self, device, keep="host"):
        """Returns whether the pool sleeps now: one without pages on the device is left alone."""
        pool, model = self.pool_id(), self.models[device]
        if pool in model.suspended or not model.pages_of(pool, suspended=False):
            return False
        queues = model.queues.items()
        self.prepare_wait(device, {stream for stream, queue in queues if queue})
        model.sleep(pool)
        with self.opening_gates(model.waited):
            self.pool.sleep(keep, device)
        self.check(device)
        return True

    def wake(self, device):
        """Returns whether it could be woken."""
        pool, model = self.pool_id(), self.models[device]
        if pool not in model.suspended:
            return False
        queues = model.queues.items()
        self.prepare_wait(device, {stream for stream, queue in queues if queue})
        try:
            model.wake(pool)
        except OutOfMemory:
            with self.opening_gates(model.waited), pytest.raises(accelrt.OutOfMemoryError):
                self.pool.wake(device)
        else:
            with self.opening_gates(model.waited):
                self.pool.wake(device)
        self.forget_segments(device)
        self.check(device)
        return pool not in model.suspended

    def set_fraction(self, device, fraction):
        self.models[device].set_limit(fraction)
        accelrt.set_per_process_memory_fraction(fraction, device)

    def reset_peaks(self, device):
        self.models[device].statistics.reset_peaks()
        accelrt.reset_peak_memory_stats(device)
        self.check(device)

    def reset_accumulated(self, device):
        self.models[device].statistics.reset_accumulated()
        accelrt.reset_accumulated_memory_stats(device)
        self.check(device)

    def close(self):
        """Gives everything back and checks that nothing is left; the next mirror finds the pools empty."""
        try:
            self.give_back()
        except BaseException:
            self.abandon()
            raise

    def give_back(self):
        self.open_gates()
        for device, model in self.models.items():
            for place in list(model.live):
                self.free((device, *place))
            self.set_fraction(device, 1.0)
        self.drop_pool()
        self.empty_cache()
        for device in self.models:
            self.compare(device)
            assert accelrt.memory_snapshot(device) == []

    def abandon(self):
        """After a difference: frees every block that the allocator itself reports as live."""
        self.broken = True
        for gate in self.gates.values():
            gate.set()
        for stream in self.streams.values():
            stream.synchronize()
        for device in self.models:
            for segment in accelrt.memory_snapshot(device):
                for block in segment["blocks"]:
                    if block["state"] == LIVE:
                        accelrt.caching_allocator_delete(block["address"])
        accelrt.empty_cache()

    # comparisons

    def place(self, device, place, address):
        serial, offset = place
        held = next(each.held for each in self.models[device].all_segments() if each.serial == serial)
        self.learn_base(device, serial, address - offset, held)

    def learn_base(self, device, serial, base, held):
        if (device, serial) in self.bases:
            assert self.bases[device, serial] == (base, held), f"segment {serial} is not at {base:#x}"
        for key, (other, length) in self.bases.items():
            assert key == (device, serial) or base + held <= other or other + length <= base
        self.bases[device, serial] = base, held

    def address(self, key):
        device, serial, offset = key
        return self.bases[device, serial][0] + offset

    def forget_segments(self, device):
        serials = {segment.serial for segment in self.models[device].all_segments()}
        for key in [key for key in self.bases if key[0] == device and key[1] not in serials]:
            del self.bases[key]

    @contextmanager
    def unchecked(self, device):
        """Does not read the statistics between the operations inside, so that hits follow each other."""
        self.checking = False
        try:
            yield
        finally:
            self.checking = True
        self.check(device)

    def turn(self, device, n, stream, rounds):
        """Allocates and frees in turn; returns the key of the last block, which is live."""
        key = self.allocate(device, n, stream)
        for _ in range(rounds):
            if key is None:
                break
            self.free(key)
            key = self.allocate(device, n, stream)
        return key

    def check(self, device):
        """The statistics are the same."""
        if not self.checking:
            return
        paged = isinstance(self.models[device], PagedModel)
        model, real = self.models[device].statistics.shown(paged), accelrt.memory_stats(device)
        if not model.items() <= real.items():
            differing = [
                f"{key}: {real.get(key)}, the model has {value}"
                for key, value in model.items()
                if real.get(key) != value
            ]
            raise AssertionError("statistics differ\n" + "\n".join(differing))

    def compare(self, device):
        """Statistics and snapshots are the same, block for block, and both sides' audits pass."""
        self.check(device)
        self.models[device].audit()
        accelrt.memory.audit(device)
        real = sorted(accelrt.memory_snapshot(device), key=lambda run: (run["serial"], run["address"]))
        expected = self.models[device].snapshot()
        assert len(real) == len(expected)
        for run, (segment, blocks) in zip(real, expected, strict=True):
            self.learn_base(device, segment.serial, run["address"] - blocks[0].offset, segment.held)
            wanted = self.expected_run(device, segment, blocks)
            assert {key: run[key] for key in wanted} == wanted

    def expected_run(self, device, segment, blocks):
        base = self.bases[device, segment.serial][0]
        states = {
            state: [block for block in blocks if block.state is state] for state in (LIVE, PENDING, FREE)
        }
        active = states[LIVE] + states[PENDING]
        return {
            "device": device,
            "serial": segment.serial,
            "address": base + blocks[0].offset,
            "total_size": sum(block.size for block in blocks),
            "stream": self.numbers[device, segment.heap.stream],
            "segment_type": segment.heap.kind,
            "segment_pool_id": segment.heap.pool or (0, 0),
            "asleep": segment.heap.pool in self.models[device].suspended,
            "managed": False,
            "is_expandable": segment.shape is not PLAIN,
            "allocated_size": sum(block.size for block in states[LIVE]),
            "active_size": sum(block.size for block in active),
            "requested_size": sum(block.requested for block in active),
            "blocks": [
                {
                    "address": base + block.offset,
                    "size": block.size,
                    "state": block.state,
                    "requested_size": block.requested,
                    "frames": [],
                    "tag": "",
                }
                for block in blocks
            ],
        }


def complete(queue):
    return all(event.complete for event in queue)


def capacity(device):
    code, total = Rows().device_memory(device)
    assert code == 0
    return total


def fresh_model(device):
    """A model with the settings of the device's pool, which is empty afterwards."""
    with accelrt.Buffer(1, device):
        (segment,) = accelrt.memory_snapshot(device)
    accelrt.empty_cache()
    total, serial = capacity(device), segment["serial"] + 1
    if not segment["is_expandable"]:
        return Model(total, serial)
    settings = from_environment()
    return PagedModel(total, serial, settings.stitching, settings.piece_size, settings.growth_slack)
