"""accelrt.memory.tag: names of memory, with figures of their own."""

import copy
import pickle
import threading

import pytest
from beside import on_a_thread, on_threads
from child import in_own_process

import accelrt
from accelrt import memory
from accelrt.memory.history import recording

pytestmark = pytest.mark.own_process
MIB = 1 << 20


def figure(name, which="allocated_bytes", field="current"):
    return memory.memory_stats(0)[f"tag.{name}.{which}.{field}"]


def alloc(size):
    return accelrt.caching_allocator_alloc(size, 0)


free = accelrt.caching_allocator_delete


@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("settings", ["expandable_segments:True", "expandable_segments:False"])
@in_own_process(ACCELRT_DEBUG="{level}", ACCELRT_ALLOC_CONF="{settings}")
def test_the_innermost_tag_counts(level, settings):
    plain = alloc(512)
    with memory.tag("outer") as outer:
        first = alloc(MIB)
        with memory.tag("inner"):
            second = alloc(3 * MIB)
            with outer:
                third = alloc(1000)
        fourth = alloc(2 * MIB)
    after = alloc(4096)
    assert figure("outer") == MIB + 1024 + 2 * MIB
    assert figure("inner") == 3 * MIB
    assert figure("outer", "allocation") == 3
    assert figure("outer", "requested_bytes") == MIB + 1000 + 2 * MIB
    assert figure("inner", "requested_bytes") == 3 * MIB
    free(second)
    free(fourth)
    assert figure("inner") == 0
    assert figure("inner", field="peak") == 3 * MIB
    assert (
        figure("inner", "requested_bytes", "peak") == figure("inner", "requested_bytes", "freed") == 3 * MIB
    )
    assert figure("outer", field="freed") == 2 * MIB
    memory.reset_peak_memory_stats(0)
    assert figure("inner", field="peak") == 0
    assert figure("outer", field="peak") == MIB + 1024
    assert figure("outer", "requested_bytes", "peak") == MIB + 1000
    state = {
        block["address"]: block["tag"] for segment in memory.memory_snapshot(0) for block in segment["blocks"]
    }
    assert [state[address] for address in (plain, first, third, after)] == ["", "outer", "outer", ""]
    for address in (plain, first, third, after):
        free(address)
    assert figure("outer") == figure("outer", "allocation") == figure("outer", "requested_bytes") == 0


@pytest.mark.parametrize("level", "02")
@in_own_process(ACCELRT_DEBUG="{level}")
def test_memory_from_before_the_first_tag_has_none(level):
    before = [alloc(512) for _ in range(3)]
    free(alloc(512))
    free(alloc(512))  # from the last-freed cache
    with memory.tag("late"):
        for _ in range(3):
            free(alloc(512))
        kept = alloc(512)
    for address in before:
        free(address)
    assert figure("late", "allocation") == 1
    assert figure("late", "allocation", "allocated") == 4
    free(kept)
    for _ in range(3):
        free(alloc(512))
    assert figure("late", "allocation", "allocated") == 4


@pytest.mark.parametrize("level", "02")
@in_own_process(ACCELRT_DEBUG="{level}")
def test_threads_have_their_own_tag(level):
    stop, kept = threading.Barrier(4), []

    def work(number):
        with memory.tag(f"thread {number}"):
            stop.wait()
            for _ in range(300):
                free(alloc(1000 + number))
            kept.append(alloc(MIB))
        free(alloc(77))

    on_threads(work, range(4))
    for number in range(4):
        assert figure(f"thread {number}") == MIB
        assert figure(f"thread {number}", "allocation", "allocated") == 301
    for address in kept:  # on another thread than they were allocated on
        free(address)
    assert all(figure(f"thread {number}") == 0 for number in range(4))


@in_own_process
def test_buffers_and_arrays_have_the_tag():
    with memory.tag("objects"):
        buffer = accelrt.Buffer(3 * MIB)
        array = accelrt.zeros((1000,), dtype="float32")
    assert figure("objects", "allocation") == 2
    del buffer, array
    accelrt.synchronize()
    assert figure("objects") == 0


@in_own_process
def test_a_tag_is_left_where_it_was_entered():
    tag = memory.tag("here")
    tag.__enter__()
    with pytest.raises(RuntimeError, match="not entered on this thread"):
        on_a_thread(lambda: tag.__exit__(None, None, None))
    tag.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="not entered"):
        tag.__exit__(None, None, None)


def test_what_is_no_tag_is_refused():
    with pytest.raises(TypeError, match="as str"):
        memory.tag(3)
    with pytest.raises(ValueError, match="empty"):
        memory.tag("")
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="another with the same name"):
            duplicate(memory.tag("x"))


@in_own_process
def test_a_process_has_so_many_tags():
    for number in range(4095):
        memory.tag(str(number))
    with pytest.raises(ValueError, match="4095 different"):
        memory.tag("one more")
    with memory.tag("77"):
        address = alloc(512)
    assert figure("77") == 512
    free(address)
    assert set(recording.tag_stats(0)) == {"77"}
