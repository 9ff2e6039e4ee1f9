"""torch's way to do each row's work: its fastest public form, so with the device and the stream given."""

import pickle
from functools import partial

import torch
from timing import Work

from peers.churn import churn
from peers.histories import Histories
from peers.readings import Readings

MIB = 1 << 20


class Torch(Readings, Histories, cuda=torch.cuda):
    """Raw pointers come from the caching allocator, objects are tensors of bytes."""

    def __init__(self, quick):
        self.enter_thread()
        self.version = torch.__version__
        self.settle = torch.cuda.synchronize
        self.large = 4 * MIB if quick else 64 * MIB
        self.stream = torch.cuda.Stream()

    def enter_thread(self):
        torch.cuda.set_device(0)

    def bytes(self, size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    # --- the recorder ---

    dumps = (".pickle",)

    def record(self, enabled="all", context=None, max_entries=1_000_000):
        torch.cuda.memory._record_memory_history(
            enabled, context=context, stacks="python", max_entries=max_entries
        )

    def dump(self, path):
        torch.cuda.memory._dump_snapshot(str(path))

    def load(self, path):
        return pickle.loads(path.read_bytes())

    # --- memory ---

    def pair(self, size, handle=0):  # the default stream's
        alloc, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
        return lambda: delete(alloc(size, 0, handle))

    def pair_512(self):
        return self.pair(512)

    def pair_4mib(self):
        return self.pair(4 * MIB)

    def pair_512_stream(self):
        return self.pair(512, self.stream.cuda_stream)

    def mixed_200(self):
        alloc = partial(torch.cuda.caching_allocator_alloc, device=0, stream=0)
        return churn(alloc, torch.cuda.caching_allocator_delete)

    def buffer_512(self):
        make, kind, device = torch.empty, torch.uint8, torch.device("cuda", 0)
        return lambda: make(512, dtype=kind, device=device)

    def memory_allocated(self):
        return torch.cuda.memory_allocated

    def pinned_1mib(self):
        make, kind = torch.empty, torch.uint8
        return lambda: make(MIB, dtype=kind, pin_memory=True)

    # --- streams and events ---

    def current_stream(self):
        return torch.cuda.current_stream

    def with_stream(self):
        context, stream = torch.cuda.stream, self.stream

        def switch():
            with context(stream):
                pass

        return switch

    def stream_make(self):
        return torch.cuda.Stream

    def stream_query(self):
        return self.stream.query

    def event_make(self):
        return torch.cuda.Event

    def event_record(self):
        event, stream = torch.cuda.Event(), self.stream
        return lambda: event.record(stream)

    def event_cycle(self):
        make, stream = torch.cuda.Event, self.stream
        return lambda: make().record(stream)

    def wait_event(self):
        event, stream = torch.cuda.Stream().record_event(), self.stream
        return lambda: stream.wait_event(event)

    def current_device(self):
        return torch.cuda.current_device

    def with_device(self):
        context = torch.cuda.device

        def switch():
            with context(0):
                pass

        return switch

    # --- graphs: begin and end alone, for torch.cuda.graph synchronises and collects garbage first ---

    def captured(self):
        torch.cuda.set_stream(self.stream)
        self.kept = to, origin = self.bytes(1024), self.bytes(1024)  # the graph does not keep them alive

        def capture():
            made = torch.cuda.CUDAGraph()
            made.capture_begin()
            for _ in range(10):
                to.copy_(origin)
            made.capture_end()
            return made

        return capture

    def capture_10(self):
        return self.captured()

    def replay_10(self):
        return self.captured()().replay

    # --- copies ---

    def copier(self, size):
        torch.cuda.set_stream(self.stream)
        host, device = torch.empty(size, dtype=torch.uint8, pin_memory=True), self.bytes(size)
        return Work(lambda: device.copy_(host, non_blocking=True), nbytes=size)

    def h2d_1kib(self):
        return self.copier(1024).call

    def fill_1kib(self):
        torch.cuda.set_stream(self.stream)
        return self.bytes(1024).zero_

    def h2d_rate(self):
        return self.copier(self.large)

    def d2d_rate(self):
        torch.cuda.set_stream(self.stream)
        size = 4 * self.large
        to, origin = self.bytes(size), self.bytes(size)
        return Work(lambda: to.copy_(origin), nbytes=2 * size)

    def doubled(self, nbytes):
        torch.cuda.set_stream(self.stream)
        x, z = (torch.zeros(nbytes // 4, device="cuda") for _ in range(2))
        return lambda: torch.mul(x, 2, out=z)

    def elementwise_1kib(self):
        return self.doubled(1024)

    # --- exports ---

    def elementwise_new(self):
        torch.cuda.set_stream(self.stream)
        x = torch.zeros(256, device="cuda")
        return lambda: torch.mul(x, 2)

    def array(self):
        torch.cuda.set_stream(torch.cuda.default_stream())
        return torch.zeros(256, device="cuda")

    def dlpack(self):
        return self.array().__dlpack__

    def elementwise_rate(self):
        return Work(self.doubled(16 * self.large), nbytes=32 * self.large)

    def floats(self, nbytes):
        torch.cuda.set_stream(self.stream)
        return torch.empty(nbytes // 4, device="cuda")

    def uniform_1kib(self):
        return self.floats(1024).uniform_

    def uniform_rate(self):
        return Work(self.floats(16 * self.large).uniform_, nbytes=16 * self.large)

    def normal_rate(self):
        return Work(self.floats(16 * self.large).normal_, nbytes=16 * self.large)
