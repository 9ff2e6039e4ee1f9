"""CuPy's way to do each row's work, through cupy.cuda and its default memory pools."""

import cupy
from cupy import cuda
from timing import Work

from peers.churn import churn_objects

MIB = 1 << 20


class CuPy:
    """Memory is freed with the MemoryPointer that the pool answers."""

    def __init__(self, quick):
        self.enter_thread()
        cuda.runtime.free(0)
        self.version = cupy.__version__
        self.settle = cuda.runtime.deviceSynchronize
        self.large = 4 * MIB if quick else 64 * MIB
        self.stream = cuda.Stream(non_blocking=True)

    def enter_thread(self):
        cuda.runtime.setDevice(0)

    # --- memory ---

    def pair(self, size):
        alloc = cuda.alloc
        return lambda: alloc(size)

    def pair_512(self):
        return self.pair(512)

    def pair_4mib(self):
        return self.pair(4 * MIB)

    def mixed_200(self):
        return churn_objects(cuda.alloc)

    def buffer_512(self):
        make = cupy.empty
        return lambda: make(512, "u1")

    def memory_allocated(self):
        return cupy.get_default_memory_pool().used_bytes

    def pinned_1mib(self):
        alloc = cuda.alloc_pinned_memory
        return lambda: alloc(MIB)

    # --- streams and events ---

    def current_stream(self):
        return cuda.get_current_stream

    def with_stream(self):
        stream = self.stream

        def switch():
            with stream:
                pass

        return switch

    def stream_make(self):
        make = cuda.Stream
        return lambda: make(non_blocking=True)

    def stream_query(self):
        stream = self.stream
        return lambda: stream.done

    def event_make(self):
        make = cuda.Event
        return lambda: make(disable_timing=True)

    def event_record(self):
        event, stream = cuda.Event(disable_timing=True), self.stream
        return lambda: event.record(stream)

    def event_cycle(self):
        make, stream = cuda.Event, self.stream
        return lambda: make(disable_timing=True).record(stream)

    def wait_event(self):
        other, stream = cuda.Stream(non_blocking=True), self.stream
        event = other.record(cuda.Event(disable_timing=True))
        return lambda: stream.wait_event(event)

    def current_device(self):
        return cuda.runtime.getDevice

    def with_device(self):
        make = cuda.Device

        def switch():
            with make(0):
                pass

        return switch

    # --- graphs ---

    def captured(self):
        stream = self.stream
        self.kept = to, origin = cuda.alloc(1024), cuda.alloc(1024)  # the graph does not keep them alive

        def capture():
            stream.begin_capture()
            for _ in range(10):
                to.copy_from_device_async(origin, 1024, stream)
            return stream.end_capture()

        return capture

    def capture_10(self):
        return self.captured()

    def replay_10(self):
        graph, stream = self.captured()(), self.stream
        return lambda: graph.launch(stream)

    # --- copies ---

    def copier(self, size):
        to, host, stream = cuda.alloc(size), cuda.alloc_pinned_memory(size), self.stream
        address = host.ptr
        self.kept = host
        return Work(lambda: to.copy_from_host_async(address, size, stream), nbytes=size)

    def h2d_1kib(self):
        return self.copier(1024).call

    def fill_1kib(self):
        memory, stream = cuda.alloc(1024), self.stream
        return lambda: memory.memset_async(0, 1024, stream)

    def h2d_rate(self):
        return self.copier(self.large)

    def d2d_rate(self):
        to, origin = cuda.alloc(4 * self.large), cuda.alloc(4 * self.large)
        size, stream = 4 * self.large, self.stream
        return Work(lambda: to.copy_from_device_async(origin, size, stream), nbytes=2 * size)

    def doubled(self, nbytes):
        kernel = cupy.ElementwiseKernel("T x", "T z", "z = 2 * x", "doubled")
        self.stream.use()
        x, z = (cupy.zeros(nbytes // 4, "float32") for _ in range(2))
        return lambda: kernel(x, z)

    def elementwise_1kib(self):
        return self.doubled(1024)

    # --- launches and exports ---

    def empty_kernel(self, count):
        kinds = (["float*"] * 8 + ["long long"] * 4 + ["double"] * 4)[:count]
        listed = ", ".join(f"{kind} p{place}" for place, kind in enumerate(kinds))
        self.stream.use()
        return cupy.RawKernel(f'extern "C" __global__ void empty({listed}) {{}}', "empty")

    def launch_1(self):
        kernel, x = self.empty_kernel(1), cupy.zeros(256, "float32")
        size = (1,)
        return lambda: kernel(size, size, (x,))

    def launch_16(self):
        kernel, x = self.empty_kernel(16), cupy.zeros(256, "float32")
        size = (1,)
        return lambda: kernel(size, size, (x, x, x, x, x, x, x, x, 1, 2, 3, 4, 0.5, 1.5, 2.5, 3.5))

    def elementwise_new(self):
        kernel = cupy.ElementwiseKernel("T x", "T z", "z = 2 * x", "doubled")
        self.stream.use()
        x = cupy.zeros(256, "float32")
        return lambda: kernel(x)

    def dlpack(self):
        cuda.Stream.null.use()
        return cupy.zeros(256, "float32").__dlpack__

    def elementwise_rate(self):
        return Work(self.doubled(16 * self.large), nbytes=32 * self.large)

    def draw(self, name, nbytes):
        self.stream.use()
        draw = getattr(cupy.random.Generator(cupy.random.Philox4x3210(1)), name)
        return lambda: draw(nbytes // 4, dtype="float32")

    def uniform_1kib(self):
        return self.draw("random", 1024)

    def uniform_rate(self):
        return Work(self.draw("random", 16 * self.large), nbytes=16 * self.large)

    def normal_rate(self):
        return Work(self.draw("standard_normal", 16 * self.large), nbytes=16 * self.large)
