"""Green contexts: on a GPU, and on the host device with a stand-in for cuda.bindings.driver."""

import copy
import enum
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from beside import on_a_thread

import accelrt
from accelrt import green_contexts
from accelrt.green_contexts import GreenContext, partition


class Flag(enum.IntEnum):
    CU_DEV_RESOURCE_TYPE_SM = 1
    CU_GREEN_CTX_DEFAULT_STREAM = 0x1
    CU_STREAM_NON_BLOCKING = 0x1


class StandIn:
    """A stand-in for cuda.bindings.driver: 132 multiprocessors in groups of 8, contexts that are numbers, and
    streams of the host device."""

    CUdevResourceType = CUgreenCtxCreate_flags = CUstream_flags = Flag

    def __init__(self):
        self.streams, self.made, self.refuse = [], [], {}
        self.stack = threading.local()

    def __getattribute__(self, name):
        if name.startswith("cu") and name in self.refuse:
            return lambda *_: (self.refuse[name],)
        return object.__getattribute__(self, name)

    def current(self):
        return self.stack.__dict__.setdefault("contexts", [1])

    def cuDeviceGet(self, ordinal):
        return 0, ordinal

    def cuDeviceGetDevResource(self, device, kind):
        assert kind is Flag.CU_DEV_RESOURCE_TYPE_SM
        return 0, SimpleNamespace(device=device, first=0, sm=SimpleNamespace(smCount=132))

    def cuDevSmResourceSplitByCount(self, count, whole, flags, least):
        assert flags == 0
        each = -(-least // 8) * 8
        made = min(count, whole.sm.smCount // each)
        groups = [SimpleNamespace(first=i * each, sm=SimpleNamespace(smCount=each)) for i in range(made)]
        return 0, groups, made, SimpleNamespace(sm=SimpleNamespace(smCount=132 - made * each))

    def cuDevResourceGenerateDesc(self, resources, total):
        assert total == len(resources) == 1
        return 0, resources[0]

    def cuGreenCtxCreate(self, description, device, flags):
        assert flags == 1
        self.made.append((device, description.first, description.sm.smCount))
        return 0, 100 + len(self.made)

    def cuCtxFromGreenCtx(self, handle):
        return 0, handle + 1000

    def cuGreenCtxStreamCreate(self, handle, flags, priority):
        assert (flags, priority) == (1, 0)
        device = self.made[handle - 101][0]
        self.streams.append(accelrt.Stream(device))
        return 0, self.streams[-1].cuda_stream

    def cuCtxPushCurrent(self, context):
        self.current().append(context)
        return (0,)

    def cuCtxPopCurrent(self):
        return 0, self.current().pop()

    def cuCtxGetCurrent(self):
        return 0, self.current()[-1]


@pytest.fixture
def stand_in(monkeypatch):
    if accelrt.device(0).type != "host":
        pytest.skip("the stand-in's streams are the host device's")
    made = StandIn()
    monkeypatch.setattr(green_contexts, "driver", lambda: made)
    monkeypatch.setattr(green_contexts, "_parts", {})
    return made


def test_a_context_has_at_least_what_was_asked_for(stand_in):
    context = GreenContext.create(10)
    assert (context.num_sms, context.device_index) == (16, 0)
    assert stand_in.made == [(0, 0, 16)]
    assert "16 multiprocessors of device 0" in repr(context)
    last = accelrt.device_count() - 1
    assert GreenContext.create(8, device_id=last).device_index == last


def test_the_same_part_of_a_device_is_one_context_of_the_driver(stand_in):
    one, other = GreenContext.create(16), GreenContext.create(16)
    del one
    assert len(stand_in.made) == 1
    assert other.num_sms == 16


def test_parts_have_nothing_in_common(stand_in):
    contexts = partition(24, 3, 0)
    assert [context.num_sms for context in contexts] == [24] * 3
    assert stand_in.made == [(0, 0, 24), (0, 24, 24), (0, 48, 24)]
    with pytest.raises(ValueError, match=r"make 1 parts of 60, not 2: the driver\s+rounds up") as told:
        stand_in.cuDevSmResourceSplitByCount = lambda *_: (0, [1], 1, None)
        partition(60, 2, 0)
    assert "ask for fewer" in str(told.value)


def test_streams_are_of_the_context_and_there_are_32(stand_in):
    context = GreenContext.create(8)
    streams = [context.Stream() for _ in range(40)]
    assert len({stream.cuda_stream for stream in streams}) == 32 == len(stand_in.streams)
    assert streams[33] == streams[1]
    assert {stream.device_index for stream in streams} == {0}
    with streams[0], accelrt.Buffer(64) as buffer:
        buffer.fill(3)
        streams[0].synchronize()


def test_the_context_and_one_of_its_streams_are_current_inside(stand_in):
    before, context = accelrt.Stream(0), GreenContext.create(8)
    with accelrt.Buffer(1 << 16) as buffer, before:
        accelrt.sleep(5_000_000)
        buffer.fill(1, stream=before)
        with context as entered:
            assert entered is context
            assert stand_in.current() == [1, 1101]
            assert accelrt.current_stream(0) in [*stand_in.streams]
            buffer.fill(2)  # behind what was put into the stream before
            accelrt.sleep(5_000_000)
            buffer.fill(3)
        assert stand_in.current() == [1]
        assert accelrt.current_stream() == before
        read = np.empty(1 << 16, np.uint8)
        buffer.copy_to(read)  # behind what was put into the context's stream
    assert set(read) == {3}


def test_contexts_nest_and_are_left_in_turn(stand_in):
    outer, inner = GreenContext.create(8), GreenContext.create(16)
    outer.set_context()
    inner.set_context()
    outer_again = stand_in.current()
    assert outer_again == [1, 1101, 1102]
    with pytest.raises(RuntimeError, match="is not this thread's current context; pop those first"):
        outer.pop_context()
    inner.pop_context()
    outer.pop_context()
    assert stand_in.current() == [1]
    with pytest.raises(RuntimeError, match="is not this thread's current context"):
        outer.pop_context()
    assert accelrt.current_stream(0) == accelrt.default_stream(0)


def test_another_thread_cannot_leave_it(stand_in):
    context = GreenContext.create(8)
    with context, pytest.raises(RuntimeError, match="is not this thread's current context"):
        on_a_thread(context.pop_context)


def test_what_the_driver_refuses_is_told_and_nothing_is_left_current(stand_in):
    context = GreenContext.create(8)
    stand_in.refuse["cuCtxPushCurrent"] = 201
    with pytest.raises(accelrt.CudaError, match=r"cuCtxPushCurrent\(device=0\) answered INVALID_CONTEXT"):
        context.set_context()
    assert accelrt.current_stream(0) == accelrt.default_stream(0)
    stand_in.refuse["cuGreenCtxCreate"] = 801
    with pytest.raises(accelrt.NotSupportedError, match=r"cuGreenCtxCreate\(device=0, num_sms=32\)"):
        GreenContext.create(30)
    del stand_in.refuse["cuGreenCtxCreate"]
    assert GreenContext.create(30).num_sms == 32


def test_a_driver_without_green_contexts_is_named(stand_in):
    def missing(*_):
        raise RuntimeError('Function "cuGreenCtxCreate" not found')

    stand_in.cuGreenCtxCreate = missing
    with pytest.raises(accelrt.NotSupportedError, match="has no cuGreenCtxCreate; green contexts need"):
        GreenContext.create(8)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: GreenContext.create(0), ValueError, "num_sms is 0; pass 1 or more"),
        (lambda: GreenContext.create("8"), TypeError, "num_sms is '8' of type str"),
        (lambda: GreenContext.create(133), RuntimeError, "num_sms is 133, 1 times; device 0 has 132"),
        (lambda: partition(70, 2, 0), ValueError, "num_sms is 70, 2 times; device 0 has 132"),
        (lambda: partition(8, 0), ValueError, "count is 0"),
        (lambda: GreenContext.create(8, 99), AssertionError, "Invalid device id"),
        (lambda: GreenContext(8), TypeError, "make a green context by"),
        (lambda: copy.copy(GreenContext.create(8)), TypeError, "cannot be pickled or copied: it is of this"),
    ],
)
def test_bad_arguments_are_named(stand_in, make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.host
def test_the_host_device_has_none():
    with pytest.raises(accelrt.NotSupportedError, match="the host device has no green contexts"):
        GreenContext.create(8)


SMID = r"""
extern "C" __global__ void places(unsigned int* out) {
    unsigned int id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    long long start = clock64();
    while (clock64() - start < 20000) {}
    out[blockIdx.x] = id;
}
"""


def places(stream):
    """The multiprocessors that the blocks of a kernel ran on."""
    kernel = accelrt.compile(SMID).function("places", "unsigned int* out")
    found = accelrt.zeros(2048, np.uint32)
    accelrt.synchronize()
    kernel[2048, 32, stream](found)
    stream.synchronize()
    return set(found.numpy().tolist())


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_kernels_stay_on_their_part_of_a_gpu():
    total = accelrt.get_device_properties(0).multi_processor_count
    least = 8 if total >= 16 else 2
    try:
        first, second = partition(least, 2, 0)
    except accelrt.NotSupportedError as error:
        pytest.skip(str(error))
    assert len(places(accelrt.Stream(0))) > first.num_sms + second.num_sms
    one, other = places(first.Stream()), places(second.Stream())
    assert 0 < len(one) <= first.num_sms
    assert 0 < len(other) <= second.num_sms
    assert not one & other
    with GreenContext.create(least) as context:
        assert accelrt.current_device() == 0
        assert len(places(accelrt.current_stream())) <= context.num_sms
    assert accelrt.current_stream() == accelrt.default_stream(0)


@pytest.mark.gpu
def test_memory_is_used_and_freed_on_a_contexts_streams():
    try:
        context = GreenContext.create(8)
    except accelrt.NotSupportedError as error:
        pytest.skip(str(error))
    side, event = context.Stream(), accelrt.Event()
    for _ in range(3):
        with side, accelrt.Buffer(1 << 20) as buffer:
            buffer.fill(7)
            event.record()
        with accelrt.Buffer(1 << 20) as other:
            accelrt.current_stream().wait_event(event)
            other.fill(1)
            other.record_stream(side)
    with context, accelrt.Buffer(1 << 20) as buffer:
        buffer.fill(9)
        read = np.empty(1 << 20, np.uint8)
        buffer.copy_to(read)
    assert set(read) == {9}
    graph = accelrt.CUDAGraph()
    with accelrt.Buffer(64) as buffer:
        with accelrt.graph(graph, stream=side):
            buffer.fill(5)
        with side:
            graph.replay()
        read = np.empty(64, np.uint8)
        side.synchronize()
        buffer.copy_to(read)
    assert set(read) == {5}
    graph.reset()
