"""Standard streams that are closed, broken, full or ASCII: no traceback, and the exit status says it."""

import os
import shlex
import subprocess
import sys

import pytest
from cli_command import ROOT, write_trace

import accelrt

pytestmark = pytest.mark.own_process
EVENTS = [(1, 7, 100, 0), (1, 8, 0, 1), (0, 7, 0, 3), (1, 7, 50, 0), (0, 8, 0, 0)]
COMMANDS = {
    "version": "--version",
    "help": "--help",
    "info": "info",
    "replay json": "replay TRACE --json",
    "top": "top --once",
    "export": "export --once",
    "demo": "demo",
}


@pytest.fixture
def run(tmp_path):
    """Runs a command with redirections, by a shell."""
    trace = write_trace(tmp_path / "good.npz", EVENTS)

    def run(command, redirections="", **environment):
        words = command.replace("TRACE", shlex.quote(str(trace)))
        line = f"{shlex.quote(sys.executable)} -m accelrt {words} {redirections}"
        settings = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "0", "XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(
            ["bash", "-c", line],
            env=os.environ | settings | environment,
            cwd=ROOT,
            capture_output=True,
            timeout=300,
        )

    return run


def told(done):
    """Both streams as text; no traceback in them, and nothing that the interpreter adds at its exit."""
    out, err = done.stdout.decode(), done.stderr.decode()
    for text in (out, err):
        assert "Traceback" not in text
        assert "Exception ignored" not in text
        assert "NoneType" not in text
    return out, err


@pytest.mark.parametrize("name", COMMANDS)
def test_with_standard_error_closed_a_command_answers_as_ever(run, name):
    done = run(COMMANDS[name], "2>&-")
    out, err = told(done)
    assert (done.returncode, err) == (0, "")
    assert out
    if name == "demo":
        assert out.endswith("PASS\n")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("version", "help")])
def test_with_standard_output_closed_a_command_says_that_its_answer_is_lost(run, name):
    done = run(COMMANDS[name], ">&-")
    assert done.returncode == 2
    command = COMMANDS[name].split()[0]
    assert told(done)[1] == (
        f"accelrt {command}: standard output is closed, and the answer would be lost; send it somewhere\n"
    )
    done = run(COMMANDS[name], "<&- >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


@pytest.mark.parametrize("name", COMMANDS)
def test_whoever_reads_the_output_may_go_away(run, name):
    done = run(COMMANDS[name], "| true; exit ${PIPESTATUS[0]}")
    assert told(done) == ("", "")
    assert done.returncode in (0, 141)  # 0: all of it was in the pipe before its reader went


@pytest.mark.parametrize("name", COMMANDS)
def test_output_that_is_not_taken_is_an_error(run, name):
    done = run(COMMANDS[name], ">/dev/full")
    _, err = told(done)
    assert "No space left on device" in err
    assert len(err.splitlines()) == 1
    assert done.returncode == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_an_encoding_that_lacks_letters_shows_them_as_escapes(run, name):
    settings = {"ACCELRT_Ä": "ü\udcff", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = run(COMMANDS[name], **settings)
    out, err = told(done)
    assert done.returncode == 0
    assert err.isascii()
    warned = ["no variable of accelrt's" in line for line in err.splitlines()]
    assert warned in ([], [True])  # by those that use a device
    assert out.isascii()
    if name == "info":
        assert "ACCELRT_\\xc4=\\xfc\\udcff (accelrt has no such setting)" in out


def test_a_reader_of_the_first_line_gets_it(run):
    done = run("info", "| head -1")
    assert told(done) == ("driver\n", "")


@pytest.mark.parametrize("redirections", ["2>/dev/full", "2>&-", "2> >(true)"])
def test_an_error_that_cannot_be_told_is_an_exit_status(run, redirections):
    done = run("replay /nowhere.npz", redirections)
    assert told(done) == ("", "")
    assert done.returncode == 2
    assert run("nonsense", redirections).returncode == 2


def test_the_version_is_the_package_s(run):
    done = run("--version")
    assert (done.returncode, told(done)) == (0, (f"accelrt {accelrt.__version__}\n", ""))


def test_a_warning_is_one_line(run, tmp_path):
    folder = tmp_path / "accelrt"
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.json").mkdir()
    for command in ("top --once", "top --once --json", "export --once"):
        done = run(command)
        _, err = told(done)
        assert done.returncode == 0
        assert err.startswith(f"accelrt: {folder}/{os.getpid()}.json is left out: ")
        assert len(err.splitlines()) == 1
