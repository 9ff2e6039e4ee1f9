"""Green contexts: on a GPU, and on the host device with a stand-in for cuda.bindings.driver."""

import enum
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from beside import on_a_thread

import accelrt
from accelrt import green_contexts
from accelrt.green_contexts import GreenContext, device_resources, partition, plan, split, stream_resources
from accelrt.streams import host_parts
from accelrt.streams.host_parts import Group, HostParts, Kind, Scope


class Flag(enum.IntEnum):
    CU_DEV_RESOURCE_TYPE_SM = 1
    CU_GREEN_CTX_DEFAULT_STREAM = 0x1
    CU_STREAM_NON_BLOCKING = 0x1


def multiprocessors(first, count, flags=0, domain=0):
    sm = SimpleNamespace(
        smCount=count, minSmPartitionSize=8, smCoscheduledAlignment=8, flags=flags, localityDomainId=domain
    )
    return SimpleNamespace(first=first, sm=sm)


class StandIn:
    """A stand-in for cuda.bindings.driver: 132 multiprocessors in groups of 8, contexts that are numbers, and
    streams of the host device."""

    CUdevResourceType = CUgreenCtxCreate_flags = CUstream_flags = Flag

    def __init__(self):
        self.streams, self.made, self.refuse, self.resources = [], [], {}, []
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
        self.resources.append(description)
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


class Newer(StandIn):
    """The same of CUDA 13.4: groups of several sizes, work queues, two locality domains of 66."""

    CUdevResourceType = Kind
    CUdevWorkqueueConfigScope = Scope
    CU_DEV_SM_RESOURCE_GROUP_PARAMS = Group

    def cuDeviceGetDevResource(self, device, kind):
        if kind is Kind.CU_DEV_RESOURCE_TYPE_SM:
            return 0, multiprocessors(0, 132)
        return 0, SimpleNamespace(wqConfig=SimpleNamespace(wqConcurrencyLimit=32, sharingScope=0))

    def cuDevSmResourceSplitByCount(self, count, whole, flags, least):
        each = -(-least // 8) * 8
        return 0, [multiprocessors(number * each, each) for number in range(count)], count, None

    def cuDevSmResourceSplit(self, count, whole, flags, parameters):
        assert (flags, count) == (0, len(parameters))
        groups, first, end = [], whole.first, whole.first + whole.sm.smCount
        for each in parameters:
            if each.flags & 2:
                first = max(first, 66 * each.localityDomainId)
            size = each.smCount or end - first
            if not each.flags & 1 and size % 8 and each.smCount:
                return 915, None, None
            groups.append(multiprocessors(first, size, each.flags, each.localityDomainId))
            first += size
        return 0, groups, multiprocessors(first, end - first)

    def cuDevResourceGenerateDesc(self, resources, total):
        assert total == len(resources) in (1, 2)
        sms = resources[0]
        sms.queues = resources[1] if total == 2 else self.cuDeviceGetDevResource(0, None)[1]
        return 0, sms

    def cuGreenCtxGetDevResource(self, handle, kind):
        part = self.resources[handle - 101]
        return 0, part if kind is Kind.CU_DEV_RESOURCE_TYPE_SM else part.queues

    def cuStreamGetDevResource(self, stream, kind):
        assert kind is Kind.CU_DEV_RESOURCE_TYPE_SM
        return 0, self.of_streams[stream]

    def cuGreenCtxGetId(self, handle):
        return 0, 7000 + handle


def put_in_place(monkeypatch, driver):
    if accelrt.device(0).type != "host":
        pytest.skip("the stand-in's streams are the host device's")
    monkeypatch.setattr(green_contexts, "driver", lambda: driver)
    monkeypatch.setattr(green_contexts, "_parts", {})
    return driver


@pytest.fixture
def newer(monkeypatch):
    return put_in_place(monkeypatch, Newer())


@pytest.fixture
def stand_in(monkeypatch):
    return put_in_place(monkeypatch, StandIn())


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
    ],
)
def test_bad_arguments_are_named(stand_in, make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_one_split_makes_groups_of_several_sizes_without_a_common_part(newer):
    small, large, rest = split([16, 64, None], 0)
    assert newer.made == [(0, 0, 16), (0, 16, 64), (0, 80, 52)]
    assert [context.num_sms for context in (small, large, rest)] == [16, 64, 52]
    again = split((16, 64, None), 0)
    assert [context.num_sms for context in again] == [16, 64, 52]
    assert len(newer.made) == 3
    assert len({context.Stream().cuda_stream for context in (small, large, rest)}) == 3


def test_a_part_is_split_further(newer):
    _, large = split([32, 96], 0)
    first, second = split([16, None], within=large)
    assert newer.made[2:] == [(0, 32, 16), (0, 48, 80)]
    assert (first.device_index, second.num_sms) == (0, 80)
    assert split([16, None], 0)[1].num_sms == 116  # of the whole device


def test_groups_that_the_device_cannot_make_are_explained(newer):
    with pytest.raises(accelrt.CudaError, match="ask in multiples of the alignment that device_resources"):
        split([12, 24], 0)
    assert [context.num_sms for context in split([12, 24], 0, backfill=True)] == [12, 24]
    assert [context.num_sms for context in split([12, 24], 0, backfill=[True, False])] == [12, 24]
    with pytest.raises(ValueError, match=r"counts are \[100, 40\], 140 in all; there are 132"):
        split([100, 40], 0)


def test_what_a_context_and_a_device_have_is_told(newer):
    whole = device_resources(0)
    assert whole == (132, 8, 8, None, "device_ctx", 32)
    plain = GreenContext.create(16)
    assert plain.resources == (16, 8, 8, None, "device_ctx", 32)
    queued = split([24], 0, workqueue_scope="balanced", workqueue_concurrency_limit=4)[0]
    assert queued.resources == (24, 8, 8, None, "balanced", 4)
    assert queued.context_id == 7100 + len(newer.made)
    assert queued.handle == 100 + len(newer.made)
    assert queued.raw_context == queued.handle + 1000
    assert GreenContext.max_workqueue_concurrency(0) == 32


def test_a_plan_makes_no_context(newer):
    made = plan([16, 64], 0)
    assert [group.num_sms for group in made.groups] == [16, 64]
    assert (made.remainder, newer.made) == (52, [])
    (rest,), left = plan([None], 0)
    assert (rest.num_sms, rest.sm_alignment, left) == (132, 8, 0)
    large = split([96, 32], 0)[0]
    assert plan([32, 8], within=large).remainder == 56
    assert len(newer.made) == 2
    with pytest.raises(ValueError, match="counts are"):
        plan([200], 0)


def test_a_stream_tells_what_its_kernels_run_on(newer):
    stream = split([24, 8], 0)[0].Stream()
    newer.of_streams = {stream.cuda_stream: newer.resources[0]}
    assert stream_resources(stream).num_sms == 24
    with pytest.raises(TypeError, match="stream is 3 of type int; pass a Stream"):
        stream_resources(3)


def test_work_queues_alone_leave_all_multiprocessors(newer):
    context = GreenContext.create(workqueue_scope="balanced")
    assert (context.num_sms, context.resources.workqueue_scope) == (132, "balanced")
    other = GreenContext.create(workqueue_scope="device_ctx", workqueue_concurrency_limit=2)
    assert other.resources[4:] == ("device_ctx", 2)
    assert len(newer.made) == 2
    with pytest.raises(ValueError, match="workqueue_concurrency_limit is 33; device 0 has 32 at most"):
        GreenContext.create(workqueue_concurrency_limit=33)


def test_a_context_may_be_of_a_locality_domain(newer, monkeypatch):
    monkeypatch.setattr(green_contexts, "domains_of", lambda device: 2)
    near = GreenContext.create(16, locality_domain_id=1)
    assert near.resources == (16, 8, 8, 1, "device_ctx", 32)
    assert newer.made == [(0, 66, 16)]
    assert split([8, 8], 0, locality_domain_id=(0, 1))[1].resources.locality_domain_id == 1
    with pytest.raises(ValueError, match="locality_domain_id is 2; device 0 has 2"):
        GreenContext.create(8, locality_domain_id=2)


def test_memory_inside_comes_from_the_contexts_own_pool(newer):
    one, other = split([16, 32], 0, own_pool=True)
    assert one.mem_pool.id != other.mem_pool.id
    assert split([16, 32], 0)[0].mem_pool is None
    with one:
        mine = accelrt.Buffer(1 << 20)
        with other:
            theirs = accelrt.Buffer(1 << 20)
        more = accelrt.Buffer(1 << 20)
    outside = accelrt.Buffer(1 << 20)
    owners = {}
    for segment in accelrt.memory_snapshot():
        for block in segment["blocks"]:
            owners[block["address"]] = segment["segment_pool_id"]
    assert owners[mine.ptr] == owners[more.ptr] == one.mem_pool.id
    assert owners[theirs.ptr] == other.mem_pool.id
    assert owners[outside.ptr] == (0, 0)
    for buffer in (mine, theirs, more, outside):
        buffer.free()


def test_bindings_that_are_newer_than_the_driver_are_no_trouble(newer):
    sms = newer.cuDeviceGetDevResource

    def ask(device, kind):
        return sms(device, kind) if kind is Kind.CU_DEV_RESOURCE_TYPE_SM else (914, None)

    newer.cuDeviceGetDevResource = ask
    assert device_resources(0) == (132, 8, 8, None, None, None)
    with pytest.raises(accelrt.CudaError, match=r"work queues need CUDA 13\.1"):
        GreenContext.create(8, workqueue_scope="balanced")
    newer.cuDeviceGetDevResource = lambda device, kind: (999, None)
    with pytest.raises(accelrt.CudaError, match="999"):
        device_resources(0)


def test_an_older_driver_says_what_it_lacks(stand_in):
    with pytest.raises(accelrt.NotSupportedError, match=r"groups of several sizes need CUDA 13\.1"):
        split([8, 16], 0)
    with pytest.raises(accelrt.NotSupportedError, match=r"work queues need CUDA 13\.1"):
        GreenContext.create(8, workqueue_scope="balanced")
    with pytest.raises(accelrt.NotSupportedError, match="no work queues to configure"):
        GreenContext.max_workqueue_concurrency(0)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: split([], 0), TypeError, "counts is \\[\\]; pass a list of ints"),
        (lambda: split(8, 0), TypeError, "counts is 8; pass a list"),
        (lambda: split([0], 0), ValueError, "counts is 0; pass 1 or more"),
        (lambda: split(["8"], 0), TypeError, "counts is '8' of type str"),
        (lambda: split([8, 8], 0, backfill=[True]), ValueError, "backfill has 1 items for 2 groups"),
        (lambda: split([8], 0, coscheduled_sm_count=-1), ValueError, "coscheduled_sm_count is -1; pass 0"),
        (lambda: split([8], 0, within=3), TypeError, "within is 3 of type int; pass a GreenContext"),
        (lambda: split([8], 0, own_pool=1), TypeError, "own_pool is 1 of type int; pass a bool"),
        (lambda: split([8], 0, workqueue_scope="mine"), ValueError, "it may be device_ctx, balanced"),
        (lambda: split([8], 0, workqueue_concurrency_limit=0), ValueError, "limit is 0; pass 1 or more"),
        (lambda: split([8], 0, locality_domain_id=5), ValueError, "locality_domain_id is 5; device 0 has 1"),
        (lambda: GreenContext.create(), ValueError, "num_sms is None; pass it, a workqueue_scope or"),
    ],
)
def test_bad_arguments_of_a_split_are_named(newer, make, error, text):
    with pytest.raises(error, match=text):
        make()
    assert newer.made == []


@pytest.fixture
def processors(monkeypatch):
    """The host device's own green contexts, with so many multiprocessors."""
    monkeypatch.setattr(green_contexts, "_parts", {})
    monkeypatch.setattr(green_contexts, "_host_parts", HostParts())
    properties = SimpleNamespace(multi_processor_count=12)
    monkeypatch.setattr(host_parts, "get_device_properties", lambda device: properties)
    return 12


@pytest.mark.host
def test_processors_of_the_cpu_are_the_host_devices_multiprocessors():
    total = accelrt.get_device_properties(0).multi_processor_count
    assert device_resources(0) == (total, 1, 1, None, "device_ctx", 32)
    assert GreenContext.create(total).num_sms == total
    with pytest.raises(ValueError, match=f"device 0 has {total} multiprocessors"):
        GreenContext.create(total + 1)


@pytest.mark.host
def test_parts_of_the_host_device_have_nothing_in_common(processors):
    small, large, rest = split([2, 4, None], 0, workqueue_scope="balanced", workqueue_concurrency_limit=3)
    assert [each.resources.num_sms for each in (small, large, rest)] == [2, 4, 6]
    assert small.resources[4:] == ("balanced", 3)
    assert len({each.context_id for each in (small, large, rest)}) == 3
    first, second = split([1, None], within=large)
    assert (first.num_sms, second.num_sms) == (1, 3)
    assert [each.num_sms for each in partition(5, 2, 0)] == [5, 5]
    assert plan([3], within=rest).remainder == 3
    with pytest.raises(
        accelrt.CudaError, match=r"INVALID_RESOURCE_CONFIGURATION.*the device has no such groups"
    ):
        split([6, 6, None], 0)
    with pytest.raises(ValueError, match="12 multiprocessors"):
        partition(5, 3, 0)
    with pytest.raises(ValueError, match="workqueue_concurrency_limit is 33; device 0 has 32"):
        GreenContext.create(workqueue_concurrency_limit=33)


@pytest.mark.host
def test_work_on_streams_of_parts_of_the_host_device_is_done(processors):
    small, rest = split([4, None], 0, own_pool=True)
    streams = [small.Stream(), rest.Stream()]
    assert [stream_resources(stream).num_sms for stream in streams] == [4, 8]
    assert stream_resources(accelrt.Stream(0)).num_sms == processors
    with small, accelrt.Buffer(64) as buffer:
        assert small.mem_pool.use_count() > 0
        assert stream_resources(accelrt.current_stream(0)).num_sms == 4
        with rest:
            buffer.fill(3)
            assert stream_resources(accelrt.current_stream(0)).num_sms == 8
            with pytest.raises(RuntimeError, match="is not this thread's current context"):
                small.pop_context()
        read = np.empty(64, np.uint8)
        buffer.copy_to(read)
    assert set(read) == {3}
    assert accelrt.current_stream(0) == accelrt.default_stream(0)


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


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_groups_of_several_sizes_have_nothing_in_common_on_a_gpu():
    try:
        whole = device_resources(0)
        small, rest = split([whole.min_sm_partition or 8, None], 0, own_pool=True)
    except accelrt.NotSupportedError as error:
        pytest.skip(str(error))
    assert small.num_sms + rest.num_sms <= whole.num_sms
    assert small.resources.num_sms == small.num_sms < rest.num_sms
    one, other = places(small.Stream()), places(rest.Stream())
    assert 0 < len(one) <= small.num_sms
    assert 0 < len(other) <= rest.num_sms
    assert not one & other
    assert stream_resources(small.Stream()).num_sms == small.num_sms
    assert plan([small.num_sms, None], 0).groups[0].num_sms == small.num_sms
    with small, accelrt.Buffer(1 << 20) as buffer:
        buffer.fill(3)
        assert small.mem_pool.use_count() > 0
    if whole.workqueue_scope is not None:
        queued = GreenContext.create(workqueue_scope="balanced", workqueue_concurrency_limit=2)
        assert queued.resources.workqueue_concurrency_limit == 2
        assert queued.resources.workqueue_scope == "balanced"


@pytest.mark.host
def test_a_pop_that_is_refused_can_be_tried_again(stand_in):
    before, part, graph = accelrt.current_stream(), GreenContext.create(8), accelrt.CUDAGraph()
    part.set_context()
    graph.capture_begin()
    with pytest.raises(accelrt.CudaError):
        part.pop_context()  # the default stream cannot wait for a capture
    with pytest.raises(accelrt.CaptureError):
        graph.capture_end()
    part.pop_context()
    assert accelrt.current_stream() == before
    with pytest.raises(RuntimeError, match="not this thread's current context"):
        part.pop_context()
