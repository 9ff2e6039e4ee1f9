"""A communicator that one thread ends while another one is anywhere in a call with it."""

import threading

import pytest
from child import in_child
from parking_backend import ParkingBackend, Worker
from rank_arrays import rank_arrays, reduce_in_group
from waiting import wait_until

import accelrt
from accelrt import nccl
from accelrt.nccl import host_for_tests

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("two_devices")]
POINTS = [
    (first, call, when)
    for first, calls in {
        "all_reduce": ("issue",),
        "group": ("group_start", "issue", "group_end"),
        "check": ("async_error",),
        "synchronize": ("async_error",),
        "close": ("async_error", "destroy"),
        "abort": ("abort",),
    }.items()
    for call in calls
    for when in ("before", "after")
]
SECONDS = ["abort", "close", "check", "all_reduce", "group", "free", "drop", "synchronize"]


@pytest.fixture
def parked():
    """Two communicators with a backend that parks, and two arrays."""
    comms = nccl.init_all([0, 1])
    backend = ParkingBackend(comms[0]._backend)
    for each in comms:
        each._backend = backend
    arrays = rank_arrays(100)
    yield comms, backend, arrays
    backend.go_on()
    for each in comms:
        each.abort()
    arrays.clear()  # pytest keeps the list


def operations(comms, arrays):
    return {
        "all_reduce": lambda: comms[0].all_reduce(arrays[0]),
        "group": lambda: reduce_in_group(comms, arrays),
        "check": comms[0].check,
        "synchronize": lambda: comms[0].synchronize(timeout=0.05),
        "close": lambda: comms[0].close(timeout=0.05),
        "abort": comms[0].abort,
        "free": arrays[0].free,
        "drop": arrays.clear,
    }


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize(("first", "call", "when"), POINTS)
def test_whatever_comes_beside_a_call_each_ends_with_its_result_or_error(parked, first, call, when, second):
    comms, backend, arrays = parked
    for each in comms:
        each.timeout = 5
    both = operations(comms, arrays)
    backend.park(call, when)
    one = Worker(both[first])
    assert backend.parked.wait(300)
    other = Worker(both[second])
    other.join(0.02)  # to its end, or to its wait
    backend.go_on()
    for each in (one, other):
        error = each.end()
        assert error is None or isinstance(error, (accelrt.NcclError, TimeoutError, ValueError)), error
        assert not isinstance(error, ValueError) or second == "free"
    if "abort" in (first, second):
        with pytest.raises(accelrt.NcclError, match=r"it was aborted|it is closed"):
            comms[0].check()


def test_abort_frees_no_rank_that_another_thread_puts_an_operation_into_a_stream_with(parked):
    comms, backend, arrays = parked
    backend.park("issue", "before")
    one = Worker(comms[0].all_reduce, arrays[0])
    assert backend.parked.wait(300)
    other = Worker(comms[0].abort)
    wait_until(lambda: not comms[0]._hold.is_open)
    assert backend.calls == []
    backend.go_on()
    assert one.end() is other.end() is None
    assert backend.calls == ["issue", "abort"]


def test_a_thread_that_does_not_come_back_frees_the_rank_later(parked):
    comms, backend, arrays = parked
    comms[0].timeout = 0.05
    backend.park("issue", "before")
    one = Worker(comms[0].all_reduce, arrays[0])
    assert backend.parked.wait(300)
    with pytest.raises(
        TimeoutError, match=r"abort\(rank=0.* waited 0.05 s for a thread that is inside a call"
    ):
        comms[0].abort()
    assert backend.calls == []
    with pytest.raises(accelrt.NcclError, match="it was aborted"):
        comms[0].all_reduce(arrays[0])
    backend.go_on()
    one.end()
    assert backend.calls == ["issue", "abort"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["issue", "group_end", "async_error"])
def test_a_signals_handler_aborts_what_it_interrupts(parked, call, when):
    comms, backend, arrays = parked
    backend.call_at(call, when, comms[0].abort)
    one = Worker(comms[0].check if call == "async_error" else lambda: reduce_in_group(comms, arrays))
    one.end()
    assert backend.calls[-1] == "abort"
    assert call in backend.calls[:-1]
    with pytest.raises(accelrt.NcclError, match="it was aborted"):
        comms[0].check()


def test_abort_ends_a_close_that_waits_for_another_rank(parked):
    comms, backend, arrays = parked
    comms[0].all_reduce(arrays[0])
    one = Worker(comms[0].close)
    wait_until(lambda: "async_error" in backend.calls)
    comms[0].abort()
    error = one.end()
    assert isinstance(error, accelrt.NcclError)
    assert "it was aborted" in str(error)


def test_close_gives_up_and_names_the_rank_that_it_waits_for(parked):
    comms, _, arrays = parked
    comms[0].all_reduce(arrays[0])
    wait_until(comms[0]._awaited)
    with pytest.raises(TimeoutError, match=r"not done after 0.2 s, which waits for rank 1 \(process \d+ on "):
        comms[0].close(timeout=0.2)
    comms[0].check()  # it is open, so that abort() ends what is under way
    comms[0].abort()
    accelrt.synchronize(0)


def test_many_aborts_beside_operations_of_another_thread():
    for _ in range(30):
        comms = nccl.init_all([0, 1])
        arrays = [accelrt.zeros(10, "float32", rank) for rank in range(2)]
        started = threading.Event()

        def work(comms=comms, arrays=arrays, started=started):
            while True:
                reduce_in_group(comms, arrays)
                started.set()

        one = Worker(work)
        assert started.wait(300)
        comms[0].abort()
        assert isinstance(one.end(), accelrt.NcclError)
        comms[1].abort()


def leave_beside_a_daemon_thread():
    arrays = [accelrt.zeros(10, "float32", rank) for rank in range(2)]
    started, told = threading.Event(), []

    def work():
        try:
            while True:
                nccl.all_reduce(arrays)
                started.set()
        except accelrt.NcclError as error:
            told.append(str(error))
            print("the interpreter ends" in str(error), flush=True)

    threading.Thread(target=work, daemon=True).start()
    started.wait(300)
    print("left", flush=True)


@pytest.mark.own_process
@pytest.mark.parametrize("level", ["0", "2"])
def test_the_interpreter_ends_beside_a_daemon_thread_that_goes_on(level):
    for _ in range(3):
        out = in_child(leave_beside_a_daemon_thread, ACCELRT_DEBUG=level)
        assert out.startswith("left")
        assert "False" not in out


def test_the_backend_refuses_none():
    for function in ("async_error", "abort", "destroy", "revoke", "in_progress", "awaited"):
        with pytest.raises(TypeError, match="None"):
            getattr(host_for_tests, function)(None)
    numbers = (0, 0, 1, 4, 7, 0, 0, False)
    with pytest.raises(TypeError, match="rank"):
        host_for_tests.issue(None, accelrt.Stream(0), "all_reduce", *numbers)
    for function in (host_for_tests.path_of, lambda name: host_for_tests.init_rank(1, name, 0, 0, 1.0)):
        with pytest.raises(TypeError, match="None"):
            function(None)
