"""Functions on threads: what they return and raise, and that none is waited for without a limit."""

import math
import threading

import pytest
from child import in_own_process

from accelrt.testing import Interleaver, on_a_thread, on_threads, use_device


def test_what_a_function_returns_or_raises_is_its_callers():
    assert on_a_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        on_a_thread(lambda: 1 / 0)


def test_all_run_at_once_and_the_first_error_is_raised_after_all_have_ended():
    all_here, ended = threading.Barrier(3), []

    def work(value):
        all_here.wait(300)
        ended.append(value)
        if value:
            raise ValueError(f"of {value}")

    with pytest.raises(ValueError, match="of 1"):
        on_threads(work, range(3))
    assert sorted(ended) == [0, 1, 2]


def test_a_function_that_does_not_end_is_told_with_the_place_where_it_stands():
    go_on = threading.Event()

    def stands_here():
        go_on.wait()

    try:
        with pytest.raises(AssertionError) as caught:
            on_a_thread(stands_here, timeout=0.2)
        text = str(caught.value)
        assert text.startswith("on_a_thread: 1 of 1 threads have not ended within 0.2 s, and stand at ")
        assert "threading.py:" in text
        assert text.endswith("; pass a longer timeout where they are to take longer")
        assert caught.value.__cause__ is None
    finally:
        go_on.set()


def test_an_error_of_another_thread_is_the_cause_where_one_does_not_end():
    go_on = threading.Event()

    def work(waits):
        if not waits:
            raise KeyError("the cause")
        go_on.wait()

    try:
        for timeout in (0.2, 2, 20, 200):  # the thread that raises may take longer to run
            with pytest.raises(AssertionError, match=r"on_threads: [23] of 3 threads") as caught:
                on_threads(work, (True, False, True), timeout=timeout)
            if caught.value.__cause__ is not None:
                break
        assert "2 of 3" in str(caught.value)
        assert isinstance(caught.value.__cause__, KeyError)
    finally:
        go_on.set()


@pytest.mark.parametrize("timeout", [1e300, math.inf])
def test_a_limit_may_be_none(timeout):
    assert on_a_thread(int, timeout) == 0
    on_threads(int, [1, 2], timeout=timeout)


@pytest.mark.host
@in_own_process
def test_a_limit_of_an_interleaver_may_be_none():
    use_device()
    for limit in (1e300, math.inf):
        interleaver = Interleaver(limit)
        assert interleaver.run(int).result == 0
        assert [one.result for one in interleaver.run_beside(int, int, 1, "before")] == [0, 0]
        interleaver.close()


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_limit_that_is_none_is_refused_before_anything_runs(timeout):
    ran = []
    with pytest.raises(ValueError, match=r"timeout is .*; pass seconds above 0"):
        on_a_thread(lambda: ran.append(1), timeout)
    with pytest.raises(ValueError, match=r"timeout is .*; pass seconds above 0"):
        on_threads(ran.append, [1, 2], timeout=timeout)
    assert ran == []
