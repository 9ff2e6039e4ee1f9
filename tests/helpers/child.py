"""Runs a function of a test file, or source, in a process of its own."""

import json
import os
import signal
import subprocess
import sys

SECONDS = 600


def interpreter(function, then, environment):
    """Arguments of Popen: an interpreter that imports a function as scenario, and then runs a line of code.

    What it imported is frozen meanwhile, so that a scenario which collects garbage visits its own only.
    """
    code = (
        f"import gc; from {function.__module__} import {function.__name__} as scenario\n"
        f"gc.freeze()\n{then}\n"
        "host = __import__('sys').modules.get('accelrt.driver.host.driver')\n"
        "if host is not None:\n"
        "    assert host.calls_beside_ends() == 0, 'a call about a capture that was being ended'\n"
        "    assert host.frees_under_work() == 0, 'memory was taken away under queued work'"
    )
    settings = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "2"}
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return {"args": [sys.executable, "-P", "-c", code], "env": os.environ | settings | environment}


def in_child(function, *arguments, **environment):
    """Calls function(*arguments) in a fresh interpreter and returns what it printed.

    The child has ACCELRT_DRIVER=host, every audit on, and the environment given on top of this process's.
    Raises AssertionError with the child's output if it fails.
    """
    done = subprocess.run(
        **interpreter(function, f"try: scenario(*{arguments!r})\nfinally: gc.unfreeze()", environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
    return done.stdout


class Forks:
    """An interpreter that has imported a function's module, and calls the function in a fork for each call.

    For many calls after long imports.  The environment is in_child's; nothing is initialised before the
    fork, which ends as an interpreter does, but that what was imported stays frozen: to collect all modules
    once more for each call takes far longer than the call.
    """

    def __init__(self, function, folder):
        self.output = str(folder / "output")
        self.process = subprocess.Popen(
            **interpreter(function, "import child; child.serve(scenario)", {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments):
        """Calls the function with arguments that JSON can say; raises AssertionError with what it printed."""
        print(json.dumps([arguments, self.output]), file=self.process.stdin, flush=True)
        status = self.process.stdout.readline().strip()
        with open(self.output, errors="replace") as file:
            assert status == "0", f"exit status {status}\n{file.read()}"

    def close(self):
        self.process.communicate()
        assert self.process.returncode == 0


def serve(function):
    import accelrt

    assert not accelrt.is_initialized()
    for line in sys.stdin:
        arguments, path = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            function(*arguments)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run_code(code, **environment):
    """Runs source in a fresh interpreter, the environment given on top of this process's: what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


def settle():
    """Waits for all work, and gives back what it kept.

    What goes may leave more behind work of its own: a graph its kernels, and a kernel its module.
    """
    import gc

    import accelrt

    for _ in range(3):
        gc.collect()
        for ordinal in range(accelrt.device_count()):
            accelrt.synchronize(ordinal)
        accelrt.empty_cache()
