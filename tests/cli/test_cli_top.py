"""accelrt top on real terminals, on the host device, and for scripts."""

import json
import os
import signal
import subprocess
import sys

import pytest
from child import run_python
from cli_command import ROOT, accelrt
from terminal import Terminal

from accelrt.tools import publish

cells = pytest.importorskip("rich.cells")
pytestmark = pytest.mark.own_process

HOLD = """
import sys, accelrt
for ordinal in (0, 1):
    with accelrt.device(ordinal):
        kept = accelrt.Buffer(int(sys.argv[1]) << 20)
        if ordinal == 0:
            first = kept
accelrt.publish.start()
while not any(one.pid == __import__("os").getpid() for one in accelrt.publish.published()):
    pass
print("ready", flush=True)
sys.stdin.read()
"""
HOST = {"ACCELRT_DRIVER": "host", "ACCELRT_HOST_DEVICES": "2", "ACCELRT_HOST_MEMORY": "1GiB"}


@pytest.fixture
def holders(tmp_path, monkeypatch):
    """Two processes that hold 20 and 300 MiB of two host devices each, and publish it; their pids."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, size],
            env=os.environ | HOST,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for size in ("20", "300")
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    yield [process.pid for process in started]
    for process in started:
        process.communicate()
    assert list(publish.folder().iterdir()) == []


def order(picture, pids):
    """The pids as they stand below each other."""
    words = [line.split()[0] for line in picture if line.split()]
    return [int(word) for word in words if word.isdecimal() and int(word) in pids]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (140, 40), (100, 12), (40, 10)])
def test_no_line_is_wider_than_the_terminal_and_no_picture_higher(holders, columns, lines):
    with Terminal(columns, lines, "top", "--interval", "0.1", **HOST) as terminal:
        terminal.wait_for(lambda text: len(terminal.pictures()) > 3)
        for key in "mrlpducjjkkc":
            terminal.type(key)
            terminal.read()
        terminal.type("q")
        assert terminal.finish() == (0, "")
        pictures = terminal.pictures()
        assert len(pictures) > 3
        for picture in pictures[:-1]:
            assert len(picture) <= lines
            assert max(cells.cell_len(line) for line in picture) <= columns


@pytest.mark.parametrize("columns", [80, 140])
def test_devices_and_processes_that_publish_are_there(holders, columns):
    with Terminal(columns, 24, "top", "--interval", "0.1", **HOST) as terminal:
        picture = terminal.wait_for(lambda text: text.count("300.0 MiB") >= 4)
        text = "\n".join(picture)
        assert "2 devices  2 processes" in picture[0]
        assert text.count("host device") == 2
        assert "320.0 MiB/2.0 GiB" in text  # each process has host devices of its own
        assert "▂" in text
        assert order(picture, holders) == [holders[1], holders[1], holders[0], holders[0]]
        assert ("live of reserved" in text) == (columns == 140)
        assert "q quit" in text


def test_keys_sort_and_sort_the_other_way(holders):
    low, high = sorted(holders)
    with Terminal(80, 24, "top", "--interval", "60", "--sort", "live", **HOST) as terminal:
        terminal.wait_for(lambda text: "live▼" in text)
        for key, head, first in (
            ("p", "pid▲", low),
            ("p", "pid▼", high),
            ("m", "memory▼", holders[1]),
            ("m", "memory▲", holders[0]),
            ("r", "reserved▼", holders[1]),
            ("p", "pid▲", low),
        ):
            terminal.type(key)
            picture = terminal.wait_for(lambda text, head=head: head in text and "q quit" in text)
            assert order(picture, holders)[0] == first
        terminal.type("d")
        picture = terminal.wait_for(lambda text: "#▲" in text and "q quit" in text)
        assert order(picture, holders) == [low, high, low, high]
        terminal.type("j")
        terminal.type("\x1b[B")
        terminal.type("Z")  # no key of ours
        terminal.type("q")
        assert terminal.finish() == (0, "")


@pytest.mark.parametrize("end", ["q", "\x1b", "\x03", signal.SIGINT, signal.SIGTERM])
def test_every_way_out_puts_the_terminal_back(tmp_path, end):
    with Terminal(80, 24, "top", XDG_RUNTIME_DIR=str(tmp_path), **HOST) as terminal:
        terminal.wait_for(lambda text: "q quit" in text)
        if isinstance(end, str):
            terminal.type(end)
        else:
            terminal.interrupt(end)
        assert terminal.finish() == (0, "")
        assert terminal.is_put_back()


def test_a_new_size_is_drawn_at_once(tmp_path):
    with Terminal(80, 24, "top", "--interval", "60", XDG_RUNTIME_DIR=str(tmp_path), **HOST) as terminal:
        terminal.wait_for(lambda text: "q quit" in text)
        terminal.resize(140, 40)
        terminal.interrupt(signal.SIGWINCH)
        picture = terminal.wait_for(lambda text: "held back" in text and "j k scroll" in text)
        assert max(cells.cell_len(line) for line in picture) == 140
        terminal.type("q")
        assert terminal.finish() == (0, "")


def test_once_prints_the_same_without_a_terminal(holders):
    done = accelrt("top", "--once", COLUMNS="80", PYTHONUTF8="1", **HOST)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(cells.cell_len(line) for line in lines) <= 80
    assert "\x1b" not in done.stdout
    assert "q quit" not in done.stdout
    assert sorted({*order(lines, holders)}) == sorted(holders)


def test_a_terminal_without_such_characters_gets_plain_ones(holders):
    done = accelrt("top", "--once", COLUMNS="140", PYTHONIOENCODING="ascii", PYTHONUTF8="0", **HOST)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "memoryv" in done.stdout


def test_json_for_scripts_needs_no_rich(holders):
    code = "import sys\nsys.modules['rich'] = None\nfrom accelrt.tools.cli.main import main\nsys.exit(main())"
    done = run_python("-c", code, "top", "--once", "--json", cwd=ROOT, **HOST)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == ["time", "problem", "units", "devices", "processes"]
    assert [device["ordinal"] for device in found["devices"]] == [0, 1]
    assert found["devices"][0]["readings"]["device_memory_info"]["used"] == 320 << 20
    rows = {(one["pid"], one["uuid"]): one for one in found["processes"]}
    assert len(rows) == 4
    for one in rows.values():
        assert one["pid"] in holders
        assert (
            one["live"] == one["reserved"] == one["memory"] == (20 if one["pid"] == holders[0] else 300) << 20
        )
        assert sys.executable.rpartition("/")[2] in one["command"]


@pytest.mark.parametrize("arguments", [["top"], ["top", "--once"], ["export", "--once"]])
def test_a_missing_package_is_named_with_how_to_get_it(arguments):
    code = (
        "import sys\nsys.modules['rich'] = sys.modules['prometheus_client'] = None\n"
        "from accelrt.tools.cli.main import main\nsys.exit(main())"
    )
    done = run_python("-c", code, *arguments, cwd=ROOT, **HOST)
    assert (done.returncode, done.stdout) == (1, "")
    assert "which is not installed: python -m pip install 'accelrt[cli]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["top"], "--once"),
        (["top", "--json"], "--json goes with --once"),
        (["top", "--interval", "0"], "0.1"),
        (["top", "--sort", "size"], "memory"),
        (["export", "--port", "65536"], "0 to 65535"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, words):
    done = accelrt(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
