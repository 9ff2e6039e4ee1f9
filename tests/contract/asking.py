"""What ask_situations.py runs: situations, each in a process of its own.

A situation is a function of a Case that returns what is to be printed: a code, a text, or several.  The
process is forked before the driver is opened, so one that crashes or hangs costs itself alone.
"""

import ctypes
import os
import signal
import threading
from collections import namedtuple

from gate import Gate
from subject import Subject

SITUATIONS = []
SECONDS = 60
NON_BLOCKING = 1
MODES = ("global", "thread_local", "relaxed")
MIB = 1 << 20

Situation = namedtuple("Situation", "name function alone")


def ask(name, alone=False):
    """Adds a situation.  alone: it measures time, so nothing else may run beside it."""

    def add(function):
        SITUATIONS.append(Situation(name, function, alone))
        return function

    return add


class Case(Subject):
    """A driver that was opened in this process, with device 0 current."""

    def __init__(self, driver):
        super().__init__(driver)
        self.must("open")
        self.must("set_device", 0)
        self.gate = Gate()
        self.kept = []  # buffers that the driver may still use

    def stream(self, flags=NON_BLOCKING):
        return self.must("stream_create", 0, flags, 0)

    def event(self, flags=0):
        return self.must("event_create", 0, flags)

    def memory(self, size=MIB):
        return self.must("memory_alloc", 0, size)

    def pinned(self, size=MIB):
        return self.must("host_alloc", 0, size)

    def capturing(self, mode="global", flags=NON_BLOCKING):
        stream = self.stream(flags)
        self.must("capture_begin", 0, stream, MODES.index(mode))
        return stream

    def status(self, stream):
        code, status, _ = self.capture_status(0, stream)
        return ("none", "active", "invalidated")[status] if code == 0 else f"status {code}"

    def end(self, stream):
        """Ends a capture: "end CODE", and how many nodes it has where that is 0."""
        code, graph = self.capture_end(0, stream)
        return f"end {code}" + (f" nodes {self.must('graph_node_count', graph)}" if code == 0 else "")

    def graph(self, fill):
        """The graph that `fill(stream)` makes in a relaxed capture."""
        stream = self.capturing("relaxed")
        fill(stream)
        return self.must("capture_end", 0, stream)

    def in_thread(self, function, seconds=10):
        """function() on a new thread, which has no current device; "waits" where it does not return."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
        thread.start()
        thread.join(seconds)
        return answers[0] if answers else "waits"


def pageable(size=MIB):
    """Host memory of which no driver knows: (the buffer, to be kept, and its address)."""
    buffer = ctypes.create_string_buffer(size)
    return buffer, ctypes.addressof(buffer)


def code_of(answer):
    return answer[0] if isinstance(answer, tuple) else answer


def text_of(answer, between=" | "):
    if isinstance(answer, (list, tuple)):
        return between.join(text_of(each, " ") for each in answer).join(("", "") if between != " " else "()")
    return str(answer)


def begin(situation, driver):
    """Starts a situation in a child; finish takes what this returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(SECONDS)
        try:
            text = text_of(situation.function(Case(driver)))
        except BaseException as error:  # whatever it is, it is the answer
            text = f"raised {type(error).__name__}: {error}"
        os.write(write, text.replace("\n", " ").encode()[:4000])
        os._exit(0)
    os.close(write)
    return situation, child, read


def finish(started):
    """The line of a situation, once its process has ended."""
    situation, child, read = started
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, state = os.waitpid(child, 0)
    if os.WIFSIGNALED(state):
        number = os.WTERMSIG(state)
        text += "hangs" if number == signal.SIGALRM else f"dies of {signal.Signals(number).name}"
    return f"{situation.name}: {text}"
