"""Blocks that torch shares with other processes, and its counters, without torch: by the table of C functions
that its allocator object calls, and a file as torch makes it."""

import ctypes
import itertools
import os
import struct

import pytest
from child import in_own_process

import accelrt
import accelrt.sharing
from accelrt.allocator.external import torch_table
from accelrt.sharing import counters, mapping, tensors

U = ctypes.c_size_t
numbers = itertools.count()  # a file's name is never used again
FIRST = 8  # bytes before the first function of the table
ALLOC = ctypes.CFUNCTYPE(ctypes.c_int, U, ctypes.c_int, U, ctypes.POINTER(U), ctypes.c_char_p)
RELEASE = ctypes.CFUNCTYPE(None, U, ctypes.c_int)


def function_at(index, kind):
    return kind(U.from_address(torch_table.address() + FIRST + index * ctypes.sizeof(U)).value)


def allocate(size):
    address = U()
    text = ctypes.create_string_buffer(1024)
    assert function_at(0, ALLOC)(size, 0, 0, ctypes.byref(address), text) == 0, text.value
    return address.value


def free(address):
    function_at(1, RELEASE)(address, 0)


@in_own_process
def test_a_block_that_is_handed_out_goes_back_afterwards():
    address = allocate(5 << 20)
    base, size, serial, plain, refused = torch_table.begin_share(0, address)
    assert base <= address
    assert address + (5 << 20) <= base + size
    assert not plain
    assert not refused
    assert torch_table.begin_share(0, address)[:2] == (base, size)
    held = mapping.hold_tensor(0, base, size, serial)
    again = mapping.hold_tensor(0, base, size, serial)
    assert sum(length for _, length in held.pages) == size
    free(address)
    assert mapping.hold_tensor(0, base, size, serial) is None, "torch has it no more"
    assert accelrt.memory_allocated(0) == 5 << 20
    del held
    assert accelrt.memory_allocated(0) == 5 << 20
    del again
    assert accelrt.memory_allocated(0) == 0
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0
    accelrt.memory.audit()


@in_own_process
def test_a_block_is_shared_until_it_is_freed():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        address = allocate(1000)
    torch_table.begin_share(0, address)
    with pytest.raises(RuntimeError, match="other processes"):
        pool.sleep()
    free(address)
    pool.sleep()
    pool.wake()
    for _ in range(300):
        address = allocate(1000)
        torch_table.begin_share(0, address)
        free(address)
    assert accelrt.memory_allocated(0) == 0


@in_own_process
def test_what_cannot_be_shared():
    with pytest.raises(accelrt.CudaError, match="NOT_ALLOCATED"):
        torch_table.begin_share(0, 4096)
    with pytest.raises(accelrt.CudaError, match="NOT_ALLOCATED"):
        torch_table.begin_share(70, 4096)
    assert mapping.hold_tensor(0, 4096, 4096, 1) is None
    for handle in (b"accelrt:1:", b"accelrt:2:" + b"1:" * 9, b"\x02c" + bytes(64)):
        with pytest.raises(ValueError, match="no handle of memory"):
            tensors.open_handle(handle, 0)
    address = allocate(1000)
    handle, offset = tensors.share(0, address)
    assert offset < 2 << 20
    with pytest.raises(ValueError, match="torch was told cuda:1"):
        tensors.open_handle(handle, 1)
    base, buffer = tensors.open_handle(handle, 0)
    free(address)
    assert buffer.ptr == base
    del buffer
    with pytest.raises(RuntimeError, match="the tensor was freed there"):
        tensors.open_handle(handle, 0)


def test_pages_that_are_older_are_refused():
    """In a process that imports accelrt.sharing late."""
    from child import run_code

    code = (
        "import accelrt\n"
        "buffer = accelrt.empty(1000)\n"
        "from accelrt.sharing import tensors\n"
        "try:\n"
        "    tensors.share(0, buffer.ptr)\n"
        "except accelrt.NotSupportedError as error:\n"
        "    print(error)\n"
    )
    assert "were made for this process alone" in run_code(code, ACCELRT_DRIVER="host")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of counters, of which the first ten are 1."""
    monkeypatch.setattr(counters, "FOLDER", str(tmp_path))
    name = f"/torch_{os.getpid()}_{next(numbers)}_0"
    (tmp_path / name[1:]).write_bytes(bytes(64) + struct.pack("=q", 1) * 10 + bytes(8 * 9990))
    yield name
    counters.cancel()


def value(tmp_path, name, offset):
    return struct.unpack_from("=q", (tmp_path / name[1:]).read_bytes(), 64 + 8 * offset)[0]


def test_a_dead_process_is_counted_down_once(file, tmp_path):
    for offset in range(3):
        counters.note(file, offset)
    assert counters.unopened() == 3
    claimed = counters.claim(file, 0)
    assert claimed.is_open()
    assert counters.claim(file, 0) is None, "it is another process's"
    assert counters.claim("/torch_1_1_1", 0) is None, "this process sent no such tensor"
    assert counters.unopened() == 2
    assert counters.take_back([claimed]) == 1
    assert counters.take_back([claimed]) == 0
    assert value(tmp_path, file, 0) == 0
    assert counters.cancel() == 2
    assert [value(tmp_path, file, offset) for offset in range(4)] == [0, 0, 0, 1]
    assert counters.unopened() == 0


def test_what_was_received_is_not_noted_for_ever(file, tmp_path, monkeypatch):
    monkeypatch.setattr(counters, "_most", 100)
    monkeypatch.setattr(counters, "FEW", 100)
    for offset in range(1000):
        counters.note(file, offset)
    assert len(counters._sent) <= 101
    assert counters.cancel() == 10


@pytest.mark.parametrize("name", ["/torch_1_2_3", "/other", "/torch_/../x", "torch_1"])
def test_other_files_are_left_alone(file, tmp_path, name):
    (tmp_path / "other").write_bytes(bytes(100))
    (tmp_path / "torch_1_2_3").write_bytes(b"\1" * 100)
    counters.note(name, 0)
    assert counters.unopened() == 0
    assert counters.cancel() == 0
    assert (tmp_path / "other").read_bytes() == bytes(100)
    assert (tmp_path / "torch_1_2_3").read_bytes() == b"\1" * 100
