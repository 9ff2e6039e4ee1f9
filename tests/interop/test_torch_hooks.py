"""The functions that torch calls of accelrt, called as C++ calls them, with the C++ names of a stand-in for
torch (tests/helpers/sources/plugged_torch.cpp), on the host device."""

import ctypes
import faulthandler
import gc
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from child import in_own_process
from compiled import CXX, SANITIZE, SOURCES

import accelrt
from accelrt.allocator.external import torch_table
from accelrt.driver.registry import Rows

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.host,
    pytest.mark.skipif(CXX is None, reason="no C++ compiler (g++) is installed"),
]
CAPTURE, THREAD, EVERYBODY = range(3)
MARK = torch_table.TORCH_MARK
SHARED = ["-shared", "-fPIC", "-std=c++17", "-Wall", *SANITIZE]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "libplugged_torch.so"
    subprocess.run([*CXX, *SHARED, "-o", path, SOURCES / "plugged_torch.cpp"], check=True)
    return str(path)


class Caller:
    """The hooks by their names, called through the stand-in."""

    def __init__(self, path):
        self.torch = ctypes.CDLL(path)
        self.stream = accelrt.Stream(0)
        hooks = ctypes.CDLL(torch_table.__file__)
        self.hook = lambda name: ctypes.cast(getattr(hooks, f"accelrt_torch_hook_{name}"), ctypes.c_void_p)
        assert torch_table.prepare(path.encode(), lambda device: self.stream.cuda_stream) == (None, True)
        self.text = ctypes.create_string_buffer(1024)

    def alloc(self, size, device=0, stream=None):
        """The address; or 1 or 2, for the exception, and its text."""
        out, handle = ctypes.c_void_p(), self.stream.cuda_stream if stream is None else stream
        number = ctypes.c_size_t(size)
        code = self.torch.call_alloc(
            self.hook("alloc"), number, device, ctypes.c_void_p(handle), ctypes.byref(out), self.text
        )
        return (code, self.text.value.decode()) if code else out.value

    def free(self, address):
        hooks = ctypes.CDLL(torch_table.__file__)
        hooks.accelrt_torch_hook_free(
            ctypes.c_void_p(address), ctypes.c_size_t(0), 0, ctypes.c_void_p(self.stream.cuda_stream)
        )

    def begin(self, first, second, kind):
        numbers = ctypes.c_uint64(first), ctypes.c_uint64(second)
        code = self.torch.call_begin(self.hook("begin_pool"), 0, *numbers, kind, self.text)
        return (code, self.text.value.decode()) if code else None

    def end(self, first, second):
        self.torch.call_pool(self.hook("end_pool"), 0, ctypes.c_uint64(first), ctypes.c_uint64(second))

    def release(self, first, second):
        self.torch.call_pool(self.hook("release_pool"), 0, ctypes.c_uint64(first), ctypes.c_uint64(second))

    def pool_of(self, address):
        (found,) = [
            segment["segment_pool_id"]
            for segment in accelrt.memory.memory_snapshot(0)
            for block in segment["blocks"]
            if block["address"] == address
        ]
        return found


@in_own_process(ACCELRT_HOST_MEMORY="1536MiB")  # amounts up to 1 GiB are written in MiB
def test_memory_and_both_exceptions(library):
    caller = Caller(library)
    address = caller.alloc(5000)
    assert accelrt.memory_allocated(0) == 5120
    caller.free(address)
    assert caller.alloc(0) is None
    code, text = caller.alloc(1 << 50)
    assert code == 1
    capacity = accelrt.mem_get_info(0)[1] / (1 << 30)
    words = "CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of"
    assert text.startswith(f"{words} {capacity:.2f} GiB of which ")
    assert text.endswith("[accelrt_torch_hook_alloc]"), text
    code, text = caller.alloc(1000, 99)
    assert code == 2
    assert "could not allocate on device 99: INVALID_DEVICE" in text
    code = caller.torch.call_init(caller.hook("init"), 2, caller.text)
    assert code == 0
    assert caller.torch.call_init(caller.hook("init"), 5, caller.text) == 2
    assert b"torch sees 5 devices and accelrt" in caller.text.value


@in_own_process
def test_a_pool_of_a_thread(library):
    caller = Caller(library)
    assert caller.begin(0, 7, THREAD) is None
    inside = caller.alloc(3000)
    assert torch_table.open_uses() == [(0, (MARK, 7), "thread", "open")]
    caller.end(0, 7)
    outside = caller.alloc(3000)
    assert (caller.pool_of(inside), caller.pool_of(outside)) == ((MARK, 7), (0, 0))
    caller.release(0, 7)
    assert torch_table.open_uses() == []
    code, text = caller.begin(0, 7, EVERYBODY)
    assert code == 2
    assert "this call asks for something else" in text
    for address in (inside, outside):
        caller.free(address)
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0


def rows():
    return Rows("host")


@in_own_process
def test_a_pool_of_a_capture(library):
    caller, driver = Caller(library), rows()
    stream, other = caller.stream.cuda_stream, accelrt.Stream(0)
    assert caller.begin(3, 0, CAPTURE) is None
    with ThreadPoolExecutor(1) as threads:  # the capture's own thread allocates nothing before it begins
        before = threads.submit(caller.alloc, 3000, 0, other.cuda_stream).result()
    assert driver.capture_begin(0, stream, 0) == 0
    inside = caller.alloc(3000)
    beside = caller.alloc(3000, stream=other.cuda_stream)
    code, graph = driver.capture_end(0, stream)
    assert code == 0
    caller.end(3, 0)
    after = caller.alloc(3000)
    owners = [caller.pool_of(address) for address in (before, inside, beside, after)]
    assert owners == [(0, 0), (3 | MARK, 0), (0, 0), (0, 0)]
    assert torch_table.open_uses() == [(0, (3 | MARK, 0), "capture", "ended")]
    accelrt.empty_cache()
    caller.free(inside)
    caller.release(3, 0)
    for address in (before, beside, after):
        caller.free(address)
    driver.graph_destroy(graph)
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0


@in_own_process
def test_captures_that_fail(library):
    caller, driver = Caller(library), rows()
    stream = caller.stream.cuda_stream
    assert caller.begin(3, 0, CAPTURE) is None  # and the capture does not begin
    address = caller.alloc(3000)
    assert torch_table.open_uses() == []
    assert caller.begin(4, 0, CAPTURE) is None
    assert driver.capture_begin(0, stream, 0) == 0
    inside = caller.alloc(3000)
    code, graph = driver.capture_end(0, stream)  # of which torch says nothing
    assert code == 0
    driver.graph_destroy(graph)
    assert torch_table.open_uses() == [(0, (4 | MARK, 0), "capture", "open")]
    assert caller.begin(5, 0, CAPTURE) is None
    assert torch_table.open_uses() == [(0, (5 | MARK, 0), "capture", "open")]
    caller.end(5, 0)
    caller.release(5, 0)
    assert torch_table.open_uses() == []
    g = accelrt.CUDAGraph()  # the count of captures is what it was
    with accelrt.graph(g):
        accelrt.fill(accelrt.Buffer(64), 1)
    for each in (address, inside):
        caller.free(each)
    del g
    accelrt.synchronize()
    accelrt.empty_cache()
    assert accelrt.memory_reserved(0) == 0


@in_own_process
def test_a_capture_whose_stream_is_not_told_does_not_begin(library):
    caller = Caller(library)

    def interrupt(device):
        raise KeyboardInterrupt

    torch_table.prepare(library.encode(), interrupt)
    code, text = caller.begin(3, 0, CAPTURE)
    assert code == 2
    assert "could not allocate from a pool on device 0" in text
    assert torch_table.open_uses() == []


@in_own_process
def test_torchs_first_use_by_two_threads_with_the_gil(library):
    accelrt.init()
    init_once = ctypes.PyDLL(library).call_init_once  # which keeps the GIL
    hook = ctypes.cast(ctypes.CDLL(torch_table.__file__).accelrt_torch_hook_init, ctypes.c_void_p)
    begun = []

    def second():
        while not begun:  # it wants the GIL, all the time
            pass
        return init_once(hook, 2, 0)

    faulthandler.dump_traceback_later(20, exit=True)  # threads that wait for each other for ever
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(second)
        begun.append(True)
        assert init_once(hook, 2, 100) == 0
        assert other.result() == 0


@in_own_process
def test_accelrt_is_initialised_before_torch():
    seen = []
    initialize = accelrt.interop.torch.initialize_before(lambda: seen.append(accelrt.is_initialized()))
    assert not accelrt.is_initialized()
    initialize()
    assert seen == [True]


class Graph:
    """Tells the hooks when it goes, as torch's graph does; a cycle, which goes in a collection."""

    def __init__(self, caller, number):
        self.caller, self.number, self.cycle = caller, number, self

    def __del__(self):
        self.caller.end(0, self.number)
        self.caller.release(0, self.number)


@in_own_process
def test_a_collection_while_the_uses_are_read(library):
    caller = Caller(library)
    for number in range(1, 5):
        assert caller.begin(0, number, THREAD) is None
    gc.disable()
    Graph(caller, 1)
    faulthandler.dump_traceback_later(20, exit=True)
    gc.set_threshold(1)
    gc.enable()
    torch_table.open_uses()
    gc.collect()
    assert [use[1] for use in torch_table.open_uses()] == [(MARK, number) for number in (4, 3, 2)]
    for number in (2, 3, 4):
        caller.end(0, number)
        caller.release(0, number)


@in_own_process
def test_a_library_without_torchs_names(library):
    lacking, raises = torch_table.prepare(library.encode(), lambda device: 0)
    assert (lacking, raises) == (f"the library {library.encode()!r}", False), "it is not loaded"
    ctypes.CDLL(torch_table.__file__)
    lacking, raises = torch_table.prepare(torch_table.__file__.encode(), lambda device: 0)
    assert "createCustomAllocator" in lacking
    assert not torch_table.answer_cache_info(torch_table.__file__.encode())
