"""cuda.core's way to do each row's work."""

from pathlib import Path

import cuda.core
from timing import Work

from peers.churn import churn_objects

try:
    from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch
except ImportError:  # before 1.0 the names were experimental
    from cuda.core.experimental import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch

MIB = 1 << 20


class CudaCore:
    """Memory comes from the device's own pool, in the order of one stream, and is freed with its Buffer."""

    def __init__(self, quick):
        self.enter_thread()
        self.device = Device(0)
        self.version = cuda.core.__version__
        self.settle = self.device.sync
        self.large = 4 * MIB if quick else 64 * MIB
        self.stream = self.device.create_stream()

    def enter_thread(self):
        Device(0).set_current()

    # --- memory ---

    def pair(self, size):
        alloc, stream = self.device.allocate, self.stream
        return lambda: alloc(size, stream=stream)

    def pair_512(self):
        return self.pair(512)

    def pair_4mib(self):
        return self.pair(4 * MIB)

    def mixed_200(self):
        alloc, stream = self.device.allocate, self.stream
        return churn_objects(lambda size: alloc(size, stream=stream))

    def buffer_512(self):
        return self.pair(512)

    def pinned_1mib(self):
        alloc = LegacyPinnedMemoryResource().allocate
        return lambda: alloc(MIB)

    # --- streams and events ---

    def stream_make(self):
        return self.device.create_stream

    def event_make(self):
        return self.device.create_event

    def event_record(self):
        event, stream = self.device.create_event(), self.stream
        return lambda: stream.record(event)

    def event_cycle(self):
        return self.stream.record

    def wait_event(self):
        event, stream = self.device.create_stream().record(), self.stream
        return lambda: stream.wait(event)

    def current_device(self):
        return lambda: Device().device_id

    # --- graphs ---

    def builder(self):
        device, stream = self.device, self.stream
        to, origin = (device.allocate(1024, stream=stream) for _ in range(2))
        self.kept = to, origin  # the graph does not keep them alive

        def build():
            builder = device.create_graph_builder().begin_building()
            for _ in range(10):
                to.copy_from(origin, stream=builder)
            return builder.end_building().complete()

        return build

    def capture_10(self):
        return self.builder()

    def replay_10(self):
        graph, stream = self.builder()(), self.stream
        return lambda: graph.launch(stream)

    # --- launches ---

    def empty_kernel(self, count):
        image = (Path(__file__).parents[1] / "raw" / "empty.ptx").read_bytes()
        return ObjectCode.from_ptx(image).get_kernel(f"empty_{count}")

    def launch_1(self):
        kernel, stream, config = self.empty_kernel(1), self.stream, LaunchConfig(grid=1, block=1)
        x = self.device.allocate(1024, stream=stream)
        return lambda: launch(stream, config, kernel, x)

    def launch_16(self):
        kernel, stream, config = self.empty_kernel(16), self.stream, LaunchConfig(grid=1, block=1)
        x = self.device.allocate(1024, stream=stream)
        integers, reals = (1, 2, 3, 4), (0.5, 1.5, 2.5, 3.5)
        return lambda: launch(stream, config, kernel, x, x, x, x, x, x, x, x, *integers, *reals)

    # --- copies ---

    def copier(self, size):
        stream = self.stream
        host = LegacyPinnedMemoryResource().allocate(size)
        device = self.device.allocate(size, stream=stream)
        return Work(lambda: device.copy_from(host, stream=stream), nbytes=size)

    def h2d_1kib(self):
        return self.copier(1024).call

    def fill_1kib(self):
        stream = self.stream
        memory = self.device.allocate(1024, stream=stream)
        return lambda: memory.fill(0, stream=stream)

    def h2d_rate(self):
        return self.copier(self.large)

    def d2d_rate(self):
        stream = self.stream
        to, origin = (self.device.allocate(4 * self.large, stream=stream) for _ in range(2))
        return Work(lambda: to.copy_from(origin, stream=stream), nbytes=8 * self.large)
