"""The detector's clocks and ranges against the slow model: the same accesses race, no more and no fewer."""

from contextlib import nullcontext

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from race_model import HOST, STREAMS, Model, spans, steps

from accelrt.errors import RaceError
from accelrt.sanitizer.detector import Detector, Driver
from accelrt.sanitizer.intervals import IntervalMap
from accelrt.sanitizer.scope import Span

HANDLES = {"legacy": 0, "blocking": 16, "one": 17, "two": 18, "three": 19}
ACCESSES = st.tuples(st.just("access"), st.sampled_from((HOST, *STREAMS)), spans())


def detector():
    return Detector(
        Driver(lambda *_: 0, lambda _, handle: handle == HANDLES["blocking"], lambda *_: None), True
    )


def apply(subject, model, step):
    """One step on both; what raced, by both."""
    name, *given = step
    if name != "access":
        getattr(model, name)(*given)
        order(subject, name, *given)
        return set(), None
    who, used = given
    number, racing = model.access(who, used)
    ranges = [Span(begin, end - begin, "w" if writes else "r") for begin, end, writes in used]
    try:
        if who == HOST:
            subject.host_work(str(number), ranges)
        else:
            subject.work(0, HANDLES[who], str(number), ranges)
    except RaceError as error:
        return racing, error.report.first.call
    return racing, None


def order(subject, name, *given):
    if name == "record":
        subject.recorded(0, HANDLES[given[0]], 100 + given[1])
    elif name == "wait":
        subject.waited(0, HANDLES[given[0]], 100 + given[1])
    elif name == "synchronize":
        subject.reached_stream(0, HANDLES[given[0]])
    elif name == "synchronize_event":
        subject.reached_event(100 + given[0])
    else:
        subject.reached_device(0)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps(STREAMS, ACCESSES), max_size=40))
def test_exactly_the_accesses_race_that_no_path_orders(program):
    subject, model = detector(), Model()
    for step in program:
        racing, found = apply(subject, model, step)
        assert (found is not None) == bool(racing), step
        assert found is None or int(found) in racing


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 12), st.one_of(st.none(), st.integers(0, 3))),
        max_size=30,
    )
)
@example([(0, 6, 0), (2, 2, 1), (0, 6, 3)])  # two parts of one value beside one that is gone
def test_the_map_of_ranges_is_a_map_of_bytes(calls):
    def counted(old):
        return None if old == 1 else (old or 0) + 1

    ranges, plain = IntervalMap(), {}
    for begin, length, value in calls:
        if value is None:
            ranges.remove(begin, begin + length)
        elif value == 3:
            ranges.change(begin, begin + length, counted)
        else:
            ranges.set(begin, begin + length, value)
        for place in range(begin, begin + length):
            now = counted(plain.pop(place, None)) if value == 3 else value
            if value is None:
                plain.pop(place, None)
            elif now is not None:
                plain[place] = now
    found = {place: value for low, high, value in ranges.parts(0, 100) for place in range(low, high)}
    assert found == plain
    assert all(high <= low for high, low in zip(ranges.ends, ranges.begins[1:], strict=False))


@pytest.mark.parametrize("waited_for", [(17,), (18,), (17, 18)])
def test_a_write_has_to_come_after_the_reads_of_all_streams(waited_for):
    subject = detector()
    for handle in (17, 18):
        subject.work(0, handle, str(handle), [Span(0, 8, "r")])
    for handle in waited_for:
        subject.recorded(0, handle, 100)
        subject.waited(0, 19, 100)
    missed = {17, 18} - set(waited_for)
    with pytest.raises(RaceError) if missed else nullcontext() as caught:
        subject.work(0, 19, "fill", [Span(4, 8, "w")])
    assert {int(report.first.call) for report in subject.reports} == missed
    assert bool(caught) == bool(missed)


def test_a_stream_that_is_over_and_known_to_be_leaves_no_trace():
    subject = detector()
    for number in range(1000):
        subject.made_stream(0, 17)
        subject.work(0, 17, "fill", [Span(number, 1, "w")])
        subject.reached_stream(0, 17)
    assert len(subject.now.order.clocks) <= 3
    assert max(map(len, subject.now.order.clocks.values())) <= 3
    subject.work(0, 18, "fill", [Span(0, 1000, "w")])
    assert not subject.reports


def test_a_new_holder_of_a_driver_stream_has_no_order_with_the_last_one():
    subject = detector()
    subject.made_stream(0, 17)
    subject.work(0, 17, "fill", [Span(0, 8, "w")])
    subject.made_stream(0, 17)
    with pytest.raises(RaceError):
        subject.work(0, 17, "fill", [Span(0, 8, "w")])


def test_what_a_destructor_reports_in_the_midst_of_a_call_is_done_after_it():
    subject = detector()
    subject.allocated(4096, 512, 0, 17)
    subject.lock.acquire()
    subject.freed(4096)
    subject.lock.release()
    assert subject.memory.at(4096) is not None
    subject.recorded(0, 17, 100)
    assert subject.memory.at(4096) is None


def test_what_a_driver_does_not_place_in_a_capture_or_outside_is_compared_with_nothing():
    places = {17: 0, 18: 0}
    subject = Detector(Driver(lambda _, handle: places[handle], lambda *_: False, lambda *_: None))
    subject.work(0, 17, "fill", [Span(0, 8, "w")])
    places[17] = -1
    subject.recorded(0, 17, 100)
    subject.work(0, 17, "fill", [Span(8, 8, "w")])
    places[18] = -1
    subject.waited(0, 18, 100)
    places[18] = 0
    subject.work(0, 18, "fill", [Span(0, 16, "w")])
    assert not subject.reports
