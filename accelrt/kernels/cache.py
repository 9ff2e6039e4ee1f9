"""Compiled kernels kept in memory, and in files for other processes and for later.

A file is MAGIC, the digest of what follows, and fields, each with its length before it.  It is written under
another name and then renamed, so that no reader sees a part of one; where two processes write the same, the
last one stays.  What is not whole, or belongs to another user, counts as missing and is compiled anew.  No
error of the file system is told: without a folder that can be written nothing is kept.

A digest finds damage, not intent: code from the folder runs, so it has to be the user's own.
"""

from __future__ import annotations

import os
import time
from hashlib import blake2b

from accelrt import env
from accelrt.core import files, process
from accelrt.core.process import open_descriptor
from accelrt.kernels.image import ModuleImage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC = b"accelrt kernel 1\n"
DIGEST_BYTES = 32
SUFFIX = ".kernel"
UNFINISHED = ".tmp"
ABANDONED = 3600.0  # seconds after which an unfinished file's writer is taken to be dead
MEMORY_BOUND = 256 << 20

_images: dict[str, ModuleImage] = {}  # by key, least recently used first
_held = 0  # bytes of their data
_lock = process.ForkSafeLock()  # of the two; a signal's handler may look for a kernel in between


def digest(fields: Iterable[bytes]) -> str:
    """The key of fields; their borders count."""
    hasher = blake2b(digest_size=DIGEST_BYTES)
    for field in fields:
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher.hexdigest()


def lookup(key: str) -> ModuleImage | None:
    """The image of a key, from memory or from a file."""
    with _lock:
        image = _images.pop(key, None)
        if image is not None:
            _images[key] = image
            return image
    fields = read_fields(key)
    if fields is None:
        return None
    try:
        kind, arch, compiler, log, count, *rest = fields
        pairs = [field.decode() for field in rest[: 2 * int(count)]]
        image = ModuleImage(
            rest[2 * int(count)],
            kind.decode(),
            arch.decode(),
            dict(zip(pairs[::2], pairs[1::2], strict=True)),
            log.decode(),
            compiler.decode(),
        )
    except (ValueError, IndexError):  # whole, but of another format
        return None
    remember(key, image)
    return image


def store(key: str, image: ModuleImage) -> None:
    """Keeps an image in memory and in a file."""
    remember(key, image)
    pairs = [part.encode() for pair in image.names.items() for part in pair]
    texts = (image.kind, image.arch, image.compiler, image.log, str(len(image.names)))
    write_fields(key, [*(text.encode() for text in texts), *pairs, image.data])


def remember(key: str, image: ModuleImage) -> None:
    global _held
    with _lock:
        replaced = _images.pop(key, None)
        _images[key] = image
        _held += len(image.data) - (len(replaced.data) if replaced is not None else 0)
        while _held > MEMORY_BOUND and len(_images) > 1:
            oldest = next(iter(_images))
            _held -= len(_images.pop(oldest).data)


def forget() -> None:
    """Forgets what is in memory; the files stay."""
    global _held
    with _lock:
        _images.clear()
        _held = 0


def renew_lock() -> None:
    """In a child of a fork: a thread of the parent may have held the lock."""
    global _lock
    _lock = process.ForkSafeLock()


process.call_at_fork("kernels.cache", "kernels", child=renew_lock)


def bound() -> int:
    """Bytes that the folder may hold; 0 where nothing is kept in files."""
    return int(env.value("ACCELRT_KERNEL_CACHE_MB")) << 20


def path_of(name: str) -> str:
    return os.path.join(env.value("ACCELRT_KERNEL_CACHE"), name + SUFFIX)


def read_fields(name: str) -> list[bytes] | None:
    """The fields of a file of the folder; None where there is none that is whole and the user's own."""
    if bound() == 0:
        return None
    try:
        with open_descriptor(path_of(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid():
                return None
            data = os.read(file.fileno(), facts.st_size)
            os.utime(file.fileno())  # when it was last used, which is what the oldest are told by
    except OSError:
        return None
    return unpack(data, name)


def unpack(data: bytes, name: str) -> list[bytes] | None:
    start = len(MAGIC) + DIGEST_BYTES
    if data[: len(MAGIC)] != MAGIC:
        return None
    if data[len(MAGIC) : start] != blake2b(memoryview(data)[start:], digest_size=DIGEST_BYTES).digest():
        return None
    fields = []
    while start + 8 <= len(data):
        length = int.from_bytes(data[start : start + 8], "little")
        fields.append(data[start + 8 : start + 8 + length])
        start += 8 + length
    # The name is the first field: a file that was renamed holds something else.
    return fields[1:] if start == len(data) and fields and fields[0] == name.encode() else None


def write_fields(name: str, fields: Iterable[bytes]) -> None:
    """Writes a file of the folder, and removes the least recently used ones beyond the folder's bound."""
    most = bound()
    payload = b"".join(len(field).to_bytes(8, "little") + field for field in (name.encode(), *fields))
    if len(MAGIC) + DIGEST_BYTES + len(payload) > most:
        return
    path = path_of(name)
    folder = os.path.dirname(path)
    unfinished = f"{path}.{os.urandom(8).hex()}{UNFINISHED}"
    parts = [MAGIC, blake2b(payload, digest_size=DIGEST_BYTES).digest(), payload]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        files.write(path, parts, private=True, beside=unfinished)
    except OSError:  # a full disk, say
        return
    trim(folder, most)


def trim(folder: str, most: int) -> None:
    """Removes the files that were used longest ago, until the rest is of no more bytes than most."""
    images = []
    now = time.time()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    facts = entry.stat(follow_symlinks=False)
                except OSError:  # another process removed it meanwhile
                    continue
                if entry.name.endswith(SUFFIX):
                    images.append((facts.st_mtime_ns, facts.st_size, entry.path))
                elif entry.name.endswith(UNFINISHED) and now - facts.st_mtime > ABANDONED:
                    files.remove(entry.path)
    except OSError:
        return
    total = sum(size for _, size, _ in images)
    for _, size, path in sorted(images):
        if total <= most:
            return
        files.remove(path)
        total -= size
