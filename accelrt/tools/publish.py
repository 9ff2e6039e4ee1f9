"""Tells what this process's pools hold to the processes that look on: accelrt top and accelrt export.

A process that wants to be seen writes a small file, PID.json, once a second, in a folder that is its user's
alone: $XDG_RUNTIME_DIR/accelrt, or accelrt-UID in the folder for temporary files.  The file is replaced as a
whole, so that a reader never sees half of one.  A process that was killed leaves it behind; the next reader,
or writer, removes it: the file holds when its process started, so that another one of the same number is not
taken for it.

ACCELRT_PUBLISH=1 starts it when accelrt initialises; start() at any time.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import accelrt
from accelrt.core import files, process, procfs
from accelrt.core.printable import say
from accelrt.core.process import Opener
from accelrt.runtime.init import chosen_driver

__all__ = ["Pool", "Published", "folder", "published", "start", "stop"]

FORMAT = 1
SIZE_LIMIT = 1 << 20  # bytes of a file; one of eight devices has 2,000
INT_LIMIT = 1 << 63
TEXT_LIMIT = 256
UUID_DIGITS = re.compile("[0-9a-f]{32}")
OPTIONAL = {"used", "total"}
SECONDS = 1.0
LAST_SECONDS = 5.0  # how long a process that ends waits for the writer

_writer: tuple[int, Writer] | None = None  # process id, and what writes there


@dataclass(frozen=True)
class Pool:
    """The memory that a process's pool holds of one device.

    Attributes:
        ordinal: int, the process's own; another process may count otherwise.
        uuid: str, 32 hexadecimal digits, the same everywhere.
        name: str, the device's model.
        reserved, live, peak_reserved: int, bytes taken from the device, handed out of those, taken at most.
        used, total: int, bytes of a host device, the process's own; None on a GPU, where NVML tells.
    """

    ordinal: int
    uuid: str
    name: str
    reserved: int
    live: int
    peak_reserved: int
    used: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class Published:
    """One process.

    Attributes:
        pid: int.
        started: int, clock ticks from the machine's start to the process's.
        namespace: str, in which the pid counts ("" where the system does not tell).
        driver: "cuda" or "host".
        time: float, seconds of the Unix clock when this was written.
        pools: list of Pool, one a device.
    """

    pid: int
    started: int
    namespace: str
    driver: str
    time: float
    pools: list[Pool] = field(default_factory=list)


class Writer(threading.Thread):
    """Writes this process's file until it is told to stop, and removes it then."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="accelrt-publish", daemon=True)
        self.path: Path = folder() / f"{os.getpid()}.json"
        self.seconds = seconds
        self.over: threading.Event = threading.Event()

    def run(self) -> None:
        failed = False
        while not self.over.is_set():
            try:
                write(self.path, reading())
                failed = False
            except Exception as error:  # a full disk, no descriptor, a lost device: it may pass
                if not failed:
                    tell(error)
                failed = True
            self.over.wait(self.seconds)

    def finish(self) -> None:
        self.over.set()
        if self.is_alive():  # one that has not begun writes nothing
            self.join(LAST_SECONDS)
        remove(self.path)


def tell(error: Exception) -> None:
    with suppress(Exception):  # no descriptor, or one that is closed
        text = str(error) or type(error).__name__
        say(f"accelrt: what the pools hold is not published at present: {text}")


def start(seconds: float = SECONDS) -> None:
    """Starts to publish; does nothing where this process does so already.  Initialises accelrt.

    The writer is a thread that takes the GIL for some 0.1 ms each time.  What cannot be written, since the
    folder is not there or is another user's, is a RuntimeWarning and nothing more.

    Arguments:
        seconds: float, how long to wait between two writes.
    Raises:
        ValueError: seconds is not positive.
    """
    global _writer
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds!r}; it has to be positive")
    if _writer is not None and _writer[0] == os.getpid():
        return
    try:
        writer = Writer(seconds)
        look_into(writer.path.parent)
    except OSError as error:
        warnings.warn(f"what the pools hold is not published: {error}", RuntimeWarning, stacklevel=2)
        return
    _writer = (os.getpid(), writer)
    try:
        writer.start()
    except BaseException:  # no thread can be started, or an interruption
        stop()
        raise


def stop() -> None:
    """Ends it, and removes this process's file.  In a child of fork it does nothing: the file is the
    parent's.
    """
    global _writer
    if _writer is not None and _writer[0] == os.getpid():
        writer = _writer[1]
        writer.finish()  # once more, where an interruption ended it
        _writer = (0, writer)


def folder() -> Path:
    """Returns the folder in which this user's processes publish, made if need be.

    Raises:
        OSError: it cannot be made, or it is not a folder of this user's that nobody else may write.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(base, "accelrt") if base else Path(tempfile.gettempdir(), f"accelrt-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not a folder that only user {os.getuid()} may write")
    return path


def published() -> list[Published]:
    """Returns the processes of this user that publish, in the order of their pids.  Touches no driver.

    Files of processes that are gone are removed; those of other pid namespaces are left alone and left out.
    One that is malformed, or is no regular file of this user's, is left out, and a RuntimeWarning names it.

    Returns:
        A list; [] where the folder is not there or cannot be trusted.
    """
    try:
        directory = folder()
    except OSError:
        return []
    own = namespace()
    return sorted((one for one in look_into(directory) if one.namespace == own), key=lambda one: one.pid)


def reading() -> Published:
    """Returns what this process's pools hold now."""
    pid, driver = os.getpid(), chosen_driver()
    pools = [pool_of(ordinal, driver) for ordinal in range(accelrt.device_count())]
    return Published(pid, procfs.started(pid) or 0, namespace(), driver, time.time(), pools)


def pool_of(ordinal: int, driver: str) -> Pool:
    properties = accelrt.get_device_properties(ordinal)
    held = accelrt.memory_reserved(ordinal), accelrt.memory_allocated(ordinal)
    used = total = None
    if driver != "cuda":
        free, total = accelrt.mem_get_info(ordinal)
        used = total - free
    peak = accelrt.max_memory_reserved(ordinal)
    return Pool(ordinal, properties.uuid.hex, properties.name, *held, peak, used, total)


def write(path: Path, what: Published) -> None:
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)  # whatever a process of the same number left: a new file is opened
    content = json.dumps({"format": FORMAT} | asdict(what)).encode()
    files.write(path, [content], private=True, beside=beside)


def look_into(directory: Path) -> list[Published]:
    """Returns what the files of a folder say but for malformed ones.  Removes those of processes that are
    gone."""
    entries, own = [], namespace()
    for path in (*directory.glob("*.json"), *directory.glob("*.new")):
        if not path.stem.isdecimal():
            continue
        now: int | None = 0  # it counts as living until that is known
        try:
            now = procfs.started(int(path.stem))
            one = read(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            # Half of a .new file is what a living process has written so far.
            if now is None:
                remove(path)
            elif path.suffix == ".json":
                text = f"{path} is left out: {error or type(error).__name__}"
                warnings.warn(text, RuntimeWarning, stacklevel=1)
            continue
        if now is None if one is None else one.namespace == own and one.started != now:
            remove(path)
        elif one is not None and path.suffix == ".json":
            entries.append(one)
    return entries


def remove(path: Path) -> None:
    """Removes a file of this folder.  What is no regular file none of us made, and it stays."""
    with suppress(OSError):  # another reader was faster, or the folder lets nobody write
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def read(path: Path) -> Published | None:
    """Returns what a file says; None where it is of another version of accelrt.

    Raises:
        OSError: it cannot be read; FileNotFoundError: it went away.
        ValueError, RecursionError: it is malformed.
    """
    # O_NONBLOCK: opening a fifo would wait for somebody to write into it.
    with open(path, "rb", opener=Opener(os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
            raise ValueError("it is no regular file of this user's")
        content = file.read(SIZE_LIMIT + 1)
    if len(content) > SIZE_LIMIT:
        raise ValueError(f"it has more than {SIZE_LIMIT} bytes")
    record = json.loads(content)
    if not isinstance(record, dict) or "format" not in record:
        raise ValueError("it is no JSON object with a format")
    if record.pop("format") != FORMAT:
        return None
    values = exactly(Published, record)
    one = Published(**(values | {"pools": [read_pool(pool) for pool in values["pools"]]}))
    if one.pid != int(path.stem):
        raise ValueError(f"it says pid {one.pid}")
    return one


def read_pool(record: Any) -> Pool:
    one = Pool(**exactly(Pool, record))
    if not UUID_DIGITS.fullmatch(one.uuid):
        raise ValueError("uuid is not 32 hexadecimal digits")
    if (one.used is None) != (one.total is None) or (one.used or 0) > (one.total or 0):
        raise ValueError(f"used is {one.used} and total {one.total}")
    return one


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < INT_LIMIT  # bool is an int, too


def is_text(value: object) -> bool:
    """Tells whether a terminal can show it as it is: no control characters, no halves of surrogates."""
    return isinstance(value, str) and len(value) <= TEXT_LIMIT and value.isprintable()


CHECKS: dict[object, tuple[Callable[[Any], bool], str]] = {  # by the type that a field is declared with
    "int": (is_count, "an int from 0 on"),
    "int | None": (lambda value: value is None or is_count(value), "an int from 0 on, or null"),
    "float": (lambda value: type(value) in (int, float) and 0 <= value < INT_LIMIT, "seconds"),
    "str": (is_text, "a short text"),
    "list[Pool]": (lambda value: isinstance(value, list), "a list"),
}


def exactly(kind: type, record: Any) -> dict[str, Any]:
    """The fields of a class as a file has them: all of them, no others, each of its type."""
    types = {one.name: one.type for one in fields(kind)}
    if not isinstance(record, dict) or not types.keys() - OPTIONAL <= record.keys() <= types.keys():
        raise ValueError(f"an object with {', '.join(types)} was expected")
    for name, value in record.items():
        is_right, words = CHECKS[types[name]]
        if not is_right(value):
            raise ValueError(f"{name} is not {words}")
    return record


def namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


process.call_at_exit("tools.publish", "publishing", stop)
