"""The host device counts memory that is taken away while queued work names it, where a GPU faults."""

import ctypes
import subprocess
import sys
import threading

import pytest
from compiled import compile_image
from kernel_sources import SOURCE

import accelrt
from accelrt.driver.host import driver as host
from accelrt.driver.registry import Rows

pytestmark = pytest.mark.host
PAGE, SIZE, BEYOND = 2 << 20, 4096, 1  # bytes, bytes, a device beside device 0
NON_BLOCKING, RELAXED, IF = 1, 2, 0
SECONDS = 300
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Rig:
    """Rows of the host device, streams that a host function holds, and memory for the other sides."""

    def __init__(self, image):
        self.raw, self.go = Rows("host"), threading.Event()
        accelrt.init()
        self.plain = self.ok("memory_alloc", 0, PAGE)
        self.hold = CALLBACK(lambda _: self.go.wait(SECONDS) and None)
        self.streams = [self.ok("stream_create", device, NON_BLOCKING, 0) for device in (0, BEYOND)]
        self.free = self.ok("stream_create", 0, NON_BLOCKING, 0)
        self.modules = [self.ok("module_load", device, image) for device in (0, BEYOND)]
        self.execs = []

    def ok(self, name, *arguments):
        answer = getattr(self.raw, name)(*arguments)
        code, *written = answer if isinstance(answer, tuple) else (answer,)
        assert code == 0, f"{name}{arguments} answered {code}"
        return written[0] if len(written) == 1 else tuple(written)

    def hold_streams(self):
        for device, stream in enumerate(self.streams):
            self.ok("stream_host_func", device, stream, ctypes.cast(self.hold, ctypes.c_void_p).value, 0)

    def finish(self):
        self.go.set()
        for device in (0, BEYOND):
            self.ok("device_synchronize", device)

    def close(self):
        self.finish()
        for exec_ in self.execs:
            self.ok("graph_exec_destroy", exec_)
        for device, module in enumerate(self.modules):
            self.ok("module_unload", device, module)
            self.ok("stream_destroy", device, self.streams[device])
        self.ok("stream_destroy", 0, self.free)
        self.ok("memory_free", 0, self.plain)

    def map_pages(self, count=1):
        """Addresses, each page with memory of its own."""
        address = self.ok("address_reserve", count * PAGE, 0)
        for at in range(address, address + count * PAGE, PAGE):
            self.map_page(at)
        return address

    def map_page(self, at):
        handle = self.ok("physical_create", 0, PAGE, False)
        self.ok("memory_map", at, PAGE, handle)
        self.ok("physical_release", handle)
        self.ok("memory_access", at, PAGE, 0, 3)

    def drop_pages(self, address, count=1):
        self.finish()
        self.ok("memory_unmap", address, count * PAGE)
        self.ok("address_free", address, count * PAGE)

    def launch(self, device, stream, address):
        """A kernel that has the address and touches nothing."""
        function = self.ok("module_function", self.modules[device], b"saxpy")
        values = ctypes.c_float(1), ctypes.c_uint64(self.plain), ctypes.c_uint64(address), ctypes.c_uint32(0)
        pointers = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))
        self.ok("kernel_launch", device, stream, function, *[1] * 6, 0, ctypes.addressof(pointers))

    def replay(self, stream, record):
        """Captures what record(stream) does, and replays it behind what the stream waits for."""
        self.ok("capture_begin", 0, self.free, RELAXED)
        record(self.free)
        graph = self.ok("capture_end", 0, self.free)
        self.execs.append(self.ok("graph_instantiate", 0, graph, 0))
        self.ok("graph_destroy", graph)
        if stream is not None:
            self.ok("graph_launch", 0, self.execs[-1], stream)


@pytest.fixture(scope="module")
def image():
    return compile_image(SOURCE)


@pytest.fixture
def rig(image):
    made = Rig(image)
    yield made
    made.close()


def copy_3d(rig, stream, dst, src):
    # 3 rows of 16 bytes, 1024 apart: the last one ends at 2064.
    rig.ok("copy_3d", 0, stream, dst, 1024, 3, src, 1024, 3, 16, 3, 1)


def branch(rig, stream, address):
    condition = rig.ok("conditional_create", 0, stream)
    body = rig.ok("conditional_add", 0, stream, condition, IF)
    inner = rig.ok("stream_create", 0, NON_BLOCKING, 0)
    rig.ok("capture_begin_to", 0, inner, body, RELAXED)
    rig.ok("fill", 0, inner, address, 1, 1, 64)
    rig.ok("capture_end", 0, inner)
    rig.ok("stream_destroy", 0, inner)


def set_condition(rig, stream, address):
    condition = rig.ok("conditional_create", 0, stream)
    rig.ok("conditional_set", 0, stream, condition, address)


WORK = {
    "fill": lambda rig, stream, at: rig.ok("fill", 0, stream, at, 7, 4, 16),
    "copy into it": lambda rig, stream, at: rig.ok("copy", 0, stream, at, rig.plain, 64),
    "copy out of it": lambda rig, stream, at: rig.ok("copy", 0, stream, rig.plain, at, 64),
    "rows into it": lambda rig, stream, at: copy_3d(rig, stream, at, rig.plain),
    "rows out of it": lambda rig, stream, at: copy_3d(rig, stream, rig.plain, at),
    "kernel": lambda rig, stream, at: rig.launch(0, stream, at),
}
NODES = WORK | {"condition": set_condition, "body": branch}


def unmap_beside(rig, queue, address):
    """How much is counted where a page is unmapped beside queued work, for which another one comes."""
    rig.hold_streams()
    queue(rig.streams[0])
    before = host.frees_under_work()
    rig.ok("memory_unmap", address, PAGE)
    counted = host.frees_under_work() - before
    rig.map_page(address)
    return counted


@pytest.mark.frees_under_work
@pytest.mark.parametrize("name", WORK)
def test_a_page_that_queued_work_names_is_counted(rig, name):
    address = rig.map_pages()
    assert unmap_beside(rig, lambda stream: WORK[name](rig, stream, address + PAGE - SIZE), address) == 1
    rig.drop_pages(address)


@pytest.mark.frees_under_work
@pytest.mark.parametrize("name", NODES)
def test_a_page_that_a_replay_under_way_names_is_counted(rig, name):
    address = rig.map_pages()

    def queue(stream):
        rig.replay(stream, lambda recording: NODES[name](rig, recording, address))

    assert unmap_beside(rig, queue, address) == 1
    rig.drop_pages(address)


@pytest.mark.parametrize("name", WORK)
def test_a_page_beside_what_queued_work_names_is_not_counted(rig, name):
    address = rig.map_pages(3)

    def queue(stream):
        WORK[name](rig, stream, address + PAGE - 2064)  # which is all that the rows touch
        WORK[name](rig, stream, address + 2 * PAGE)

    assert unmap_beside(rig, queue, address + PAGE) == 0
    rig.drop_pages(address, 3)


def test_what_is_done_and_what_is_not_under_way_is_not_counted(rig):
    address = rig.map_pages()
    rig.replay(None, lambda recording: WORK["fill"](rig, recording, address))
    WORK["fill"](rig, rig.free, address)
    rig.ok("stream_synchronize", 0, rig.free)
    assert unmap_beside(rig, lambda stream: None, address) == 0
    rig.drop_pages(address)


def test_a_refused_unmapping_is_not_counted(rig):
    address = rig.map_pages()
    rig.hold_streams()
    WORK["fill"](rig, rig.streams[0], address)
    before = host.frees_under_work()
    assert rig.raw.memory_unmap(address, PAGE // 2) != 0
    assert host.frees_under_work() == before
    rig.drop_pages(address)


EXPORT = """
from accelrt.driver.registry import Rows
rows = Rows("host")
rows.open()
print(rows.ipc_memory_export(0, rows.memory_alloc(0, 4096)[1])[1].hex(), flush=True)
input()
"""


def imported(rig):
    command = [sys.executable, "-c", EXPORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        handle = bytes.fromhex(owner.stdout.readline())
        address = rig.ok("ipc_memory_open", 0, handle)
        owner.communicate("\n")
    return address


ROOM = ctypes.create_string_buffer(3 * SIZE)
REGISTERED = (ctypes.addressof(ROOM) + SIZE - 1) // SIZE * SIZE
KINDS = {
    "memory_free": lambda rig: rig.ok("memory_alloc", 0, SIZE),
    "host_free": lambda rig: rig.ok("host_alloc", 0, SIZE),
    "host_unregister": lambda rig: rig.ok("host_register", 0, REGISTERED, SIZE) or REGISTERED,
    "ipc_memory_close": imported,
}


@pytest.mark.frees_under_work
@pytest.mark.parametrize("row", KINDS)
def test_memory_that_work_of_another_device_names_is_counted(rig, row):
    address = KINDS[row](rig)
    rig.ok("stream_host_func", BEYOND, rig.streams[BEYOND], ctypes.cast(rig.hold, ctypes.c_void_p).value, 0)
    rig.launch(BEYOND, rig.streams[BEYOND], address)
    before = host.frees_under_work()
    rig.ok(row, 0, address)
    assert host.frees_under_work() == before + 1


@pytest.mark.frees_under_work
@pytest.mark.parametrize("row", KINDS)
def test_what_a_row_waits_for_is_counted_where_a_gpu_promises_no_wait(rig, row):
    address = KINDS[row](rig)
    rig.hold_streams()
    rig.launch(0, rig.streams[0], address)
    before = host.frees_under_work()
    freeing = threading.Thread(target=rig.ok, args=(row, 0, address))
    freeing.start()
    while freeing.is_alive() and host.live_objects()["operations"] < 4:
        pass  # two host functions, the kernel, and what the row waits for
    rig.finish()
    freeing.join(SECONDS)
    assert not freeing.is_alive()
    assert host.frees_under_work() - before == (row in ("host_unregister", "ipc_memory_close"))
