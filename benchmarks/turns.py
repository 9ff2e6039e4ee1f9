"""Processes that work by turns, so that what else the machine does meets all of them alike.

Each begins a turn when it reads a line, and ends it by saying {"turn": NAME}; what else it says (words.py) is
kept.  The first one's first turn is over before the second one's begins, so it fills caches that all share.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

from words import say


def serve(turns: Iterable[str]) -> None:
    """The process's side: each item of an iterator is a turn, which it names."""
    steps: Iterator[str] = iter(turns)
    while sys.stdin.readline():
        name = next(steps, None)
        if name is None:
            return
        say(turn=name)


@dataclass
class Player:
    """A process that takes turns, from its parent's side."""

    process: subprocess.Popen
    complaints: IO[str]  # its stderr
    words: list[dict] = field(default_factory=list)
    over: bool = False

    def play(self) -> None:
        """Lets it have a turn, and hears what it says until that is over."""
        pipes = self.process.stdin, self.process.stdout
        try:
            pipes[0].write("\n")
            pipes[0].flush()
        except BrokenPipeError:
            self.over = True
            return
        for line in pipes[1]:
            said = json.loads(line) if line.startswith("{") else {}
            if "turn" in said:
                return
            self.words += [said] if said else []
        self.over = True

    def end(self) -> str:
        """How it ended: "" where it ended well."""
        self.process.stdin.close()
        code = self.process.wait()
        self.complaints.seek(0)
        told = self.complaints.read()
        self.complaints.close()
        return f"the process ended with {code}: {told[-1000:]}" if code else ""


def start(command: list[str], environment: dict[str, str]) -> Player:
    """Starts one."""
    complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - Player.end closes it
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env={**os.environ, **environment},
    )
    return Player(process, complaints)


def take_turns(
    commands: dict[str, tuple[list[str], dict[str, str]]], timeout: float
) -> dict[str, tuple[list[dict], str]]:
    """Runs processes by turns until all have ended.

    Arguments:
        commands: by name, what to run, and variables set beside those of this process.
        timeout: seconds after which all that still run are killed.
    Returns:
        by name, what it said, and how it ended.
    """
    players = {name: start(*command) for name, command in commands.items()}
    watchdog = threading.Timer(timeout, lambda: [player.process.kill() for player in players.values()])
    watchdog.start()
    try:
        while waiting := [player for player in players.values() if not player.over]:
            for player in waiting:
                player.play()
    finally:
        watchdog.cancel()
        for player in players.values():
            if not player.over:
                player.process.kill()
    return {name: (player.words, player.end()) for name, player in players.items()}
