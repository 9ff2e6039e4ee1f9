"""A command on a terminal of a size: a pseudo-terminal, typed at and read as a person would."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from cli_command import ROOT

SECONDS = 300
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")
HOME, LEFT = "\x1b[H", "\x1b[?1049l"
END = "<the end>"


class Terminal:
    """python -m accelrt ... on a pseudo-terminal.

    Arguments:
        columns, lines: its size.
        arguments: of the command.
        environment: on top of this process's; None unsets.
    """

    def __init__(self, columns, lines, *arguments, **environment):
        self.ours, self.theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.theirs)
        settings = {
            "TERM": "xterm-256color",
            "COLUMNS": None,
            "LINES": None,
            "PYTHONUTF8": "1",
            **environment,
        }
        variables = {name: value for name, value in (os.environ | settings).items() if value is not None}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "accelrt", *map(str, arguments)],
            env=variables,
            cwd=ROOT,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.text, self.decoder = "", codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        os.close(self.ours)
        os.close(self.theirs)

    def resize(self, columns, lines):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys):
        os.write(self.ours, keys.encode())

    def read(self, seconds=0.2):
        """Reads what there is now, a part of it at least; returns whether anything came."""
        ready, _, _ = select.select([self.ours], [], [], seconds)
        if ready:
            self.text += self.decoder.decode(os.read(self.ours, 1 << 16))
        return bool(ready)

    def pictures(self):
        """Everything drawn so far: lists of lines as they stand on the screen."""
        drawn = self.text.split(HOME)[1:]
        return [[line.rstrip("\r") for line in ESCAPES.sub("", one).split("\n")] for one in drawn if one]

    def wait_for(self, is_there):
        """Reads until the newest whole picture is what is waited for; returns its lines."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for picture in self.pictures()[-2:]:
                if is_there("\n".join(picture)):
                    return picture
            assert self.process.poll() is None, self.process.stderr.read().decode()
            self.read()
        raise AssertionError(f"not seen in {SECONDS} seconds; the last pictures: {self.pictures()[-2:]}")

    def finish(self):
        """Reads until the command has ended; returns its exit status and what it wrote to stderr."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self.read()
        while self.read(0):
            pass
        os.write(self.theirs, END.encode())  # behind all that it wrote, which may come in parts
        while END not in self.text:
            self.read()
        self.text = self.text.replace(END, "")
        return self.process.returncode, self.process.stderr.read().decode()

    def interrupt(self, number=signal.SIGINT):
        os.killpg(self.process.pid, number)

    def is_put_back(self):
        """Whether the terminal is as it was: its modes, its screen, its cursor."""
        return (
            termios.tcgetattr(self.theirs) == self.before
            and self.text.rstrip().rfind(LEFT) > self.text.rfind("\x1b[?1049h")
            and self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l")
        )
