"""Objects whose __init__ was never called, or is called twice: an error that says so, and never a crash."""

import contextlib

import numpy as np
import pytest
from child import Forks
from package_classes import CLASSES, EXTENSION, without_init

import accelrt


def call_everything(name):
    """Calls each method of a class on an object whose __init__ was never called, and reads each attribute."""
    kind = CLASSES[name]
    arguments = [
        (),
        (None,),
        (0,),
        (accelrt.Stream(),),
        (None, None, None),
        (bytearray(8),),
        (1, 2),
        (print,),
    ]
    for attribute in sorted(
        set(dir(kind)) - {"__class__", "__subclasshook__", "__init_subclass__", "__new__"}
    ):
        for given in arguments:
            thing = without_init(kind)
            print(name, attribute, given, flush=True)
            with contextlib.suppress(Exception):
                method = getattr(thing, attribute)
                if callable(method):
                    method(*given)
            with contextlib.suppress(Exception):
                thing.__exit__(None, None, None)
    accelrt.set_stream(accelrt.default_stream(0))
    accelrt.synchronize()
    accelrt.memory.audit()


@pytest.fixture(scope="module")
def forks():
    forks = Forks(call_everything)
    yield forks
    forks.close()


@pytest.mark.parametrize("name", sorted(EXTENSION | {"accelrt.streams.stream.ExternalStream"}))
def test_what_was_never_initialised_crashes_nothing(forks, name):
    forks.call(name)


def forgetful(kind):
    """An object of a class that derives from one of accelrt's and does not call its __init__."""
    return type("Forgetful", (kind,), {"__init__": lambda self: None})()


UNMADE = {
    "Stream.query": lambda: forgetful(accelrt.Stream).query(),
    "Stream.synchronize": lambda: forgetful(accelrt.Stream).synchronize(),
    "Stream.wait_event": lambda: forgetful(accelrt.Stream).wait_event(accelrt.Event()),
    "Stream.wait_stream": lambda: forgetful(accelrt.Stream).wait_stream(accelrt.default_stream()),
    "wait_stream(Stream)": lambda: accelrt.default_stream().wait_stream(forgetful(accelrt.Stream)),
    "Stream.record_event": lambda: forgetful(accelrt.Stream).record_event(),
    "Stream.launch_host_func": lambda: forgetful(accelrt.Stream).launch_host_func(int),
    "Stream.cuda_stream": lambda: forgetful(accelrt.Stream).cuda_stream,
    "Stream.__cuda_stream__": lambda: forgetful(accelrt.Stream).__cuda_stream__(),
    "Stream.priority": lambda: forgetful(accelrt.Stream).priority,
    "ExternalStream.query": lambda: forgetful(accelrt.ExternalStream).query(),
    "stream(Stream)": lambda: accelrt.stream(forgetful(accelrt.Stream)),
    "set_stream(Stream)": lambda: accelrt.set_stream(forgetful(accelrt.Stream)),
    "Event.record(Stream)": lambda: accelrt.Event().record(forgetful(accelrt.Stream)),
    "Event.wait(Stream)": lambda: accelrt.Event().wait(forgetful(accelrt.Stream)),
    "Buffer(stream=Stream)": lambda: accelrt.Buffer(64, stream=forgetful(accelrt.Stream)),
    "fill(stream=Stream)": lambda: accelrt.Buffer(64).fill(stream=forgetful(accelrt.Stream)),
    "graph(stream=Stream)": lambda: accelrt.graph(accelrt.CUDAGraph(), stream=forgetful(accelrt.Stream)),
    "Buffer.record_stream": lambda: forgetful(accelrt.Buffer).record_stream(accelrt.default_stream()),
    "Array.T": lambda: forgetful(accelrt.Array).T,
    "Array[0]": lambda: forgetful(accelrt.Array)[0],
    "Array.record_stream": lambda: forgetful(accelrt.Array).record_stream(accelrt.default_stream()),
    "Array.__dlpack__": lambda: forgetful(accelrt.Array).__dlpack__(),
    "Array.numpy": lambda: forgetful(accelrt.Array).numpy(),
    "Array.fill_": lambda: forgetful(accelrt.Array).fill_(0),
    "empty_like(Array)": lambda: accelrt.empty_like(forgetful(accelrt.Array)),
    "MemPool.id": lambda: forgetful(accelrt.MemPool).id,
    "MemPool.stats": lambda: forgetful(accelrt.MemPool).stats(),
    "MemPool.use_count": lambda: forgetful(accelrt.MemPool).use_count(),
    "use_mem_pool(MemPool)": lambda: accelrt.use_mem_pool(forgetful(accelrt.MemPool)),
    "graph(pool=MemPool)": lambda: accelrt.graph(accelrt.CUDAGraph(), forgetful(accelrt.MemPool)).__enter__(),
    "use_mem_pool.__enter__": lambda: forgetful(accelrt.use_mem_pool).__enter__(),
    "graph.__enter__": lambda: forgetful(accelrt.graph).__enter__(),
    "Branch.__enter__": lambda: forgetful(CLASSES["accelrt.graphs.graph.Branch"]).__enter__(),
    "device.__enter__": lambda: forgetful(accelrt.device).__enter__(),
    "set_device(device)": lambda: accelrt.set_device(forgetful(accelrt.device)),
    "Resource.allocate": lambda: forgetful(accelrt.resources.Resource).allocate(64),
    "DeviceResource.buffer": lambda: forgetful(accelrt.resources.DeviceResource).buffer(64),
    "Adaptor.allocate": lambda: forgetful(accelrt.resources.Adaptor).allocate(64),
    "PoolResource.buffer": lambda: forgetful(accelrt.resources.PoolResource).buffer(64),
    "Adaptor(Resource)": lambda: accelrt.resources.Adaptor(forgetful(accelrt.resources.Adaptor)),
    "DeviceBuffer(resource=Resource)": lambda: accelrt.resources.DeviceBuffer(
        64, resource=forgetful(accelrt.resources.BinningResource)
    ),
    "change_current_allocator": lambda: accelrt.memory.change_current_allocator(
        forgetful(accelrt.memory.CUDAPluggableAllocator)
    ),
    "change_current_allocator(callbacks)": lambda: accelrt.memory.change_current_allocator(
        forgetful(accelrt.memory.CallbackAllocator)
    ),
}


@pytest.mark.parametrize("name", UNMADE)
def test_what_was_never_initialised_says_so(name):
    with pytest.raises(RuntimeError, match=r"this Forgetful was never initialised: .* super\(\)"):
        UNMADE[name]()
    assert accelrt.current_stream() == accelrt.default_stream()


def whole():
    pool, graph = accelrt.MemPool(), accelrt.CUDAGraph()
    yield accelrt.Stream(), ()
    yield accelrt.current_stream().record_event(), ()
    yield accelrt.ExternalStream(0), (0,)
    yield accelrt.Buffer(64), (64,)
    yield accelrt.PinnedBuffer(64), (64,)
    yield accelrt.Array(accelrt.Buffer(64)), (accelrt.Buffer(64),)
    yield accelrt.register_host(np.zeros(4096, np.uint8)), (bytearray(64),)
    yield pool, ()
    yield graph.if_(accelrt.Buffer(4)), (graph, accelrt.Buffer(4), 0)
    device = accelrt.resources.DeviceResource()
    yield device, ()
    for kind in ("Adaptor", "StatisticsAdaptor", "PoolResource", "FixedSizeResource", "BinningResource"):
        resource = getattr(accelrt.resources, kind)(device)
        yield resource, (resource,)


def test_no_resource_stands_on_itself():
    adaptor = accelrt.resources.Adaptor.__new__(accelrt.resources.Adaptor)
    with pytest.raises(RuntimeError, match="never initialised"):
        adaptor.__init__(adaptor)


def test_being_made_twice_is_refused():
    for thing, arguments in whole():
        with pytest.raises(RuntimeError, match=r"made (and recorded )?already|initialised once"):
            thing.__init__(*arguments)


@pytest.mark.parametrize("kind", ["stream", "use_mem_pool", "graph"])
def test_a_context_is_not_made_anew_while_it_is_entered(kind):
    buffer, pool = accelrt.Buffer(64), accelrt.MemPool()
    context, arguments = {
        "stream": (accelrt.stream(accelrt.Stream()), (None,)),
        "use_mem_pool": (accelrt.use_mem_pool(pool), (accelrt.MemPool(),)),
        "graph": (accelrt.graph(accelrt.CUDAGraph()), (accelrt.CUDAGraph(),)),
    }[kind]
    with context:
        buffer.fill(0)
        with pytest.raises(RuntimeError, match="is entered; make another one"):
            context.__init__(*arguments)
    assert accelrt.current_stream() == accelrt.default_stream()
    assert pool.use_count() == 1
