"""The host device's settings: how many, how large, how late."""

import pytest
from child import run_code

pytestmark = [pytest.mark.own_process, pytest.mark.host]
HOST = {"ACCELRT_DRIVER": "host"}


@pytest.mark.parametrize("count", ["1", "3", "64"])
def test_there_are_as_many_devices_as_set(count):
    code = "import accelrt\nprint(accelrt.device_count())\naccelrt.init()\nprint(accelrt.device_count())"
    assert run_code(code, ACCELRT_HOST_DEVICES=count, **HOST).split() == [count, count]


def test_no_devices_are_not_available():
    out = run_code(
        "import accelrt\nprint(accelrt.is_available(), accelrt.device_count())\n"
        "try:\n    accelrt.Stream()\nexcept (RuntimeError, ValueError) as error:\n    print(error)",
        ACCELRT_HOST_DEVICES="0",
        **HOST,
    )
    assert out.split("\n")[0] == "False 0"
    assert out.split("\n")[1]


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("4194304", 4 << 20), ("2G", 2 << 30), ("3 gib", 3 << 30), ("1TiB", 1 << 40)],
)
def test_memory_is_as_large_as_set(text, size):
    code = "import accelrt\nprint(*accelrt.mem_get_info())"
    assert run_code(code, ACCELRT_HOST_MEMORY=text, **HOST).split() == [str(size), str(size)]


def test_untouched_pages_cost_nothing():
    out = run_code(
        "import accelrt, re\nb = accelrt.Buffer(200 << 30)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1])",
        ACCELRT_HOST_MEMORY="256GiB",
        **HOST,
    )
    assert int(out) < 100_000  # not ru_maxrss, in which a child begins with what its parent had


def test_a_full_device_refuses_and_recovers():
    out = run_code(
        "import accelrt\n"
        "half = accelrt.Buffer(20 << 20)\n"
        "try:\n    accelrt.Buffer(20 << 20)\n"
        "except accelrt.OutOfMemoryError as error:\n"
        "    print(error.requested == 20 << 20, error.capacity == 32 << 20)\n"
        "    print(error.reserved == 20 << 20, error.live == 20 << 20)\n"
        "del half\nprint(accelrt.Buffer(30 << 20).nbytes == 30 << 20)",
        ACCELRT_HOST_MEMORY="32MiB",
        **HOST,
    )
    assert out.split() == ["True"] * 5


def test_a_replay_over_freed_memory_loses_the_device_as_on_a_gpu():
    out = run_code(
        "from accelrt.driver.registry import Rows\n"
        "rows = Rows('host'); rows.open()\n"
        "stream = rows.stream_create(0, 1, 0)[1]; memory = rows.memory_alloc(0, 4096)[1]\n"
        "rows.capture_begin(0, stream, 0); rows.fill(0, stream, memory, 1, 1, 4096)\n"
        "graph = rows.graph_instantiate(0, rows.capture_end(0, stream)[1], 0)[1]\n"
        "rows.memory_free(0, memory)\n"
        "print(rows.graph_launch(0, graph, stream), rows.stream_synchronize(0, stream))\n"
        "print(rows.memory_alloc(0, 512)[0], rows.memory_alloc(1, 512)[0])",
        **HOST,
    )
    assert out.split() == ["0", "700", "700", "0"]


def test_delayed_work_is_late_and_still_in_order():
    out = run_code(
        "import accelrt, numpy as np, time\n"
        "s, t = accelrt.Stream(), accelrt.Stream()\n"
        "a, b = accelrt.Buffer(512, stream=s), accelrt.Buffer(512, stream=t)\n"
        "start = time.perf_counter()\n"
        "a.fill(1, stream=s); e = s.record_event(); t.wait_event(e)\n"
        "accelrt.copy(b, a, stream=t, blocking=False)\n"
        "print(e.query(), s.query())\n"
        "out = np.zeros(512, np.uint8); b.copy_to(out, stream=t)\n"
        "print((out == 1).all(), time.perf_counter() - start >= 0.15)",
        ACCELRT_HOST_DELAY_US="50000",
        **HOST,
    )
    assert out.split() == ["False", "False", "True", "True"]
