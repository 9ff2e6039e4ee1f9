"""The allocator does what its model does, operation for operation."""

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

LIMIT = 96 * MIB  # what the machine's pools may reserve: small, so that it is reached often
STREAMS = (0, *OWN_STREAMS)

sizes = st.one_of(
    st.integers(0, 4096),
    st.integers(1, MIB),
    st.integers(MIB - 1024, 24 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 11 * MIB - 512, 11 * MIB, LIMIT]),
)


class AllocatorAgainstModel(RuleBasedStateMachine):
    """One device, its default stream and three others; every step compares everything."""

    live = Bundle("live")
    mirrors = []  # noqa: RUF012  one serves until it fails; its streams live on, so that no handle comes again

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

    @rule(key=live)
    def free(self, key):
        if self.is_live(key):
            self.mirror.free(key)
            self.mirror.compare(0)

    @rule(key=live, stream=st.sampled_from(OWN_STREAMS))
    def record_stream(self, key, stream):
        if self.is_live(key):
            self.mirror.record_stream(key, stream)

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
            max_examples=80,
            stateful_step_count=60,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_sequence_of_operations():
    in_child(run_machine)


@pytest.mark.parametrize("debug", ["2", "0"], ids=["audited", "unaudited"])
def test_bulk_of_random_operations(debug):
    """Unaudited as well: only then does the allocator take its short paths."""
    seed = int(os.environ.get("ACCELRT_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    operations = int(os.environ.get("ACCELRT_TEST_OPS") or 200_000)
    memory = str(384 * MIB)
    print(in_child(allocator_bulk.run, seed, operations, ACCELRT_HOST_MEMORY=memory, ACCELRT_DEBUG=debug))


def test_model_keeps_its_identities():
    chance = random.Random(8)
    model = Model(64 * MIB)
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
