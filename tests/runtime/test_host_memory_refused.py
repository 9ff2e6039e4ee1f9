"""Each call for memory, a descriptor or a thread that compiled modules make fails in turn: the error is
raised, nothing crashes or is left, and the same works afterwards."""

import ctypes
import gc
import itertools
import os
import threading
import time

import compiled
import numpy as np
import pytest
from child import in_child

import accelrt
from accelrt.driver.registry import Rows
from accelrt.testing import audit, live_objects

pytestmark = [pytest.mark.own_process, pytest.mark.host]
MIB = 1 << 20


def slept():
    pool = accelrt.MemPool()
    with accelrt.use_mem_pool(pool):
        array = accelrt.full(3 * MIB, 7, "u1")
    pool.sleep()
    pool.wake()
    assert (array.numpy() == 7).all()


def replayed():
    array, ran = accelrt.zeros(64, "u1"), []
    stream, graph = accelrt.Stream(), accelrt.CUDAGraph()
    with accelrt.graph(graph, stream=stream):
        array.fill_(3)
        stream.launch_host_func(lambda: ran.append(1))
    graph.replay()
    accelrt.synchronize()
    assert (array.numpy() == 3).all()
    assert ran == [1]


def open_once_behind(gate, is_over):
    """Opens a gate that holds work once something is queued behind it, or nothing will be."""
    while not is_over() and live_objects().get("operations", 0) < 2:
        time.sleep(0.0005)
    gate.set()


def copied():
    """From and to memory that is not page-locked, behind work that is under way."""
    source, back = np.full(MIB, 5, np.uint8), np.zeros(MIB, np.uint8)
    stream, buffer, gate = accelrt.Stream(), accelrt.Buffer(MIB), threading.Event()
    stream.launch_host_func(gate.wait)
    opening = threading.Thread(target=open_once_behind, args=(gate, gate.is_set))
    opening.start()
    try:
        buffer.copy_from(source, stream=stream)
        buffer.copy_to(back, stream=stream)
    finally:
        gate.set()
        opening.join()
    assert (back == 5).all()


def on_new_threads():
    errors = []

    def use():
        try:
            with accelrt.stream(accelrt.Stream()):
                accelrt.Buffer(MIB).fill(2)
        except (accelrt.CudaError, MemoryError) as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def copy_each():
    """Whether a copy to memory that is not page-locked, which is refused, leaves that alone ever after."""
    rows, shim = Rows("host"), ctypes.PyDLL(os.environ["LD_PRELOAD"])
    source, stream = accelrt.full(64, 5, "u1"), accelrt.Stream()
    accelrt.synchronize()
    for number in itertools.count(1):
        back, gate, returned = np.zeros(64, np.uint8), threading.Event(), threading.Event()
        stream.launch_host_func(gate.wait)
        shim.refuse_call(ctypes.c_long(number), False)
        opening = threading.Thread(target=open_once_behind, args=(gate, returned.is_set))
        opening.start()
        code = rows.copy_async(0, stream.handle, back.ctypes.data, source.ptr, 64)
        calls = shim.count_calls()
        returned.set()
        opening.join()
        stream.synchronize()
        assert (back == (0 if code else 5)).all(), (number, code, back[:3])
        if calls < number:
            break
    assert code == 0
    assert number > 1


def settled():
    for _ in range(2):
        gc.collect()
        accelrt.synchronize()
        accelrt.empty_cache()
        accelrt.host_empty_cache()
    audit()
    alive = live_objects()
    del alive["streams"]  # of the pool
    return alive, accelrt.memory_allocated()


def refuse_each(name, and_later):
    work, shim = globals()[name], ctypes.PyDLL(os.environ["LD_PRELOAD"])
    work()
    work()
    before = settled()
    for number in itertools.count(1):
        refused = False
        shim.refuse_call(ctypes.c_long(number), and_later)
        try:
            work()
        except (accelrt.CudaError, MemoryError):
            refused = True
        calls = shim.count_calls()
        after = settled()
        assert and_later or after == before, (number, before, after)
        if calls < number:
            break
    work()
    assert not refused
    assert number > 3


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    text = (compiled.SOURCES / "refused_calls.c").read_text()
    return str(compiled.compile_source(text, tmp_path_factory.mktemp("shim"), "refused"))


@pytest.mark.parametrize("and_later", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("name", ["slept", "replayed", "copied", "on_new_threads"])
def test_calls_that_the_system_refuses(shim, name, and_later):
    in_child(refuse_each, name, and_later, LD_PRELOAD=shim)


def test_a_copy_that_is_refused_was_not_queued(shim):
    in_child(copy_each, LD_PRELOAD=shim)
