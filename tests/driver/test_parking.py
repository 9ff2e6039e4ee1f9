"""Threads that stop at a chosen call of the table "faults", and go on when they are told to."""

import os
import threading
import time

import pytest
from beside import SECONDS, Caller
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver import testing
from accelrt.driver.registry import Rows

pytestmark = [pytest.mark.host, pytest.mark.own_process]


def rows_and_faults():
    return wrap_host(), Rows("faults")


def refusal(function, *arguments):
    with pytest.raises((RuntimeError, ValueError)) as raised:
        function(*arguments)
    return str(raised.value)


@in_own_process
def test_each_row_has_a_counter_of_its_own_and_can_fail():
    faults, rows = rows_and_faults()
    faults.reset_call_counts()
    for name in testing.ROW_NAMES:
        faults.arm(call=1, code=2, rows=[name])
        assert faults.fired() == 0
        rows.event_query(0, 0)
        assert faults.fired() == (name == "event_query")
        faults.disarm()
    calls = {name: count for name, count in faults.call_counts().items() if count}
    assert calls == {"event_query": len(testing.ROW_NAMES)}


@in_own_process
def test_a_thread_parks_before_a_call_or_behind_it():
    faults, rows = rows_and_faults()
    for when, made in (("before", False), ("after", True)):
        _, event = rows.event_create(0, 0)
        caller = Caller(lambda event=event: rows.event_destroy(0, event))
        faults.park("event_destroy", when=when, thread=caller.ident, limit=SECONDS)
        caller.begin()
        assert faults.await_parked(SECONDS) == "event_destroy"
        assert not caller.is_done()
        assert (rows.event_query(0, event) != 0) == made
        assert faults.go_on()
        assert caller.is_done(SECONDS)
        assert caller.answer == 0
        assert not faults.go_on()


@in_own_process
def test_only_the_chosen_call_of_the_chosen_thread_parks():
    faults, rows = rows_and_faults()
    counted = []

    def calls():
        for _ in range(5):
            counted.append(rows.device_count()[1])
            rows.memory_info(0)

    caller = Caller(calls)
    faults.park("device_count", number=3, thread=caller.ident, limit=SECONDS)
    for _ in range(10):  # other threads' calls neither count nor stop
        rows.device_count()
    caller.begin()
    assert faults.await_parked(SECONDS) == "device_count"
    assert len(counted) == 2
    others = [Caller(rows.device_count) for _ in range(4)]
    for other in others:
        other.begin()
    assert all(other.is_done(SECONDS) for other in others)
    assert faults.go_on()
    assert caller.is_done(SECONDS)
    assert len(counted) == 5

    caller = Caller(calls)
    faults.park(number=4, when="after", limit=SECONDS)  # any row, of whichever thread
    caller.begin()
    assert faults.await_parked(SECONDS) == "memory_info"
    assert len(counted) == 7
    faults.park("event_create", limit=SECONDS)  # a new point lets go of who stands at the old one
    assert caller.is_done(SECONDS)
    assert faults.await_parked(0.0) is None
    assert not faults.go_on()


@in_own_process
def test_a_parked_thread_goes_on_at_its_limit_and_says_so():
    faults, rows = rows_and_faults()
    caller = Caller(rows.device_count)
    faults.park("device_count", thread=caller.ident, limit=0.05)
    caller.begin()
    assert caller.is_done(SECONDS)
    assert caller.answer == (0, 2)
    told = "the thread that parked at device_count went on by itself, at its limit"
    assert refusal(faults.await_parked, 0) == told
    assert refusal(faults.go_on) == told
    assert not faults.go_on()
    assert refusal(faults.await_parked, 0) == "no point is set; call park first"


@in_own_process
def test_a_call_with_the_gil_held_does_not_park():
    faults = wrap_host()
    accelrt.current_device()
    faults.begin_trace()
    assert accelrt.current_device() == 0
    assert faults.traced_calls() == [("current_device", True)]
    faults.end_trace()
    for when in ("before", "after"):
        faults.park("current_device", when=when, limit=SECONDS)
        begun = time.monotonic()
        assert accelrt.current_device() == 0
        told = "the thread holds the GIL in current_device, so it did not park"
        assert refusal(faults.await_parked, SECONDS) == told
        assert refusal(faults.go_on) == told
        assert time.monotonic() - begun < SECONDS


@in_own_process
def test_calls_are_traced_by_thread():
    faults, rows = rows_and_faults()

    def calls():
        code, event = rows.event_create(0, 0)
        rows.event_destroy(0, event)
        return code

    caller = Caller(calls)
    faults.begin_trace()
    rows.device_count()
    caller.begin()
    assert caller.is_done(SECONDS)
    faults.end_trace()
    rows.device_count()
    assert faults.traced_calls(caller.ident) == [("event_create", False), ("event_destroy", False)]
    assert faults.traced_calls(threading.get_ident()) == [("device_count", False)]
    assert len(faults.traced_calls()) == 3
    faults.begin_trace()
    assert faults.traced_calls() == []


@in_own_process
def test_a_forked_child_has_no_point_and_the_parent_keeps_its():
    faults, rows = rows_and_faults()
    caller = Caller(rows.device_count)
    faults.park("device_count", thread=caller.ident, limit=SECONDS)
    faults.begin_trace()
    caller.begin()
    assert faults.await_parked(SECONDS)
    child = os.fork()
    if child == 0:
        assert not faults.go_on()
        assert faults.traced_calls() == []
        rows.device_count()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not caller.is_done()
    assert faults.go_on()
    assert caller.is_done(SECONDS)


def test_what_park_cannot_do_is_refused():
    assert refusal(testing.park, "no_such_row") == "no such row: no_such_row"
    assert refusal(testing.park, None, 0) == "number is 0; the next call is 1"
    assert refusal(testing.park, None, 1, "during") == "when is 'during'; it is 'before' or 'after'"
    limit = refusal(testing.park, None, 1, "before", None, 0)
    assert limit == "limit is 0.0; it is seconds, above 0 and below a million"
