"""What owns something is neither copied nor pickled, and can be referred to weakly: every class there is."""

import copy
import enum
import gc
import os
import pickle
import weakref

import numpy as np
import pytest
from package_classes import CLASSES, EXTENSION, HEAP_TYPE, derives_from_others, without_init

import accelrt

# Extension classes whose objects are data: a copy stands for the same thing.
DATA = {"accelrt.devices.device.device", "accelrt.kernels.elementwise.ElementwiseKernel"}
# Classes whose objects say where memory of a process is, and pickle so that another one finds it.
HANDLES = {
    "accelrt.interop.torch_sharing.Handle",
    "accelrt.memory.ipc_handles.IPCAllocationHandle",
    "accelrt.sharing.consumer.PinnedPlace",
    "accelrt.sharing.consumer.Place",
    "accelrt.sharing.handles.MemoryHandle",
    "accelrt.sharing.handles.PinnedHandle",
}
# Classes written in Python that no user meets alone: programs, tables and records of one process.
PARTS = {
    "accelrt.annotations.DeviceLike",
    "accelrt.nvtx._Range",
    "accelrt.tools.cli.commands.export.Collector",
    "accelrt.tools.cli.interrupts.HeldInterrupts",
    "accelrt.tools.cli.main.Formatter",
    "accelrt.tools.cli.main.Parser",
    "accelrt.tools.cli.pipeline.Pipeline",
    "accelrt.tools.cli.text.Progress",
    "accelrt.tools.cli.commands.replay.Replayer",
    "accelrt.tools.cli.sample.Sampler",
    "accelrt.tools.cli.commands.top.keys.Keys",
    "accelrt.tools.cli.commands.top.state.State",
    "accelrt.checkpoint_listener.Listener",
    "accelrt.core.stubgen.Source",
    "accelrt.env.Variable",
    "accelrt.gds.Description",
    "accelrt.green_contexts.Entry",
    "accelrt.green_contexts.Part",
    "accelrt.resources.current.Entry",
    "accelrt.tools.viewer.html_page.ColumnWriter",
    "accelrt.tools.viewer.snapshot_columns.DeviceRecording",
    "accelrt.tools.viewer.snapshot_columns.Places",
    "accelrt.tools.viewer.snapshot_columns.Recording",
    "accelrt.graphs.callables.Inputs",
    "accelrt.graphs.callables.Static",
    "accelrt.graphs.callables.Turns",
    "accelrt.graphs.parameters.Place",
    "accelrt.interop.peers.StreamsByHandle",
    "accelrt.interop.rmm._Handle",
    "accelrt.interop.torch_regions.Regions",
    "accelrt.kernels.apart.Call",
    "accelrt.kernels.elf_image.Object",
    "accelrt.memory.explain.Case",
    "accelrt.memory.explain.Cause",
    "accelrt.memory.history.flame_svg.Box",
    "accelrt.memory.history.compact_form.Reader",
    "accelrt.memory.history.compact_form.Tables",
    "accelrt.memory.history.drain.Drain",
    "accelrt.memory.history.memory_history.Recorder",
    "accelrt.memory.history.plain_pickle.PlainUnpickler",
    "accelrt.resources.profiles.AllocationProfile",
    "accelrt.resources.profiles.LineProfile",
    "accelrt.resources.profiles.ProfiledPart",
    "accelrt.memory.history.snapshot_checks.Checker",
    "accelrt.memory.history.torch_form.EventPickler",
    "accelrt.memory.history.torch_form.PartPickler",
    "accelrt.nccl.collectives._Call",
    "accelrt.nccl.ranks.Groups",
    "accelrt.nccl.ranks.OpenGroup",
    "accelrt.nccl.ranks.InGraph",
    "accelrt.nccl.groups.Joining",
    "accelrt.nccl.groups.Operation",
    "accelrt.nccl.rendezvous._Asker",
    "accelrt.nccl.rendezvous._GivesUp",
    "accelrt.nccl.rendezvous._Guest",
    "accelrt.nccl.rendezvous._Server",
    "accelrt.tools.publish.Writer",
    "accelrt.random.defaults.DefaultGenerators",
    "accelrt.runtime.cuda_status.cudaStatus",
    "accelrt.sharing.consumer.GiveBack",
    "accelrt.sharing.consumer.Mark",
    "accelrt.sharing.consumer.Owner",
    "accelrt.sharing.counters.Counter",
    "accelrt.sharing.producer.Borrower",
    "accelrt.sharing.producer.Lender",
    "accelrt.sharing.producer.LentTensor",
    "accelrt.sharing.producer.Offer",
    "accelrt.sharing.producer.PinnedFile",
    "accelrt.sharing.tensors.Opened",
    "accelrt.sharing.tensors.TensorPlace",
    "accelrt.sharing.threads.Service",
    "accelrt.sanitizer.detector.Detector",
    "accelrt.sanitizer.scope.Captured",
    "accelrt.sanitizer.scope.Scope",
    "accelrt.sanitizer.scope.Uses",
    "accelrt.streams.host_parts.Group",
    "accelrt.streams.host_parts.HostParts",
    "accelrt.streams.steps.AsyncGeneratorSteps",
    "accelrt.streams.steps.CoroutineSteps",
    "accelrt.streams.steps.GeneratorSteps",
    "accelrt.streams.steps.Steps",
    "accelrt.testing.interleavings.Interleaver",
    "accelrt.testing.interleavings.Worker",
    "accelrt.testing.leaks.LeakCheck",
    "accelrt.testing.threads.Caller",
    "accelrt.testing.threads.Gate",
    "accelrt.tools.traces.address_pairs.PairedEvents",
    "accelrt.tools.traces.npz_archive.BoundedFile",
    "accelrt.visible.UuidReader",
}


def is_data(kind):
    """Exceptions, tuples, dataclasses, enumerations and interfaces hold values alone."""
    return (
        issubclass(kind, (BaseException, str, int, tuple, enum.Enum, accelrt.device))
        or hasattr(kind, "__dataclass_fields__")
        or kind.__module__.startswith(
            (
                *("accelrt.interface.", "accelrt.kernels.elementwise", "accelrt.kernels.image"),
                *("accelrt.allocator.settings.", "accelrt.random.generator", "accelrt.readings."),
                *("accelrt.sanitizer.", "accelrt.tunable."),
            )
        )
    )


IN_PYTHON = {name for name, kind in CLASSES.items() if kind.__flags__ & HEAP_TYPE}
UNLISTED = {name for name in IN_PYTHON - PARTS - HANDLES if not is_data(CLASSES[name])}
# Classes written in Python that own something: they say how they are pickled, for they are not.
OWNERS_IN_PYTHON = {name for name in UNLISTED if CLASSES[name].__reduce__ is not object.__reduce__}


def attempts(thing):
    yield lambda: copy.copy(thing)
    yield lambda: copy.deepcopy(thing)
    yield from (lambda number=number: pickle.dumps(thing, number) for number in range(6))
    yield lambda: thing.__reduce__()
    yield from (lambda number=number: thing.__reduce_ex__(number) for number in range(6))


def made():
    """One whole object of every class of owners that users meet, and what has to stay alive with it."""
    graph, condition, flag = accelrt.CUDAGraph(), accelrt.CUDAGraph(), accelrt.Buffer(4)
    pool, memory = accelrt.MemPool(), np.zeros(4096, np.uint8)
    with accelrt.graph(condition):
        flag.fill(0)
    yield from (graph, flag, pool, accelrt.PinnedBuffer(64), accelrt.Stream(), accelrt.Event(), flag[1:])
    yield from (accelrt.ExternalStream(0), accelrt.default_stream(), condition, condition.if_(flag))
    yield from (accelrt.use_mem_pool(pool), accelrt.graph(graph), accelrt.register_host(memory))
    yield graph.register_replay_hook(print)
    if os.environ.get("ACCELRT_DRIVER", "host") == "host":
        kernel = accelrt.host_kernel(4096, "int")
        yield from (kernel, kernel[1, 1])
    yield accelrt.memory.CallbackAllocator(print, print)
    yield from (accelrt.interop.torch_memory_saver.TorchMemorySaver(), accelrt.interop.vllm.CuMemAllocator())
    callback = accelrt.memory.register_free_memory_callback(lambda device, nbytes: False)
    yield callback
    callback.remove()
    with accelrt.use_mem_pool(pool):
        accelrt.Buffer(64).free()
    yield accelrt.memory.get_checkpoint_state(pool)


def test_every_class_is_known_as_an_owner_a_part_or_data():
    unknown = UNLISTED - OWNERS_IN_PYTHON
    assert not unknown, "a new class: does it own something? Then its __reduce__ calls refuse_copy"
    assert set(CLASSES) >= PARTS | DATA | HANDLES


@pytest.mark.parametrize("name", sorted(EXTENSION - DATA | OWNERS_IN_PYTHON))
def test_no_owner_makes_copies_of_its_fields(name):
    thing = without_init(CLASSES[name])
    for attempt in attempts(thing):
        with pytest.raises(TypeError, match=r"cannot (be pickled or copied|pickle)"):
            attempt()
    if not derives_from_others(CLASSES[name]):
        assert not hasattr(thing, "__setstate__")
        assert not hasattr(thing, "__setstate_cython__")


def test_owners_say_why_they_are_not_copied():
    for thing in made():
        for attempt in attempts(thing):
            with pytest.raises(TypeError, match=r"cannot be pickled or copied: \w+"):
                attempt()


def test_a_class_that_derives_from_an_owner_is_not_copied_either():
    class Mine(accelrt.Buffer):
        note = "kept in a __dict__"

    with Mine(64) as mine:
        mine.note = "another"
        for attempt in attempts(mine):
            with pytest.raises(TypeError, match="a Mine cannot be pickled or copied"):
                attempt()


def test_a_device_is_data_and_is_copied():
    device = accelrt.device(accelrt.device_count() - 1)
    for same in (copy.copy(device), copy.deepcopy(device), pickle.loads(pickle.dumps(device))):
        assert same == device
    assert pickle.loads(pickle.dumps(accelrt.device(None))).index == -1


def test_memory_stays_its_owners_where_a_copy_was_tried():
    first = accelrt.PinnedBuffer(1 << 16)
    np.frombuffer(first, np.uint8)[:] = 1
    with pytest.raises(TypeError):
        copy.deepcopy(first)
    gc.collect()
    second = accelrt.PinnedBuffer(1 << 16)
    np.frombuffer(second, np.uint8)[:] = 2
    assert first.ptr != second.ptr
    assert np.frombuffer(first, np.uint8)[0] == 1


def test_a_pool_keeps_its_uses_where_a_copy_was_tried():
    pool = accelrt.MemPool()
    with pytest.raises(TypeError):
        copy.copy(pool)
    gc.collect()
    assert pool.use_count() == 1


def test_owners_can_be_referred_to_weakly():
    for thing in (*made(), accelrt.device(0)):
        known, reference = weakref.WeakKeyDictionary(), weakref.ref(thing)
        if type(thing).__hash__ is not None:
            known[thing] = 1
        assert reference() is thing
        del thing
    for name in OWNERS_IN_PYTHON:
        weakref.ref(without_init(CLASSES[name]))


def test_a_weak_reference_ends_with_its_owner():
    ended = []
    buffer = accelrt.Buffer(64)
    weakref.finalize(buffer, ended.append, "buffer")
    stream = accelrt.Stream()
    reference = weakref.ref(stream)
    del buffer, stream
    assert ended == ["buffer"]
    assert reference() is None


# Public names of what is ended by close, free, remove or unregister, which a `with` does not end, and why.
WITHOUT_BLOCKS = {
    "CallbackAllocator": "its free is the caller's function",
    "DefinitionNode": "it is removed from a graph that goes on",
    "GraphDefinition": "its free adds a node",
    "OutOfMemoryError": "its free is a number",
}


def test_a_block_ends_what_can_be_ended():
    modules = (accelrt, accelrt.memory, accelrt.nccl, accelrt.resources, accelrt.sharing)
    public = {name: getattr(module, name) for module in modules for name in module.__all__}
    ended = {
        name
        for name, kind in public.items()
        if isinstance(kind, type)
        and any(hasattr(kind, end) for end in ("close", "free", "remove", "unregister"))
    }
    assert {name for name in ended if not hasattr(public[name], "__exit__")} == WITHOUT_BLOCKS.keys()
