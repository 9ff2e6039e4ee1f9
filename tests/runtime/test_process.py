"""The order of what happens around forks and at the end of the process, whoever registers when."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from child import in_child, run_code

import accelrt
from accelrt.core import process

pytestmark = pytest.mark.own_process


def forked(function):
    """Runs a function in a child of a fork; its exit status, and -signal where one ended it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = function() or 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_children_run_forward_and_locks_are_taken_in_reverse():
    in_child(check_order)


def check_order():
    accelrt.init()
    process.begin_trace()
    if os.fork() == 0:
        steps = process.traced()
        child = [name for phase, name in steps if phase in ("child", "after in child")]
        listed = [name for _, name, _, phases in process.registered_at_fork() if "child" in phases]
        os._exit(child != listed)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    entries = process.registered_at_fork()
    steps = process.traced()
    for language, before, after in (("Python", "before", "after in parent"), ("C", "prepare", "parent")):
        here = [entry for entry in entries if entry[2] == language]
        taken = [name for phase, name in steps if phase == before]
        given_back = [name for phase, name in steps if phase == after]
        assert taken == [name for _, name, _, phases in reversed(here) if "prepare" in phases] != []
        assert given_back == [name for _, name, _, phases in here if "parent" in phases] != []
    # Python's part is outside of C's.
    assert [phase for phase, _ in steps] == sorted(
        [phase for phase, _ in steps], key=["before", "prepare", "parent", "after in parent"].index
    )


def test_a_rank_decides_and_not_the_time_of_registration():
    in_child(check_ranks)


def check_ranks():
    ranks = [rank for rank, _ in process.FORK_ORDER]
    for number, rank in enumerate(reversed(ranks)):
        process.call_at_fork(f"test {number:02}", rank, child=int)
    found = [(rank, name) for rank, name, language, _ in process.registered_at_fork() if language == "Python"]
    assert [rank for rank, name in found if name.startswith("test")] == ranks
    assert found == sorted(found, key=lambda entry: (ranks.index(entry[0]), entry[1]))
    process.call_at_fork("test 00", ranks[0], child=int)  # takes the place of the one before
    again = [(rank, name) for rank, name, *_ in process.registered_at_fork() if name == "test 00"]
    assert again == [(ranks[0], "test 00")]
    for register, known in (
        (process.call_at_fork, process.FORK_ORDER),
        (process.call_at_exit, process.EXIT_ORDER),
    ):
        with pytest.raises(ValueError, match=f"test: no rank is called 'last'; there are {known[0][0]}, "):
            register("test", "last", int)


def test_what_a_python_function_raises_is_told_and_the_others_run():
    out = run_code(
        "import os, sys\n"
        "from accelrt.core import process\n"
        "sys.unraisablehook = lambda told: print('told', told.exc_value, told.object.__name__, flush=True)\n"
        "def function(name, fails):\n"
        "    def function():\n"
        "        print(name, flush=True)\n"
        "        if fails:\n"
        "            raise fails(name)\n"
        "    function.__name__ = f'function_{name}'\n"
        "    return function\n"
        "process.call_at_fork('a', 'devices', *(function(f'a {n}', OSError) for n in range(3)))\n"
        "process.call_at_fork('b', 'streams', *(function(f'b {n}', None) for n in range(3)))\n"
        "process.call_at_exit('a', 'collectives', function('exit a', KeyboardInterrupt))\n"
        "process.call_at_exit('b', 'callbacks', function('exit b', SystemExit))\n"
        "process.call_at_exit('c', 'race detector', function('exit c', None))\n"
        "if os.fork() == 0:\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    lines = out.splitlines()
    assert lines[0:3] == ["b 0", "a 0", "told a 0 function_a 0"]
    around = lines[3:-5]
    assert [line for line in around if "1" in line] == ["a 1", "told a 1 function_a 1", "b 1"]
    assert [line for line in around if "2" in line] == ["a 2", "told a 2 function_a 2", "b 2"]
    assert lines[-5:] == [
        *("exit a", "told exit a function_exit a", "exit c", "exit b", "told exit b function_exit b"),
    ]


def test_an_exit_function_runs_once_and_one_that_is_registered_late_takes_its_place():
    out = run_code(
        "import atexit\n"
        "from accelrt.core import process\n"
        "atexit.register(print, 'registered before')\n"
        "def late():\n"
        "    process.call_at_exit('early rank', 'collectives', lambda: print('early rank'))\n"
        "    print('middle')\n"
        "process.call_at_exit('last', 'callbacks', lambda: print('last'))\n"
        "process.call_at_exit('middle', 'leaks', late)\n"
        "process.come_first_at_exit()\n"
        "process.come_first_at_exit()\n"
        "atexit.register(print, 'registered after')\n"
        "process.call_at_exit('first', 'host functions', lambda: print('first'))\n"
    )
    wanted = ["registered after", "first", "middle", "early rank", "last", "registered before"]
    assert out.splitlines() == wanted


def test_forks_beside_threads_that_register_and_allocate():
    in_child(fork_beside_threads)


def fork_beside_threads():
    accelrt.init()
    over = threading.Event()

    def register(thread):
        while not over.is_set():
            process.call_at_fork(f"thread {thread}", "streams", int, int, int)
            process.call_at_exit(f"thread {thread}", "tunable", int)

    def allocate():
        while not over.is_set():
            accelrt.Buffer(1000).fill(1)

    def run_functions():
        stream = accelrt.Stream()
        while not over.is_set():
            stream.launch_host_func(int)
            stream.synchronize()

    threads = [threading.Thread(target=register, args=(number,)) for number in range(2)]
    threads += [threading.Thread(target=work) for work in (allocate, run_functions)]
    for thread in threads:
        thread.start()
    statuses = []

    def fork():
        for _ in range(30):
            statuses.append(forked(lambda: signal.alarm(60) or use_and_fork_again()))

    forking = threading.Thread(target=fork)
    forking.start()
    forking.join()
    over.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 30


def use_and_fork_again():
    """In a child: its tables are whole, it may register, and fork."""
    with pytest.raises(accelrt.ForkedError):
        accelrt.Buffer(1)
    process.call_at_fork("child", "streams", int, int, int)
    return forked(lambda: len(process.registered_at_fork()) < 10)


def test_import_and_fork_at_once():
    in_child(import_beside_forks)


def import_beside_forks():
    """Modules register in C, by import, while another thread forks."""
    names = [
        *("accelrt.graphs.nogil_graph", "accelrt.driver.host.driver", "accelrt.memory.backends.torch_hooks"),
        *("accelrt.nvml.library", "accelrt.readings.nvml_calls"),
    ]
    imported = threading.Event()

    def load():
        for name in names:
            __import__(name)
            time.sleep(0.001)
        imported.set()

    thread = threading.Thread(target=load)
    thread.start()
    count = 0
    while not imported.is_set() or count < 10:
        assert forked(lambda: signal.alarm(60) and 0) == 0
        count += 1
    thread.join()
    known = {name for _, name, *_ in process.registered_at_fork()}
    assert {"driver.host.stream", "memory.backends.torch_hooks"} <= known


def test_an_exit_beside_daemon_threads_that_go_on():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import accelrt, sys, threading\n"
            "accelrt.init(driver='host')\n"
            "def work():\n"
            "    while True:\n"
            "        accelrt.Buffer(1000).fill(1)\n"
            "for _ in range(3):\n"
            "    threading.Thread(target=work, daemon=True).start()\n"
            "from accelrt.core import process\n"
            "process.begin_trace()\n"
            "process.call_at_exit('~', 'callbacks', lambda: print(process.traced(), flush=True))\n"
            "sys.exit(3)\n",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    text = done.stdout
    assert 0 < text.index("('exit', 'memory.settings.apply')") < text.index("('exit', 'driver.registry')")
