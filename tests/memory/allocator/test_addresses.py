"""Addresses: segments share what the driver reserves in one call, and it goes back with the last of them."""

import os
import resource
from pathlib import Path

import pytest
from child import in_child, in_own_process

import accelrt

MIB, GIB = 1 << 20, 1 << 30
DRIVER = os.environ.get("ACCELRT_DRIVER", "host")
FAR, NEAR, MANY = 4 * GIB, 64 * MIB, 64


def figures():
    stats = accelrt.memory_stats()
    return stats["virtual_memory_calls"], stats["reserved_addresses"]


def segments_share_a_reservation():
    buffers, streams = [], [accelrt.Stream() for _ in range(3)]
    for number, stream in enumerate(streams):
        calls, held = figures()
        buffers.append(accelrt.Buffer(MIB, stream=stream))
        more, now = figures()
        assert more - calls == (3 if number else 4), (
            "a page, its mapping and the access to it; at first addresses too"
        )
        assert now - held == FAR
    calls, _ = figures()
    del buffers
    accelrt.empty_cache()
    more, held = figures()
    assert held == 0
    assert more - calls == 7, "three mappings and pages, one reservation"
    assert accelrt.Buffer(MIB).nbytes == MIB
    accelrt.memory.audit()


def the_heaps_of_many_streams_lie_close_together():
    streams = [accelrt.Stream() for _ in range(MANY + 20)]
    buffers = [accelrt.Buffer(MIB, stream=stream) for stream in streams]
    assert figures()[1] == MANY * FAR + 20 * NEAR
    addresses = [buffer.ptr for buffer in buffers[MANY:]]
    assert max(addresses) - min(addresses) < 20 * NEAR
    more = [accelrt.Buffer(40 * MIB, stream=streams[-1]) for _ in range(2)]
    assert figures()[1] == MANY * FAR + 20 * NEAR + FAR, "a heap that needs more gets more"
    accelrt.memory.audit()
    del buffers, more
    accelrt.empty_cache()
    assert figures()[1] == 0


@pytest.mark.host
@in_own_process
def test_a_process_with_few_addresses_gets_what_it_needs():
    accelrt.init()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 8 * GIB, resource.RLIM_INFINITY))
    buffer = accelrt.Buffer(MIB)
    buffer.fill(1, blocking=True)
    assert figures()[1] == FAR
    accelrt.memory.audit()


@pytest.mark.own_process
@pytest.mark.parametrize(
    "scenario", [segments_share_a_reservation, the_heaps_of_many_streams_lie_close_together]
)
def test_on_every_driver(scenario):
    in_child(scenario, ACCELRT_DRIVER=DRIVER)
