"""Pools of the driver's of page-locked memory: DriverPool(pinned=True)."""

import gc
import multiprocessing

import numpy as np
import pytest
from beside import park
from child import in_own_process, wrap_host
from test_driver_pools import closed_there

import accelrt
from accelrt import memory
from accelrt.memory.driver_pool import DriverMemory
from accelrt.resources import DriverPoolResource

NBYTES = 1 << 20


def made(**arguments):
    try:
        return memory.DriverPool(pinned=True, **arguments)
    except (accelrt.NotSupportedError, accelrt.CudaError) as error:
        pytest.skip(f"the driver makes no such pool: {error.name}")


@pytest.fixture(params=[{}, {"max_size": 1 << 26}, {"numa_node": 0}, {"ipc_enabled": True}], ids=str)
def pool(request):
    pool = made(**request.param)
    yield pool
    gc.collect()
    accelrt.synchronize()
    assert pool.used_mem_current == 0
    pool.close()


def allocated(pool, nbytes=NBYTES):
    held = pool.allocate(nbytes)
    accelrt.synchronize()
    return held


# --- memory that the host and devices use ---------------------------------------------------------


def test_the_host_and_streams_use_the_memory(pool):
    held = allocated(pool)
    assert held.pinned
    assert not held.managed
    assert accelrt.is_pinned(held)
    view = np.frombuffer(held, np.float32)
    view[:] = 2.5
    target = accelrt.Buffer(NBYTES)
    accelrt.copy(target, held)
    assert (accelrt.Array(target, (NBYTES // 4,), "float32").numpy() == 2.5).all()
    accelrt.fill(held, 3)
    accelrt.synchronize()
    assert (np.asarray(held) == 3).all()
    assert pool.used_mem_current >= NBYTES
    assert pool.attributes()["used_mem_high"] >= NBYTES
    assert repr(held) == f"<accelrt.memory.DriverMemory {NBYTES} bytes, pinned, device 0>"
    del view
    held.free()
    assert "given back" in repr(held)


def test_an_address_is_told_to_be_page_locked(pool):
    held = allocated(pool)
    info = memory.address_info(held.ptr + 100)
    assert (info.kind, info.device) == ("pinned", None)
    if info.start is not None:
        assert info.start <= held.ptr < held.ptr + NBYTES <= info.start + info.nbytes


def test_memory_of_which_views_are_alive_is_not_freed(pool):
    held = allocated(pool)
    view = np.frombuffer(held, np.uint8)
    with pytest.raises(BufferError, match=r"1 views of .* are alive; drop them before free"):
        held.free()
    array = accelrt.asarray(held, device="cpu")
    del view
    with pytest.raises(BufferError, match="views of"):
        held.free()
    array.numpy()[:] = 4
    assert (np.frombuffer(held, np.uint8) == 4).all()
    del array
    held.free()
    with pytest.raises(BufferError, match="was given back; allocate other memory"):
        memoryview(held)


def test_an_array_keeps_the_memory(pool):
    array = accelrt.asarray(allocated(pool), device="cpu")
    gc.collect()
    assert pool.used_mem_current >= NBYTES
    assert array.nbytes == NBYTES


def test_other_libraries_have_the_bytes_by_dlpack(pool):
    held = allocated(pool, 64)
    if held.__dlpack_device__()[0] != 1:  # the host device is the CPU to other libraries
        assert held.__dlpack_device__() == (3, 0)  # kDLCUDAHost
    shown = np.from_dlpack(held)
    np.frombuffer(held, np.uint8)[:] = range(64)
    assert shown.tolist() == list(range(64))
    assert held.__cuda_array_interface__["data"] == (held.ptr, False)


@pytest.mark.parametrize("kind", [{}, {"managed": True}], ids=str)
def test_memory_of_a_device_stays_while_others_have_it(kind):
    with memory.DriverPool(**kind).allocate(NBYTES) as held:
        tensor = held.__dlpack__()
        with pytest.raises(BufferError, match=r"1 views of .* are alive; drop them before free"):
            held.free()
        del tensor
        array = accelrt.asarray(held, copy=False)
        part = array[:16]
        del array
        with pytest.raises(BufferError, match="1 views"):
            held.free()
        part.fill_(5)
        del part
    with pytest.raises(ValueError, match="was given back; allocate other memory"):
        accelrt.asarray(held)


@in_own_process
def test_memory_stays_while_another_thread_makes_an_array_of_it():
    faults = wrap_host()
    held = memory.DriverPool(ipc_enabled=True).allocate(NBYTES)
    caller = park("pointer_device", lambda: accelrt.asarray(held))
    with pytest.raises(BufferError, match="1 views"):
        held.free()
    assert faults.go_on()
    caller.result().fill_(5)


def test_memory_of_a_device_is_no_buffer_and_has_dlpack_too():
    try:
        held = memory.DriverPool(ipc_enabled=True).allocate(64)
    except accelrt.NotSupportedError:
        pytest.skip("the driver makes no pools that leave the process")
    with pytest.raises(TypeError, match="is no memory of the host's; copy"):
        memoryview(held)
    accelrt.fill(held, 5)
    assert (accelrt.from_dlpack(held).numpy() == 5).all()


def test_a_batch_of_copies_takes_the_memory(pool):
    held, target = allocated(pool, 4096), accelrt.Buffer(4096)
    np.frombuffer(held, np.uint8)[:] = 9
    accelrt.copy_many([target], [held])
    assert (accelrt.Array(target, (4096,), "uint8").numpy() == 9).all()
    with pytest.raises(TypeError, match="pass a sequence of Buffers"):
        accelrt.copy_many(held, held)


def test_a_resource_gives_the_memory(pool):
    buffer = DriverPoolResource(pool=pool).buffer(4096)
    assert memory.address_info(buffer.ptr).kind == "pinned"
    buffer.free()


# --- pools ----------------------------------------------------------------------------------------


def test_what_a_pool_is_made_with_is_told():
    pool = made(numa_node=0, max_size=1 << 26)
    assert (pool.pinned, pool.numa_node, pool.max_size) == (True, 0, 1 << 26)
    assert not pool.is_ipc_enabled
    shared = made(ipc_enabled=True)
    assert shared.is_ipc_enabled
    assert shared.numa_node >= 0  # the one that is nearest to the device
    own = made()
    assert own.numa_node is None
    assert own.handle == made().handle
    assert pool.handle != own.handle


def test_every_device_uses_the_memory_unless_it_is_told_otherwise(pool):
    devices = range(accelrt.device_count())
    assert [pool.access(device) for device in devices] == ["rw" for _ in devices]
    for access in ("none", "rw"):
        pool.set_access(devices[-1], access)
        assert pool.access(devices[-1]) == access


def test_the_own_pool_stays_as_it_was_set():
    pool = made()
    last = accelrt.device_count() - 1
    pool.set_access(last, "none")
    assert made().access(last) == "none"
    pool.set_access(last, "rw")


def test_streams_of_every_device_order_the_memory(pool):
    if accelrt.device_count() < 2:
        pytest.skip("takes two devices")
    stream = accelrt.Stream(device=1)
    held = pool.allocate(NBYTES, stream)
    assert (held.device_index, held.stream) == (1, stream)
    accelrt.fill(held, 6, stream=stream)
    stream.synchronize()
    assert (np.frombuffer(held, np.uint8) == 6).all()
    held.free()
    accelrt.synchronize(1)


def test_a_pool_that_has_no_room_says_what_it_has():
    pool = made(max_size=1 << 24)
    held = []
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        for _ in range(5):
            held.append(allocated(pool, 8 << 20))
    text = str(caught.value)
    assert f"beside the {len(held) * (8 << 20)} bytes that are allocated" in text
    assert f", of at most {1 << 24} in chunks of 32 MiB; free some of it, make one of a larger" in text
    assert "max_size, or call trim_to() of other pools" in text
    assert "accelrt.host_empty_cache()" in text


def test_a_page_locked_pool_that_is_closed_refuses():
    pool = made(max_size=1 << 24)
    held = allocated(pool)
    pool.close()
    with pytest.raises(ValueError, match="the pool was closed; make another one"):
        pool.allocate(8)
    np.frombuffer(held, np.uint8)[:] = 1


def test_the_own_pool_is_not_closed():
    pool = made()
    pool.close()
    assert pool.used_mem_current >= 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"managed": True, "pinned": True}, "memory is managed or page-locked; pass managed or pinned"),
        ({"numa_node": 0}, "numa_node is of a pool of page-locked memory; pass pinned=True too"),
        (
            {"pinned": True, "numa_node": -1},
            "numa_node is -1; pass the number of a node of the host's memory",
        ),
        ({"pinned": True, "numa_node": True}, "numa_node is True; pass the number of a node"),
        ({"pinned": True, "max_size": -1}, "max_size is -1; pass bytes as int"),
    ],
)
def test_what_makes_no_pool_is_refused_with_why(arguments, words):
    with pytest.raises(ValueError, match=words):
        memory.DriverPool(**arguments)


def test_a_node_that_is_none_is_refused_with_why():
    made(numa_node=0).close()
    with pytest.raises(accelrt.CudaError, match=r"numa_node=999.*no such node of memory"):
        memory.DriverPool(pinned=True, numa_node=999)


@pytest.mark.host
@in_own_process
def test_drivers_without_a_pool_of_their_own_or_a_node_say_what_to_pass():
    faults = wrap_host()
    faults.arm(1, 801, "once", ["default_pool"])
    with pytest.raises(accelrt.NotSupportedError, match="make one, with numa_node= or max_size="):
        memory.DriverPool(pinned=True)
    faults.arm(1, 1, "once", ["pinned_pool_create"])
    with pytest.raises(accelrt.CudaError, match="of a NUMA node alone; pass numa_node="):
        memory.DriverPool(pinned=True, max_size=4096)
    faults.arm(1, 101, "once", ["device_attribute"])
    with pytest.raises(accelrt.NotSupportedError, match="pass numa_node=, 0 say"):
        memory.DriverPool(pinned=True, ipc_enabled=True)
    faults.arm(1, 999, "once", ["pool_access_set"])
    with pytest.raises(accelrt.CudaError):
        memory.DriverPool(pinned=True, numa_node=0)
    assert faults.call_counts()["pool_destroy"] == 1
    faults.disarm()
    memory.DriverPool(pinned=True).close()


# --- other processes ------------------------------------------------------------------------------


def opened(kept, handle, descriptor):
    kept["pool"] = memory.DriverPool.from_allocation_handle(handle)
    kept["memory"] = DriverMemory.from_ipc_descriptor(kept["pool"], descriptor)
    return kept["pool"].pinned, sorted(set(np.frombuffer(kept["memory"], np.uint8).tolist()))


def written(kept, value):
    np.frombuffer(kept["memory"], np.uint8)[:] = value


def test_another_process_has_the_bytes(other):
    pool = made(ipc_enabled=True)
    held = allocated(pool)
    view = np.frombuffer(held, np.uint8)
    view[:] = 7
    assert other.call(opened, pool.allocation_handle, held.ipc_descriptor) == (True, [7])
    other.call(written, 8)
    assert (view == 8).all()
    other.call(closed_there)


def test_a_pool_that_is_not_shared_has_no_handle_and_no_descriptors():
    pool = made(max_size=1 << 24)
    with pytest.raises(ValueError, match="the pool is not ipc_enabled"):
        _ = pool.allocation_handle
    with pytest.raises(ValueError, match="is of a pool that is not ipc_enabled; no process opens it"):
        _ = allocated(pool).ipc_descriptor


def test_memory_of_a_pool_that_comes_as_a_file_says_what_it_is():
    pool = made(ipc_enabled=True)
    held = allocated(pool)
    with pool.allocation_handle as handle:
        assert handle.pinned
        theirs = memory.DriverPool.from_allocation_handle(handle.fileno())
    mapped = DriverMemory.from_ipc_descriptor(theirs, held.ipc_descriptor)
    assert mapped.pinned
    assert repr(mapped).endswith("pinned, mapped, device 0>")
    np.frombuffer(held, np.uint8)[:] = 3
    assert (np.frombuffer(mapped, np.uint8) == 3).all()
    with pytest.raises(ValueError, match="another process's, which alone allocates"):
        theirs.allocate(8)
    mapped.free()
    accelrt.synchronize()


def test_a_handle_pickles_what_kind_it_is_of():
    pool = made(ipc_enabled=True)
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.apply(is_pinned_there, (pool.allocation_handle,))


def is_pinned_there(handle):
    return handle.pinned


# --- two threads ----------------------------------------------------------------------------------


@pytest.mark.host
@in_own_process
def test_memory_that_goes_while_another_thread_asks_about_it_is_told_to_be_freed():
    faults = wrap_host()
    target = accelrt.Buffer(NBYTES)
    calls = {
        "pointer_device": lambda held: accelrt.copy(target, held, blocking=False),
        "pool_pointer_export": lambda held: held.ipc_descriptor,
    }
    uses = [*calls.items(), ("pointer_device", lambda held: accelrt.copy_many([target], [held]))]
    for row, use in uses:
        pool = memory.DriverPool(ipc_enabled=True)
        held = pool.allocate(NBYTES)
        caller = park(row, lambda use=use, held=held: use(held))
        held.free()
        accelrt.synchronize()
        pool.trim_to(0)  # the driver knows nothing of the address any more
        assert faults.go_on()
        with pytest.raises(ValueError, match=r"was freed|was given back"):
            caller.result()
