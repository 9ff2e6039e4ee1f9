"""Descriptors that other code closed, or standard streams: nothing of the caller's is touched."""

import gc
import os
from pathlib import Path

import pytest
from child import in_fresh_interpreter

import accelrt
import accelrt.sharing
from accelrt import checkpoint, checkpoint_listener, nccl
from accelrt.gds import GdsFile
from accelrt.memory import DriverPool

pytestmark = [pytest.mark.host, pytest.mark.own_process]
MIB = 1 << 20
STANDARD = (0, 1, 2)
LAST = 400  # of the numbers that the caller's file gets


def make_all(folder):
    """An object of each kind that has descriptors."""
    pool = DriverPool(ipc_enabled=True)
    memory, event = pool.allocate(MIB), accelrt.Event(interprocess=True)
    event.record()
    (folder / "data").write_bytes(b"1" * MIB)
    pinned = accelrt.PinnedBuffer(MIB, shared=True)
    return {
        "array": accelrt.full((MIB,), 5, "u1"),
        "handle": accelrt.full((MIB,), 6, "u1").share(),
        "pinned": (pinned, pinned.share()),
        "pool": (pool, memory, pool.allocation_handle),
        "event": (event, event.ipc_handle()),
        "file": GdsFile(str(folder / "data"), os.O_RDONLY),
    }


def take_all_numbers(path):
    """Closes what is open but for the standard streams, and has the caller's file under each number."""
    os.closerange(3, 4096)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(file, b"precious")
    os.ftruncate(file, 8 * MIB)
    while os.dup(file) < LAST:
        pass
    return file


def check_caller(file):
    for number in range(3, LAST + 1):
        assert os.path.samestat(os.fstat(number), os.fstat(file)), number
    os.lseek(file, 0, os.SEEK_SET)
    assert os.read(file, 8 * MIB) == b"precious" + bytes(8 * MIB - 8)


def end_in_fork(folder):
    kept = make_all(folder)
    child = os.fork()
    if child == 0:
        file = take_all_numbers(folder / "caller")
        kept.clear()
        gc.collect()
        check_caller(file)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (kept["array"].numpy() == 5).all()


def end_here(folder):
    kept = make_all(folder)
    file = take_all_numbers(folder / "caller")
    if "False" in os.environ["ACCELRT_ALLOC_CONF"]:  # else the memory's pages have files of their own
        with pytest.raises(accelrt.OutOfMemoryError, match="other code of this process closed the file"):
            accelrt.Buffer(4 * MIB)
    assert (kept["array"].numpy() == 5).all()
    with pytest.raises(accelrt.CudaError):
        _ = kept["pool"][0].allocation_handle
    with pytest.raises(accelrt.NotSupportedError, match="cannot be shared"):
        kept["pinned"][0].share()
    kept.clear()
    gc.collect()
    accelrt.synchronize()
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    check_caller(file)
    os._exit(0)  # pytest's own descriptors are gone


def use_all(folder):
    """Without standard streams: what prints into them must reach no memory."""
    report = os.dup(1)
    for number in STANDARD:
        os.close(number)
    kept = make_all(folder)
    checkpoint.listen()
    assert checkpoint_listener.tell(os.getpid(), "wake", 300)
    kept["ranks"] = nccl.init_all([0, 1])
    ours = [os.readlink(f"/proc/self/fd/{number}") for number in STANDARD if is_open(number)]
    assert not [name for name in ours if "memfd" in name or "socket" in name or "nccl" in name], ours
    for each in kept.pop("ranks"):
        each.close()
    del kept["file"]
    os.write(report, b"done\n")


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("scenario", [end_in_fork, end_here, use_all], ids=lambda each: each.__name__)
@pytest.mark.parametrize("expandable", ["True", "False"])
def test_nothing_of_the_callers_is_touched(scenario, expandable, tmp_path):
    settings = f"expandable_segments:{expandable}"
    in_fresh_interpreter(run, scenario.__name__, str(tmp_path), ACCELRT_ALLOC_CONF=settings)


def run(name, folder):
    globals()[name](Path(folder))
