"""The host device's settings: how many, how large, how late."""

import time

import pytest
from child import in_own_process, run_code
from device_arrays import bytes_of

import accelrt
from accelrt.driver.registry import Rows

pytestmark = [pytest.mark.own_process, pytest.mark.host]
HOST = {"ACCELRT_DRIVER": "host"}


@pytest.mark.parametrize("count", [1, 3, 64])
@in_own_process(ACCELRT_HOST_DEVICES="{count}")
def test_there_are_as_many_devices_as_set(count):
    assert accelrt.device_count() == count
    accelrt.init()
    assert accelrt.device_count() == count


@in_own_process(ACCELRT_HOST_DEVICES="0")
def test_no_devices_are_not_available():
    assert (accelrt.is_available(), accelrt.device_count()) == (False, 0)
    with pytest.raises((RuntimeError, ValueError), match=r"."):
        accelrt.Stream()


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("4194304", 4 << 20), ("2G", 2 << 30), ("3 gib", 3 << 30), ("1TiB", 1 << 40)],
)
@in_own_process(ACCELRT_HOST_MEMORY="{text}")
def test_memory_is_as_large_as_set(text, size):
    assert tuple(accelrt.mem_get_info()) == (size, size)


def test_untouched_pages_cost_nothing():
    out = run_code(
        "import accelrt, re\nb = accelrt.Buffer(200 << 30)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1])",
        ACCELRT_HOST_MEMORY="256GiB",
        **HOST,
    )
    assert int(out) < 100_000  # not ru_maxrss, in which a child begins with what its parent had


@in_own_process(ACCELRT_HOST_MEMORY="32MiB")
def test_a_full_device_refuses_and_recovers():
    half = accelrt.Buffer(20 << 20)
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        accelrt.Buffer(20 << 20)
    error = caught.value
    assert (error.requested, error.capacity) == (20 << 20, 32 << 20)
    assert (error.reserved, error.live) == (20 << 20, 20 << 20)
    half.free()
    assert accelrt.Buffer(30 << 20).nbytes == 30 << 20


@in_own_process
def test_a_replay_over_freed_memory_loses_the_device_as_on_a_gpu():
    rows = Rows("host")
    rows.open()
    stream, memory = rows.stream_create(0, 1, 0)[1], rows.memory_alloc(0, 4096)[1]
    rows.capture_begin(0, stream, 0)
    rows.fill(0, stream, memory, 1, 1, 4096)
    graph = rows.graph_instantiate(0, rows.capture_end(0, stream)[1], 0)[1]
    rows.memory_free(0, memory)
    assert (rows.graph_launch(0, graph, stream), rows.stream_synchronize(0, stream)) == (0, 700)
    assert (rows.memory_alloc(0, 512)[0], rows.memory_alloc(1, 512)[0]) == (700, 0)


@in_own_process(ACCELRT_HOST_DELAY_US="50000")
def test_delayed_work_is_late_and_still_in_order():
    s, t = accelrt.Stream(), accelrt.Stream()
    a, b = accelrt.Buffer(512, stream=s), accelrt.Buffer(512, stream=t)
    start = time.perf_counter()
    a.fill(1, stream=s)
    e = s.record_event()
    t.wait_event(e)
    accelrt.copy(b, a, stream=t, blocking=False)
    for work in (e, s):
        assert not work.query() or time.perf_counter() - start >= 0.05
    assert (bytes_of(b, t) == 1).all()
    assert time.perf_counter() - start >= 0.15
