"""Which context each row of the cuda driver runs in, on a library that stands in for NVIDIA's and refuses
what takes an address, a stream, an event, a graph or a module where no context is current."""

import ctypes

import pytest
from beside import on_a_thread
from child import in_own_process

from accelrt.driver import rowgen
from accelrt.driver.registry import Rows

FIRST, SECOND = 0xC000, 0xC001  # the stand-in's primary contexts
FOREIGN, OTHER = 0xF001, 0xE000  # contexts of other libraries, of the second device and of the first
NOTHING = (1 << 64) - 1  # no call was made that wants a context
A_COPY = (ctypes.c_size_t * 9)(0x1000, 64, 1, 0x2000, 64, 1, 8, 4, 1)  # of rows
ADDRESS, CREATED, CAPTURING, PER_THREAD = 0x1000, 0x300, 0x777, 2
A_RUN = (ctypes.c_size_t * 4)(0, 0, 0, 1 << 32)  # of copies in the stream's order
RANGE = (ctypes.c_size_t * 3)(ADDRESS, 4096, 2)  # of managed memory: the host's, node 0

# Rows that make no call which wants a context, by the documentation of the functions that they call.
FREE = {
    "open", "close", "driver_version", "device_count", "device_name", "device_uuid", "device_pci_bus_id",
    "device_attribute", "device_memory", "current_device", "set_device", "can_access_peer", "granularity",
    "address_reserve", "address_reserve_at", "address_free", "context_active", "event_query",
    "capture_status", "capture_mode_exchange", "event_synchronize", "module_loading", "stream_is_capturing",
    "graph_memory_get", "graph_memory_reset", "graph_memory_trim", "default_pool",
    "managed_pool_create", "pinned_pool_create", "pool_access_get", "pool_access_set",
    "pool_create", "pool_destroy", "pool_get", "pool_set",
}  # fmt: skip

OF_THE_HOST = {"module_register"}  # which no GPU has
EMPTY_NODE = (ctypes.c_int * 128)(5)  # NodeParams of a node that does nothing
STAND_IN = {"LD_LIBRARY_PATH": "{library}", "FAKE_POOL": "8"}


def opened():
    rows = Rows("cuda")
    assert rows.open() == 0
    fake = ctypes.CDLL("libcuda.so.1")
    fake.fake_seen.restype = ctypes.c_size_t
    fake.fake_set.argtypes = [ctypes.c_size_t]
    return rows, fake


def arguments(row):
    """What a row is called with: the second device where it takes one, and whatever the stand-in accepts."""
    stream = (
        CAPTURING if row.name.startswith(("conditional", "capture_site", "capture_continue")) else CREATED
    )
    values = {
        "device": 1,
        "src_on": 1,
        "on_device": 1,
        "mode": 1,
        "attribute": 1,
        "index": 0,
        "limit": 0,
        "width": 4,
        "access": 3,
        "count": 1,
        "copies": ctypes.addressof(A_COPY),
        "stream": stream,
        "first": 1,
        "second": 0,
        "ranges": ctypes.addressof(RANGE),
        "runs": ctypes.addressof(A_RUN),
        "run_count": 1,
    }
    if row.name == "pinned_pool_create":
        values.update(kind=3, node=0, shared=0)
    elif row.name == "managed_pool_create":
        values.update(kind=2, place=0)
    elif row.name == "default_pool":
        values["kind"] = 2
    if row.name.startswith("stream_attribute"):
        values["attribute"] = 9  # memory synchronisation domains
    if row.name.startswith("kernel_node_attribute"):
        values["attribute"] = 4  # clusters
    for name in ("dst_on", "peer", "fn", "data", "arguments", "nodes", "origins", "targets", "room", "keep"):
        values[name] = 0
    values.update(after=0, params=ctypes.addressof(EMPTY_NODE))
    if {"after", "origins"} & {argument.name for argument in row.arguments}:
        values["count"] = 0  # the lists of graphs' rows are empty
    for argument in row.arguments:
        if not argument.is_out:
            yield values.get(argument.name, bytes(64) if argument.type == "const char*" else ADDRESS)


def calls():
    """Every row that the driver fills, as (name, arguments, whether it names a device)."""
    for row in rowgen.read_rows():
        if row.name in OF_THE_HOST:
            continue
        names = {argument.name for argument in row.arguments}
        yield row.name, tuple(arguments(row)), bool(names & {"device", "src_on"})


def call(rows, name, given):
    answer = getattr(rows, name)(*given)
    return answer[0] if isinstance(answer, tuple) else answer


def as_tuple(expected):
    return expected if isinstance(expected, tuple) else (expected,)


@pytest.mark.parametrize("open_first", [True, False])
@pytest.mark.parametrize("before", [0, FIRST, SECOND, FOREIGN, OTHER], ids=hex)
@in_own_process(**STAND_IN)
def test_every_row_has_its_context_and_puts_back_the_threads(library, before, open_first):
    """Calls every row on a fresh thread where `before` is current; it is current afterwards too."""
    rows, fake = opened()
    if open_first:  # else the rows themselves open the context that they need
        assert rows.memory_info(0)[0] == rows.memory_info(1)[0] == 0

    def run():
        if before:
            fake.fake_set(before)
        for name, given, on_device in calls():
            if name in ("open", "close", "set_device"):
                continue
            fake.fake_seen()
            fake.fake_asked()
            found.append((name, call(rows, name, given), fake.fake_seen(), fake.fake_asked()))
            assert (fake.fake_depth(), rows.current_device()[1]) == (
                (1, before & 1) if before else (0, -1)
            ), name
            expected = NOTHING if name in FREE else SECOND if on_device else before or (FIRST, SECOND)
            wrong.extend([found[-1]] if found[-1][2] not in (expected, *as_tuple(expected)) else [])

    found, wrong = [], []
    on_a_thread(run)
    refused = [(name, code) for name, code, *_ in found if code]
    assert not refused, refused
    assert not wrong, wrong
    assert len(found) == rows.filled - 3


@in_own_process(**STAND_IN)
def test_a_row_asks_for_the_context_once_and_changes_it_only_where_another_is_current(library):
    rows, fake = opened()
    assert rows.set_device(1) == 0
    for name, given, _ in calls():
        if name in ("open", "close", "current_device", "set_device"):
            continue
        for expected_before in (SECOND, 0):
            assert rows.set_device(1 if expected_before else -1) == 0
            fake.fake_asked()
            assert call(rows, name, given) == 0, name
            asked = fake.fake_asked()
            wanted = 0 if name in FREE else 1 if expected_before else 3  # ask; ask, push and pop
            if name == "conditional_set":  # loads and launches a kernel by the rows for those
                wanted += 3
            elif name == "device_synchronize":  # makes, records and asks for an event by the rows for those
                wanted *= 3
            assert asked <= wanted, (name, expected_before, asked)
    for stream in (0, 1, PER_THREAD):  # which stream they name depends on the context
        assert rows.set_device(-1) == 0
        fake.fake_asked()
        assert rows.capture_status(1, stream)[0] == 0
        assert fake.fake_asked() == 3


@pytest.mark.parametrize("device", [0, 1])
@in_own_process(FAKE_ACTIVE="{device}", **STAND_IN)
def test_a_row_without_a_device_uses_a_context_that_another_library_has(library, device):
    rows, fake = opened()
    for _ in range(2):
        assert rows.pointer_device(ADDRESS) == (0, 0)
        assert fake.fake_seen() == (FIRST, SECOND)[device]
    assert [fake.fake_retained(index) for index in range(2)] == [int(index == device) for index in range(2)]
    assert (fake.fake_depth(), rows.current_device()) == (0, (0, -1))


@in_own_process(**STAND_IN)
def test_a_row_without_a_device_makes_no_context_of_its_own(library):
    rows, fake = opened()
    assert rows.pointer_device(ADDRESS)[0] == 201  # the driver's own answer
    assert [fake.fake_retained(index) for index in range(2)] == [0, 0]


@in_own_process(**STAND_IN)
def test_a_thread_goes_back_to_no_context(library):
    rows, fake = opened()
    for device in (0, 1):
        assert rows.set_device(device) == 0
        assert rows.current_device() == (0, device)
        assert rows.set_device(-1) == 0
        assert (rows.current_device(), fake.fake_depth()) == ((0, -1), 0)
    assert rows.set_device(-1) == 0
    assert rows.set_device(-2) == 101
