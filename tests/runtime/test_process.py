"""The order of what happens around forks and at the end of the process, whoever registers when."""

import _thread
import functools
import math
import multiprocessing.process
import os
import re
import signal
import sys
import threading
import time

import pytest
from beside import Caller, Crowd, on_a_thread
from child import in_child, in_fork, in_own_process, run_code, run_python
from interruptions import signals
from other_process import Other, keep, look, make

import accelrt
import accelrt.sharing
from accelrt import nccl
from accelrt.core import process
from accelrt.runtime import init

pytestmark = pytest.mark.own_process


@in_own_process
def test_children_run_forward_and_locks_are_taken_in_reverse():
    accelrt.init()
    process.begin_trace()

    def differs():
        steps = process.traced()
        child = [name for phase, name in steps if phase in ("child", "after in child")]
        return child != [name for _, name, _, phases in process.registered_at_fork() if "child" in phases]

    assert in_fork(differs) == 0
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


@in_own_process
def test_a_rank_decides_and_not_the_time_of_registration():
    ranks = [rank for rank, _ in process.FORK_ORDER]
    for number, rank in enumerate(reversed(ranks)):
        process.call_at_fork(f"test {number:02}", rank, child=int)
    found = [(rank, name) for rank, name, language, _ in process.registered_at_fork() if language == "Python"]
    assert [rank for rank, name in found if name.startswith("test")] == ranks
    assert found == sorted(found, key=lambda entry: (ranks.index(entry[0]), entry[1]))
    process.call_at_fork("test 00", ranks[-1], child=int)  # takes the place of the one before
    again = [(rank, name) for rank, name, *_ in process.registered_at_fork() if name == "test 00"]
    assert again == [(ranks[-1], "test 00")]
    for register, known in (
        (process.call_at_fork, process.FORK_ORDER),
        (process.call_at_exit, process.EXIT_ORDER),
    ):
        with pytest.raises(ValueError, match=f"test: no rank is called 'last'; there are {known[0][0]}, "):
            register("test", "last", int)


def test_threading_is_ready_in_a_child_before_ours_although_it_was_imported_later():
    out = run_code(
        "import os, accelrt, threading\n"
        "from accelrt.core import process\n"
        "def child():\n"
        "    print(threading.main_thread() is threading.current_thread(), flush=True)\n"
        "def fork():\n"
        "    if os.fork() == 0:\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "process.call_at_fork('test', process.FORK_ORDER[0][0], child=child)\n"
        "for _ in range(2):\n"
        "    thread = threading.Thread(target=fork)\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    assert out == "True\nTrue\n"


def test_what_a_python_function_raises_is_told_and_the_others_run():
    out = run_code(
        "import os, sys\n"
        "from accelrt.core import process\n"
        "def say(*words):\n"
        "    os.write(1, (' '.join(words) + '\\n').encode())  # at once: two processes write\n"
        "sys.unraisablehook = lambda told: say('told', str(told.exc_value), told.object.__name__)\n"
        "def function(name, fails):\n"
        "    def function():\n"
        "        say(name)\n"
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
        *("exit a", "told exit a function_exit a", "exit c", "exit b", "told exit b function_exit b")
    ]


def held_elsewhere(lock, function):
    """What the function answers while another thread holds the lock."""
    taken, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            over.wait()

    holder = Caller(hold).begin()
    taken.wait()
    try:
        return function()
    finally:
        over.set()
        holder.result()


def test_a_lock_that_another_thread_holds_at_a_fork_is_free_in_the_child():
    lock = process.ForkSafeLock()

    def take():
        with lock:
            assert not on_a_thread(lambda: lock.acquire(blocking=False))
        assert on_a_thread(lambda: lock.acquire(blocking=False))

    def refused():
        assert not lock.acquire(blocking=False)
        assert not lock.held_here()
        return in_fork(lambda: in_fork(take) or take())

    assert held_elsewhere(lock, refused) == 0
    take()


def test_a_lock_that_the_forking_thread_holds_is_its_own_in_the_child_and_in_the_childs_child():
    lock = process.ForkSafeLock()

    def give_back():
        assert lock.held_here()
        assert lock.acquire()
        lock.release()
        assert not on_a_thread(lambda: lock.acquire(blocking=False))
        lock.release()
        assert on_a_thread(lambda: lock.acquire(blocking=False))

    lock.acquire()
    assert in_fork(lambda: in_fork(give_back) or give_back()) == 0
    assert lock.held_here()
    lock.release()
    assert not lock.held_here()


def test_a_thread_of_a_child_has_no_lock_of_a_thread_that_is_gone():
    lock = process.ForkSafeLock()  # the system gives a new thread the number of the one that is gone

    def take_on_threads():
        seen = on_a_thread(lambda: (lock.held_here(), in_fork(lock.held_here)))
        assert seen == (False, 0)
        assert on_a_thread(lock.acquire)

    assert held_elsewhere(lock, lambda: in_fork(take_on_threads)) == 0


def test_a_lock_that_the_thread_does_not_have_is_not_given_back():
    lock = process.ForkSafeLock()
    text = "the calling thread gives back a lock that it does not have"
    with pytest.raises(RuntimeError, match=text):
        lock.release()
    with pytest.raises(RuntimeError, match=text):
        held_elsewhere(lock, lock.release)
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_lock_is_waited_for_as_long_as_is_said_and_a_signal_ends_the_wait():
    lock = process.ForkSafeLock()
    wrong = [
        (True, -2, ValueError),
        (True, math.nan, ValueError),
        (False, 1, ValueError),
        (True, 1e12, OverflowError),
    ]

    def ring(number, frame):
        raise InterruptedError("it rings")

    def refused():
        assert not lock.acquire(timeout=0)
        assert not lock.acquire(timeout=0.01)
        with pytest.raises(InterruptedError, match="it rings"), signals(ring):
            lock.acquire()
        assert not lock.held_here()

    held_elsewhere(lock, refused)
    for blocking, timeout, kind in wrong:
        with pytest.raises(kind, match="timeout"):
            lock.acquire(blocking, timeout)
    assert lock.acquire(timeout=1)
    lock.release()


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


def test_a_child_whose_atexit_was_emptied_is_placed_by_its_driver():
    out = run_code(
        "import accelrt, atexit, os, sys\n"
        "from accelrt.core import process\n"
        "process.call_at_exit('~', 'callbacks', lambda: print('ended', os.getpid(), flush=True))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    atexit._clear()  # as multiprocessing does from Python 3.13 on\n"
        "    accelrt.init(driver='host')\n"
        "    print('child', os.getpid(), flush=True)\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print('parent', os.getpid(), flush=True)\n"
    )
    (*_, child), (*_, ended), (*_, parent), (*_, last) = map(str.split, out.splitlines())
    assert (child, parent) == (ended, last)
    assert child != parent


@in_own_process
def test_forks_beside_threads_that_register_and_allocate():
    accelrt.init()
    stream = accelrt.Stream()

    def register(thread):
        process.call_at_fork(f"thread {thread}", "streams", int, int, int)
        process.call_at_exit(f"thread {thread}", "tunable", int)

    def allocate():
        accelrt.Buffer(1000).fill(1)

    def run_functions():
        stream.launch_host_func(int)
        stream.synchronize()

    def fork():
        return [in_fork(use_and_fork_again) for _ in range(30)]

    with Crowd(lambda: register(0), lambda: register(1), allocate, run_functions):
        assert on_a_thread(fork) == [0] * 30


def use_and_fork_again():
    """In a child: its tables are whole, it may register, and fork."""
    with pytest.raises(accelrt.ForkedError):
        accelrt.Buffer(1)
    process.call_at_fork("child", "streams", int, int, int)
    return in_fork(lambda: len(process.registered_at_fork()) < 10)


@in_own_process
def test_a_signal_that_comes_as_a_fork_ends_comes_out_of_it_and_leaves_no_lock_taken():
    interrupt = functools.partial(_thread.interrupt_main, signal.SIGINT)
    process.call_at_fork("test", process.FORK_ORDER[0][0], parent=interrupt)
    with pytest.raises(KeyboardInterrupt):
        if os.fork() == 0:
            os._exit(0)
    assert os.wait()[1] == 0
    on_a_thread(lambda: (init.later("accelrt.tunable"), accelrt.init()), timeout=60)


@in_own_process
def test_a_signal_that_comes_before_a_fork_comes_out_of_it_in_the_parent():
    """At the entry of a function of Python's, and in the wait for another thread's initialisation."""
    first, last = process.FORK_ORDER[-1][0], process.FORK_ORDER[0][0]
    process.call_at_fork("test", first, before=functools.partial(_thread.interrupt_main, signal.SIGINT))
    process.call_at_fork("entered", last, before=lambda: None)
    for wait in (lambda fork: fork(), functools.partial(held_elsewhere, init._lock)):
        with pytest.raises(KeyboardInterrupt):
            wait(lambda: os.fork() or os._exit(0))
        assert os.wait()[1] == 0
    on_a_thread(accelrt.init, timeout=60)


class Late(Exception):
    """One that is false, as a collection of errors may be."""

    def __len__(self):
        return 0


HANDLERS_ERRORS = [Late("slow", 7), SystemExit(3), KeyboardInterrupt("enough")]
FIRST = process.FORK_ORDER[-1][0]  # before a fork


class Alarm:
    """A signal's handler that raises what it was made with, and what else a fork is to leave as it was."""

    def __init__(self):
        self.error, self.unraisable, self.hooks = None, [], []
        signal.signal(signal.SIGALRM, self)
        sys.unraisablehook = lambda unraisable: self.unraisable.append(unraisable.exc_value)
        os.register_at_fork(after_in_parent=self.note, after_in_child=self.note)

    def __call__(self, *_):
        raise self.error

    def note(self):
        """Another library's function, which comes behind accelrt's and is Python code."""
        for each in "whole":
            self.hooks.append(each)

    def caught(self, error, wait=lambda fork: fork()):
        """Whether the error itself comes out of a fork, as one that no function of a fork's was cut by."""
        self.error, self.hooks[:] = error, []
        try:
            wait(fork_a_child)
        except BaseException as raised:
            return raised is error and self.hooks == [*"whole"] and self.unraisable == []
        return False


def fork_a_child():
    if os.fork() == 0:
        os._exit(0)


def raise_alarm():
    signal.raise_signal(signal.SIGALRM)
    return len("in the midst of a function of Python's")


@in_own_process
def test_what_a_handler_raises_around_a_fork_comes_out_of_it_as_it_is_in_the_parent():
    """In the wait for another thread's initialisation, and in a function of Python's on either side of it."""
    alarm = Alarm()
    for error in HANDLERS_ERRORS:
        process.call_at_fork("test", FIRST, before=functools.partial(_thread.interrupt_main, signal.SIGALRM))
        assert alarm.caught(error, functools.partial(held_elsewhere, init._lock))
        process.call_at_fork("test", FIRST, before=raise_alarm)
        assert alarm.caught(error)
        process.call_at_fork("test", FIRST, parent=raise_alarm)
        assert alarm.caught(error)
        assert [os.wait()[1] for _ in range(3)] == [0] * 3
        on_a_thread(accelrt.init, timeout=60)


@in_own_process
def test_what_a_handler_raises_in_a_child_comes_out_of_the_fork_there():
    alarm = Alarm()
    process.call_at_fork("test", FIRST, child=raise_alarm)
    for error in HANDLERS_ERRORS:
        parent, caught = os.getpid(), None
        try:
            caught = alarm.caught(error, lambda _: os.fork() or os._exit(1))
        finally:
            if os.getpid() != parent:
                os._exit(0 if caught else 2)
        assert not caught
        assert os.wait()[1] == 0


@in_own_process
def test_what_a_handler_raises_while_something_is_given_back_is_raised_behind_that():
    alarm, released = Alarm(), []

    def prepare(value, calls):
        calls.append(None)
        if len(calls) == 1:
            raise_alarm()
        return (value,)

    for alarm.error in HANDLERS_ERRORS:
        with pytest.raises(type(alarm.error)) as raised:
            process.Releaser(prepare, released.append)(7, [])
            sum(range(1000))
        assert raised.value is alarm.error
    assert released == [7] * len(HANDLERS_ERRORS)


@in_own_process
def test_a_handler_that_forks_while_a_fork_waits_leaves_no_lock_taken():
    taken, over, calls = threading.Event(), threading.Event(), []

    def hold():
        with init._lock:
            taken.set()
            over.wait()

    def handle(*_):
        calls.append(None)
        if len(calls) == 1:  # in the wait of the first fork; the other one comes in that of the second
            over.set()
            fork_a_child()

    signal.signal(signal.SIGALRM, handle)
    process.call_at_fork("test", FIRST, before=functools.partial(_thread.interrupt_main, signal.SIGALRM))
    holder = Caller(hold).begin()
    taken.wait()
    fork_a_child()
    holder.result()
    assert [os.wait()[1] for _ in range(2)] == [0, 0]
    on_a_thread(accelrt.init, timeout=60)


@in_own_process
def test_import_and_fork_at_once():
    """Modules register in C, by import, while another thread forks."""
    names = [
        *("accelrt.graphs.nodes", "accelrt.driver.host.driver", "accelrt.allocator.external.torch_table"),
        *("accelrt.nvml.library", "accelrt.readings.targets"),
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
        assert in_fork(int) == 0
        count += 1
    thread.join()
    known = {name for _, name, *_ in process.registered_at_fork()}
    assert {"driver.host.stream", "allocator.external.torch_table"} <= known


def test_an_exit_beside_daemon_threads_that_go_on():
    done = run_python(
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
    )
    assert done.returncode == 3, done.stderr
    text = done.stdout
    assert 0 < text.index("('exit', 'allocator.pinned.cache')") < text.index("('exit', 'driver.registry')")


class Scene:
    """Everything that registers, in the middle of its work."""

    def __init__(self):
        # The reports are this process's.
        self.other = Other(ACCELRT_LEAKS="0", ACCELRT_PUBLISH="0", ACCELRT_RECORD="")
        self.lent = accelrt.full((1000,), 3, "int8")
        self.other.call(keep, "lent", self.lent)
        self.borrowed = self.other.call(make, "borrowed", 100, 7)
        self.pool = accelrt.MemPool()
        with accelrt.use_mem_pool(self.pool):
            self.asleep = accelrt.full((1000,), 5, "int8")
        self.pool.sleep()
        self.pinned = accelrt.PinnedBuffer(4096)
        self.comms = nccl.init_all([0, 1])
        self.terms = [accelrt.full((10,), 1 + rank, "int32", device=rank) for rank in range(2)]
        self.comms[0].all_reduce(self.terms[0])  # rank 1 has not come
        self.go_on, self.ran = threading.Event(), []
        self.streams = [accelrt.Stream() for _ in range(2)]
        for stream in self.streams:
            stream.launch_host_func(lambda: self.ran.append(self.go_on.wait(300)))
        self.capture_over = threading.Event()
        opened = [threading.Event() for _ in range(2)]
        for each in opened:
            threading.Thread(target=self.capture, args=(each,), daemon=True).start()
        for each in opened:
            assert each.wait(300)

    def capture(self, opened):
        buffer = accelrt.Buffer(1000)
        graph = accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=accelrt.Stream(), capture_error_mode="thread_local"):
            buffer.fill(1)
            opened.set()
            self.capture_over.wait()

    def go_on_in_parent(self):
        """All of it ends as if nobody had forked."""
        self.capture_over.set()
        self.comms[1].all_reduce(self.terms[1])
        for comm in self.comms:
            comm.synchronize()
        self.go_on.set()
        for stream in self.streams:
            stream.synchronize()
        self.pool.wake()
        assert [int(term.numpy()[0]) for term in self.terms] == [3, 3]
        assert self.ran == [True, True]
        assert (self.asleep.numpy() == 5).all()
        assert (self.borrowed.numpy() == 7).all()
        assert (self.other.call(look, "lent") == 3).all()
        for comm in self.comms:
            comm.close()


EVERYTHING = {"ACCELRT_LEAKS": "1", "ACCELRT_PUBLISH": "1", "ACCELRT_NCCL_EXIT_TIMEOUT": "0.2"}


def watched(tmp_path):
    return EVERYTHING | {"ACCELRT_RECORD": str(tmp_path / "trace"), "XDG_RUNTIME_DIR": str(tmp_path)}


def steps_listed(*phases):
    """What the trace of a fork is to have, from the lists."""
    entries = process.registered_at_fork()
    wanted = []
    for phase in phases:
        language = "C" if phase in ("prepare", "parent", "child") else "Python"
        kind = {"before": "prepare", "after in parent": "parent", "after in child": "child"}.get(phase, phase)
        names = [name for _, name, spoken, kinds in entries if spoken == language and kind in kinds]
        wanted += [(phase, name) for name in (reversed(names) if kind == "prepare" else names)]
    return wanted


def test_forks_in_the_middle_of_everything(tmp_path):
    assert "went on" in in_child(fork_in_the_middle, **watched(tmp_path))


def fork_in_the_middle():
    scene = Scene()
    process.begin_trace()
    assert in_fork(lambda: check_child(scene)) == 0
    assert process.traced() == steps_listed("before", "prepare", "parent", "after in parent")
    # Another one, of a thread that is not the main one.
    assert on_a_thread(lambda: in_fork(lambda: check_use(scene))) == 0
    scene.go_on_in_parent()
    print("went on")


def check_child(scene):
    assert process.traced() == steps_listed("before", "prepare", "child", "after in child")
    check_use(scene)
    return in_fork(lambda: check_use(scene))  # a child of the child


def check_use(scene):
    signal.alarm(60)
    assert len(os.listdir("/proc/self/task")) == 1
    uses = (scene.pool.wake, scene.pool.sleep, scene.streams[0].synchronize, scene.lent.share)
    for use in (*uses, lambda: accelrt.Buffer(1)):
        with pytest.raises(accelrt.ForkedError):
            use()
    with pytest.raises(accelrt.ForkedError):
        scene.comms[0].check()
    assert accelrt.sharing.statistics()["handles"] == accelrt.sharing.statistics()["lent"] == 0


ENDS = [
    *(
        "nccl.process_end",
        "runtime.lifetimes",
        "fails",
        "memory.caching",
        "memory.live",
        "memory.history.drain",
        "ran",
        "tools.publish",
    ),
    *("runtime.access", "allocator.pinned.cache", "driver.registry", "allocator.external.external_pool"),
    "memory.caching",
]


def check_ends(out):
    ended = re.search(r"ended (.*)", out)[1]
    assert re.findall(r"'exit', '([^']*)'", ended) == [*ENDS, "~"]
    assert "OSError: in the middle of the exit" in out


def trace_exit(scene):
    def fail():
        raise OSError("in the middle of the exit")

    process.begin_trace()
    process.call_at_exit("fails", "leaks", fail)
    process.call_at_exit("ran", "publishing", lambda: print("ran", scene.ran, flush=True))
    process.call_at_exit("~", "callbacks", lambda: print("ended", process.traced(), flush=True))


def test_the_process_ends_in_the_middle_of_everything(tmp_path):
    out = in_child(end_in_the_middle, **watched(tmp_path))
    assert "ran [True, True]" in out
    check_ends(out)
    assert out.index("ended") < out.index("still live at the end of process")
    segments = accelrt.memory.load_snapshot(tmp_path / "trace")["segments"]
    assert any(block["state"] == "active_allocated" for segment in segments for block in segment["blocks"])
    pid = re.search(r"still live at the end of process (\d+)", out)[1]
    assert not (tmp_path / "accelrt" / f"{pid}.json").exists()  # it publishes no more


def end_in_the_middle():
    scene = Scene()
    trace_exit(scene)
    timer = threading.Timer(0.3, scene.go_on.set)
    timer.daemon = True  # else the exit would wait for it first
    timer.start()


def test_a_child_in_the_middle_of_everything_ends_as_an_interpreter_does(tmp_path):
    out = in_child(end_in_child, **watched(tmp_path))
    check_ends(out)
    assert "went on" in out
    assert "ran []" in out  # its parent's functions are not waited for
    assert out.count("at the end of process") == 1  # the parent's report


def end_in_child():
    scene = Scene()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        # multiprocessing would end its parent's children.
        multiprocessing.process._children.clear()
        trace_exit(scene)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    scene.go_on_in_parent()
    print("went on")
