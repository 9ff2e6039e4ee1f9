"""KeyboardInterrupt at every place of what records and publishes: no thread, file or process stays."""

import gc
import os
import signal
import sys
import termios
from pathlib import Path

import pytest
from every_bytecode import Held, children, interrupt_everywhere, some_places

import accelrt
from accelrt.core import files
from accelrt.core.process import open_descriptor
from accelrt.memory import torch_names
from accelrt.memory.history import compact_form, drain, memory_history, snapshot_file, snapshots, torch_form
from accelrt.tools import publish
from accelrt.tools.cli import main
from accelrt.tools.cli.commands import record
from accelrt.tools.cli.commands.top import keys

pytestmark = [pytest.mark.host, pytest.mark.own_process]
HISTORY = [compact_form, memory_history, snapshot_file, snapshots, torch_form, torch_names, files]


def record_into(path):
    drain.start(str(path))
    accelrt.Buffer(512).free()
    drain.stop()


@pytest.fixture
def small_ring(monkeypatch):
    accelrt.memory.record_history(max_entries=100)  # not each time anew with a ring of a million
    monkeypatch.setattr(drain.recording, "record_history", lambda *enabled, **options: None)
    yield
    monkeypatch.undo()
    accelrt.memory.record_history(None)


@some_places(45)
@pytest.mark.usefixtures("small_ring")
def test_an_interrupted_recording_ends(tmp_path, places):
    record_into(tmp_path / "first")
    held = Held()

    def check(path):
        drain.stop()
        held.check()
        for each in tmp_path.iterdir():
            accelrt.memory.load_snapshot(each)
            each.unlink()

    reached, escaped = interrupt_everywhere(
        record_into, [drain, compact_form], lambda: tmp_path / "trace", check, places
    )
    assert escaped == reached > 3


@pytest.mark.usefixtures("small_ring")
def test_a_recording_that_did_not_begin_leaves_no_file(tmp_path):
    record_into(tmp_path / "first")
    (tmp_path / "trace").write_bytes(b"of somebody else")
    held = Held(tmp_path)

    def check(path):
        if drain._drain is not None:
            began = Path(drain._drain.path)
            drain.stop()
            began.unlink()
        held.check()
        assert path.read_bytes() == b"of somebody else"

    def start(path):
        drain.start(str(path))

    reached, escaped = interrupt_everywhere(start, [drain], lambda: tmp_path / "trace", check)
    assert reached == escaped > 20


@pytest.mark.usefixtures("small_ring")
def test_a_recording_whose_thread_cannot_start_leaves_no_file(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(drain.Drain, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        drain.start(str(tmp_path / "trace"))
    assert list(tmp_path.iterdir()) == []
    assert drain._drain is None


def publish_once(_):
    publish.start(0.005)
    publish.stop()


@some_places(3)
def test_interrupted_publishing_ends(tmp_path, monkeypatch, places):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    publish_once(None)
    held = Held(tmp_path)

    def check(_):
        publish.stop()
        held.check()

    reached, escaped = interrupt_everywhere(publish_once, [publish], check=check, places=places)
    assert escaped == reached > 5


def test_publishing_can_be_started_after_a_thread_could_not(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(publish.Writer, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            publish.start()
    publish.start()
    writer = publish._writer[1]
    publish.stop()
    assert writer.ident is not None


@some_places(3)
def test_an_interrupted_record_command_leaves_no_process_and_no_handler(tmp_path, places):
    held = Held(tmp_path)
    handlers, before = {each: signal.getsignal(each) for each in record.FORWARDED}, children()

    def check(_):
        assert children() == before
        assert {each: signal.getsignal(each) for each in record.FORWARDED} == handlers
        held.check()

    def run(_):
        assert record.run(["true"], str(tmp_path / "trace")) == 0

    reached, _ = interrupt_everywhere(run, [record], check=check, places=places)
    assert reached > 10


def test_a_recorded_program_gets_the_signals_that_come_before_it_is_there(monkeypatch):
    start = record.subprocess.Popen

    def late(words, env):
        signal.raise_signal(signal.SIGTERM)
        return start(words, env=env)

    monkeypatch.setattr(record.subprocess, "Popen", late)
    assert record.run_program(["sleep", "600"], os.environ) == 128 + signal.SIGTERM


def test_a_recorded_program_is_interrupted_by_the_terminal_as_without_accelrt():
    code = "import signal; raise SystemExit(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert record.run_program([sys.executable, "-c", code], os.environ) == 1


@pytest.fixture
def terminal(monkeypatch):
    ours, theirs = os.openpty()
    with open(theirs) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield theirs
        monkeypatch.undo()
    os.close(ours)


@pytest.mark.parametrize("standard", [True, False])
def test_an_interrupted_terminal_is_as_before(terminal, standard, monkeypatch):
    if not standard:
        name = os.ttyname(terminal)
        monkeypatch.setattr(keys, "open_descriptor", lambda path, flags: open_descriptor(name, flags))
        monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115  monkeypatch puts the other back
    held, mode, handler = Held(), termios.tcgetattr(terminal), signal.getsignal(signal.SIGWINCH)

    def use(_):
        with keys.Keys() as typed:
            assert termios.tcgetattr(terminal) != mode
            signal.raise_signal(signal.SIGWINCH)
            assert typed.read(10) == keys.RESIZED

    def check(_):
        held.check()
        assert termios.tcgetattr(terminal) == mode
        assert signal.getsignal(signal.SIGWINCH) == handler

    reached, escaped = interrupt_everywhere(use, [keys], check=check)
    assert reached == escaped > 20


def test_a_stream_that_is_given_up_takes_no_descriptor(tmp_path):
    with open(tmp_path / "stream", "w") as stream:
        held = Held()

        def check(_):
            now = [number for number, _ in held.now()["descriptors"]]
            assert now == [number for number, _ in held.before["descriptors"]]

        reached, escaped = interrupt_everywhere(lambda _: main.give_up(stream), [main], check=check)
    assert reached == escaped > 3


def record_and_dump(path):
    accelrt.memory.record_history(max_entries=100)
    accelrt.Buffer(512).free()
    accelrt.memory.dump_snapshot(path)
    accelrt.memory.load_snapshot(path)
    accelrt.memory.record_history(None)


@some_places(41)
def test_an_interrupted_dump_is_whole_or_not_there(tmp_path, places):
    path = tmp_path / "snapshot"
    record_and_dump(path)
    held = Held(tmp_path)

    def check(_):
        assert gc.isenabled()
        accelrt.memory.record_history(None)
        if path.exists():
            accelrt.memory.load_snapshot(path)
            path.unlink()
        held.check()

    reached, escaped = interrupt_everywhere(record_and_dump, HISTORY, lambda: path, check, places)
    assert escaped == reached > 10
