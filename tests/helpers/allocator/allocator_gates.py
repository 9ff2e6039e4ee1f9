"""Gates on the streams of an allocator and its model: while a gate is closed, its stream runs nothing."""

import threading
import time
from contextlib import contextmanager

WAIT_SECONDS = 300  # how long a wait that must begin may take to begin on a busy machine


class Gates:
    """The gates of a mirror's streams; the mirror has streams and models.  waits as in Mirror."""

    def __init__(self, waits):
        self.waits = waits
        self.gates = {}  # (device, stream) -> threading.Event

    def close_gate(self, device, stream):
        if (device, stream) not in self.gates:
            gate = self.gates[device, stream] = threading.Event()
            self.streams[device, stream].launch_host_func(gate.wait)
            self.models[device].close_gate(stream)

    def open_gate(self, device, stream):
        if (device, stream) in self.gates:
            self.gates.pop((device, stream)).set()
            self.streams[device, stream].synchronize()
            self.models[device].open_gate(stream)

    def open_gates(self):
        for device, stream in list(self.gates):
            self.open_gate(device, stream)

    def gated(self, device):
        return [stream for gated, stream in self.gates if gated == device]

    def prepare_wait(self, device, awaited):
        """Opens the gates if several streams would be waited for: the order they go on in is undefined."""
        gated = set(self.gated(device))
        if not self.waits or len(awaited) > 1 or (awaited and gated - awaited):
            for stream in gated:
                self.open_gate(device, stream)

    @contextmanager
    def opening_gates(self, waiting, bound=True):
        """Opens every gate once the operation inside waits; bound: it must wait, else it may."""
        if not waiting:
            yield
            return
        before, finished, seen = self.waits(), threading.Event(), threading.Event()

        def watch():
            deadline = time.monotonic() + WAIT_SECONDS
            while not finished.wait(0.0002) and time.monotonic() < deadline:
                if self.waits() > before:
                    seen.set()
                    break
            if seen.is_set() or bound:
                for gate in self.gates.values():
                    gate.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join()
        assert seen.is_set() or not bound, "the model waits for a gated stream here, the allocator did not"
        if bound or seen.is_set():
            self.open_gates()
