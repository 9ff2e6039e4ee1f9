"""Memory of the driver's pools in histories, figures, reports and refusals."""

import gc
import os

import pytest
from beside import park
from child import in_fork, in_own_process
from other_process import Other

import accelrt
from accelrt import memory, resources, testing
from accelrt.memory.history.recording import event_range
from accelrt.tools.viewer.html_page import make_page
from accelrt.tools.viewer.snapshot_columns import Recording

MIB = 1 << 20
KINDS = {"device": {"ipc_enabled": True}, "managed": {"managed": True}}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def pool(kind):
    try:
        pool = memory.DriverPool(**KINDS[kind])
        pool.used_mem_current  # noqa: B018
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no such pool")
    return pool


@pytest.fixture
def recorded():
    memory.record_history(clear_history=True)
    yield
    memory.record_history(None)


def pool_events():
    events = [each for device in memory.snapshot()["accelrt"]["events"] for each in device]
    return [each for each in events if each["action"].startswith("pool_")]


def test_allocations_and_frees_are_in_the_devices_history(recorded, pool):
    def make_pool_memory():
        return pool.allocate(3 * MIB, stream)

    stream = accelrt.Stream()
    with memory.tag("staging"):
        held = make_pool_memory()
    address = held.ptr
    held.free()
    held.free()
    came, went = pool_events()
    assert [came["action"], went["action"]] == ["pool_alloc", "pool_free"]
    for event in (came, went):
        assert (event["addr"], event["size"], event["tag"]) == (address, 3 * MIB, "staging")
        assert event["stream"] == stream.handle
        names = [frame["name"] for frame in event["frames"]]
        assert "test_allocations_and_frees_are_in_the_devices_history" in names
    assert "make_pool_memory" in [frame["name"] for frame in came["frames"]]
    address = pool.allocate(MIB).ptr  # freed as it dies
    gc.collect()
    assert [each["action"] for each in pool_events() if each["addr"] == address][-2:] == [
        "pool_alloc",
        "pool_free",
    ]
    assert not any(each["action"].startswith("pool_") for each in memory.snapshot()["device_traces"][0])


def test_the_viewer_shows_it_as_live_memory(recorded, pool):
    held = pool.allocate(3 * MIB)
    pool.allocate(MIB).free()
    snapshot = memory.snapshot()
    (device,) = Recording(snapshot).devices
    assert device.live()[-1] == 3 * MIB
    assert device.live().max() == 4 * MIB
    assert device.alloc_address[device.live_at(device.count - 1)].tolist() == [held.ptr]
    assert device.reserved[-1] == memory.memory_reserved()
    assert make_page(snapshot, "pools")
    held.free()


def test_figures_and_reports_tell_it_beside_what_is_reserved(kind, pool):
    before, reserved = memory.memory_stats(), memory.memory_reserved()
    held = pool.allocate(3 * MIB)
    stats, data = memory.memory_stats(), memory.report_data()
    assert stats["driver_pool_bytes"] - before.get("driver_pool_bytes", 0) == 3 * MIB
    assert data["driver_pools"][kind] == 3 * MIB
    assert data["reserved"] == reserved
    assert f"  DriverPools, {kind}" in memory.report()
    held.free()
    assert memory.memory_stats()["driver_pool_bytes"] == before.get("driver_pool_bytes", 0)
    assert "DriverPools" not in memory.report()


@pytest.mark.host
def test_a_refusal_tells_it_and_counts_nothing_twice(kind, pool):
    total = accelrt.get_device_properties(0).total_memory
    held = pool.allocate(total // 4)
    with pytest.raises(accelrt.OutOfMemoryError, match=r"DriverPools gave .* beside it") as told:
        accelrt.Buffer(total + total // 4)
    assert told.value.state["driver_pools"][kind] == total // 4
    if kind == "device":
        assert told.value.used_by_others == 0
    held.free()


def test_page_locked_memory_is_told_by_reports(recorded):
    try:
        held = memory.DriverPool(pinned=True, numa_node=0).allocate(3 * MIB)
    except (accelrt.NotSupportedError, accelrt.CudaError):
        pytest.skip("the driver makes no pools of page-locked memory")
    assert memory.report_data()["driver_pools"]["pinned"] == 3 * MIB
    assert "DriverPools, beside it" in memory.report()
    assert pool_events() == []
    held.free()


@pytest.mark.host
@in_own_process(printing="told\n")
def test_a_refusal_of_page_locked_memory_tells_it():
    testing.use_device()
    held = memory.DriverPool(pinned=True, numa_node=0).allocate(3 * MIB)
    with (
        testing.failing(rows=["host_alloc"], code=2, mode="onward"),
        pytest.raises(accelrt.OutOfMemoryError) as told,
    ):
        accelrt.PinnedBuffer(64 * MIB)
    assert "DriverPools gave 3.00 MiB beside it" in str(told.value)
    held.free()
    print("told")


@pytest.mark.host
@in_own_process(printing="told\n")
def test_a_free_is_told_before_another_thread_may_have_the_address():
    testing.use_device()
    memory.record_history()
    pool = memory.DriverPool(managed=True)
    held = pool.allocate(MIB)
    caller = park("managed_pool_free", held.free)
    assert [each["action"] for each in pool_events()] == ["pool_alloc", "pool_free"]
    testing.go_on()
    caller.result()
    print("told")


@pytest.mark.host
@in_own_process(printing="told\n")
def test_a_free_that_is_refused_leaves_memory_allocated():
    testing.use_device()
    memory.record_history()
    pool = memory.DriverPool(managed=True)
    held = pool.allocate(MIB)
    with testing.failing(rows=["managed_pool_free"]), pytest.raises(accelrt.CudaError):
        held.free()
    assert [each["action"] for each in pool_events()] == ["pool_alloc", "pool_free", "pool_alloc"]
    assert memory.memory_stats()["driver_pool_bytes"] == MIB
    held.free()
    assert memory.memory_stats()["driver_pool_bytes"] == 0
    print("told")


@pytest.mark.host
@in_own_process(printing="told\n")
def test_the_first_memory_of_a_device_is_recorded_and_a_forked_child_has_none():
    testing.use_device()
    memory.record_history(record_pinned_host_memory=True)
    kept = [memory.DriverPool(managed=True).allocate(MIB), memory.DriverPool(pinned=True).allocate(MIB)]
    assert [each["action"] for each in pool_events()] == ["pool_alloc"]

    def child():
        before = event_range(-1)
        kept.clear()
        gc.collect()
        assert event_range(-1) == before

    in_fork(child)
    kept.clear()
    print("told")


@pytest.mark.host
@in_own_process(printing="told\n")
def test_a_free_makes_no_allocator_for_the_history():
    testing.use_device()
    held = memory.DriverPool(managed=True).allocate(MIB)
    memory.record_history()
    held.free()
    assert memory.memory_snapshot() == []
    assert event_range(0) == (0, 0)
    print("told")


def test_memory_of_another_process_is_in_no_figure_of_this_one():
    try:
        pool = memory.DriverPool(ipc_enabled=True)
    except accelrt.NotSupportedError:
        pytest.skip("the driver makes no pools that leave the process")
    theirs, held = Other(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"]), pool.allocate(MIB)
    assert theirs.call(figures_of_opened, pool.allocation_handle, held.ipc_descriptor) == (0, [])
    theirs.stop()


def figures_of_opened(kept, handle, descriptor):
    memory.record_history()
    pool = memory.DriverPool.from_allocation_handle(handle)
    with memory.DriverMemory.from_ipc_descriptor(pool, descriptor):
        held = memory.report_data()["driver_pools"]["device"]
    return held, pool_events()


# --- marks, leaks, and memory of resources ------------------------------------------------------------------


def resource_of(kind):
    return resources.DriverPoolResource(pool=memory.DriverPool(**KINDS[kind]))


def test_a_mark_tells_what_came_since_with_its_stack_and_tag(recorded, kind, pool):
    def make_pool_memory():
        return pool.allocate(3 * MIB)

    gone = pool.allocate(MIB)
    moment = memory.mark()
    with memory.tag("staging"):
        held = make_pool_memory()
    gone.free()
    data = memory.report_data(since=moment)
    assert data["driver_pools"][kind] == (MIB, 3 * MIB)
    assert data["live"][0] == data["live"][1]
    assert data["live_blocks"][0] == data["live_blocks"][1]
    assert ("staging", 3 * MIB, 1) in data["tags"]
    assert (data["new_blocks"], data["gone_blocks"]) == (1, 1)
    (block,) = data["blocks"]
    assert (block["address"], block["kind"]) == (held.ptr, kind)
    assert "make_pool_memory" in [frame["name"] for frame in block["frames"]]
    text = memory.report(since=moment)
    assert f"  DriverPools, {kind}" in text
    assert f"3.00 MiB at {held.ptr:#x}, the default stream, {kind} memory of a driver's pool, tag" in text
    held.free()


def test_reports_and_the_summary_list_it(recorded, kind, pool):
    held = [pool.allocate(size * MIB) for size in (1, 3)]
    blocks = memory.report_data()["driver_pool_blocks"]
    assert [block["address"] for block in blocks] == [held[1].ptr, held[0].ptr]
    assert memory.report_data(top=1)["driver_pool_blocks"] == blocks[:1]
    assert "Largest blocks of DriverPools\n  3.00 MiB at " in memory.report()
    assert "| DriverPools           |   4096 KiB   beside the reserved memory " in memory.memory_summary()
    held.clear()
    gc.collect()
    assert "DriverPools" not in memory.memory_summary()


def test_memory_of_a_resource_is_told_as_a_pools_is(recorded, kind, pool):
    resource, moment = resource_of(kind), memory.mark()
    address = resource.allocate(MIB)
    data = memory.report_data(since=moment)
    assert [block["address"] for block in data["blocks"]] == [address]
    assert data["driver_pools"][kind][1] - data["driver_pools"][kind][0] == MIB
    resource.deallocate(address, MIB)
    assert memory.report_data(since=moment)["new_blocks"] == 0
    came, went = pool_events()
    assert [came["action"], went["action"]] == ["pool_alloc", "pool_free"]
    assert came["addr"] == went["addr"] == address


@pytest.mark.host
@in_own_process(printing="told\n")
def test_memory_that_a_resource_could_not_give_back_stays_told():
    testing.use_device()
    resource = resources.DriverPoolResource(managed=True)
    address = resource.allocate(MIB)
    with testing.failing(rows=["managed_pool_free"]), pytest.raises(accelrt.CudaError):
        resource.deallocate(address, MIB)
    assert [block["address"] for block in memory.report_data()["driver_pool_blocks"]] == [address]
    resource.deallocate(address, MIB)
    assert memory.report_data()["driver_pool_blocks"] == []
    print("told")


def test_a_leak_check_finds_it(pool):
    kept = []
    with (
        pytest.raises(testing.LeakError, match="memory of a driver's pool") as told,
        testing.check_leaks(),
    ):
        kept.append(pool.allocate(MIB))
    assert [block["size"] for block in told.value.blocks] == [MIB]
    assert "DriverMemory, held by a list" in str(told.value)
    kept.clear()
