"""A program's events written to a file while it runs: what ACCELRT_RECORD asks for.

A thread copies events from the recorder's ring and appends them, with the stacks and names that they are the
first to have, in one write for each chunk.  So the file can be read at any time, and a process that is killed
loses its last tenth of a second.  The end of the process adds its segments, its figures and the file's end.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from accelrt import env
from accelrt.allocator.settings.apply import allocator_settings
from accelrt.core import files, process
from accelrt.core.printable import say
from accelrt.core.process import Descriptor, Owned, open_descriptor
from accelrt.errors import NotSupportedError
from accelrt.memory.caching import read_states
from accelrt.memory.history import compact_form, recording
from accelrt.memory.history.memory_history import EVENT_BYTES, copy_chunks
from accelrt.runtime.lifetimes import cuda_arrays

if TYPE_CHECKING:
    from typing import Any

SECONDS = 0.1  # between two looks at the ring
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
CHUNK = 1 << 18  # events of one copy, each of which costs some waits for the GIL
LAST_SECONDS = 10.0  # how long a process that ends waits for the thread
FIRST_NAMES = 1000  # names that are tried for the file

_drain: Drain | None = None


class Drain(threading.Thread):
    """Appends what a recorder has to a file.

    Arguments:
        recorder: Recorder.
        devices: int.
    """

    def __init__(self, recorder: Any, devices: int) -> None:
        super().__init__(name="accelrt-record", daemon=True)
        self.path: str = ""
        self.pid: int = os.getpid()
        self.recorder = recorder
        self.devices = devices
        self.tables: compact_form.Tables = compact_form.Tables()
        self.following: dict[int, int] = {
            device: recorder.event_range(device)[0] for device in range(devices)
        }
        self.events: Counter[int] = Counter()
        self.missing: Counter[int] = Counter()
        self.over: threading.Event = threading.Event()
        self.ending: bool = False
        self.failure: OSError | None = None
        self.file: Owned[Descriptor] = Owned.__new__(Owned)

    def create(self, path: str) -> None:
        """Makes the file.

        Arguments:
            path: str, of a file that is not there yet.
        Raises:
            OSError: it cannot be made.
        """
        self.path = path
        # One step makes the file and keeps it: abandon() removes what this made, and nothing else.
        self.file.__init__(open_descriptor, (path, FLAGS), Descriptor.close)  # type: ignore[misc]
        self.write([compact_form.beginning(compact_form.RECORDING)])

    def abandon(self) -> None:
        """Ends the recording before it has begun, and removes the file."""
        self.over.set()
        if self.is_alive():
            self.join(LAST_SECONDS)
        if self.file.value is not None:
            files.remove(self.path)
            self.file.close()

    def run(self) -> None:
        while not self.over.wait(SECONDS) and self.failure is None:
            for device in range(self.devices):
                self.copy(device)

    def copy(self, device: int, mark: int | None = None) -> None:
        """Writes the events of a device that are new: all, or those before a number."""
        for content, first in copy_chunks(self.recorder, device, self.following[device], mark, CHUNK):
            if not content or self.failure is not None:
                return
            count = len(content) // EVENT_BYTES
            self.missing[device] += max(first - self.following[device], 0)
            self.events[device] += count
            self.write(compact_form.recorded(self.tables, self.recorder, device, first, content))
            self.following[device] = first + count

    def write(self, parts: list[bytes]) -> None:
        """Appends to the file; a full disk ends the recording and not the program."""
        content = memoryview(b"".join(parts))
        assert self.file.value is not None
        try:
            while content:
                content = content[os.write(self.file.value.fileno(), content) :]
        except OSError as error:
            self.failure = error
            say(f"accelrt: what the allocator does is no longer recorded in {self.path}: {error}")

    def finish(self) -> None:
        """Ends the file.  In a child of a fork it does nothing: the file is the parent's."""
        if os.getpid() != self.pid:
            return
        self.over.set()
        self.join(LAST_SECONDS)
        if not self.is_alive():  # else it hangs in a write, and the file stays without an end
            if self.failure is None and not self.ending:
                self.ending = True  # an end that was interrupted is not begun again
                self.write_end()
            self.file.close()
        missing = self.missing.total()
        if missing:
            every = missing + self.events.total()
            lost = f"{missing:,} of {every:,} events"
            say(f"accelrt: {lost} are not in {self.path}: the ring overwrote them first")

    def write_end(self) -> None:
        try:
            states = read_states(None, "accelrt record")
        except NotSupportedError:  # another backend's memory, of which there are no events either
            states = []
        for device, _, mark in states:
            self.copy(device, mark)
        segments = [segment for _, held, _ in states for segment in held]
        missing = [self.missing[device] for device in range(self.devices)]
        figures = [self.recorder.tag_stats(device) for device in range(self.devices)]
        arrays = [cuda_arrays(device) for device in range(self.devices)]
        self.write(compact_form.ending(self.tables, segments, allocator_settings(), missing, figures, arrays))


def start(path: str, stacks: str = "none", forked: bool = False) -> None:
    """Records what the allocator does into a file until the process ends; one file at a time.

    Arguments:
        path: str; PATH.PID is written instead where the file is there already, and by a child of a fork.
        stacks: "none", "python" or "all".
        forked: whether this process is a child of a fork of the program.
    """
    global _drain
    from accelrt.devices.device import device_count

    if _drain is not None and _drain.pid == os.getpid():
        return
    recording.record_history(
        "all", context=None if stacks == "none" else "all", stacks="all" if stacks == "all" else "python"
    )
    drain = Drain(recording, device_count())
    try:
        create_file(drain, os.path.abspath(path), forked)
        drain.start()
        _drain = drain
    except OSError as error:
        say(f"accelrt: what the allocator does is not recorded: {error}")
    except BaseException:
        drain.abandon()
        raise


def create_file(drain: Drain, path: str, forked: bool) -> None:
    """A file of its own for this process: nobody's is written over."""
    files.check_regular(path)
    own = f"{path}.{os.getpid()}"
    for number in range(1 if forked else 0, FIRST_NAMES):
        name = path if number == 0 else own if number == 1 else f"{own}.{number}"
        try:
            return drain.create(name)
        except FileExistsError:
            continue
    raise FileExistsError(f"{path} and {FIRST_NAMES} names like it are there already")


def start_by_environment(forked: bool) -> None:
    """Starts if ACCELRT_RECORD says so."""
    path = env.value("ACCELRT_RECORD")
    if path:
        start(path, env.value("ACCELRT_RECORD_STACKS"), forked)


def stop() -> None:
    """Ends the recording and its file."""
    global _drain
    if _drain is not None and _drain.pid == os.getpid():
        _drain.finish()  # once more, where an interruption ended it
        _drain = None


process.call_at_exit("memory.history.drain", "recorder", stop)
