"""Runs a function of a test file, or source, in a process of its own."""

import functools
import os
import signal
import subprocess
import sys
import traceback

import pytest
from fork_server import READ_LATE, ForkServer

SECONDS = 600
AT_START = dict(os.environ)  # before any test changes it
ENDING = """
host = __import__('sys').modules.get('accelrt.driver.host.driver')
if host is not None:
    assert host.calls_beside_ends() == 0, 'a call about a capture that was being ended'
    assert host.children_of_themselves() == 0, 'a graph was a child of itself'
    assert host.continuations_of_others() == 0, 'a capture went on after what is no node of it'
    assert host.frees_under_work() == 0, 'memory was taken away under queued work'
"""
READ_AT_IMPORT = {"ACCELRT_RECORD", "ACCELRT_SANITIZE"}
MOST_SERVERS = 5  # at once: each has some 40 MB
_servers = []  # the one that was asked last at the end


def in_child(function, *arguments, **environment):
    """Calls function(*arguments) in a process of its own and returns what it printed.

    The child has ACCELRT_DRIVER=host, every audit on, and the environment given on top of this process's.  It
    is a fork of an interpreter that has imported numpy, pytest and accelrt (fork_server.py).
    Raises AssertionError with the child's output if it fails.
    """
    environment = child_environment(os.environ, environment)
    done = server_for(environment).run(program(function, arguments), environment, SECONDS)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def server_for(environment, modules="numpy, pytest"):
    """The fork server that has imported modules, and accelrt unless that reads something of the environment,
    and began with what an interpreter reads of the environment at its start.
    """
    own = "" if READ_AT_IMPORT & environment.keys() else ", accelrt"
    preparation = f"import {modules}{own}"
    for server in _servers:
        if server.preparation == preparation and not server.closed and server.suits(environment):
            break
    else:
        late = {name for name in environment if name.startswith(READ_LATE)} - {"PYTHONPATH"}
        own = {name: text for name, text in environment.items() if name not in late}
        server = ForkServer(own, preparation)
    _servers[:] = [each for each in _servers if each is not server and not each.closed]
    while len(_servers) >= MOST_SERVERS:
        _servers.pop(0).close()
    _servers.append(server)
    return server


def in_own_process(function=None, /, *, printing=None, **environment):
    """Makes a test run by in_child, bare or called with the environment, and with what it has to print.

    Fixtures and parameters are answered here: the child gets them by their repr, paths as str, and so does
    the environment where it names one in braces.  The test has the mark own_process.
    """
    if function is None:
        return functools.partial(in_own_process, printing=printing, **environment)

    @pytest.mark.own_process
    @functools.wraps(function)
    def test(**arguments):
        settings = {name: text.format(**arguments) for name, text in environment.items()}
        values = (os.fspath(each) if isinstance(each, os.PathLike) else each for each in arguments.values())
        printed = in_child(function, *values, **settings)
        assert printing is None or printed == printing, printed

    return test


def in_fresh_interpreter(function, *arguments, **environment):
    """As in_child, for what asks about an interpreter's start, or its imports: never a fork."""
    done = run_fresh(function, arguments, child_environment(os.environ, environment))
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def child_environment(inherited, environment):
    settings = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "2"}
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return inherited | settings | environment


def program(function, arguments):
    """Source that calls a function of a module."""
    return f"{named(function)}\nscenario(*{arguments!r})\n{ENDING}"


def named(function):
    """Source that imports a function of a module as scenario, of a test of in_own_process what it wraps."""
    imported = f"from {function.__module__} import {function.__name__} as scenario"
    return f"{imported}\nscenario = getattr(scenario, '__wrapped__', scenario)"


def run_fresh(function, arguments, environment):
    """What is imported is frozen meanwhile, so that a function which collects garbage visits its own only."""
    call = f"import gc; gc.freeze()\ntry: scenario(*{arguments!r})\nfinally: gc.unfreeze()"
    code = f"{named(function)}\n{call}\n{ENDING}"
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def close_servers():
    """Ends the interpreters that children are forks of."""
    while _servers:
        _servers.pop().close()


class Forks:
    """Calls a function of a test file in forks of an interpreter that has imported the file and accelrt.

    For many calls after long imports; nothing is initialised before a fork.
    """

    def __init__(self, function):
        self.function, self.environment = function, child_environment(os.environ, {})
        imports = f"import accelrt, {function.__module__}; assert not accelrt.is_initialized()"
        self.server = ForkServer(self.environment, imports)

    def call(self, *arguments):
        """Calls the function; raises AssertionError with what it printed."""
        done = self.server.run(program(self.function, arguments), self.environment, SECONDS)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"

    def close(self):
        self.server.close()


def run_python(*arguments, cwd=None, **environment):
    """Runs a fresh interpreter, the environment given on top of this process's: the process that ended."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def output_of(*arguments, **how):
    """What run_python's interpreter printed, which has to end well."""
    done = run_python(*arguments, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_code(code, **environment):
    """What source printed in a fresh interpreter."""
    return output_of("-c", code, **environment)


def in_fork(function, seconds=300):
    """The exit status of a child of a fork that calls the function, -signal where one ended it.

    The function answers the status, None for 0; where it raises, that is 1.  A hang ends by a signal.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(seconds)
            status = int(function() or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wrap_host(posing=False):
    """Initialises accelrt on the host device behind the faults table, which counts the calls of each row.

    posing: whether the table passes for the host device's own.
    """
    import accelrt
    from accelrt.driver import testing as faults

    faults.wrap("host", posing)
    accelrt.init(driver="faults")
    return faults


def waits():
    """How often this process has called a row that waits for a device's work; after wrap_host."""
    from accelrt.driver import testing as faults

    counts = faults.call_counts()
    return counts["event_synchronize"] + counts["device_synchronize"] + counts["memory_free"]


def fail_each_call(step, settled, code, mode):
    """Has each call of the driver that a step makes fail in turn; none may leave more than there was.

    settled: callable, the objects that are alive, by kind, once nothing is under way.
    """
    from accelrt.testing import failing_calls

    step()
    step()
    level, codes = settled(), set()
    for call, error in failing_calls(step, code, mode):
        codes |= {error.code} if error else set()
        after = settled()
        more = {kind: after[kind] - level[kind] for kind in after if after[kind] > level[kind]}
        assert not more, f"{mode} {code} at call {call}: leaked {more}"
    step()
    assert codes == {code}
    assert call > 30


def tell_loss(work):
    """Calls a function whose work loses the device, tells the error's name, and ends the process.

    Nothing is given back, for what is on a lost device never comes back.
    """
    import accelrt

    try:
        work()
        accelrt.synchronize()
    except accelrt.CudaError as error:
        print("told", error.name, flush=True)
        os._exit(0)
