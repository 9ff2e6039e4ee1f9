"""cuda.core on accelrt, and accelrt on cuda.core.

Without a GPU cuda.core makes buffers of memory that it is given; the first tests give it host memory."""

import contextlib
from unittest import mock

import numpy as np
import pytest
from backend_use import allocated, churn, use_memory
from beside import Gate, on_threads
from child import in_child

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows
from accelrt.interop import cuda_core as ours

MIB = 1 << 20


@pytest.fixture
def core():
    pytest.importorskip("cuda.core")
    return ours._load()


@pytest.fixture
def resource(core, on_host_memory):
    return ours.MemoryResource()


# --- cuda.core on accelrt -------------------------------------------------------------------------


@pytest.mark.host
def test_the_host_devices_memory_is_refused(core):
    with pytest.raises(accelrt.NotSupportedError, match="set ACCELRT_DRIVER=cuda"):
        ours.MemoryResource()


def test_the_class_is_made_once_and_found_by_name(core):
    assert ours.MemoryResource is ours.MemoryResource is accelrt.interop.cuda_core.MemoryResource
    assert issubclass(ours.MemoryResource, core.MemoryResource)
    assert "MemoryResource" in dir(ours)
    with pytest.raises(AttributeError, match="has no attribute 'Resource'"):
        _ = ours.Resource
    with pytest.raises(AttributeError, match="has no attribute 'jax'"):
        _ = accelrt.interop.jax


@pytest.mark.host
def test_what_a_resource_says_of_itself(resource):
    said = resource.is_device_accessible, resource.is_host_accessible, resource.device_id
    assert said == (True, False, 0)
    assert ours.MemoryResource("cuda:1").device_id == 1
    assert repr(ours.MemoryResource(1)) == "<accelrt.interop.cuda_core.MemoryResource of device 1>"
    with pytest.raises(ValueError, match="99"):
        ours.MemoryResource(99)


@pytest.mark.host
def test_buffers_are_memory_of_accelrts(core, resource):
    stream = core.Stream.from_handle(accelrt.Stream().cuda_stream)
    buffers = [resource.allocate(size, stream=stream) for size in (1, 1000, 3 * MIB)]
    assert [buffer.size for buffer in buffers] == [1, 1000, 3 * MIB]
    assert all(buffer.memory_resource is resource for buffer in buffers)
    assert accelrt.memory_allocated() == 512 + 1024 + 3 * MIB
    for buffer in buffers:
        buffer.close(stream)
    assert accelrt.memory_allocated() == 0


@pytest.mark.host
def test_a_buffer_belongs_to_its_stream(core, resource):
    stream, other = accelrt.Stream(), accelrt.Stream()
    buffer = resource.allocate(MIB, stream=stream)  # accelrt's own Stream
    address = int(buffer.handle)
    buffer.close(core.Stream.from_handle(stream.cuda_stream))
    assert accelrt.Buffer(MIB, stream=stream).ptr == address
    buffer = resource.allocate(MIB, stream=stream)
    with Gate(other):
        buffer.close(core.Stream.from_handle(other.cuda_stream))  # behind the other stream's work
        assert accelrt.memory_allocated() == 0
        assert accelrt.memory_stats()["active_bytes.all.current"] == MIB


@pytest.mark.host
def test_deallocate_takes_no_stream_too(core, resource):
    address = accelrt.caching_allocator_alloc(1000)
    resource.deallocate(address, 1000)
    assert accelrt.memory_allocated() == 0
    with pytest.raises(ValueError, match="is not allocated"):
        resource.deallocate(address, 1000)
    with pytest.raises(ValueError, match="is not allocated"):
        resource.deallocate(address, 1000, stream=accelrt.Stream())


@pytest.mark.host
def test_bad_arguments_leave_nothing(core, resource, full):
    held = accelrt.memory_allocated()
    with pytest.raises(TypeError, match="pass a stream of cuda"):
        resource.allocate(64, stream=3)
    with pytest.raises(ValueError, match="no stream that the driver knows"):
        resource.allocate(64, stream=core.Stream.from_handle(0x7777000))
    with pytest.raises(ValueError, match="size is -1"):
        resource.allocate(-1, stream=accelrt.Stream())
    with pytest.raises(accelrt.OutOfMemoryError):
        resource.allocate(4 * MIB, stream=accelrt.Stream())
    assert accelrt.memory_allocated() == held


@pytest.mark.host
def test_a_buffer_that_is_not_made_leaves_nothing(core, resource, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no buffer")

    def fails_late(address, size, maker, handle):
        maker.deallocate(address, size)  # what a half-made buffer does when it dies
        raise RuntimeError("no buffer")

    for function in (fails, fails_late):
        monkeypatch.setattr(ours.MemoryResource, "_make_buffer", staticmethod(function))
        with pytest.raises(RuntimeError, match="no buffer"):
            resource.allocate(1000)
        assert accelrt.memory_allocated() == 0


@pytest.mark.host
def test_threads_close_each_others_buffers(core, resource):
    made = []

    def work(seed):
        stream = accelrt.Stream()
        theirs = core.Stream.from_handle(stream.cuda_stream)
        for step in range(200):
            made.append(resource.allocate(1 + (seed * 7919 + step * 104729) % MIB, stream=theirs))
            if step % 3:
                made.pop(0).close(theirs)

    on_threads(work, range(4))
    assert accelrt.memory_allocated() == sum(-(-buffer.size // 512) * 512 for buffer in made)
    last = core.Stream.from_handle(accelrt.Stream().cuda_stream)
    for buffer in made:
        buffer.close(last)
    assert accelrt.memory_allocated() == 0


# --- accelrt on cuda.core -------------------------------------------------------------------------


def host_resource(core, ordinal=0):
    """A resource of cuda.core's of the host device's memory."""

    class Host(core.MemoryResource):
        is_device_accessible, is_host_accessible, is_managed, device_id = True, True, False, ordinal
        live, attached = 0, False

        def allocate(self, size, stream=None):
            if self.live + size > 8 * MIB:
                raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: the limit is reached")
            code, address = Rows().memory_alloc(ordinal, size)
            assert code == 0
            self.live += size
            return core.Buffer.from_handle(address, size, Reach(self))

        def deallocate(self, ptr, size, stream=None):
            assert Rows().memory_free(ordinal, int(ptr)) == 0
            self.live -= size

    class Reach(Host):
        """The same, for buffers: cuda.core needs a GPU to name a default stream, but not for host memory."""

        is_device_accessible = False

        def __init__(self, whole):
            self.whole = whole

        def deallocate(self, ptr, size, stream=None):
            self.whole.deallocate(ptr, size)

    return Host()


class Streams:
    """Stands in for cuda.core's streams: without a GPU it takes none when it closes a buffer.

    The second one that it takes would hang, in cuda.bindings' lock around the loading of libcuda, which the
    first one leaves locked: it found no library, in a call with an exception set already.
    """

    def __init__(self, library):
        self.asked = 0

    def of(self, handle):
        self.asked += 1


@contextlib.contextmanager
def streams_stood_in():
    """Has from_resource take Streams, and use them."""
    made = []

    def make(library):
        made.append(Streams(library))
        return made[-1]

    with mock.patch.object(ours, "_streams", make):  # an error where there is none of that name
        yield
    assert all(each.asked for each in made)


def from_resources():
    with streams_stood_in():
        use_two_resources()


def use_two_resources():
    core = ours._load()
    resources = [host_resource(core, ordinal) for ordinal in (0, 1)]
    memory.change_current_allocator(ours.from_resource(*resources))
    assert memory.get_allocator_backend() == "cuda.core"
    use_memory(lambda: resources[0].live, 8 * MIB)
    churn(lambda: resources[0].live)
    with accelrt.Buffer(1000, device=1):
        assert (resources[0].live, resources[1].live) == (0, 1000)
    assert resources[1].live == 0


def from_one_of_two():
    core = ours._load()
    memory.change_current_allocator(ours.from_resource(host_resource(core, 1)))
    with pytest.raises(RuntimeError, match=r"resources of the devices \[1\], and none of device 0"):
        accelrt.Buffer(64, device=0)


@pytest.mark.host
@pytest.mark.own_process
@pytest.mark.parametrize("function", [from_resources, from_one_of_two], ids=lambda each: each.__name__)
def test_accelrt_on_cuda_core(core, function):
    in_child(function)


@pytest.mark.host
def test_what_is_no_resource_is_refused(core, resource):
    with pytest.raises(TypeError, match="given no resource"):
        ours.from_resource()
    with pytest.raises(TypeError, match=r"3 of type int; pass a cuda\.core\.Mem"):
        ours.from_resource(3)
    with pytest.raises(ValueError, match="takes its memory from accelrt"):
        ours.from_resource(resource)
    with pytest.raises(ValueError, match="both of device 0; pass one"):
        ours.from_resource(host_resource(core), host_resource(core))
    nowhere = host_resource(core, -1)
    with pytest.raises(ValueError, match="belongs to no device"):
        ours.from_resource(nowhere)
    type(nowhere).is_device_accessible = False
    with pytest.raises(ValueError, match="has memory that"):
        ours.from_resource(nowhere)


# --- on a GPU -------------------------------------------------------------------------------------


def read(buffer, stream):
    """The bytes of a cuda.core Buffer, after the work of a stream."""
    out = np.zeros(buffer.size, np.uint8)
    accelrt.Stream.from_any(stream).synchronize()
    view = accelrt.asarray(buffer)
    out[:] = view.numpy().view(np.uint8)
    return out


def cuda_core_on_a_gpu():
    core = ours._load()
    device = core.Device(0)
    device.set_current()
    resource, stream = ours.MemoryResource(device), device.create_stream()
    assert accelrt.Stream.from_any(stream).cuda_stream == int(stream.handle)
    buffer = resource.allocate(1000, stream=stream)
    other = resource.allocate(1000, stream=stream)
    assert allocated() == 2048
    buffer.fill(7, stream=stream)
    buffer.copy_to(other, stream=stream)
    assert (read(other, stream) == 7).all()
    other.close(stream)
    assert allocated() == 1024

    mine = accelrt.Stream()  # accelrt's stream as one of cuda.core's
    theirs = device.create_stream(mine)
    assert int(theirs.handle) == mine.cuda_stream
    other = resource.allocate(1000, stream=theirs)
    other.fill(3, stream=theirs)
    assert (read(other, theirs) == 3).all()
    del other  # on the stream that it was allocated on, or on the default stream
    assert allocated() == 1024

    device.memory_resource = resource
    assert device.allocate(5000, stream=theirs).memory_resource is resource
    default = resource.allocate(512, stream=device.default_stream)
    default.fill(1, stream=device.default_stream)
    assert (read(default, device.default_stream) == 1).all()
    default.close()
    assert allocated() == 1024

    view = accelrt.asarray(buffer)  # by DLPack, which keeps the buffer alive
    assert view.ptr == int(buffer.handle)
    del buffer
    assert (view.numpy().view(np.uint8) == 7).all()
    assert allocated() == 1024
    del view
    assert allocated() == 0

    gate = accelrt.Stream()
    accelrt.sleep(50_000_000, stream=gate)
    buffer = resource.allocate(MIB, stream=mine)
    address = int(buffer.handle)
    buffer.close(device.create_stream(gate))
    assert accelrt.Buffer(MIB, stream=mine).ptr != address, "the other stream is behind work"
    accelrt.synchronize()
    with pytest.raises(accelrt.OutOfMemoryError):
        resource.allocate(1 << 50, stream=stream)
    array = accelrt.full((100,), 4, dtype=np.uint8)  # accelrt's memory as a buffer of cuda.core's
    accelrt.synchronize()
    theirs = core.Buffer.from_handle(array.ptr, array.nbytes, owner=array)
    del array
    assert (read(theirs, stream) == 4).all()
    theirs.close()
    assert allocated() == 0
    memory.audit()


def accelrt_on_cuda_core_on_a_gpu():
    core = ours._load()
    core.Device(0).set_current()
    inner = core.DeviceMemoryResource(0)
    live = {}

    class Counted(core.MemoryResource):
        is_device_accessible, is_host_accessible, is_managed, device_id = True, False, False, 0

        def allocate(self, size, *, stream):
            if sum(live.values()) + size > 32 * MIB:
                raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
            kept = inner.allocate(size, stream=stream)
            live[int(kept.handle)] = size
            buffers[int(kept.handle)] = kept
            return core.Buffer.from_handle(int(kept.handle), size, self)

        def deallocate(self, ptr, size, *, stream):
            del live[int(ptr)]
            buffers.pop(int(ptr)).close(stream)

    buffers = {}
    memory.change_current_allocator(ours.from_resource(Counted()))
    use_memory(lambda: sum(live.values()), 32 * MIB)
    churn(lambda: sum(live.values()))


def accelrt_on_a_device_resource():
    core = ours._load()
    core.Device(0).set_current()
    memory.change_current_allocator(ours.from_resource(core.DeviceMemoryResource(0)))

    churn(lambda: 0)
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        accelrt.Buffer(1 << 40)
    assert isinstance(caught.value.__cause__, MemoryError)
    memory.audit()


@pytest.mark.gpu
@pytest.mark.own_process
@pytest.mark.parametrize(
    "function",
    [cuda_core_on_a_gpu, accelrt_on_cuda_core_on_a_gpu, accelrt_on_a_device_resource],
    ids=lambda each: each.__name__,
)
def test_on_a_gpu(core, function):
    in_child(function, ACCELRT_DRIVER="cuda")
