"""Memory that other libraries have by DLPack, which sleep() would take from under them."""

import gc
import os

import numpy as np
import pytest
from child import in_own_process

import accelrt
from accelrt import memory

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"


def exported(array):
    """What another library has of an Array: NumPy on the host device, else a capsule."""
    return np.from_dlpack(array) if ON_HOST else array.__dlpack__(stream=-1, max_version=(1, 0))


def pool_and_array():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        return pool, accelrt.full(1 << 16, 7, "u1")


def test_a_pool_of_which_others_have_memory_does_not_sleep():
    pool, array = pool_and_array()
    other = accelrt.MemPool()
    views = [exported(array), exported(array), exported(array[8:16])]
    with pytest.raises(BufferError, match=r"from 2 Arrays: .*shape=\(8,\).*exports='ignore'"):
        pool.sleep()
    assert not pool.is_asleep()
    array.fill_(8)  # it is used as ever
    assert other.sleep().bytes == 0  # others' exports are no concern of its
    other.wake()
    views.pop()
    with pytest.raises(BufferError, match="from 1 Array: "):
        pool.sleep()
    assert (array.numpy() == 8).all()
    views.clear()
    gc.collect()
    assert pool.sleep().bytes
    pool.wake()
    assert (array.numpy() == 8).all()


def test_exports_that_are_ignored_are_there_again_after_the_wake():
    pool, array = pool_and_array()
    view = exported(array)
    assert pool.sleep(exports="ignore").bytes
    with pytest.raises(accelrt.SleepingMemoryError):
        exported(array)
    pool.wake()
    if ON_HOST:
        assert (view == 7).all()
    with pytest.raises(BufferError):
        pool.sleep()
    del view
    pool.sleep()
    pool.wake()


@pytest.mark.host
@in_own_process  # the pool of a tag lives as long as the process
def test_tags_take_the_same_argument():
    with memory.sleepable("weights of the test"):
        array = accelrt.zeros(4096, "u1")
    view = exported(array)
    with pytest.raises(BufferError, match=r"memory\.sleep: other libraries have memory of pool"):
        memory.sleep("weights of the test")
    memory.sleep("weights of the test", exports="ignore")
    memory.wake("weights of the test")
    del view
    with pytest.raises(ValueError, match="exports is 'no'; it may be 'refuse', or 'ignore'"):
        memory.sleep("weights of the test", exports="no")


def test_a_capsule_that_nobody_took_is_an_export_until_it_dies():
    pool, array = pool_and_array()
    capsule = array.__dlpack__()
    with pytest.raises(BufferError):
        pool.sleep()
    del capsule
    pool.sleep()
    pool.wake()
    with pytest.raises(BufferError):  # an export that was refused is none
        array.view("S1").__dlpack__()
    pool.sleep()
    pool.wake()


def test_an_export_of_what_is_refused_leaves_nothing():
    pool, array = pool_and_array()
    pool.sleep()
    for _ in range(3):
        with pytest.raises(accelrt.SleepingMemoryError):
            array.__dlpack__()
    pool.wake()
    array.free()  # no tensor is alive
    pool.sleep()
    pool.wake()


@pytest.mark.host
@in_own_process
def test_a_process_ends_with_exports_alive():
    global kept
    pool, array = pool_and_array()
    kept = pool, array, np.from_dlpack(array)
    with pytest.raises(BufferError):
        pool.sleep()
