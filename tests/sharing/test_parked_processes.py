"""One of two processes is parked at each call of its driver in turn; the other goes on, or it dies there."""

import gc
import threading

import pytest
from child import in_own_process, wrap_host
from other_process import Other, opened, statistics
from waiting import wait_until

import accelrt
import accelrt.sharing

pytestmark = pytest.mark.host
MIB = 1 << 20
SECONDS = 300
SHORT = 0.2


def use_faults(kept):
    kept["faults"] = wrap_host()

    accelrt.full((8,), 1, "int8").share().close()


def share_new(kept, value):
    kept["made"] = accelrt.full((3 * MIB // 4,), value, "int32")
    kept["handle"] = kept["made"].share()
    return kept["handle"]


def open_and_end(handle):
    memory = handle.open()
    memory.fill_(6)
    seen = memory.numpy()
    del memory
    gc.collect()
    assert accelrt.ipc_collect() == 0
    return seen


def trace(kept, handle):
    """The calls of opening, using and giving back: each row and which of its calls, where one can park."""
    open_and_end(handle)
    kept["faults"].begin_trace()
    open_and_end(handle)
    kept["faults"].end_trace()
    calls = kept["faults"].traced_calls()
    held = {row for row, holds_gil in calls if holds_gil}
    rows = [row for row, _ in calls if row not in held]
    return sorted({(row, rows[: index + 1].count(row)) for index, row in enumerate(rows)})


def start_parked(kept, handle, row, number, when):
    """Opens in a thread, which is parked; where it stands, or None where it did not come there."""

    def run():
        try:
            kept["seen"] = open_and_end(handle)
        except Exception as error:
            kept["seen"] = error

    kept["faults"].park(row, number, when, None, SECONDS)
    kept["thread"] = threading.Thread(target=run)
    kept["thread"].start()
    while True:
        alive = kept["thread"].is_alive()
        place = kept["faults"].await_parked(0.05)
        if place is not None or not alive:
            return place


def go_on(kept):
    kept["faults"].go_on()
    kept["thread"].join(SECONDS)
    assert not kept["thread"].is_alive()
    seen = kept.pop("seen")
    return str(seen) if isinstance(seen, Exception) else seen.tolist()[0]


def judge(owner_told, seen, row):
    assert seen in (5, 6) or "has closed the handle" in str(seen), (row, seen)
    assert owner_told["lent"] == 0, (row, owner_told)


@in_own_process(ACCELRT_DEBUG="0")
def test_an_opener_that_is_parked_anywhere_holds_up_nobody():
    """An opener is parked at each of its calls; the owner closes the handle, and serves another opener."""
    opener, another = Other(), Other()
    opener.call(use_faults)
    array = accelrt.full((3 * MIB // 4,), 5, "int32")
    with array.share() as handle:
        points = opener.call(trace, handle)
    parked = 0
    for row, number in points:
        handle = array.share()
        parked += opener.call(start_parked, handle, row, number, "after") is not None
        with array.share() as second:
            assert another.call(opened, second)[0] in (5, 6)
        handle.close()
        seen = opener.call(go_on)
        wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)
        judge(accelrt.sharing.statistics(), seen, (row, number))
        assert opener.call(statistics)["opened"] == 0
    assert parked > len(points) // 2, (parked, points)
    for process in (opener, another):
        process.stop()
    assert len(points) >= parked > 8


@pytest.mark.parametrize("row", ["physical_import", "memory_access", "event_record", "memory_unmap"])
def test_an_opener_that_dies_where_it_is_parked_leaves_nothing(row):
    opener = Other()
    opener.call(use_faults)
    array = accelrt.full((3 * MIB // 4,), 5, "int32")
    with array.share() as handle:
        assert opener.call(start_parked, handle, row, 1, "after") == row
        opener.kill()
    wait_until(lambda: accelrt.sharing.statistics()["lent"] == 0)


def park_in_lender(kept, row, when):
    """The next call of a row by any thread of this process's: while it hands memory out."""
    kept["faults"].park(row, 1, when, None, SECONDS)


def release(kept):
    return kept["faults"].go_on()


@pytest.mark.parametrize("row", ["physical_export", "ipc_event_export"])
def test_an_owner_that_is_parked_is_waited_for_until_the_limit(row):
    owner, other = Other(), Other()
    owner.call(use_faults)
    handle, fine = owner.call(share_new, 5), other.call(share_new, 7)
    owner.call(park_in_lender, row, "after")
    with pytest.raises(accelrt.PeerTimeoutError, match=rf"process {owner.process.pid} "):
        handle.open(timeout=SHORT)
    assert (fine.open().numpy() == 7).all()  # another owner's
    assert owner.call(release)
    assert (handle.open().numpy() == 5).all()
    assert accelrt.ipc_collect() == 0
    wait_until(lambda: owner.call(statistics)["lent"] == 0)
    for process in (owner, other):
        process.stop()


@pytest.mark.parametrize("row", ["physical_export", "ipc_event_export"])
def test_an_owner_that_dies_where_it_is_parked_is_gone(row):
    owner = Other()
    owner.call(use_faults)
    handle = owner.call(share_new, 5)
    owner.call(park_in_lender, row, "before")
    met = []
    thread = threading.Thread(target=open_gone, args=(handle, met))
    thread.start()
    wait_until(lambda: owner.call(is_parked))
    owner.kill()
    thread.join(SECONDS)
    assert "that process is gone" in str(met[0])
    assert accelrt.ipc_collect() == 0
    assert accelrt.sharing.statistics()["mapped"] == 0


def is_parked(kept):
    return kept["faults"].await_parked(0.05) is not None


def open_gone(handle, met):
    try:
        handle.open(timeout=SECONDS)
    except RuntimeError as error:
        met.append(error)
