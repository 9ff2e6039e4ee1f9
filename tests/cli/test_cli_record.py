"""accelrt record and ACCELRT_RECORD: what a program leaves in its file, however it ends."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from cli_command import accelrt
from made_up_history import MadeUpRecorder, made_history

from accelrt.memory.history import compact_form, drain
from accelrt.memory.history.snapshot_file import load_snapshot
from accelrt.tools.traces import load

pytestmark = pytest.mark.own_process
MIB = 1 << 20

USE = """
import accelrt, os, signal, subprocess, sys, time
kept = [accelrt.Buffer(MIB) for _ in range(5)]
with accelrt.memory.tag("kv cache"), accelrt.memory.annotate("step"):
    more = accelrt.Buffer(3 * MIB)
del kept[1:]

def await_recording(path):
    from accelrt.memory.history.snapshot_file import load_snapshot
    found = []
    while found.count("alloc") < 6:
        time.sleep(0.01)
        try:
            found = [event["action"] for event in load_snapshot(path)["device_traces"][0]]
        except (LookupError, OSError, ValueError):
            pass  # it has no more than its beginning
"""


def program(folder, *lines):
    path = folder / "program.py"
    path.write_text("\n".join([USE.replace("MIB", str(MIB)), *lines]))
    return path


def record(folder, *lines, arguments=(), **environment):
    output = folder / "out.accelrt"
    script = program(folder, *lines)
    return accelrt("record", "-o", output, *arguments, "--", sys.executable, script, **environment), output


def actions(found):
    return [event["action"] for event in found["device_traces"][0]]


def test_a_program_leaves_what_it_did(tmp_path):
    done, output = record(tmp_path, "print('its own words')")
    assert (done.returncode, done.stdout) == (0, "its own words\n")
    found = load_snapshot(output)
    assert "complete" not in found["accelrt"]
    assert actions(found).count("alloc") == 6
    assert actions(found).count("free_requested") == actions(found).count("free_completed") == 4
    assert found["external_annotations"][0]["name"] == "step"
    assert list(found["accelrt"]["tags"][0]) == ["kv cache"]
    assert {block["tag"] for segment in found["segments"] for block in segment["blocks"]} == {"", "kv cache"}
    assert found["accelrt"]["dropped"][0] == 0
    trace = load(output)
    assert (trace.peak_live, len(trace), trace.notes) == (8 * MIB, 10, ())
    told = re.fullmatch(r"accelrt record: ([\d,]+) events in (.*) \((.*)\)\n", done.stderr)
    assert int(told[1]) == sum(map(len, found["device_traces"])) + sum(map(len, found["accelrt"]["events"]))
    assert told[2] == str(output)


def test_stacks_are_there_where_they_are_asked_for(tmp_path):
    for stacks, expected in ((None, set()), ("none", set()), ("python", {"<module>", "<listcomp>"})):
        _, output = record(tmp_path, arguments=("--stacks", stacks) if stacks else ())
        found = load_snapshot(output)
        named = {frame["name"] for event in found["device_traces"][0] for frame in event["frames"]}
        assert named <= expected
        assert bool(named) == bool(expected)


def test_a_recording_is_replayed_and_tuned(tmp_path):
    _, output = record(tmp_path)
    assert '"peak_live": 8388608' in accelrt("replay", output, "--json").stdout
    assert "ACCELRT_ALLOC_CONF=" in accelrt("tune", output, "--keys", "stitching").stdout


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("raise ValueError('its own')", 1),
        ("await_recording(path); os._exit(4)", 4),
        ("await_recording(path); os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("await_recording(path); os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
def test_the_status_is_the_programs_and_the_file_can_be_read(tmp_path, end, status):
    done, output = record(tmp_path, f"path = {str(tmp_path / 'out.accelrt')!r}", end)
    assert done.returncode == status
    assert actions(load_snapshot(output)).count("alloc") == 6
    ended = status in (1, 3)
    assert load_snapshot(output)["accelrt"].get("complete", True) == ended
    assert ("was stopped before it could end the file" in done.stderr) == (not ended)
    assert load(output).notes == (() if ended else (load(output).notes[0],))


def test_a_signal_is_passed_on(tmp_path):
    done, output = record(
        tmp_path,
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))",
        "os.kill(os.getppid(), signal.SIGTERM)",
        "time.sleep(60)",
    )
    assert done.returncode == 7
    assert "complete" not in load_snapshot(output)["accelrt"]


def test_a_child_of_a_fork_and_other_processes_have_files_of_their_own(tmp_path):
    fork = (
        "import accelrt, os, sys\nchild = os.fork()\nif not child:\n    accelrt.Buffer(99)\n    sys.exit()\n"
    )
    other = "subprocess.run([sys.executable, '-c', 'import accelrt; accelrt.Buffer(77)'], check=True)"
    script = program(tmp_path, "os.waitpid(child, 0)", other)
    script.write_text(fork + script.read_text())
    output = tmp_path / "out.accelrt"
    done = accelrt("record", "-o", output, "--", sys.executable, script)
    assert done.returncode == 0
    sizes = {}
    for path in tmp_path.glob("out.accelrt*"):
        assert str(path) in done.stderr
        traces = load_snapshot(path)["device_traces"]
        sizes[path.name] = {event["size"] for event in traces[0] if event["action"] == "alloc"}
    assert sizes.pop("out.accelrt") == {MIB, 3 * MIB}
    assert sorted(map(tuple, sizes.values())) == [(77,), (99,)]
    assert all(name.split(".")[-1].isdigit() for name in sizes)


def test_a_program_without_a_device_is_told(tmp_path):
    done = accelrt("record", "-o", tmp_path / "none", "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "the program used no device through accelrt" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ([], 2, "no program is given"),
        (["--"], 2, "no program is given"),
        (["--", "/nowhere/at/all"], 127, "/nowhere/at/all cannot be run: No such file"),
        (["script.py"], 127, "write accelrt record -- python script.py"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path, words, status, text):
    done = accelrt("record", "-o", tmp_path / "x", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("missing/folder/x", "no such folder for the trace"),
        ("file/x", "no such folder for the trace"),
        ("", "not a regular file"),
        ("pipe", "not a regular file"),
        ("/dev/full", "not a regular file"),
    ],
)
def test_a_trace_that_cannot_be_written_is_refused_before_the_program_runs(tmp_path, place, text):
    (tmp_path / "file").write_text("a letter")
    os.mkfifo(tmp_path / "pipe")
    done = accelrt("record", "-o", tmp_path / place, "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_names_with_signs_of_patterns_are_names(tmp_path):
    output = tmp_path / "t[1]*.bin"
    (tmp_path / "t1.bin.123").write_text("not ours")
    code = "import os, accelrt\nif os.fork() == 0:\n    accelrt.Buffer(64)\n    raise SystemExit\nos.wait()"
    done = accelrt("record", "-o", output, "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert " events in " in line
    assert f"{output}." in line


def test_only_a_trace_is_written_over(tmp_path):
    output = tmp_path / "out.accelrt"
    output.write_text("a letter")
    done, _ = record(tmp_path)
    assert (done.returncode, output.read_text()) == (2, "a letter")
    assert "is there and is no trace file" in done.stderr
    output.unlink()
    for _ in range(2):
        record(tmp_path)
        assert actions(load_snapshot(output)).count("alloc") == 6


def run_with_variable(folder, output, *lines):
    code = program(folder, *lines)
    return accelrt(
        "record", "-o", folder / "unused", "--", "env", f"ACCELRT_RECORD={output}", sys.executable, code
    )


def test_the_variable_leaves_a_file_that_is_there_alone(tmp_path):
    output = tmp_path / "there"
    output.write_text("a letter")
    run_with_variable(tmp_path, output)
    assert output.read_text() == "a letter"
    (beside,) = tmp_path.glob("there.*")
    assert actions(load_snapshot(beside)).count("alloc") == 6


def test_a_device_is_no_file_for_a_recording(tmp_path):
    done = run_with_variable(tmp_path, "/dev/full", "print('well')")
    assert (done.returncode, done.stdout) == (0, "well\n")
    assert "what the allocator does is not recorded" in done.stderr
    assert "not a regular file: '/dev/full'" in done.stderr
    assert not list(Path("/dev").glob("full.*"))


def test_a_file_that_cannot_be_written_does_not_stop_the_program(tmp_path):
    done = run_with_variable(tmp_path, "/nowhere/at/all", "print('well')")
    assert (done.returncode, done.stdout) == (0, "well\n")
    assert "what the allocator does is not recorded" in done.stderr


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path):
    script = program(
        tmp_path,
        "import resource",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))",
        f"for _ in range(1000): accelrt.Buffer({MIB})",
        "time.sleep(0.5)",
        "print('well')",
    )
    output = tmp_path / "out.accelrt"
    done = accelrt("record", "-o", output, "--", sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "well\n")
    assert "is no longer recorded" in done.stderr
    assert load_snapshot(output)["accelrt"]["complete"] is False


# --- the thread that writes --------------------------------------------------------------------------------


class Ring(MadeUpRecorder):
    """Of which the first events are overwritten as time goes on."""

    def event_range(self, device):
        return 0, len(self.history.events[device])


def test_the_ring_is_written_in_chunks_with_what_they_name(tmp_path, monkeypatch):
    monkeypatch.setattr(drain, "CHUNK", 1000)
    history = made_history(2500)
    made = drain.Drain(Ring(history), 2)
    made.create(str(tmp_path / "a"))
    for device in range(2):
        made.copy(device)
    with open(tmp_path / "a", "rb") as file:
        assert compact_form.outline(file, "a").events == sum(map(len, history.events))
    found = load_snapshot(tmp_path / "a")
    wanted = history.snapshot()
    for key in ("device_traces", "external_annotations"):
        assert found[key] == wanted[key]
    assert found["accelrt"]["events"] == wanted["accelrt"]["events"]
    made.abandon()


def test_what_the_ring_lost_is_counted(tmp_path, capsys):
    ring = Ring(made_history(100, devices=1))
    made = drain.Drain(ring, 1)
    made.create(str(tmp_path / "a"))
    made.copy(0)
    ring.oldest = 120
    made.copy(0)
    assert made.missing.total() == 20
    with open(tmp_path / "a", "rb") as file:
        assert compact_form.outline(file, "a").missing == 20
    assert load_snapshot(tmp_path / "a")["accelrt"]["dropped"] == [20]
    made.failure = OSError()  # nothing of this process's own goes into the file
    made.over.set()
    made.start()
    made.finish()
    assert capsys.readouterr().err.startswith("accelrt: 20 of 220 events are not in ")


def test_a_recording_may_be_cut_anywhere_and_is_refused_where_it_is_damaged(tmp_path):
    history = made_history(300, devices=1, stacks=4)
    parts = compact_form.written(history, compact_form.RECORDING)
    whole, path = b"".join(parts), tmp_path / "cut"
    counts = set()
    for length in range(16, len(whole), 11):
        path.write_bytes(whole[:length])
        found = load_snapshot(path)
        assert found["accelrt"]["complete"] is False
        counts.add(sum(map(len, found["device_traces"])))
    assert len(counts) == 2
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"damaged|expected|format"):
            load_snapshot(path)


def test_interrupts_are_the_programs(tmp_path):
    done, _ = record(tmp_path, "os.kill(os.getppid(), signal.SIGINT)", "time.sleep(0.2)", "sys.exit(9)")
    assert done.returncode == 9
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
