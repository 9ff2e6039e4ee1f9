"""accelrt top: show all devices and the processes on them, live; q quits.

The keys m, r, l, p, d, u and c sort by memory, reserved and live bytes, pid, device, user and command, the
same key again the other way round; j and k move through the processes.
"""

import argparse
import json
import math
import signal
import sys
import time
from typing import Any, NoReturn

from accelrt.tools.cli import options
from accelrt.tools.cli.choice import need
from accelrt.tools.cli.commands.top.keys import RESIZED, Keys
from accelrt.tools.cli.commands.top.state import SORTS, State
from accelrt.tools.cli.sample import Sampler

__all__ = ["add_arguments", "run"]

LEAST_SECONDS = 0.1
KEYS = {name: key for key, (name, _, _) in SORTS.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = f"a number of seconds from {LEAST_SECONDS} on"
    seconds = options.number_from(float, LEAST_SECONDS, math.inf, words)
    text = "between two looks; default: 1"
    parser.add_argument("--interval", metavar="SECONDS", type=seconds, default=1.0, help=text)
    parser.add_argument("--sort", choices=KEYS, default="memory", help="default: memory")
    options.add_json(parser)
    options.add_once(parser)


def run(once: bool, as_json: bool, interval: float, sort: str) -> int:
    """The command.  Returns the exit status, 0.

    Arguments:
        once, as_json: bool, one look and no terminal; as JSON.
        interval: float, seconds between two looks.
        sort: str, a name of SORTS.
    Raises:
        ImportError: rich is not installed.
        ValueError: JSON without once, or no terminal to draw on.
    """
    if as_json:
        if not once:
            raise ValueError("--json goes with --once")
        print(json.dumps(Sampler(slow=True).sample().as_json(), indent=2))
        return 0
    console: Any = need("rich", "rich.console", "top").Console(highlight=False)
    state = State(KEYS[sort])
    if once:
        state.remember(Sampler().sample())
        with console.capture() as drawn:
            console.print(picture(state, console.width, None, console.encoding))
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
        return 0
    if not (console.is_terminal and sys.stdout.isatty()):
        raise ValueError("standard output is not a terminal; for scripts there is --once, and --once --json")
    return live(console, state, interval)


def picture(state: State, width: int, height: int | None, encoding: str) -> Any:
    from accelrt.tools.cli.commands.top import view  # not before it is known that rich is there

    return view.picture(state, view.Page(width, height, encoding.lower().startswith("utf")))


def live(console: Any, state: State, seconds: float) -> int:
    """Looks and draws until a key or a signal ends it; the terminal is put back in any case."""
    view = need("rich", "rich.live", "top").Live(console=console, screen=True, auto_refresh=False)
    before = signal.signal(signal.SIGTERM, interrupt)
    sampler = Sampler()
    try:
        with Keys() as keys, view:
            while True:
                state.remember(sampler.sample())
                if not until_next(console, view, keys, state, time.monotonic() + seconds):
                    return 0
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def until_next(console: Any, view: Any, keys: Keys, state: State, end: float) -> bool:
    """Draws, and again after each key, until it is time for the next look.  False: a key ended it."""
    while True:
        view.update(picture(state, console.width, console.height, console.encoding), refresh=True)
        key = keys.read(end - time.monotonic())
        if key is None:
            return True
        if key != RESIZED and not state.press(key):
            return False
