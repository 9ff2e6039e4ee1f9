"""Pickles of plain data: dict, list, tuple, str, int, float, bool and None, and nothing else.

pickle.Unpickler reads a pickle once it was looked through (recording.pyx, check_pickle): nothing of a
pickle is run.
"""

import pickle
from types import SimpleNamespace
from typing import NoReturn

from accelrt.errors import SnapshotError
from accelrt.memory.history.recording import PLAIN_DATA, check_pickle


class PlainUnpickler(pickle.Unpickler):
    """Refuses what would import, whatever the scan has let pass.  Objects from outside it refuses anyway."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it would import {module}.{name}; {PLAIN_DATA}")


def loads(content: bytes, name: str = "the pickle") -> object:
    """The object that a pickle of plain data holds.

    Arguments:
        content: bytes, the whole pickle; what follows its end is ignored.
        name: str, the file, for errors.
    Raises:
        SnapshotError: it holds anything else, or is damaged; `offset` is the byte.  Nothing of it was run.
    """
    if not isinstance(content, bytes):
        raise TypeError(f"content is {type(content).__name__}; pass bytes")
    check_pickle(content, name)
    # pickle.Unpickler is given one frame: of a file in parts it would leave out bytes where frames overlap.
    parts = [content, len(content).to_bytes(8, "little"), b"\x95"]
    file = SimpleNamespace(read=lambda size: parts.pop(), readline=None)
    try:
        plain: object = PlainUnpickler(file).load()
        return plain
    except UnicodeDecodeError as error:
        at = content.find(error.object) + error.start
        form = "in UTF-8" if error.encoding == "utf-8" else "with escapes"
        raise SnapshotError(
            f"{name}: at byte {at:,}: text {form} was expected ({error.reason})", at
        ) from None
    except (ValueError, pickle.UnpicklingError) as error:
        raise SnapshotError(f"{name}: {error}") from None
