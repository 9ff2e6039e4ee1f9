"""Forks beside NVML: a child has a session of its own, no lock held, and no stale count."""

import functools
import multiprocessing
import os
import sysconfig
import threading

import pytest
from beside import Crowd
from cards import A, beside_cards, without_proc
from child import in_fork

import accelrt
from accelrt.nvml.library import session_number

FORKS, THREADS = 100, 4


@beside_cards
def test_a_child_opens_a_session_of_its_own(card_libraries):
    without_proc()
    assert accelrt.temperature(0) == 32
    mine = session_number()

    def child():
        assert session_number() == 0
        assert accelrt.temperature(0) == 32
        assert accelrt.temperature(A) == 31
        assert session_number() > mine
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        assert (accelrt.device_count(), accelrt.temperature(0)) == (1, 31)
        return in_fork(lambda: accelrt.temperature(0) - 31)

    assert in_fork(child) == 0
    assert session_number() == mine
    assert (accelrt.device_count(), accelrt.temperature(0)) == (3, 32)


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="Python without a GIL leaves an object locked in the child that a thread waits for in the fork",
)
@beside_cards
def test_a_hundred_forks_beside_reading_threads_hang_nobody(card_libraries):
    without_proc()

    def churn(number):
        assert accelrt.temperature(number % 3) == (32, 31, 33)[number % 3]
        assert accelrt.device_count() == 3
        accelrt.identity.table()

    def child():
        accelrt.identity.table()
        return 0 if (accelrt.temperature(0), accelrt.device_count()) == (32, 3) else 1

    with Crowd(*(functools.partial(churn, number) for number in range(THREADS))):
        assert {in_fork(child) for _ in range(FORKS)} == {0}


@beside_cards
def test_queries_then_fork_then_use_works(card_libraries):
    without_proc()
    assert accelrt.is_available()
    assert accelrt.temperature(1) == 31
    accelrt.identity.table()

    def child():
        accelrt.init()
        return accelrt.device_count() - 3 + (accelrt.current_device() != 0)

    assert in_fork(child) == 0
    assert not accelrt.is_initialized()


@beside_cards
def test_use_then_fork_then_use_is_the_clear_error_and_readings_go_on(card_libraries):
    without_proc()
    accelrt.init()
    assert accelrt.temperature(2) == 33

    def child():
        for use in (accelrt.current_device, accelrt.get_device_properties, accelrt.init):
            with pytest.raises(accelrt.ForkedError, match="spawn"):
                use()
        assert accelrt.device_count() == 3
        return accelrt.temperature(2) - 33  # NVML is no use of the driver

    assert in_fork(child) == 0
    assert accelrt.temperature(2) == 33


@beside_cards
def test_a_fork_during_another_threads_init_waits_for_it(card_libraries):
    """The forking thread comes in the middle of another one's initialisation, and waits until that is
    over.
    """
    without_proc()
    inside, done = threading.Event(), threading.Event()

    def queued():
        inside.set()
        done.wait(0.2)  # the fork is on its way meanwhile; it cannot happen before this returns

    accelrt.lazy_call(queued)
    thread = threading.Thread(target=accelrt.init)
    thread.start()
    inside.wait()

    def child():
        try:
            accelrt.current_device()
        except accelrt.ForkedError:
            return 3
        return 4

    assert in_fork(child) == 3
    done.set()
    thread.join()


def answer(queue):
    without_proc()
    accelrt.init()
    queue.put((accelrt.device_count(), accelrt.temperature(0), accelrt.get_device_properties(1).name))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@beside_cards
def test_other_start_methods_work_after_use(card_libraries, method):
    without_proc()
    accelrt.init()
    assert accelrt.temperature(0) == 32
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=answer, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == (3, 32, "Stand-in")
    process.join()
    assert process.exitcode == 0
