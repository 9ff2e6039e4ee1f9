"""Copies beside computation: while one chunk is worked on, the next is on its way.

Three things go on at a time: this thread fills a slot's page-locked memory, the stream `copier` uploads it,
and the stream `worker` works on the chunk before.  Events order them: the worker waits for the upload of its
chunk, and this thread waits until a slot is free again.  Here the work is a function that the stream calls on
the host; on a GPU it would be a kernel.
"""

import numpy as np

import accelrt as cuda

CHUNK, CHUNKS, SLOTS = 1 << 16, 24, 2  # numbers in a chunk, chunks, chunks under way


class Slot:
    """Memory for one chunk under way."""

    def __init__(self):
        self.staged = cuda.pinned_empty(CHUNK, np.float32)  # the copy engine reads it without help of the CPU
        self.memory = cuda.Buffer(self.staged.nbytes)
        self.result = cuda.pinned_empty(CHUNK, np.float32)
        self.uploaded = cuda.Event()
        self.free = cuda.Event()  # never recorded, it is complete: a new slot is free


def run(data):
    """The square roots of an array of CHUNKS chunks."""
    out = np.empty_like(data)
    copier, worker = cuda.Stream(), cuda.Stream()
    slots = [Slot() for _ in range(SLOTS)]
    for stream in (copier, worker):
        stream.wait_stream(cuda.current_stream())  # in whose order the slots' memory was allocated
    for index in range(CHUNKS):
        slot, part = slots[index % SLOTS], slice(index * CHUNK, (index + 1) * CHUNK)
        slot.free.synchronize()
        slot.staged[:] = data[part]
        cuda.copy(slot.memory, slot.staged, stream=copier, blocking=False)
        slot.uploaded.record(copier)

        worker.wait_event(slot.uploaded)
        cuda.copy(slot.result, slot.memory, stream=worker, blocking=False)
        worker.launch_host_func(lambda slot=slot, part=part: np.sqrt(slot.result, out=out[part]))
        slot.free.record(worker)
    worker.synchronize()
    return out


if __name__ == "__main__":
    if not cuda.is_available():
        cuda.init(driver="host")
    numbers = np.random.default_rng(0).random(CHUNK * CHUNKS, np.float32)
    assert (run(numbers) == np.sqrt(numbers)).all()
    print(f"{CHUNKS} chunks went through {SLOTS} slots; {cuda.memory_allocated()} bytes are still allocated")
