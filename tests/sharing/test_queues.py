"""What cannot be shared and is put into a multiprocessing.Queue is an error for whoever gets it."""

import concurrent.futures
import multiprocessing
import os
import pickle

import pytest
from child import run_code
from other_process import drop, keep

import accelrt
import accelrt.sharing

SECONDS = 300


def test_opened_memory_that_is_put_into_a_queue(other):
    queue = multiprocessing.get_context("spawn").Queue()
    array = accelrt.full((3,), 1, "int8")
    other.call(keep, "array", array)
    queue.put(array)
    assert queue.get(timeout=SECONDS).ptr == array.ptr
    assert other.call(open_queue) == [1, 1, 1]
    other.call(drop, "array")


def open_queue(kept):
    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(kept["array"])
    return queue.get(timeout=SECONDS).numpy().tolist()


def test_memory_that_was_freed_before_the_queue_took_it():
    queue = multiprocessing.Queue()
    array = accelrt.full((3,), 1, "int8")
    array.base.free()
    queue.put(array)
    queue.put("what follows")
    with pytest.raises(
        RuntimeError, match=rf"process {os.getpid()} put memory into a Queue that it could not share"
    ):
        queue.get(timeout=SECONDS)
    assert queue.get(timeout=SECONDS) == "what follows"


def test_a_pipe_raises_where_it_sends():
    here, _ = multiprocessing.Pipe()
    array = accelrt.full((3,), 1, "int8")
    array.base.free()
    with pytest.raises(ValueError, match="was freed"):
        here.send(array)


def test_an_executor_tells_who_submitted():
    array = accelrt.full((3,), 1, "int8")
    array.base.free()
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(1, context) as executor,
        pytest.raises(ValueError, match="was freed"),
    ):
        executor.submit(repr, array).result(SECONDS)


@pytest.mark.parametrize("memory", ["array", "array.base"])
def test_a_program_that_does_not_import_sharing_hears_of_it_where_it_gets(memory):
    told = run_code(
        "import accelrt, multiprocessing\n"
        "array = accelrt.full((3,), 1, 'int8')\n"
        "queue = multiprocessing.Queue()\n"
        f"queue.put({memory})\n"
        "try: queue.get(timeout=300)\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "put memory into a Queue that it could not share: NotSupportedError" in told
    assert "import accelrt.sharing before the first allocation" in told


def test_a_program_that_does_not_import_sharing_still_cannot_pickle_it():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(accelrt.full((3,), 1, "int8"))
