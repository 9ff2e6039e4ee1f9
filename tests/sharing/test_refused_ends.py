"""Drivers that refuse while work is under way: nothing counts as done that is not, or is kept for ever."""

import gc
import os
import threading

import pytest
import refusals_while_busy
from beside import Gate
from child import in_child, in_own_process, wrap_host
from other_process import Other, make, opened, share_made, statistics
from waiting import wait_until

import accelrt
import accelrt.sharing
from accelrt.driver.host.driver import live_objects
from accelrt.sharing import mapping

pytestmark = pytest.mark.host
MIB = 1 << 20
LOST = 700
ALL_LOST = (LOST, 709, 719)
CODES = (1, 2, 201, 400, 600, LOST, 900, 999)
OF_ENDS = (
    *(
        "event_create",
        "event_record",
        "event_query",
        "stream_query",
        "capture_status",
        "capture_mode_exchange",
    ),
    *("device_synchronize", "memory_unmap", "address_free", "ipc_memory_close"),
)
OF_SHARES = ("event_create", "event_record", "device_uuid", "capture_status", "capture_mode_exchange")


def prepare_opener():
    faults = wrap_host()
    from accelrt.sharing import consumer

    consumer.LONGEST_PAUSE = 0.002
    return faults, consumer


def end_while_working(faults, consumer, handle, rows, arming):
    """Lets go of memory that a stream's work writes to; only when that is done, it may be unmapped."""
    memory, stream = handle.open(), accelrt.Stream()
    giving = consumer._owners[handle._place.name].giving
    looks = count_looks(giving)
    memory.fill_(0)
    accelrt.synchronize()
    waits = faults.call_counts()["device_synchronize"]  # what a stream that cannot be asked at all comes to
    with Gate(stream):
        memory.fill_(9, stream=stream)
        memory.record_stream(stream)
        faults.arm(rows=rows, **arming)
        del memory
        gc.collect()
        wait_until(lambda: len(looks) >= 8 or faults.call_counts()["device_synchronize"] > waits)
        faults_hit = faults.fired()
        assert consumer.statistics()["mapped"] == 1, (rows, arming)
        if arming["mode"] == "onward":
            faults.disarm()
    assert accelrt.ipc_collect() == 0
    faults.disarm()
    stream.synchronize()
    assert consumer.statistics()["mapped"] == 0
    seen = handle.open().numpy()
    assert (seen == 9).all(), (rows, arming, seen[seen != 9])
    assert accelrt.ipc_collect() == 0
    giving.let_go = type(giving).let_go.__get__(giving)
    return faults_hit


def count_looks(giving):
    looks, let_go = [], giving.let_go
    giving.let_go = lambda: (let_go(), looks.append(None))
    return looks


def sweep_ends(setting, rows, codes=CODES):
    faults, consumer = prepare_opener()

    owner = Other(ACCELRT_ALLOC_CONF=setting)
    array = owner.call(make, "made", MIB, 5)
    handle = owner.call(share_made)
    del array
    hit, before = set(), None
    for row in rows:
        for code in codes:
            for mode in ("once", "onward"):
                arming = {"call": 1, "mode": mode}
                if code in ALL_LOST and mode == "onward":
                    continue  # what is under way on a lost device never ends
                if end_while_working(faults, consumer, handle, [row], {"code": code, **arming}):
                    hit.add(row)
                counts = live_objects()
                left = [counts[kind] for kind in ("reservations", "physical")]
                before = before or left
                assert left == before, (row, code, arming)
    print(sorted(hit))
    owner.stop()


def test_work_under_way_keeps_its_memory_whatever_the_driver_answers():
    hit = in_child(sweep_ends, "expandable_segments:True", OF_ENDS[:-1], ACCELRT_DEBUG="0")
    for row in ("event_create", "event_record", "event_query", "capture_mode_exchange"):
        assert row in hit


def test_work_under_way_keeps_a_plain_segment_whatever_the_driver_answers():
    rows = ("event_record", "ipc_memory_close")
    assert "event_record" in in_child(sweep_ends, "expandable_segments:False", rows, ACCELRT_DEBUG="0")


@pytest.mark.full_sweep
@pytest.mark.parametrize("setting", ["True", "False"])
def test_work_under_way_keeps_its_memory_whatever_code_is_answered(setting):
    every = (*refusals_while_busy.CODES, *ALL_LOST)
    assert in_child(sweep_ends, f"expandable_segments:{setting}", OF_ENDS, every, ACCELRT_DEBUG="0")


def live_but_events():
    """What is alive on the host device; events wait for their next use, as many as were under way at once."""
    return {kind: count for kind, count in live_objects().items() if kind != "events"}


@in_own_process
def test_what_could_not_be_unmapped_is_unmapped_later():
    """Idle memory whose unmapping is refused is unmapped later, also where nothing refers to it any more."""
    faults, consumer = prepare_opener()

    owner = Other()
    array = owner.call(make, "made", MIB, 5)
    handle = owner.call(share_made)
    del array
    accelrt.ipc_collect()
    before = live_but_events()
    for row in ("memory_unmap", "address_free"):
        for code in (1, 2, 400, 600, 900, 999):
            for mode in ("once", "onward"):
                memory = handle.open()
                faults.arm(call=1, code=code, mode=mode, rows=[row])
                del memory
                wait_until(lambda: faults.fired() >= 1)
                if mode == "onward":
                    assert consumer._owners[handle._place.name].tally.late == 1, (row, code)
                    again = handle.open()  # beside the other one's end
                    assert (again.numpy() == 5).all()
                    faults.disarm()
                    del again
                assert accelrt.ipc_collect() == 0
                faults.disarm()
                assert live_but_events() == before, (row, code, mode)
            faults.arm(call=1, code=code, mode="once", rows=[row])
            mapping.reserve(0, 2 * MIB)  # nobody has it
            assert mapping.close_left() == (row == "memory_unmap" and 0)
            faults.disarm()
            assert mapping.close_left() == 0
            assert live_but_events() == before
    faults.arm(call=1, code=999, mode="once", rows=["physical_release"])
    assert (handle.open().numpy() == 5).all()
    assert faults.fired() >= 1
    faults.disarm()
    assert accelrt.ipc_collect() == 0
    wait_until(lambda: live_but_events() == before)
    owner.stop()


@in_own_process
def test_memory_goes_back_from_a_device_that_is_lost():
    faults, _ = prepare_opener()
    owner = Other()
    array = owner.call(make, "made", MIB, 5)
    faults.arm(call=1, code=LOST, mode="onward")
    del array
    assert accelrt.ipc_collect() == 0
    assert owner.call(statistics)["lent"] == 0
    owner.stop()
    os._exit(0)


@in_own_process(printing="")
def test_a_share_that_fails_late_leaves_nothing():
    """The owner's side: a share that fails leaves nothing, at whatever call, and the next one works."""
    faults = wrap_host()

    other = Other()
    stream = accelrt.Stream()
    accelrt.Event(interprocess=True).record(stream)
    for row in (*OF_SHARES, "ipc_event_export", "physical_export"):
        for code in CODES:
            array, gate = accelrt.full((5 * MIB,), 3, "int8"), threading.Event()
            accelrt.synchronize()
            stream.launch_host_func(gate.wait)
            array.fill_(4, stream=stream)
            faults.arm(call=1, code=code, rows=[row])
            refused = judge_share(array, stream, other)
            faults.disarm()
            assert accelrt.sharing.statistics()["handles"] == 0, (row, code, refused)
            with array.share(stream) as handle:
                other.tell(opened, handle)
                gate.set()
                assert (other.answer() == 4).all()
            del array
            wait_until(lambda: accelrt.sharing.statistics()["lent_bytes"] == 0)
            wait_until(lambda: accelrt.memory_allocated() == 0)
    other.stop()


def judge_share(array, stream, other):
    try:
        array.share(stream).close()
    except (accelrt.CudaError, RuntimeError) as error:
        return str(error)
    return ""
