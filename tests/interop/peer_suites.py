"""Other libraries' own tests on accelrt's memory: how many ran, how many passed, and which did not.

    python tests/interop/peer_suites.py FOLDER [--jobs 8] [--only cupy ...] [--seconds 300] [--json FILE]

FOLDER holds cupy/ (CuPy's sources, of the version that is installed: pyproject.toml and tests/),
array-api-tests/ (of data-apis, with its submodule) and python/ (modules that those import and that may not be
installed).  numba-cuda's tests come with it.  What fails is run again without accelrt, to tell whose failure
it is.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
seconds = 300.0  # for one command; what a suite of pytest's did until then counts
CUPY = (
    *(
        f"cuda_tests/test_{name}.py"
        for name in ("memory", "memory_hook", "pinned_memory", "stream", "graph", "device")
    ),
    "cuda_tests/memory_hooks_tests",
    *(f"core_tests/test_{name}.py" for name in ("dlpack", "raw", "elementwise", "userkernel")),
    *(f"core_tests/test_ndarray_{name}.py" for name in ("cuda_array_interface", "copy_and_view")),
)
NUMBA = (
    *(
        "cudadrv.test_emm_plugins",
        "cudadrv.test_cuda_memory",
        "cudadrv.test_host_alloc",
        "cudadrv.test_pinned",
    ),
    *("cudadrv.test_cuda_ndarray", "cudadrv.test_cuda_array_slicing", "cudadrv.test_array_attr"),
    *("cudadrv.test_managed_alloc", "cudadrv.test_cuda_devicerecord", "cudadrv.test_deallocations"),
    *("cudadrv.test_streams", "cudadrv.test_events", "cudapy.test_cuda_array_interface", "cudapy.test_array"),
)
IPC = ("cudapy.test_ipc",)


def environment(folder, **more):
    paths = [str(ROOT), str(HERE), str(folder / "python"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "ACCELRT_DRIVER": "cuda", **more}


def start(command, cwd, env):
    """What a command printed, both streams, and whether it ran out of time."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode() + f"\nno end after {seconds:.0f} s"
    return done.stdout


class Outcome:
    """Of one suite."""

    def __init__(self):
        self.passed, self.skipped, self.failed = 0, 0, {}  # failed: name -> the last line of its error
        self.allocations = None  # that accelrt served, where it was counted
        self.trouble = ""  # why there are no results
        self.crash = ""  # where Python was when a process of the suite died

    def add(self, other):
        self.passed += other.passed
        self.skipped += other.skipped
        self.failed |= other.failed
        self.allocations = (self.allocations or 0) + (other.allocations or 0)
        self.trouble = self.trouble or other.trouble
        self.crash = self.crash or other.crash

    @property
    def ran(self):
        return self.passed + len(self.failed)


def read_junit(path, outcome):
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        problem = next(
            (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None
        )
        if problem is not None:
            outcome.failed[name] = (problem.get("message") or "").strip().splitlines()[:1]
        elif case.find("skipped") is not None:
            outcome.skipped += 1
        else:
            outcome.passed += 1


def read_lines(said, outcome):
    """What pytest -v said of each test before its time was over."""
    for result, name in re.findall(r"^(?:\[gw\d+\].*?)?\b(PASSED|FAILED|ERROR|SKIPPED) (\S+)", said, re.M):
        if result == "PASSED":
            outcome.passed += 1
        elif result == "SKIPPED":
            outcome.skipped += 1
        else:
            outcome.failed[name] = ["see its own run: the time was over"]
    outcome.trouble = said.splitlines()[-1]


def run_pytest(folder, cwd, library, arguments, jobs, extra=None, plugged=True):
    """A suite of pytest's, with or without the plug-in."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as counts:
        junit = Path(counts, "junit.xml")
        env = environment(folder, PEER_SUITE=library, PEER_COUNTS=counts, **(extra or {}))
        command = [sys.executable, "-m", "pytest", "-v", "-n", str(jobs), "-p", "no:cacheprovider"]
        command += [f"--junitxml={junit}", *(["-p", "peer_plugin"] if plugged else []), *arguments]
        said = start(command, cwd, env)
        if junit.exists():
            read_junit(junit, outcome)
        else:
            read_lines(said, outcome)
        if not outcome.ran:
            outcome.trouble = said[-2000:]
        if "Fatal Python error" in said:
            outcome.crash = "Fatal" + said.partition("Fatal")[2][:3000]
        outcome.allocations = sum(json.loads(path.read_text()) for path in Path(counts).glob("*.json"))
    return outcome


def cupy_suite(folder, jobs, plugged=True, only=None):
    """Tests that want 98 GiB run after the others, alone: beside them they leave nothing to anybody."""
    tests = [f"tests/cupy_tests/{name}" for name in CUPY]

    def run(chosen, jobs):
        return run_pytest(folder, folder / "cupy", "cupy", [*tests, "-k", chosen], jobs, plugged=plugged)

    if only:
        return run(" or ".join(sorted({short_name(name) for name in only})), 1)
    outcome = run("not large_chunk", jobs)
    outcome.add(run("large_chunk", 1))
    return outcome


def short_name(name):
    """A test's function, for pytest's -k."""
    return re.split(r"[\[ ]", name.rpartition("::")[2])[0]


def array_api_suite(library):
    def suite(folder, jobs, plugged=True, only=None):
        extra = {"ARRAY_API_TESTS_MODULE": f"array_api_compat.{library}"}
        arguments = ["array_api_tests/test_dlpack.py", "--max-examples", "200", "--disable-deadline"]
        return run_pytest(
            folder, folder / "array-api-tests", library, arguments, min(jobs, 3), extra, plugged
        )

    return suite


def numba_suite(modules, **settings):
    def suite(folder, jobs, plugged=True, only=None):
        outcome = Outcome()
        manager = "accelrt.interop.numba" if plugged else "default"
        env = environment(folder, NUMBA_CUDA_MEMORY_MANAGER=manager, **settings)
        there = [f"numba.cuda.tests.{name}" for name in modules]
        there = [name for name in there if has_module(name)]

        def run(name):
            return start([sys.executable, "-m", "unittest", "-v", name], folder, env)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            texts = list(pool.map(run, there))
        for name, text in zip(there, texts, strict=True):
            read_unittest(name, text, outcome)
        return outcome

    return suite


def has_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def read_unittest(module, text, outcome):
    count = re.search(r"^Ran (\d+) tests?", text, re.M)
    if count is None:
        outcome.failed[module] = text.strip().splitlines()[-1:]
        return
    blocks = re.findall(r"^(?:FAIL|ERROR): (\S+).*\n-{70}\n((?:.*\n)*?)(?=^[=-]{70}$)", text, re.M)
    for name, trace in blocks:
        errors = [line for line in trace.splitlines() if re.match(r"[\w.]+(:|$)", line)]
        outcome.failed[f"{module}::{name}"] = errors[-1:]
    skipped = re.search(r"skipped=(\d+)", text)
    outcome.skipped += int(skipped[1]) if skipped else 0
    outcome.passed += max(int(count[1]) - len(blocks) - (int(skipped[1]) if skipped else 0), 0)


SUITES = {
    "cupy": cupy_suite,
    "numba": numba_suite(NUMBA),
    "ipc": numba_suite(IPC, ACCELRT_ALLOC_CONF="expandable_segments:False"),
    "array-api-cupy": array_api_suite("cupy"),
    "array-api-torch": array_api_suite("torch"),
}


def run_suite(name, folder, jobs):
    """Prints what became of a suite; a dict for the report."""
    began = time.monotonic()
    outcome = SUITES[name](folder, jobs)
    without = SUITES[name](folder, jobs, plugged=False, only=outcome.failed).failed if outcome.failed else {}
    took = time.monotonic() - began
    print(
        f"{name}: {outcome.ran} ran, {outcome.passed} passed, {len(outcome.failed)} failed, "
        f"{outcome.skipped} skipped, {took:.0f} s"
        + (f", {outcome.allocations} allocations by accelrt" if outcome.allocations else "")
    )
    if outcome.trouble:
        print("   not all, or no results:", outcome.trouble)
    if outcome.crash:
        print("   a process died:", outcome.crash)
    for test, why in sorted(outcome.failed.items()):
        print(
            f"   {'fails without accelrt too' if test in without else 'FAILS'}: {test}: {' '.join(why)[:300]}"
        )
    sys.stdout.flush()
    own = sorted(set(outcome.failed) - set(without))
    return {
        "ran": outcome.ran,
        "passed": outcome.passed,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
        "only_with_accelrt": own,
        "allocations": outcome.allocations,
        "seconds": round(took, 1),
    }


def main():
    global seconds
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=lambda given: Path(given).resolve(), help="the folder of the suites")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--seconds", type=float, default=seconds, help="for one command (300)")
    parser.add_argument("--json", help="a file for the report")
    options = parser.parse_args()
    seconds = options.seconds
    report = {name: run_suite(name, options.folder, options.jobs) for name in options.only}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))
    return 0 if all(suite["ran"] and not suite["only_with_accelrt"] for suite in report.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
