"""Requests that are refused for a limit, their size, others' memory or a backend: the error names the cause,
and its advice, once it is followed, has the same request served.  An error while explaining hides nothing.
"""

import os
import pickle
import re
import resource
import sys
from types import SimpleNamespace

import pytest
from refused_requests import DEVICE, MIB, PLAIN, blocks, on_a_small_device, refused, run

import accelrt
from accelrt.driver import registry
from accelrt.memory import caching, live

pytestmark = [pytest.mark.host, pytest.mark.own_process]
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
@on_a_small_device(ACCELRT_ALLOC_CONF="{conf}")
def test_the_limit_of_the_process(conf):
    accelrt.set_per_process_memory_fraction(0.5)
    alloc(100 * MIB)
    error = refused(60 * MIB)
    assert (error.causes, error.refused_by, error.limit) == (("limit",), "limit", 128 * MIB)
    call = re.search(r"accelrt\.(set_per_process_memory_fraction)\(([\d.]+), (\d)\)", error.advice[0])
    accelrt.set_per_process_memory_fraction(float(call[2]), int(call[3]))
    alloc(60 * MIB)


@on_a_small_device(ACCELRT_ALLOC_CONF="roundup_power2_divisions:2")
def test_rounding_that_is_too_much():
    alloc(96 * MIB)
    error = refused(130 * MIB)
    assert error.causes[0] == "rounding"
    assert (error.requested, error.rounded) == (130 * MIB, 192 * MIB)
    setting = re.search(r"set_allocator_settings\('(.*)'\)", error.advice[0])[1]
    accelrt.memory.set_allocator_settings(setting)
    alloc(130 * MIB)


@on_a_small_device
def test_a_request_that_no_freeing_could_serve():
    for size in (DEVICE + MIB, 1 << 60, 1 << 70):
        error = refused(size)
        assert error.causes == ("huge",)
        assert error.advice[0].startswith("ask for less: 256.00 MiB would be served now")
    alloc(DEVICE)


def used_by_others(listed):
    """Stand-ins: memory that this process takes of the driver itself, and a function in NVML's place."""
    rows = registry.Rows()
    alloc(2 * MIB)
    code, address = rows.memory_alloc(0, 150 * MIB)
    assert code == 0
    if listed:
        other = SimpleNamespace(pid=4242, memory=150 * MIB)
        caching.ask_processes(lambda ordinal: [other, SimpleNamespace(pid=os.getpid(), memory=2 * MIB)])
    error = refused(120 * MIB)
    assert error.causes == ("others",)
    assert error.used_by_others == 150 * MIB
    assert "150.00 MiB of the device are used by others than accelrt" in str(error)
    assert ("process 4242 150.00 MiB" in str(error)) == listed
    assert rows.memory_free(0, address) == 0
    alloc(120 * MIB)


def stack_of(size):
    """The limit of stacks by which a context's grow by so many bytes, about."""
    attributes = accelrt.get_device_properties().attributes
    threads = attributes["multiprocessor_count"] * attributes["max_threads_per_multiprocessor"]
    return 1024 + size // threads // 16 * 16


@on_a_small_device
def test_stacks_of_threads_that_grew():
    accelrt.set_limit("stack_size", stack_of(80 * MIB))
    error = refused(200 * MIB)
    assert error.causes[0] == "stacks"
    assert re.search(r"context keeps \S+ MiB for its threads' stacks, \S+ KiB each", str(error))
    accelrt.set_limit("stack_size", int(re.search(r"set_limit\('stack_size', (\d+)\)", error.advice[0])[1]))
    alloc(200 * MIB)


@on_a_small_device
def test_the_device_is_asked_for_its_stacks_where_it_refused_alone():
    asked, read = [], live.thread_stacks
    live.thread_stacks = lambda ordinal: [asked.append(ordinal), read(ordinal)][1]
    accelrt.set_per_process_memory_fraction(0.5)
    assert refused(160 * MIB).refused_by == "limit"
    assert asked == []
    accelrt.set_per_process_memory_fraction(1.0)
    assert refused(DEVICE + MIB).refused_by == "device"
    assert asked == [0]


@on_a_small_device
def test_what_the_driver_lacks_for_itself_comes_from_idle_memory():
    held = alloc(60 * MIB)
    delete(alloc(140 * MIB))
    wanted = stack_of(120 * MIB)
    assert accelrt.set_limit("stack_size", wanted) == wanted
    assert accelrt.memory_reserved() == 60 * MIB
    delete(held)
    accelrt.empty_cache()
    accelrt.set_limit("stack_size", 1024)
    held = alloc(200 * MIB)
    with pytest.raises(accelrt.OutOfMemoryError, match="limit_set"):
        accelrt.set_limit("stack_size", wanted)
    assert accelrt.get_limit("stack_size") == 1024
    delete(held)


@pytest.mark.parametrize("listed", [True, False], ids=["another process", "another library"])
def test_what_others_use_of_the_device(listed):
    run(used_by_others, "", listed)


@pytest.mark.parametrize("conf", ["", PLAIN], ids=["pages", "plain"])
@on_a_small_device(ACCELRT_ALLOC_CONF="{conf}")
def test_memory_that_is_live(conf):
    held = blocks(40 * MIB, 6)
    error = refused(40 * MIB)
    assert error.causes == ("live",)
    assert error.advice[0] == "free 24.00 MiB of live memory, or ask for 16.00 MiB at most"
    alloc(16 * MIB)
    delete(held.pop())
    alloc(40 * MIB)


@on_a_small_device
def test_nobody_is_told_to_ask_for_nothing():
    held = blocks(64 * MIB, 4)
    error = refused(40 * MIB)
    assert error.advice[0] == "free 40.00 MiB of live memory"
    delete(held.pop())
    alloc(40 * MIB)


@on_a_small_device
def test_a_backend_that_refuses():
    taken = []

    def take(size, device, stream):
        if sum(taken) + size > 64 * MIB:
            raise MemoryError("the pool has 64 MiB")
        taken.append(size)
        return 0x1000000 * len(taken)

    backend = accelrt.memory.CallbackAllocator(take, lambda address, size, device, stream: taken.remove(size))
    accelrt.memory.change_current_allocator(backend)
    first = alloc(40 * MIB)
    error = refused(40 * MIB)
    assert error.causes == ("backend",)
    assert "which refused" in str(error)
    assert str(error.__cause__) == "the pool has 64 MiB"
    assert error.advice[0].startswith("free live memory (40.00 MiB)")
    delete(first)
    delete(alloc(40 * MIB))


def asleep():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        buffer = accelrt.Buffer(120 * MIB)
    buffer.fill(7)
    pool.sleep()
    held = blocks(100 * MIB, 2)
    error = refused(0, lambda size: pool.wake())
    assert error.causes[0] == "sleeping"
    assert (error.sleeping, error.requested, error.pool) == (120 * MIB, 120 * MIB, pool.id)
    assert "it sleeps on, and its contents are kept" in str(error)
    assert "120.00 MiB more are asleep, and not on the device" in str(error)
    assert (error.reserved, error.live, error.idle) == (200 * MIB, 320 * MIB, 0)
    data = accelrt.memory.report_data()
    assert (data["sleeping"], data["idle"]) == (120 * MIB, 0)
    assert "asleep 120.00 MiB" in accelrt.memory.report()
    delete(held.pop())
    pool.wake()
    host = bytearray(16)
    accelrt.copy(host, buffer[:16], blocking=True)
    assert host == bytes([7]) * 16


def test_memory_that_cannot_wake():
    run(asleep)


@on_a_small_device
def test_a_pool_that_could_sleep():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        alloc(120 * MIB)
    alloc(100 * MIB)
    error = refused(100 * MIB)
    assert error.causes == ("sleepable",)
    assert error.advice == (
        f"let it sleep until it is needed: accelrt.memory.sleep({pool.id}) gives 120.00 MiB back",
    )
    accelrt.memory.sleep(pool.id)
    alloc(100 * MIB)


@on_a_small_device
def test_page_locked_memory_that_the_host_does_not_give():
    held = []
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))
    try:
        while True:
            held.append(accelrt.PinnedBuffer(256 * MIB))
    except accelrt.OutOfMemoryError as error:
        text = str(error)
    assert text.startswith("Host out of memory. Tried to allocate 256.00 MiB of page-locked memory")
    assert "limited to 4294967296 bytes of addresses (ulimit -v)" in text
    assert "drop page-locked buffers that are not needed, then accelrt.host_empty_cache()" in text
    del held[-1]
    accelrt.host_empty_cache()
    accelrt.PinnedBuffer(256 * MIB)


def forward(size):
    return alloc(size)


def backward(size):
    return alloc(size)


@on_a_small_device
def test_stacks_and_tags_are_told_while_history_is_recorded():
    accelrt.memory.record_history("state", "state")
    with accelrt.memory.tag("weights"):
        held = [forward(40 * MIB) for _ in range(3)]
    with accelrt.memory.tag("cache"):
        held.append(backward(100 * MIB))
    error = refused(120 * MIB)
    assert error.by_tag == {"weights": 120 * MIB, "cache": 100 * MIB}
    assert "By tag: 'weights' 120.00 MiB, 'cache' 100.00 MiB." in str(error)
    assert [(frames[0]["name"], held, count) for frames, held, count in error.stacks] == [
        ("forward", 120 * MIB, 3),
        ("backward", 100 * MIB, 1),
    ]
    assert re.search(r"120.00 MiB in 3 blocks: forward \(test_refusal_limits.py:\d+\) < ", str(error))
    assert not any("record_history" in advice for advice in error.advice)


@on_a_small_device
def test_an_error_while_explaining_hides_nothing():
    from accelrt.memory import live

    told = []
    live.causes_of = lambda facts: 1 / 0
    accelrt.memory.attach_out_of_memory_observer(lambda *figures: told.append(figures))
    error = refused(DEVICE + MIB)
    assert str(error).endswith("The rest could not be read (ZeroDivisionError: division by zero)")
    assert told == [(0, DEVICE + MIB, DEVICE, DEVICE)]
    live.explained_pinned = None
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with pytest.raises(accelrt.OutOfMemoryError, match=r"ulimit -v.*TypeError"):
        accelrt.PinnedBuffer(4 << 30)
    sys.modules["accelrt.memory.live"] = None
    from accelrt.runtime import init

    init._imported.clear()
    assert "(ModuleNotFoundError: " in str(refused(DEVICE + MIB))


@on_a_small_device
def test_the_error_goes_to_other_processes():
    alloc(40 * MIB)
    error = refused(DEVICE)
    again = pickle.loads(pickle.dumps(error))
    assert (vars(again), str(again)) == (vars(error), str(error))
    for name in ("state", "by_pool", "by_stream", "settings"):
        assert getattr(error, name) is not None, name
