"""Runs a function of a test file, or source, in a process of its own."""

import os
import subprocess
import sys

SECONDS = 600


def in_child(function, *arguments, **environment):
    """Calls function(*arguments) in a fresh interpreter and returns what it printed.

    The child has ACCELRT_DRIVER=host, every audit on, and the environment given on top of this process's.
    Raises AssertionError with the child's output if it fails.
    """
    code = (
        f"import gc; from {function.__module__} import {function.__name__} as scenario; "
        f"gc.freeze(); scenario(*{arguments!r})"  # a scenario that collects garbage visits its own only
    )
    settings = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "2"}
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | settings | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
    return done.stdout


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


def wrap_host():
    """Initialises accelrt on the host device behind the faults table, which counts the calls of each row."""
    import accelrt
    from accelrt.driver import registry as faults

    faults.wrap("host")
    accelrt.init(driver="faults")
    return faults


def waits():
    """How often this process has called a row that waits for a device's work; after wrap_host."""
    from accelrt.driver import registry as faults

    counts = faults.call_counts()
    return counts["event_synchronize"] + counts["device_synchronize"] + counts["memory_free"]
