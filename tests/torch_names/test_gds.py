"""Files and device memory: on the host device, and cuFile's path with a stand-in for cuda.bindings.cufile."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from child import in_fork
from device_arrays import bytes_of

import accelrt
from accelrt import gds, testing
from accelrt.testing.threads import place_of

CREATE = os.O_CREAT | os.O_RDWR
DATA = np.arange(300_000, dtype=np.uint8)


class StandIn:
    """A stand-in for cuda.bindings.cufile: files of the operating system, memory of the host device."""

    def __init__(self):
        self.calls, self.open, self.most, self.fail = [], {}, 1 << 16, None

    def get_version(self):
        return 1150

    def handle_register(self, address):
        told = gds.Description.from_address(address)
        assert (told.kind, told.fs_ops) == (1, None)
        if self.fail:
            raise self.fail
        handle = 0x7F0000000000 + told.fd
        self.open[handle] = told.fd
        return handle

    def handle_deregister(self, handle):
        del self.open[handle]

    def buf_register(self, address, nbytes, flags):
        self.calls.append(("register", address, nbytes, flags))

    def buf_deregister(self, address):
        self.calls.append(("deregister", address))

    def read(self, handle, address, size, file_offset, offset):
        return self.move(os.preadv, handle, address, size, file_offset, offset)

    def write(self, handle, address, size, file_offset, offset):
        return self.move(os.pwritev, handle, address, size, file_offset, offset)

    def move(self, function, handle, address, size, file_offset, offset):
        size = min(size, self.most)  # as a library that moves less than was asked for
        block = (ctypes.c_char * size).from_address(address + offset)
        return function(self.open[handle], [block], file_offset)


@pytest.fixture(params=["host", "stand-in"])
def cufile(request, monkeypatch):
    if request.param == "host":
        if accelrt.device(0).type != "host":
            pytest.skip("of the host device")
        return None
    if accelrt.device(0).type != "host":
        pytest.skip("the stand-in reads memory of the host device")
    stand_in = StandIn()
    monkeypatch.setattr(gds, "library", lambda: stand_in)
    monkeypatch.setattr(gds, "on_host", lambda: False)
    monkeypatch.setattr(gds.os, "O_DIRECT", 0, raising=False)
    return stand_in


def test_what_was_saved_is_loaded(cufile, tmp_path):
    buffer, array = accelrt.Buffer(DATA.nbytes), accelrt.asarray(DATA[:7000].reshape(70, 100))
    buffer.copy_from(DATA)
    with gds.GdsFile(tmp_path / "data", CREATE) as file:
        file.save_storage(buffer)
        file.save_storage(array, offset=DATA.nbytes)
        again, other = accelrt.empty(DATA.shape, np.uint8), accelrt.Buffer(7000)
        file.load_storage(again)
        file.load_storage(other, offset=DATA.nbytes)
    assert np.array_equal(again.numpy(), DATA)
    assert np.array_equal(bytes_of(other), DATA[:7000])
    assert (tmp_path / "data").stat().st_size == DATA.nbytes + 7000
    if cufile:
        assert cufile.open == {}


def test_it_waits_for_the_work_on_the_memory(cufile, tmp_path):
    stream = accelrt.Stream(0)
    with accelrt.Buffer(1 << 16, stream=stream) as buffer, gds.GdsFile(tmp_path / "data", CREATE) as file:
        with stream:
            accelrt.sleep(20_000_000)
            buffer.fill(9, stream=stream)
        file.save_storage(buffer)
    assert set((tmp_path / "data").read_bytes()) == {9}


def test_a_file_that_is_closed_while_a_write_waits_for_the_stream_is_refused(cufile, tmp_path):
    file, victim = gds.GdsFile(tmp_path / "data", CREATE), tmp_path / "victim"
    victim.write_bytes(b"kept")
    with accelrt.Buffer(1 << 16) as buffer, testing.Gate(accelrt.current_stream()) as gate:
        caller = testing.Caller(lambda: file.save_storage(buffer)).begin()
        while not caller.is_done(0.05) and not place_of(caller).endswith("in reach"):
            pass
        number = file.fd
        file.close()
        with victim.open("rb+") as taken:
            assert taken.fileno() == number  # which the file had
            gate.open.set()
            with pytest.raises(AssertionError, match="closed> is not registered and cannot save data"):
                caller.result()
    assert victim.read_bytes() == b"kept"


def test_a_file_that_is_closed_beside_a_write_is_closed_once_that_ends(cufile, tmp_path, monkeypatch):
    file, write, numbers = gds.GdsFile(tmp_path / "data", CREATE), os.pwritev, []

    def write_beside_close(number, blocks, offset):
        if not numbers:
            testing.on_a_thread(file.close)
            assert (file.fd, file.handle) == (-1, None)
        numbers.append(os.fstat(number).st_ino)
        return write(number, [bytes(blocks[0])[: 1 << 14]], offset)

    monkeypatch.setattr(os, "pwritev", write_beside_close)
    number = file.fd
    with accelrt.Buffer(1 << 16) as buffer:
        buffer.fill(3)
        file.save_storage(buffer)
        assert (tmp_path / "data").read_bytes() == b"\3" * (1 << 16)
        assert set(numbers) == {(tmp_path / "data").stat().st_ino}
        with pytest.raises(AssertionError, match="is not registered and cannot save data"):
            file.save_storage(buffer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    if cufile:
        assert cufile.open == {}


def test_a_file_that_ends_too_early_says_how_much_there_was(cufile, tmp_path):
    (tmp_path / "data").write_bytes(b"x" * 100)
    with accelrt.Buffer(300) as buffer, gds.GdsFile(tmp_path / "data", os.O_RDONLY) as file:
        with pytest.raises(EOFError, match="100 of 300 bytes were moved from offset 0; it ends there"):
            file.load_storage(buffer)
        with pytest.raises(EOFError, match="0 of 300 bytes were moved from offset 1000"):
            file.load_storage(buffer, 1000)


def test_a_closed_file_and_one_that_is_not_registered_are_refused_as_torch_asserts(cufile, tmp_path):
    file = gds.GdsFile(tmp_path / "data", CREATE)
    with pytest.raises(AssertionError, match="is registered already"):
        file.register_handle()
    file.deregister_handle()
    with accelrt.Buffer(8) as buffer:
        with pytest.raises(AssertionError, match=r"cannot load data; call register_handle\(\)"):
            file.load_storage(buffer)
        file.register_handle()
        file.save_storage(buffer)
        file.close()
        file.close()
        with pytest.raises(RuntimeError, match="closed> is not registered and cannot save data"):
            file.save_storage(buffer)
    with pytest.raises(AssertionError, match="cannot be registered; open another"):
        file.register_handle()
    assert file.fd == -1


def test_bad_arguments_are_named(cufile, tmp_path):
    with gds.GdsFile(tmp_path / "data", CREATE) as file, accelrt.Buffer(64) as buffer:
        with pytest.raises(TypeError, match="storage is 5 of type int; pass a Buffer, an Array"):
            file.load_storage(5)
        with pytest.raises(TypeError, match="is an Array of strides"):
            file.save_storage(accelrt.zeros((8, 8))[:, 0])
        with pytest.raises(TypeError, match="is an Array of host memory"):
            file.save_storage(accelrt.Array(accelrt.PinnedBuffer(8)))
        with pytest.raises(ValueError, match="offset is -1; pass 0 or more"):
            file.save_storage(buffer, -1)
        with pytest.raises(TypeError, match="offset is '0' of type str"):
            file.save_storage(buffer, "0")
        graph, stream = accelrt.CUDAGraph(), accelrt.Stream(0)
        with accelrt.graph(graph, stream=stream):
            buffer.fill(1)
            with pytest.raises(accelrt.CaptureError, match="files cannot be read or written in a capture"):
                file.save_storage(buffer)
        graph.replay()
    with pytest.raises(FileNotFoundError):
        gds.GdsFile(tmp_path / "none" / "data", os.O_RDONLY)


def test_memory_that_sleeps_is_refused(cufile, tmp_path):
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(64)
    pool.sleep(keep="discard")
    with gds.GdsFile(tmp_path / "data", CREATE) as file, pytest.raises(accelrt.SleepingMemoryError):
        file.save_storage(buffer)
    pool.wake()


def test_buffers_are_registered_with_cufile(cufile):
    with accelrt.Buffer(4096) as buffer:
        gds.gds_register_buffer(buffer)
        gds.gds_deregister_buffer(buffer)
        if cufile:
            assert cufile.calls == [("register", buffer.ptr, 4096, 0), ("deregister", buffer.ptr)]
    with pytest.raises(TypeError, match="s is 'x'"):
        gds.gds_register_buffer("x")


@pytest.mark.parametrize("cufile", ["stand-in"], indirect=True)
def test_an_error_of_cufiles_is_told_and_the_file_is_closed(cufile, tmp_path):
    cufile.fail = RuntimeError("unsupported file system")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(accelrt.CudaError, match=r"cuFileHandleRegister\(0x.*unsupported file"):
        gds.GdsFile(tmp_path / "data", CREATE)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_of_a_fork_is_told_to_open_its_own(cufile, tmp_path):
    file = gds.GdsFile(tmp_path / "data", CREATE)

    def child():
        nonlocal file
        with pytest.raises(accelrt.ForkedError, match="open it there"):
            file.save_storage(None)
        del file

    assert in_fork(child) == 0
    with accelrt.Buffer(8) as buffer:
        file.save_storage(buffer)  # the parent's registration is untouched
    file.close()


@pytest.mark.host
def test_a_missing_library_is_named():
    if any("cufile" in path.name for root in sys.path for path in Path(root).glob("nvidia/*/lib/libcufile*")):
        pytest.skip("libcufile is installed")
    with pytest.raises(accelrt.NotSupportedError, match=r"needs libcufile.*nvidia-cufile"):
        gds.library()


@pytest.mark.gpu
def test_files_on_a_gpu(tmp_path):
    try:
        gds.library()
    except accelrt.NotSupportedError as error:
        pytest.skip(str(error))
    array = accelrt.asarray(np.arange(1 << 20, dtype=np.uint8))
    try:
        file = gds.GdsFile(tmp_path / "data", CREATE)
    except (OSError, accelrt.CudaError) as error:
        pytest.skip(f"this file system takes no cuFile: {error}")
    with file:
        file.save_storage(array)
        again = accelrt.zeros(array.shape, np.uint8)
        file.load_storage(again)
    assert np.array_equal(again.numpy(), array.numpy())
