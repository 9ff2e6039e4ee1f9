"""Random work for as long as it is told, in threads and processes, after which nothing may have grown.

    python benchmarks/soak.py [--seconds 3600] [--every 60] [--processes 2] [--threads 4] [--seed 1] [--json]

Each process has so many threads, which allocate blocks of random sizes, use them on streams that die, capture
and replay graphs, copy through page-locked memory, have pools sleep and wake, ask for too much, and share
arrays with the next process and with processes that end (soak_steps.py).  Each step checks what it computed.
At intervals all threads of all processes let go of what they hold, caches are emptied, and each process
counts what is left: its memory (RSS), open files, handles of the host device, threads, and bytes that are
live and reserved.  What was counted is printed.  The exit status is 1 where a step failed, where a byte is
live at a rest, or where something has grown after a warm-up, which is the first quarter: what is least in
the last third of the time after it is more than what was most in the first third, and the allowance.
"""

import argparse
import json
import multiprocessing
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

from soak_figures import LEAST, Figures, figures, growth

REST_SECONDS = 120  # that a process may take to come to rest
MIB = 1 << 20


class Crew:
    """The threads of one process: they work, rest together, and go on.

    Arguments:
        count: int, threads.
        seed: int, of their choices.
        partner: where they send arrays to, or None.
    """

    def __init__(self, count: int, seed: int, partner: Any) -> None:
        from soak_steps import Walker

        self.walkers = [Walker(number, seed + number, partner) for number in range(count)]
        self.meeting = threading.Barrier(
            count + 1
        )  # of the threads and the main thread, as a rest begins and ends
        self.wanted = self.over = False
        self.errors: list[str] = []
        self.threads = [threading.Thread(target=self._work, args=(each,)) for each in self.walkers]
        for each in self.threads:
            each.start()

    def _work(self, walker: Any) -> None:
        try:
            while not self.over:
                walker.take()
                while not self.wanted:
                    walker.step()
                walker.drop()
                self.meeting.wait()
                self.meeting.wait()
        except threading.BrokenBarrierError:
            pass  # all end, or another thread has failed
        except BaseException:
            self.errors.append(traceback.format_exc())
            self.wanted = self.over = True
            self.meeting.abort()

    def rest(self) -> None:
        """Returns once all threads hold nothing, or one has failed."""
        self.wanted = True
        self._meet("the threads did not come to rest")

    def go_on(self) -> None:
        self.wanted = False
        self._meet("the threads do not go on")

    def _meet(self, what: str) -> None:
        try:
            self.meeting.wait(REST_SECONDS)
        except threading.BrokenBarrierError:
            raise RuntimeError("\n".join(self.errors) or f"{what} within {REST_SECONDS} s") from None

    def end(self) -> None:
        self.wanted = self.over = True
        self.meeting.abort()
        for each in self.threads:
            each.join(REST_SECONDS)

    def counts(self) -> Counter[str]:
        return sum((each.counts for each in self.walkers), Counter())


def work(number: int, threads: int, seed: int, pipe: Any, queues: Any) -> None:
    """A process's main thread: does what the first process says through a pipe.

    Arguments:
        queues: of the arrays that it gets, its answers to them, what it sends, and the answers to that; None
            where there is one process alone.
    """
    from soak_steps import Partner, serve

    import accelrt

    if not accelrt.is_available():
        accelrt.init(driver="host")
    stop, server = threading.Event(), None
    if queues is not None:
        server = threading.Thread(target=serve, args=(*queues[:2], stop))
        server.start()
    crew = Crew(threads, seed + 1000 * number, Partner(*queues[2:]) if queues is not None else None)
    try:
        while (said := pipe.recv()) != "end":
            if said == "rest":
                crew.rest()
                pipe.send("resting")
            elif said == "figures":
                pipe.send((figures(), crew.counts()))
            else:
                crew.go_on()
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        crew.end()
        stop.set()
        if server is not None:
            server.join()


class Processes:
    """The processes that work, as the first one, which does not, sees them."""

    def __init__(self, count: int, threads: int, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        # To process N, and back from it; kept, for their names go with them.
        self.ways = ways = [(context.Queue(), context.Queue()) for _ in range(count)]
        self.pipes, self.processes = [], []
        for number in range(count):
            here, there = context.Pipe()
            queues = (*ways[number], *ways[(number + 1) % count]) if count > 1 else None
            words = (number, threads, seed, there, queues)
            self.processes.append(context.Process(target=work, args=words))
            self.pipes.append(here)
            self.processes[-1].start()
            there.close()

    def ask_all(self, what: str, answered: bool = True) -> list[Any]:
        for pipe in self.pipes:
            pipe.send(what)
        return [self._answer(number) for number in range(len(self.pipes))] if answered else []

    def _answer(self, number: int) -> Any:
        try:
            if not self.pipes[number].poll(2 * REST_SECONDS):
                raise TimeoutError(f"process {number} does not answer")
            said = self.pipes[number].recv()
        except EOFError:
            self.processes[number].join()
            raise RuntimeError(f"process {number} died: {self.processes[number].exitcode}") from None
        if isinstance(said, str) and said != "resting":
            raise RuntimeError(f"process {number}:\n{said}")
        return said

    def end(self, at_rest: bool) -> None:
        """Ends all: those that rest by themselves; else one may wait for another that is gone."""
        for each, pipe in zip(self.processes, self.pipes, strict=True):
            if at_rest:
                pipe.send("end")
                each.join(REST_SECONDS)
            each.kill()
            each.join()


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Works until the time is over, and there were rests enough; what was counted at each, and what is
    wrong."""
    samples: list[list[Figures]] = [[] for _ in range(options.processes)]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    at_rest = False
    crowd = Processes(options.processes, options.threads, options.seed)
    start = time.monotonic()
    try:
        while not wrong and (time.monotonic() - start < options.seconds or len(samples[0]) < LEAST):
            if at_rest:
                crowd.ask_all("go on", answered=False)
            at_rest = False
            time.sleep(options.every)
            crowd.ask_all("rest")
            answers = crowd.ask_all("figures")
            counts = sum((each for _, each in answers), Counter())
            for number, (found, _) in enumerate(answers):
                samples[number].append(found)
                if not options.json:
                    print(line(time.monotonic() - start, number, found), flush=True)
                if found.live:
                    wrong.append(f"process {number}: {found.live:,} bytes are live at a rest")
            at_rest = True
    except Exception as error:
        wrong.append(str(error))
    finally:
        crowd.end(at_rest)
    for number, each in enumerate(samples):
        wrong += [f"process {number}: {text}" for text in growth(each)]
    return {"samples": samples, "steps": counts, "wrong": wrong}


HEADS = ("seconds", "process", "RSS MiB", "files", "handles", "threads", "live B", "reserved B")


def line(seconds: float, number: int, found: Figures) -> str:
    cells = [f"{seconds:.0f}", str(number), f"{found.memory / MIB:.1f}", *map(str, found[1:])]
    return " ".join(f"{cell:>{len(head)}}" for cell, head in zip(cells, HEADS, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--every", type=float, help="seconds between two rests; a 60th of all unless given")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.every = options.every or options.seconds / 60
    if not options.json:
        print(" ".join(HEADS))
    said = run(options)
    if options.json:
        said["samples"] = [[each._asdict() for each in process] for process in said["samples"]]
        print(json.dumps(said))
    else:
        print("steps:", ", ".join(f"{name} {count:,}" for name, count in sorted(said["steps"].items())))
        print("\n".join(said["wrong"]) or "nothing grew")
    sys.exit(bool(said["wrong"]))


if __name__ == "__main__":
    main()
