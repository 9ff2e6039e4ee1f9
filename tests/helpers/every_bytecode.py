"""KeyboardInterrupt at every place of chosen Python modules where the interpreter can raise it.

    interrupt_everywhere(lambda path: GdsFile(path, os.O_RDONLY).close(), ["accelrt.gds"], ...)

The interpreter looks for signals when a function is entered, behind each call and at each jump backwards.
A trace function raises there, once at each place that the operation passes: behind os.open but before the
name is bound, say.  Where what stands behind a call belongs to another try or with statement than the call,
it marks a signal as pending right before the call instead, so that the exception comes out of the call.  No
timers, no luck.  Runs on the main thread, which alone handles signals.
"""

import _thread
import dis
import functools
import gc
import itertools
import os
import signal
import sys
import threading
from pathlib import Path

import pytest


def some_places(step):
    """Parametrises a test by places: every so many, from two of them on; the full sweep has all."""
    some = [pytest.param(range(first, 1 << 30, step), id=f"from {first}") for first in (1, 1 + step // 2)]
    return pytest.mark.parametrize(
        "places", [*some, pytest.param(None, id="all", marks=pytest.mark.full_sweep)]
    )


class Pend:
    """PEND + number marks a signal as pending; no call, behind which the trace function would raise."""

    __add__ = _thread.interrupt_main


PEND = Pend()


@functools.cache
def places(code):
    """Where the interpreter looks for signals: offsets to pend at, and (call, behind it) to raise behind."""
    pending, behind = set(), set()
    instructions = list(dis.get_instructions(code))
    for each, following in itertools.pairwise(instructions):
        if "JUMP_BACKWARD" in each.opname:
            pending.add(each.offset)
        elif each.opname.startswith("CALL") and each.offset not in calls_of_enter(code):
            if covered_by(code, each.offset) == covered_by(code, following.offset):
                behind.add((each.offset, following.offset))
            else:
                pending.add(each.offset)
    return frozenset(pending), frozenset(behind)


@functools.cache
def calls_of_enter(code):
    """Where Python 3.14 calls the __enter__ of a with statement, or of an asynchronous one: offsets.

    It looks for signals behind that call, where nothing calls __exit__ yet, and so leaves a lock taken: its
    own defect, mended in 3.15, against which Python code can do nothing.  Older ones do not look there.
    """
    instructions = itertools.pairwise(dis.get_instructions(code))
    return frozenset(each.offset for before, each in instructions if before.opname == "LOAD_SPECIAL")


def covered_by(code, offset):
    """The handler of exceptions that are raised at an offset."""
    entries = dis._parse_exception_table(code)
    return next((each.target for each in entries if each.start <= offset < each.end), None)


def interrupt(frame):
    """What a signal does here: nothing where it is ignored, and else what its handler does."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)


class Interrupter:
    """Traces the main thread, and interrupts it at the place with a number, from 1."""

    def __init__(self, files, number):
        self.files, self.number, self.passed = files, number, 0
        self.before = {}  # offset of the bytecode before, by frame

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace = self.trace_opcode  # Python 3.13 begins to tell of bytecodes where there is one
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self.before.pop(id(frame), None)
        self.passed += 1  # the entry of a function, or of a generator that goes on
        if self.passed == self.number:
            PEND + signal.SIGINT
        return self.trace_opcode

    def trace_opcode(self, frame, event, _):
        if event != "opcode":
            return self.trace_opcode
        pending, behind = places(frame.f_code)
        before, self.before[id(frame)] = self.before.get(id(frame)), frame.f_lasti
        if (before, frame.f_lasti) in behind:
            self.passed += 1
            if self.passed == self.number:
                interrupt(frame)
        if frame.f_lasti in pending:
            self.passed += 1
            if self.passed == self.number:
                PEND + signal.SIGINT
        return self.trace_opcode

    @property
    def has_come(self):
        return self.passed >= self.number


def run_once(operation, argument, files, number):
    """Whether the place was come to, and whether KeyboardInterrupt left the operation."""
    interrupter = Interrupter(files, number)
    raised = False
    before = sys.gettrace()
    try:
        try:
            sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this when a trace function is set
            sys.settrace(interrupter.trace)
            operation(argument)
        finally:
            sys.settrace(before)
    except KeyboardInterrupt:
        raised = True
    return interrupter.has_come, raised


def interrupt_everywhere(operation, modules, prepare=lambda: None, check=lambda argument: None, places=None):
    """Calls an operation again and again, interrupted at its first place, its second, ..., up to the last.

    Arguments:
        operation: function of what prepare answers.
        modules: the modules, or their names, within whose functions to interrupt.
        prepare: called before each operation, not interrupted.
        check: called after each with what prepare answered; asserts that nothing is left.
        places: numbers to interrupt at; None for all.
    Returns: how many places there were, and how many of the interruptions left the operation: others were
        answered within, or swallowed as in destructors.
    """
    assert threading.current_thread() is threading.main_thread()
    modules = [sys.modules[each] if isinstance(each, str) else each for each in modules]
    files = {each.__file__ for each in modules}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    unraisable, sys.unraisablehook = sys.unraisablehook, pass_over_interruptions(sys.unraisablehook)
    reached = escaped = 0
    try:
        for number in places or itertools.count(1):
            argument = prepare()
            come, raised = run_once(operation, argument, files, number)
            try:
                check(argument)
            except Exception as error:
                error.add_note(f"interrupted at place {number}; it left the operation: {raised}")
                raise
            del argument
            if not come:
                break
            reached += 1
            escaped += raised
    finally:
        sys.unraisablehook = unraisable
        signal.signal(signal.SIGINT, before)
    return reached, escaped


def pass_over_interruptions(report):
    """A hook that says nothing of interruptions in destructors and callbacks, which no exception leaves."""

    def hook(unraisable):
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)

    return hook


class Held:
    """What this process holds that an operation could have left: descriptors, threads, files in folders."""

    def __init__(self, *folders):
        self.folders = folders
        self.before = self.now()

    def now(self):
        gc.collect()
        return {
            "descriptors": descriptors(),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "files": sorted(str(path) for folder in self.folders for path in folder.rglob("*")),
        }

    def check(self, *_):
        """Asserts that nothing came since, but for descriptors that were there under another number."""
        after = self.now()
        for kind, things in after.items():
            more = [thing for thing in things if thing not in self.before[kind]]
            assert not more, f"{kind} left: {more}"
            assert len(things) <= len(self.before[kind]), f"{kind} left: {things}, before {self.before[kind]}"


def descriptors():
    """Number and file of every open descriptor."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the listing's own
    return sorted(found)


def children():
    """The processes that this one has started and that have not ended."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
