"""Drivers that refuse, in either process: the error says what, nothing is left, the next time works."""

import functools
import gc
import os

import pytest
from child import in_own_process, wrap_host
from other_process import Other, opened, statistics
from waiting import wait_until

import accelrt.sharing
from accelrt.driver import testing
from accelrt.driver.host.driver import live_objects
from accelrt.sharing import mapping
from accelrt.testing import failing_calls

pytestmark = pytest.mark.host
MIB = 1 << 20
UNKNOWN, NOT_SUPPORTED = 999, 801
OF_OPENING = (
    "granularity",
    "address_reserve",
    "physical_import",
    "memory_map",
    "memory_access",
    "ipc_event_open",
)


def held():
    gc.collect()
    counts = live_objects()
    return {kind: counts[kind] for kind in ("physical", "reservations", "bytes")}, len(
        os.listdir("/proc/self/fd")
    )


def map_and_close(accelrt, mapping, shared):
    made = mapping.reserve(0, shared.size)
    for index, (_, size) in enumerate(shared.pages):
        file, owner = shared.export_page(index)
        made.add_page(file, size)
        del owner
    made.finish()
    assert (
        made.buffer(shared.ptr - shared.base, shared.nbytes, accelrt.current_stream(), None)[:].numpy() == 3
    ).all()
    assert made.close()


@in_own_process(printing="")
def test_a_mapping_that_fails_half_way_leaves_nothing():
    faults = wrap_host()

    buffer = accelrt.Buffer(5 * MIB)
    buffer.fill(3)
    shared = mapping.share_bytes(buffer)
    assert len(shared.pages) == 3
    map_and_close(accelrt, mapping, shared)
    before = held()
    for row in OF_OPENING[:-1]:
        step = functools.partial(map_and_close, accelrt, mapping, shared)
        for call, error in failing_calls(step, rows=[row]):
            assert error is None or row in str(error)
            del error
            assert held() == before, (row, call)
        del step
    del buffer, shared
    sweep_exports(faults, accelrt, mapping)


def sweep_exports(faults, accelrt, mapping):
    """Of new pages each time, since descriptors are kept while a page lives."""
    accelrt.empty_cache()
    before = held()
    for call in range(1, 5):
        shared = mapping.share_bytes(accelrt.full((5 * MIB,), 3, "int8").base)
        faults.arm(call=call, code=UNKNOWN, rows=["physical_export"])
        if call < 4:
            with pytest.raises(accelrt.CudaError, match="physical_export"):
                map_and_close(accelrt, mapping, shared)
        else:
            map_and_close(accelrt, mapping, shared)
        faults.disarm()
        del shared
        accelrt.empty_cache()
        assert held() == before, call


def on_faults(kept):
    wrap_host()


def arm(kept, row):
    testing.arm(call=2 if row == "memory_map" else 1, code=UNKNOWN, rows=[row])


def disarm(kept):
    testing.disarm()


@in_own_process(printing="")
def test_a_refusal_in_either_process_is_told_and_done_with():
    faults = wrap_host()

    other = Other()
    other.call(on_faults)
    array = accelrt.full((5 * MIB,), 3, "int8")
    handle = array.share()
    for row in ("physical_export", "ipc_event_export"):  # descriptors are kept from the first success on
        faults.arm(call=1, code=UNKNOWN, rows=[row])
        with pytest.raises(RuntimeError, match=rf"process \d+ could not hand over its memory: .*{row}"):
            other.call(opened, handle)
        faults.disarm()
        assert (other.call(opened, handle) == 3).all()
    for row in OF_OPENING:
        other.call(arm, row)
        with pytest.raises(RuntimeError, match=row):
            other.call(opened, handle)
        other.call(disarm)
        assert (other.call(opened, handle) == 3).all()
    assert other.call(statistics)["mapped"] == 0
    handle.close()
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)
    other.stop()


@in_own_process(printing="")
def test_a_device_without_shared_memory_serves_its_own_process():
    faults = wrap_host()

    faults.arm(call=1, code=NOT_SUPPORTED, rows=["physical_create"], mode="once")
    array = accelrt.full((10,), 3, "int8")
    faults.disarm()
    assert (array.numpy() == 3).all()
    with pytest.raises(
        accelrt.NotSupportedError, match=r"1 of the 1 pages .* or because the device cannot make others"
    ):
        array.share()
