"""Traces of allocations, for accelrt replay and tune: the files that have one, and what each has to be.
load reads a trace from whatever file has one; the file's first bytes say which reader it is for.

trace            a trace as a replay runs through it
npz_archive      arrays in numpy's archive
recorded_events  recordings and snapshots, of accelrt's and of torch's
rmm_log          RMM's log of a LoggingResourceAdaptor
address_pairs    allocations and frees of addresses, made into a trace
"""

import stat
from pathlib import Path

from accelrt.errors import RecordError
from accelrt.tools.traces import npz_archive, rmm_log
from accelrt.tools.traces.trace import Trace

__all__ = ["load"]

# accelrt's; pickles of protocol 2 and later, and of those before
EVENT_FILES = (b"\x89", b"\x80", b"(", b"}")
LOG = rmm_log.COLUMNS[0].encode()


def load(path: str | Path, device: int | None = None) -> Trace:
    """Reads a trace and checks every row of it.

    Arguments:
        path: of an npz archive of arrays, a recording or snapshot of accelrt's, a snapshot of torch's, or a
            log of RMM's.
        device: int, of a file of several; None is the one with the most events.
    Returns:
        Trace.
    Raises:
        RecordError, SnapshotError: both ValueErrors; the file is none of these, or something in it is wrong.
        OSError: it cannot be read.
    """
    file_path = Path(path)
    if not file_path.is_dir() and not stat.S_ISREG(file_path.stat().st_mode):
        raise RecordError(f"{path} is no regular file; a trace is not read in order, so a pipe will not do")
    with open(file_path, "rb") as file:
        first = file.read(len(LOG))
    if first[:1] in EVENT_FILES:
        from accelrt.tools.traces import recorded_events

        return recorded_events.load(file_path, device)
    if device is not None:
        raise RecordError(f"{path} is of one device; leave out --device")
    return rmm_log.load(file_path) if first.startswith(LOG) else npz_archive.load(file_path)
