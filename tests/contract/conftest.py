"""One text, every driver: the rows of the driver table as such, on host and, where there is a GPU, on cuda.

Nothing here goes through the library: a test calls rows and looks at status codes.  After each test what was
made has to be gone again, kind by kind.
"""

import ctypes
import functools
import subprocess
import sys
import threading

import numpy as np
import pytest
from kernel_sources import image_for

from accelrt.driver.registry import Rows

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NON_BLOCKING = 1
MADE_BY = {
    "stream_create": "stream_destroy",
    "event_create": "event_destroy",
    "memory_alloc": "memory_free",
    "host_alloc": "host_free",
    "physical_create": "physical_release",
    "address_reserve": "address_free",
    "graph_instantiate": "graph_exec_destroy",
    "capture_end": "graph_destroy",
    "async_alloc": "async_free",
    "managed_pool_alloc": "managed_pool_free",
    "module_load": "module_unload",
    "host_register": "host_unregister",
    "pool_create": "pool_destroy",
    "array_create": "array_destroy",
    "mipmap_create": "mipmap_destroy",
    "texture_create": "texture_destroy",
}
ALSO_MADE_BY = {
    "managed_alloc": "memory_alloc",
    "address_reserve_at": "address_reserve",
    "physical_import": "physical_create",
    "ipc_event_open": "event_create",
    "graph_create": "capture_end",
    "graph_clone": "capture_end",
    "pool_import": "pool_create",
    "pinned_pool_create": "pool_create",
    "managed_pool_create": "pool_create",
    "pool_alloc": "async_alloc",
    "pool_pointer_import": "async_alloc",
}
# Rows that take an ordinal first.
ON_A_DEVICE = (
    *("stream_destroy", "event_destroy", "memory_free", "module_unload", "array_destroy", "mipmap_destroy"),
)
called = {}  # driver -> names of rows that a test called
filled = {}


@functools.cache
def gpu_is_there():
    """Asked in a process of its own, so that this one stays free to fork."""
    code = "from accelrt.driver.registry import Rows; raise SystemExit(Rows('cuda').open() != 0)"
    return subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def drivers():
    return ["host", "cuda"] if gpu_is_there() else ["host"]


class Recorded:
    """The rows of a driver; counts what is made and what is given back."""

    def __init__(self, name):
        self.driver = name
        self.raw = Rows(name)
        assert self.raw.open() == 0
        filled[name] = self.raw.filled
        self.alive = dict.fromkeys(MADE_BY, 0)
        self.callbacks = []
        self.keeps = []  # calls that give back what is kept

    def __getattr__(self, name):
        row = getattr(self.raw, name)

        def call(*arguments):
            called.setdefault(self.driver, set()).add(name)
            answer = row(*arguments)
            code = answer[0] if isinstance(answer, tuple) else answer
            if code == 0 and name in MADE_BY:
                self.alive[name] += 1
            if code == 0 and name in ALSO_MADE_BY:
                self.alive[ALSO_MADE_BY[name]] += 1
            for maker, breaker in MADE_BY.items():
                if code == 0 and name == breaker:
                    self.alive[maker] -= 1
            return answer

        return call

    def ok(self, name, *arguments):
        """Calls a row that has to succeed; answers what it wrote."""
        answer = getattr(self, name)(*arguments)
        code, *written = answer if isinstance(answer, tuple) else (answer,)
        assert code == 0, f"{name}{arguments} answered {code}"
        return written[0] if len(written) == 1 else tuple(written)

    def stream(self, flags=NON_BLOCKING):
        return self.ok("stream_create", 0, flags, 0)

    def kept(self, name, *arguments):
        """The same of a row that makes something, which goes when the test is over."""
        made = self.ok(name, *arguments)
        breaker = MADE_BY[ALSO_MADE_BY.get(name, name)]
        sizes = arguments[:1] if name == "address_reserve" else ()
        self.keeps.append((breaker, *((0,) if breaker in ON_A_DEVICE else ()), made, *sizes))
        return made

    def give_back(self):
        """Gives back what is kept, what was made last first."""
        for breaker, *arguments in reversed(self.keeps):
            self.ok(breaker, *arguments)

    def gate(self, stream):
        """Holds a stream until the threading.Event that it answers is set, or for long where a test fails."""
        event = threading.Event()
        self.call(stream, lambda: event.wait(300))
        return event

    def call(self, stream, function):
        callback = CALLBACK(lambda _: function() and None)
        self.callbacks.append(callback)
        self.ok("stream_host_func", 0, stream, ctypes.cast(callback, ctypes.c_void_p).value, 0)

    def pinned(self, size):
        address = self.ok("host_alloc", 0, size)
        return address, np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)

    def read(self, address, size):
        out = np.zeros(size, np.uint8)
        self.ok("copy", 0, 0, out.ctypes.data, address, size)
        self.ok("stream_synchronize", 0, 0)
        return out


@pytest.fixture(params=drivers())
def rows(request):
    made = Recorded(request.param)
    made.ok("set_device", 0)
    made.ok("device_synchronize", 0)
    free, _ = made.ok("memory_info", 0)
    yield made
    made.ok("device_synchronize", 0)
    made.give_back()
    assert {kind: count for kind, count in made.alive.items() if count} == {}
    after, _ = made.ok("memory_info", 0)
    if request.param == "host":  # a GPU is shared, and its driver keeps pages for itself
        assert after == free


@pytest.fixture
def device(rows):
    return rows.kept("memory_alloc", 0, 1 << 20)


@pytest.fixture
def pinned(rows):
    """The address and the bytes of page-locked memory."""
    address, bytes_ = rows.pinned(1 << 16)
    bytes_[:] = np.random.default_rng(0).integers(1, 256, bytes_.size, np.uint8)
    yield address, bytes_
    rows.ok("host_free", 0, address)


@pytest.fixture
def stream(rows):
    handle = rows.stream()
    yield handle
    assert rows.ok("capture_status", 0, handle)[0] == 0
    rows.ok("stream_destroy", 0, handle)


other = stream  # a second one


@pytest.fixture
def event(rows):
    return rows.kept("event_create", 0, 2)


@pytest.fixture
def image(rows):
    return image_for(rows.driver)


@pytest.fixture
def module(rows, image):
    return rows.kept("module_load", 0, image)


@pytest.fixture
def on_host(rows):
    """What a GPU's driver does with handles that are none is not told."""
    if rows.driver != "host":
        pytest.skip("of the host driver")


@pytest.fixture
def function(rows, module):
    return rows.ok("module_function", module, b"number")


def pytest_sessionfinish(session):
    """Tells what was called to the process that writes the summary: this one, or its controller."""
    told = {driver: (filled[driver], len(Rows.names), sorted(names)) for driver, names in called.items()}
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["contract"] = told
    elif told:
        session.config.contract = [told]
