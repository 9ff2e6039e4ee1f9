"""Threads that allocate and free while another one's call of the driver takes long: the identities hold at
every moment, although an operation that waits for the driver is half done."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver import testing

pytestmark = [pytest.mark.own_process, pytest.mark.host]

THREADS = 4
MAPPING = (
    *("address_reserve", "address_free", "physical_create", "physical_release"),
    *("memory_map", "memory_access", "memory_unmap", "memory_alloc", "memory_free"),
)
SIZES = (400, 1_200_000, 4_800_000, 12_000_000, 40_000_000)


def work(streams, seed):
    chosen, live = random.Random(seed), []
    for _ in range(1000):
        if live and (len(live) > 14 or chosen.random() < 0.45):
            live.pop(chosen.randrange(len(live)))
        elif chosen.random() < 0.02:
            accelrt.empty_cache()
        elif chosen.random() < 0.15:
            accelrt.reset_peak_memory_stats(0)  # so that peaks are reached again and again
        else:
            live.append(accelrt.Buffer(chosen.choice(SIZES), 0, chosen.choice(streams)))


@pytest.mark.parametrize("count", [1, 3])
@in_own_process(ACCELRT_HOST_MEMORY="4GiB")  # all that the threads may have at once fits in it
def test_identities_hold_while_the_driver_is_slow(count):
    wrap_host()
    testing.arm(call=1, code=1500, mode="slow", rows=MAPPING)
    streams = [accelrt.Stream(0) for _ in range(count)]
    with ThreadPoolExecutor(THREADS) as threads:
        for each in [threads.submit(work, streams, seed) for seed in range(THREADS)]:
            each.result()
    accelrt.synchronize()
    accelrt.memory.audit()
    assert accelrt.memory_allocated(0) == 0
    testing.disarm()


def test_a_slow_call_takes_some_time():
    with pytest.raises(ValueError, match="code is 0; a slow call takes 1 microsecond or more"):
        testing.arm(call=1, code=0, mode="slow")
