"""What type checkers say of users' code, which is checked and never run.

`# error:` ends each line in which mypy --strict has to find an error.
"""

import contextlib

import numpy as np

import accelrt
from accelrt.annotations import DeviceArgument


class Foreign:
    """A device of another library, such as torch.device."""

    index: int | None = None


def returns_inside(stream: accelrt.Stream, buffer: accelrt.Buffer) -> int:
    """No context manager swallows errors, so that the end of the function is never reached."""
    with accelrt.stream(stream):
        return 1


def returns_inside_a_device() -> int:
    with accelrt.device(0):
        return 1


def returns_inside_a_buffer() -> int:
    with accelrt.Buffer(8) as buffer, accelrt.PinnedBuffer(8) as pinned:
        return len(buffer) + len(pinned)


def returns_inside_a_pool(pool: accelrt.MemPool) -> int:
    with accelrt.use_mem_pool(pool):
        return 1


def returns_inside_a_capture(graph: accelrt.CUDAGraph) -> int:
    with accelrt.graph(graph), graph.if_(np.zeros(1, np.int32)):
        return 1


def returns_inside_a_registration(array: bytearray) -> int:
    with accelrt.register_host(array) as registered:
        return len(registered)


def returns_inside_a_hook(graph: accelrt.CUDAGraph) -> int:
    with graph.register_replay_hook(lambda done: print(done.node_count)):
        return 1


def devices(one: DeviceArgument, foreign: Foreign, number: np.int64) -> None:
    for device in (0, "cuda:1", accelrt.device(0), None):
        accelrt.Stream(device=device)
    accelrt.Stream(one)
    accelrt.Stream(foreign)
    accelrt.Buffer(8, device=number)
    accelrt.temperature("GPU-00000000-0000-0000-0000-000000000000")
    accelrt.memory_stats(accelrt.Stream().device)
    accelrt.Stream(device=3.5)  # error: [arg-type]
    accelrt.Buffer(8, [0])  # error: [arg-type]
    accelrt.set_device(object())  # error: [arg-type]
    accelrt.device(b"cuda")  # error: [arg-type]
    accelrt.synchronize((0,))  # error: [arg-type]
    accelrt.memory_allocated({})  # error: [arg-type]
    accelrt.MemPool(device=1.0)  # error: [arg-type]
    accelrt.get_device_name(0j)  # error: [arg-type]
    accelrt.temperature(0.5)  # error: [arg-type]


def streams(stream: accelrt.Stream) -> None:
    accelrt.Buffer(8, stream=stream.cuda_stream)
    accelrt.Buffer(8, stream="default")  # error: [arg-type]
    accelrt.CUDAGraph().upload(1.5)  # error: [arg-type]
    stream.wait_event(stream)  # error: [arg-type]
    with contextlib.ExitStack() as stack:
        stack.enter_context(accelrt.stream(stream))
        stack.enter_context(accelrt.device(0))


def memory(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
    buffer = accelrt.Buffer(array.nbytes)
    buffer.copy_from(array, blocking=False)
    buffer.copy_from(b"bytes")
    buffer.copy_to(memoryview(bytearray(8)))
    accelrt.copy(buffer, array)
    accelrt.Buffer("8")  # error: [arg-type]
    buffer.fill(value=1.5)  # error: [arg-type]
    buffer.nosuch()  # error: [attr-defined]


def callbacks(graph: accelrt.CUDAGraph) -> None:
    accelrt.memory.register_free_memory_callback(lambda device, size: device + size)
    accelrt.memory.register_free_memory_callback(lambda: None)  # error: [arg-type] [misc]
    graph.register_replay_hook(lambda: None)  # error: [arg-type] [misc]
    accelrt.Stream().launch_host_func(print)


def settings() -> None:
    made = accelrt.memory.AllocatorSettings(stitching=False, growth_slack="auto", max_split_size_mb=64)
    accelrt.memory.set_allocator_settings(made.replace(stitching=None))
    accelrt.memory.AllocatorSettings(roundup_power2_divisions={256: 1, ">": 4})
    accelrt.memory.AllocatorSettings(stitching="yes")  # error: [arg-type]
    accelrt.memory.AllocatorSettings(no_key=1)  # error: [call-arg]
    limit: int = made.max_split_size_mb  # error: [assignment]
    made.stitching = True  # error: [misc]
    print(limit)


def tests(step: accelrt.Stream) -> int:
    with accelrt.testing.check_leaks() as check, accelrt.testing.failing(code=2) as count:
        check.cancel()
        print(count() + 1)
    for call, error in accelrt.testing.failing_calls(step.synchronize):
        print(call + 1, error is not None and error.code)
    accelrt.testing.failing(call="first")  # error: [arg-type]
    return accelrt.testing.interleave(step.synchronize, step.query)
