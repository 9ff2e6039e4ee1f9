"""RMM on accelrt, and accelrt on RMM.

Without a GPU RMM can ask its resources for memory; the first tests hand it the host device's."""

import gc
import sys

import numpy as np
import pytest
from backend_use import allocated, churn, use_memory
from beside import Gate, on_threads
from child import in_child, in_own_process

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows
from accelrt.interop import peers
from accelrt.interop import rmm as ours

MIB = 1 << 20


@pytest.fixture
def rmm():
    return pytest.importorskip("rmm")


def rounded(size):
    return -(-size // 512) * 512


def stream_of(stream):
    import rmm

    return rmm.pylibrmm.stream.Stream(stream)


# --- RMM on accelrt -------------------------------------------------------------------------------


@pytest.mark.host
def test_the_host_devices_memory_is_refused():
    with pytest.raises(accelrt.NotSupportedError, match="set ACCELRT_DRIVER=cuda"):
        ours.resource()
    with pytest.raises(
        accelrt.NotSupportedError, match=r"accelrt\.interop\.rmm\.resource: accelrt runs on the"
    ):
        ours.install()
    assert not ours.is_installed()
    ours.uninstall()


@pytest.mark.host
def test_a_missing_library_is_named():
    with pytest.raises(ImportError, match="pip install rmm-cu13 brings it"):
        peers.load("rmm_that_is_not_there", "rmm-cu13")


def test_devices_that_are_not_are_refused(on_host_memory):
    for given in (99, "cuda:99"):
        with pytest.raises(ValueError, match="99"):
            ours.resource(given)


@pytest.mark.host
def test_memory_comes_from_accelrt(rmm, on_host_memory):
    resource = ours.resource()
    assert resource is ours.resource(0)
    buffers = [rmm.DeviceBuffer(size=size, mr=resource) for size in (1, 1000, 3 * MIB)]
    assert accelrt.memory_allocated() == sum(rounded(buffer.size) for buffer in buffers)
    assert rmm.DeviceBuffer(size=0, mr=resource).ptr == 0
    del buffers
    assert accelrt.memory_allocated() == 0


@pytest.mark.host
def test_memory_belongs_to_the_stream_that_rmm_names(rmm, on_host_memory):
    resource, stream = ours.resource(), accelrt.Stream()
    address = resource.allocate(MIB, stream_of(stream))
    resource.deallocate(address, MIB, stream_of(stream))
    assert accelrt.Buffer(MIB, stream=stream).ptr == address
    other = accelrt.Stream()
    address = resource.allocate(MIB, stream_of(stream))
    with Gate(other):
        resource.deallocate(address, MIB, stream_of(other))  # behind the other stream's work
        assert accelrt.memory_stats()["active_bytes.all.current"] == MIB
        assert accelrt.memory_allocated() == 0


@pytest.mark.host
def test_memory_on_a_stream_that_is_gone_goes_back(rmm, on_host_memory):
    resource = ours.resource()

    class Gone:
        def __cuda_stream__(self):
            return 0, 0x7777000

    address = resource.allocate(1000)
    resource.deallocate(address, 1000, stream_of(Gone()))
    assert accelrt.memory_allocated() == 0


@pytest.mark.host
def test_adaptors_stand_on_it(rmm, on_host_memory):
    counted = rmm.mr.StatisticsResourceAdaptor(ours.resource())
    limited = rmm.mr.LimitingResourceAdaptor(counted, 2 * MIB)
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=3 * MIB, mr=limited)
    buffer = rmm.DeviceBuffer(size=1000, mr=limited)
    assert accelrt.memory_allocated() == rounded(counted.allocation_counts.current_bytes) == 1024
    del buffer


@pytest.mark.host
def test_out_of_memory_is_rmms_error(rmm, on_host_memory, full):
    with pytest.raises(MemoryError, match=r"out of memory\. Tried to allocate 4\.00 MiB"):
        ours.resource().allocate(4 * MIB)


@pytest.mark.host
def test_a_free_that_fails_is_told(rmm, on_host_memory, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    ours.resource().deallocate(0x123000, 64)
    assert "0x123000 is not allocated" in str(told[0].exc_value)


@pytest.mark.host
def test_a_free_that_fails_is_written_by_pythons_own_hook(monkeypatch, capsys):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    ours._functions(0)[1](0x123000, 64, accelrt.Stream())
    assert "ArgumentError: free_on: 0x123000 is not allocated" in capsys.readouterr().err


@pytest.mark.host
def test_install_is_undone(rmm, on_host_memory):
    before = rmm.mr.get_per_device_resource(1)
    assert not ours.is_installed(1)
    ours.install(1)
    ours.install("cuda:1")
    assert rmm.mr.get_per_device_resource(1) is ours.resource(1)
    assert (ours.is_installed(1), ours.is_installed(0)) == (True, False)
    ours.uninstall(1)
    assert rmm.mr.get_per_device_resource(1) is before
    ours.install(1)
    rmm.mr.set_per_device_resource(1, rmm.mr.StatisticsResourceAdaptor(before))
    with pytest.raises(RuntimeError, match=r"set after install\(\)"):
        ours.uninstall(1)
    rmm.mr.set_per_device_resource(1, before)
    ours.uninstall(1)
    assert rmm.mr.get_per_device_resource(1) is before
    ours.install(1)
    ours.uninstall(1)
    ours.uninstall(1)
    assert rmm.mr.get_per_device_resource(1) is before


@pytest.mark.host
def test_threads_allocate_and_free_each_others(rmm, on_host_memory):
    resource, handed = ours.resource(), []

    def work(seed):
        stream = stream_of(accelrt.Stream())
        for step in range(200):
            handed.append(
                rmm.DeviceBuffer(size=1 + (seed * 7919 + step * 104729) % MIB, stream=stream, mr=resource)
            )
            if step % 3:
                handed.pop(0)

    on_threads(work, range(4))
    assert accelrt.memory_allocated() == sum(rounded(buffer.size) for buffer in handed)
    handed.clear()
    gc.collect()
    assert accelrt.memory_allocated() == 0


# --- accelrt on RMM -------------------------------------------------------------------------------


def host_resource(rmm):
    """A resource of RMM's of the host device's memory."""

    def allocate(size, stream):
        code, address = Rows().memory_alloc(0, size)
        if code:
            raise MemoryError(f"the driver answered {code}")
        return address

    def deallocate(address, size, stream):
        assert Rows().memory_free(0, address) == 0

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def from_a_resource(limit=8 * MIB):
    import rmm

    assert accelrt.device_count() > 0
    counted = rmm.mr.StatisticsResourceAdaptor(host_resource(rmm))
    memory.change_current_allocator(ours.from_rmm(rmm.mr.LimitingResourceAdaptor(counted, limit)))
    assert memory.get_allocator_backend() == "rmm"
    use_memory(lambda: counted.allocation_counts.current_bytes, limit)
    churn(lambda: counted.allocation_counts.current_bytes)
    with pytest.raises(RuntimeError, match=r"resources of the devices \[0\], and none of device 1"):
        accelrt.Buffer(64, device=1)


def from_what_rmm_has():
    import rmm

    rmm.mr.set_per_device_resource(0, host_resource(rmm))
    memory.change_current_allocator(ours.from_rmm())
    accelrt.Buffer(64).free()
    rmm.mr.set_per_device_resource(1, host_resource(rmm))
    accelrt.Buffer(64, device=1).free()


def from_itself():
    import rmm

    peers.prepare_memory = lambda call: None
    for resource in (ours.resource(), rmm.mr.StatisticsResourceAdaptor(ours.resource())):
        with pytest.raises(ValueError, match="takes its memory from accelrt"):
            ours.from_rmm(resource)
        with pytest.raises(ValueError, match="takes its memory from accelrt"):
            ours.from_rmm({1: resource})
    ours.install()
    memory.change_current_allocator(ours.from_rmm())
    with pytest.raises(RuntimeError, match="takes its memory from accelrt"):
        accelrt.Buffer(64)


@pytest.mark.host
@pytest.mark.own_process
@pytest.mark.parametrize(
    "function", [from_a_resource, from_what_rmm_has, from_itself], ids=lambda each: each.__name__
)
def test_accelrt_on_rmm(rmm, function):
    in_child(function)


def test_what_is_no_resource_is_refused(rmm):
    for given in (object(), {0: 3}):
        with pytest.raises(TypeError, match=r"pass an rmm\.mr\.DeviceMemoryResource, a dict of"):
            ours.from_rmm(given)


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@in_own_process(ACCELRT_DRIVER="cuda")
def test_rmm_on_a_gpu(rmm):
    import rmm

    ours.install()
    assert ours.is_installed()
    data = np.arange(1 << 16, dtype=np.uint8)
    buffer = rmm.DeviceBuffer.to_device(data)
    assert (buffer.copy_to_host() == data).all()
    assert allocated() == 1 << 16
    stream, other = accelrt.Stream(), accelrt.Stream()
    on_stream = rmm.DeviceBuffer(size=5000, stream=stream_of(stream))
    on_stream.copy_from_host(data[:5000], stream_of(stream))
    assert accelrt.Stream.from_any(stream_of(stream)).cuda_stream == stream.cuda_stream
    assert bytes(on_stream.tobytes(stream_of(stream))) == data[:5000].tobytes()
    assert allocated() == (1 << 16) + 5120

    view = accelrt.asarray(buffer)  # by the CUDA Array Interface, which keeps the buffer alive
    assert (view.shape, view.dtype, view.ptr) == ((1 << 16,), np.uint8, buffer.ptr)
    del buffer
    assert (view.numpy() == data).all()
    assert allocated() == (1 << 16) + 5120
    accelrt.fill(view, 9)
    assert (view[100:200].numpy() == 9).all()
    del view
    assert allocated() == 5120

    accelrt.sleep(50_000_000, stream=other)
    resource = ours.resource()
    address = resource.allocate(MIB, stream_of(stream))
    resource.deallocate(address, MIB, stream_of(other))
    assert accelrt.Buffer(MIB, stream=stream).ptr != address, "the other stream is behind work"
    other.synchronize()

    pool = rmm.mr.PoolMemoryResource(ours.resource(), initial_pool_size=8 * MIB)
    pooled = rmm.DeviceBuffer(size=1000, mr=pool)
    assert allocated() == 8 * MIB + 5120
    del pooled, pool
    total = accelrt.mem_get_info()[1]
    accelrt.set_per_process_memory_fraction(256 * MIB / total)
    with pytest.raises(MemoryError, match=r"out of memory\. Tried to allocate 300"):
        rmm.DeviceBuffer(size=300 * MIB)
    del on_stream
    ours.uninstall()
    kept = rmm.DeviceBuffer(size=1000)
    assert (allocated(), kept.size) == (0, 1000)
    memory.audit()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["pool", "async", "cuda"])
@in_own_process(ACCELRT_DRIVER="cuda")
def test_accelrt_on_rmm_on_a_gpu(rmm, kind):
    import rmm

    accelrt.set_device(0)
    upstream = {
        "pool": lambda: rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=64 * MIB),
        "async": rmm.mr.CudaAsyncMemoryResource,
        "cuda": rmm.mr.CudaMemoryResource,
    }[kind]()
    counted = rmm.mr.StatisticsResourceAdaptor(upstream)
    memory.change_current_allocator(ours.from_rmm(rmm.mr.LimitingResourceAdaptor(counted, 32 * MIB)))
    use_memory(lambda: counted.allocation_counts.current_bytes, 32 * MIB)
    churn(lambda: counted.allocation_counts.current_bytes)
