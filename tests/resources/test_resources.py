"""Resources: where memory comes from, adaptors around it, and which one is current."""

import gc
import io
import itertools
import os

import numpy as np
import pytest
from beside import on_a_thread
from child import in_own_process
from counting_resource import Counting

import accelrt
from accelrt import resources, testing
from accelrt.tools import traces

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
SOURCES = {
    "device": lambda: resources.DeviceResource(),
    "managed": lambda: resources.ManagedResource(),
    "pinned": lambda: resources.PinnedResource(),
    "pinned pool": lambda: resources.PinnedResource(pool=accelrt.PinnedMemPool()),
    "mempool": lambda: resources.MemPoolResource(accelrt.MemPool()),
    "driver pool": lambda: resources.DriverPoolResource(),
    "driver pool for others": lambda: resources.DriverPoolResource(
        pool=accelrt.memory.DriverPool(ipc_enabled=True)
    ),
    "driver pool of pinned": lambda: resources.DriverPoolResource(
        pool=accelrt.memory.DriverPool(pinned=True, numa_node=0)
    ),
    "pool": lambda: resources.PoolResource(),
    "pool of managed": lambda: resources.PoolResource(resources.ManagedResource(), 4096, 8 << 20),
    "pool of pinned": lambda: resources.PoolResource(resources.PinnedResource()),
    "fixed": lambda: resources.FixedSizeResource(block_size=1 << 16, blocks=4),
    "bins": lambda: resources.BinningResource(resources.DeviceResource(), 10, 14),
    "limit": lambda: resources.LimitingAdaptor(resources.DeviceResource(), 1 << 20),
    "statistics": lambda: resources.StatisticsAdaptor(resources.DeviceResource()),
    "tracking": lambda: resources.TrackingAdaptor(resources.DeviceResource(), capture_stacks=True),
    "log": lambda: resources.LoggingAdaptor(resources.DeviceResource(), io.StringIO()),
    "failure": lambda: resources.FailureCallbackAdaptor(resources.DeviceResource(), lambda nbytes: False),
    "prefetch": lambda: resources.PrefetchAdaptor(resources.ManagedResource()),
    "prefetch of others": lambda: resources.PrefetchAdaptor(resources.DeviceResource()),
    "hooks": lambda: resources.HooksAdaptor(resources.DeviceResource()),
}


@pytest.mark.parametrize("name", SOURCES)
def test_buffers_of_every_source_hold_what_is_copied_into_them(name):
    resource = SOURCES[name]()
    stream = accelrt.Stream()
    numbers = np.arange(1000, dtype=np.float32)
    buffer = resource.buffer(4000, stream)
    assert buffer.nbytes == 4000
    assert buffer.stream == stream
    assert buffer.device_index == resource.device_index
    array = accelrt.Array(buffer, (1000,), "f4")
    array.copy_(numbers)
    assert (array.numpy() == numbers).all()
    other = resource.buffer(4000, stream)
    other.copy_from(buffer, stream=stream)
    del buffer, array
    back = np.empty_like(numbers)
    other.copy_to(back, stream=stream)
    assert (back == numbers).all()


@pytest.mark.parametrize("name", SOURCES)
def test_zero_bytes_are_no_memory(name):
    resource = SOURCES[name]()
    assert resource.allocate(0) == 0
    resource.deallocate(0, 0)
    assert resource.buffer(0).ptr == 0


def test_sizes_and_addresses_are_checked():
    resource = resources.DeviceResource()
    with pytest.raises(TypeError, match="nbytes"):
        resource.allocate(1.5)
    with pytest.raises(ValueError, match="nbytes is -1"):
        resource.allocate(-1)
    with pytest.raises(ValueError, match="not allocated"):
        resource.deallocate(4096, 16)
    with pytest.raises(ValueError, match="not allocated from"):
        resources.PoolResource().deallocate(4096, 16)
    with pytest.raises(ValueError, match="not allocated from"):
        resources.BinningResource(resource).deallocate(4096, 16)
    with pytest.raises(TypeError, match="upstream is 7"):
        resources.LimitingAdaptor(7, 1)
    with pytest.raises(TypeError, match="pool is 7"):
        resources.MemPoolResource(7)
    with pytest.raises(TypeError, match="pool is 7"):
        resources.PinnedResource(pool=7)
    with pytest.raises(NotImplementedError, match="take"):
        resources.Resource().allocate(1)
    with pytest.raises(NotImplementedError, match="give_back"):
        resources.Resource().deallocate(1, 1)


def test_a_limit_counts_what_is_allocated_at_once():
    upstream = Counting()
    limited = resources.LimitingAdaptor(upstream, 1000)
    first = limited.allocate(600)
    with pytest.raises(accelrt.OutOfMemoryError, match=r"600 of 1000 bytes") as raised:
        limited.allocate(401)
    assert (raised.value.requested, raised.value.refused_by) == (401, "resource")
    second = limited.allocate(400)
    assert limited.allocated_bytes == 1000
    limited.deallocate(first, 600)
    limited.deallocate(second, 400)
    assert limited.allocated_bytes == 0
    assert not upstream.live


def test_a_limit_counts_nothing_that_upstream_refused():
    limited = resources.LimitingAdaptor(Counting(room=10), 1000)
    with pytest.raises(MemoryError):
        limited.allocate(11)
    assert limited.allocated_bytes == 0


def test_statistics_count_with_a_stack_of_counters():
    statistics = resources.StatisticsAdaptor(Counting())
    first = statistics.allocate(100)
    assert statistics.push_counters() == (100, 1, 100, 1, 100, 1)
    assert statistics.counts == (0, 0, 0, 0, 0, 0)
    assert statistics.depth == 2
    statistics.deallocate(first, 100)
    second = statistics.allocate(300)
    assert statistics.counts.current_bytes == 200
    popped = statistics.pop_counters()
    assert popped == (200, 0, 200, 0, 300, 1)
    assert statistics.counts == (300, 1, 300, 1, 400, 2)
    with pytest.raises(IndexError, match="cannot pop the last counter pair"):
        statistics.pop_counters()
    statistics.deallocate(second, 300)


def test_outstanding_allocations_are_listed_with_their_stacks():
    tracking = resources.TrackingAdaptor(Counting(), capture_stacks=True)
    assert tracking.outstanding() == []
    assert tracking.outstanding_text() == ""
    address = tracking.allocate(64)
    (held,) = tracking.outstanding()
    assert (held.address, held.nbytes) == (address, 64)
    assert "test_outstanding_allocations_are_listed_with_their_stacks" in held.stack
    assert held.stack in tracking.outstanding_text()
    assert tracking.allocated_bytes == 64
    with pytest.raises(AssertionError):
        tracking.deallocate(address, 63)  # upstream keeps it, so it is still listed
    assert tracking.allocated_bytes == 64


def test_a_log_is_one_that_the_tools_read(tmp_path):
    path = tmp_path / "log.csv"
    logging = resources.LoggingAdaptor(Counting(room=1000), path)
    address = logging.allocate(500)
    with pytest.raises(MemoryError):
        logging.allocate(501)
    logging.deallocate(address, 500)
    lines = path.read_text().splitlines()
    assert lines[0] == "Thread,Time,Action,Pointer,Size,Stream"
    assert [line.split(",")[2:5] for line in lines[1:]] == [
        ["allocate", hex(address), "500"],
        ["allocate failure", "0x0", "501"],
        ["free", hex(address), "500"],
    ]
    assert traces.load(path) is not None


def test_a_log_that_cannot_be_written_keeps_no_memory():
    class Full(io.StringIO):
        full = False

        def write(self, text):
            if self.full:
                raise OSError("no space left")
            return super().write(text)

    upstream, file = Counting(), Full()
    logging = resources.LoggingAdaptor(upstream, file)
    address = logging.allocate(8)
    file.full = True
    with pytest.raises(OSError, match="no space"):
        logging.allocate(8)
    with pytest.raises(OSError, match="no space"):
        logging.deallocate(address, 8)
    assert not upstream.live


def test_a_failure_callback_may_make_room():
    upstream = Counting(room=100)
    held = [upstream.allocate(100)]
    asked = []

    def make_room(nbytes):
        asked.append(nbytes)
        if not held:
            return False
        upstream.deallocate(held.pop(), 100)
        return True

    failing = resources.FailureCallbackAdaptor(upstream, make_room)
    assert failing.allocate(60)
    assert asked == [60]
    with pytest.raises(MemoryError):
        failing.allocate(60)
    assert asked == [60, 60]
    with pytest.raises(TypeError, match="callback"):
        resources.FailureCallbackAdaptor(upstream, None)


def test_what_a_failure_callback_raises_is_raised():
    def raise_error(nbytes):
        raise RuntimeError("my error")

    with pytest.raises(RuntimeError, match="my error"):
        resources.FailureCallbackAdaptor(Counting(room=0), raise_error).allocate(1)


def test_hooks_run_around_what_is_asked():
    seen = []
    hooks = {
        name: lambda *arguments, name=name: seen.append((name, *arguments[:-1]))
        for name in ("before_allocate", "after_allocate", "before_deallocate", "after_deallocate")
    }
    hooked = resources.HooksAdaptor(Counting(), **hooks)
    address = hooked.allocate(8)
    hooked.deallocate(address, 8)
    assert seen == [
        ("before_allocate", 8),
        ("after_allocate", address, 8),
        ("before_deallocate", address, 8),
        ("after_deallocate", address, 8),
    ]


def test_hooks_that_raise_lose_no_memory():
    def refuse(*arguments):
        raise LookupError("no")

    upstream = Counting()
    for name in ("before_allocate", "after_allocate"):
        with pytest.raises(LookupError):
            resources.HooksAdaptor(upstream, **{name: refuse}).allocate(8)
    assert not upstream.live
    for name in ("before_deallocate", "after_deallocate"):
        hooked = resources.HooksAdaptor(upstream, **{name: refuse})
        with pytest.raises(LookupError):
            hooked.deallocate(hooked.allocate(8), 8)
    assert not upstream.live


def test_two_functions_are_a_resource():
    upstream = Counting()
    functions = resources.CallbackResource(upstream.take, upstream.give_back)
    functions.deallocate(functions.allocate(16), 16)
    assert not upstream.live

    def raising(error):
        def allocate(nbytes, stream):
            raise error

        return resources.CallbackResource(allocate, upstream.give_back)

    with pytest.raises(MemoryError, match="mine"):
        raising(MemoryError("mine")).allocate(1)
    with pytest.raises(RuntimeError, match="KeyError: 'mine'") as raised:
        raising(KeyError("mine")).allocate(1)
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(RuntimeError, match="BaseException: mine"):
        raising(BaseException("mine")).allocate(1)
    with pytest.raises(KeyboardInterrupt):
        raising(KeyboardInterrupt()).allocate(1)
    with pytest.raises(accelrt.OutOfMemoryError, match="returned None"):
        resources.CallbackResource(lambda nbytes, stream: None, upstream.give_back).allocate(1)
    with pytest.raises(TypeError, match="deallocate is 1"):
        resources.CallbackResource(upstream.take, 1)


def round_trip(resource, pool, stream):
    """What a Buffer of the resource holds is what was written, and the pool counts it."""
    used = pool.used_mem_current
    buffer = resource.buffer(4096, stream)
    assert pool.used_mem_current >= used + 4096
    buffer.copy_from(bytes(range(256)) * 16, stream=stream)
    back = bytearray(4096)
    buffer.copy_to(back, stream=stream)
    assert bytes(back) == bytes(range(256)) * 16
    del buffer
    stream.synchronize()
    assert pool.used_mem_current == used


@pytest.mark.parametrize("managed", [False, True])
def test_memory_of_the_drivers_pool_comes_and_goes_in_a_streams_order(managed):
    try:
        pool = accelrt.memory.DriverPool(managed=managed)
        pool.attributes()
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no such pool")
    stream, resource = accelrt.Stream(), resources.DriverPoolResource(managed=managed)
    assert (resource.managed, resource.pool) == (managed, None)
    round_trip(resource, pool, stream)
    given = resources.DriverPoolResource(pool=pool)
    assert (given.managed, given.pool) == (managed, pool)
    round_trip(given, pool, stream)
    with given.buffer(64, stream) as buffer:
        assert accelrt.memory.address_info(buffer.ptr).kind == ("managed" if managed else "device")


@pytest.mark.parametrize("managed", [pytest.param(False, marks=pytest.mark.host), True])
def test_what_dies_while_its_stream_is_captured_goes_back_with_the_next_request(managed):
    try:
        pool = accelrt.memory.DriverPool(managed=managed)
        pool.attributes()
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no such pool")
    stream, resource = accelrt.Stream(), resources.DriverPoolResource(managed=managed)
    target, used = accelrt.zeros(64, "u1"), pool.used_mem_current
    for _ in range(5):
        buffer, graph = resource.buffer(1 << 20, stream), accelrt.CUDAGraph()
        stream.synchronize()
        with accelrt.graph(graph, stream=stream):
            target.fill_(1)
            del buffer
    resource.buffer(1 << 20, stream).free()
    stream.synchronize()
    assert pool.used_mem_current == used


def test_a_pool_that_other_processes_may_have_gives_memory():
    try:
        pool = accelrt.memory.DriverPool(ipc_enabled=True, max_size=1 << 26)
    except accelrt.NotSupportedError:
        pytest.skip("the driver makes no pools that leave the process")
    stream = accelrt.Stream()
    for given in (pool, pool.handle):
        round_trip(resources.DriverPoolResource(pool=given), pool, stream)
    with pytest.raises(accelrt.OutOfMemoryError, match="the driver's pool has no room"):
        resources.DriverPoolResource(pool=pool).allocate(1 << 40)
    with pool.allocation_handle as handle:
        other = accelrt.memory.DriverPool.from_allocation_handle(handle)
    with pytest.raises(ValueError, match="another process's, which alone allocates"):
        resources.DriverPoolResource(pool=other)
    other.close()
    resource = resources.DriverPoolResource(pool=pool)
    pool.close()
    with pytest.raises(ValueError, match="the pool was closed"):
        resource.allocate(64)
    with pytest.raises(ValueError, match="managed is of the device's own pool"):
        resources.DriverPoolResource(pool=pool, managed=True)
    if accelrt.device_count() > 1:
        with pytest.raises(ValueError, match="pool is of device 0, the resource of 1"):
            resources.DriverPoolResource(1, pool=pool)


@pytest.mark.host
def test_a_handle_of_no_pool_is_refused_by_the_host_device():
    with pytest.raises(accelrt.CudaError, match="pool_alloc"):
        resources.DriverPoolResource(pool=4096).allocate(16)


@pytest.mark.parametrize("kind", [{}, {"managed": True}, {"managed": True, "preferred_location": "cpu"}])
def test_memory_of_the_drivers_pool_that_dies_beside_its_streams_capture_goes_back_later(kind):
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    try:
        pool = accelrt.memory.DriverPool(**kind)
        used = pool.used_mem_current
    except accelrt.NotSupportedError:
        pytest.skip("the driver has no such pool")
    if not kind and not ON_HOST:
        pytest.skip("a GPU's captures take that pool's memory")
    resource, kept = resources.DriverPoolResource(pool=pool), accelrt.Buffer(64)
    address = resource.allocate(4096, stream)
    with accelrt.graph(graph, stream=stream):
        kept.fill(1)
        resource.deallocate(address, 4096, stream)
        with pytest.raises(accelrt.CaptureError):
            resource.allocate(4096, stream)
    assert pool.used_mem_current > used
    pool.trim_to(0)
    assert pool.used_mem_current == used


@pytest.mark.gpu
def test_a_pool_of_the_drivers_that_others_made_gives_memory():
    driver = pytest.importorskip("cuda.bindings.driver")
    accelrt.synchronize()
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = accelrt.current_device()
    status, pool = driver.cuMemPoolCreate(properties)
    assert int(status) == 0
    try:
        stream = accelrt.Stream()
        resource = resources.DriverPoolResource(pool=pool)
        assert resource.pool == int(pool)
        buffer = resource.buffer(256, stream)
        buffer.copy_from(bytes(range(256)), stream=stream)
        back = bytearray(256)
        buffer.copy_to(back, stream=stream)
        assert bytes(back) == bytes(range(256))
        del buffer
        stream.synchronize()
    finally:
        driver.cuMemPoolDestroy(pool)


def test_bins_are_chosen_by_size():
    upstream, large = Counting(), Counting()
    bins = resources.BinningResource(upstream, 10, 12)
    bins.add_bin(1 << 20, large)
    assert bins.resource_for(1).block_size == 1024
    assert bins.resource_for(1025).block_size == 2048
    assert bins.resource_for(4097) is large
    assert bins.resource_for((1 << 20) + 1) is upstream
    address = bins.allocate(5000)
    bins.add_bin(8192)  # what is allocated goes back to where it came from
    bins.deallocate(address, 5000)
    assert not large.live
    with pytest.raises(TypeError, match="resource is 7"):
        bins.add_bin(16, 7)
    with pytest.raises(TypeError, match="largest"):
        resources.BinningResource(upstream, 10)


def test_a_fixed_size_resource_has_blocks_of_one_size():
    upstream = Counting()
    fixed = resources.FixedSizeResource(upstream, 256, 4)
    assert list(upstream.live.values()) == [1024]
    addresses = [fixed.allocate(nbytes) for nbytes in (1, 256, 100, 7)]
    assert sorted(addresses) == [min(upstream.live) + 256 * number for number in range(4)]
    fixed.allocate(1)
    assert list(upstream.live.values()) == [1024, 1024]
    with pytest.raises(accelrt.OutOfMemoryError, match="its blocks have 256 bytes"):
        fixed.allocate(257)


def test_managed_memory_is_prefetched():
    buffer = resources.PrefetchAdaptor(resources.ManagedResource()).buffer(4096)
    assert accelrt.memory.managed_attributes(buffer).last_prefetch_location.index == buffer.device_index


def test_the_current_resource_is_the_threads_else_the_processes():
    first, second = resources.StatisticsAdaptor(Counting()), Counting()
    assert isinstance(resources.current_resource(), resources.DeviceResource)
    resources.set_current_resource(first)
    try:
        assert resources.current_resource() is first
        with resources.use_resource(second) as entered:
            assert entered is second
            assert resources.current_resource() is second
            elsewhere = on_a_thread(resources.current_resource)
            with pytest.raises(ValueError, match="use_resource"):
                resources.set_current_resource(second)
            with resources.use_resource(first):
                assert resources.current_resource() is first
            assert resources.current_resource() is second
        assert elsewhere is first
        assert resources.current_resource() is first
    finally:
        resources.set_current_resource(None)
    assert isinstance(resources.current_resource(), resources.DeviceResource)
    with pytest.raises(TypeError, match="resource is 7"):
        resources.set_current_resource(7)
    with pytest.raises(TypeError, match="resource is 7"):
        resources.use_resource(7)


@pytest.mark.skipif(accelrt.device_count() < 2, reason="needs two devices")
def test_each_device_has_a_current_resource():
    on_one = resources.PoolResource(resources.DeviceResource(1))
    resources.set_current_resource(on_one)
    try:
        assert resources.current_resource(1) is on_one
        assert resources.current_resource(0).device_index == 0
        assert resources.DeviceBuffer(16, accelrt.Stream(1)).resource is on_one
        with pytest.raises(ValueError, match="of device 1"):
            resources.set_current_resource(on_one, 0)
    finally:
        resources.set_current_resource(None, 1)


def test_a_resource_lives_as_long_as_its_buffers():
    statistics = resources.StatisticsAdaptor(resources.PoolResource())
    buffer = statistics.buffer(100)
    cycle = [statistics, buffer]
    cycle.append(cycle)
    del statistics, cycle
    gc.collect()
    buffer.copy_from(bytes(100))
    del buffer
    gc.collect()


def test_memory_of_others_is_a_buffer():
    with pytest.raises(ValueError, match="knows no memory"):
        accelrt.memory.buffer_at(64, 16)
    with pytest.raises(TypeError, match="address"):
        accelrt.memory.buffer_at(None, 16)
    assert accelrt.memory.buffer_at(0, 0).ptr == 0
    owner = accelrt.Buffer(4096)
    owner.copy_from(bytes(4095) + b"x")
    part = accelrt.memory.buffer_at(owner.ptr + 2048, 2048, owner=owner)
    address = owner.ptr
    del owner
    side = accelrt.Stream()
    side.wait_stream(accelrt.current_stream())
    part.fill(7, 2047, stream=side)  # recorded on the block that has it
    back = bytearray(2048)
    part.copy_to(back, stream=side)
    assert bytes(back) == b"\x07" * 2047 + b"x"
    again = accelrt.Buffer(4096)
    assert again.ptr != address
    pinned = accelrt.PinnedBuffer(64)
    with accelrt.memory.buffer_at(pinned.ptr, 64, owner=pinned) as seen:
        seen.fill(3, blocking=True)
    assert bytes(memoryview(pinned)) == b"\x03" * 64


@pytest.mark.skipif(accelrt.device_count() < 2, reason="needs two devices")
def test_memory_of_others_is_on_the_device_that_has_it():
    owner = accelrt.Buffer(64, 1)
    assert accelrt.memory.buffer_at(owner.ptr, 64).device_index == 1
    with pytest.raises(ValueError, match="of device 1; device is 0"):
        accelrt.memory.buffer_at(owner.ptr, 64, 0)


def test_a_buffer_that_is_freed_gives_its_memory_back_once():
    statistics = resources.StatisticsAdaptor(resources.DeviceResource())
    buffer = statistics.buffer(100)
    buffer.free()
    assert statistics.counts.current_bytes == 0
    buffer.free()
    del buffer
    assert statistics.counts == (0, 0, 100, 1, 100, 1)


ADAPTORS = {
    "limit": lambda upstream: resources.LimitingAdaptor(upstream, 1 << 20),
    "statistics": resources.StatisticsAdaptor,
    "tracking": resources.TrackingAdaptor,
    "bins": resources.BinningResource,
    "log": lambda upstream: resources.LoggingAdaptor(upstream, io.StringIO()),
    "hooks": resources.HooksAdaptor,
    "prefetch": resources.PrefetchAdaptor,
    "failure": lambda upstream: resources.FailureCallbackAdaptor(upstream, lambda nbytes: False),
    "adaptor": resources.Adaptor,
}


def live_bytes(adaptor):
    if isinstance(adaptor, resources.StatisticsAdaptor):
        return adaptor.counts.current_bytes
    return adaptor.allocated_bytes


@pytest.mark.parametrize("when", ["before_deallocate", "after_deallocate"])
@pytest.mark.parametrize("name", ["limit", "statistics", "tracking", "bins"])
def test_what_a_hook_raises_behind_a_free_counts_as_a_free(name, when):
    """On several levels: each has to learn that the memory is back."""

    def refuse(*arguments):
        raise LookupError("no")

    upstream = Counting()
    outer = resources.StatisticsAdaptor(ADAPTORS[name](resources.HooksAdaptor(upstream, **{when: refuse})))
    address = outer.allocate(100)
    with pytest.raises(LookupError):
        outer.deallocate(address, 100)
    assert not upstream.live
    assert outer.counts.current_bytes == 0
    if name == "bins":
        with pytest.raises(ValueError, match="is not allocated"):
            outer.deallocate(address, 100)
    else:
        assert live_bytes(outer.upstream) == 0


@pytest.mark.parametrize("name", ["limit", "statistics", "tracking"])
def test_what_upstream_refuses_to_take_back_counts_on(name):
    class Refusing(Counting):
        def give_back(self, address, nbytes, stream):
            raise LookupError("no")

    adaptor = ADAPTORS[name](Refusing())
    address = adaptor.allocate(100)
    with pytest.raises(LookupError):
        adaptor.deallocate(address, 100)
    assert live_bytes(adaptor) == 100


@pytest.mark.parametrize("given", [0, None, -8, "4096", 1.5], ids=repr)
@pytest.mark.parametrize("name", [*ADAPTORS, "pool", "none"])
def test_an_address_that_is_none_is_refused(name, given):
    """Memory at 0 would be written to; what no int is would stay in the adaptors' figures."""

    class Odd(resources.Resource):
        def take(self, nbytes, stream):
            return given

    kinds = {**ADAPTORS, "pool": resources.PoolResource, "none": lambda upstream: upstream}
    resource = kinds[name](Odd())
    for ask in (resource.allocate, resource.buffer):
        with pytest.raises((MemoryError, TypeError, ValueError), match=r"take\(\) returned|limit"):
            ask(100)
    if name in ("limit", "statistics", "tracking"):
        assert live_bytes(resource) == 0
    if name == "pool":
        assert (resource.total_bytes, resource.used_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("size", "block"),
    [(1, 1), (3, 4), (8, 8), (100, 128), (256, 256), (257, 512), (1001, 1024), (4096, 4096)],
)
def test_blocks_of_one_size_begin_where_values_of_any_type_may(size, block):
    fixed = resources.FixedSizeResource(block_size=size, blocks=3)
    assert fixed.block_size == block
    addresses = [fixed.allocate(size) for _ in range(3)]
    assert [address % min(block, 256) for address in addresses] == [0, 0, 0]
    for address in addresses:
        fixed.deallocate(address, size)


def memory_in_use():
    gc.collect()
    accelrt.synchronize()
    resources.DeviceResource().buffer(1)  # ends what was put off
    gc.collect()
    accelrt.synchronize()
    accelrt.host_empty_cache()
    return accelrt.memory_allocated(), accelrt.host_memory_stats()["allocated_bytes.current"]


@pytest.mark.host
@pytest.mark.parametrize("name", ["device", "pinned", "pool", "pool of pinned", "bins", "limit", "hooks"])
@in_own_process
def test_what_dies_while_the_driver_refuses_a_call_goes_back_later(name):
    """Buffers that another stream used, and the pools that they are of."""
    testing.use_device()
    own, other = accelrt.Stream(), accelrt.Stream()
    for stream in (own, accelrt.per_thread_stream()):
        for call in itertools.count(1):
            resource = SOURCES[name]()
            buffers = [resource.buffer(4000, each) for each in (stream, other)]
            for buffer in buffers:
                buffer.record_stream(own)
                buffer.record_stream(other)
            del buffer
            with testing.failing(call) as fired:
                del buffers, resource
                gc.collect()
                reached = fired() >= call
            assert memory_in_use() == (0, 0), f"call {call}"
            if not reached:
                break
        assert call > 1
