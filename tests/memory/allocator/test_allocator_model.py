"""The allocator does the same as its model, operation for operation."""

import os
import random
from contextlib import suppress

import allocator_bulk
import pytest
from allocator_mirror import OWN_STREAMS, Mirror
from child import in_child, waits, wrap_host
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule, run_state_machine_as_test
from model import Model, OutOfMemory
from model_blocks import MIB
from model_pages import PagedModel

pytestmark = pytest.mark.host
LIMIT = 96 * MIB  # of the reserved bytes of the machine's pools: small, so that it is reached often
STREAMS = (0, *OWN_STREAMS)

sizes = st.one_of(
    st.integers(0, 4096),
    st.integers(1, MIB),
    st.integers(MIB - 1024, 24 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 11 * MIB - 512, 11 * MIB, LIMIT]),
)

SEED = 20261121  # of the random operations; ACCELRT_TEST_SEED chooses another


class AllocatorAgainstModel(RuleBasedStateMachine):
    """One device, its default stream and three others; every step compares everything."""

    live = Bundle("live")
    mirrors = []  # noqa: RUF012  one is used until it fails; its streams stay, so that no handle is used again

    def __init__(self):
        super().__init__()
        if not self.mirrors or self.mirrors[-1].broken:
            self.mirrors.append(Mirror(waits=waits))
        self.mirror = self.mirrors[-1]
        self.limit(LIMIT)

    @rule(target=live, n=sizes, stream=st.sampled_from(STREAMS))
    def allocate(self, n, stream):
        key = self.mirror.allocate(0, n, stream)
        self.mirror.compare(0)
        return multiple() if key is None else key

    @rule(target=live, n=st.integers(1, 8192), count=st.integers(2, 12), stream=st.sampled_from(STREAMS))
    def allocate_several(self, n, count, stream):
        return multiple(*filter(None, [self.mirror.allocate(0, n, stream) for _ in range(count)]))

    @rule(
        target=live,
        n=sizes,
        stream=st.sampled_from(STREAMS),
        rounds=st.integers(1, 5),
        then=st.integers(-512, 512),
    )
    def allocate_by_turns(self, n, stream, rounds, then):
        with self.mirror.unchecked(0):
            keys = [self.mirror.turn(0, size, stream, rounds) for size in (n, max(n + then, 0))]
        self.mirror.compare(0)
        return multiple(*filter(None, keys))

    @rule(target=live, n=sizes, stream=st.sampled_from(STREAMS))
    def allocate_from_the_pool(self, n, stream):
        if not self.mirror.has_pages():
            return multiple()
        key = self.mirror.allocate(0, n, stream, pool=self.mirror.pool_id())
        self.mirror.compare(0)
        return multiple() if key is None else key

    @rule(keep=st.sampled_from(["host", "discard"]))
    def sleep(self, keep):
        if self.mirror.has_pages():
            self.mirror.sleep(0, keep)
            self.mirror.compare(0)

    @rule()
    def wake(self):
        if self.mirror.has_pages():
            self.mirror.wake(0)
            self.mirror.compare(0)

    @rule(key=live)
    def free(self, key):
        if self.is_live(key):
            self.mirror.free(key)
            self.mirror.compare(0)

    @rule(key=live, stream=st.sampled_from(OWN_STREAMS))
    def record_stream(self, key, stream):
        if self.is_live(key):
            self.mirror.record_stream(key, stream)

    @rule(key=live, stream=st.sampled_from(OWN_STREAMS))
    def free_after(self, key, stream):
        if self.is_live(key):
            self.mirror.free_after(key, stream)
            self.mirror.compare(0)

    @rule(stream=st.sampled_from(OWN_STREAMS), latest=st.booleans())
    def wait_event(self, stream, latest):
        if records := list(self.mirror.events[0]):
            self.mirror.wait_event(0, stream, records[-1 if latest else 0])

    @rule(stream=st.sampled_from(OWN_STREAMS))
    def close_gate(self, stream):
        self.mirror.close_gate(0, stream)

    @rule(stream=st.sampled_from(OWN_STREAMS))
    def open_gate(self, stream):
        self.mirror.open_gate(0, stream)

    @rule()
    def empty_cache(self):
        self.mirror.empty_cache()
        self.mirror.compare(0)

    @rule(size=st.integers(0, LIMIT))
    def limit(self, size):
        self.mirror.set_fraction(0, size / self.mirror.models[0].capacity)

    @rule()
    def reset_peaks(self):
        self.mirror.reset_peaks(0)

    @rule()
    def reset_accumulated(self):
        self.mirror.reset_accumulated(0)

    def is_live(self, key):
        return key[1:] in self.mirror.models[0].live

    def teardown(self):
        self.mirror.close()


def run_machine():
    wrap_host()
    run_state_machine_as_test(
        AllocatorAgainstModel,
        settings=settings(
            max_examples=50,
            stateful_step_count=60,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("debug", ["0", "2"])
@pytest.mark.parametrize("settings", ["", "expandable_segments:False"], ids=["pages", "plain"])
def test_any_sequence_of_operations(settings, debug):
    """Also at debug level 0, where the fast path is not audited."""
    in_child(run_machine, ACCELRT_ALLOC_CONF=settings, ACCELRT_DEBUG=debug)


@pytest.mark.parametrize(
    ("settings", "debug", "operations"),
    [
        ("", "2", 25_000),
        ("", "0", 15_000),
        ("expandable_segments:False", "2", 6_000),
        ("expandable_segments:False", "0", 6_000),
        ("stitching:False", "2", 5_000),
        ("piece_size_mb:6", "2", 5_000),
        ("growth_slack:0.1", "2", 5_000),
    ],
)
def test_bulk_of_random_operations(settings, debug, operations):
    seed = int(os.environ.get("ACCELRT_TEST_SEED", SEED))
    required = ["num_ooms", "waited", "handed over"]
    if settings == "":
        required += ["raised", "absorbed", "stitched", "reused", "reused in part", "from other heaps"]
        required += ["kept pages", "filled", "guarded", "taken back", "slept", "woken", "slept on"]
    environment = {"HOST_MEMORY": "128MiB", "DEBUG": debug, "ALLOC_CONF": settings}
    environment = {f"ACCELRT_{name}": value for name, value in environment.items()}
    print(in_child(allocator_bulk.run, seed, operations, required, **environment))


@pytest.mark.parametrize(
    ("settings", "debug", "operations"),
    [
        ("", "2", 6_000),
        ("", "0", 6_000),
        ("stitching:False", "2", 3_000),
        ("expandable_segments:False", "2", 3_000),
    ],
)
def test_bulk_of_random_operations_on_more_streams_than_stay_awake(settings, debug, operations):
    seed = int(os.environ.get("ACCELRT_TEST_SEED", SEED))
    required = ["num_ooms"]
    if settings == "":
        required = ["stitched", "reused", "reused in part", "from other heaps", "kept pages", "borrowed"]
    environment = {"HOST_MEMORY": "384MiB", "DEBUG": debug, "ALLOC_CONF": settings, "TEST_STREAMS": "40"}
    environment = {f"ACCELRT_{name}": value for name, value in environment.items()}
    print(in_child(allocator_bulk.run, seed, operations, required, **environment))


@pytest.mark.parametrize("kind", [Model, PagedModel])
def test_model_keeps_its_identities(kind):
    chance = random.Random(8)
    model = kind(64 * MIB)
    for _ in range(3000):
        places = list(model.live)
        pick = chance.random()
        if pick < 0.5 or not places:
            with suppress(OutOfMemory):
                model.allocate(int(2 ** chance.uniform(0, 24)), chance.choice(STREAMS))
        elif pick < 0.8:
            model.free(chance.choice(places))
        elif pick < 0.9:
            model.record_stream(chance.choice(places), chance.choice(OWN_STREAMS))
        else:
            chance.choice([model.close_gate, model.open_gate])(chance.choice(OWN_STREAMS))
        model.audit()
    assert model.statistics.flat["num_ooms"] > 0
    for stream in OWN_STREAMS:
        model.open_gate(stream)
    for place in list(model.live):
        model.free(place)
    model.empty_cache()
    model.audit()
    assert model.snapshot() == []
