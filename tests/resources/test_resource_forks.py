"""Resources in a child of a fork: the memory is the parent's, no lock is waited for, nothing goes back."""

import threading

import pytest
from beside import Caller
from child import in_fork, in_own_process, run_python

import accelrt
from accelrt import resources

pytestmark = [pytest.mark.host, pytest.mark.own_process]
NBYTES = 4096


class Waiting(accelrt.Stream):
    """A stream that takes its time to wait for an event."""

    def wait_event(self, event):
        self.begun.set()
        assert self.go_on.wait(300)
        super().wait_event(event)


@in_own_process
def test_a_child_that_is_forked_beside_the_work_of_a_pool_waits_for_nothing():
    first, second = accelrt.Stream(), Waiting()
    second.begun, second.go_on = threading.Event(), threading.Event()
    pool = resources.PoolResource(initial=2 * NBYTES, maximum=2 * NBYTES)

    def refused():
        waiting = (
            lambda: pool.take(NBYTES, first),
            pool.release,
            lambda: pool.allocate(NBYTES, first),
            lambda: pool.buffer(NBYTES, first),
        )
        for use in waiting:
            with pytest.raises(accelrt.ForkedError, match="Cannot re-initialize CUDA in forked subprocess"):
                use()
        assert pool.total_bytes == 2 * NBYTES
        assert pool.used_bytes == NBYTES

    held = pool.allocate(NBYTES, first)  # so that the rest of its chunk cannot go back
    pool.deallocate(pool.allocate(NBYTES, first), NBYTES, first)
    taking = Caller(lambda: pool.allocate(NBYTES, second)).begin()
    assert second.begun.wait(300)  # the tables are locked while the one stream is made to wait for the other
    try:
        assert in_fork(refused) == 0
    finally:
        second.go_on.set()
    pool.deallocate(taking.result(), NBYTES, second)
    pool.deallocate(held, NBYTES, first)
    assert pool.used_bytes == 0


CHILD = """
import gc, os
import accelrt
from accelrt import resources

accelrt.init(driver="host")
stack = lambda: resources.PoolResource(resources.StatisticsAdaptor(resources.DeviceResource()))
called = lambda address, nbytes, stream: print("deallocate in the parent:", os.getpid() == parent)
parent = os.getpid()
own = resources.CallbackResource(lambda nbytes, stream: 1 << 40, called)
pools = [stack(), resources.FixedSizeResource(), resources.PoolResource(own)]
address = pools[2].allocate(64)
held = [pools[0].buffer(4096), pools[1].buffer(64), own.buffer(64), resources.DeviceBuffer(100)]
held += [resources.DriverPoolResource(managed=managed).buffer(64) for managed in (False, True)]
child = os.fork()
if child:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
held.clear()
pools.clear()
own = None
gc.collect()
"""


def test_the_end_of_resources_and_buffers_in_a_child_gives_nothing_back_and_says_nothing():
    done = run_python("-c", CHILD)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == 2 * "deallocate in the parent: True\n"
