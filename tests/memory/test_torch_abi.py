"""The symbols that accelrt exports in the ABI of torch's CUDAPluggableAllocator, called as a C library would:
through dlopen, from several threads, without the GIL."""

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from beside import Gate, on_a_thread, on_threads
from child import in_child, in_own_process
from compiled import typed

import accelrt
from accelrt import memory
from accelrt.driver.registry import Rows

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
MIB = 1 << 20
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t


class Symbols:
    """The five functions with their types; handles are int or None."""

    def __init__(self):
        library = ctypes.CDLL(memory.library_path())
        self.alloc = typed(library, "accelrt_torch_alloc", POINTER, [SIZE, ctypes.c_int, POINTER])
        self.free = typed(library, "accelrt_torch_free", None, [POINTER, SIZE, ctypes.c_int, POINTER])
        self.record_stream = typed(library, "accelrt_torch_record_stream", None, [POINTER, POINTER])
        self.reset = typed(library, "accelrt_torch_reset", None)
        self.fraction = typed(library, "accelrt_torch_memory_fraction", None, [ctypes.c_double, ctypes.c_int])


@pytest.fixture(scope="module")
def symbols():
    return Symbols()


def copied(dst, src, size, stream):
    """Copies raw memory; accelrt's own face takes objects."""
    rows = Rows(os.environ.get("ACCELRT_DRIVER", "host"))
    assert rows.copy(0, stream, dst, src, size) == 0
    assert rows.stream_synchronize(0, stream) == 0


def test_the_library_is_an_absolute_path_of_a_file():
    path = memory.library_path()
    assert isinstance(path, str)
    assert Path(path).is_absolute()
    assert Path(path).is_file()


def test_bytes_are_counted_where_python_counts_them(symbols):
    before = accelrt.memory_allocated(0)
    stream = accelrt.Stream(0)
    address = symbols.alloc(1000, 0, stream.cuda_stream)
    assert accelrt.memory_allocated(0) - before == 1024
    assert address % 512 == 0
    symbols.free(address, 1000, 0, stream.cuda_stream)
    assert accelrt.memory_allocated(0) == before
    again = accelrt.caching_allocator_alloc(1000, 0, stream)
    assert again == address, "one pool serves both"
    symbols.free(again, 1000, 0, stream.cuda_stream)


def test_four_threads_allocate_and_keep_their_contents(symbols):
    accelrt.init()
    together = threading.Barrier(4)

    def work(number):
        stream = accelrt.Stream(0)
        data, out = np.full(40000, number + 1, np.uint8), np.zeros(40000, np.uint8)
        together.wait()
        for _ in range(50):
            address = symbols.alloc(data.nbytes, 0, stream.cuda_stream)
            copied(address, data.ctypes.data, data.nbytes, stream.cuda_stream)
            copied(out.ctypes.data, address, data.nbytes, stream.cuda_stream)
            symbols.free(address, data.nbytes, 0, stream.cuda_stream)
            assert (out == data).all()

    on_threads(work, range(4))
    assert accelrt.memory_allocated(0) == 0


def test_no_bytes_are_null_and_null_is_nothing(symbols, capfd):
    assert symbols.alloc(0, 0, None) is None
    symbols.free(None, 0, 0, None)
    symbols.record_stream(None, None)
    assert capfd.readouterr().err == ""


def test_out_of_memory_is_null_and_one_line(symbols, capfd):
    kept = symbols.alloc(MIB, 0, None)
    assert symbols.alloc(1 << 50, 0, None) is None
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    for word in (str(1 << 50), "device 0", "OUT_OF_MEMORY", f"{MIB} are live", "reserved"):
        assert word in lines[0]
    usable = symbols.alloc(4096, 0, None)
    assert usable
    symbols.free(usable, 4096, 0, None)
    symbols.free(kept, MIB, 0, None)
    assert capfd.readouterr().err == ""


def test_what_cannot_be_is_told_in_one_line(symbols, capfd):
    accelrt.init()
    assert symbols.alloc(64, -1, None) is None
    assert symbols.alloc(64, 1000, None) is None
    address = symbols.alloc(64, 0, None)
    symbols.free(address, 64, 0, None)
    symbols.free(address, 64, 0, None)
    symbols.record_stream(address, None)
    symbols.fraction(1.5, 0)
    lines = capfd.readouterr().err.splitlines()
    words = ["INVALID_DEVICE", "INVALID_DEVICE", "NOT_ALLOCATED", "NOT_ALLOCATED", "INVALID_VALUE"]
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * 5


@pytest.mark.parametrize("how", ["recorded", "freed on another stream"])
def test_memory_in_use_on_another_stream_is_not_handed_out(symbols, how):
    own, other = accelrt.Stream(0), accelrt.Stream(0)
    address = symbols.alloc(MIB, 0, own.cuda_stream)
    with Gate(other):
        if how == "recorded":
            symbols.record_stream(address, other.cuda_stream)
            symbols.free(address, MIB, 0, own.cuda_stream)
        else:
            symbols.free(address, MIB, 0, other.cuda_stream)
        stats = accelrt.memory_stats(0)
        assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, MIB)
        elsewhere = symbols.alloc(MIB, 0, own.cuda_stream)
        assert elsewhere != address
    other.synchronize()
    symbols.free(elsewhere, MIB, 0, own.cuda_stream)


def test_reset_empties_the_caches(symbols):
    symbols.free(symbols.alloc(MIB, 0, None), MIB, 0, None)
    assert accelrt.memory_reserved(0) > 0
    symbols.reset()
    assert accelrt.memory_reserved(0) == 0


def test_the_fraction_is_a_limit(symbols, capfd):
    total = accelrt.get_device_properties(0).total_memory
    symbols.fraction(4 * MIB / total, 0)
    try:
        assert symbols.alloc(8 * MIB, 0, None) is None
        assert "CAP_REACHED" in capfd.readouterr().err
    finally:
        symbols.fraction(1.0, 0)
    symbols.free(symbols.alloc(8 * MIB, 0, None), 8 * MIB, 0, None)


@in_own_process(ACCELRT_DRIVER=os.environ.get("ACCELRT_DRIVER", "host"))
def test_the_first_call_initialises():
    symbols = Symbols()
    assert not accelrt.is_initialized()
    address = on_a_thread(lambda: symbols.alloc(4096, 0, None))
    assert accelrt.is_initialized()
    assert accelrt.memory_allocated(0) == 4096
    symbols.free(address, 4096, 0, None)


def nothing_there():
    assert Symbols().alloc(4096, 0, None) is None


@pytest.mark.own_process
@pytest.mark.skipif(not ON_HOST, reason="there is a driver")
def test_without_a_driver_the_line_says_so():
    text = in_child(nothing_there, ACCELRT_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
    assert "accelrt_torch_alloc of 4096 bytes on device 0 answered INIT_FAILED" in text
