"""accelrt's way to do each row's work."""

import ctypes
from functools import partialmethod
from pathlib import Path

from timing import Work, nothing

import accelrt
from peers import on_host
from peers.churn import churn
from peers.graph_changes import GraphChanges
from peers.histories import Histories
from peers.readings import Readings

MIB = 1 << 20
# Bytes of the pieces of a batch: 16 KiB each, or from 8 to 32 KiB.
ALIKE, MIXED = [16384] * 4096, [8 + index * 7919 % 25 << 10 for index in range(4096)]


def calls(function):
    return lambda self: function


def entered(context, argument):
    def switch():
        with context(argument):
            pass

    return switch


def within(context, work):
    def inside():
        with context:
            return work()

    return inside


class Accelrt(GraphChanges, Readings, Histories, cuda=accelrt):
    """Work on streams goes to one stream of its own, made current where the row says so."""

    def __init__(self, quick: bool):
        accelrt.init()
        self.enter_thread()
        self.version = accelrt.__version__
        self.settle = accelrt.synchronize
        self.large = 4 * MIB if quick else 64 * MIB
        self.stream = accelrt.Stream()

    def enter_thread(self):
        accelrt.set_device(0)

    def side_streams(self, count):
        return [accelrt.Stream() for _ in range(count)]

    # --- the recorder ---

    dumps = (".pickle", ".snapshot")

    def record(self, enabled="all", **how):
        accelrt.memory.record_history(enabled, **how)

    def history_tag(self):
        tag = accelrt.memory.tag("benchmark")
        return Work(within(tag, self.pair(512)), within(tag, nothing))

    def dump(self, path):
        accelrt.memory.dump_snapshot(path)

    def load(self, path):
        return accelrt.memory.load_snapshot(path)

    # --- memory ---

    def pair(self, size):
        alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
        return lambda: delete(alloc(size))

    pair_512, pair_4mib = partialmethod(pair, 512), partialmethod(pair, 4 * MIB)

    def pair_on(self, stream=None):
        alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete
        handle = (stream or self.stream).cuda_stream
        return lambda: delete(alloc(512, stream=handle))

    pair_512_stream = pair_on

    def mixed_200(self):
        return churn(accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete)

    def made(self, kind, nbytes):
        return lambda: kind(nbytes)

    buffer_512 = partialmethod(made, accelrt.Buffer, 512)
    pinned_1mib = partialmethod(made, accelrt.PinnedBuffer, MIB)
    memory_allocated = calls(accelrt.memory_allocated)

    # --- streams and events ---

    current_stream, stream_make = calls(accelrt.current_stream), calls(accelrt.Stream)
    event_make, current_device = calls(accelrt.Event), calls(accelrt.current_device)

    def with_stream(self):
        return entered(accelrt.stream, self.stream)

    def stream_query(self):
        return self.stream.query

    def event_record(self):
        event, stream = accelrt.Event(), self.stream
        return lambda: event.record(stream)

    def event_cycle(self):
        make, stream = accelrt.Event, self.stream
        return lambda: make().record(stream)

    def wait_event(self):
        event, stream = accelrt.Stream().record_event(), self.stream
        return lambda: stream.wait_event(event)

    with_device = calls(entered(accelrt.device, 0))

    # --- graphs ---

    def captured(self, mode="global"):
        to, origin = (accelrt.Buffer(1024, stream=self.stream) for _ in range(2))
        graph, stream, copy = accelrt.CUDAGraph, self.stream, accelrt.copy
        accelrt.set_stream(stream)

        def capture():
            made = graph()
            made.capture_begin(capture_error_mode=mode)
            for _ in range(10):
                copy(to, origin, stream=stream, blocking=False)
            made.capture_end()
            return made

        return capture

    capture_10 = captured

    def asked(self, count):
        # (device, stream, event) of each thread that records and asks beside captures.
        self.asked_of = [(each, each.record_event()) for each in self.side_streams(count)]
        return [(each.device_index, each.cuda_stream, event.cuda_event) for each, event in self.asked_of]

    def replay_10(self):
        return self.captured()().replay

    # --- launches and exports ---

    def empty_kernel(self, count):
        kinds = ["float*"] * 8 + ["long long"] * 4 + ["double"] * 4
        if on_host():  # any function of C that does nothing
            address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
            return accelrt.host_kernel(address, kinds[:count])
        module = accelrt.Module(Path(__file__).parents[1] / "raw" / "empty.ptx")
        return module.function(f"empty_{count}", kinds[:count])

    def launched(self, count):
        return self.empty_kernel(count)[1, 1, self.stream], accelrt.empty(256, "float32", stream=self.stream)

    def launch_1(self):
        launcher, x = self.launched(1)
        return lambda: launcher(x)

    def launch_16(self):
        launcher, x = self.launched(16)
        return lambda: launcher(x, x, x, x, x, x, x, x, 1, 2, 3, 4, 0.5, 1.5, 2.5, 3.5)

    def launch_subject(self):
        self.kept = launcher, x = self.launched(1)
        return 0, self.stream.handle, launcher.kernel.handle, x.ptr

    def elementwise_new(self):
        kernel = accelrt.elementwise("T x", "T z", "z = 2 * x", name="doubled")
        accelrt.set_stream(self.stream)
        x = accelrt.zeros(256, "float32")
        return lambda: kernel(x)

    def array(self):
        accelrt.set_stream(accelrt.default_stream())
        return accelrt.empty(256, "float32")

    def dlpack(self):
        return self.array().__dlpack__

    # --- copies ---

    def h2d(self, nbytes):
        device, host = accelrt.Buffer(nbytes, stream=self.stream), accelrt.PinnedBuffer(nbytes)
        copy, stream = accelrt.copy, self.stream
        return lambda: copy(device, host, stream=stream, blocking=False)

    h2d_1kib = partialmethod(h2d, 1024)

    def fill_1kib(self):
        buffer, fill, stream = accelrt.Buffer(1024, stream=self.stream), accelrt.fill, self.stream
        return lambda: fill(buffer, stream=stream)

    def pieces(self, sizes):
        """Memory of both kinds, where pieces of it begin that lie behind each other, and their sizes."""
        import numpy as np

        sizes = np.array(sizes, np.uint64)
        offsets = np.cumsum(sizes) - sizes
        device = accelrt.Buffer(int(sizes.sum()), stream=self.stream)
        host = accelrt.PinnedBuffer(device.nbytes)
        return device, host, device.ptr + offsets, host.ptr + offsets, sizes

    def many(self, sizes, is_rate=False):
        device, host, dsts, srcs, bytes_ = self.pieces(sizes)
        nbytes = sizes[0] if len(set(sizes)) == 1 else bytes_
        copy_many, stream, memory = accelrt.copy_many, self.stream, (device, host)
        counted = {"nbytes": device.nbytes} if is_rate else {"per": len(dsts)}
        return Work(lambda: copy_many(dsts, srcs, nbytes, memory=memory, stream=stream), **counted)

    many_16kib, many_16kib_rate = partialmethod(many, ALIKE), partialmethod(many, ALIKE, is_rate=True)
    many_mixed, many_mixed_rate = partialmethod(many, MIXED), partialmethod(many, MIXED, is_rate=True)

    def many_loop(self):
        device, host, *_ = self.pieces(ALIKE)
        copy, stream, places = accelrt.copy, self.stream, range(0, device.nbytes, 16384)

        def work():
            for place in places:
                copy(device, host, 16384, dst_offset=place, src_offset=place, stream=stream, blocking=False)

        return Work(work, per=len(places))

    def many_objects(self):
        dsts = [accelrt.Buffer(16384, stream=self.stream) for _ in range(256)]
        srcs = [accelrt.PinnedBuffer(16384) for _ in range(256)]
        copy_many, stream = accelrt.copy_many, self.stream
        return Work(lambda: copy_many(dsts, srcs, stream=stream), per=len(dsts))

    def commit_2mib(self):
        cache = self.kept = accelrt.reserve(1 << 28, stream=self.stream)
        page = cache.page_bytes
        cache.prepare(0, 4 * page)

        def work():
            cache.commit(page, page)
            cache.decommit(page, page)

        return work

    def h2d_rate(self):
        return Work(self.h2d(self.large), nbytes=self.large)

    def d2d_rate(self):
        to, origin = (accelrt.Buffer(4 * self.large, stream=self.stream) for _ in range(2))
        copy, stream = accelrt.copy, self.stream
        return Work(lambda: copy(to, origin, stream=stream, blocking=False), nbytes=8 * self.large)

    def doubled(self, nbytes):
        kernel, stream = accelrt.elementwise("T x", "T z", "z = 2 * x", name="doubled"), self.stream
        x, z = (accelrt.zeros(nbytes // 4, "float32", stream=stream) for _ in range(2))
        return lambda: kernel(x, out=z, stream=stream)

    elementwise_1kib = partialmethod(doubled, 1024)

    def elementwise_rate(self):
        return Work(self.doubled(16 * self.large), nbytes=32 * self.large)

    def draw(self, name, nbytes):
        draw = getattr(accelrt.random.Generator(0), name)
        x, stream = accelrt.empty(nbytes // 4, "float32", stream=self.stream), self.stream
        return lambda: draw(x, stream=stream)

    uniform_1kib = partialmethod(draw, "uniform", 1024)

    def draw_rate(self, name):
        nbytes = self.large // 8 if on_host() else 16 * self.large
        return Work(self.draw(name, nbytes), nbytes=nbytes)

    uniform_rate, normal_rate = partialmethod(draw_rate, "uniform"), partialmethod(draw_rate, "normal")
