"""Opens and closes of memory of processes that are stopped, killed, interrupted, or lack descriptors.

    python tests/helpers/shared_memory_storm.py --opens 1000000

Owners keep a few Arrays and replace them now and then; openers open them, look at the elements, and drop
them.  This process stops and continues, kills and replaces, and interrupts both, and some take all
descriptors that they may have for a moment.  In the end no owner has a loan left, no process a descriptor,
mapping or byte more than it should, and nobody was blocked.
"""

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings

import accelrt
import accelrt.sharing

LIMIT = 1.0  # seconds that an open may take
KEPT = 4  # Arrays of an owner
SIZES = (100, 4096, 300_000, 1_200_000)  # of int32
OUTCOMES = ("opened", "late", "gone", "refused", "interrupted", "wrong")
TROUBLE = ("stopped", "killed owners", "killed openers", "signals", "exhausted")
OFTEN = ("stopped", "signals", "exhausted")
LATE = 0.03  # of those that are stopped, for longer than the limit
SECONDS = 600  # of a turn, and until everything is back: far away


class Interrupted(BaseException):
    """What the signal raises, between any two bytecodes."""


armed = False  # a signal raises, once


def interrupt(number, frame):
    global armed
    if armed:
        armed = False
        raise Interrupted


def kept(has_too_much):
    """What this process has that a storm might leave; threads end and connections close some time later."""
    end = time.monotonic() + SECONDS
    while True:
        told = accelrt.sharing.statistics() | {
            "bytes": accelrt.memory_allocated(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
        }
        if not has_too_much(told) or time.monotonic() > end:
            return told
        time.sleep(0.01)


def owner_has_too_much(told):
    most = 2 + 6 * told["borrowers"]  # lenders of the connections that are kept
    is_lent = any(told[name] for name in ("lent", "bytes", "handles", "unopened"))
    return is_lent or told["descriptors"] >= 80 or told["threads"] > most


def opener_has_too_much(told):
    is_open = any(told[name] for name in ("opened", "mapped"))
    return is_open or told["descriptors"] >= 60 or told["threads"] > 1 + told["owners"]


def exhaust(moment):
    """No descriptor is left for a moment."""
    files = []
    try:
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        time.sleep(moment)
    finally:
        for file in files:
            os.close(file)


def few_descriptors():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))


# --- an owner ---------------------------------------------------------------------------------------------


def own(pipe, seed):
    """Answers "more" by handles, "exhaust", and "end" by what is left."""
    warnings.simplefilter("ignore")
    few_descriptors()
    pipe.send("ready")
    serve(pipe, random.Random(seed), seed * 1000)
    gc.collect()
    pipe.send(kept(owner_has_too_much))
    pipe.recv()


def serve(pipe, chosen, number):
    made = []
    while True:
        message = pipe.recv()
        if message == "more":
            while len(made) >= KEPT:
                made.pop(0)[1].close()
            number += 1
            array = accelrt.full((chosen.choice(SIZES),), number, "int32")
            made.append((array, array.share()))
            pipe.send((number, made[-1][1]))
        elif message == "exhaust":
            exhaust(0.05)
            pipe.send(None)
        else:
            return


# --- an opener --------------------------------------------------------------------------------------------


class Opener:
    """Opens what it is given; counts what came of it."""

    def __init__(self, pipe, seed):
        self.pipe = pipe
        self.chosen = random.Random(seed)
        self.handles = []
        self.wanted = 0  # opens that are left of a turn
        self.found = dict.fromkeys(OUTCOMES, 0)
        self.longest = 0.0
        self.since = 0.0

    def open_one(self):
        number, handle = self.chosen.choice(self.handles)
        self.since = time.monotonic()
        try:
            array = handle.open(timeout=LIMIT)
        except accelrt.PeerTimeoutError:
            self.found["late"] += 1
        except OSError:  # no descriptor
            self.found["refused"] += 1
        except RuntimeError as error:
            self.found["gone" if "cannot be opened" in str(error) else "refused"] += 1
        else:
            self.found["opened"] += 1
            if self.found["opened"] % 16 == 0 and not (array.numpy() == number).all():
                self.found["wrong"] += 1
        self.note_time()

    def note_time(self):
        self.longest = max(self.longest, time.monotonic() - self.since)

    def run(self, opens):
        """Opens some; an interruption counts as one."""
        global armed
        self.wanted = opens
        while self.wanted:
            try:
                armed = True
                self.open_rest()
                armed = False
            except Interrupted:
                self.found["interrupted"] += 1
                self.note_time()

    def open_rest(self):
        # A function of its own: CPython's jump to a loop's begin is outside of the try block around the loop.
        while self.wanted:
            self.wanted -= 1
            self.open_one()


def opens(pipe, seed):
    """Answers (handles, opens, whether to be out of descriptors) by counts, and None by what is left."""
    warnings.simplefilter("ignore")
    few_descriptors()
    signal.signal(signal.SIGUSR1, interrupt)
    pipe.send("ready")
    opener = Opener(pipe, seed)
    while True:
        message = pipe.recv()
        if message is None:
            break
        opener.handles, wanted, lacks = message
        if lacks:
            exhaust(0.01)
        opener.run(wanted)
        pipe.send((opener.found, opener.longest))
    opener.handles = []
    gc.collect()
    left = accelrt.ipc_collect(SECONDS)
    pipe.send(kept(opener_has_too_much) | {"left": left})
    pipe.recv()


# --- the storm --------------------------------------------------------------------------------------------


class Part:
    """A process of the storm."""

    def __init__(self, context, function, seed):
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=function, args=(end, seed), daemon=True)
        self.process.start()
        end.close()
        assert self.pipe.recv() == "ready"
        self.found = {}  # of an opener: how its opens ended

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()

    def finish(self, message):
        self.pipe.send(message)
        assert self.pipe.poll(2 * SECONDS), f"process {self.process.pid} does not end"
        return self.pipe.recv()


class Storm:
    def __init__(self, opens, seed, owners=2, openers=2, a_turn=400):
        self.context = multiprocessing.get_context("spawn")
        self.wanted, self.a_turn = opens, a_turn
        self.chosen = random.Random(seed)
        self.seed = seed
        self.owners = [self.start(own) for _ in range(owners)]
        self.openers = [self.start(globals()["opens"]) for _ in range(openers)]
        self.handles = {owner: [] for owner in self.owners}
        self.total = {}
        self.counts = dict.fromkeys(TROUBLE, 0)
        self.longest = 0.0

    def start(self, function):
        self.seed += 1
        return Part(self.context, function, self.seed)

    def renew(self):
        """Each owner has other memory; one may lack descriptors for a moment, and does in the first turn."""
        for owner in self.owners:
            owner.pipe.send("more")
            number, handle = owner.pipe.recv()
            self.handles[owner] = [*self.handles[owner][1 - KEPT :], (number, handle)]
        if not self.counts["exhausted"] or self.chosen.random() < 0.2:
            owner = self.chosen.choice(self.owners)
            owner.pipe.send("exhaust")
            self.counts["exhausted"] += 1
            return [owner]
        return []

    def turn(self):
        """One round of opens, with trouble."""
        busy = self.renew()
        handles = [pair for owner in self.owners for pair in self.handles[owner]]
        for opener in self.openers:
            lacks = self.chosen.random() < 0.1
            self.counts["exhausted"] += lacks
            opener.pipe.send((handles, self.a_turn, lacks))
        working = list(self.openers)
        since = time.monotonic()
        while working:
            working = [opener for opener in working if not opener.pipe.poll(0)]
            assert time.monotonic() < since + SECONDS, "an opener is blocked"
            self.trouble()
            time.sleep(self.chosen.uniform(0, 0.02))
        for opener in self.openers:
            self.last = found, longest = opener.pipe.recv()
            opener.found = found
            self.longest = max(self.longest, longest)
        for owner in busy:
            owner.pipe.recv()
        self.kill_some()

    def trouble(self):
        """Somebody is stopped for a while, or interrupted."""
        what = self.chosen.random()
        if what < 0.1 or not self.counts["stopped"]:  # in the first turn somebody is
            parts = self.chosen.sample([*self.owners, *self.openers], self.chosen.choice((1, 2)))
            for part in parts:
                os.kill(part.process.pid, signal.SIGSTOP)
            self.counts["stopped"] += len(parts)
            time.sleep(1.5 * LIMIT if self.chosen.random() < LATE else self.chosen.choice((0.005, 0.02, 0.1)))
            for part in parts:
                os.kill(part.process.pid, signal.SIGCONT)
        elif what < 0.6:
            os.kill(self.chosen.choice(self.openers).process.pid, signal.SIGUSR1)
            self.counts["signals"] += 1

    def kill_some(self):
        if self.chosen.random() < 0.03:
            index = self.chosen.randrange(len(self.owners))
            self.owners[index].kill()
            del self.handles[self.owners[index]]
            self.owners[index] = self.start(own)
            self.handles[self.owners[index]] = []
            self.counts["killed owners"] += 1
        if self.chosen.random() < 0.03:
            index = self.chosen.randrange(len(self.openers))
            gone = self.openers[index]
            self.add(gone.found)
            gone.pipe.send(([pair for owner in self.owners for pair in self.handles[owner]], 10**9, False))
            time.sleep(0.05)
            gone.kill()
            self.openers[index] = self.start(globals()["opens"])
            self.counts["killed openers"] += 1

    def add(self, found):
        for name, count in found.items():
            self.total[name] = self.total.get(name, 0) + count

    def done(self):
        return sum(self.total.values()) + sum(sum(opener.found.values()) for opener in self.openers)

    def opened(self):
        return sum(found.get("opened", 0) for found in (self.total, *(each.found for each in self.openers)))

    def has_met_all(self):
        """Whether a good part was opened, and there was trouble of each kind that comes often."""
        return self.opened() > self.wanted // 3 and all(self.counts[kind] for kind in OFTEN)

    def run(self):
        begun = time.monotonic()
        while self.done() < self.wanted or not self.has_met_all():
            assert self.done() < 100 * self.wanted, (self.opened(), self.counts)
            self.turn()
        self.handles.clear()
        for opener in self.openers:
            self.add(opener.found)
        left_of_openers = [opener.finish(None) for opener in self.openers]
        left_of_owners = [owner.finish("end") for owner in self.owners]
        for part in (*self.openers, *self.owners):
            part.pipe.send(None)
            part.process.join(SECONDS)
        return {
            "found": self.total,
            "trouble": self.counts,
            "longest": round(self.longest, 2),
            "seconds": round(time.monotonic() - begun, 1),
            "openers": left_of_openers,
            "owners": left_of_owners,
        }


def judge(told):
    """Raises AssertionError where something is left, or was wrong."""
    assert told["found"]["wrong"] == 0, told
    for left in told["openers"]:
        assert left["left"] == 0, told
        assert not opener_has_too_much(left), told
    for left in told["owners"]:
        assert not owner_has_too_much(left), told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--opens", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    told = Storm(given.opens, given.seed).run()
    json.dump(told, sys.stdout, indent=1)
    print()
    judge(told)


if __name__ == "__main__":
    main()
