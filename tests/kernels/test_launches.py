"""Launches: what they are given, on which streams and threads, and what is refused."""

import ctypes

import numpy as np
import pytest
from beside import on_threads
from kernel_sources import numbers

import accelrt
from accelrt.arrays.exchange import zeros
from accelrt.driver.registry import Rows

COUNT = 256


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_double), ("second", ctypes.c_uint64), ("third", ctypes.c_uint64))


def read(buffer, dtype=np.uint32, count=COUNT):
    out = np.zeros(count, dtype)
    accelrt.copy(out, buffer, out.nbytes)
    return out


@pytest.fixture
def buffer():
    with accelrt.Buffer(4 * COUNT) as made:
        yield made


@pytest.mark.parametrize(
    "sizes", [(4, 64), ((4,), [64]), ((4, 1, 1), (64, 1)), (np.int64(4), 64, None), (4, 64, None, 0)]
)
def test_a_launch_takes_sizes_as_ints_and_triples(number, buffer, sizes):
    launcher = number[sizes]
    assert (launcher.grid, launcher.block, launcher.shared) == ((4, 1, 1), (64, 1, 1), 0)
    assert launcher.kernel is number
    launcher(buffer, 5)
    assert (read(buffer) == numbers(5)).all()
    number.launch(sizes[0], sizes[1], (buffer, 6))
    assert (read(buffer) == numbers(6)).all()


def test_sizes_that_grow_while_they_are_read_are_taken_as_they_were(number, buffer):
    class Lengthening:
        def __index__(self):
            grid.extend([1] * 100_000)
            return 4

    grid = [Lengthening()]
    number.launch(grid, 64, (buffer, 5))
    assert (read(buffer) == numbers(5)).all()


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ((0, 1), ValueError, r"grid\[0\] is 0; it goes from 1"),
        ((1, -1), ValueError, r"block\[0\] is -1"),
        ((1 << 32, 1), ValueError, r"grid\[0\] is 4294967296"),
        (((1, 1, 1, 1), 1), ValueError, "one to three"),
        (((), 1), ValueError, "one to three"),
        ((1.0, 1), TypeError, r"grid\[0\] is 1.0"),
        ((1, True), TypeError, "True"),
        ((1,), TypeError, r"takes \[grid, block\]"),
        ((1, 1, None, 0, 0), TypeError, r"takes \[grid, block\]"),
        ((1, 1, "stream"), TypeError, "stream is 'stream'"),
        ((1, 1, None, -1), ValueError, "shared is -1"),
    ],
)
def test_sizes_that_are_none_are_refused(number, sizes, error, text):
    with pytest.raises(error, match=text):
        number[sizes]


@pytest.mark.parametrize(
    ("grid", "block", "shared", "text"),
    [
        (1, 2000, 0, "block has 2000 in x, the device takes 1024"),
        (1, (1, 1, 65), 0, "block has 65 in z, the device takes 64"),
        ((1, 65536), 1, 0, "grid has 65536 in y, the device takes 65535"),
        (1, (64, 64), 0, "a block has 4096 threads, this kernel takes 1024"),
        (1, 1, 1 << 20, r"a block asks for 1048576 bytes of dynamic shared memory, the device has \d+"),
    ],
)
def test_a_launch_beyond_a_limit_names_it(number, buffer, grid, block, shared, text):
    with pytest.raises(accelrt.CudaError, match=text) as caught:
        number[grid, block, None, shared](buffer, 1)
    assert "kernel='number'" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((), TypeError, "takes 2 arguments, of 12 bytes together; 0 were given"),
        ((None, 1, 2), TypeError, "takes 2 arguments"),
        ((None, 1 << 32), ValueError, "is the int 4294967296; .* 4 bytes, at offset 8"),
        ((None, None), TypeError, "argument 1 of kernel 'number' is None"),
        ((None, "text"), TypeError, "argument 1 of kernel 'number' is 'text' of type str"),
        ((None, b"abc"), TypeError, "is a bytes of 3 bytes; the kernel takes a value of 4 bytes"),
        ((None, np.float64(1)), TypeError, r"a numpy.float64 of 8 bytes; the kernel takes a value of 4"),
        ((np.zeros(4), 1), TypeError, "argument 0 of kernel 'number' is a numpy array, in the host's memory"),
        ((None, np.zeros(4)), TypeError, "a numpy array, in the host's memory"),
        ((None, accelrt.Stream), TypeError, "argument 1"),
    ],
)
def test_arguments_that_do_not_fit_name_their_place(number, arguments, error, text):
    if number.parameters is None:
        pytest.skip("this driver does not tell the sizes of parameters")
    with pytest.raises(error, match=text):
        number[1, 1](*arguments)


@pytest.mark.host
def test_numbers_of_derived_classes_are_taken_as_those_of_their_bases(buffer):
    class Integer(int):
        pass

    class Number(float):
        pass

    source = 'extern "C" __global__ void both(int a, double b, float c, double* out) { out[0] = a + b + c; }'
    kernel = accelrt.compile(source).function("both")
    kernel[1, 1](Integer(-3), Number(0.5), Number(0.25), buffer)
    assert read(buffer, np.float64, 1)[0] == -2.25
    with pytest.raises(TypeError, match="is a float; the kernel takes a value of 2 bytes"):
        accelrt.compile('extern "C" __global__ void short_(short a) {}').function("short_")[1, 1](Number(1))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1.0, None, None, 1.5), "argument 3 of kernel 'saxpy' is 1.5 .* an integer of 4 bytes"),
        ((1.0, 2.0, None, 1), "argument 1 of kernel 'saxpy' is 2.0 .* a pointer of 8 bytes"),
        ((1j, None, None, 1), "argument 0 of kernel 'saxpy' is 1j .* a floating-point number of 4 bytes"),
        ((1.0, None, None, np.float32(1)), "argument 3 .* is a numpy.float32 of 4 bytes"),
        ((np.float64(1), None, None, 1), "argument 0 .* is a numpy.float64 of 8 bytes; .* convert it"),
        ((1.0, True, None, 1), "argument 1 of kernel 'saxpy' is True"),
    ],
)
def test_a_signature_refuses_what_its_types_do_not_take(saxpy, arguments, text):
    with pytest.raises(TypeError, match=text):
        saxpy[1, 1](*arguments)


@pytest.mark.parametrize("a", [2, 2.0, np.float32(2), np.float16(2), np.int8(2), ctypes.c_float(2)])
@pytest.mark.parametrize("n", [COUNT, np.int64(COUNT), np.uint16(COUNT), ctypes.c_uint32(COUNT)])
def test_numbers_become_what_the_signature_says(saxpy, a, n):
    x, y = zeros(COUNT, np.float32), zeros(COUNT, np.float32)
    accelrt.copy(x.base, np.arange(COUNT, dtype=np.float32))
    accelrt.copy(y.base, np.full(COUNT, 3, np.float32))
    saxpy[4, 64](a, x, y, n)
    assert (read(y.base, np.float32) == 2 * np.arange(COUNT) + 3).all()


@pytest.mark.host
def test_values_of_every_size_arrive_as_they_are(module):
    kernel = module.function("echo")
    assert kernel.parameters == (8, 1, 2, 4, 8, 16, 24)
    given = (True, np.float16(1.5), 2.5, 3.5, np.complex128(1 + 2j), Pair(1.5, 2, 3))
    told = b"".join([b"\1", *(bytes(v.tobytes()) for v in (np.float16(1.5), np.float32(2.5))), b""])
    told += np.float64(3.5).tobytes() + np.complex128(1 + 2j).tobytes() + bytes(Pair(1.5, 2, 3))
    buffer = accelrt.Buffer(64)
    kernel[1, 1](buffer, *given)
    assert read(buffer, np.uint8, len(told)).tobytes() == told
    kernel[1, 1](buffer, -1, -2, -3, -4, bytes(range(16)), bytes(range(24)))
    told = b"\xff" + b"\xfe\xff" + b"\xfd" + b"\xff" * 3 + b"\xfc" + b"\xff" * 7
    assert read(buffer, np.uint8, 55).tobytes() == told + bytes(range(16)) + bytes(range(24))


@pytest.mark.host
def test_a_kernel_may_have_many_parameters():
    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
    def run(where, arguments):
        at = ctypes.c_size_t.from_address(arguments[0]).value
        for index in range(1, 100):
            given = ctypes.c_int64.from_address(arguments[index])
            ctypes.c_int64.from_address(at + 8 * index).value = given.value

    kernel = accelrt.host_kernel(run, ["void*", *["int64_t"] * 99])
    buffer = accelrt.Buffer(800)
    kernel[1, 1](buffer, *range(-1, -100, -1))
    assert (read(buffer, np.int64, 100)[1:] == -np.arange(1, 100)).all()


@pytest.mark.host
def test_dynamic_shared_memory_goes_beyond_48_kib(module, buffer):
    kernel = module.function("shared", "uint32_t*")
    for shared in (0, 4, 48 << 10, 200 << 10):
        kernel[1, 1, None, shared](buffer)
        assert list(read(buffer, count=2)) == [shared, max(shared // 4 - 1, 0)]
    assert kernel.attributes.max_dynamic_shared_size_bytes == 200 << 10


def test_cooperative_launches_and_clusters_run(number, buffer):
    number.launch(4, 64, (buffer, 8), cooperative=True)
    assert (read(buffer) == numbers(8)).all()
    with pytest.raises(accelrt.CudaError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        number.launch(1 << 20, 64, (buffer, 8), cooperative=True)
    if accelrt.get_device_capability()[0] >= 9 or number.max_active_clusters(4, 64, 2):
        number.launch(4, 64, [buffer, 9], cluster=2, programmatic=True)
        assert (read(buffer) == numbers(9)).all()
        with pytest.raises(accelrt.CudaError):
            number.launch(3, 64, (buffer, 9), cluster=2)


@pytest.mark.host
def test_two_kernels_of_one_function_keep_what_the_larger_was_permitted(module, buffer):
    first, second = (module.function("shared", "uint32_t*") for _ in range(2))
    assert first.handle == second.handle
    for kernel, shared in ((first, 200 << 10), (second, 100 << 10), (first, 200 << 10)):
        kernel[1, 1, None, shared](buffer)
        assert read(buffer, count=1)[0] == shared


@pytest.mark.host
def test_a_launch_in_clusters_of_more_than_8_blocks_is_permitted_once(number, buffer):
    assert number.attributes.non_portable_cluster_size_allowed == 0
    assert number.max_potential_cluster_size(16, 64) == 8
    with pytest.raises(accelrt.CudaError, match="INVALID_CLUSTER_SIZE"):
        number.max_active_clusters(16, 64, 16)
    number.launch(4, 64, (buffer, 1), cluster=4)
    assert number.attributes.non_portable_cluster_size_allowed == 0
    number.launch(16, 16, (buffer, 3), cluster=16)
    assert (read(buffer) == numbers(3)).all()
    assert number.attributes.non_portable_cluster_size_allowed == 1
    assert number.max_potential_cluster_size(16, 64) == 16
    assert number.max_active_clusters(16, 64, 16) >= 1
    with pytest.raises(accelrt.CudaError, match="INVALID_CLUSTER_SIZE"):
        number.launch(32, 64, (buffer, 4), cluster=32)


def test_attributes_are_set_by_their_names(number):
    number.set_attributes(preferred_shared_memory_carveout=50, max_dynamic_shared_size_bytes=40 << 10)
    number.set_attributes()
    now = number.attributes
    assert (now.preferred_shared_memory_carveout, now.max_dynamic_shared_size_bytes) == (50, 40 << 10)
    number.set_attributes(preferred_shared_memory_carveout=-1)
    assert number.attributes.preferred_shared_memory_carveout == -1
    for wrong in ({"preferred_shared_memory_carveout": 101}, {"max_dynamic_shared_size_bytes": -1},
                  {"cluster_scheduling_policy_preference": 3}):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            number.set_attributes(**wrong)
    with pytest.raises(TypeError, match="max_dynamic_shared_size_bytes is True of type bool"):
        number.set_attributes(max_dynamic_shared_size_bytes=True)
    with pytest.raises(TypeError, match="unexpected keyword"):
        number.set_attributes(num_regs=1)
    with pytest.raises(
        accelrt.CudaError, match=r"function_attribute_set.*max_dynamic_shared_size_bytes=1073741824"
    ):
        number.set_attributes(max_dynamic_shared_size_bytes=1 << 30)


@pytest.mark.host
def test_attributes_of_clusters_are_set(number):
    number.set_attributes(non_portable_cluster_size_allowed=True, cluster_scheduling_policy_preference=2)
    now = number.attributes
    assert (now.non_portable_cluster_size_allowed, now.cluster_scheduling_policy_preference) == (1, 2)
    assert (now.cluster_size_must_be_set, now.required_cluster_width) == (0, 0)
    number.set_attributes(non_portable_cluster_size_allowed=False)
    assert number.attributes.non_portable_cluster_size_allowed == 0


@pytest.mark.host
def test_launches_are_permitted_anew_what_was_taken_from_them(module, buffer):
    kernel = module.function("shared", "uint32_t*")
    kernel[1, 1, None, 100 << 10](buffer)
    kernel.set_attributes(max_dynamic_shared_size_bytes=64 << 10)
    kernel[1, 1, None, 100 << 10](buffer)
    assert read(buffer, count=1)[0] == 100 << 10
    kernel.set_attributes(max_dynamic_shared_size_bytes=1 << 10)
    with pytest.raises(accelrt.CudaError, match="INVALID_VALUE"):
        kernel[1, 1, None, 2 << 10](buffer)


def test_attributes_and_occupancy_are_told(number):
    assert number.attributes.max_threads_per_block == 1024
    assert number.occupancy(64) >= number.occupancy((32, 32)) >= 1
    grid, block = number.max_potential_block_size(limit=128)
    assert grid >= 1
    assert block <= 128
    for blocks, block in ((4, 32), (1, (16, 16))):
        nbytes = number.available_dynamic_shared_memory(blocks, block)
        assert 0 < nbytes <= number.attributes.max_dynamic_shared_size_bytes
        assert number.occupancy(block, nbytes) >= blocks
    with pytest.raises(ValueError, match="blocks is 0"):
        number.available_dynamic_shared_memory(0, 32)
    with pytest.raises(TypeError, match=r"blocks is 1\.5"):
        number.available_dynamic_shared_memory(1.5, 32)
    assert "number" in repr(number)
    assert "number" in repr(number[1, 2])


def test_a_block_is_found_whose_shared_memory_depends_on_its_threads(number):
    asked = []

    def shared(threads):
        asked.append(threads)
        return 1024 * (threads // 32)

    grid, block = number.max_potential_block_size(shared, limit=277)
    assert set(asked) == {277, *range(32, 257, 32)}
    assert block in asked
    processors = accelrt.get_device_properties().multi_processor_count
    assert grid == processors * number.occupancy(block, shared(block))
    assert block * grid >= 32 * processors * number.occupancy(32, 1024)
    assert number.max_potential_block_size(lambda threads: 0)[1] <= 1024
    with pytest.raises(TypeError, match=r"shared\(32\) is 'x'"):
        number.max_potential_block_size(lambda threads: "x")
    with pytest.raises(TypeError, match="shared is Ellipsis"):
        number.max_potential_block_size(...)


def test_parameters_are_told_by_size_and_offset(module):
    kernel = module.function("saxpy", "float a, const float* x, float* y, int n")
    assert kernel.parameters == (4, 8, 8, 4)
    assert kernel.parameter_offsets == (0, 8, 16, 24)


def test_threads_that_chose_no_device_launch(number):
    stream = accelrt.Stream()
    array = zeros((8, 3, COUNT), np.uint32)  # a row for each launch: the streams have no order among them
    accelrt.synchronize()

    def work(value):
        number[4, 64](array[value, 0], value)
        number[4, 64, stream](array[value, 1], value)
        number[4, 64, accelrt.per_thread_stream()](array[value, 2], value)

    on_threads(work, range(8))
    accelrt.synchronize()
    for value, rows in enumerate(read(array, count=array.size).reshape(array.shape)):
        assert (rows == numbers(value)).all()


@pytest.mark.host
@pytest.mark.gone_streams
def test_a_dead_stream_is_refused_and_a_foreign_one_serves(number, buffer):
    code, handle = Rows().stream_create(0, 1, 0)
    assert code == 0
    launcher = number[4, 64, handle]
    launcher(buffer, 4)
    foreign = accelrt.ExternalStream(handle)
    number[4, 64, foreign](buffer, 5)
    foreign.synchronize()
    assert (read(buffer) == numbers(5)).all()
    Rows().stream_destroy(0, handle)
    with pytest.raises(accelrt.CudaError, match="INVALID_HANDLE"):
        launcher(buffer, 6)
    with pytest.raises(ValueError, match="stream"):
        number[4, 64, handle]


def test_sleep_takes_its_time():
    start, end = accelrt.Event(enable_timing=True), accelrt.Event(enable_timing=True)
    start.record()
    accelrt.sleep(20_000_000)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 5
    with pytest.raises(ValueError, match="cycles is -1"):
        accelrt.sleep(-1)
    with pytest.raises(TypeError, match=r"cycles is 1\.5"):
        accelrt.sleep(1.5)
