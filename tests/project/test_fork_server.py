"""The fork server runs a program as a fresh interpreter does, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import child
import pytest
from child import AT_START, child_environment, in_child, in_own_process
from fork_server import ForkServer
from waiting import wait_until

pytestmark = pytest.mark.own_process
SECONDS = 300


@pytest.fixture(scope="module")
def environment():
    return child_environment(AT_START, {})


@pytest.fixture(scope="module")
def shared(environment):
    with contextlib.closing(ForkServer(environment, "import numpy, pytest")) as server:
        yield server


@pytest.fixture
def mortal(environment):
    with contextlib.closing(ForkServer(environment, "")) as server:
        yield server


def is_alive(pid):
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_line(path):
    """The first line of a file that another process writes."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), path)
    return path.read_text().strip()


def await_end(pid):
    wait_until(lambda: not is_alive(pid), f"process {pid} lives on")


STATE = """
import os, signal, sys, threading
print(sorted(vars(sys.modules["__main__"])), __name__, sys.argv, sys.path, sys.flags)
print(os.getcwd(), sys.stdin.read() == "", sorted(os.listdir("/proc/self/fd")))
print([signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
print(len(os.listdir("/proc/self/task")), threading.current_thread() is threading.main_thread())
import gc
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, sys.gettrace(), sys.stdout.line_buffering)
print(any(name.startswith(("accelrt", "child", "conftest")) for name in sys.modules))
print(sorted(item for item in os.environ.items() if item[0] != "PYTEST_CURRENT_TEST"))
"""


def run_fresh(code, environment, **options):
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def test_a_program_begins_as_in_a_fresh_interpreter(shared, environment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [str(tmp_path), *environment["PYTHONPATH"].split(os.pathsep)]
    changed = environment | {"ACCELRT_DEBUG": "1", "PYTHONPATH": os.pathsep.join(folders)}
    del changed["ACCELRT_DRIVER"]
    forked, fresh = shared.run(STATE, changed, SECONDS), run_fresh(STATE, changed)
    assert forked.returncode == fresh.returncode == 0, forked.stdout
    assert forked.stdout.splitlines() == fresh.stdout.splitlines()


ENDS = {
    "the end": ("print('done')", 0),
    "an exception": ("raise ValueError('a text')", 1),
    "a status": ("import sys; sys.exit(7)", 7),
    "a text as status": ("raise SystemExit('a text')", 1),
    "an interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "a signal": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "an abort": ("import os; os.abort()", -signal.SIGABRT),
    "at once": ("import atexit, os; atexit.register(print, 'never'); os._exit(3)", 3),
    "all of the end": (
        "import atexit, threading, time\n"
        "class Last:\n"
        "    def __init__(self): self.me = self\n"
        "    def __del__(self): print('collected')\n"
        "class Global:\n"
        "    def __del__(self, say=print): say('cleared')\n"
        "last, kept = Last(), Global()\n"
        "del last\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('joined'))).start()",
        0,
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_as_a_fresh_interpreter_does(shared, environment, how):
    code, status = ENDS[how]
    forked, fresh = shared.run(code, environment, SECONDS), run_fresh(code, environment)
    assert forked.returncode == fresh.returncode == status
    assert forked.stdout.splitlines()[-1:] == fresh.stdout.splitlines()[-1:]
    if "exception" not in how and "interrupt" not in how:  # whose tracebacks have the server's frames too
        assert forked.stdout == fresh.stdout


def test_both_outputs_and_those_of_its_children_are_read_to_their_end(shared, environment):
    code = (
        "import os, subprocess, sys\n"
        "print('x' * 300_000, flush=True)\n"
        "print('to stderr', file=sys.stderr, flush=True)\n"
        "if os.fork() == 0:\n"
        "    import time; time.sleep(0.1); os.write(1, b'later'); os._exit(0)\n"
        "subprocess.run(['echo', 'echoed'])"
    )
    done = shared.run(code, environment, SECONDS)
    assert done.stdout == "x" * 300_000 + "\nto stderr\nechoed\nlater"


def test_the_outputs_may_be_read_apart_in_a_folder(shared, environment, tmp_path):
    code = "import os, sys; print('ä', file=sys.stderr); print(os.getcwd()); sys.exit(3)"
    done = shared.run(code, environment, SECONDS, tmp_path, apart=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path}\n", "ä\n")


def test_programs_leave_each_other_nothing(shared, environment):
    first = "import os, sys, numpy; numpy.left = sys.left = 1; os.environ['LEFT'] = '1'"
    second = "import os, sys, numpy; print(hasattr(numpy, 'left'), hasattr(sys, 'left'), os.getenv('LEFT'))"
    assert shared.run(first, environment, SECONDS).returncode == 0
    assert shared.run(second, environment, SECONDS).stdout == "False False None\n"


@pytest.mark.parametrize(
    "name",
    ["LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_ARENA_MAX", "OPENBLAS_NUM_THREADS", "PYTHONMALLOC", "TZ"],
)
def test_what_is_read_at_the_start_needs_a_fresh_interpreter(shared, environment, name):
    assert not shared.suits(environment | {name: "another"})


def test_what_is_read_later_does_not(shared, environment):
    assert shared.suits(environment)
    assert shared.suits(environment | {"ACCELRT_DEBUG": "0", "CUDA_VISIBLE_DEVICES": ""})
    assert shared.suits({name: value for name, value in environment.items() if name != "ACCELRT_DRIVER"})
    assert not shared.suits({name: value for name, value in environment.items() if name != "PATH"})


def test_a_program_that_takes_too_long_is_killed(mortal, environment, tmp_path):
    path = str(tmp_path / "pid")
    code = f"import os, time; open({path!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    mortal.run("", environment, SECONDS)  # so that it has started
    with pytest.raises(subprocess.TimeoutExpired):
        mortal.run(code, environment, 2)
    await_end(int(await_line(tmp_path / "pid")))
    assert mortal.closed
    assert mortal.process.returncode == 0


def test_an_output_that_is_kept_open_too_long_is_an_error(mortal, environment, tmp_path):
    code = (
        "import os, signal\n"
        "if (child := os.fork()) == 0:\n"
        "    signal.alarm(60)\n"
        "    signal.pause()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{child}}\\n')"
    )
    mortal.run("", environment, SECONDS)  # so that it has started
    with pytest.raises(subprocess.TimeoutExpired):
        mortal.run(code, environment, 2)
    os.kill(int(await_line(tmp_path / "pid")), signal.SIGKILL)


NO_PIDFDS = """
import errno, os
def refuse(pid):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
os.pidfd_open = refuse
"""


def test_a_system_without_pidfds_still_tells_of_ends(environment):
    with contextlib.closing(ForkServer(environment, NO_PIDFDS)) as server:
        done = server.run("import time; time.sleep(0.02); raise SystemExit(7)", environment, SECONDS)
        assert done.returncode == 7
        with pytest.raises(subprocess.TimeoutExpired):
            server.run("import time; time.sleep(600)", environment, 1)
    assert server.process.returncode == 0


def test_a_server_that_dies_is_told_of(mortal, environment):
    with pytest.raises(AssertionError, match="the fork server ended with status -9"):
        mortal.run("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", environment, SECONDS)
    assert mortal.closed


def test_a_server_that_cannot_be_prepared_says_why(environment):
    with contextlib.closing(ForkServer(environment, "import no_such_module")) as server:
        server.process.wait()
        with pytest.raises(AssertionError, match=r"ended with status 1(.|\n)*No module named 'no_such"):
            server.run("print()", environment, SECONDS)


def kill_server():
    os.kill(os.getppid(), signal.SIGKILL)


def say_hello():
    print("hello")


def test_the_next_child_gets_another_server():
    with pytest.raises(AssertionError, match="the fork server ended"):
        in_child(kill_server)
    assert in_child(say_hello) == "hello\n"
    assert not child.server_for(child_environment(os.environ, {})).closed


CLIENT = """
import os
from fork_server import ForkServer
code = "import os, time; open({path!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}}\\\\n'); time.sleep(600)"
ForkServer(os.environ, "").run(code, os.environ, 600)
"""


def test_a_server_and_its_program_end_with_their_client(environment, tmp_path):
    path = tmp_path / "pids"
    code = CLIENT.format(path=str(path))
    client = subprocess.Popen([sys.executable, "-P", "-c", code], env=environment)
    pids = await_line(path).split()
    assert all(map(is_alive, pids))
    client.kill()
    client.wait()
    for pid in pids:
        await_end(pid)


def test_a_closed_server_leaves_no_process_and_no_descriptor(environment):
    before = set(os.listdir("/proc/self/fd"))
    with contextlib.closing(ForkServer(environment, "")) as server:
        assert server.run("print(1)", environment, SECONDS).stdout == "1\n"
        assert server.run("print(2)", environment, SECONDS).stdout == "2\n"
    assert not is_alive(server.process.pid)
    server.close()
    assert set(os.listdir("/proc/self/fd")) <= before


@in_own_process(MARK="{mark}")
def fail_with(mark, folder):
    assert os.environ["MARK"] == mark, "the environment"
    assert not mark, f"{mark} in {folder}"


def test_a_test_in_a_process_of_its_own_gets_its_arguments_and_fails_as_its_child_does(tmp_path):
    fail_with(mark="", folder=tmp_path)
    with pytest.raises(AssertionError, match=f"AssertionError: told in {tmp_path}"):
        fail_with(mark="told", folder=tmp_path)
