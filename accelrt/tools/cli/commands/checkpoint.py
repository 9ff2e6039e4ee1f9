"""accelrt checkpoint: have a process let go of its GPUs, and give it them, or others, back.

    accelrt checkpoint PID                 lock it and copy its GPU memory to the host
    accelrt checkpoint PID --restore       copy it back, and let it run on
    accelrt checkpoint PID --restore --to 0=1 --to GPU-old=GPU-new
    accelrt checkpoint PID --state         say which state it is in

It is done by NVIDIA's driver, of CUDA 12.8 or later; to other GPUs 13.0.  The exit status is 1 where the
driver refuses; the process then is as it was.
"""

import argparse
import json

import accelrt
from accelrt.tools.cli import options
from accelrt.tools.cli.text import put


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="the process")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--restore", action="store_true", help="give its GPUs back and let it run on")
    actions.add_argument("--state", action="store_true", dest="asks", help="change nothing")
    parser.add_argument(
        "--to",
        dest="devices",
        metavar="OLD=NEW",
        action="append",
        type=pair,
        help="with --restore: what was on device OLD comes to NEW; ordinals or UUIDs, each device once",
    )
    seconds = options.number_from(float, 0.001, 4_000_000, "a number of seconds above 0")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="how long its work may take to end; default: any time",
    )
    options.add_json(parser)


def pair(text: str) -> tuple[int | str, int | str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text} is not OLD=NEW")
    return device_of_text(old), device_of_text(new)


def device_of_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def run(
    pid: int,
    restore: bool,
    asks: bool,
    devices: list[tuple[int | str, int | str]] | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """The command.  Returns its exit status."""
    if devices and not restore:
        raise ValueError("--to says where memory comes back: pass --restore with it")
    if timeout is not None and (restore or asks):
        raise ValueError("--timeout is for locking: leave it out with --restore and --state")
    if devices and len(dict(devices)) < len(devices):
        raise ValueError("--to names an old device twice")
    before = accelrt.checkpoint.state(pid)
    if restore:
        accelrt.checkpoint.resume(pid, dict(devices) if devices else None)
    elif not asks:
        accelrt.checkpoint.suspend(pid, timeout)
    after = before if asks else accelrt.checkpoint.state(pid)
    if as_json:
        print(json.dumps({"schema": options.SCHEMA, "pid": pid, "before": before, "state": after}))
    else:
        put(f"process {pid} is {after}" + ("" if before == after else f"; it was {before}"))
    return 0
