"""What other people wrote (tags, names of files and functions, paths) does nothing to a terminal."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from child import in_child, in_own_process
from cli_command import accelrt as command

import accelrt
from accelrt import memory
from accelrt.core.printable import printable, printable_lines
from accelrt.memory import explain
from accelrt.sanitizer.report import Line

ROOT = Path(accelrt.__file__).parent
HOSTILE = "\x1b]0;owned\x07\x1b[2J\nforged line\r\x08\x9b31m\u202e\udc80"


def test_control_characters_are_escaped_and_letters_stay():
    assert printable("naïve 模型 a\\b") == "naïve 模型 a\\b"
    assert printable("a\x1b[2J\x07\n\r\t\x9b\u202e\udc80") == "a\\x1b[2J\\x07\\n\\r\\t\\x9b\\u202e\\udc80"
    assert printable_lines("one\ntwo\x1b\n") == "one\ntwo\\x1b\n"


def is_shown(text):
    return all(letter.isprintable() or letter == "\n" for letter in text)


@in_own_process
def test_reports_show_tags_and_stacks_as_text():
    memory.record_history()
    code = compile("def hostile(): return accelrt.empty(1000, dtype='u1')", f"/tmp/{HOSTILE}.py", "exec")
    names = {"accelrt": accelrt}
    exec(code.replace(co_consts=tuple(map(renamed, code.co_consts))), names)
    with memory.tag(HOSTILE):
        kept = names["hostile"]()
    for text in (memory.report(), memory.memory_summary()):
        assert is_shown(text), text
        assert not any(line.startswith("forged") for line in text.splitlines())
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        accelrt.empty(1 << 40, dtype="u1")
    assert is_shown(str(caught.value))
    return kept


def renamed(value):
    return value.replace(co_name=HOSTILE) if hasattr(value, "co_name") else value


def leaks_hostile_memory():
    memory.tag(HOSTILE).__enter__()
    address = memory.caching_allocator_alloc(1000)
    assert address


def test_the_report_of_leaks_shows_them_as_text():
    out = in_child(leaks_hostile_memory, ACCELRT_LEAKS="1")
    assert "tag" in out
    assert is_shown(out)


def test_frames_and_lines_are_one_line():
    frames = [{"name": HOSTILE, "filename": f"/tmp/{HOSTILE}", "line": 3}]
    assert is_shown(explain.stack_text(frames))
    assert "\n" not in explain.stack_text(frames) + str(Line(HOSTILE, 3, HOSTILE))


@pytest.mark.parametrize(
    "arguments",
    [("view", "\x1b[2J.pickle"), ("replay", "\x1b[2J.npz"), ("\x1b[2J",), ("plot", "--kind", "\x1b[2J", "x")],
)
def test_the_command_line_answers_in_text(arguments):
    done = command(*arguments)
    assert done.returncode == 2
    assert is_shown(done.stdout + done.stderr)
    assert "\\x1b[2J" in done.stderr


def test_paths_that_commands_print_are_text(tmp_path):
    script = "import accelrt; accelrt.empty(3, dtype='u1')"
    done = command("record", "-o", tmp_path / "\x1b[2J.bin", "--", sys.executable, "-c", script)
    assert done.returncode == 0
    assert is_shown(done.stdout + done.stderr)
    assert "\\x1b[2J.bin" in done.stderr


def prints(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            shown = ast.unparse(node.args[0]) if node.args else ""
            if not shown.startswith(("printable", "json.dumps")):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {shown}"


def test_every_print_escapes_what_it_shows():
    # The output of one is read by this package; the other is a table that rich has drawn of such texts.
    known = ("devices/discovery.py", "tools/cli/commands/top/__init__.py")
    found = [line for path in ROOT.rglob("*.py") for line in prints(path) if not line.startswith(known)]
    assert found == []


def test_a_terminal_is_sent_nothing_by_info():
    done = subprocess.run(
        [sys.executable, "-m", "accelrt", "info"],
        env={"ACCELRT_DRIVER": "host", "ACCELRT_RECORD": "\x1b[2J/x", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT.parent,
    )
    assert is_shown(done.stdout + done.stderr)
