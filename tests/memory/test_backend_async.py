"""The backend cudaMallocAsync: on a stand-in for NVIDIA's library, call by call; on a device, for real."""

import ctypes
import os
import threading

import numpy as np
import pytest
from child import in_child
from compiled import compile_libcuda
from device_arrays import bytes_of

import accelrt
from accelrt import memory
from accelrt.interop import cupy_memory

pytestmark = pytest.mark.own_process
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
MIB = 1 << 20
A, B, C = 0x300, 0x310, 0x320  # streams
CAPTURING, GONE = 0x777, 0x888  # what the stand-in says of them


# --- on the stand-in ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    return {
        "LD_LIBRARY_PATH": compile_libcuda(tmp_path_factory.mktemp("libcuda")),
        "ACCELRT_DRIVER": "cuda",
        "FAKE_POOL": "8",
    }


def started():
    """Chooses the backend, makes the pool, and returns what reads the calls since it was last asked."""
    memory.select_backend("cudaMallocAsync")
    assert memory.get_allocator_backend() == "cudaMallocAsync"
    free(alloc(1))
    library, text = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(1 << 16)

    def calls():
        library.fake_calls(text)
        return text.value.decode().splitlines()

    first = calls()
    assert first == [f"set 4 to {(1 << 64) - 1}", "alloc 1 on 0", "free 1 on 0"], first
    accelrt.reset_accumulated_memory_stats(0)
    return calls


def alloc(size, stream=0):
    return accelrt.caching_allocator_alloc(size, 0, stream)


def free(address):
    accelrt.caching_allocator_delete(address)


def figures():
    stats = accelrt.memory_stats(0)
    names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
    return tuple(stats[f"{name}.all.current"] for name in names)


def one_call_each():
    calls = started()
    one, two = alloc(1000, A), alloc(3 * MIB, B)
    assert calls() == [f"alloc 1000 on {A:#x}", f"alloc {3 * MIB} on {B:#x}"]
    total = 3 * MIB + 1000
    assert figures() == (total, total, total, total + 1)
    assert accelrt.memory_reserved(0) == total + 1
    free(two)
    free(one)
    assert calls() == [f"free 3 on {B:#x}", f"free 2 on {A:#x}"]
    assert figures() == (0, 0, 0, total + 1)
    stats = accelrt.memory_stats(0)
    assert (stats["num_device_alloc"], stats["num_device_free"], stats["segment.all.current"]) == (2, 2, 0)
    assert accelrt.max_memory_reserved(0) == total + 1
    accelrt.empty_cache()
    assert calls()[-1] == "trim"
    accelrt.reset_peak_memory_stats(0)
    assert (accelrt.memory_reserved(0), accelrt.max_memory_reserved(0)) == (0, 0)
    with pytest.raises(accelrt.NotSupportedError, match="cudaMallocAsync"):
        accelrt.memory_snapshot(0)
    memory.audit()


def shared_memory_follows():
    calls = started()
    address = alloc(512, A)
    for stream in (B, C, B, A):
        accelrt.record_stream(address, stream)
    calls()
    free(address)
    *order, last = calls()
    outlet = order[1].removeprefix("wait on ")
    assert [line for line in order if line.startswith("wait")] == [f"wait on {outlet}"] * 3
    assert order[0::2] == [f"record on {A:#x}", f"record on {C:#x}", f"record on {B:#x}"]
    assert last == f"free 2 on {outlet}"
    assert int(outlet, 16) not in (0, A, B, C)


def a_capturing_sharer_is_left_alone():
    calls = started()
    address = alloc(512, A)
    accelrt.record_stream(address, CAPTURING)
    calls()
    free(address)
    assert not any("free" in line or f"{CAPTURING:#x}" in line for line in calls())
    assert figures()[:2] == (0, 512)
    free(alloc(64))
    assert not any(line.startswith("free 2") for line in calls())
    memory.audit()


def streams_that_are_gone():
    calls = started()
    shared, own = alloc(512, A), alloc(512, GONE)
    accelrt.record_stream(shared, GONE)
    accelrt.record_stream(own, A)
    calls()
    free(shared)
    free(own)
    free(alloc(64, GONE))
    freed = [line for line in calls() if line.startswith("free")]
    outlet = freed[0].split()[-1]
    assert freed == [f"free {n} on {outlet}" for n in (2, 3, 4)]
    assert int(outlet, 16) not in (A, GONE)
    assert figures()[:2] == (0, 0)
    free(alloc(64))
    memory.audit()


def streams_that_go():
    calls = started()
    shared, own, freed = alloc(512, A), alloc(512, B), alloc(512, B)
    accelrt.record_stream(shared, B)
    accelrt.record_stream(freed, CAPTURING)
    free(freed)
    calls()
    cupy_memory.stream_goes(0, B)
    outlet = calls()[-1].split()[-1]
    cupy_memory.stream_goes(0, CAPTURING)
    calls()
    free(shared)
    free(own)
    free(alloc(64, C))
    freed = [line for line in calls() if line.startswith("free")]
    assert sorted(freed) == sorted(
        [f"free 2 on {A:#x}", *(f"free {n} on {outlet}" for n in (3, 4)), f"free 5 on {C:#x}"]
    )
    assert figures()[:2] == (0, 0)
    memory.audit()


def a_stream_that_goes_at_work():
    calls = started()
    shared, own = alloc(512, A), alloc(512, B)
    accelrt.record_stream(shared, B)
    calls()
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_busy(1)
    assert cupy_memory.stream_goes(0, B)
    record, wait = calls()
    heir = wait.removeprefix("wait on ")
    assert record == f"record on {B:#x}"
    free(own)
    assert calls() == [f"free 3 on {heir}"]
    free(shared)
    *order, last = calls()
    assert order[0::2] == [f"record on {A:#x}", f"record on {heir}"]
    assert last.startswith("free 2 on ")
    library.fake_busy(0)
    assert figures()[:2] == (0, 0)
    memory.audit()


def a_trim_waits_for_the_streams_that_gave():
    calls = started()
    kept = accelrt.Stream()
    own = f"{kept.cuda_stream:#x}"
    for stream in (kept.cuda_stream, A, kept.cuda_stream):
        free(alloc(512, stream))
    calls()
    accelrt.empty_cache()
    waits = calls()
    assert waits[-3:] == [f"record on {own}", "synchronize", "trim"]
    assert not any(f"{A:#x}" in line for line in waits)  # it may have been destroyed since
    accelrt.empty_cache()
    assert not any(own in line for line in calls())
    memory.audit()


def out_of_memory():
    calls = started()
    kept, gone = alloc(3 * MIB, A), alloc(4 * MIB, A)
    free(gone)
    calls()
    again = alloc(4 * MIB, B)  # the pool is in pieces: what is given back goes back to the device first
    asked = f"alloc {4 * MIB} on {B:#x}"
    trims = [line for stream in (f"{B:#x}", "0") for line in (f"record on {stream}", "synchronize", "trim")]
    assert calls() == [asked, *trims, asked]  # on 0 memory was given back, and A may be gone
    with pytest.raises(accelrt.OutOfMemoryError, match="backend 'cudaMallocAsync'") as caught:
        alloc(2 * MIB, B)
    assert (caught.value.live, caught.value.requested) == (7 * MIB, 2 * MIB)
    stats = accelrt.memory_stats(0)
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)
    free(again)
    free(kept)
    memory.audit()


def out_of_memory_beside_work():
    calls = started()
    kept, gone = alloc(3 * MIB, A), alloc(4 * MIB, A)
    free(gone)
    calls()
    library, taken = ctypes.CDLL("libcuda.so.1"), []
    library.fake_busy(1)
    thread = threading.Thread(target=lambda: taken.append(alloc(4 * MIB, B)))
    thread.start()
    while not library.fake_waiting():
        assert thread.is_alive()
    asked = f"alloc {4 * MIB} on {B:#x}"
    assert calls() == [asked, f"record on {B:#x}", "synchronize"]
    library.fake_busy(0)
    thread.join()
    assert calls() == ["synchronize", "trim", "record on 0", "synchronize", "trim", asked]
    free(taken[0])
    free(kept)
    memory.audit()


def a_limit():
    calls = started()
    accelrt.set_per_process_memory_fraction(2 / 1024, 0)  # the stand-in's devices have 1 GiB
    kept = alloc(MIB, A)
    calls()
    with pytest.raises(accelrt.OutOfMemoryError, match=r"may reserve 2\.00 MiB of the device"):
        alloc(MIB + 1, A)
    assert not any(line.startswith("alloc") for line in calls())
    free(kept)
    free(alloc(2 * MIB, A))


@pytest.mark.parametrize(
    "function",
    [
        one_call_each,
        shared_memory_follows,
        a_capturing_sharer_is_left_alone,
        streams_that_are_gone,
        streams_that_go,
        a_stream_that_goes_at_work,
        a_trim_waits_for_the_streams_that_gave,
        out_of_memory,
        out_of_memory_beside_work,
        a_limit,
    ],
    ids=lambda function: function.__name__,
)
def test_the_calls_of_the_driver(stand_in, function):
    in_child(function, **stand_in)


def refused_and_mended():
    memory.select_backend("cudaMallocAsync")
    assert accelrt.memory_allocated(0) == 0
    for use in (lambda: accelrt.caching_allocator_alloc(64, 0), lambda: accelrt.Buffer(64, 0)):
        with pytest.raises(accelrt.NotSupportedError, match=r"no stream-ordered memory pool.*'native'"):
            use()
    memory.select_backend("native")


def test_a_driver_without_the_pool_is_told_at_first_use(stand_in):
    in_child(refused_and_mended, **stand_in | {"FAKE_MISSING": "cuMemPoolSetAttribute"})


# --- on a device ----------------------------------------------------------------------------------


def real_contents():
    memory.select_backend("cudaMallocAsync")
    data, out = np.arange(5 * MIB, dtype=np.uint8), np.zeros(5 * MIB, np.uint8)
    first, second = accelrt.Stream(), accelrt.Stream()
    for _ in range(20):
        with accelrt.Buffer(data.nbytes, stream=first) as x, accelrt.Buffer(data.nbytes, stream=second) as y:
            x.copy_from(data, stream=first)
            y.copy_from(x, stream=second)
            y.copy_to(out, stream=second)
            assert (out == data).all()
            assert accelrt.memory_allocated() == 2 * data.nbytes
            out[:] = 0
    assert accelrt.memory_reserved() >= 2 * data.nbytes
    accelrt.synchronize()
    accelrt.empty_cache()
    assert (accelrt.memory_allocated(), accelrt.memory_reserved()) == (0, 0)
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(1 << 50)
    accelrt.Buffer(MIB).free()
    memory.audit()


def real_events():
    memory.select_backend("cudaMallocAsync")
    shared, stream = accelrt.Buffer(MIB), accelrt.Stream()
    shared.record_stream(stream)
    shared.free()
    accelrt.synchronize()
    accelrt.empty_cache()
    if ON_HOST:
        from accelrt.driver.host import driver

        assert driver.live_objects().get("events", 0) == 0


def real_order():
    # Freed while another stream still reads it, then asked for and overwritten on the first: the reader, held
    # by the gate, sees what was there.
    memory.select_backend("cudaMallocAsync")
    gate, first, second = threading.Event(), accelrt.Stream(), accelrt.Stream()
    kept, shared = accelrt.Buffer(MIB, stream=second), accelrt.Buffer(MIB, stream=first)
    shared.fill(7, stream=first)
    first.synchronize()
    second.launch_host_func(gate.wait)
    accelrt.copy(kept, shared, stream=second, blocking=False)
    shared.free()
    for _ in range(8):
        with accelrt.Buffer(MIB, stream=first) as other:
            other.fill(9, stream=first)
    gate.set()
    assert (bytes_of(kept, second) == 7).all()
    memory.audit()


def real_capture():
    memory.select_backend("cudaMallocAsync")
    graph, stream, buffer = accelrt.CUDAGraph(), accelrt.Stream(), accelrt.Buffer(4096)
    dropped = accelrt.Buffer(4096, stream=stream)
    with accelrt.graph(graph, stream=stream):
        buffer.fill(3, stream=stream)
        with pytest.raises(accelrt.NotSupportedError, match="capturing"):
            accelrt.Buffer(4096, stream=stream)
        dropped.free()
    assert accelrt.memory_stats()["active_bytes.all.current"] == 4096
    for _ in range(3):
        with accelrt.stream(stream):
            graph.replay()
    assert (bytes_of(buffer, stream) == 3).all()
    memory.audit()


@pytest.mark.parametrize(
    "function", [real_contents, real_events, real_order, real_capture], ids=lambda function: function.__name__
)
def test_on_the_device(function):
    in_child(function, ACCELRT_DRIVER="host" if ON_HOST else "cuda")
