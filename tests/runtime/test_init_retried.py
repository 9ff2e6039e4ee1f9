"""An initialisation that is interrupted anywhere raises what interrupted it; the next use tries again."""

import os
import sys

import pytest
from child import in_child, in_fork, in_own_process

import accelrt
from accelrt.driver import testing as faults

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a child for each try"),
]


class Stop(BaseException):
    """Like KeyboardInterrupt, no Exception."""


class Environment(dict):
    """An environment in which reading a variable of accelrt's is interrupted once, at a chosen reading."""

    stop_at = reads = 0

    def get(self, key, default=None):
        if key.startswith(("ACCELRT", "CUDA")):
            self.reads += 1
            if self.reads == self.stop_at:
                raise Stop(key)
        return dict.get(self, key, default)

    def __getitem__(self, key):
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found


def at_reading(number):
    os.environ = Environment(os.environ)  # noqa: B003
    os.environ.stop_at = number
    return lambda: os.environ.reads >= number


def at_call(number):
    """Interrupts the call of accelrt's Python code with this number, and answers whether there was one."""
    calls, ours = 0, os.path.dirname(sys.modules["accelrt"].__file__)

    def count(frame, event, _):
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls += 1
            if calls == number:
                sys.setprofile(None)
                raise Stop(frame.f_code.co_name)

    sys.setprofile(count)
    return lambda: calls >= number


def opening_the_driver(number):
    """The driver's open row answers, the first time, as where another failed."""
    faults.wrap("host")
    if number == 1:
        faults.arm(call=1, code=999, rows=["open"])
    return lambda: number == 1


def use():
    with accelrt.Buffer(4096) as buffer:
        buffer.fill(7, blocking=True)


def attempt(arrange, number, errors, init):
    """What interrupts is raised, if it was reached, and then all is well.  Answers whether it was reached."""
    queued = []
    accelrt.lazy_call(lambda: queued.append(accelrt.device_count()))
    reached = arrange(number)
    raised = None
    try:
        init()
    except errors as error:
        raised = error
    sys.setprofile(None)
    assert (raised is not None) == reached(), (number, raised)
    if raised is not None:
        assert not accelrt.is_initialized()
        assert queued == [], raised
    init()
    use()
    assert accelrt.is_initialized()
    assert len(queued) == 1
    assert accelrt.current_stream().query()
    return raised is not None


def sweep(name, init_by_use):
    """Interrupts the first point, the second, ... until there is none; each in a child of its own."""
    arrange = {"reading": at_reading, "call": at_call, "open": opening_the_driver}[name]
    errors = accelrt.CudaError if name == "open" else Stop
    init = use if init_by_use else accelrt.init
    if name == "open":
        errors, init = accelrt.DriverNotFoundError, lambda: accelrt.init(driver="faults")
    for number in range(1, 1000):
        status = in_fork(lambda number=number: 0 if attempt(arrange, number, errors, init) else 2)
        assert status in (0, 2), number
        if status == 2:
            assert number > 1
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize(("name", "init_by_use"), [("reading", True), ("call", False)])
def test_an_interruption_at_any_point_is_raised_and_the_next_use_works(name, init_by_use):
    in_child(sweep, name, init_by_use)


def test_a_driver_that_did_not_open_is_opened_by_the_next_call():
    in_child(sweep, "open", False)


@in_own_process(ACCELRT_HOST_DEVICES="2")
def test_a_queued_call_that_was_interrupted_runs_at_the_next_use():
    answers = iter([Stop("queued")])
    ran = []

    def call():
        for error in answers:
            raise error
        ran.append(accelrt.device_count())

    accelrt.lazy_call(call)
    with pytest.raises(Stop):
        use()
    assert not accelrt.is_initialized()
    with pytest.raises(RuntimeError, match="already runs on 'host'"):
        accelrt.init(driver="cuda")
    use()
    assert ran == [2]
    assert accelrt.is_initialized()


@in_own_process
def test_a_child_forked_after_the_driver_was_opened_is_told_so_though_init_failed():
    answers = iter([Stop("queued")])
    accelrt.lazy_call(lambda: next(answers, None) and exec("raise KeyError"))
    with pytest.raises(accelrt.DeferredCudaCallError):
        use()

    def child():
        with pytest.raises(accelrt.ForkedError):
            accelrt.init()

    assert in_fork(child) == 0
    use()
