"""KeyboardInterrupt at every place of what makes pools of the driver and their memory: nothing stays."""

import pytest
from every_bytecode import Held, interrupt_everywhere, some_places

import accelrt
from accelrt import memory
from accelrt.driver.host import driver as host
from accelrt.memory import driver_pool, ipc_handles
from accelrt.memory.driver_pool import DriverMemory

pytestmark = pytest.mark.host
NBYTES = 1 << 20


def use_a_pool_that_others_open():
    pool = memory.DriverPool(ipc_enabled=True)
    held = pool.allocate(NBYTES)
    handle = pool.allocation_handle
    theirs = memory.DriverPool.from_allocation_handle(handle)
    opened = DriverMemory.from_ipc_descriptor(theirs, held.ipc_descriptor)
    opened.free()
    held.free()
    pool.allocate(NBYTES)  # freed as it dies
    pool.trim_to(0)
    handle.close()
    pool.close()


def use_the_pool_of_managed_memory():
    pool = memory.DriverPool(managed=True)
    with pool.allocate(NBYTES):
        pool.attributes()
    pool.trim_to(0)


def use_a_pool_of_page_locked_memory():
    pool = memory.DriverPool(pinned=True, ipc_enabled=True)
    held = pool.allocate(NBYTES)
    memoryview(held)[0] = 1
    theirs = memory.DriverPool.from_allocation_handle(pool.allocation_handle)
    DriverMemory.from_ipc_descriptor(theirs, held.ipc_descriptor).free()
    pool.close()


def live():
    accelrt.synchronize()
    memory.DriverPool(managed=True).trim_to(0)
    accelrt.empty_cache()
    found = dict(host.live_objects())
    return found["allocations"], found["bytes"]


@some_places(3)
@pytest.mark.parametrize(
    "use", [use_a_pool_that_others_open, use_the_pool_of_managed_memory, use_a_pool_of_page_locked_memory]
)
def test_interrupted_pools_leave_nothing(use, places):
    use()
    before, held = live(), Held()

    def check(_):
        assert live() == before
        held.check()

    modules = [driver_pool, ipc_handles]
    reached, escaped = interrupt_everywhere(lambda _: use(), modules, check=check, places=places)
    assert escaped == reached > 10
