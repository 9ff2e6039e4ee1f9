"""Every test runs on the driver that ACCELRT_DRIVER names (the host device by default), with every audit
on, and leaves nothing behind."""

import gc
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest

# Without bytecode each worker compiles every test, and each program what it imports.  Where none may lie
# beside the sources, it lies in the folder of the build.
if sys.dont_write_bytecode:
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(Path(__file__).parents[1] / "build/bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads, which spin, have nothing to do

import hypothesis
from cards import card_libraries, on_cards
from child import close_servers
from compiled import compile_library
from downstream_project import downstream
from kernel_sources import image

__all__ = ["card_libraries", "downstream", "image", "on_cards"]

os.environ.setdefault("ACCELRT_DRIVER", "host")
os.environ.setdefault("ACCELRT_DEBUG", "2")
os.environ.setdefault(
    "ACCELRT_HOST_END_DELAY_US", "50"
)  # other threads' calls come in between, and are counted
ON_HOST = os.environ["ACCELRT_DRIVER"] == "host"

# No test of drawn values fails because the machine is slow.
patient = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("patient", **patient)
hypothesis.settings.load_profile("patient")

# A shell has what it starts in the background ignore interrupts, and so would the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Leaves out what the markers say is for the other device, and long sweeps that were not asked for."""
    other = {"gpu" if ON_HOST else "host"}
    if "full_sweep" not in config.getoption("markexpr"):
        other.add("full_sweep")
    left_out = [item for item in items if any(map(item.get_closest_marker, other))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from skip_without_cpp())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from skip_without_cpp())


def skip_without_cpp():
    """Skips what needs a C++ compiler for the host device's kernels where there is none."""
    from accelrt.errors import CompilerNotFoundError

    try:
        return (yield)
    except CompilerNotFoundError as error:
        if "C++ compiler" not in str(error):
            raise
        reason = str(error)
        traceback.clear_frames(error.__traceback__)
    pytest.skip(reason)  # without the error, whose frames hold what the test had made


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Freezes what pytest has made by now: 200,000 objects that each collection of garbage would visit."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _only_its_own_objects_are_visited():
    """Freezes what the modules before have imported and keep: a test that collects for each of many places
    would visit it each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    close_servers()
    gc.unfreeze()  # so that the interpreter's end finds all there is


def live_things():
    """What the host driver says is alive, less what accelrt keeps for reuse: streams and idle events."""
    from accelrt.testing import live_objects

    counts = live_objects()
    kinds = ("allocations", "bytes", "host_allocations", "graphs", "execs", "arrays", "textures")
    return {kind: counts.get(kind, 0) for kind in kinds}


def misuses():
    """What count_misuses says, also where the rows were called before accelrt was initialised."""
    from accelrt.testing.leaks import read_misuses

    return read_misuses() if "accelrt.driver.host.driver" in sys.modules else {}


def refuse_misuses(request, before, names):
    """Fails where there were more of these than before, unless a mark says that it is on purpose."""
    now = misuses()
    for name in names:
        if name.removeprefix("calls_of_").removeprefix("calls_") not in request.keywords:
            assert now.get(name, 0) == before.get(name, 0), name


@pytest.fixture(autouse=True)
def _nothing_left_behind(request):
    before = misuses()
    yield
    import accelrt

    kinds = "calls_beside_ends", "children_of_themselves", "continuations_of_others", "frees_under_work"
    refuse_misuses(request, before, (*kinds, "marks_in_captures"))
    if "own_process" in request.keywords or not accelrt.is_initialized():
        return
    gc.collect()
    for ordinal in range(accelrt.device_count()):
        accelrt.synchronize(ordinal)
    accelrt.empty_cache()
    accelrt.host_empty_cache()
    for ordinal in range(accelrt.device_count()):
        assert accelrt.memory_allocated(ordinal) == 0
        assert accelrt.memory_reserved(ordinal) == 0
    accelrt.memory.audit()
    accelrt.memory.host_audit()
    assert accelrt.host_memory_stats()["allocated_bytes.current"] == 0
    refuse_misuses(request, before, ("calls_of_gone_streams", "frees_under_work"))
    if ON_HOST:
        assert not any(live_things().values()), live_things()


@pytest.fixture(scope="session")
def pluggable(tmp_path_factory):
    """The path of a library of allocators that keep books (tests/helpers/sources/pluggable.c)."""
    return compile_library("pluggable", tmp_path_factory.mktemp("pluggable"))


@pytest.fixture
def fresh_tunable(tmp_path, monkeypatch):
    """accelrt.tunable as in a fresh process: nothing is known or registered; a test may set its switches.

    Answers a folder of the test's own, which is the current one and gets the files.
    """
    from accelrt.tunable import operation, results, results_file, switches

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(switches, "values", dict(switches.values))
    for module, name in (
        *((results, name) for name in ("_known", "_unwritten", "_validators", "_paths")),
        (operation, "operations"),
    ):
        monkeypatch.setattr(module, name, {})
    for module, name in ((results, "_loaded"), (results_file, "_recorded"), (operation, "_tuning")):
        monkeypatch.setattr(module, name, set())
    for name, value in (("_filename", ""), ("_inserts_ordinal", True), ("_writes_itself", True)):
        monkeypatch.setattr(results, name, value)
    return tmp_path


@pytest.fixture
def full():
    """Blocks of 2 MiB that fill what a limit of 32 MiB allows."""
    import accelrt

    total = accelrt.mem_get_info()[1]
    accelrt.set_per_process_memory_fraction((32 << 20) / total, 0)
    blocks = []
    try:
        blocks += (accelrt.caching_allocator_alloc(2 << 20, 0) for _ in range(16))
        yield blocks
    finally:
        accelrt.set_per_process_memory_fraction(1.0, 0)
        for address in blocks:
            accelrt.caching_allocator_delete(address)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    told = getattr(node, "workeroutput", {}).get("contract", {})
    node.config.contract = [*getattr(node.config, "contract", []), told]


def pytest_terminal_summary(terminalreporter, config):
    told = getattr(config, "contract", [])
    for driver in sorted({driver for each in told for driver in each}):
        filled, total = next(each[driver][:2] for each in told if driver in each)
        names = {name for each in told for name in each.get(driver, (0, 0, []))[2]}
        terminalreporter.write_line(
            f"contract: {driver} fills {filled} of {total} rows, {len(names)} called by the tests"
        )
