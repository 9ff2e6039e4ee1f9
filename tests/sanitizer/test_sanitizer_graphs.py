"""Graphs whose nodes are events: the detector against the slow model, and what it keeps."""

import gc
import os
import sys

import pytest
import race_programs
from child import output_of
from hypothesis import given, settings
from hypothesis import strategies as st
from race_model import STREAMS, Model, spans, steps
from race_programs import SIZE
from test_sanitizer_model import ACCESSES, HANDLES, apply

import accelrt
from accelrt import sanitizer
from accelrt.errors import RaceError
from accelrt.sanitizer.detector import Detector, Driver
from accelrt.sanitizer.scope import Span

INNER = ("one", "two")
WHO, EVENT = st.sampled_from(INNER), st.integers(0, 2)
PARTS = st.one_of(
    st.tuples(st.just("access"), WHO, spans()),
    st.tuples(st.just("access"), WHO, spans()),
    st.tuples(st.just("point"), WHO, st.sampled_from(("record", "wait")), EVENT),
    st.tuples(st.just("record"), WHO, EVENT),
    st.tuples(st.just("wait"), WHO, EVENT),
)
LAUNCHES = st.tuples(st.just("launch"), st.sampled_from(STREAMS), st.integers(0, 1))


class Pair:
    """A detector and a model; graphs are captured in both, each in a world of its own."""

    def __init__(self):
        self.capture = 0
        blocking = HANDLES["blocking"]
        self.subject = Detector(
            Driver(lambda *_: self.capture, lambda _, handle: handle == blocking, lambda *_: None)
        )
        self.model = Model()
        self.graphs = {}

    def capture_graph(self, key, parts):
        self.capture, inner = key + 1, Model()
        for name, who, *rest in parts:
            handle = HANDLES[who]
            if name == "access":
                number, racing = inner.access(who, rest[0])
                ranges = [Span(begin, end - begin, "w" if writes else "r") for begin, end, writes in rest[0]]
                try:
                    self.subject.work(0, handle, f"part {number}", ranges)
                    assert not racing
                except RaceError:
                    assert racing
            elif name == "point":
                inner.point(who, *rest)
                self.subject.captured_point(0, handle, 100 + rest[1], rest[0] == "wait")
            elif name == "record":
                inner.record(who, rest[0])
                self.subject.recorded(0, handle, 200 + rest[0])
            else:
                inner.wait(who, rest[0])
                # An event of an earlier capture is none of this one's: the driver would refuse it.
                if rest[0] in inner.events:
                    self.subject.waited(0, handle, 200 + rest[0])
        self.subject.captured(key + 1)
        self.capture = 0
        self.graphs[key] = inner

    def launch(self, who, key):
        inner = self.graphs[key]
        racing = self.model.launch(who, key, inner)
        # A launch that races leaves no trace but that the stream may come after the graph's last one.
        try:
            self.subject.replayed(key + 1, 0, HANDLES[who])
            assert not racing
        except RaceError:
            assert racing
        return racing


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(PARTS, max_size=8), min_size=2, max_size=2),
    st.lists(st.one_of(steps(STREAMS, ACCESSES), LAUNCHES), max_size=30),
)
def test_exactly_the_parts_race_that_neither_graph_nor_event_orders(graphs, program):
    pair = Pair()
    for key, parts in enumerate(graphs):
        # Without a point a graph is one piece of work, which other tests hold against the model.
        pair.capture_graph(key, [("point", "one", "record", 9), *parts])
    for step in program:
        if step[0] == "launch":
            pair.launch(*step[1:])
            continue
        racing, found = apply(pair.subject, pair.model, step)
        assert (found is not None) == bool(racing), step


def test_launches_of_a_graph_with_events_leave_no_trace_when_they_are_over():
    pair = Pair()
    span = ((0, 1, True),)
    pair.capture_graph(0, [("access", "one", span), ("point", "one", "record", 0), ("access", "one", span)])
    for _ in range(100):
        pair.subject.made_stream(0, 17)
        pair.launch("one", 0)
        pair.subject.reached_stream(0, 17)
    assert len(pair.subject.now.order.clocks) <= 4
    pair.subject.dropped(1)
    for _ in range(2):
        pair.subject.made_stream(0, 17)
    assert len(pair.subject.now.order.clocks) <= 3


def test_a_graph_with_events_that_another_capture_launches_keeps_them():
    subject = Pair().subject
    place = {}
    subject.driver = Driver(lambda _, handle: place.get(handle, 0), lambda *_: False, lambda *_: None)
    place[17] = 1
    subject.work(0, 17, "fill", [Span(0, 8, "w")])
    subject.captured_point(0, 17, 100, False)
    subject.captured(1)
    place[17] = 2
    subject.replayed(1, 0, 17)
    subject.captured(2)
    place[17] = 0
    subject.replayed(2, 0, 17)
    with pytest.raises(RaceError, match="in a graph"):
        subject.work(0, 19, "fill", [Span(0, 8, "w")])
    subject.waited(0, 18, 100)
    subject.work(0, 18, "fill", [Span(0, 8, "w")])
    assert len(subject.reports) == 1


@pytest.fixture
def uncollected():
    """The garbage collector is off: what goes, goes with its last reference."""
    gc.collect()
    gc.disable()
    sanitizer.enable()
    yield
    sanitizer.disable()
    sanitizer.clear()
    gc.enable()


class Owner:
    def __init__(self):
        self.buffer = accelrt.Buffer(SIZE)
        self.buffer.fill(1)
        self.array = accelrt.pinned_empty(SIZE, "uint8")
        self.buffer.copy_from(self.array)
        self.stream, self.event = accelrt.Stream(), accelrt.Event()
        self.event.record(self.stream)
        self.stream.wait_event(self.event)
        self.stream.synchronize()


def test_what_is_made_in_an_init_goes_with_its_owner(uncollected):
    accelrt.synchronize()
    before = accelrt.memory_allocated(), sys.getrefcount(Owner)
    for _ in range(5):
        owner = Owner()
        assert accelrt.memory_allocated() > before[0]
        del owner
    assert (accelrt.memory_allocated(), sys.getrefcount(Owner)) == before


def test_a_report_keeps_nobody_s_variables(uncollected):
    def race():
        held = Owner()
        one, other = accelrt.Stream(), accelrt.Stream()
        held.buffer.fill(1, stream=one)
        try:
            held.buffer.fill(2, stream=other)
        except accelrt.RaceError:
            return
        raise AssertionError("no race was found")

    before = sys.getrefcount(Owner)
    race()
    accelrt.synchronize()
    assert sys.getrefcount(Owner) == before


def test_a_program_ordered_by_external_events_runs_under_the_environment_s_setting():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import race_programs as programs, accelrt\n"
        "programs.graph_that_waits_for_an_event(True)\n"
        "programs.event_that_a_graph_records(True)\n"
        "accelrt.synchronize(); print(len(accelrt.sanitizer.reports()))\n"
    )
    assert output_of("-c", code, os.path.dirname(race_programs.__file__), ACCELRT_SANITIZE="1") == "0\n"
