"""Two operations at once: the first stops at a call of the driver's, the second runs, the first goes on.

    runner = Runner()
    runner.try_pair(first, second)      # at each of the first's calls, before and behind it

After each trial: both have ended, each with its result or an error that it documents; what the memory holds
is what one of the two orders leaves; the audits find nothing; nothing is left once the objects are gone.
"""

import argparse
import faulthandler
import functools
import gc
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
from child import in_child, wrap_host
from public_operations import IN_STEPS, Scene, operations, pairs

import accelrt
import accelrt.sharing
from accelrt.nccl import collectives, process_end
from accelrt.testing import Interleaver, count_misuses, live_objects

HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
# Codes that say that something was asked of the driver which accelrt should not have asked.
WRONG = {1, 400, 700, 709, 719, 999, -6}
REFUSALS = (accelrt.CudaError, ValueError, RuntimeError, BufferError, TypeError)


class Runner:
    """Tries pairs in this process, on the table "faults"."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.trials = open(self.folder / "trials", "a", buffering=1)  # noqa: SIM115  one for all trials
        self.interleaver = Interleaver()
        self.calls, self.outcomes = {}, {}
        self.contents = {}  # by an operation's name: what the memory holds after it alone
        self.mistakes = count_misuses()

    def begin(self, index, where=""):
        """Writes down which pair comes, or which trial, so that it is known where the process dies."""
        self.index = index
        self.trials.write(f"{index} {where}\n")

    def report(self, text):
        with open(self.folder / "found", "a") as file:
            file.write(text.replace("\n", " ") + "\n")

    # -- one operation alone, and two in order

    def points_of(self, operation):
        """(number, row) of each call that a thread can stop at."""
        if operation.name not in self.calls:
            self.alone(operation)  # what only a first call does is no point of the others
            scene = Scene()
            scene.prepare(operation.needs)
            self.calls[operation.name] = self.interleaver.places(functools.partial(operation.call, scene))
            self.finish(scene)
        return self.calls[operation.name]

    def alone(self, *operations):
        """The kinds of outcome of operations one after the other, and what the memory holds then."""
        scene = Scene()
        scene.prepare(set().union(*(each.needs for each in operations)))
        kinds = [
            kind_of(self.interleaver.run(functools.partial(each.call, scene), which))
            for which, each in enumerate(operations)
        ]
        return kinds, self.finish(scene)

    def orders(self, first, second):
        """The outcomes of both orders, of each the kinds of the two operations and the contents."""
        names = (first.name, second.name)
        if names not in self.outcomes:
            kinds, contents = self.alone(first, second)
            others, other_contents = self.alone(second, first)
            self.outcomes[names] = [(kinds, contents), (others[::-1], other_contents)]
            # The pair the other way round has the same two orders.
            self.outcomes[names[::-1]] = [(others, other_contents), (kinds[::-1], contents)]
        return self.outcomes[names]

    def allowed_contents(self, first, second):
        """What the memory may hold after two operations at once."""
        allowed = [contents for _, contents in self.orders(first, second)]
        # Work on streams of its own is in no order with the other's, so either may be the last to write.
        if "stream" in first.needs | second.needs:
            allowed += [self.contents_alone(first), self.contents_alone(second)]
        return allowed

    def contents_alone(self, operation):
        if operation.name not in self.contents:
            self.contents[operation.name] = self.alone(operation)[1]
        return self.contents[operation.name]

    def leave_all(self, first, second, contents):
        """Whether the memory is as it was made, and each operation alone leaves it so: so do both."""
        return all(
            is_same(held, self.untouched(role))
            and all(is_same(self.contents_alone(each).get(role, held), held) for each in (first, second))
            for role, held in contents.items()
        )

    def untouched(self, role):
        """What a new object holds."""
        if role not in self.contents:
            scene = Scene()
            scene.prepare({role})
            self.contents[role] = self.finish(scene)[role]
        return self.contents[role]

    # -- one trial

    def try_pair(self, first, second, places=None):
        """Stops the first at each place, or at some."""
        for number, row in self.points_of(first):
            for when in ("before", "after"):
                if places is None or (number, when) in places:
                    self.try_point(first, second, number, row, when)

    def try_point(self, first, second, number, row, when):
        where = f"{first} stopped {when} {row} (call {number}), beside {second}"
        self.begin(self.index, where)
        scene = Scene()
        scene.prepare(first.needs | second.needs)
        ended = self.interleaver.run_beside(
            functools.partial(first.call, scene), functools.partial(second.call, scene), number, when, where
        )
        kinds = [kind_of(outcome) for outcome in ended]
        del ended
        self.judge(first, second, where, kinds, self.finish(scene))

    def finish(self, scene):
        """What the memory holds; then nothing is left of the scene."""
        contents = scene.contents()
        self.interleaver.forget()
        scene.end()
        accelrt.memory.audit()
        accelrt.memory.host_audit()
        return contents

    # -- judging

    def judge(self, first, second, where, kinds, contents):
        if (misuses := count_misuses()) != self.mistakes:
            self.report(f"{where}: calls on which a GPU dies: {misuses}")
            self.mistakes = misuses
        for place, kind in enumerate(kinds):
            if is_wrong(kind):  # an error's text names handles, so its name and code are compared
                usual = {named(order[place]) for order, _ in self.orders(first, second)}
                if named(kind) not in usual:
                    self.report(f"{where}: {(first, second)[place]} ended with {kind}; in order: {usual}")
        if "generator" in first.touches | second.touches:
            return  # what is drawn depends on who comes first, and where it lies on who writes last
        if first.name in IN_STEPS or self.leave_all(first, second, contents):
            return
        allowed_contents = self.allowed_contents(first, second)
        for role, held in contents.items():
            allowed = [each[role] for each in allowed_contents if role in each]
            if not is_one_of(held, allowed, any(kind != "done" for kind in kinds)):
                self.report(f"{where}: {role} holds {shown(held)}; in order: {[*map(shown, allowed)]}")

    def check_left(self, where):
        """Whether anything is left once no scene is."""
        # Without a GIL what another thread let go of waits for a collection, and what that held for the next.
        for _ in range(1 if HAS_GIL else 5):
            gc.collect()
        for ordinal in range(accelrt.device_count()):
            accelrt.synchronize(ordinal)
        accelrt.empty_cache()
        accelrt.host_empty_cache()
        counts = live_objects()
        left = {
            kind: counts[kind]
            for kind in ("allocations", "host_allocations", "graphs", "execs")
            if counts[kind]
        }
        left |= {"bytes": accelrt.memory_allocated()} if accelrt.memory_allocated() else {}
        accelrt.sharing.ipc_collect()
        shared = accelrt.sharing.statistics()
        left |= {kind: shared[kind] for kind in ("handles", "lent", "opened", "mapped") if shared[kind]}
        # Of functions over lists, those of one device are kept.
        kept = {comm for comms in collectives._made.values() for comm in comms}
        live = sum(each._hold.has_handle for each in process_end.live if each not in kept)
        left |= {"communicators": live} if live else {}
        if left:
            self.report(f"{where}: left {left}")


def kind_of(outcome):
    if outcome.error is None:
        return "done"
    code = getattr(outcome.error, "code", None)
    return (
        f"{type(outcome.error).__name__} {code if isinstance(code, int) else ''}: {str(outcome.error)[:150]}"
    )


def named(kind):
    """An outcome without the text of its error."""
    return kind.partition(":")[0]


def is_wrong(kind):
    """Whether an outcome is neither a result nor an error that accelrt documents."""
    if kind == "done":
        return False
    name, _, code = named(kind).partition(" ")
    if code.lstrip("-").isdigit():
        return int(code) in WRONG
    return name in (
        "AttributeError",
        "TypeError",
        "KeyError",
        "IndexError",
        "AssertionError",
        "SystemError",
        "NameError",
    )


def is_one_of(held, allowed, refused):
    """Whether each byte is that of one of the orders; where one was refused, anything."""
    if isinstance(held, str):
        return refused or any(isinstance(each, str) for each in allowed)
    arrays = [each for each in allowed if not isinstance(each, str)]
    if refused or not arrays:
        return True
    return bool(np.all(np.any([held == each for each in arrays], axis=0)))


def is_same(one, other):
    return not isinstance(one, str) and not isinstance(other, str) and np.array_equal(one, other)


def shown(held):
    if isinstance(held, str):
        return held
    values, counts = np.unique(held, return_counts=True)
    return dict(zip(values.tolist()[:6], counts.tolist()[:6], strict=True))


def chosen(first, second, points):
    """One place of a pair, the same in each run, so that all pairs together cover the places evenly."""
    number = zlib.crc32(f"{first} {second}".encode())
    point = points[number % len(points)][0]
    return {(point, ("before", "after")[number // 64 % 2])}


def selected(found, part, parts, names):
    """The pairs of one part of all; a pair and the same the other way round are of one part.

    names: where there are any, only pairs of which an operation bears one of them.
    """
    return [
        (one, other)
        for one, other in pairs(found)
        if zlib.crc32(" ".join(sorted((one.name, other.name))).encode()) % parts == part
        and (not names or one.name in names or other.name in names)
    ]


def try_from(start, folder, quick, part, parts, names):
    """In a process of its own: tries the pairs from one on.  Each trial is written down before it begins."""
    wrap_host(posing=True)
    faulthandler.enable()
    accelrt.Buffer(64).free()
    runner, tried = Runner(folder), selected(operations(), part, parts, names)
    gc.collect()
    gc.freeze()
    last = None
    for index, (one, other) in enumerate(tried[start:], start):
        runner.begin(index)
        points = runner.points_of(one)
        if not points:
            continue
        if last is not None and one.name != last:
            runner.check_left(last)
        last = one.name
        runner.try_pair(one, other, chosen(one, other, points) if quick else None)
    runner.check_left(last)
    gc.unfreeze()


def sweep(folder, quick=True, part=0, parts=1, names=()):
    """Tries the pairs of one part, in processes of which another goes on where one dies or is stuck.

    Returns: figures as a dict, and a list of what was found.
    """
    folder.mkdir(exist_ok=True)
    begun, start, found = time.monotonic(), 0, []
    for name in ("found", "trials"):
        (folder / name).write_text("")
    while True:
        try:
            in_child(
                try_from,
                start,
                str(folder),
                quick,
                part,
                parts,
                tuple(names),
                ACCELRT_DEBUG="2",
                ACCELRT_SHARING_TIMEOUT="10",
            )
            break
        except (AssertionError, subprocess.TimeoutExpired) as error:
            written = (folder / "trials").read_text().splitlines()
            if not written:
                raise
            index, _, where = written[-1].partition(" ")
            found.append(f"{where}: the process died or was stuck:\n{str(error)[-3000:]}")
            start = max(int(index), start) + 1
    found += (folder / "found").read_text().splitlines()
    table = operations()
    figures = {
        "operations": len(table),
        "pairs": len(selected(table, part, parts, names)),
        "points": sum(" stopped " in line for line in (folder / "trials").read_text().splitlines()),
        "seconds": round(time.monotonic() - begun, 1),
    }
    return figures, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one place of each pair")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--folder", default=None, help="where to write what was found")
    parser.add_argument("names", nargs="*", help="operations; all where none is named")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        figures, found = sweep(folder, options.quick, options.part, options.parts, options.names)
    print(*found, sep="\n")
    print(figures)
    sys.exit(bool(found))


if __name__ == "__main__":
    from two_at_once import main  # processes import what they run by its module's name

    main()
