"""What may be asked before the first use of a device, and in a child that was forked after it."""

import pytest
from child import run_code

pytestmark = pytest.mark.own_process

FIGURES = """
import os
import warnings
import accelrt
from accelrt import memory
told = [
    memory.memory_allocated(), memory.memory_allocated(1), memory.memory_allocated("cuda"),
    memory.memory_reserved(), memory.max_memory_allocated(), memory.max_memory_reserved(0),
    memory.memory_stat("allocated_bytes.all.peak"), memory.memory_stat("num_ooms", 0),
]
assert told == [0] * 8, told
assert memory.memory_stats() == memory.memory_stats(1) == {}
assert memory.memory_snapshot() == memory.memory_snapshot(0) == []
assert memory.reset_peak_memory_stats() is None and memory.reset_accumulated_memory_stats(1) is None
assert memory.host_memory_stats() == memory.host_memory_stats_as_nested_dict() == {}
assert memory.memory_stats_as_nested_dict() == memory.memory_stats_as_nested_dict(1) == {}
assert "0 B" in memory.memory_summary()
memory.reset_peak_host_memory_stats(); memory.reset_accumulated_host_memory_stats()
memory.audit(); memory.audit(0); memory.host_audit()
memory.empty_cache(); memory.host_empty_cache()
memory.allocator_settings(); memory.pinned_settings()
assert memory.get_allocator_backend() == "native"
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    told = [memory.memory_cached(), memory.max_memory_cached(0), memory.reset_max_memory_allocated(),
            memory.reset_max_memory_cached()]
assert told == [0, 0, None, None], told
assert not accelrt.is_initialized() and not accelrt._is_in_bad_fork()
assert "libcuda" not in open("/proc/self/maps").read()
"""


@pytest.mark.parametrize("driver", ["host", "cuda", "auto"])
def test_figures_are_0_and_open_nothing(driver):
    run_code(FIGURES, ACCELRT_DRIVER=driver, CUDA_VISIBLE_DEVICES="", ACCELRT_HOST_DEVICES="2")


def test_a_process_that_asked_may_fork_and_use_the_device_in_the_child():
    code = FIGURES + (
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    buffer = accelrt.Buffer(1000)\n"
        "    os._exit(0 if memory.memory_allocated() == 1024 else 1)\n"
        "print(os.waitpid(pid, 0)[1], accelrt.Buffer(10).nbytes)\n"
    )
    assert run_code(code, ACCELRT_DRIVER="host", ACCELRT_HOST_DEVICES="2") == "0 10\n"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("memory_allocated('nonsense')", "InvalidDeviceError"),
        ("memory_stats(1.5)", "InvalidDeviceTypeError"),
        ("memory_snapshot('cuda:x')", "InvalidDeviceError"),
        ("memory_stat('no.such.key')", "KeyError"),
    ],
)
def test_what_names_no_device_and_no_figure_is_still_an_error(call, error):
    code = (
        "from accelrt import memory, is_initialized\n"
        f"try:\n    memory.{call}\n"
        "except Exception as error:\n    print(type(error).__name__, is_initialized())"
    )
    assert run_code(code, ACCELRT_DRIVER="host") == f"{error} False\n"


def test_figures_are_0_in_a_child_forked_after_the_first_use_as_in_torch():
    code = (
        "import accelrt, os\nfrom accelrt import memory\n"
        "held, pinned = accelrt.Buffer(1000), accelrt.PinnedBuffer(1000)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print(accelrt._is_in_bad_fork(), accelrt.is_initialized(), memory.memory_allocated(),\n"
        "          memory.max_memory_reserved(1), memory.memory_stats(0), memory.host_memory_stats(),\n"
        "          memory.memory_snapshot(), memory.memory_stats_as_nested_dict(), flush=True)\n"
        "    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print(accelrt._is_in_bad_fork(), memory.memory_allocated())\n"
    )
    assert run_code(code, ACCELRT_DRIVER="host") == "True False 0 0 {} {} [] {}\nFalse 1024\n"


def test_figures_are_of_the_device_once_it_is_used():
    code = (
        "import accelrt\naccelrt.init()\n"
        "print(accelrt.memory_stats()['allocation.all.current'], len(accelrt.memory_stats()) > 60)\n"
        "b = accelrt.Buffer(5)\nprint(accelrt.memory_allocated())"
    )
    assert run_code(code, ACCELRT_DRIVER="host").split() == ["0", "True", "512"]


THINGS = """
import atexit, os
import numpy as np
import accelrt
def tell():
    for thing in things:
        print(repr(thing))
if not AFTER_FORK:
    atexit.register(lambda: tell())  # runs after what accelrt registers at its first use
accelrt.init(driver="host")
stream, graph, event = accelrt.Stream(1), accelrt.CUDAGraph(), accelrt.Event()
event.record()
pool, buffer = accelrt.MemPool(), accelrt.Buffer(100)
with accelrt.graph(graph, stream=accelrt.Stream()):
    buffer.fill(1)
kept = accelrt.CUDAGraph(keep_graph=True)
with accelrt.graph(kept):
    buffer.fill(1)
things = [
    stream, accelrt.current_stream(), accelrt.default_stream(1), event, accelrt.Event(),
    accelrt.ExternalStream(stream.cuda_stream, device=1), accelrt.stream(stream),
    graph, accelrt.CUDAGraph(), kept, *kept.nodes(), pool, accelrt.use_mem_pool(pool),
    buffer, accelrt.PinnedBuffer(10), accelrt.memory.register_host(np.zeros(100, np.uint8)),
    accelrt.device(1), accelrt.device(-1), buffer.device, stream.device, accelrt.get_device_properties(1),
    accelrt.memory.get_checkpoint_state(pool.id), accelrt.memory.register_free_memory_callback(print),
]
before = [repr(thing) for thing in things]
if AFTER_FORK:
    os.environ["ACCELRT_DRIVER"] = "no such driver"
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if [repr(thing) for thing in things] == before else 1)
        finally:
            os._exit(2)
    print(os.waitpid(pid, 0)[1])
"""


def test_whatever_there_is_has_a_repr_in_a_forked_child():
    assert run_code(f"AFTER_FORK = True\n{THINGS}", ACCELRT_DRIVER="host") == "0\n"


def test_whatever_there_is_has_a_repr_after_the_driver_was_closed():
    assert len(run_code(f"AFTER_FORK = False\n{THINGS}", ACCELRT_DRIVER="host").splitlines()) >= 20
