"""Forks while another thread is in the middle of an operation, and has the child do everything.

    figures, found = sweep(folder)      # each operation, stopped at one of its calls of the driver

In the child every operation has to end, on the objects that the parent's thread was at: with a result, or
with an error that says what is wrong.  So must the end of the objects, and that of the process, which say
nothing.
"""

import argparse
import atexit
import functools
import gc
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from child import in_child, wrap_host
from public_operations import MAKERS, Scene, operations
from two_at_once import Runner, chosen, is_wrong, kind_of

import accelrt
from accelrt.testing import Outcome

HOOKED = "CUDAGraph.replay"  # whose hook is int, which takes no graph
SECONDS = 300  # until an operation counts as one that does not end


class Child:
    """What runs in the child of one fork; it writes a line for each operation that is not as it should be."""

    def __init__(self, scene, table, usual, path):
        self.scene, self.table, self.usual = scene, table, usual
        self.file = open(path, "a", buffering=1)  # noqa: SIM115  the child keeps it until its end
        self.step = ""

    def say(self, text):
        self.file.write(json.dumps([self.step, text]) + "\n")

    def begin(self, index, step):
        self.step = step
        self.say(index)
        signal.alarm(SECONDS)

    def run(self, first):
        """Runs all from one on; a line with a number alone says which is under way."""
        sys.unraisablehook = lambda told: self.say(f"told the hook: {told.exc_value!r} of {told.object!r}")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for index in range(first, len(self.table)):
            operation = self.table[index]
            self.begin(index, operation.name)
            try:
                operation.call(self.scene)
            except BaseException as error:
                kind = kind_of(Outcome(error=error))
                if is_wrong(kind) and kind != self.usual[operation.name] and operation.name != HOOKED:
                    self.say(kind)
        self.begin(len(self.table), "the end of the objects")
        self.scene.made.clear()
        gc.collect()
        self.begin(len(self.table) + 1, "the exit")
        atexit._run_exitfuncs()


def fork_beside(scene, table, usual, folder):
    """What was found in children of this moment: list of (step, text).  A child that hangs is followed by
    another one, from the next operation on."""
    found, first = [], 0
    while first <= len(table) + 1:
        path = Path(folder) / f"child-{os.getpid()}-{first}"
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                Child(scene, table, usual, path).run(first)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
        last = max((text for _, text in lines if isinstance(text, int)), default=first)
        found += [(step, text) for step, text in lines if not isinstance(text, int)]
        if status == 0:
            return found
        name = table[last].name if last < len(table) else "the end"
        found.append(
            (name, "does not end" if status == -signal.SIGALRM else f"ended the child with {status}")
        )
        first = last + 1
    return found


def usual_outcomes(runner, table):
    """Operation -> the kind of its outcome alone, in the parent."""
    return {operation.name: runner.alone(operation)[0][0] for operation in table}


def try_all(folder, quick, names):
    """In a process of its own: writes the number of forks, and what was found."""
    wrap_host(posing=True)
    accelrt.Buffer(64).free()
    runner, table = Runner(folder), operations()
    usual, tried, found = usual_outcomes(runner, table), 0, {}
    for operation in table:
        places = runner.points_of(operation) if not names or operation.name in names else []
        for number, row, when in [(*place, when) for place in places for when in ("before", "after")]:
            if quick and (number, when) not in chosen(operation, "fork", places):
                continue
            where = f"{operation} stopped {when} {row} (call {number})"
            for step, text in try_place(runner, operation, number, when, where, table, usual):
                found.setdefault((step, text), where)
            tried += 1
    lines = [f"{step}: {text} (first: {where})" for (step, text), where in found.items()]
    (Path(folder) / "found").write_text(json.dumps({"tried": tried, "found": lines}))


def try_place(runner, operation, number, when, where, table, usual):
    """What was found in children of a fork while the operation stood at one of its calls."""
    scene = Scene()
    scene.prepare(set(MAKERS))
    stopped = functools.partial(operation.call, scene)
    forking = functools.partial(fork_beside, scene, table, usual, runner.folder)
    outcome = runner.interleaver.run_beside(stopped, forking, number, when, where)[1]
    found = outcome.result if outcome.error is None else [("the fork", repr(outcome.error))]
    runner.finish(scene)
    return found


def sweep(folder, quick=True, names=()):
    """The number of forks, and a list of what was found."""
    Path(folder).mkdir(exist_ok=True)
    in_child(try_all, str(folder), quick, tuple(names), ACCELRT_DEBUG="2", ACCELRT_SHARING_TIMEOUT="10")
    answer = json.loads((Path(folder) / "found").read_text())
    return answer["tried"], answer["found"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one place of each operation")
    parser.add_argument("names", nargs="*", help="operations; all where none is named")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tried, found = sweep(folder, options.quick, options.names)
    print(*found, sep="\n")
    print(tried, "forks")
    sys.exit(bool(found))


if __name__ == "__main__":
    from forked_beside import main  # processes import what they run by its module's name

    main()
