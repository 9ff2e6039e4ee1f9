"""Streams and graphs that CuPy destroys, by its stand-in on the host device: nothing names them any more."""

import contextlib

import pytest
import stand_in_cupy
from child import in_own_process

import accelrt
from accelrt.driver.host.driver import calls_of_gone_streams
from accelrt.interop import cupy as interop

pytestmark = pytest.mark.host
MIB = 1 << 20


@contextlib.contextmanager
def installed():
    with pytest.MonkeyPatch.context() as patch:
        cupy = stand_in_cupy.put_in_place(patch)
        interop.install()
        yield cupy
        interop.uninstall()


@pytest.mark.parametrize("how", ["idle", "captured", "in its capture"])
@in_own_process
def test_the_driver_is_not_asked_about_a_stream_that_cupy_destroyed(how):
    with installed() as cupy:
        stream, host = cupy.cuda.Stream(), cupy.cuda.alloc_pinned_memory(MIB)
        with stream:
            own = cupy.cuda.alloc(MIB)
        pointer = cupy.cuda.alloc(MIB)
        if how == "captured":
            with stream:
                stream.begin_capture()
                del pointer, host
                stream.end_capture()
        elif how == "in its capture":
            with stream:
                stream.begin_capture()
                del pointer, host
        else:
            del pointer, host
        del stream
        with cupy.cuda.Stream(accelrt.Stream()):
            cupy.cuda.alloc(3 * MIB)
            cupy.cuda.alloc_pinned_memory(3 * MIB)
        assert accelrt.memory_allocated(0) == MIB
        del own
        accelrt.synchronize()
        accelrt.empty_cache()
        accelrt.host_empty_cache()
        accelrt.memory.audit()
        assert accelrt.host_memory_stats()["active_requests.current"] == 0
        assert accelrt.memory_reserved(0) == 0
        assert calls_of_gone_streams() == 0


@in_own_process(printing="")
def test_a_stream_that_goes_at_exit_finds_what_it_needs():
    patch = pytest.MonkeyPatch()
    cupy = stand_in_cupy.put_in_place(patch)
    interop.install()
    stream = cupy.cuda.Stream()
    for name in [name for name in vars(interop) if not name.startswith("__")]:
        vars(interop)[name] = None  # as the interpreter does when it ends
    del stream


@in_own_process(ACCELRT_HOST_MEMORY="64MiB")
def test_memory_that_a_destroyed_stream_had_borrowed_goes_back():
    with installed() as cupy:
        streams = [cupy.cuda.Stream() for _ in range(33)]  # the device has room for 32 pages
        kept = []
        for stream in streams:
            with stream:
                kept.append(cupy.cuda.alloc(1))
        del stream, streams
        kept.clear()
        assert calls_of_gone_streams() == 0
        accelrt.memory.audit()
        accelrt.empty_cache()
        assert accelrt.memory_reserved(0) == 0


@in_own_process
def test_graphs_that_cupy_drops_hold_memory_up_to_a_bound():
    with installed() as cupy:
        reserved = 0
        for _ in range(300):  # each takes a page, of a device of 512
            stream = cupy.cuda.Stream()
            with stream:
                stream.begin_capture()
                pointer = cupy.cuda.alloc(1000)
                assert stream.rows.fill(0, stream.ptr, pointer.ptr, 7, 1, 1000) == 0
                graph = stream.end_capture()
            graph.launch(stream)
            del pointer, graph, stream
            reserved = max(reserved, accelrt.memory_reserved(0))
        assert reserved <= 136 * MIB  # 128 MiB, and the pages that come before the next capture begins
