"""A thread's capture mode, where the driver does not take it back after a relaxed call."""

import gc

import pytest
from child import in_own_process, wrap_host

import accelrt
from accelrt.driver.registry import Rows

GLOBAL, RELAXED = 0, 2


def mode_of(rows):
    _, before = rows.capture_mode_exchange(GLOBAL)
    assert rows.capture_mode_exchange(before)[0] == 0
    return before


@pytest.mark.parametrize(("mode", "restored"), [("once", True), ("onward", False)])
@in_own_process
def test_a_mode_that_was_not_taken_back_is_restored_at_once_or_by_the_next_call(mode, restored):
    faults, rows = wrap_host(), Rows()
    streams = [accelrt.Stream() for _ in range(4)]
    assert all(stream.cuda_stream for stream in streams)  # others may have put work in
    del streams
    gc.collect()
    assert mode_of(rows) == GLOBAL
    faults.arm(call=2, code=999, mode=mode, rows=["capture_mode_exchange"])
    made = accelrt.Stream()  # asks in relaxed mode whether a returned one is idle
    faults.disarm()
    assert (mode_of(rows) == GLOBAL) == restored
    again = accelrt.Stream()
    assert mode_of(rows) == GLOBAL
    assert made != again
