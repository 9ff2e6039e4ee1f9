"""The random work of soak.py: one thread's steps, each of which checks what it computes."""

import multiprocessing
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import accelrt
import accelrt.sharing  # before the first allocation, so that all memory can be shared

MIB = 1 << 20
MOST_LIVE = 32 * MIB  # bytes that a thread keeps
MOST_BLOCKS = 64
SHARED = 3000  # elements of an array that another process opens
ANSWER_SECONDS = 60


class Mismatch(Exception):
    """Memory held another value than was put there."""


def expect(array: Any, value: int, where: str) -> None:
    """Raises Mismatch unless an array of NumPy's holds one value everywhere."""
    if not (array == value).all():
        raise Mismatch(f"{where}: not all elements are {value}: {np.unique(array)[:5]}")


def between_captures(call: Callable[[], object]) -> None:
    """Calls something that is refused while any thread captures, until it is not."""
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            call()
            return
        except RuntimeError as error:
            if "a capture is under way" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.0005)


class Walker:
    """What one thread does and holds: streams, blocks, graphs, pools and page-locked memory of its own.

    Arguments:
        number: int, which thread of its process; it chooses the device.
        seed: int, of the choices.
        partner: where to send arrays to another process, or None.
    """

    def __init__(self, number: int, seed: int, partner: "Partner | None") -> None:
        self.choice = random.Random(seed)
        self.device = number % accelrt.device_count()
        self.partner = partner
        self.counts: Counter[str] = Counter()
        self.steps: list[Callable[[], None]] = [
            getattr(self, name) for name in dir(self) if name.startswith("step_")
        ]
        self.weights = [WEIGHTS.get(step.__name__, 10) for step in self.steps]

    def take(self) -> None:
        """Makes what steps work on; the thread calls it at first and after each rest."""
        accelrt.set_device(self.device)
        self.stream = accelrt.Stream()
        self.blocks: list[tuple[accelrt.Buffer, int]] = []
        self.graphs: list[tuple[accelrt.CUDAGraph, accelrt.Buffer]] = []

    def drop(self) -> None:
        """Lets go of everything, once its work is done."""
        self.stream.synchronize()
        self.blocks.clear()
        self.graphs.clear()
        del self.stream

    def step(self) -> None:
        (step,) = self.choice.choices(self.steps, self.weights)
        name = step.__name__.removeprefix("step_")
        try:
            with accelrt.stream(self.stream):
                step()
        except accelrt.OutOfMemoryError as error:
            if (
                "capture" not in error.causes
            ):  # idle memory of graphs that died goes back between captures alone
                raise
            name = "refused_beside_a_capture"
        self.counts[name] += 1

    def size(self) -> int:
        """Bytes: as many of 1 to 10 as of 1 to 10 million."""
        return int(10 ** self.choice.uniform(0, 6.9))

    def step_allocate(self) -> None:
        while self.blocks and (
            len(self.blocks) >= MOST_BLOCKS or sum(block.nbytes for block, _ in self.blocks) > MOST_LIVE
        ):
            self.step_free()
        block, value = accelrt.Buffer(self.size()), self.choice.randrange(256)
        block.fill(value)
        self.blocks.append((block, value))

    def step_free(self) -> None:
        if self.blocks:
            block, value = self.blocks.pop(self.choice.randrange(len(self.blocks)))
            if self.choice.random() < 0.2:
                out = np.empty(block.nbytes, np.uint8)
                block.copy_to(out)
                expect(out, value, "a block")
            if self.choice.random() < 0.5:
                block.free()

    def step_streams(self) -> None:
        """Memory that is used on streams that die with the work under way."""
        block = accelrt.Buffer(self.size() + 8)
        for value in range(3):
            side = accelrt.Stream(priority=-value)
            side.wait_stream(self.stream)
            block.fill(value, stream=side)
            self.stream.wait_event(side.record_event())
        out = np.empty(block.nbytes, np.uint8)
        block.copy_to(out)
        expect(out, 2, "a block that three streams wrote")

    def step_events(self) -> None:
        start, end = accelrt.Event(enable_timing=True), accelrt.Event(enable_timing=True)
        start.record()
        accelrt.zeros(100)
        end.record()
        end.synchronize()
        if start.elapsed_time(end) < 0:
            raise Mismatch("an event was before the one that was recorded first")

    def step_capture(self) -> None:
        """A graph that allocates; some are kept, and replayed later by step_replay."""
        out, graph = accelrt.Buffer(self.size() + 8), accelrt.CUDAGraph()
        with accelrt.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            temporary = accelrt.Buffer(out.nbytes)
            temporary.fill(7)
            accelrt.copy(out, temporary, blocking=False)
            del temporary
        graph.replay()
        self.graphs.append((graph, out))
        if len(self.graphs) > 4:
            self.graphs.pop(0)[0].reset()

    def step_replay(self) -> None:
        if self.graphs:
            graph, out = self.choice.choice(self.graphs)
            out.fill(0)
            graph.replay()
            back = np.empty(out.nbytes, np.uint8)
            out.copy_to(back)
            expect(back, 7, "what a graph copies")

    def step_broken_capture(self) -> None:
        """A capture whose body raises."""
        try:
            with accelrt.graph(accelrt.CUDAGraph(), stream=self.stream, capture_error_mode="thread_local"):
                accelrt.Buffer(self.size())
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    def step_page_locked(self) -> None:
        array = accelrt.pinned_empty(self.size() // 100 + 1, np.uint8)
        array[:] = 5
        block = accelrt.Buffer(array.nbytes)
        block.copy_from(array, blocking=False)
        array[:] = 0 if self.stream.synchronize() is None else 1
        block.copy_to(array)
        expect(array, 5, "page-locked memory")

    def step_array(self) -> None:
        rows, columns = self.choice.randrange(1, 50), self.choice.randrange(1, 50)
        array = accelrt.full((rows, columns), 3, "int32")
        array[:, ::2].fill_(4)
        array[:, 1::2].fill_(4)
        expect(array.numpy(), 4, "an array")

    def step_pool(self) -> None:
        """A pool that sleeps, wakes and dies."""
        pool = accelrt.MemPool()
        with accelrt.use_mem_pool(pool):
            block = accelrt.Buffer(self.size() + 8)
        block.fill(9)
        kept = self.choice.random() < 0.7
        self.stream.synchronize()
        between_captures(lambda: pool.sleep(keep="host" if kept else "discard"))
        between_captures(pool.wake)
        if kept:
            out = np.empty(block.nbytes, np.uint8)
            block.copy_to(out)
            expect(out, 9, "a pool that slept")

    def step_refused(self) -> None:
        try:
            accelrt.Buffer(1 << 50)
        except accelrt.OutOfMemoryError:
            return
        raise Mismatch("a petabyte was allocated")

    def step_host_function(self) -> None:
        called: list[int] = []
        self.stream.launch_host_func(lambda: called.append(1))
        self.stream.synchronize()
        if called != [1]:
            raise Mismatch(f"a host function was called {len(called)} times")

    def step_share(self) -> None:
        if self.partner is not None:
            array = accelrt.full(SHARED, 1, "int32")
            self.partner.ask(array)
            expect(array.numpy(), 2, "an array that another process changed")

    def step_share_with_the_dying(self) -> None:
        """Memory that a process of its own opens, and dies with."""
        context = multiprocessing.get_context("spawn")
        array = accelrt.full(SHARED, 6, "int32")
        inbox, answer = context.Queue(), context.Queue()
        child = context.Process(target=open_and_die, args=(inbox, answer))
        child.start()
        inbox.put(array)
        if answer.get(timeout=ANSWER_SECONDS) != 6 * SHARED:
            raise Mismatch("another process read other numbers")
        child.join()
        child.close()
        for each in (inbox, answer):
            each.close()
            each.join_thread()


WEIGHTS = {"step_allocate": 60, "step_free": 50, "step_pool": 3, "step_share_with_the_dying": 0.005}


def open_and_die(inbox: Any, answer: Any) -> None:
    """What a short process does: it ends with the memory open."""
    array = inbox.get(timeout=ANSWER_SECONDS)
    answer.put(int(array.numpy().sum()))


class Partner:
    """Another process that changes arrays: one question at a time, with its answer.

    Arguments:
        questions, answers: queues of multiprocessing, to that process and back.
    """

    def __init__(self, questions: Any, answers: Any) -> None:
        self.questions, self.answers = questions, answers
        self.turn = threading.Lock()

    def ask(self, array: "accelrt.Array | None") -> None:
        """Has the other process add one to an array, and waits until it has let go of it."""
        with self.turn:
            self.questions.put(array)
            said = self.answers.get(timeout=ANSWER_SECONDS)
        if said is not None:
            raise Mismatch(f"the other process said: {said}")


def serve(questions: Any, answers: Any, stop: threading.Event) -> None:
    """Answers another process's questions until it is told to stop."""
    while not stop.is_set():
        try:
            array = questions.get(timeout=0.1)
        except queue.Empty:
            continue
        try:
            array.copy_(accelrt.asarray(array.numpy() + 1))
            accelrt.current_stream().synchronize()
            del array
            answers.put(None)
        except BaseException as error:
            answers.put(repr(error))
            raise
