"""How large the pages are that segments grow by."""

import pytest
from child import in_child

import accelrt

pytestmark = [pytest.mark.host, pytest.mark.own_process]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROOM = {"ACCELRT_HOST_MEMORY": "4GiB", "ACCELRT_DEBUG": "0", "ACCELRT_ALLOC_CONF": ""}
alloc = accelrt.caching_allocator_alloc


def pages():
    return accelrt.memory_stats()["num_device_alloc"]


def fill(size, upto):
    """Allocates blocks of a size until so much is reserved; how many pages that took."""
    accelrt.init()
    before = pages()
    while accelrt.memory_reserved() < upto:
        alloc(size)
    return pages() - before


def grow_by_small_blocks():
    assert fill(512 * KIB, GIB) == 512  # 2 MiB each
    assert fill(512 * KIB, 2 * GIB) == 256  # 4 MiB: a 256th of 1 GiB
    assert fill(512 * KIB, 2 * GIB + 64 * MIB) == 8
    left = accelrt.memory_reserved() - accelrt.memory_allocated()
    assert 0 <= left < 8 * MIB
    total = accelrt.mem_get_info()[1]
    accelrt.set_per_process_memory_fraction((2 * GIB + 70 * MIB) / total)  # no room for 8 MiB more
    assert fill(512 * KIB, 2 * GIB + 70 * MIB) == 3
    with pytest.raises(accelrt.OutOfMemoryError):
        while True:
            alloc(512 * KIB)
    assert accelrt.memory_reserved() == accelrt.memory_allocated() == 2 * GIB + 70 * MIB
    accelrt.memory.audit()


def grow_by_larger_blocks():
    fill(3 * MIB, GIB + 512 * MIB)
    assert accelrt.memory_reserved() - accelrt.memory_allocated() < 4 * MIB


@pytest.mark.parametrize("scenario", [grow_by_small_blocks, grow_by_larger_blocks])
def test_small_blocks_share_larger_pages_in_large_segments(scenario):
    in_child(scenario, **ROOM)
