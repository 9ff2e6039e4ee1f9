"""A context in which a stream's work keeps some memory in the L2 cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelrt.annotations import Memory
from accelrt.arrays.copy import device_span
from accelrt.streams.access_policy import AccessPolicyWindow
from accelrt.streams.stream import Stream


@contextmanager
def access_policy_window(
    memory: Memory,
    hit_ratio: float = 1.0,
    hit: str = "persisting",
    miss: str = "streaming",
    *,
    stream: Stream | int | None = None,
) -> Iterator[AccessPolicyWindow]:
    """Returns a context in which a stream has an access policy window over some memory; then it has its
    former one.

        accelrt.set_limit("persisting_l2_cache_size", 16 << 20)
        with accelrt.access_policy_window(weights, hit_ratio=0.5):
            ...

    Arguments:
        memory: Buffer, Array or an object with __cuda_array_interface__, of at most as many bytes as
            the device's properties say (max_access_policy_window_size).
        hit_ratio, hit, miss: as of Stream.set_access_policy_window.
        stream: Stream or handle; None is the memory's device's current one.
    Raises:
        ValueError, TypeError: an argument is out of range, the memory is none of a device's or of another
            device than the stream.
        NotSupportedError: the device has no such cache, as the host device has none.

    Lines that persist stay so after the context; accelrt.reset_persisting_l2_cache() ends that.  Kernels
    that a capture records inside of the context keep the window in the graph.
    """
    ordinal, address, size = device_span(memory, "memory")
    worker = Stream.from_any(stream, ordinal)
    if worker.device_index != ordinal:
        raise ValueError(
            f"stream is on device {worker.device_index}, the memory on {ordinal}; "
            f"pass a stream of device {ordinal}"
        )
    before = worker.get_access_policy_window()
    worker.set_access_policy_window(address, size, hit_ratio, hit, miss)
    try:
        yield AccessPolicyWindow(address, size, hit_ratio, hit, miss)
    finally:
        if before is None:
            worker.reset_access_policy_window()
        else:
            worker.set_access_policy_window(*before)
