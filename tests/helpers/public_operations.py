"""The table of accelrt's public operations, derived from its public names, and a scene of objects for them.

Each public method and attribute of a class, each public function, and some statements that take several of
them (ADDED) is an operation.  What an object or an argument is, a recipe says: by its role in MAKERS, by an
argument's name in ARGUMENTS.  A new method joins by itself; where an argument has no recipe, operations()
raises, and says so.

An operation touches objects, by role.  Two operations that touch one object are a pair.
"""

import functools
import inspect
import os
import re

import numpy as np
from kernel_sources import image_for

import accelrt
import accelrt.nccl
import accelrt.random
import accelrt.sharing

NBYTES = 4096
HOST = np.full(NBYTES, 7, np.uint8)


def in_pool(scene, make):
    with accelrt.use_mem_pool(scene.pool):
        return make()


def graph_of(scene):
    captured = accelrt.CUDAGraph(keep_graph=True)
    with accelrt.graph(captured, stream=scene.capture_stream):
        scene.array.fill_(5)
    captured.instantiate()
    return captured


def definition_of(scene):
    definition = accelrt.GraphDefinition()
    definition.fill(scene.definition_memory, 5)
    return definition


def recorded_event(scene):
    event = accelrt.Event(enable_timing=True)
    event.record(scene.stream)
    return event


def filled_buffer(scene):
    buffer = in_pool(scene, lambda: accelrt.Buffer(NBYTES))
    buffer.fill(1)
    return buffer


def filled_pinned(scene):
    pinned = accelrt.PinnedBuffer(NBYTES)
    np.frombuffer(pinned, np.uint8)[:] = 3
    return pinned


def committed_reservation(scene):
    reservation = accelrt.reserve(8 << 20)
    reservation.commit(0, 4 << 20)
    return reservation


# Role -> how to make the object.  An object is made when an operation of the trial first names it.
MAKERS = {
    "pool": lambda scene: accelrt.MemPool(),
    "buffer": filled_buffer,
    "array": lambda scene: in_pool(scene, lambda: accelrt.full(NBYTES // 4, 2, "f4")),
    "pinned": filled_pinned,
    "managed": lambda scene: accelrt.Buffer(NBYTES, managed=True),
    "pinned_pool": lambda scene: accelrt.PinnedMemPool(),
    "address": lambda scene: accelrt.caching_allocator_alloc(NBYTES),
    "host_address": lambda scene: accelrt.caching_host_allocator_alloc(NBYTES),
    "stream": lambda scene: accelrt.Stream(),
    "capture_stream": lambda scene: accelrt.Stream(),
    "event": recorded_event,
    "graph": graph_of,
    "unused_graph": lambda scene: accelrt.CUDAGraph(),
    "definition": definition_of,
    "defined_node": lambda scene: scene.definition.nodes()[0],
    "arguments": lambda scene: accelrt.GraphParameters(
        scene.definition.instantiate(), x=scene.definition_memory
    ),
    "definition_memory": lambda scene: accelrt.Buffer(NBYTES),
    "node": lambda scene: scene.graph.nodes()[0],
    "hook": lambda scene: scene.graph.register_replay_hook(int),
    "generator": lambda scene: accelrt.random.Generator("cuda"),
    "locked": lambda scene: accelrt.register_host(np.zeros(NBYTES, np.uint8)),
    "flag": lambda scene: accelrt.zeros(1, "i4"),
    "integers": lambda scene: accelrt.zeros(64, "i8"),
    "checkpoint": lambda scene: accelrt.memory.get_checkpoint_state(scene.pool),
    "communicator": lambda scene: accelrt.nccl.Communicator(1, accelrt.nccl.unique_id(), 0, 0, timeout=300),
    "module": lambda scene: accelrt.Module(image_for("host")),
    "kernel": lambda scene: scene.module.function("number"),
    "handle": lambda scene: scene.array.share(),
    "memory_resource": lambda scene: accelrt.resources.PoolResource(),
    "cuda_array": lambda scene: accelrt.CUDAArray((64, 16), "f4", surface=True),
    "mipmap": lambda scene: accelrt.MipmappedArray((64, 16), "f4"),
    "texture": lambda scene: accelrt.TextureObject(scene.cuda_array),
    "surface": lambda scene: accelrt.SurfaceObject(scene.cuda_array),
    "reservation": committed_reservation,
    "driver_pool": lambda scene: accelrt.memory.DriverPool(ipc_enabled=True),
    "driver_memory": lambda scene: scene.driver_pool.allocate(NBYTES),
}
# Class -> the role of its objects.
SUBJECTS = {
    "Array": "array",
    "Buffer": "buffer",
    "CUDAArray": "cuda_array",
    "CUDAGraph": "graph",
    "DefinitionNode": "defined_node",
    "Event": "event",
    "GraphDefinition": "definition",
    "GraphParameters": "arguments",
    "Kernel": "kernel",
    "MemPool": "pool",
    "MipmappedArray": "mipmap",
    "Module": "module",
    "PinnedBuffer": "pinned",
    "PinnedMemPool": "pinned_pool",
    "RegisteredMemory": "locked",
    "RemovableHandle": "hook",
    "Stream": "stream",
    "SurfaceObject": "surface",
    "TextureObject": "texture",
    "memory.DriverMemory": "driver_memory",
    "memory.DriverPool": "driver_pool",
    "memory.Reservation": "reservation",
    "nccl.Communicator": "communicator",
    "random.Generator": "generator",
    "sharing.MemoryHandle": "handle",
}
# Classes of which no object is shared: values, contexts (ADDED has them as statements).
NO_SUBJECTS = {
    "AllocationParams",
    "CUDAPluggableAllocator",
    "Condition",
    "ConditionParams",
    "CopyParams",
    "DeviceInterface",
    "DeviceProperties",
    "EccErrors",
    "ElementwiseKernel",
    "ExternalStream",
    "FillParams",
    "GpuProcess",
    "GraphNode",
    "GraphParameter",
    "GraphedCallable",
    "GreenContext",
    "KernelAttributes",
    "KernelParams",
    "Launcher",
    "MemoryInfo",
    "ModuleImage",
    "NvlinkTraffic",
    "ParameterUse",
    "PcieLink",
    "PcieTraffic",
    "PowerLimits",
    "RemappedRows",
    "StreamContext",
    "TemperatureLimits",
    "TensorMap",
    "cudaStatus",
    "device",
    "device_of",
    "graph",
    "use_mem_pool",
}
# What else an object is part of: memory of a pool, an event of a stream's work.
PARTS = {
    "pool": {"pool", "buffer", "array", "allocator"},
    "graph": {"graph", "array"},
    "node": {"graph"},
    "definition": {"definition"},
    "defined_node": {"defined_node", "definition"},
    "arguments": {"arguments", "definition"},
    "hook": {"hook", "graph"},
    "event": {"event", "stream"},
    "address": {"address", "allocator"},
    "managed": {"managed", "allocator"},
    "pinned_pool": {"pinned_pool", "pinned"},
    "host_address": {"host_address", "pinned"},
    "locked": {"locked", "pinned"},
    "checkpoint": {"pool"},
    "kernel": {"kernel", "module"},
    "handle": {"handle", "array"},
    "texture": {"texture", "cuda_array"},
    "surface": {"surface", "cuda_array"},
    "reservation": {"reservation", "allocator"},
    "driver_memory": {"driver_memory", "driver_pool"},
    "flag": set(),
    "integers": set(),
    "unused_graph": set(),
    "capture_stream": set(),
}
# Argument -> the role of the object, or what makes it; "Class.method.argument" goes before "argument".
ARGUMENTS = {
    "copy_many.dsts": lambda scene: [],
    "copy_many.srcs": lambda scene: [],
    "Reservation.protect.offset": lambda scene: 2 << 20,  # a page that no fill writes to, as it asks for
    "Reservation.protect.nbytes": lambda scene: 2 << 20,
    "Reservation.protect.access": lambda scene: "r",
    "Reservation.array.shape": lambda scene: 64,
    "Reservation.grant_access.peer": lambda scene: 1,
    "Reservation.revoke_access.peer": lambda scene: 1,
    "DriverPool.access.peer": lambda scene: 1,
    "DriverPool.set_access.peer": lambda scene: 1,
    "DriverPool.set_access.access": lambda scene: "rw",
    "DriverPool.allocate.nbytes": lambda scene: NBYTES,
    "DriverPool.with_handle.call": lambda scene: int,
    "MemPool.grant_access.peer": lambda scene: 1,
    "MemPool.revoke_access.peer": lambda scene: 1,
    "dst": lambda scene: np.zeros(NBYTES, np.uint8),
    "src": lambda scene: HOST,
    "MipmappedArray.level.index": lambda scene: 1,
    "CUDAArray.copy_from.src": lambda scene: np.zeros((64, 16), np.float32),
    "CUDAArray.copy_to.dst": lambda scene: np.zeros((64, 16), np.float32),
    "Array.copy_.src": lambda scene: np.full(NBYTES // 4, 7, np.float32),
    "Kernel.from_handle.handle": lambda scene: scene.kernel.handle,
    "copy.dst": "buffer",
    "copy.src": lambda scene: HOST,
    "fill.dst": "buffer",
    "Array.fill_.value": lambda scene: 6,
    "value": lambda scene: 6,
    "stream": "stream",
    "event": "event",
    "end_event": "event",
    "axes": lambda scene: (0,),
    "shape": lambda scene: (NBYTES // 8, 2),
    "dtype": lambda scene: "i4",
    "memory": "buffer",
    "record_host_stream.memory": "pinned",
    "is_pinned.memory": "pinned",
    "memory.prefetch.memory": "managed",
    "memory.discard.memory": "managed",
    "memory.advise.memory": "managed",
    "memory.advise.advice": lambda scene: "read_mostly",
    "memory.buffer_at.address": "address",
    "memory.buffer_at.nbytes": lambda scene: NBYTES,
    "memory.is_managed.memory": "managed",
    "memory.managed_attributes.memory": "managed",
    "register_host.memory": lambda scene: np.zeros(NBYTES, np.uint8),
    "mem_ptr": "address",
    "caching_host_allocator_delete.mem_ptr": "host_address",
    "size": lambda scene: NBYTES,
    "function": lambda scene: int,
    "hook": lambda scene: int,
    "fn": lambda scene: lambda *given: False,
    "debug_path": lambda scene: os.devnull,
    "path": lambda scene: os.devnull,
    "node": "node",
    "other": "graph",
    "memory.compare_snapshots.before": lambda scene: {},
    "memory.compare_snapshots.after": lambda scene: {},
    "arange.bounds": lambda scene: 3,
    "empty_like.other": "array",
    "ones_like.other": "array",
    "zeros_like.other": "array",
    "full_like.other": "array",
    "GraphDefinition.fill.dst": "definition_memory",
    "GraphDefinition.retain_object.thing": lambda scene: 5,
    "flag": "flag",
    "generator": "generator",
    "source": "array",
    "pool": "pool",
    "pool_id": "pool",
    "state": "checkpoint",
    "settings": lambda scene: "garbage_collection_threshold:0.9",
    "fraction": lambda scene: 0.9,
    "key": lambda scene: "allocated_bytes.all.current",
    "expected_addresses": lambda scene: set(),
    "address": lambda scene: scene.buffer.ptr,
    "num_bytes": lambda scene: NBYTES,
    "seed": lambda scene: 5,
    "new_state": lambda scene: accelrt.get_rng_state(),
    "new_states": lambda scene: accelrt.get_rng_state_all(),
    "cycles": lambda scene: 1000,
    "name": lambda scene: "a name",
    "debug_mode": lambda scene: 0,
    "device": lambda scene: 0,
    "limit": lambda scene: "stack_size",
    "peer_device": lambda scene: 1,
    "out": "array",
    "input": "array",
    "output": "array",
    "Kernel.occupancy.block": lambda scene: 64,
    "Kernel.available_dynamic_shared_memory.blocks": lambda scene: 1,
    "Kernel.available_dynamic_shared_memory.block": lambda scene: 64,
    "Kernel.max_potential_cluster_size.grid": lambda scene: 4,
    "Kernel.max_potential_cluster_size.block": lambda scene: 64,
    "Kernel.max_active_clusters.grid": lambda scene: 4,
    "Kernel.max_active_clusters.block": lambda scene: 64,
    "Kernel.max_active_clusters.cluster": lambda scene: 1,
    "Module.function.name": lambda scene: "number",
    "Module.global_address.name": lambda scene: "total",
    "integers.out": "integers",
    "permutation.out": "integers",
    "low": lambda scene: 9,
    "offset": lambda scene: 8,
    "Generator.set_state.state": lambda scene: scene.generator.get_state(),
}
# Functions without an object among their arguments -> the role that they touch.
ROLES = (
    (r"memory\.(record_history|snapshot|dump_snapshot)|memory_snapshot", "recorder"),
    (r"memory\.\w+|\w*memory\w*|caching_allocator\w+|empty_cache|mem_get_info", "allocator"),
    (r"(host_|pinned_|configure_pinned|caching_host)\w*|reset_\w+_host_memory_stats", "pinned"),
    (r"(get_|set_|initial_|manual_)?(rng_state|seed)\w*", "generator"),
    (r"(get|set)_\w+", "settings"),
    (r"synchronize|current_stream|default_stream|per_thread_stream|is_current_stream_capturing", "stream"),
    (r"empty|zeros|full", "allocator"),
    (r"graph_pool_handle", "pool"),
)
# Operation -> why it is left out.
LEFT_OUT = {
    "CUDAGraph.capture_begin": "the statement graph() has it, with its end",
    "CUDAGraph.capture_end": "the statement graph() has it",
    "CUDAGraph.set_kernel_node_params": "the graph here has no kernel",
    "CUDAGraph.kernel_node_params": "the graph here has no kernel",
    "arange(stream=)": "asarray(stream=) goes the same way",
    "GraphDefinition.kernel": "GraphDefinition.fill goes the same way",
    "GraphDefinition.copy": "GraphDefinition.fill goes the same way",
    "GraphDefinition.copy_3d": "GraphDefinition.fill goes the same way",
    "GraphDefinition.host_function": "GraphDefinition.fill goes the same way",
    "GraphDefinition.record": "GraphDefinition.fill goes the same way",
    "GraphDefinition.wait": "GraphDefinition.fill goes the same way",
    "GraphDefinition.child": "GraphDefinition.fill goes the same way",
    "GraphDefinition.child_work": "GraphDefinition.fill goes the same way",
    "GraphDefinition.allocate": "GraphDefinition.fill goes the same way",
    "GraphDefinition.free": "GraphDefinition.fill goes the same way",
    "GraphDefinition.if_": "GraphDefinition.fill goes the same way",
    "GraphDefinition.while_": "GraphDefinition.fill goes the same way",
    "GraphDefinition.switch": "GraphDefinition.fill goes the same way",
    "GraphDefinition.set_condition": "GraphDefinition.fill goes the same way",
    "GraphDefinition.empty": "GraphDefinition.fill goes the same way",
    "GraphDefinition.find_in_clone": "of another graph",
    "GraphDefinition.capture": "only in a capture",
    "free_graph_memory": "of memory that a launch left allocated",
    "GraphDefinition.add_edge": "one node here",
    "GraphDefinition.remove_edge": "one node here",
    "DefinitionNode.is_enabled": "tests/graphs has it, with an instance",
    "DefinitionNode.set_enabled": "tests/graphs has it, with an instance",
    "DefinitionNode.update": "tests/graphs has it, with what is changed",
    "CUDAGraph.if_": "only in a capture",
    "CUDAGraph.while_": "only in a capture",
    "Communicator.all_gather(stream=)": "all_reduce(stream=) goes the same way",
    "Communicator.broadcast(stream=)": "all_reduce(stream=) goes the same way",
    "Communicator.reduce(stream=)": "all_reduce(stream=) goes the same way",
    "Communicator.reduce_scatter(stream=)": "all_reduce(stream=) goes the same way",
    "Communicator.split": "makes another object; tests/collectives has it",
    "Communicator.shrink": "makes another object; tests/collectives has it",
    "Communicator.send": "ADDED has it, with what receives it",
    "Communicator.recv": "ADDED has it, with what sends it",
    "Kernel.launch": "ADDED has it, with arguments",
    "Module.load": "makes another object",
    "CUDAArray.from_handle": "makes another object",
    "DriverPool.error": "makes an error",
    "DriverPool.from_allocation_handle": "of another process",
    "DriverMemory.from_ipc_descriptor": "of another process",
    "PinnedBuffer.share": "of memory that was made for that alone",
    "Event.from_ipc_handle": "of another process",
    "Event.ipc_handle": "of another process",
    "Stream.from_any": "makes another object",
    "Stream.launch_host_func": "ADDED has it",
    "Stream.set_attributes": "ADDED has it, with an attribute",
    "memory.annotate": "a context",
    "memory.select_backend": "before first use",
    "memory.load_snapshot": "reads a file",
    "change_current_allocator": "before first use",
    "cudart": "a module",
    "get_interface_for_device": "classes of torch's interfaces",
    "get_stream_from_external": "makes another object",
    "init": "before first use",
    "memory.check_pool_live_allocations": "raises wherever memory is live",
    "memory.set_checkpoint_state": "ends what it is told of",
    "sleep": "needs a compiled kernel",
    "set_module_loading": "before first use",
    "set_limit": "of all of the process",
    "set_stream": "of the calling thread",
    "set_device": "of the calling thread",
    "memory.register_free_memory_callback": "ADDED has it, with its end",
    "memory.attach_out_of_memory_observer": "ADDED has it, with its end",
    "memory.record_history": "ADDED has it, with its end",
    "memory.set_allocator_settings": "ADDED has it, with its end",
    "memory.tag_pool": "within use_mem_pool",
    "copy_many": "ADDED has it, with memory",
    "copy_many(stream=)": "ADDED has it, with memory",
    "reserve": "ADDED has it, with its end",
    "caching_allocator_alloc": "ADDED has it, with its end",
    "caching_host_allocator_alloc": "ADDED has it, with its end",
    "check_error": "a number",
    "compile": "no shared object",
    "compile_image": "no shared object",
    "link_images": "no shared object",
    "elementwise": "no shared object",
    "host_kernel": "no shared object",
    "lazy_call": "calls what it is given",
    "make_graphed_callables": "tests/graphs has it",
    "register_interface_for_device": "classes of torch's interfaces",
}


# Operations of several copies, each of which reads what the last one wrote: what another thread writes there
# meanwhile is copied on.
IN_STEPS = {"Array[] ="}


def captured(scene):
    array = scene.array  # made before the capture, which would only record what fills it
    with accelrt.graph(scene.unused_graph, stream=scene.capture_stream, capture_error_mode="thread_local"):
        array.fill_(9)


def allocated_in_pool(scene):
    with accelrt.use_mem_pool(scene.pool):
        return accelrt.Buffer(NBYTES)


def slept(scene):
    scene.pool.sleep()
    scene.pool.wake()


def slept_reservation(scene):
    scene.reservation.sleep()
    scene.reservation.wake()


def committed_again(scene):
    scene.reservation.decommit(2 << 20, 2 << 20)
    scene.reservation.commit(2 << 20, 2 << 20)


def allocated_on_stream(scene):
    with accelrt.stream(scene.stream):
        accelrt.Buffer(NBYTES).free()


def recorded(scene):
    accelrt.memory.record_history(max_entries=100)
    try:
        accelrt.Buffer(NBYTES).free()
    finally:
        accelrt.memory.record_history(None)


def observed(scene):
    callback = accelrt.memory.register_free_memory_callback(lambda device, nbytes: False)
    observer = accelrt.memory.attach_out_of_memory_observer(lambda *given: None)
    observer.remove()
    callback.remove()


def raw_memory(scene):
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(NBYTES))
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(NBYTES, stream=scene.stream))


def reserved(scene):
    with accelrt.reserve(1 << 22) as cache:
        cache.commit(0, cache.page_bytes)
        accelrt.copy_many([cache.buffer(0, NBYTES)], [scene.buffer], stream=scene.stream)
        cache.decommit(0, cache.page_bytes, stream=scene.stream)


def raw_pinned(scene):
    accelrt.caching_host_allocator_delete(accelrt.caching_host_allocator_alloc(NBYTES))


def set_and_reset(scene):
    accelrt.memory.set_allocator_settings("garbage_collection_threshold:0.5")
    accelrt.memory.set_allocator_settings("garbage_collection_threshold:0")


def sent_to_itself(scene):
    with accelrt.nccl.group():
        scene.communicator.send(scene.array, 0)
        scene.communicator.recv(scene.array, 0)


def launched(scene):
    scene.kernel.launch(4, 64, (scene.array, 9), stream=scene.stream)


def copied_in(scene):
    part = scene.array[: 64 * 16].reshape(64, 16)
    scene.cuda_array.copy_from(part, stream=scene.stream, blocking=False)


# Name -> the roles that it touches, and the statement.
def lent_memory(scene):
    with scene.memory_resource.buffer(NBYTES, scene.stream) as buffer:
        buffer.fill(1)


ADDED = {
    "with graph()": ({"array", "capture_stream"}, captured),
    "with use_mem_pool(): Buffer()": ({"pool"}, allocated_in_pool),
    "MemPool.sleep, wake": ({"pool"}, slept),
    "with stream(): Buffer()": ({"stream"}, allocated_on_stream),
    "record_history, None": ({"recorder"}, recorded),
    "callbacks": ({"allocator"}, observed),
    "caching_allocator_alloc, delete": ({"allocator", "stream"}, raw_memory),
    "caching_host_allocator_alloc, delete": ({"pinned"}, raw_pinned),
    "copy_many": (
        {"buffer", "pinned", "stream"},
        lambda scene: accelrt.copy_many([scene.buffer], [scene.pinned], stream=scene.stream),
    ),
    "reserve, commit, close": ({"allocator", "buffer", "stream"}, reserved),
    "settings": ({"settings", "allocator"}, set_and_reset),
    "PoolResource.buffer": ({"memory_resource", "stream"}, lent_memory),
    "PoolResource.release": ({"memory_resource"}, lambda scene: scene.memory_resource.release()),
    "PoolResource.free_bytes": ({"memory_resource"}, lambda scene: scene.memory_resource.free_bytes),
    "Buffer()": ({"allocator"}, lambda scene: accelrt.Buffer(3 << 20)),
    "PinnedBuffer()": ({"pinned"}, lambda scene: accelrt.PinnedBuffer(1 << 20)),
    "CUDAArray()": ({"allocator"}, lambda scene: accelrt.CUDAArray((64, 16), "f4").close()),
    "CUDAArray.copy_from(Array)": ({"cuda_array", "array", "stream"}, copied_in),
    "TextureObject()": ({"cuda_array"}, lambda scene: accelrt.TextureObject(scene.cuda_array).close()),
    "del MipmappedArray": ({"mipmap"}, lambda scene: scene.forget("mipmap")),
    "del CUDAArray": ({"cuda_array"}, lambda scene: scene.forget("cuda_array")),
    "del TextureObject": ({"texture"}, lambda scene: scene.forget("texture")),
    "numpy.from_dlpack": ({"array"}, lambda scene: np.from_dlpack(scene.array)),
    "Buffer.__dlpack__": ({"buffer"}, lambda scene: scene.buffer.__dlpack__()),
    "numpy.from_dlpack of a PinnedBuffer": ({"pinned"}, lambda scene: np.from_dlpack(scene.pinned)),
    "launch_host_func": ({"stream"}, lambda scene: scene.stream.launch_host_func(int)),
    "Array[]": ({"array"}, lambda scene: scene.array[1:5]),
    "Array[] =": ({"array"}, lambda scene: scene.array.__setitem__(slice(0, 8, 2), 6)),
    "Buffer[]": ({"buffer"}, lambda scene: scene.buffer[1:5]),
    "repr(Array)": ({"array"}, lambda scene: repr(scene.array)),
    "repr(Buffer)": ({"buffer"}, lambda scene: repr(scene.buffer)),
    "repr(CUDAGraph)": ({"graph"}, lambda scene: repr(scene.graph)),
    "repr(MemPool)": ({"pool"}, lambda scene: repr(scene.pool)),
    "del CUDAGraph": ({"graph"}, lambda scene: scene.forget("graph")),
    "del Array": ({"array"}, lambda scene: scene.forget("array")),
    "del Event": ({"event"}, lambda scene: scene.forget("event")),
    "Stream.set_attributes": (
        {"stream"},
        lambda scene: scene.stream.set_attributes(memory_sync_domain="remote"),
    ),
    "del Stream": ({"stream"}, lambda scene: scene.forget("stream")),
    "with group(): send, recv": ({"communicator", "array"}, sent_to_itself),
    "nccl.all_reduce": ({"array"}, lambda scene: accelrt.nccl.all_reduce([scene.array])),
    "Kernel.launch": ({"kernel", "array", "stream"}, launched),
    "Kernel[]()": ({"kernel", "array"}, lambda scene: scene.kernel[4, 64](scene.array, 9)),
    "ipc_collect": ({"handle"}, lambda scene: accelrt.sharing.ipc_collect()),
    "cancel_unopened": ({"handle"}, lambda scene: accelrt.sharing.cancel_unopened()),
    "sharing.statistics": ({"handle"}, lambda scene: accelrt.sharing.statistics()),
    "del Communicator": ({"communicator"}, lambda scene: scene.forget("communicator")),
    "del Kernel": ({"kernel"}, lambda scene: scene.forget("kernel")),
    "del Module": ({"module"}, lambda scene: scene.forget("module")),
    "del MemoryHandle": ({"handle"}, lambda scene: scene.forget("handle")),
    "del DriverMemory": ({"driver_memory"}, lambda scene: scene.forget("driver_memory")),
    "del DriverPool": ({"driver_pool"}, lambda scene: scene.forget("driver_pool")),
    "del Reservation": ({"reservation"}, lambda scene: scene.forget("reservation")),
    "Reservation.commit(part)": ({"reservation"}, lambda scene: scene.reservation.commit(4 << 20, 2 << 20)),
    "Reservation.decommit(part)": ({"reservation"}, lambda scene: scene.reservation.decommit(0, 2 << 20)),
    "Reservation.decommit, commit": ({"reservation"}, committed_again),
    "Reservation.sleep, wake": ({"reservation"}, slept_reservation),
    "fill(Reservation)": (
        {"reservation", "stream"},
        lambda scene: scene.reservation.buffer(0, 2 << 20).fill(3, stream=scene.stream),
    ),
    "fill(DriverMemory)": ({"driver_memory"}, lambda scene: accelrt.fill(scene.driver_memory, 3)),
    "del MemPool": ({"pool"}, lambda scene: scene.forget("pool")),
}


class Scene:
    """The objects of one trial, by role; each is made when it is first named."""

    def __init__(self):
        self.made = {}

    def __getattr__(self, role):
        if role not in MAKERS:
            raise AttributeError(role)
        if role not in self.made:
            self.made[role] = MAKERS[role](self)
        return self.made[role]

    def forget(self, role):
        self.made.pop(role, None)

    def prepare(self, roles):
        for role in sorted(roles & MAKERS.keys()):
            getattr(self, role)
        accelrt.synchronize()

    def contents(self):
        """Role -> the bytes of its memory, or the name of the error that reading them raises."""
        pool = self.made.get("pool")
        if pool is not None and pool.is_asleep():
            pool.wake()
        del pool
        accelrt.synchronize()
        return {role: read(self.made[role]) for role in ("buffer", "array", "pinned") if role in self.made}

    def end(self):
        """Gives back what no object of Python's owns."""
        for role, free in (
            ("address", accelrt.caching_allocator_delete),
            ("host_address", accelrt.caching_host_allocator_delete),
        ):
            if role in self.made:
                try:
                    free(self.made[role])
                except RuntimeError:
                    continue  # an operation of the trial did
        if "communicator" in self.made:
            self.made["communicator"].abort()
        self.made.clear()


def read(memory):
    found = np.zeros(NBYTES, np.uint8)
    try:
        accelrt.copy(found, memory, NBYTES)
    except Exception as error:
        return type(error).__name__
    return found


class Operation:
    """A public operation: its name, what it touches, and the call."""

    def __init__(self, name, roles, call):
        self.name, self.call = name, call
        self.needs = set(roles)
        self.touches = set().union(*(PARTS.get(role, {role}) for role in roles))

    def __repr__(self):
        return self.name


def operations():
    """All operations, in the order of their names.

    Raises LookupError: an argument, a class or a function has no recipe.
    """
    found = [Operation(name, roles, call) for name, (roles, call) in ADDED.items()]
    public = {name: getattr(accelrt, name) for name in accelrt.__all__}
    public |= {f"memory.{name}": getattr(accelrt.memory, name) for name in accelrt.memory.__all__}
    public |= {
        "nccl.Communicator": accelrt.nccl.Communicator,
        "random.Generator": accelrt.random.Generator,
        "sharing.MemoryHandle": accelrt.sharing.MemoryHandle,
    }
    for name, thing in sorted(public.items()):
        if name.startswith("memory.") and name.removeprefix("memory.") in accelrt.__all__:
            continue
        if isinstance(thing, type):
            found += of_class(name, thing)
        elif callable(thing) and not isinstance(thing, type(inspect)) and name not in LEFT_OUT:
            found += with_arguments(name, inspect.signature(thing), None, thing)
    return sorted(found, key=lambda each: each.name)


def of_class(name, kind):
    if name not in SUBJECTS:
        if name in NO_SUBJECTS or name.startswith("memory.") or issubclass(kind, BaseException | Warning):
            return []
        raise LookupError(
            f"accelrt.{name}: say in SUBJECTS how one is made, or in NO_SUBJECTS that none is shared"
        )
    role, found = SUBJECTS[name], []
    for attribute in sorted(each for each in dir(kind) if not each.startswith("_")):
        full = f"{name.rpartition('.')[2]}.{attribute}"
        if full in LEFT_OUT:
            continue
        if callable(getattr(kind, attribute)):
            found += with_arguments(full, inspect.signature(getattr(kind, attribute)), role, attribute)
        else:
            found.append(Operation(full, {role}, functools.partial(read_attribute, role, attribute)))
    return found


def read_attribute(role, attribute, scene):
    return getattr(getattr(scene, role), attribute)


def with_arguments(name, signature, role, target):
    """The operation with the arguments that it needs, and once more with a stream where it takes one."""
    parameters = list(signature.parameters.values())
    if role is not None and parameters and parameters[0].name == "self":
        del parameters[0]
    needed = [
        each.name for each in parameters if each.default is each.empty and each.kind != each.VAR_KEYWORD
    ]
    given = {argument: recipe(name, argument) for argument in needed}
    found = [called(name, role, target, given)]
    if "stream" in signature.parameters and "stream" not in given and f"{name}(stream=)" not in LEFT_OUT:
        found.append(called(f"{name}(stream=)", role, target, given | {"stream": "stream"}))
    return [each for each in found if each.needs or each.touches]


def recipe(name, argument):
    for key in (f"{name}.{argument}", f"{name.rpartition('.')[2]}.{argument}", argument):
        if key in ARGUMENTS:
            return ARGUMENTS[key]
    raise LookupError(
        f"{name} needs an argument {argument!r}: add a recipe for {name}.{argument} to ARGUMENTS"
    )


def called(name, role, target, given):
    roles = {each for each in given.values() if isinstance(each, str)} | ({role} if role else set())
    if not roles:
        roles = {each for pattern, each in ROLES if re.fullmatch(pattern, name)}

    def call(scene):
        arguments = {
            argument: getattr(scene, value) if isinstance(value, str) else value(scene)
            for argument, value in given.items()
        }
        function = target if role is None else getattr(getattr(scene, role), target)
        return (
            function(*arguments.values())
            if len(arguments) == 1 and "stream" not in arguments
            else function(**arguments)
        )

    return Operation(name, roles, call)


def pairs(found):
    """Every two operations that touch an object together, in both orders, and each with itself."""
    return [(one, other) for one in found for other in found if one.touches & other.touches]
