"""Arguments that several commands have, and kinds of arguments."""

import argparse
from collections.abc import Callable

from accelrt import env

DRIVERS = ("auto", *env.DRIVERS)
SCHEMA = 1  # of answers in JSON: raised where a key goes or changes its meaning, not where one comes


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help="answer in JSON")


def add_once(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one look, printed, for scripts")


def add_driver(parser: argparse.ArgumentParser) -> None:
    text = "default: ACCELRT_DRIVER, else auto, which falls back to host"
    parser.add_argument("--driver", choices=DRIVERS, help=text)


def add_trace(parser: argparse.ArgumentParser) -> None:
    """A trace, and of which of its devices."""
    text = "an .npz trace, a file of record, a snapshot of accelrt's or torch's, RMM's log"
    parser.add_argument("trace", metavar="TRACE", help=text)
    add_device(parser, "of a trace of several; default: the one with the most events")


def add_device(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--device", metavar="N", type=int, help=text)


def number_from(kind: type, least: float, end: float, words: str) -> Callable[[str], float]:
    """Returns what reads an argument that is an int or a float of a range, which ends before `end`."""

    def number(text: str) -> float:
        value: float = kind(text)
        if not least <= value < end:
            raise argparse.ArgumentTypeError(f"{text} is not {words}")
        return value

    return number
