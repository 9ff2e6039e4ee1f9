"""Rows about modules, functions and launches; a kernel is PTX on a GPU, a C function on the host."""

import ctypes

import pytest
from beside import on_a_thread
from capturing import instantiated, run
from compiled import compile_source
from kernel_sources import PTX, SOURCE, launch, numbers, read, with_arguments

INVALID_VALUE, INVALID_HANDLE, NOT_FOUND, NOT_SUPPORTED, TOO_LARGE = 1, 400, 500, 801, 720
INVALID_DEVICE, CAPTURE_UNSUPPORTED = 101, 900
THREADS_ATTRIBUTE, DYNAMIC_ATTRIBUTE, CARVEOUT_ATTRIBUTE, WIDE_ATTRIBUTE = 0, 8, 9, 14
SHARED, OPT_IN = 8, 97  # device attributes: bytes of shared memory for a block, by default and at most


def test_a_kernel_is_found_by_name_and_runs_in_order(rows, module, stream, device):
    assert rows.module_function(module, b"none") == (NOT_FOUND, 0)
    function = rows.ok("module_function", module, b"number")
    for value in (1, 2, 3):
        assert launch(rows, function, stream, device, value) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert (read(rows, device) == numbers(3)).all()


def test_a_function_tells_its_name(rows, function):
    assert rows.function_name(function) in [(0, "number"), (NOT_SUPPORTED, "")]
    if rows.driver == "host":
        assert rows.function_name(12345) == (INVALID_HANDLE, "")


def test_a_kernel_is_captured_with_its_arguments(rows, function, stream, device):
    rows.ok("capture_begin", 0, stream, 0)
    assert launch(rows, function, stream, device, 9) == 0
    graph = rows.ok("capture_end", 0, stream)
    assert rows.ok("graph_node_count", graph) == 1
    exec_ = instantiated(rows, graph)
    run(rows, exec_, stream)
    assert (read(rows, device) == numbers(9)).all()


def test_a_thread_that_chose_no_device_may_launch(rows, function, stream, device):
    def work():
        return *(launch(rows, function, on, device, 5) for on in (0, 2, stream)), rows.current_device()

    assert on_a_thread(work) == (0, 0, 0, (0, -1))
    rows.ok("device_synchronize", 0)


@pytest.mark.parametrize("given", [b"garbage", b".version 7.0\n.target sm_52\nnonsense", b"/no/such.so"])
def test_an_image_that_is_none_is_refused(rows, given):
    code, made = rows.module_load(0, given)
    assert code != 0
    assert made == 0


def test_the_log_of_an_image_tells_what_is_wrong_with_it(rows, image):
    given, said = b"/no/such.so", "/no/such.so: cannot open shared object file"
    if rows.driver == "cuda":
        given, said = PTX.replace(b"mov.u32 %r2", b"move.u32 %r2", 1), "fatal"
    assert said in rows.ok("module_log", 0, given)
    assert rows.ok("module_log", 0, image) == ""
    assert rows.module_log(99, image)[0] == INVALID_DEVICE


def test_an_image_is_loaded_from_bytes_twice_and_from_a_path(rows, image, tmp_path):
    modules = [rows.ok("module_load", 0, image) for _ in range(2)]
    if rows.driver == "host":
        path = compile_source(SOURCE, tmp_path, "number")
        modules.append(rows.ok("module_load", 0, str(path).encode()))
    functions = [rows.ok("module_function", module, b"number") for module in modules]
    assert len({*modules, *functions}) == 2 * len(modules)
    for module in modules:
        rows.ok("module_unload", 0, module)


def test_parameters_are_told_by_offset_and_size(rows, function):
    first = rows.function_parameter(function, 0)
    if first[0] == NOT_SUPPORTED:  # a driver before CUDA 12.4
        return
    assert first == (0, 0, 8)
    assert rows.ok("function_parameter", function, 1) == (8, 4)
    assert rows.function_parameter(function, 2)[0] == INVALID_VALUE


def test_attributes_are_told_and_the_shared_memory_is_set(rows, function):
    assert rows.ok("function_attribute", function, THREADS_ATTRIBUTE) == 1024
    default, most = (rows.ok("device_attribute", 0, number) for number in (SHARED, OPT_IN))
    assert rows.ok("function_attribute", function, DYNAMIC_ATTRIBUTE) == default
    rows.ok("function_attribute_set", function, DYNAMIC_ATTRIBUTE, most)
    assert rows.ok("function_attribute", function, DYNAMIC_ATTRIBUTE) == most
    assert rows.function_attribute_set(function, DYNAMIC_ATTRIBUTE, most + 1) == INVALID_VALUE
    assert rows.function_attribute_set(function, THREADS_ATTRIBUTE, 1) == INVALID_VALUE
    assert rows.function_attribute(function, 999)[0] == INVALID_VALUE
    rows.ok("function_attribute_set", function, CARVEOUT_ATTRIBUTE, 40)
    assert rows.ok("function_attribute", function, CARVEOUT_ATTRIBUTE) == 40
    assert rows.function_attribute_set(function, CARVEOUT_ATTRIBUTE, 101) == INVALID_VALUE


@pytest.mark.parametrize(
    "given",
    [
        {"grid": (0, 1, 1)},
        {"grid": (1, 65536, 1)},
        {"grid": (1 << 31, 1, 1)},
        {"block": (0, 1, 1)},
        {"block": (1025, 1, 1)},
        {"block": (32, 33, 1)},
        {"block": (1, 1, 65)},
        {"shared": (48 << 10) + 1},
        {"shared": 1 << 30},
    ],
)
def test_a_launch_beyond_the_limits_is_refused(rows, function, stream, device, given):
    assert launch(rows, function, stream, device, 0, **given) == INVALID_VALUE
    rows.ok("stream_synchronize", 0, stream)


def test_a_launch_has_as_much_shared_memory_as_the_attribute_permits(rows, function, stream, device):
    most = rows.ok("device_attribute", 0, OPT_IN)
    rows.ok("function_attribute_set", function, DYNAMIC_ATTRIBUTE, most)
    assert launch(rows, function, stream, device, 1, shared=most) == 0
    rows.ok("stream_synchronize", 0, stream)


def test_no_function_and_a_stream_that_is_none_are_refused(rows, stream, device):
    assert launch(rows, 0, stream, device, 0) == INVALID_HANDLE


@pytest.mark.host
def test_handles_of_the_host_device_that_are_none_are_refused(rows, on_host, function, stream, device):
    assert launch(rows, function, 12345, device, 0) == INVALID_HANDLE
    assert launch(rows, 12345, stream, device, 0) == INVALID_HANDLE
    assert rows.kernel_launch(0, stream, function, 1, 1, 1, 1, 1, 1, 0, 0) == INVALID_VALUE
    other = rows.ok("stream_create", 1, 1, 0)
    assert launch(rows, function, other, device, 0) == INVALID_HANDLE
    assert rows.kernel_launch(1, other, function, 1, 1, 1, 1, 1, 1, 0, 0) == INVALID_HANDLE
    rows.ok("stream_destroy", 1, other)
    assert rows.module_unload(0, 12345) == rows.module_function(12345, b"number")[0] == INVALID_HANDLE


def extended(rows, function, stream, at, grid, flags, cluster):
    return with_arguments(
        at,
        4,
        lambda pointers: rows.kernel_launch_with(
            0, stream, function, *grid, 64, 1, 1, 0, pointers, flags, *cluster
        ),
    )


def test_a_cooperative_launch_runs_and_is_refused_where_it_does_not_fit(rows, function, stream, device):
    assert extended(rows, function, stream, device, (4, 1, 1), 1, (0, 0, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert (read(rows, device) == numbers(4)).all()
    assert extended(rows, function, stream, device, (1 << 20, 1, 1), 1, (0, 0, 0)) == TOO_LARGE


def test_a_programmatic_launch_runs(rows, function, stream, device):
    if rows.driver == "cuda" and rows.ok("device_attribute", 0, 75) < 9:
        pytest.skip("programmatic launches need compute capability 9.0")
    assert extended(rows, function, stream, device, (4, 1, 1), 2, (0, 0, 0)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert (read(rows, device) == numbers(4)).all()


def test_clusters_divide_the_grid(rows, function, stream, device):
    if rows.driver == "cuda" and rows.ok("device_attribute", 0, 75) < 9:
        pytest.skip("clusters need compute capability 9.0")
    assert extended(rows, function, stream, device, (4, 1, 1), 0, (2, 1, 1)) == 0
    rows.ok("stream_synchronize", 0, stream)
    assert (read(rows, device) == numbers(4)).all()
    assert extended(rows, function, stream, device, (3, 1, 1), 0, (2, 1, 1)) != 0
    assert rows.ok("occupancy_clusters", 0, function, 4, 1, 1, 64, 1, 1, 0, 2, 1, 1) > 0
    assert rows.ok("occupancy_cluster_size", 0, function, 4, 1, 1, 64, 1, 1, 0) == 8
    if rows.driver == "host":
        assert rows.occupancy_cluster_size(0, function, 4, 1, 1, 2048, 1, 1, 0)[0] == INVALID_VALUE
    rows.ok("function_attribute_set", function, WIDE_ATTRIBUTE, 1)
    assert rows.ok("function_attribute", function, WIDE_ATTRIBUTE) == 1
    assert rows.ok("occupancy_cluster_size", 0, function, 16, 1, 1, 64, 1, 1, 0) >= 8


def test_occupancy_is_told(rows, function):
    most = rows.ok("occupancy_blocks", function, 1024, 0)
    assert 1 <= most <= rows.ok("occupancy_blocks", function, 64, 0)
    assert rows.occupancy_blocks(function, 0, 0)[0] == INVALID_VALUE
    grid, block = rows.ok("occupancy_block_size", function, 0, 0)
    assert grid >= 1
    assert 32 <= block <= 1024
    assert rows.ok("occupancy_block_size", function, 0, 128)[1] <= 128
    nbytes = rows.ok("occupancy_shared", function, 2, 64)
    assert 0 < nbytes <= rows.ok("device_attribute", 0, SHARED)
    assert rows.ok("occupancy_blocks", function, 64, nbytes) >= 2
    if rows.driver == "host":
        assert rows.occupancy_shared(function, 0, 64)[0] == INVALID_VALUE


def test_a_global_of_a_module_has_an_address(rows, module):
    code, address, size = rows.module_global(module, b"total")
    assert (code, size) == (0, 4)
    assert rows.read(address, 4)[0] == 7
    assert rows.module_global(module, b"none")[0] == NOT_FOUND
    assert rows.ok("pointer_device", address) == 0
    assert rows.module_global(module, b"total") == (0, address, 4)
    rows.ok("fill", 0, 0, address, 9, 4, 1)
    rows.ok("stream_synchronize", 0, 0)
    assert rows.read(address, 4)[0] == 9
    assert rows.memory_free(0, address) != 0


def test_a_function_of_the_host_is_a_module_of_its_own(rows):
    sizes = (ctypes.c_size_t * 2)(8, 4)
    given = 0, 4096, b"mine", 2, ctypes.addressof(sizes)
    code, made = rows.raw.module_register(*given)  # which the fixture does not count
    if rows.driver == "cuda":
        assert code == NOT_SUPPORTED
        return
    function = rows.ok("module_function", made, b"mine")
    assert rows.ok("function_parameter", function, 1) == (8, 4)
    assert rows.raw.module_unload(0, made) == 0
    assert rows.function_parameter(function, 0)[0] == INVALID_HANDLE
    assert rows.module_register(0, 0, b"mine", 0, 0) == (INVALID_VALUE, 0)
    assert rows.module_register(0, 4096, b"mine", 1, 0) == (INVALID_VALUE, 0)


@pytest.mark.host
def test_a_symbol_without_its_parameters_is_no_kernel(rows, on_host, module):
    assert rows.module_function(module, b"unsized")[0] == NOT_FOUND


@pytest.mark.host
def test_a_module_lives_until_its_work_is_done(rows, on_host, image, stream, device):
    module = rows.ok("module_load", 0, image)
    function = rows.ok("module_function", module, b"number")
    held = rows.gate(stream)
    assert launch(rows, function, stream, device, 6) == 0
    rows.ok("module_unload", 0, module)
    assert launch(rows, function, stream, device, 7) == INVALID_HANDLE
    held.set()
    rows.ok("stream_synchronize", 0, stream)
    assert (read(rows, device) == numbers(6)).all()


def test_code_is_loaded_beside_a_capture_by_who_is_relaxed(rows, image, stream):
    rows.ok("capture_begin", 0, stream, 0)
    before = rows.ok("capture_mode_exchange", 2)
    module = rows.ok("module_load", 0, image)
    rows.ok("module_unload", 0, module)
    rows.ok("capture_mode_exchange", before)
    rows.ok("graph_destroy", rows.ok("capture_end", 0, stream))
