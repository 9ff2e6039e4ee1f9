"""A compiler's run in a folder of its own.

Nothing stays of it: not when it is interrupted, and not for long when its process is killed, since the next
run removes the folders whose owners are gone.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core.files import lock_file
from accelrt.core.process import open_descriptor
from accelrt.kernels.apart import Call, call_apart
from accelrt.runtime import init

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX = "accelrt-compile-"
SECONDS = 300.0  # that a compiler may take
UNLOCKED = 60.0  # seconds that a folder may exist before its owner has locked it


class Outcome(NamedTuple):
    """The end of a compiler's run.

    Attributes:
        code: int, its exit status; None where it took longer than SECONDS.
        log: str, what it wrote to stderr.  output: str, to stdout.
        data: bytes, the file that it made; empty where there is none.
    """

    code: int | None
    log: str
    output: str
    data: bytes


def run_compiler(command: Sequence[str], files: Mapping[str, str], target: str) -> Outcome:
    """Runs a compiler in a new folder.

    Arguments:
        command: sequence of str, the compiler's path and its arguments, in which "{folder}" is the folder's
            path.
        files: mapping from the names of files to their texts, which are written into the folder first; a name
            may have folders in it.
        target: str, the name of the file in the folder that is read afterwards.
    Raises:
        OSError: the compiler cannot be started, or the temporary folder cannot be written.
    """
    init.later("subprocess")  # imported under the lock that forks wait for
    init.later("shutil")
    init.later("tempfile")
    return call_apart(lambda call: build(call, command, files, target))


def build(call: Call[Outcome], command: Sequence[str], files: Mapping[str, str], target: str) -> Outcome:
    tempfile, shutil = init.later("tempfile"), init.later("shutil")
    remove_abandoned(tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix=PREFIX)
    lock = None
    try:
        lock = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY)
        lock_file(lock.fileno())
        for name, text in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        code, output, log = run(call, [part.replace("{folder}", folder) for part in command], folder)
        try:
            with open(os.path.join(folder, target), "rb") as result:
                data = result.read()
        except FileNotFoundError:
            data = b""
        return Outcome(code, log.replace(folder + os.sep, ""), output, data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.close()


def run(call: Call[Outcome], command: Sequence[str], folder: str) -> tuple[int | None, str, str]:
    """The exit status, stdout and stderr of a process.

    It is killed with those that it started if the caller is interrupted.
    """
    subprocess = init.later("subprocess")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C", "TMPDIR": folder},
        process_group=0,
    )
    late = False
    with process:
        call.when_cancelled(lambda: kill(process.pid))
        try:
            output, log = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            late = True
            kill(process.pid)
            output, log = process.communicate()
        call.when_cancelled(None)
    code = None if late else process.returncode
    return code, output.decode(errors="replace"), log.decode(errors="replace")


def kill(group: int) -> None:
    try:  # noqa: SIM105  contextlib takes long to import
        os.killpg(group, 9)
    except OSError:  # it has ended
        pass


def remove_abandoned(folder: str) -> None:
    """Removes the folders of this user whose processes were killed: nobody holds their locks."""
    shutil = init.later("shutil")
    try:
        with os.scandir(folder) as entries:
            names = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for path in names:
        try:
            file = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < UNLOCKED:
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its owner is at work
            continue
        finally:
            file.close()
