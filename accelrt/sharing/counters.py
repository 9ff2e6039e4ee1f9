"""torch's counters of the tensors that it sent, one each, in files of shared memory.

A counter is 1 until the process that received the tensor lets go of it; torch keeps the memory so long, also
where that process has died.  Here the owner notes what it sent and who opened it, and takes back the part of
a process that ended.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from contextlib import suppress

from accelrt.core.process import call_at_fork

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FOLDER = "/dev/shm"
HEAD, SLOTS = 64, 10_000  # bytes before the counters of a file, and counters (torch's CudaIPCTypes.h)
COUNTER = struct.Struct("=q")
FILE_SIZE = HEAD + SLOTS * COUNTER.size
FEW = 1024  # counters that are kept without a look at which of them are over

_lock = threading.RLock()
_files: dict[str, mmap.mmap | None] = {}  # None: it is not as torch makes them, and left alone
_sent: dict[tuple[str, int], Counter] = {}  # what nobody has opened, as far as it is known
_most = FEW
collect: Callable[[], object] | None = None  # has torch look at its counters


class Counter:
    """The counter of one tensor that was sent."""

    __slots__ = ("file", "offset")

    def __init__(self, file: str, offset: int) -> None:
        self.file: str = file
        self.offset: int = offset

    def is_open(self) -> bool:
        """Tells whether torch waits for the one that received the tensor."""
        memory = view(self.file)
        return memory is not None and self.read(memory) > 0

    def read(self, memory: mmap.mmap) -> int:
        value: int = COUNTER.unpack_from(memory, HEAD + self.offset * COUNTER.size)[0]
        return value

    def take_back(self) -> bool:
        """Lets go in place of a receiver that is gone; returns whether it had not done so itself."""
        memory = view(self.file)
        if memory is None:
            return False
        value = self.read(memory)
        if value > 0:
            COUNTER.pack_into(memory, HEAD + self.offset * COUNTER.size, value - 1)
        return value > 0


def path_of(file: str) -> str | None:
    """Tells where a file of counters is; None for a name that is not one of torch's."""
    is_torchs = file.startswith("/torch_") and "/" not in file[1:]
    return FOLDER + file if is_torchs else None


def view(file: str) -> mmap.mmap | None:
    with _lock:
        if file not in _files:
            _files[file] = map_file(file)
        return _files[file]


def map_file(file: str) -> mmap.mmap | None:
    path = path_of(file)
    if path is not None:
        with suppress(OSError), open(path, "r+b") as opened:
            if os.fstat(opened.fileno()).st_size == FILE_SIZE:
                return mmap.mmap(opened.fileno(), FILE_SIZE)
    return None


def note(file: str, offset: int) -> None:
    """This process sent a tensor that has the counter."""
    global _most
    with _lock:
        _sent[file, offset] = Counter(file, offset)
        if len(_sent) > _most:
            for key, counter in list(_sent.items()):
                if not counter.is_open():
                    del _sent[key]
            used = {name for name, _ in _sent}
            for name in [name for name in _files if name not in used]:
                del _files[name]
            _most = max(FEW, 2 * len(_sent))


def claim(file: str, offset: int) -> Counter | None:
    """Returns what a process is about to open: its counter, which is the process's from now on; None where
    this one sent no such tensor, or another process has it."""
    with _lock:
        return _sent.pop((file, offset), None)


def take_back(counters: Iterable[Counter]) -> int:
    """Takes back the parts of a process that ended; how many it had not let go of."""
    count = sum([counter.take_back() for counter in counters])
    if count and collect is not None:
        collect()
    return count


def unopened() -> int:
    with _lock:
        return sum(counter.is_open() for counter in _sent.values())


def cancel() -> int:
    """Takes back what was sent and no process has opened; how many."""
    with _lock:
        counters = list(_sent.values())
        _sent.clear()
    return take_back(counters)


def remove(file: str) -> None:
    """The file's owner is dead, and no process needs it to let go of a tensor."""
    path = path_of(file)
    if path is not None:
        with suppress(OSError):
            os.unlink(path)


def forget() -> None:
    """In a forked child: what was sent is the parent's."""
    global _lock
    _lock = threading.RLock()
    _sent.clear()
    _files.clear()


call_at_fork("sharing.counters", "sharing", child=forget)
