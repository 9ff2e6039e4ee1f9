"""What cannot be shared, or opened, says so, and why; nothing of it is kept."""

import ctypes
import json
import multiprocessing
import os
import pickle
import secrets
import subprocess
import sys

import numpy as np
import pytest
from beside import on_a_thread, on_threads
from child import in_fork, in_own_process
from other_process import Other, drop, keep, make, opened, read
from waiting import wait_until

import accelrt.sharing
from accelrt.sharing import mapping, wire

MIB = 1 << 20


def test_memory_that_was_freed(other):
    array = accelrt.empty((10,), "int8")
    array.base.free()
    with pytest.raises(ValueError, match="was freed"):
        array.share()
    buffer = accelrt.Buffer(8)
    buffer.free()
    with pytest.raises(ValueError, match="this is a Buffer that was freed"):
        buffer.share()


def test_memory_that_is_no_buffers():
    with pytest.raises(
        ValueError, match=r"is on no Buffer, and only accelrt's own device memory can be shared"
    ):
        accelrt.Array(accelrt.PinnedBuffer(8)).share()
    with pytest.raises(ValueError, match="is on no Buffer"):
        accelrt.sharing.share(accelrt.asarray(np.zeros(3), device="cpu"))
    with pytest.raises(TypeError, match=r"memory is of type ndarray; pass a Buffer, or an Array on one"):
        accelrt.sharing.share(np.zeros(3))


def share_on(kept, name):
    return kept[name].share()


@in_own_process(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"], ACCELRT_ALLOC_CONF="expandable_segments:False")
def test_memory_of_another_process_in_a_plain_segment():
    other = Other(ACCELRT_ALLOC_CONF="expandable_segments:False")
    array = accelrt.full((3,), 1, "int8")
    other.call(keep, "array", array)
    with pytest.raises(RuntimeError, match=r"in a plain segment, which that process alone can share"):
        other.call(share_on, "array")
    other.call(drop, "array")
    other.stop()


def test_beside_a_capture_of_the_stream(other):
    array, graph = accelrt.full((3,), 1, "int8"), accelrt.CUDAGraph()
    handle = array.share()
    with accelrt.graph(graph):
        array.fill_(2)
        for attempt in (lambda: array.share(accelrt.current_stream()), handle.open):
            with pytest.raises(
                RuntimeError, match=r"is capturing, and what orders two processes cannot be part"
            ):
                attempt()
    handle.close()


def test_a_pool_that_sleeps_and_one_that_others_have_memory_of(other):
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        array = accelrt.full((3,), 1, "int8")
    pool.sleep()
    with pytest.raises(accelrt.SleepingMemoryError):
        array.share()
    pool.wake()
    handle = array.share()
    with pytest.raises(RuntimeError, match=r"other processes have memory of it \(accelrt.sharing\)"):
        pool.sleep()
    handle.close()
    with pytest.raises(RuntimeError, match="other processes have memory of it"):
        pool.sleep()  # the Array was exported once; it may be again
    array.free()
    pool.sleep()
    pool.wake()


def test_a_ticket_that_was_used(other):
    from multiprocessing.reduction import ForkingPickler

    array = accelrt.full((3,), 1, "int8")
    pickled = bytes(ForkingPickler.dumps(array))
    assert (other.call(load, pickled) == 1).all()
    with pytest.raises(RuntimeError, match="cannot be opened: it was opened before"):
        other.call(load, pickled)


def load(kept, pickled):
    memory = pickle.loads(pickled)
    seen = memory.numpy()
    del memory
    accelrt.ipc_collect()
    return seen


def test_another_device_than_expected(other):
    with accelrt.full((3,), 1, "int8").share() as handle:
        assert (other.call(opened, handle, accelrt.current_device()) == 1).all()
        if accelrt.device_count() > 1:
            with pytest.raises(
                RuntimeError, match=r"ValueError: the memory is on device 0 of this process, not on 1"
            ):
                other.call(opened, handle, 1)


@pytest.mark.host
def test_a_device_that_the_other_process_does_not_see():
    other = Other(ACCELRT_HOST_DEVICES="1")
    array = accelrt.full((3,), 1, "int8", device=1)
    with pytest.raises(
        RuntimeError, match=r"on the device with UUID [0-9a-f]{32}, which this process does not see"
    ):
        other.call(read, array)
    wait_until(lambda: accelrt.sharing.statistics()["unopened"] == 0)  # it told that it cannot
    other.stop()


def with_another_key(kept, handle):
    key = multiprocessing.current_process().authkey
    multiprocessing.current_process().authkey = b"another"
    try:
        return handle.open()
    finally:
        multiprocessing.current_process().authkey = key


def test_another_authkey():
    other = Other()
    with accelrt.full((3,), 1, "int8").share() as handle:
        with pytest.raises(RuntimeError, match=r"PermissionError: process \d+ refused to hand over memory"):
            other.call(with_another_key, handle)
        assert (other.call(opened, handle) == 1).all()
    other.stop()
    wait_until(lambda: accelrt.sharing.statistics()["lent_bytes"] == 0 == accelrt.memory_allocated())


@in_own_process(ACCELRT_DRIVER=os.environ["ACCELRT_DRIVER"])
def test_strangers_do_no_harm():
    """Connections that say nothing, or what no process of ours would, do no harm."""
    import socket

    array = accelrt.full((3,), 1, "int8")
    handle = array.share()
    name = f"\0{handle._place.name}"
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect(name)
    for packet in (b"", b"hello", b"\xff" * 64, b"[" * 100_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
            made.connect(name)
            made.send(packet)
    other = Other()
    assert (other.call(opened, handle) == 1).all()
    other.stop()


def test_pages_that_were_made_before_the_import():
    source = (
        "import accelrt, pytest\n"
        "array = accelrt.full((3,), 1, 'int8')\n"
        "with pytest.raises(accelrt.NotSupportedError, match='before the first allocation'):\n"
        "    array.share()\n"
        "assert (array.numpy() == 1).all()\n"
        "array.free()\n"
        "assert accelrt.memory_allocated() == 0\n"
        "accelrt.empty_cache()\n"
        "array = accelrt.full((3,), 1, 'int8')\n"
        "array.share().close()\n"
        "array.free()\n"
        "accelrt.empty_cache()\n"
        "assert accelrt.memory_reserved() == 0\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=300)


@pytest.mark.host
@in_own_process
def test_memory_of_another_allocator():
    taken = {}

    def allocate(size, device, stream):
        taken[0] = ctypes.create_string_buffer(size)
        return ctypes.addressof(taken[0])

    allocator = accelrt.memory.CallbackAllocator(allocate, lambda pointer, size, device, stream: None)
    accelrt.memory.change_current_allocator(allocator)
    buffer = accelrt.Buffer(512)
    with pytest.raises(accelrt.NotSupportedError, match="memory of another allocator"):
        buffer.share()


def test_a_forked_child():
    array = accelrt.full((3,), 1, "int8")
    handle = array.share()

    def child():
        for attempt in (array.share, handle.open):
            with pytest.raises(accelrt.ForkedError):
                attempt()
        assert accelrt.sharing.statistics()["handles"] == 0

    assert in_fork(child) == 0
    assert handle.open().ptr == array.ptr
    handle.close()


def test_owners_of_shared_memory_are_made_by_sharing_alone():
    from accelrt.sharing import mapping

    for kind in (mapping.Mapping, mapping.SharedBytes):
        with pytest.raises(TypeError):
            kind()
    array = accelrt.full((3,), 1, "int8")
    with pytest.raises(TypeError, match=r"another process can open the same memory by share\(\)"):
        array.__reduce__()


def test_threads_share_one_buffer_at_once():
    buffer = accelrt.Buffer(MIB)
    handles = []
    on_threads(lambda _: handles.append(buffer.share()), range(8))
    assert {handle.open().ptr for handle in handles} == {buffer.ptr}
    assert accelrt.memory_allocated() == MIB
    for handle in handles:
        handle.close()
    buffer.free()
    assert accelrt.memory_allocated() == 0


def test_what_was_made_there_can_be_read_without_a_device_chosen(other):
    array = other.call(make, "made", 100, 3)
    assert (on_a_thread(array.numpy) == 3).all()
    del array
    accelrt.ipc_collect()
    other.call(drop, "made")


@pytest.mark.parametrize("packet", [b"nonsense", b"[1]", json.dumps({"files": 2}).encode()])
def test_descriptors_of_a_packet_that_is_no_message_are_closed(packet):
    name = f"accelrt-test-{secrets.token_hex(8)}"
    listener = mapping.Listener(name)
    ours = mapping.connect(name, mapping.FOREVER)
    theirs = listener.accept()
    before = len(os.listdir("/proc/self/fd"))
    theirs.send(packet, [theirs.fileno()])
    with pytest.raises((wire.BrokenPeerError, RuntimeError)):
        wire.receive_files(ours, mapping.FOREVER)
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests left may be closed meanwhile


def test_a_handle_is_made_by_share_alone():
    array = accelrt.full((3,), 1, "int8")
    with array.share() as handle:
        for arguments in ((handle._place, None, 7), (7, None), (handle._place, None, "loan")):
            with pytest.raises(TypeError, match=r"a MemoryHandle is made by share\(\)"):
                accelrt.sharing.MemoryHandle(*arguments)
