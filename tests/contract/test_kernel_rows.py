"""Rows about modules and kernels: a driver fills all of them or none."""

import ctypes
import threading

import numpy as np
import pytest

NOT_FOUND, NOT_SUPPORTED = 500, 801
BLOCKS, THREADS = 4, 64
# Each thread writes value + its own number into 32 bits of `at`.
PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .entry number(.param .u64 at, .param .u32 value)
{
    .reg .u32 %r<6>;
    .reg .u64 %rd<5>;
    ld.param.u64 %rd1, [at];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd2, %rd3;
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%rd4], %r5;
    ret;
}
"""


@pytest.fixture
def module(rows):
    """A module of one kernel; None where the driver has no kernels."""
    code, made = rows.module_load(0, PTX)
    if code == NOT_SUPPORTED:
        assert rows.driver == "host"
        yield None
        return
    assert code == 0
    yield made
    rows.ok("module_unload", 0, made)


def launch(rows, function, stream, at, value):
    """Launches the kernel; the arguments are read before the row returns."""
    values = ctypes.c_uint64(at), ctypes.c_uint32(value)
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    size = BLOCKS, 1, 1, THREADS, 1, 1
    return rows.kernel_launch(0, stream, function, *size, 0, ctypes.addressof(pointers))


def numbers(value):
    return np.arange(value, value + BLOCKS * THREADS, dtype=np.uint32)


def test_a_driver_without_kernels_says_so(rows, module):
    if module is None:
        assert rows.module_unload(0, 1) == NOT_SUPPORTED
        assert rows.module_function(1, b"number")[0] == NOT_SUPPORTED
        assert launch(rows, 1, 0, 0, 0) == NOT_SUPPORTED


def test_a_kernel_is_found_by_name_and_runs_in_order(rows, module):
    if module is None:
        return
    assert rows.module_function(module, b"none")[0] == NOT_FOUND
    function = rows.ok("module_function", module, b"number")
    stream, at = rows.stream(), rows.ok("memory_alloc", 0, 4096)
    for value in (1, 2, 3):
        assert launch(rows, function, stream, at, value) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(at, 4 * BLOCKS * THREADS).view(np.uint32) == numbers(3)).all()
    rows.ok("memory_free", 0, at)
    rows.ok("stream_destroy", 0, stream)


def test_a_kernel_is_captured_with_its_arguments(rows, module):
    if module is None:
        return
    function = rows.ok("module_function", module, b"number")
    stream, at = rows.stream(), rows.ok("memory_alloc", 0, 4096)
    rows.ok("capture_begin", 0, stream, 0)
    assert launch(rows, function, stream, at, 9) == 0
    graph = rows.ok("capture_end", 0, stream)
    assert rows.ok("graph_node_count", graph) == 1
    exec_ = rows.ok("graph_instantiate", 0, graph, 0)
    rows.ok("graph_destroy", graph)
    rows.ok("graph_launch", 0, exec_, stream)
    rows.ok("stream_synchronize", 0, stream)
    assert (rows.read(at, 4 * BLOCKS * THREADS).view(np.uint32) == numbers(9)).all()
    rows.ok("graph_exec_destroy", exec_)
    rows.ok("memory_free", 0, at)
    rows.ok("stream_destroy", 0, stream)


def test_a_thread_that_chose_no_device_may_launch(rows, module):
    if module is None:
        return
    function = rows.ok("module_function", module, b"number")
    stream, at, codes = rows.stream(), rows.ok("memory_alloc", 0, 4096), []

    def work():
        codes.extend(launch(rows, function, on, at, 5) for on in (0, stream))
        codes.append(rows.current_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0, 0, (0, -1)]
    rows.ok("device_synchronize", 0)
    rows.ok("memory_free", 0, at)
    rows.ok("stream_destroy", 0, stream)


@pytest.mark.parametrize("image", [b"garbage", b".version 7.0\n.target sm_52\nnonsense"])
def test_an_image_that_is_none_is_refused(rows, image):
    code, made = rows.module_load(0, image)
    assert code != 0
    assert made == 0
