"""KeyboardInterrupt at every place of the commands export, demo and replay: what they hold is given back."""

import functools
import gc
import os
import signal
import socket
import threading
from types import SimpleNamespace

import pytest
from cli_command import write_trace
from every_bytecode import Held, interrupt_everywhere, some_places

import accelrt
from accelrt.tools.cli import choice, interrupts, pipeline
from accelrt.tools.cli.commands import demo, export, replay
from accelrt.tools.traces import load

pytestmark = pytest.mark.host
KIB = 1 << 10
# Allocations that are live at the end of a chunk, and at that of the trace.
EVENTS = [(1, 0, KIB, 0), (1, 1, 2 * KIB, 0), (0, 0, 0, 0), (1, 2, KIB, 1), (1, 3, KIB, 0), (0, 1, 0, 0)]


@pytest.fixture
def path(tmp_path, monkeypatch):
    accelrt.init()
    monkeypatch.setattr(replay, "CHUNK", 2)
    for command in (replay, demo):  # no other size of the device than it has
        monkeypatch.setattr(command, "host_capacity", lambda trace: 0)
    return str(write_trace(tmp_path / "trace.npz", EVENTS))


def check_memory(_=None):
    accelrt.synchronize()  # host functions hold what they are called with
    gc.collect()
    accelrt.host_empty_cache()
    assert accelrt.memory_allocated() == 0
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0
    assert not accelrt.is_current_stream_capturing()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_replay_leaves_nothing_live(path):
    def run(_):
        assert replay.run(path, "host", as_json=True) == 0

    reached, escaped = interrupt_everywhere(run, [replay, interrupts, choice], check=check_memory)
    assert reached == escaped > 15


@some_places(40)
def test_an_interrupted_demo_leaves_nothing_live(path, places, monkeypatch):
    monkeypatch.setattr(demo, "load_trace", lambda: load(path))
    monkeypatch.setattr(demo, "pipeline_part", functools.partial(pipeline.pipeline_part, 64, 2))

    def run(_):
        assert demo.run("host") == 0

    reached, escaped = interrupt_everywhere(
        run, [demo, pipeline, replay, interrupts], check=check_memory, places=places
    )
    assert escaped == reached > 5


class Server:
    """A stand-in for prometheus-client's: a socket that listens, and a thread that serves it."""

    def __init__(self):
        self.socket, self.over = socket.create_server(("127.0.0.1", 0)), threading.Event()
        self.server_port = self.socket.getsockname()[1]
        self.shutdown, self.server_close = self.over.set, self.socket.close


def start_http_server(port, address, registry):
    server = Server()
    thread = threading.Thread(target=server.over.wait)
    thread.start()
    return server, thread


def test_an_interrupted_exporter_ends_its_server(monkeypatch):
    client = SimpleNamespace(
        CollectorRegistry=lambda auto_describe: SimpleNamespace(register=lambda collector: None),
        start_http_server=start_http_server,
    )
    monkeypatch.setattr(export, "need", lambda *names: client)
    monkeypatch.setattr(export, "put", lambda *text, **options: os.kill(os.getpid(), signal.SIGTERM))
    accelrt.init()
    held, terminate = Held(), signal.getsignal(signal.SIGTERM)

    def run(_):
        assert export.run("127.0.0.1", 0, False) == 0

    def check(_):
        assert signal.getsignal(signal.SIGTERM) == terminate
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        held.check()

    run(None)
    reached, escaped = interrupt_everywhere(run, [export, interrupts], check=check)
    assert reached == escaped > 15
