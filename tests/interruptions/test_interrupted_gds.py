"""KeyboardInterrupt at every place of accelrt.gds: no descriptor and no handle of cuFile's stays."""

import ctypes
import os

import numpy as np
import pytest
from every_bytecode import Held, interrupt_everywhere

import accelrt
from accelrt import gds

pytestmark = pytest.mark.host
DATA = np.arange(4096, dtype=np.uint8)


class Cufile:
    """cuda.bindings.cufile as far as gds uses it, of the operating system's files and host memory."""

    def __init__(self):
        self.registered, self.closed_before = {}, []

    def get_version(self):
        return 1150

    def handle_register(self, address):
        fd = gds.Description.from_address(address).fd
        os.fstat(fd)
        self.registered[fd + 1] = fd
        return fd + 1

    def handle_deregister(self, handle):
        fd = self.registered.pop(handle)
        if not is_open(fd):
            self.closed_before.append(fd)

    def read(self, handle, address, size, file_offset, offset):
        block = (ctypes.c_char * size).from_address(address + offset)
        return os.preadv(self.registered[handle], [block], file_offset)

    def write(self, handle, address, size, file_offset, offset):
        block = (ctypes.c_char * size).from_address(address + offset)
        return os.pwritev(self.registered[handle], [block], file_offset)


def is_open(fd):
    return os.path.exists(f"/proc/self/fd/{fd}")


def use_file(path):
    buffer = accelrt.Buffer(DATA.nbytes)
    with gds.GdsFile(path, os.O_RDWR) as file:
        file.load_storage(buffer)
        file.save_storage(buffer)
        file.deregister_handle()
        file.register_handle()
    dropped = gds.GdsFile(path, os.O_RDONLY)
    dropped.load_storage(buffer, 0)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA.tobytes())
    return path


def interrupt_files(path, check):
    use_file(path)
    held = Held()

    def check_all(_):
        held.check()
        check()

    reached, escaped = interrupt_everywhere(use_file, [gds], prepare=lambda: path, check=check_all)
    assert reached > 100
    assert escaped > 0.8 * reached
    assert path.read_bytes() == DATA.tobytes()


def test_interrupted_files_leave_no_descriptor(path):
    interrupt_files(path, lambda: None)


def test_interrupted_files_leave_nothing_registered_with_cufile(path, monkeypatch):
    cufile = Cufile()
    monkeypatch.setattr(gds, "library", lambda: cufile)
    monkeypatch.setattr(gds, "on_host", lambda: False)
    monkeypatch.setattr(gds.os, "O_DIRECT", 0, raising=False)

    def check():
        assert not cufile.registered
        assert not cufile.closed_before

    interrupt_files(path, check)
