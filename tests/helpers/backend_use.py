"""What is asked of accelrt when its memory comes from another library, in a process of its own."""

import gc

import numpy as np
import pytest
from beside import on_threads

import accelrt
from accelrt import memory

MIB = 1 << 20


def use_memory(live, limit):
    """Contents, streams, statistics and a refusal.

    live: callable, the bytes that the library has handed out.  limit: int, how many it has at most.
    """
    stream, other = accelrt.Stream(), accelrt.Stream()
    data, out = np.arange(MIB, dtype=np.uint8), np.zeros(MIB, np.uint8)
    buffer = accelrt.Buffer(data.nbytes, stream=stream)
    buffer.copy_from(data)
    buffer.copy_to(out, stream=other)
    assert (out == data).all()
    assert accelrt.memory_allocated() == live() == MIB
    array = accelrt.full((1000, 3), 2.5, dtype=np.float32)
    assert (array.numpy() == 2.5).all()
    buffer.record_stream(other)
    buffer.free()
    accelrt.empty_cache()
    assert accelrt.memory_allocated() == live() == 12000
    held = accelrt.Buffer(limit // 2)
    with pytest.raises(accelrt.OutOfMemoryError, match="comes from the backend") as caught:
        accelrt.Buffer(limit - limit // 4)
    assert isinstance(caught.value.__cause__, MemoryError)
    del array, held
    finish(live)


def churn(live):
    """Threads that allocate, write, read and free on streams of their own."""
    on_threads(_churn, range(4))
    finish(live)


def _churn(seed):
    stream, other = accelrt.Stream(), accelrt.Stream()
    out = np.zeros(4096, np.uint8)
    for index in range(100):
        with accelrt.Buffer(4096, stream=stream) as buffer:
            buffer.copy_from(np.full(4096, (seed + index) % 256, np.uint8), stream=stream)
            buffer.copy_to(out, stream=stream)
            buffer.record_stream(other)
            assert (out == (seed + index) % 256).all()


def finish(live):
    accelrt.synchronize()
    accelrt.empty_cache()
    assert (accelrt.memory_allocated(), live()) == (0, 0)
    memory.audit()


def allocated():
    """memory_allocated() once what accelrt imported was given back, a call after its stream was seen idle."""
    for _ in range(2):
        gc.collect()
        accelrt.synchronize()
    return accelrt.memory_allocated()
