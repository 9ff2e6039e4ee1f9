"""accelrt: the command line's front door.

Exit status: 0, it went well; 1, the device, the demo or a replay failed, or no settings serve a trace; 2, the
arguments or a file are no good; 130, it was interrupted; 141, the reader of its output went away.  The status
of record is that of its program.
"""

import argparse
import importlib
import io
import os
import pkgutil
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from accelrt import __version__
from accelrt.core.instead import nearest
from accelrt.core.process import open_descriptor
from accelrt.tools.cli import commands
from accelrt.tools.cli.text import put

TUNE_OFFLINE = ["tune", "offline"]


class Formatter(argparse.HelpFormatter):
    """argparse's own makes one paragraph of a text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text  # what is indented stays as it is
        parts = text.rstrip().split("\n\n")
        return "\n\n".join(part if part.startswith("    ") else fill(part, width, indent) for part in parts)


class Parser(argparse.ArgumentParser):
    """argparse's own ignores that its words could not be written, and blames the root for a command's."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']+)'|unrecognized arguments: (\S+)", message)
        known = self.choices() if wrong and wrong[1] else self.words()
        super().error(message + nearest(wrong[1] or wrong[2], known) if wrong else message)

    def choices(self) -> set[str]:
        """Returns what its own arguments may be."""
        return {str(name) for action in self._actions for name in action.choices or ()}

    def words(self) -> set[str]:
        """Returns what may be written: options and choices, those of commands too."""
        names = {option for action in self._actions for option in action.option_strings}
        for action in self._actions:
            for name in action.choices or ():
                names.add(str(name))
                command = action.choices[name] if isinstance(action.choices, dict) else None
                names |= command.words() if isinstance(command, Parser) else set()
        return names

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None or file is sys.stderr:
            say(message.rstrip())
        else:
            put(message.removesuffix("\n"), file)


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a command that is named, else of all, which takes longer."""
    root: argparse.ArgumentParser = Parser(prog="accelrt", description="torch.cuda's runtime without torch.")
    root.add_argument("--version", action="version", version=f"accelrt {__version__}")
    subparsers = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {each.name.replace("_", "-"): each.name for each in pkgutil.iter_modules(commands.__path__)}
    for name in [words[0]] if words and words[0] in modules else modules:
        module = importlib.import_module(f"{commands.__name__}.{modules[name]}")
        about = (module.__doc__ or "").partition(": ")[2]
        command = subparsers.add_parser(
            name,
            help=about.splitlines()[0].removesuffix("."),
            description=about[0].upper() + about[1:],
            formatter_class=Formatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return root


def joined(words: Sequence[str]) -> list[str]:
    """`tune offline` is a command of its own; a trace of that name is ./offline."""
    return ["-".join(TUNE_OFFLINE), *words[2:]] if words[:2] == TUNE_OFFLINE else [*words]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Arguments:
        arguments: list of str; None is those of the process.
    Returns:
        int, the exit status.
    Raises:
        SystemExit: the arguments are no good, or ask for help or the version.
    """
    is_open = repair_streams()
    command = ""
    try:
        words = joined(sys.argv[1:] if arguments is None else list(arguments))
        options = vars(parser(words).parse_args(words))
        command, run = options.pop("command"), options.pop("run")
        if not is_open and (command != "export" or options["once"]):
            raise OSError("standard output is closed, and the answer would be lost; send it somewhere")
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            status: int = run(**options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return silent(128 + signal.SIGPIPE)
    except SystemExit as end:  # argparse has said what it had to say
        return flushed(end)
    except (OSError, ValueError) as error:
        return failed(command, error, 2)
    except (RuntimeError, ImportError, Warning) as error:  # Warning: where filters make errors of them
        return failed(command, error, 1)
    except KeyboardInterrupt:
        return failed(command, "interrupted", 130)


def repair_streams() -> bool:
    """Opens /dev/null for the standard streams that are closed, so that no other file gets their numbers, and
    lets every encoding show every text.  Returns whether standard output was open.
    """
    is_open = sys.stdout is not None
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The descriptor is the lowest that is free, which is the stream's own.
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  as the streams stay
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return is_open


def show_warning(message: object, *where: object, **others: object) -> None:
    """A warning as a line: who runs a command does not ask for the line of the library that gives it."""
    say(f"accelrt: {message}")


def flushed(end: SystemExit) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return silent(128 + signal.SIGPIPE)
    except OSError as error:
        return failed("", error, 2)
    raise end


def silent(status: int) -> int:
    """Standard output takes nothing more.  Returns the status."""
    give_up(sys.stdout)
    return status


def give_up(stream: Any) -> None:
    """Nothing is written to a stream any more, not even what it still holds at the exit."""
    # ValueError: not a file, where another stream was put into its place.
    with suppress(OSError, ValueError), open_descriptor(os.devnull, os.O_WRONLY) as null:
        os.dup2(null.fileno(), stream.fileno())


def failed(command: str, error: object, status: int) -> int:
    say(f"accelrt {command}".rstrip() + f": {error}")
    try:
        sys.stdout.flush()
    except OSError:
        return silent(status)
    return status


def say(text: str) -> None:
    """A line on standard error, if that takes it."""
    try:
        put(text, sys.stderr, flush=True)
    except (OSError, ValueError):
        give_up(sys.stderr)
