"""Files of results and of what was not tuned: torch's CSV.  Processes write one in turn, and a reader never
sees half of one.

    Validator,NAME,VALUE
    OPERATION,PARAMETERS,CANDIDATE,MILLISECONDS

A writer holds a lock (flock) on the file, merges what the file says with what it knows, writes another file
beside it (core/files.py) and puts that in its place.  Who waited for the lock of the file that was
replaced begins again.

A file of what was not tuned has a line "OPERATION,PARAMETERS" for arguments of which no result was known.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from accelrt import env
from accelrt.core import files
from accelrt.core.arguments import checked_type
from accelrt.core.process import open_descriptor
from accelrt.errors import PeerTimeoutError

Key = tuple[str, str]  # operation, parameters

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1  # seconds between two attempts to lock a file
MOST_BYTES = 1 << 26  # of a file that is read

_recorded: set[tuple[str, str, str]] = set()  # file, operation, parameters: what was not tuned


class Result(NamedTuple):
    """The candidate that is the fastest for some arguments.

    Attributes:
        operation, params: str, the operation's name and its arguments'.
        candidate: str, its name; "Default" is the operation's default.
        time: float, milliseconds of a call; 0 where a file does not say.
    """

    operation: str
    params: str
    candidate: str
    time: float


def check_field(text: str, what: str) -> str:
    """Returns the text, which may stand in a file.

    Raises:
        ValueError, TypeError: it is empty, no str, or has a comma, a line break or another control character
            in it.
    """
    checked_type(text, what, str, "a str")
    if not text.strip() or "," in text or not text.isprintable():
        raise ValueError(f"{what} is {text!r}; it is a text of one line, without commas")
    return text


def read(path: str) -> tuple[dict[str, str], dict[Key, Result]]:
    """(validators, results) of a file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than 64 MiB; FileNotFoundError: it is
            not there.
        ValueError: a line is malformed; the text names the line.
    """
    validators: dict[str, str] = {}
    results: dict[Key, Result] = {}
    for number, line, fields in rows_of(path):
        if fields[0] == "Validator" and len(fields) >= 3:
            validators[fields[1]] = ",".join(fields[2:])
        elif 3 <= len(fields) <= 5 and all(fields[:3]):  # torch's may have a fifth, for BLAS
            results[fields[0], fields[1]] = Result(
                fields[0], fields[1], fields[2], milliseconds(fields[3:], path, number)
            )
        else:
            raise ValueError(
                f"{path}, line {number}: {line.strip()!r} is no result, which is "
                "OPERATION,PARAMETERS,CANDIDATE,MILLISECONDS"
            )
    return validators, results


def rows_of(path: str) -> Iterator[tuple[int, str, list[str]]]:
    """Number, text and fields of each line of a file that has any."""
    content = files.read(path, MOST_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line, [field.strip() for field in line.split(",")]


def milliseconds(fields: list[str], path: str, number: int) -> float:
    try:
        time = float(fields[0]) if fields and fields[0] else 0.0
    except ValueError:
        time = -1.0
    if not 0 <= time < float("inf"):
        raise ValueError(f"{path}, line {number}: {fields[0]!r} is no number of milliseconds")
    return time


def take_lock(descriptor: int, path: str) -> None:
    """Waits for the lock of a file until ACCELRT_SHARING_TIMEOUT.

    Raises:
        PeerTimeoutError: another process has it all the time; it is an OSError too.
    """
    limit = env.value("ACCELRT_SHARING_TIMEOUT")
    deadline, pause = time.monotonic() + limit, FIRST_PAUSE
    while True:
        try:
            files.lock_file(descriptor)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holders = ", ".join(f"process {pid}" for pid in lock_holders(descriptor)) or "another process"
                raise PeerTimeoutError(f"{holders} kept {path} locked for more than {limit:g} s") from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def lock_holders(descriptor: int) -> list[int]:
    """The processes that have a file locked by flock, as far as the system tells (proc_locks(5))."""
    try:
        with open("/proc/locks") as file:
            entries = [line.split() for line in file]
    except OSError:
        return []
    inode = str(os.fstat(descriptor).st_ino)
    return [
        int(entry[4])
        for entry in entries
        if entry[1] == "FLOCK" and entry[5].rpartition(":")[2] == inode and int(entry[4]) > 0
    ]


@contextmanager
def locked(path: str) -> Iterator[int]:
    """The descriptor of a file, made if need be, while no other process that asks has it.

    Raises:
        OSError: it cannot be opened, or another process has it for too long.
    """
    while True:
        files.check_regular(path)  # a pipe would keep its reader waiting
        file = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY)
        descriptor = file.fileno()
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise files.irregular(path)
            take_lock(descriptor, path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    yield descriptor
                    return
        finally:
            with suppress(OSError):  # of a file system without locks
                # A child that was forked meanwhile has the descriptor too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            file.close()


def merge(
    path: str, validators: dict[str, str], known: dict[Key, Result], fresh: dict[Key, Result]
) -> dict[Key, Result]:
    """Adds results to a file: what it says stays, but for what was found since.

    A file of other validators, or one that is malformed, is moved to PATH.rejected, and a new one begun.

    Arguments:
        known: what the file gets where it says nothing.
        fresh: what it gets whatever it says.
    Returns:
        what the file says now.
    Raises:
        OSError: it cannot be written.
    """
    with locked(path):
        try:
            recorded, results = read(path)
        except ValueError:
            recorded, results = {"malformed": ""}, {}
        if (recorded or results) and recorded != validators:
            os.replace(path, f"{path}.rejected")
            results = {}
        merged = known | results | fresh
        files.write(path, [text_of(validators, merged).encode()])
    return merged


def text_of(validators: dict[str, str], results: dict[Key, Result]) -> str:
    lines = [f"Validator,{name},{value}\n" for name, value in validators.items()]
    lines += [f"{','.join(result[:3])},{result.time:.6g}\n" for _, result in sorted(results.items())]
    return "".join(lines)


def append_lines(path: str, lines: list[str]) -> None:
    """Adds lines to a file that it does not have yet.

    Raises:
        OSError: it cannot be written.
    """
    with locked(path) as descriptor, open(descriptor, "r+", encoding="utf-8", closefd=False) as file:
        content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"the file has more than {MOST_BYTES:,} bytes", path)
        there = set(content.splitlines())
        file.write("".join(f"{line}\n" for line in dict.fromkeys(lines) if line not in there))


def record_untuned(path: str, operation: str, params: str) -> None:
    """Adds a line to a file, once a process; a file that cannot be written is told."""
    entry = path, operation, params
    if entry in _recorded:
        return
    _recorded.add(entry)
    try:
        append_lines(path, [f"{operation},{params}"])
    except OSError as error:
        warnings.warn(f"what is not tuned is not recorded: {error}", RuntimeWarning, stacklevel=4)


def read_untuned(path: str) -> list[tuple[str, str]]:
    """(operation, parameters) of each line, each once.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed; the text names it.
    """
    lines: dict[tuple[str, str], None] = {}
    for number, line, fields in rows_of(path):
        if fields[0] == "Validator":
            continue
        if len(fields) < 2 or not all(fields[:2]):
            raise ValueError(f"{path}, line {number}: {line.strip()!r} is no line OPERATION,PARAMETERS")
        lines[fields[0], fields[1]] = None
    return list(lines)
