"""Random operations while rows of the driver fail at random.  No model follows; invariants are checked."""

import random
from contextlib import contextmanager

from allocator_mirror import OWN_STREAMS, capacity
from model_blocks import round_up

import accelrt
from accelrt.driver import testing as faults

CODES = (1, 2, 2, 2, 999)  # INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN
PAGES = (
    *("address_reserve", "address_reserve_at", "address_free", "physical_create", "physical_release"),
    *("memory_map", "memory_access", "memory_unmap"),
)
ROWS = (
    *PAGES,
    *("memory_alloc", "memory_free", "capture_mode_exchange", "capture_status"),
    *("event_create", "event_record", "event_query", "event_synchronize"),
    *("stream_query", "device_synchronize"),
)
WEIGHTS = {
    "allocate": 50,
    "free": 35,
    "record_stream": 15,
    "close_gate": 3,
    "open_gates": 4,
    "empty_cache": 2,
}


class Storm:
    """Takes over a mirror's live blocks; finish() frees everything and starts the mirror's models anew."""

    def __init__(self, mirror, contents, chance=None):
        self.mirror, self.contents = mirror, contents
        self.random = chance or random.Random(1)
        mirror.end_offers()
        self.live = {}  # address -> (device, bytes)
        for device, model in mirror.models.items():
            for place, block in model.live.items():
                self.live[mirror.address((device, *place))] = device, block.requested
        self.raised = self.absorbed = 0

    def run(self, operations, most_live=60):
        for _ in range(operations):
            (name,) = self.random.choices(list(WEIGHTS), WEIGHTS.values())
            if name == "allocate" and len(self.live) >= most_live:
                name = "free"
            if self.live or name not in ("free", "record_stream"):
                getattr(self, name)()
                self.check()

    @contextmanager
    def failing(self):
        """One call of one row, or of several rows, may fail inside; checks the error."""
        code = self.random.choice(CODES)
        rows = self.random.choice([ROWS, PAGES, [self.random.choice(ROWS)]])
        call = self.random.randint(1, 6 if len(rows) == 1 else 20)
        if self.random.random() < 0.6:
            faults.arm(call=call, code=code, rows=rows)
        try:
            yield
        except accelrt.CudaError as error:
            self.raised += 1
            check_error(error, code, rows)
        else:
            self.absorbed += faults.fired() >= call
        finally:
            faults.disarm()

    def check(self):
        for device in self.mirror.models:
            accelrt.memory.audit(device)
            stats = accelrt.memory_stats(device)
            asked = [n for on, n in self.live.values() if on == device]
            assert stats["allocation.all.current"] == len(asked)
            assert stats["allocated_bytes.all.current"] >= sum(round_up(n, 512) for n in asked)
            assert accelrt.mem_get_info(device)[0] == capacity(device) - stats["reserved_bytes.all.current"]

    def finish(self):
        """Checks that nothing is lost: contents are as written, and the device is empty once all is freed."""
        self.mirror.open_gates()
        self.contents.check_all()
        for address in list(self.live):
            self.give_back(address)
        self.mirror.drop_pool()
        accelrt.empty_cache()
        for device in self.mirror.models:
            assert accelrt.memory_snapshot(device) == []
            stats = accelrt.memory_stats(device)
            left = {key: value for key, value in stats.items() if key.endswith(".current") and value}
            assert not left, left
            assert stats["stitched_bytes"] == stats["reserved_addresses"] == 0
            assert accelrt.mem_get_info(device) == (capacity(device), capacity(device))
        self.mirror.begin()

    # operations

    def allocate(self):
        device = self.random.choice(list(self.mirror.models))
        stream = self.mirror.streams.get((device, self.random.choice((0, *OWN_STREAMS))))
        n = int(2 ** self.random.choice([self.random.uniform(2, 20), self.random.uniform(20, 25.5)]))
        with self.failing(), self.mirror.opening_gates(bool(self.mirror.gates), bound=False):
            address = accelrt.caching_allocator_alloc(n, device, stream)
            assert address not in self.live
            self.live[address] = device, n
            self.contents.write(address, n)

    def free(self):
        address = self.random.choice(list(self.live))
        with self.failing():
            self.give_back(address)

    def give_back(self, address):
        self.contents.forget(address)
        del self.live[address]
        accelrt.caching_allocator_delete(address)

    def record_stream(self):
        address = self.random.choice(list(self.live))
        device, _ = self.live[address]
        accelrt.record_stream(address, self.mirror.streams[device, self.random.choice(OWN_STREAMS)])

    def close_gate(self):
        self.mirror.close_gate(self.random.choice(list(self.mirror.models)), self.random.choice(OWN_STREAMS))

    def open_gates(self):
        self.mirror.open_gates()

    def empty_cache(self):
        with self.failing(), self.mirror.opening_gates(bool(self.mirror.gates), bound=False):
            accelrt.empty_cache()


def check_error(error, code, rows):
    """The error names the row that failed and its code; an out-of-memory error may be the allocator's."""
    assert error.call in {"allocate", "empty_cache", *rows}, (error, code, rows)
    if not isinstance(error, accelrt.OutOfMemoryError):
        assert error.code == code, (error, code, rows)
        assert error.call in str(error)
