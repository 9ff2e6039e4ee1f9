"""accelrt: the command line's front door.

Exit status: 0, it went well; 1, the device, the demo or a replay failed, or no settings serve a trace; 2, the
arguments or a file are no good; 130, it was interrupted; 141, the reader of its output went away.  The status
of record is that of its program.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from accelrt import __version__
from accelrt.core.owners import open_descriptor
from accelrt.tools.cli.text import put

__all__ = ["main"]

DRIVERS = ("auto", "cuda", "host")
LEAST_SECONDS = 0.1
SORTS = {"memory": "m", "reserved": "r", "live": "l", "pid": "p", "device": "d", "user": "u", "command": "c"}
PORT = 9484
TUNE_OFFLINE = "tune-offline"
PLOTS = ("timeline", "segments", "flame")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a number from 1 on")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not LEAST_SECONDS <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from {LEAST_SECONDS} on")
    return value


def port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value} is not a port, 0 to 65535")
    return value


class Parser(argparse.ArgumentParser):
    """argparse's own ignores that its words could not be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None or file is sys.stderr:
            say(message.rstrip())
        else:
            put(message.removesuffix("\n"), file)


def parser() -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = Parser(prog="accelrt", description="torch.cuda's runtime without torch.")
    made.add_argument("--version", action="version", version=f"accelrt {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, the driver and why it, devices, settings")
    info.add_argument(
        "--process",
        action="store_true",
        help="instead: what accelrt does around a fork and at the end of a process, in order",
    )
    demo = commands.add_parser("demo", help="a real trace and a captured pipeline, checked; PASS or FAIL")
    replay = commands.add_parser("replay", help="a recorded trace through the allocator")
    replay.add_argument(
        "trace",
        metavar="TRACE",
        help="an .npz trace, a file of record, a snapshot of accelrt's or torch's, RMM's log",
    )
    replay.add_argument(
        "--device", metavar="N", type=int, help="of a trace of several; default: the one with the most events"
    )
    for command in (demo, replay):
        command.add_argument(
            "--driver", choices=DRIVERS, help="default: ACCELRT_DRIVER, else auto, which falls back to host"
        )
    replay.add_argument(
        "--memory", metavar="SIZE", help="of the host device, such as 64GiB; default: what the trace needs"
    )
    replay.add_argument("--repeat", metavar="N", type=positive, default=1, help="passes, one after the other")
    top, export = add_watchers(commands)
    add_pictures(commands)
    for command in (info, replay, top):
        command.add_argument("--json", action="store_true", dest="as_json", help="answer in JSON")
    add_record(commands)
    add_tune(commands)
    add_tune_offline(commands)
    for command in (top, export):
        command.add_argument("--once", action="store_true", help="one look, printed, for scripts")
    return made


def add_watchers(commands: Any) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    top = commands.add_parser("top", help="all devices and the processes on them, live; q quits")
    top.add_argument(
        "--interval", metavar="SECONDS", type=seconds, default=1.0, help="between two looks; default: 1"
    )
    top.add_argument("--sort", choices=SORTS, default="memory", help="default: memory")
    export = commands.add_parser("export", help="the same as metrics for Prometheus, over HTTP")
    export.add_argument("--address", default="127.0.0.1", help="to listen at; default: this machine alone")
    export.add_argument("--port", type=port, default=PORT, help=f"default: {PORT}; 0 takes a free one")
    return top, export


def add_record(commands: Any) -> None:
    record = commands.add_parser(
        "record",
        help="runs a program and records what its allocator does into a trace file",
        usage="accelrt record [-o FILE] [--stacks {python,all}] -- PROGRAM [ARGUMENT ...]",
    )
    record.add_argument(
        "-o", "--output", metavar="FILE", default="trace.accelrt", help="default: trace.accelrt"
    )
    record.add_argument(
        "--stacks",
        choices=("none", "python", "all"),
        default="none",
        help="where each allocation and free comes from: frames of Python, or those of C too; default: none",
    )
    record.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="with its arguments")
    record.set_defaults(run=run_record)


def run_record(given: argparse.Namespace) -> int:
    from accelrt.tools.cli.commands import record

    return record.run(given.program, given.output, given.stacks)


def add_tune(commands: Any) -> None:
    tune = commands.add_parser("tune", help="a trace under many settings; prints the string of the best")
    tune.add_argument("trace", metavar="TRACE", help="as of replay")
    tune.add_argument("--driver", choices=DRIVERS, help="as of replay")
    tune.add_argument("--device", metavar="N", type=int, help="as of replay")
    tune.add_argument(
        "--capacity",
        metavar="SIZE",
        action="append",
        help="memory that the device has, such as 64GiB; may be given several times; default: what it takes",
    )
    tune.add_argument("--keys", metavar="KEY,...", help="of the settings to try; default: all that may help")
    tune.add_argument("--json", action="store_true", dest="as_json", help="answer in JSON")
    tune.set_defaults(run=run_tune)


def run_tune(given: argparse.Namespace) -> int:
    from accelrt.tools.cli.commands import tune

    return tune.run(given.trace, given.driver, given.capacity or [], given.device, given.keys, given.as_json)


def add_tune_offline(commands: Any) -> None:
    offline = commands.add_parser(
        TUNE_OFFLINE,
        help="operations of accelrt.tunable that a program recorded; also `tune offline FILE`",
        usage="accelrt tune offline [--import MODULE] [-o FILE] [--driver DRIVER] FILE [FILE ...]",
    )
    offline.add_argument("files", nargs="+", metavar="FILE", help="such as accelrt_untuned0.csv")
    offline.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module, or a file of Python, that registers the operations; may be given several times",
    )
    offline.add_argument("-o", "--output", metavar="FILE", help="of results; default: accelrt.tunable's own")
    offline.add_argument("--driver", choices=DRIVERS, help="as of replay")
    offline.set_defaults(run=run_tune_offline)


def run_tune_offline(given: argparse.Namespace) -> int:
    from accelrt.tools.cli.commands import tune_offline

    return tune_offline.run(given.files, given.modules, given.driver, given.output)


def joined(arguments: Sequence[str]) -> list[str]:
    """`tune offline` is a command of its own; a trace of that name is ./offline."""
    words = list(arguments)
    return [TUNE_OFFLINE, *words[2:]] if words[:2] == TUNE_OFFLINE.split("-") else words


def add_pictures(commands: Any) -> None:
    view = commands.add_parser("view", help="a memory snapshot as one HTML file for a browser")
    view.add_argument("--open", action="store_true", dest="opens", help="open it in the browser")
    plot = commands.add_parser("plot", help="a memory snapshot as a picture: .png, .svg or .pdf")
    plot.add_argument("--kind", choices=PLOTS, default="timeline", help="default: timeline")
    plot.add_argument("--device", metavar="N", type=int, help="ordinal; default: the first in the snapshot")
    trace = commands.add_parser("export-trace", help="a memory snapshot as a trace for Perfetto")
    trace.add_argument(
        "--largest", metavar="N", type=int, default=2000, help="allocations to show as slices; default: 2000"
    )
    for command, suffix in ((view, ".html"), (plot, ".png"), (trace, ".trace.json")):
        command.add_argument("snapshot", metavar="SNAPSHOT", help="torch's or accelrt's")
        command.add_argument(
            "-o", "--output", metavar=f"OUT{suffix}", help=f"default: the snapshot's name and {suffix}"
        )


def dispatch(given: argparse.Namespace) -> int:
    if "run" in given:
        status: int = given.run(given)
        return status
    if given.command in ("view", "plot", "export-trace"):
        from accelrt.tools.cli import pictures

        return pictures.run(given)
    if given.command == "info" and given.process:
        from accelrt.tools.cli import process_order

        return process_order.run(given.as_json)
    if given.command == "info":
        from accelrt.tools.cli.commands import info

        return info.run(given.as_json)
    if given.command == "top":
        from accelrt.tools.cli.commands import top

        return top.run(given.once, given.as_json, given.interval, SORTS[given.sort])
    if given.command == "export":
        from accelrt.tools.cli.commands import export

        return export.run(given.address, given.port, given.once)
    if given.command == "demo":
        from accelrt.tools.cli.commands import demo

        return demo.run(given.driver)
    from accelrt.tools.cli.commands import replay

    return replay.run(given.trace, given.driver, given.memory, given.repeat, given.as_json, given.device)


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
        given = parser().parse_args(joined(sys.argv[1:] if arguments is None else arguments))
        command = given.command
        if not is_open and (given.command != "export" or given.once):
            raise OSError("standard output is closed, and the answer would be lost; send it somewhere")
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            status = dispatch(given)
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
