"""The cuda driver's own logic, on a library that stands in for NVIDIA's: no GPU is needed, none is used."""

import ctypes

import pytest
from beside import on_a_thread
from child import in_child, in_own_process

import accelrt
from accelrt.driver.cuda import driver as cuda
from accelrt.driver.registry import Rows

pytestmark = pytest.mark.own_process
FIRST, SECOND = 0xC000, 0xC001  # the stand-in's primary contexts, which its memory_info answers
DEVICE, PINNED, PAGEABLE = 0x1000, 0x10000, 0x100000
INVALID_VALUE, NO_DEVICE, INVALID_DEVICE, INVALID_HANDLE, NOT_SUPPORTED = 1, 100, 101, 400, 801


def opened():
    rows = Rows("cuda")
    assert rows.open() == 0
    return rows, ctypes.CDLL("libcuda.so.1")


def copies(waits):
    rows, fake = opened()
    places = {"device": DEVICE, "pinned": PINNED, "pageable": PAGEABLE}
    found = set()
    for target, dst in places.items():
        for origin, src in places.items():
            before = fake.fake_synchronized()
            assert rows.copy(0, 0x300, dst, src, 64) == 0
            if fake.fake_synchronized() > before:
                found.add((target, origin))
    assert found == waits
    before = fake.fake_synchronized()
    assert rows.copy(0, 0x777, DEVICE, PAGEABLE, 64) == 0  # the stand-in's stream that captures
    for dst, src in ((DEVICE, DEVICE), (DEVICE, PINNED), (PINNED, DEVICE)):
        assert rows.copy_async(0, 0x300, dst, src, 64) == 0
    assert fake.fake_synchronized() == before


def changed_copies():
    rows, fake = opened()
    room = ctypes.create_string_buffer(1024)  # NodeParams
    at, host, unified = ctypes.addressof(room), 1, 4
    assert rows.set_device(0) == 0
    for node, src in ((0x41, host), (0x42, unified)):
        fake.fake_pointers()
        assert rows.graph_node_params(0, node, at) == 0
        assert fake.fake_pointers() == 2
        for _ in range(3):
            assert rows.graph_node_set(0, 0, 0x99, node, at) == 0
            assert fake.fake_changed_sides() == src * 16 + unified
        assert fake.fake_pointers() == 0


def refused(code, reason):
    rows = Rows("cuda")
    assert cuda.open_error() == ""
    for _ in range(2):
        assert rows.open() == code
        assert reason in cuda.open_error()
    assert rows.driver_version()[0] == NOT_SUPPORTED or code == NOT_SUPPORTED


def logs():
    rows, _ = opened()
    assert rows.module_load(0, b"bad") == (218, 0)
    assert rows.module_log(0, b"bad") == (0, "ptxas fake, line 3; error : a word\nptxas fatal")
    assert rows.module_log(0, b"good") == (0, "")


def errors_of_images():
    said = r"INVALID_PTX \(218\): the PTX does not compile; the driver said:\n    ptxas fake, .*\n    ptxas"
    with pytest.raises(accelrt.CudaError, match=said):
        accelrt.Module(b"bad", device=1)


def test_the_compilers_log_is_told_with_the_error_of_an_image(library):
    in_child(logs, LD_LIBRARY_PATH=library)
    in_child(errors_of_images, LD_LIBRARY_PATH=library, ACCELRT_DRIVER="cuda")


@in_own_process(LD_LIBRARY_PATH="{library}")
def test_a_row_runs_in_its_devices_context_and_puts_back_the_threads(library):
    rows, fake = opened()
    assert rows.device_count() == (0, 2)
    assert rows.current_device() == (0, -1)
    assert [fake.fake_retained(device) for device in range(2)] == [0, 0]
    assert rows.memory_info(1) == (0, SECOND, SECOND)
    assert rows.current_device() == (0, -1)
    assert fake.fake_depth() == 0
    assert rows.set_device(0) == 0
    assert rows.current_device() == (0, 0)
    assert rows.memory_info(0) == (0, FIRST, FIRST)
    assert rows.memory_info(1) == (0, SECOND, SECOND)
    assert rows.current_device() == (0, 0)
    assert rows.set_device(2) == INVALID_DEVICE
    assert rows.memory_info(-1)[0] == INVALID_DEVICE
    assert rows.current_device() == (0, 0)
    assert [fake.fake_retained(device) for device in range(2)] == [1, 1]
    assert on_a_thread(rows.current_device) == (0, -1)


@in_own_process(LD_LIBRARY_PATH="{library}")
def test_a_stream_gets_its_devices_context_and_an_event_is_asked_without(library):
    rows, fake = opened()
    code, stream = rows.stream_create(1, 1, 0)
    assert code == 0
    for _ in range(2):
        assert rows.stream_query(1, stream) == 0
        assert rows.event_query(1, 0x200) == 0
        assert rows.stream_query(0, 0) == 0
        assert rows.event_query(1, 0) == 1
        assert (rows.current_device(), fake.fake_depth()) == ((0, -1), 0)


@in_own_process(LD_LIBRARY_PATH="{library}")
def test_a_stream_names_the_device_of_its_context(library):
    rows, fake = opened()
    made = [rows.stream_create(device, 1, 0)[1] for device in (0, 1)]
    for device in (0, 1):
        assert [rows.stream_device(device, stream) for stream in made] == [(0, 0), (0, 1)]
        assert [rows.stream_device(device, stream) for stream in (0, 1, 2)] == [(0, device)] * 3
        assert rows.stream_device(device, 0x800) == (0, 1)
        assert rows.stream_device(device, 0x900)[0] == INVALID_HANDLE
    assert (rows.current_device(), fake.fake_depth()) == ((0, -1), 0)


def test_a_device_that_reaches_pageable_memory_is_waited_for(library):
    waits = {("device", "pageable"), ("pageable", "device"), ("pageable", "pageable"), ("pinned", "pageable")}
    in_child(copies, waits, LD_LIBRARY_PATH=library, FAKE_PAGEABLE="1")


def test_a_device_that_does_not_has_it_staged(library):
    in_child(copies, set(), LD_LIBRARY_PATH=library)


@in_own_process(LD_LIBRARY_PATH="{library}")
def test_memory_that_the_driver_does_not_know_is_refused_by_the_row_alone(library):
    rows, _ = opened()
    assert rows.memory_info(0)[0] == 0
    assert rows.pointer_device(DEVICE) == (0, 0)
    assert rows.pointer_device(PINNED) == (0, -1)
    assert rows.pointer_device(PAGEABLE) == (INVALID_VALUE, -1)


@in_own_process(LD_LIBRARY_PATH="{library}", ACCELRT_DRIVER="cuda")
def test_a_driver_is_asked_for_the_attributes_of_its_own_version(library):
    assert accelrt.get_device_properties(1).attributes.keys() >= {"warp_size", "host_memory_pools_supported"}
    assert ctypes.CDLL("libcuda.so.1").fake_refused() == 0


@in_own_process(LD_LIBRARY_PATH="{library}")
def test_network_cards_reach_memory_of_devices_that_let_them(library):
    rows, _ = opened()
    assert [rows.physical_create(device, 4096, False) for device in (0, 1)] == [(0, 0xAA001), (0, 0xAA100)]
    assert rows.physical_create(0, 4096, True) == (0, 0xAA011)


@in_own_process(LD_LIBRARY_PATH="{library}", FAKE_POOL="8")
def test_pools_that_leave_the_process_are_asked_for_as_cuda_has_them(library):
    rows, _ = opened()
    assert rows.pool_create(1, 5, True) == (0, 0xC0001 + 5 * 0x100000)
    assert rows.pool_create(1, 0, False) == (0, 0xE1001)
    assert rows.pool_create(2, 0, True)[0] == INVALID_DEVICE
    managed = [rows.managed_pool_create(0, *place) for place in ((0, 0), (1, 1), (2, 0), (3, 4))]
    assert managed == [(0, 0xF0000), (0, 0xF1001), (0, 0xF2000), (0, 0xF3004)]
    assert rows.managed_pool_create(2, 0, 0)[0] == rows.managed_pool_create(0, 1, 2)[0] == INVALID_DEVICE
    assert rows.pinned_pool_create(2, 9, 5, False) == (0, 0xE2000 + 5 * 0x100000)  # the host's, at no node
    assert rows.pinned_pool_create(2, 0, 0, True)[0] == INVALID_VALUE
    assert rows.pinned_pool_create(3, 4, 0, True) == (0, 0xE3104)
    assert rows.pinned_pool_create(3, 4, 0, False) == (0, 0xE3004)
    assert rows.pinned_pool_create(1, 0, 0, False)[0] == rows.pinned_pool_create(4, 0, 0, False)[0] == 1
    assert [rows.default_pool(1, kind) for kind in (1, 2, 3)] == [(0, 0xE000), (0, 0xA001), (0, 0xB001)]
    assert rows.default_pool(1, 0)[0] == INVALID_VALUE
    assert rows.default_pool(2, 1)[0] == rows.pool_trim(0xC0001, 2, 0, 0) == INVALID_DEVICE
    assert rows.pool_import(1, 7) == (0, 0xD0007)
    assert rows.pool_access_get(0xD0007, 1) == (0, 3)  # the device that the caller names is let in
    assert rows.pool_pointer_export(0, 0x1234) == (0, b"\x34" * 64)
    assert rows.pool_pointer_import(0, 0xD0007, bytes(63) + b"\x05") == (0, 0xD000C)
    assert rows.pool_access_set(0xC0001, 0, 1) == 0
    assert rows.pool_access_get(0xC0001, 0) == (0, 1)
    assert rows.pool_access_set(0xC0001, 2, 1) == rows.pool_access_get(0xC0001, 2)[0] == INVALID_DEVICE
    assert rows.pool_get(0xC0001, 4) == (0, 0xC0001)
    assert rows.pool_set(0xC0001, 4, 9) == rows.pool_trim(0xC0001, 0, 0, 0) == rows.pool_destroy(0xC0001) == 0
    assert rows.function_name(0x10) == (0, "kernel of the stand-in")


@in_own_process(LD_LIBRARY_PATH="{library}", FAKE_MISSING="cuStreamQuery")
def test_a_missing_function_costs_its_own_row_alone(library):
    rows, _ = opened()
    assert rows.stream_query(0, 0x300) == NOT_SUPPORTED
    assert rows.event_query(0, 0x200) == 0
    assert rows.stream_destroy(0, 0x300) == 0
    assert rows.close() == 0
    assert rows.filled == len(rows.names) - 2  # and module_register, which is the host device's


def test_a_function_that_every_row_needs_is_named(library):
    arguments = (NOT_SUPPORTED, "cuCtxPushCurrent of version 4000")
    in_child(refused, *arguments, LD_LIBRARY_PATH=library, FAKE_MISSING="cuCtxPushCurrent")


def test_what_the_library_answers_is_told(library):
    in_child(refused, 803, "CUDA_ERROR_FAKE (803)", LD_LIBRARY_PATH=library, FAKE_INIT="803")


def test_a_library_that_cannot_be_loaded_is_no_device(tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    in_child(refused, NO_DEVICE, "cannot be used", LD_LIBRARY_PATH=str(tmp_path))


RANGES = [(0x1000, 4096, 1, 1), (0x9000, 4096, 2, 0)]  # to the second device, and to the host


def ranges_of(parts):
    words = [word for address, size, kind, place in parts for word in (address, size, kind | place << 32)]
    return (ctypes.c_size_t * len(words))(*words)


def moves(older, single, batches, last):
    """Two ranges by one call, then the second alone; what was called, and which place was named last."""
    rows, fake = opened()
    both, alone = ranges_of(RANGES), ranges_of(RANGES[:1])
    assert rows.managed_prefetch(0, 0x300, ctypes.addressof(both), 2) == 0
    assert rows.managed_prefetch(0, 0, ctypes.addressof(both), 2) == 0  # the legacy stream takes no batch
    assert rows.managed_prefetch(0, 0x300, ctypes.addressof(alone), 1) == 0
    assert [fake.fake_moves(which) for which in range(4)] == [single, older, batches, last]
    bad = ranges_of([(0x1000, 4096, 1, 5)])
    assert rows.managed_prefetch(0, 0x300, ctypes.addressof(bad), 1) == INVALID_DEVICE
    assert rows.managed_advise(0, 0x1000, 4096, 3, 2, 0) == 0
    assert fake.fake_moves(3) == (-1 if older else last)  # the older call names the host so


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 5, 0, 1)),
        ({"FAKE_VERSION": "12000"}, (5, 0, 0, 1)),
        ({"FAKE_CONCURRENT": "1"}, (0, 3, 1, 1)),
        ({"FAKE_CONCURRENT": "1", "FAKE_MISSING": "cuMemPrefetchBatchAsync"}, (0, 5, 0, 1)),
    ],
)
def test_managed_memory_is_moved_by_the_calls_that_the_driver_has(library, environment, expected):
    in_child(moves, *expected, LD_LIBRARY_PATH=str(library), **environment)


def discards():
    rows, fake = opened()
    both = ranges_of(RANGES)
    assert rows.managed_discard(0, 0x300, ctypes.addressof(both), 2, False) == 0
    assert rows.managed_discard(0, 0x300, ctypes.addressof(both), 2, True) == 0
    assert rows.managed_discard(0, 0, ctypes.addressof(both), 2, False) == INVALID_VALUE
    assert fake.fake_moves(2) == 2


def no_discards():
    rows, _ = opened()
    both = ranges_of(RANGES)
    assert rows.managed_discard(0, 0x300, ctypes.addressof(both), 2, False) == NOT_SUPPORTED


def test_a_driver_that_cannot_discard_says_so(library):
    in_child(discards, LD_LIBRARY_PATH=str(library))
    in_child(no_discards, LD_LIBRARY_PATH=str(library), FAKE_MISSING="cuMemDiscardBatchAsync")


def copied(rows, fake, stream, pitched=False, locations=(0, 0), flags=0, count=2, order=1, runs=()):
    """The calls that a batch of copies takes, and what the row answers."""
    runs = runs or ((0, *locations, flags, order),)  # as CopyRun of driver/memory.pxd
    words = [word for first, dst, src, flag, kind in runs for word in (first, dst, src, flag | kind << 32)]
    made = (ctypes.c_uint64 * len(words))(*words)
    told = ctypes.addressof(made), len(runs)
    text = ctypes.create_string_buffer(1 << 16)
    numbers = (ctypes.c_size_t * count)(*range(DEVICE, DEVICE + 64 * count, 64))
    rows_of = (ctypes.c_size_t * 18)(*(DEVICE, 32, 5, DEVICE + 64, 16, 4, 8, 3, 2) * 2)
    fake.fake_calls(text)
    if pitched:
        code_and_done = rows.copy_batch_3d(0, stream, ctypes.addressof(rows_of), 2, *told)
    else:
        arrays = [ctypes.addressof(numbers)] * 3
        code_and_done = rows.copy_batch(0, stream, *arrays, count, *told)
    fake.fake_calls(text)
    return code_and_done, text.value.decode().splitlines()


def batches(form, one_by_one):
    rows, fake = opened()
    plain = "on 0x300: order 1, src 0 0, dst 0 0, flags 0"
    assert copied(rows, fake, 0x300) == ((0, 2), [f"{form} 2 {plain}"] if form else [])
    parts = [f"{form} {count} {plain}" for count in (64, 64, 22)]  # of which a copy costs least
    assert copied(rows, fake, 0x300, count=150) == ((0, 150), parts if form else [])
    hinted = copied(rows, fake, 0x300, locations=(1 << 32 | 1, 3 << 32 | 5), flags=1)
    assert hinted[0] == (0, 2)
    assert not form or hinted[1] == [f"{form} 2 on 0x300: order 1, src 3 5, dst 1 1, flags 1"]
    sides = "on 0x300: src 0x1040 16 4, dst 0x1000 32 5, 8 3 2, order 1"
    assert copied(rows, fake, 0x300, pitched=True) == ((0, 2), [f"{form} 3d 2 {sides}"] if form else [])
    for stream in (0, 1, 0x777):  # the legacy default stream, and the stand-in's stream that captures
        assert copied(rows, fake, stream) == ((0, 2), [])
        assert copied(rows, fake, stream, pitched=True) == ((0, 2), [])
        answer, calls = copied(rows, fake, stream, locations=(2 << 32, 0))
        assert answer == (0, 2)
        assert (
            calls
            == [f"13.2 1 on {stream:#x}: order 1, src 0 0, dst 2 0, flags 0".replace("0x0:", "0:")]
            * one_by_one
        )
        for pitched in (False, True):  # which are read in the stream's order there
            assert copied(rows, fake, stream, pitched, order=2) == ((NOT_SUPPORTED, 0), [])
            assert copied(rows, fake, stream, pitched, order=3) == ((0, 2), [])
    for order in (2, 3):
        at_once = [f"{form} 2 {plain}".replace("order 1", f"order {order}")] if form else []
        assert copied(rows, fake, 0x300, order=order) == ((0, 2), at_once)
        assert copied(rows, fake, 0x300, True, order=order)[1] == (
            [f"{form} 3d 2 {sides}".replace("order 1", f"order {order}")] if form else []
        )
    assert (
        copied(rows, fake, 0x300, order=4)[0] == copied(rows, fake, 0x300, order=0)[0] == (INVALID_VALUE, 0)
    )
    if form:
        assert copied(rows, fake, 0x888)[0] == (INVALID_VALUE, 0)
        # The second of the two that begin at 1 counts; the run that 64 is in goes on in the next call.
        runs = (
            (0, 0, 0, 0, 1),
            (1, 0, 0, 0, 2),
            (1, 1 << 32, 0, 0, 3),
            (3, 0, 2 << 32, 1, 1),
            (66, 0, 0, 0, 1),
        )
        assert copied(rows, fake, 0x300, count=67, runs=runs) == (
            (0, 67),
            [
                f"{form} 64 {plain}",
                "from 1: order 3, src 0 0, dst 1 0, flags 0",
                "from 3: order 1, src 2 0, dst 0 0, flags 1",
                f"{form} 3 on 0x300: order 1, src 2 0, dst 0 0, flags 1",
                "from 2: order 1, src 0 0, dst 0 0, flags 0",
            ],
        )


@pytest.mark.parametrize(
    ("version", "missing", "form", "one_by_one"),
    [
        ("13020", "", "13.0", 2),
        ("13000", "", "13.0", 0),
        ("12080", "", "12.8", 0),
        ("13020", "cuMemcpyWithAttributesAsync", "13.0", 0),
    ],
)
def test_batches_take_the_drivers_form_and_what_takes_none_goes_one_by_one(
    library, version, missing, form, one_by_one
):
    in_child(batches, form, one_by_one, LD_LIBRARY_PATH=library, FAKE_VERSION=version, FAKE_MISSING=missing)


def loops():
    rows, fake = opened()
    assert copied(rows, fake, 0x300) == copied(rows, fake, 0x300, order=3) == ((0, 2), [])
    assert copied(rows, fake, 0x300, order=2) == ((NOT_SUPPORTED, 0), [])
    assert copied(rows, fake, 0x300, pitched=True)[1][0].startswith("13.0 3d 2 on 0x300: src 0x1040 16 4")


def test_a_driver_without_batches_is_called_for_each_copy(library):
    in_child(loops, LD_LIBRARY_PATH=library, FAKE_VERSION="13010", FAKE_MISSING="cuMemcpyBatchAsync")


def pool_access():
    rows, _ = opened()
    pool = rows.default_pool(0, 2)[1]
    assert rows.pool_access_get(pool, 0) == (0, 3)
    assert rows.pool_access_get(pool, 1) == (0, 0)
    assert rows.pool_access_set(pool, 1, 1) == 0
    assert rows.pool_access_get(pool, 1) == (0, 1)
    assert rows.pool_access_set(pool, 2, 1) == rows.pool_access_get(pool, 2)[0] == INVALID_DEVICE


def test_who_may_use_the_drivers_pool_is_asked_and_set(library):
    in_child(pool_access, LD_LIBRARY_PATH=library)


def ranges():
    rows, _ = opened()
    assert rows.memory_info(0)[0] == 0
    assert rows.pointer_range(DEVICE)[:3] == (0, 2, 0)
    assert rows.pointer_range(PINNED)[:3] == (0, 1, -1)
    assert rows.pointer_range(PAGEABLE) == (0, 0, -1, 0, 0)
    assert rows.pointer_range(0x18010) == (0, 1, -1, 0x18000, 0x100)  # of a pool


def test_a_copy_node_that_is_changed_again_and_again_asks_once_what_its_memory_is(library):
    in_child(changed_copies, LD_LIBRARY_PATH=library)


def test_what_an_address_is_is_asked_in_one_call(library):
    in_child(ranges, LD_LIBRARY_PATH=library)
