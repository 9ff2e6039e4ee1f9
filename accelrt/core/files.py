"""Files that appear whole or not at all, and files that are read up to a bound."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

UNFINISHED = ".new"
CHUNK = 1 << 24  # bytes of one read
# Of a file system without locks: Lustre and NFS that are not set up for it, NFS for files that are read.
LOCKLESS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF}


def check_regular(path: str | os.PathLike[str]) -> bool:
    """Tells whether there is a file at a path; a link is followed.

    Raises:
        OSError: there is something else than a regular file: a folder, a pipe, a device.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise irregular(path)
    return True


def irregular(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def lock_file(descriptor: int) -> None:
    """Locks a file against other processes that do (flock), where its file system has locks.

    Raises:
        BlockingIOError: another process has it locked.
    """
    import fcntl  # late: few programs lock files

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise


def stamp(path: str) -> bytes:
    """A file's size and time, which change when another takes its place; b"" where there is none."""
    try:
        facts = os.stat(path)
    except OSError:
        return b""
    return b"%d %d" % (facts.st_size, facts.st_mtime_ns)


def read(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: it cannot be read, is no regular file (a pipe would keep its reader waiting), or is larger,
            which has the code EFBIG; FileNotFoundError: it is not there.
    """
    check_regular(path)
    parts, left = [], most + 1
    with open(path, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # something else took its place meanwhile
            raise irregular(path)
        while left and (part := file.read(min(left, CHUNK))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"the file has more than {most:,} bytes", os.fspath(path))
    return b"".join(parts)


def write(
    path: str | os.PathLike[str],
    parts: Iterable[bytes],
    private: bool = False,
    beside: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a file under another name in its folder, and then renames it: no reader sees a part of it.

    Nothing is written through a link: a new file is made under a random name, and a link at the path itself
    is replaced.  Whatever ends the writing early, the unfinished file is removed.

    Arguments:
        parts: the content, one after the other.
        private: whether only this user may read it, and whatever is there is replaced, as in a folder of the
            user's own.  Else the umask decides who may read it, or the file that is replaced.
        beside: another name for the unfinished file, in the same folder; a file of that name is an error.
    Raises:
        OSError: it cannot be written, or something else than a regular file is there and private is False.
    """
    path = os.fspath(path)
    replaces = not private and check_regular(path)
    if beside is None:
        beside = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}{UNFINISHED}")
    try:
        # "x" is O_EXCL, which follows no link.  Opened by one call: an interruption leaves no descriptor.
        with open(beside, "xb", opener=partial(os.open, mode=0o600) if private else None) as file:
            if replaces:
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode) & 0o777)
            file.writelines(parts)
        os.replace(beside, path)
    except FileExistsError:  # not ours
        raise
    except OSError as error:
        remove(beside)
        if error.errno is None or error.filename not in (None, beside):
            raise
        # A full disk names no file, and others name the unfinished one, of which nobody else knows.
        raise OSError(error.errno, error.strerror, path) from None
    except BaseException:
        remove(beside)
        raise


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, if it is there and may be removed."""
    try:  # noqa: SIM105  contextlib takes long to import
        os.unlink(path)
    except OSError:
        pass
