"""Managed memory as objects: where it comes from and lies, what is counted of it, and what is refused."""

import gc
import re

import numpy as np
import pytest
from child import fail_each_call, in_child, in_own_process, wrap_host

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows, driver_name
from accelrt.testing import Gate

MIB = 1 << 20
MANAGED, CONCURRENT = 83, 89


def uses_beside_the_host():
    rows = Rows(driver_name())
    return all(rows.device_attribute(0, each) == (0, 1) for each in (MANAGED, CONCURRENT))


@pytest.fixture(autouse=True)
def _concurrent():
    accelrt.init()
    if not uses_beside_the_host():
        pytest.skip("the device uses no managed memory beside the host")


class Handed:
    """A producer that has one capsule to give."""

    def __init__(self, capsule, kind):
        self.capsule, self.kind = capsule, kind

    def __dlpack__(self, **arguments):
        return self.capsule

    def __dlpack_device__(self):
        return self.kind, 0


def host_view(buffer):
    """What the host sees, without a copy."""
    return np.from_dlpack(accelrt.Array(buffer, dtype="uint8"))


def test_a_managed_buffer_is_read_and_written_by_host_and_device():
    buffer = accelrt.Buffer(4 * MIB, managed=True)
    assert memory.is_managed(buffer)
    assert not memory.is_managed(accelrt.Buffer(MIB))
    buffer.fill(3)
    view = host_view(buffer)
    assert (view == 3).all()
    view = None
    gc.collect()
    other = accelrt.zeros(4 * MIB, dtype="uint8")
    other.copy_(accelrt.Array(buffer))
    assert (other.numpy() == 3).all()


def test_the_hosts_view_holds_the_memory():
    buffer = accelrt.Buffer(MIB, managed=True)
    view = host_view(buffer)
    with pytest.raises(BufferError):
        buffer.free()
    del view
    gc.collect()
    buffer.free()


@pytest.mark.parametrize("managed", [True, pytest.param(False, marks=pytest.mark.host)])
def test_what_numpy_sees_may_be_used_once_a_copy_that_does_not_block_returns(managed):
    stream = accelrt.Stream()
    buffer, other = accelrt.Buffer(MIB, managed=managed), accelrt.Buffer(MIB, stream=stream)
    ahead = accelrt.Buffer(64 * MIB, stream=stream)  # fills of it keep the stream busy
    buffer.fill(2, blocking=True)
    view = host_view(buffer)
    for _ in range(4):
        ahead.fill(1)
    other.copy_from(view, stream=stream, blocking=False)
    view[:] = 9
    assert (accelrt.Array(other, dtype="uint8").numpy() == 2).all()
    for _ in range(4):
        ahead.fill(1)
    other.copy_to(view, stream=stream, blocking=False)
    assert (view == 2).all()


def test_a_captured_copy_reads_what_numpy_sees_as_it_is_at_each_replay():
    buffer, other = accelrt.Buffer(MIB, managed=True), accelrt.Buffer(MIB)
    graph, stream = accelrt.CUDAGraph(), accelrt.Stream()
    view = host_view(buffer)
    with accelrt.graph(graph, stream=stream):
        other.copy_from(view, blocking=False)
    for value in (3, 4):
        view[:] = value
        graph.replay()
        assert (accelrt.Array(other, dtype="uint8").numpy() == value).all()
    graph.reset()


def test_dlpack_says_what_it_is():
    buffer = accelrt.Buffer(MIB, managed=True)
    kind = 1 if driver_name() == "host" else 13  # kDLCPU, kDLCUDAManaged
    assert accelrt.Array(buffer).__dlpack_device__() == (kind, 0)
    capsule = accelrt.Array(buffer).__dlpack__(stream=-1, max_version=(1, 0))
    assert accelrt.from_dlpack(Handed(capsule, kind)).ptr == buffer.ptr


@pytest.mark.gpu
def test_dlpack_may_call_it_a_devices():
    array = accelrt.Array(accelrt.Buffer(MIB, managed=True))
    capsule = array.__dlpack__(stream=-1, max_version=(1, 0), dl_device=(2, 0))
    assert accelrt.from_dlpack(Handed(capsule, 2)).ptr == array.ptr
    with pytest.raises(BufferError):
        accelrt.empty(8).__dlpack__(max_version=(1, 0), dl_device=(13, 0))


def test_figures_count_it_apart():
    before = accelrt.memory_stats()
    buffer = accelrt.Buffer(24 * MIB, managed=True)
    stats = accelrt.memory_stats()
    assert stats["managed_bytes"] - before.get("managed_bytes", 0) >= 24 * MIB
    assert stats["allocated_bytes.all.current"] - before.get("allocated_bytes.all.current", 0) == 24 * MIB
    assert stats["managed_bytes"] <= stats["reserved_bytes.all.current"]
    assert memory.memory_stat("managed_bytes") == stats["managed_bytes"]
    del buffer
    accelrt.empty_cache()
    assert accelrt.memory_stats()["managed_bytes"] == 0


def test_snapshots_reports_and_files_say_which_memory_is_managed(tmp_path):
    pool = accelrt.MemPool(managed=True)
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(MIB)
    other = accelrt.Buffer(MIB)
    managed = {each["segment_pool_id"]: each["managed"] for each in accelrt.memory_snapshot()}
    assert managed == {pool.id: True, (0, 0): False}
    for name in ("held.accelrt", "held.pickle"):
        memory.dump_snapshot(tmp_path / name)
        segments = memory.load_snapshot(tmp_path / name)["segments"]
        assert {each["segment_pool_id"]: each["managed"] for each in segments} == managed
    data = memory.report_data()
    assert data["managed"] == pool.stats()["reserved_bytes.current"]
    pools = {each["id"]: each["managed"] for each in data["pools"]}  # and those that other tests keep
    assert {pool: pools[pool] for pool in managed} == managed
    assert str(memory.report()).count("managed") == 2
    assert buffer.nbytes == other.nbytes


def test_the_processs_limit_does_not_count_it():
    total = accelrt.mem_get_info()[1]
    accelrt.set_per_process_memory_fraction(8 * MIB / total)
    try:
        held = accelrt.Buffer(32 * MIB, managed=True)
        ordinary = accelrt.Buffer(2 * MIB)
        with pytest.raises(accelrt.OutOfMemoryError) as caught:
            accelrt.Buffer(32 * MIB)
        assert caught.value.refused_by == "limit"
        assert caught.value.managed >= 32 * MIB
        assert "is managed, and leaves the device where others need room" in str(caught.value)
        del held, ordinary
    finally:
        accelrt.set_per_process_memory_fraction(1.0)


def test_a_pools_own_limit_counts_it():
    pool = accelrt.MemPool(managed=True, limit=32 * MIB)
    assert pool.managed
    assert "managed" in repr(pool)
    with accelrt.use_mem_pool(pool):
        first = accelrt.Buffer(20 * MIB)
        assert memory.is_managed(first)
        with pytest.raises(accelrt.OutOfMemoryError) as caught:
            accelrt.Buffer(20 * MIB, managed=True)
    assert caught.value.refused_by == "pool"
    assert pool.stats()["reserved_bytes.current"] <= 32 * MIB
    assert not accelrt.MemPool().managed


def test_a_managed_buffer_comes_from_the_managed_pool_that_the_thread_is_in():
    pool = accelrt.MemPool(managed=True)
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(MIB, managed=True)
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    assert pool.stats()["allocated_bytes.current"] == MIB
    with accelrt.use_mem_pool(accelrt.MemPool()):
        other = accelrt.Buffer(MIB, managed=True)
    assert memory.is_managed(other)
    assert pool.stats()["allocated_bytes.current"] == MIB
    del buffer


def test_arrays_of_a_managed_pool_are_managed():
    with accelrt.use_mem_pool(accelrt.MemPool(managed=True)):
        array = accelrt.full((4, 256), 2, dtype="float32")
    assert memory.is_managed(array)
    assert (np.from_dlpack(array) == 2).all()


def test_memory_comes_back_from_the_cache():
    addresses = set()
    for _ in range(5):
        buffer = accelrt.Buffer(8 * MIB, managed=True)
        addresses.add(buffer.ptr)
        buffer.free()
    assert len(addresses) == 1
    assert accelrt.memory_stats()["allocated_bytes.all.current"] == 0


def test_advice_stays_with_memory_that_comes_from_the_cache_until_it_is_taken_back():
    def advised(unset):
        buffer = accelrt.Buffer(1 << 20, managed=True)
        told = memory.managed_attributes(buffer).read_mostly
        memory.advise(buffer, "read_mostly", unset=unset)
        return told

    assert [advised(unset) for unset in (False, True, False)] == [False, True, False]
    accelrt.empty_cache()
    assert not advised(True)


def test_prefetches_and_advice_are_told():
    buffer = accelrt.Buffer(4 * MIB, managed=True)
    assert memory.managed_attributes(buffer) == (False, None, (), None)
    memory.prefetch(buffer)
    assert memory.managed_attributes(buffer).last_prefetch_location == accelrt.device(0)
    memory.prefetch(buffer[: 2 * MIB], "cpu")
    assert memory.managed_attributes(buffer).last_prefetch_location is None
    assert memory.managed_attributes(buffer[: 2 * MIB]).last_prefetch_location == "cpu"
    if accelrt.device_count() > 1:
        memory.prefetch([buffer[: 2 * MIB], buffer[2 * MIB :]], [0, 1])
        memory.advise(buffer[: 2 * MIB], "preferred_location", 0)
        memory.advise(buffer[2 * MIB :], "preferred_location", 1)
        assert memory.managed_attributes(buffer) == (False, None, (), None)
        memory.advise(buffer, "preferred_location", unset=True)
    memory.advise(buffer, "read_mostly")
    memory.advise(buffer, "preferred_location", "cpu")
    memory.advise(buffer, "accessed_by", 0)
    told = memory.managed_attributes(buffer)
    assert told.read_mostly is True
    assert told.preferred_location == "cpu"
    assert told.accessed_by == (accelrt.device(0),)
    memory.advise(buffer, "preferred_location")
    assert memory.managed_attributes(buffer).preferred_location == accelrt.device(0)
    for advice in ("read_mostly", "preferred_location", "accessed_by"):
        memory.advise(buffer, advice, unset=True)
    assert memory.managed_attributes(buffer)[:3] == (False, None, ())


def test_several_pieces_go_by_one_call():
    buffers = [accelrt.Buffer(2 * MIB, managed=True) for _ in range(4)]
    memory.prefetch(buffers, ["cpu", 0, "cpu", 0], stream=accelrt.Stream())
    places = [memory.managed_attributes(buffer).last_prefetch_location for buffer in buffers]
    assert places == ["cpu", accelrt.device(0), "cpu", accelrt.device(0)]
    memory.prefetch(buffers, "cpu")
    assert {str(memory.managed_attributes(buffer).last_prefetch_location) for buffer in buffers} == {"cpu"}
    memory.prefetch([])
    with pytest.raises(ValueError, match="4 pieces of memory have 2 locations"):
        memory.prefetch(buffers, [0, 0])


@pytest.mark.parametrize("on", ["default", "side"])
def test_discarded_memory_is_written_again(on):
    stream = accelrt.Stream() if on == "side" else accelrt.default_stream()
    buffer = accelrt.Buffer(4 * MIB, stream=stream, managed=True)
    buffer.fill(1, stream=stream)
    memory.discard(buffer, stream=stream)
    memory.discard(buffer, 0, prefetch=True, stream=stream)
    buffer.fill(7, stream=stream)
    assert (host_view(buffer) == 7).all()
    assert memory.managed_attributes(buffer).last_prefetch_location == accelrt.device(0)


def test_moves_on_another_stream_hold_the_memory_back():
    buffer = accelrt.Buffer(4 * MIB, managed=True)
    side = accelrt.Stream()
    memory.prefetch(buffer, 0, stream=side)
    address = buffer.ptr
    buffer.free()
    side.synchronize()
    again = accelrt.Buffer(4 * MIB, managed=True)
    assert again.ptr == address


@pytest.mark.host
@in_own_process
def test_a_refused_move_holds_the_memory_back_too():
    """The driver may have put some of its ranges into the stream before it refused one."""
    faults, buffer, side = wrap_host(), accelrt.Buffer(4 * MIB, managed=True), accelrt.Stream()
    address = buffer.ptr
    with Gate(side):
        faults.arm(call=1, code=UNKNOWN, mode="once", rows=["managed_prefetch"])
        with pytest.raises(accelrt.CudaError):
            memory.prefetch(buffer, stream=side)
        buffer.free()
        assert memory.address_info(address).state == "active_pending_free"
    side.synchronize()


@pytest.mark.host
@in_own_process
def test_what_follows_a_refused_discard_in_the_default_stream_is_behind_it():
    """It goes by a stream in between, in which the driver may have put some of its ranges."""
    faults, buffer = wrap_host(), accelrt.Buffer(4 * MIB, managed=True)
    memory.discard(buffer)
    faults.reset_call_counts()
    faults.arm(call=1, code=UNKNOWN, mode="once", rows=["managed_discard"])
    with pytest.raises(accelrt.CudaError):
        memory.discard(buffer)
    assert faults.call_counts()["stream_wait_event"] == 2


REFUSALS = [
    (lambda b: memory.prefetch(accelrt.Buffer(MIB)), ValueError, "is not managed"),
    (lambda b: memory.advise(accelrt.empty(8), "read_mostly"), ValueError, "is not managed"),
    (lambda b: memory.prefetch(np.zeros(8)), TypeError, "is host memory"),
    (lambda b: memory.prefetch(accelrt.PinnedBuffer(64)), TypeError, "is host memory"),
    (lambda b: memory.prefetch(b, "cpu:"), ValueError, "is not understood"),
    (lambda b: memory.prefetch(b, 99), ValueError, "does not exist"),
    (lambda b: memory.prefetch(b, "cpu:9999999999"), ValueError, "NUMA node"),
    (lambda b: memory.discard(b, 0), ValueError, "pass prefetch=True too"),
    (lambda b: memory.advise(b, "often"), ValueError, "'accessed_by'"),
    (lambda b: memory.advise(b, "read_mostly", 0), ValueError, "holds for every device"),
    (lambda b: memory.managed_attributes([b, b]), ValueError, "one piece"),
    (lambda b: memory.managed_attributes(b[:0]), ValueError, "one piece"),
    (lambda b: accelrt.MemPool(prefetch=True), ValueError, "managed=True"),
    (lambda b: accelrt.MemPool(headroom=0), ValueError, "managed=True"),
    (lambda b: accelrt.MemPool(managed=True, headroom=-1), ValueError, "headroom is -1"),
    (lambda b: accelrt.MemPool(managed=True, headroom=1.5), TypeError, "headroom"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSALS)
def test_what_is_refused(call, error, text):
    buffer = accelrt.Buffer(MIB, managed=True)
    with pytest.raises(error, match=re.escape(text)):
        call(buffer)


def test_freed_memory_is_refused():
    buffer = accelrt.Buffer(MIB, managed=True)
    buffer.free()
    for call in (memory.prefetch, memory.discard, memory.managed_attributes, memory.is_managed):
        with pytest.raises(ValueError, match="was freed"):
            call(buffer)


def test_a_capture_is_told_what_it_cannot_take():
    buffer = accelrt.Buffer(MIB, managed=True)
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()

    def capture():
        with accelrt.graph(graph, stream=stream):
            memory.prefetch(buffer, stream=stream)

    with pytest.raises(accelrt.CaptureError, match="takes no move of managed memory"):
        capture()


def test_managed_memory_neither_sleeps_nor_is_shared():
    pool = accelrt.MemPool(managed=True)
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(MIB)
    with pytest.raises(accelrt.NotSupportedError, match=r"plain segments.*managed memory leaves the device"):
        pool.sleep()
    with pytest.raises(accelrt.NotSupportedError, match="managed"):
        buffer.share()


# What the host device counts of where it lies.


def free_bytes(device=0):
    return accelrt.mem_get_info(device)[0]


@pytest.mark.host
def test_a_pool_may_prefetch_its_segments():
    accelrt.empty_cache()
    before = free_bytes()
    with accelrt.use_mem_pool(accelrt.MemPool(managed=True)):
        there = accelrt.Buffer(32 * MIB)
        accelrt.synchronize()
        assert free_bytes() == before
    with accelrt.use_mem_pool(accelrt.MemPool(managed=True, prefetch=True)):
        here = accelrt.Buffer(32 * MIB)
        accelrt.synchronize()
        assert free_bytes() == before - 32 * MIB
        assert memory.managed_attributes(here).last_prefetch_location == accelrt.device(0)
    assert there.nbytes


@pytest.mark.host
def test_headroom_is_left_free():
    accelrt.empty_cache()
    before = free_bytes()
    pool = accelrt.MemPool(managed=True, prefetch=True, headroom=before - 24 * MIB)
    with accelrt.use_mem_pool(pool):
        first = accelrt.Buffer(20 * MIB)
        accelrt.synchronize()  # what is on its way is not there yet
        second = accelrt.Buffer(20 * MIB)
        accelrt.synchronize()
    assert before - free_bytes() == 24 * MIB
    assert memory.managed_attributes(first).preferred_location == accelrt.device(0)
    assert memory.managed_attributes(second).preferred_location is None  # two
    assert memory.managed_attributes(second[4 * MIB :]).preferred_location == "cpu"
    assert memory.managed_attributes(second[4 * MIB :]).accessed_by == (accelrt.device(0),)
    assert memory.managed_attributes(second[: 4 * MIB]).preferred_location == accelrt.device(0)


def more_than_the_device_has():
    total = accelrt.mem_get_info()[1]
    with accelrt.use_mem_pool(accelrt.MemPool(managed=True)):
        large = accelrt.Buffer(2 * total)
    memory.prefetch(large)
    accelrt.synchronize()
    assert accelrt.mem_get_info()[0] < 2 * MIB
    ordinary = accelrt.Buffer(total // 2)  # what is managed makes room, although nothing looks free
    ordinary.fill(1)
    large.fill(2)
    accelrt.synchronize()
    stats = accelrt.memory_stats()
    assert stats["managed_bytes"] >= 2 * total
    assert stats["num_ooms"] == 0
    memory.audit()


@pytest.mark.host
def test_there_may_be_more_of_it_than_the_device_has():
    in_child(more_than_the_device_has, ACCELRT_HOST_MEMORY="512MiB")


# Calls of the driver that fail.

OUT_OF_MEMORY, UNKNOWN = 2, 999


def everything(shared):
    """All that managed memory, and page-locked memory that others may have, do with a driver."""
    stream = accelrt.Stream()
    with accelrt.use_mem_pool(accelrt.MemPool(managed=True, prefetch=True, headroom=MIB)):
        buffer = accelrt.Buffer(4 * MIB, stream=stream)
    other = accelrt.Buffer(MIB, managed=True)
    memory.prefetch([buffer, other], "cpu", stream=stream)
    memory.discard(other)
    memory.advise([buffer, other], "read_mostly")
    assert memory.managed_attributes(buffer).read_mostly
    pinned = accelrt.PinnedBuffer(MIB, shared=shared)
    buffer.copy_from(pinned, stream=stream, blocking=False)
    if shared:
        handle = pinned.share()
        pinned = handle.open()
        buffer.copy_to(pinned, MIB, stream=stream, blocking=False)
    stream.synchronize()
    del buffer, other, pinned
    accelrt.synchronize()


def settled():
    from accelrt.driver.host import driver as host

    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    memory.audit()
    memory.host_audit()
    assert accelrt.memory_reserved() == accelrt.host_memory_stats()["allocated_bytes.current"] == 0
    assert accelrt.memory_stats()["managed_bytes"] == 0
    return host.live_objects()


@pytest.mark.host
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", ["once", "onward"])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
@in_own_process(printing="")
def test_every_call_may_fail(mode, code, shared):
    import accelrt.sharing  # noqa: F401  its threads start before

    wrap_host()
    fail_each_call(lambda: everything(shared), settled, code, mode)
