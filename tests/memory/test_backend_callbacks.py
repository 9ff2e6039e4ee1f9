"""Memory from two Python functions: contents, records, errors of the functions, threads and locks.

The choice is a process's, so each scenario runs in one of its own, on the driver that the tests run on."""

import ctypes
import functools
import gc
import os
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
from backend_use import Books, capture, churn, figures, keep_shared, stay_within_a_limit
from beside import on_a_thread, on_threads
from child import in_child

import accelrt
from accelrt import memory

pytestmark = pytest.mark.own_process
DRIVER = os.environ.get("ACCELRT_DRIVER", "host")
MIB = 1 << 20


def plugged(**limits):
    books = Books(**limits)
    memory.change_current_allocator(books.allocator)
    return books


# --- what it does ---------------------------------------------------------------------------------


def contents_and_statistics():
    books = plugged()
    assert (memory.get_allocator_backend(), books.asked) == ("books", [])
    data, out = np.arange(3 * MIB + 7, dtype=np.uint8), np.zeros(3 * MIB + 7, np.uint8)
    stream = accelrt.Stream()
    buffers = [accelrt.Buffer(data.nbytes, stream=stream), accelrt.Buffer(1000)]
    assert books.asked == [(data.nbytes, 0, stream.cuda_stream), (1000, 0, 0)]
    buffers[0].copy_from(data, stream=stream)
    buffers[0].copy_to(out, stream=stream)
    assert (out == data).all()
    total = data.nbytes + 1000
    assert accelrt.memory_allocated() == accelrt.memory_reserved() == books.live == total
    array = accelrt.full((100, 3), 7.0, dtype=np.float32)
    assert (array.numpy() == 7).all()
    del array, buffers
    accelrt.empty_cache()
    assert (books.live, figures(), accelrt.max_memory_allocated()) == (0, (0, 0), total + 1200)
    memory.audit()


# --- what the functions raise ---------------------------------------------------------------------


def out_of_memory():
    books = plugged(limit=4 * MIB)
    held = accelrt.Buffer(3 * MIB)
    with pytest.raises(accelrt.OutOfMemoryError, match="backend 'books'") as caught:
        accelrt.Buffer(2 * MIB)
    assert (caught.value.requested, caught.value.live, caught.value.__cause__) == (2 * MIB, 3 * MIB, None)
    books.fails = MemoryError("the library is full")
    with pytest.raises(accelrt.OutOfMemoryError, match="backend 'books'") as caught:
        accelrt.caching_allocator_alloc(64)
    assert caught.value.__cause__ is books.fails
    books.fails = None
    freed = []
    memory.register_free_memory_callback(lambda device, size: freed.append(held.free()) or True)
    accelrt.Buffer(2 * MIB).free()
    assert (freed, accelrt.memory_stats()["num_ooms"]) == ([None], 2)
    books.fails = MemoryError("full for now")
    memory.register_free_memory_callback(lambda device, size: setattr(books, "fails", None) or True)
    accelrt.Buffer(64).free()
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        accelrt.Buffer(5 * MIB)
    assert caught.value.__cause__ is None, "an earlier refusal's"


class Held:
    """Allocates when it dies, as what the traceback of a refusal holds may do."""

    gone = 0

    def __del__(self):
        Held.gone += 1
        accelrt.Buffer(64).free()


def refusals_that_hold_things():
    books, full = Books(), [True]

    def allocate(size, device, stream):
        if size > 64 and full[0]:
            held = Held()
            raise MemoryError(f"full, but for {held!r}")
        return books.allocate(size, device, stream)

    memory.change_current_allocator(memory.CallbackAllocator(allocate, books.free))
    with pytest.raises(accelrt.OutOfMemoryError) as caught:
        accelrt.Buffer(MIB)
    assert (Held.gone, type(caught.value.__cause__)) == (1, MemoryError)
    del caught
    gc.collect()
    assert Held.gone == 2
    memory.register_free_memory_callback(lambda device, size: full.clear() or full.append(False) or True)
    accelrt.Buffer(MIB).free()
    gc.collect()
    assert Held.gone == 3, "a refusal stayed although the request was served"


def a_refusal_shows_what_was_handled():
    plugged(limit=0)
    try:
        raise LookupError("first")
    except LookupError:
        with pytest.raises(accelrt.OutOfMemoryError) as caught:
            accelrt.Buffer(64)
    assert isinstance(caught.value.__context__, LookupError)
    assert not caught.value.__suppress_context__


def other_exceptions():
    books = plugged()
    books.fails = ZeroDivisionError("by zero")
    text = r"the allocator 'books' failed: allocate\(64, device 0, stream 0x0\) raised ZeroDivisionError: by"
    with pytest.raises(RuntimeError, match=text) as caught:
        accelrt.Buffer(64)
    assert caught.value.__cause__ is books.fails
    books.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        accelrt.Buffer(64)
    books.fails, books.free = None, None
    assert figures() == (0, 0)
    accelrt.Buffer(64).free()
    memory.audit()


def wrong_answers():
    given = []
    allocator = memory.CallbackAllocator(lambda *arguments: given[-1], lambda *arguments: None)
    memory.change_current_allocator(allocator)
    for answer, text in (("0x10", "what it returned is '0x10' of type str"), (-5, "is -5; an address is")):
        given.append(answer)
        with pytest.raises(RuntimeError, match=text):
            accelrt.Buffer(64)
    for answer in (0, None):
        given.append(answer)
        with pytest.raises(accelrt.OutOfMemoryError):
            accelrt.Buffer(64)


def what_free_raises_is_told():
    told = []

    def allocate(size, device, stream):
        return 0x1000

    def free(address, size, device, stream):
        raise LookupError(address)

    sys.unraisablehook = told.append
    memory.change_current_allocator(memory.CallbackAllocator(allocate, free))
    accelrt.caching_allocator_delete(accelrt.caching_allocator_alloc(64))
    assert [(type(each.exc_value), each.exc_value.args, each.object) for each in told] == [
        (LookupError, (0x1000,), free)
    ]
    assert figures() == (0, 0), "it counts as given back"

    def fails():
        held = accelrt.Buffer(64)
        raise KeyError(held.nbytes)

    with pytest.raises(KeyError, match="64"):
        fails()
    gc.collect()
    assert len(told) == 2


# --- threads, locks, and functions that use accelrt -----------------------------------------------


def one_that_asks_accelrt():
    allocator = memory.CallbackAllocator(accelrt.caching_allocator_alloc, print)
    memory.change_current_allocator(allocator)
    with pytest.raises(RuntimeError, match="asks accelrt for the memory, which asks it"):
        accelrt.Buffer(64)
    assert figures() == (0, 0)


class NestedBooks(Books):
    """Allocates, frees and empties the cache inside of its functions."""

    inside = False

    def busy(self):
        if not self.inside:
            self.inside = True
            with accelrt.Buffer(MIB):
                accelrt.empty_cache()
            self.inside = False

    def allocate(self, *given):
        self.busy()
        return super().allocate(*given)

    def free(self, *given):
        self.busy()
        super().free(*given)


def nested_uses():
    # What runs inside of a function, a collection say, may free, allocate and empty the cache; so too in the
    # ladder of a request that waits for what is leaving.
    books, other, gate = NestedBooks(8 * MIB), accelrt.Stream(), threading.Event()
    memory.change_current_allocator(memory.CallbackAllocator(books.allocate, books.free))
    buffer = accelrt.Buffer(5 * MIB)
    buffer.record_stream(other)
    other.launch_host_func(gate.wait)
    buffer.free()

    threading.Timer(0.2, gate.set).start()
    accelrt.Buffer(6 * MIB).free()
    accelrt.empty_cache()
    assert (books.live, figures()) == (0, (0, 0))
    memory.audit()


def without_python():
    # Nogil code, on a thread that has no thread state.
    books, told = plugged(), []
    accelrt.Buffer(64).free()
    symbols = ctypes.CDLL(memory.library_path())
    allocate, free = symbols.accelrt_torch_alloc, symbols.accelrt_torch_free
    allocate.argtypes, allocate.restype = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p], None
    address = allocate(1000, 0, None)
    assert books.live == 1000
    free(address, 1000, 0, None)
    sys.unraisablehook = told.append
    books.fails = ValueError("no")
    assert allocate(1000, 0, None) is None
    assert [type(each.exc_value) for each in told] == [RuntimeError]
    assert (books.live, figures()) == (0, (0, 0))


def held_to_the_end():
    # Neither function is called once the interpreter ends.
    books = plugged()
    globals()["kept"] = accelrt.Buffer(64)
    books.held = books.asked = None


def shared_memory_stays():
    books = plugged()
    keep_shared(lambda: books.live, free_waits=True)


def a_limit_holds():
    books = plugged()
    stay_within_a_limit(lambda: len(books.asked))


def threads():
    books = plugged()
    churn(lambda: books.live, empties=True)
    assert len(books.asked) == 400


def captures():
    books = plugged()
    capture(lambda: books.live, "backend 'books'")


def a_capture_while_memory_goes_back():
    """A capture waits until nobody is taking memory back, but for its own thread."""
    books = Books()

    def free(*arguments):
        capture_nothing()
        books.free(*arguments)

    memory.change_current_allocator(memory.CallbackAllocator(books.allocate, free))
    on_a_thread(lambda: accelrt.Buffer(MIB).free(), timeout=300)
    assert books.freed == [MIB]


def captures_while_memory_goes_back():
    """Two threads take memory back, and both functions begin a capture: neither waits for the other."""
    books, inside = Books(), threading.Barrier(2, timeout=300)

    def free(*arguments):
        inside.wait()
        capture_nothing()
        books.free(*arguments)

    memory.change_current_allocator(memory.CallbackAllocator(books.allocate, free))
    on_threads(lambda index: accelrt.Buffer(MIB + index).free(), range(2), timeout=300)
    assert sorted(books.freed) == [MIB, MIB + 1]


def both_in_free(first, second):
    """Two threads run functions that take memory back: in `free` each runs its second one."""
    books, inside, within = Books(limit=4 * MIB), threading.Barrier(2), {}

    def free(*arguments):
        books.free(*arguments)
        if action := within.pop(threading.get_ident(), None):
            with suppress(threading.BrokenBarrierError):  # where the other one waits for what this one holds
                inside.wait(timeout=1)
            action()

    def run(functions):
        begin, within[threading.get_ident()] = functions
        begin()

    memory.change_current_allocator(memory.CallbackAllocator(books.allocate, free))
    for device in (0, 1):
        leave_memory(device)
    on_threads(run, (first, second), timeout=300)
    accelrt.empty_cache()  # what was freed beside the capture
    assert books.live == 0


def leave_memory(device):
    """Memory that is freed and does not go back before something asks how far its work is."""
    work, stream = threading.Event(), accelrt.Stream(device=device)
    stream.launch_host_func(work.wait)
    leaving = accelrt.Buffer(MIB, device=device)
    leaving.record_stream(stream)
    leaving.free()
    work.set()
    stream.synchronize()


def refuse(device):
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(8 * MIB, device=device)


def a_capture_beside_a_refusal():
    refuses_0 = functools.partial(refuse, 0)
    both_in_free((refuses_0, capture_nothing), (lambda: accelrt.Buffer(MIB).free(), refuses_0))


def refusals_of_two_devices():
    refuses_0, refuses_1 = functools.partial(refuse, 0), functools.partial(refuse, 1)
    both_in_free((refuses_0, refuses_1), (refuses_1, refuses_0))


def capture_nothing():
    with accelrt.graph(accelrt.CUDAGraph(), stream=accelrt.Stream(), capture_error_mode="relaxed"):
        accelrt.current_stream().launch_host_func(int)


SCENARIOS = [contents_and_statistics, shared_memory_stays, a_limit_holds, out_of_memory, other_exceptions]
SCENARIOS += [wrong_answers, what_free_raises_is_told, one_that_asks_accelrt, nested_uses, threads, captures]
SCENARIOS += [without_python, held_to_the_end, refusals_that_hold_things, a_refusal_shows_what_was_handled]
SCENARIOS += [a_capture_while_memory_goes_back, captures_while_memory_goes_back, a_capture_beside_a_refusal]
SCENARIOS += [refusals_of_two_devices]
OF_TWO_DEVICES = [a_capture_beside_a_refusal, refusals_of_two_devices]


@pytest.mark.parametrize("function", SCENARIOS, ids=lambda function: function.__name__)
def test_functions_as_an_allocator(function):
    if function in OF_TWO_DEVICES and accelrt.device_count() < 2:
        pytest.skip("needs two devices")
    assert "Traceback" not in in_child(function, ACCELRT_DRIVER=DRIVER)


def test_what_is_no_allocator_is_refused():
    with pytest.raises(TypeError, match="None of type NoneType cannot be called; pass a callable as alloc"):
        memory.CallbackAllocator(None, print)
    with pytest.raises(TypeError, match=r"3 of type int cannot be called; pass a callable as free\(address"):
        memory.CallbackAllocator(print, 3)
    with pytest.raises(TypeError, match="name is b'a' of type bytes; pass a str"):
        memory.CallbackAllocator(print, print, b"a")
    for name in ("", "native", "a\0b"):
        with pytest.raises(ValueError, match="pass a name that no backend"):
            memory.CallbackAllocator(print, print, name)
    allocator = memory.CallbackAllocator(print, len, "mine")
    assert (allocator.allocate, allocator.free, allocator.name) == (print, len, "mine")
    assert repr(allocator).startswith("<accelrt.memory.CallbackAllocator 'mine'")
    with pytest.raises(RuntimeError, match="initialised once"):
        allocator.__init__(print, len)
    gc.collect()
