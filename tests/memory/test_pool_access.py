"""Which devices may use a MemPool's memory, and what an address is."""

import gc

import numpy as np
import pytest
from child import in_own_process

import accelrt
from accelrt import memory


def open_to(address):
    """The devices that may use a page, on the host device; None elsewhere."""
    if accelrt.current_device() is None:
        return None
    from accelrt.driver.host import driver as host

    return host.opened_to(address)


@pytest.fixture
def pool():
    made = accelrt.MemPool(device=0)
    yield made
    gc.collect()
    made.empty_cache()


def allocated(pool, nbytes=1 << 20):
    with accelrt.use_mem_pool(pool, 0):
        return accelrt.Buffer(nbytes, device=0)


def reach():
    if accelrt.device_count() < 2 or not accelrt.can_device_access_peer(1, 0):
        pytest.skip("takes two devices that reach each other")


def test_a_pool_is_granted_and_revoked(pool):
    reach()
    first = allocated(pool)
    common = accelrt.Buffer(1 << 20, device=0)
    assert pool.peer_access == {}
    pool.grant_access(1, "r")
    assert pool.peer_access == {1: "r"}
    pool.grant_access("host:1" if first.device.type == "host" else "cuda:1")
    assert pool.peer_access == {1: "rw"}
    second = allocated(pool, 64 << 20)  # new pages are open as well
    if first.device.type == "host":
        assert [open_to(each.ptr) for each in (first, second, common)] == [[0, 1], [0, 1], [0]]
    pool.revoke_access(1)
    assert pool.peer_access == {}
    if first.device.type == "host":
        assert [open_to(each.ptr) for each in (first, second)] == [[0], [0]]
    pool.revoke_access(1)


def test_a_pool_that_slept_is_open_to_whom_it_was(pool):
    reach()
    buffer = allocated(pool)
    pool.grant_access(1)
    pool.sleep()
    assert pool.peer_access == {1: "rw"}
    pool.wake()
    if buffer.device.type == "host":
        assert open_to(buffer.ptr) == [0, 1]


def test_what_cannot_be_granted_is_refused(pool):
    with pytest.raises(ValueError, match="access is 'x'"):
        pool.grant_access(1, "x")
    with pytest.raises(ValueError, match="whose own pool"):
        pool.grant_access(0)
    with pytest.raises(accelrt.InvalidDeviceError):
        pool.grant_access(99)
    reach()
    whole = accelrt.MemPool(no_split=True, device=0)
    with pytest.raises(accelrt.NotSupportedError, match="plain segments"):
        whole.grant_access(1)
    assert whole.peer_access == {}


@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_what_is_open_to_all_stays_open():
    pool = accelrt.MemPool(device=0)
    buffer = allocated(pool)
    other = accelrt.Buffer(1 << 20, device=1)
    memory.enable_peer_access()
    assert pool.peer_access == {1: "rw"}
    pool.grant_access(1, "r")
    pool.revoke_access(1)
    assert (pool.peer_access, open_to(buffer.ptr)) == ({1: "rw"}, [0, 1])
    del other


def test_an_address_in_a_block_is_told_with_its_stack_and_tag():
    memory.record_history("all")
    try:
        with memory.tag("cache"):
            buffer = accelrt.Buffer(10_000)
        info = memory.address_info(buffer.ptr + 777)
        assert (info.kind, info.device, info.start) == ("device", buffer.device_index, buffer.ptr)
        assert info.start <= info.address < info.start + info.nbytes
        assert (info.block["requested_size"], info.block["tag"], info.state) == (
            10_000,
            "cache",
            "active_allocated",
        )
        assert any("test_pool_access" in frame["filename"] for frame in info.block["frames"])
        assert info.segment["segment_pool_id"] == (0, 0)
        assert "blocks" not in info.segment
        address = buffer.ptr
        buffer.free()
        assert memory.address_info(address).state == "inactive"
    finally:
        memory.record_history(None)


def test_managed_memory_of_the_allocator_is_told_as_such():
    buffer = accelrt.Buffer(10_000, managed=True)
    info = memory.address_info(buffer.ptr + 1)
    assert (info.kind, info.start, info.block["requested_size"]) == ("managed", buffer.ptr, 10_000)


def test_addresses_of_each_kind_are_told_apart():
    pinned = accelrt.PinnedBuffer(4096)
    ordinary = np.zeros(4096, np.uint8)
    info = memory.address_info(pinned.ptr + 100)
    assert (info.kind, info.device, info.start, info.block) == ("pinned", None, pinned.ptr, None)
    assert info.nbytes >= 4096
    assert memory.address_info(ordinary.ctypes.data)[1:4] == ("none", None, None)
    with accelrt.register_host(ordinary):
        assert memory.address_info(ordinary.ctypes.data).kind == "pinned"
    assert memory.address_info(0).kind == "none"
    try:
        managed = accelrt.Buffer(4096, managed=True)
    except accelrt.NotSupportedError:
        return
    assert memory.address_info(managed.ptr + 100)[1:4] == ("managed", 0, managed.ptr)


def test_memory_of_a_reservation_is_told():
    with accelrt.reserve(1 << 22) as cache:
        cache.commit(0, cache.page_bytes)
        info = memory.address_info(cache.ptr + 5)
        assert (info.kind, info.start, info.nbytes) == ("device", cache.ptr, cache.page_bytes)
        assert memory.address_info(cache.ptr + cache.page_bytes).kind == "none"
        cache.decommit(0, cache.page_bytes)


@pytest.mark.parametrize("address", ["x", 1.5, -1, 1 << 64])
def test_what_is_no_address_is_refused(address):
    with pytest.raises((TypeError, ValueError), match="address"):
        memory.address_info(address)


def test_the_drivers_own_pool_is_read_and_trimmed():
    pool = memory.DriverPool()
    try:
        attributes = pool.attributes()
    except accelrt.NotSupportedError:
        pytest.skip("the device's driver has no such pool")
    assert attributes["reserved_mem_current"] >= attributes["used_mem_current"]
    before = pool.release_threshold
    pool.release_threshold = 1 << 20
    assert pool.release_threshold == 1 << 20
    pool.release_threshold = before
    pool.used_mem_high = 0
    pool.trim_to(0)
    assert pool.access(pool.device_index) == "rw"


def test_the_drivers_own_pool_refuses_what_is_none():
    pool = memory.DriverPool()
    assert pool == memory.DriverPool(0)
    with pytest.raises(AttributeError):
        pool.used_mem_current = 0
    with pytest.raises(ValueError, match="set to 0"):
        pool.used_mem_high = 1
    with pytest.raises(ValueError, match="release_threshold"):
        pool.release_threshold = -1
    with pytest.raises(ValueError, match="nbytes"):
        pool.trim_to(-1)
    with pytest.raises(ValueError, match="access is"):
        pool.set_access(0, "w")


# --- the driver's pool of managed memory ----------------------------------------------------------


@pytest.fixture
def managed():
    try:
        pool = memory.DriverPool(managed=True)
        before = pool.used_mem_current
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no pool of managed memory")
    yield pool
    gc.collect()
    accelrt.synchronize()
    pool.trim_to(0)
    assert pool.used_mem_current == before


def test_the_drivers_managed_pool_gives_memory_that_everything_takes(managed):
    before = managed.used_mem_current
    with managed.allocate(1 << 20) as held:
        assert memory.address_info(held.ptr).kind == "managed"
        assert managed.used_mem_current >= before + (1 << 20)
        accelrt.copy(held, np.full(1 << 20, 3, np.uint8))
        accelrt.memory.prefetch(held, "cpu")
        out = np.zeros(1 << 20, np.uint8)
        accelrt.copy(out, held)
        assert (out == 3).all()
        assert memory.managed_attributes(held).preferred_location.index == 0
        assert repr(held).startswith("<accelrt.memory.DriverMemory 1048576 bytes, managed, device 0")
    accelrt.synchronize()
    assert managed.used_mem_current == before
    with pytest.raises(ValueError, match="given back"):
        held.ptr  # noqa: B018
    held.free()
    assert memory.DriverPool(managed=True) == managed != memory.DriverPool()
    assert managed.attributes()["used_mem_current"] == before


def test_memory_of_the_managed_pool_goes_back_when_its_owner_dies(managed):
    before = managed.used_mem_current
    held = managed.allocate(1 << 20)
    del held
    gc.collect()
    accelrt.synchronize()
    assert managed.used_mem_current == before


def test_the_managed_pool_refuses_what_is_none(managed):
    with pytest.raises(ValueError, match="every device uses managed memory"):
        managed.access(0)
    with pytest.raises(ValueError, match="every device uses managed memory"):
        managed.set_access(0, "rw")
    for nbytes in (0, -1, True, "8", 1 << 63):
        with pytest.raises(ValueError, match="nbytes is"):
            managed.allocate(nbytes)
    with pytest.raises(TypeError, match="stream is '5'"):
        managed.allocate(8, "5")
    if accelrt.device_count() > 1:
        with pytest.raises(ValueError, match="stream is of device 1"):
            managed.allocate(8, accelrt.Stream(1))


def test_the_drivers_own_pools_have_handles_and_give_memory(managed):
    pool = memory.DriverPool()
    assert pool.handle == pool.open_handle() not in (0, managed.handle)
    assert managed.handle != 0
    assert not pool.is_made
    before = pool.used_mem_current
    held = pool.allocate(1 << 20)
    assert memory.address_info(held.ptr).kind == "device"
    accelrt.fill(held, 3)
    accelrt.synchronize()
    assert pool.used_mem_current >= before + (1 << 20)
    held.free()
    accelrt.synchronize()
    assert pool.used_mem_current == before
    pool.close()  # does nothing
    assert pool.used_mem_current == before


@pytest.mark.parametrize("place", [0, "cuda:0", "cpu", "cpu:0", "none"])
def test_a_pool_of_managed_memory_prefers_a_place(managed, place):
    device = accelrt.device(0)
    location = device if place == "cuda:0" and device.type == "host" else place
    with memory.DriverPool(managed=True, preferred_location=location) as pool:
        assert (pool.preferred_location, pool.is_made) == (location, True)
        assert pool.handle != managed.handle
        assert pool != memory.DriverPool(managed=True, preferred_location=location)
        with pool.allocate(1 << 20) as held:
            preferred = memory.managed_attributes(held).preferred_location
            if device.type == "host":
                assert preferred == {"cpu": "cpu", "cpu:0": "cpu:0", "none": None}.get(place, device)
            accelrt.copy(held, np.full(1 << 20, 3, np.uint8))
            accelrt.synchronize()
            assert memory.address_info(held.ptr).kind == "managed"
            assert pool.used_mem_current >= 1 << 20
            stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
            with accelrt.graph(graph, stream=stream):
                accelrt.fill(held, 4, stream=stream)
                with pytest.raises(accelrt.CaptureError):
                    pool.allocate(8, stream)
        accelrt.synchronize()
        assert pool.used_mem_current == 0
    with pytest.raises(ValueError, match="the pool was closed"):
        pool.allocate(8)


def test_a_pool_of_device_memory_has_a_limit_and_stays_in_the_process():
    with memory.DriverPool(max_size=1 << 25) as pool:
        assert (pool.is_ipc_enabled, pool.is_made, pool.max_size) == (False, True, 1 << 25)
        with pytest.raises(accelrt.OutOfMemoryError):
            pool.allocate(1 << 26)
        with pool.allocate(1 << 20) as held:
            assert not held.is_ipc_enabled
            with pytest.raises(ValueError, match="not ipc_enabled; no process opens it"):
                held.ipc_descriptor  # noqa: B018
        with pytest.raises(ValueError, match="the pool is not ipc_enabled"):
            pool.allocation_handle  # noqa: B018
