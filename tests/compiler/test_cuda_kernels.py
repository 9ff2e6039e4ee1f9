"""Kernels in CUDA C, on a GPU and on the host device: barriers, warps, shared memory, atomics, templates."""

import os

import numpy as np
import pytest
from child import in_child, tell_loss
from device_arrays import read, to_device
from peer_checks import IF, WHILE, Launcher, rounds

import accelrt
from accelrt.kernels.diagnostics import kernels_in, no_kernel_text

ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
pytestmark = [] if ON_HOST else [pytest.mark.nvrtc("link")]

TOTAL = r"""
extern "C" __global__ void __launch_bounds__(1024) total(const float* __restrict__ x, float* out, int n) {
    extern __shared__ float part[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int by = blockDim.x / 2; by; by >>= 1) {
        if (t < by)
            part[t] += part[t + by];
        __syncthreads();
    }
    if (t == 0)
        atomicAdd(out, part[0]);
}
"""


def launched(source, values, *arguments, grid=1, block=32, **given):
    """What a kernel makes of an array, which is its first argument."""
    array = to_device(values)
    module = accelrt.compile(source, **given)
    module.function("k")[grid, block](array, *arguments)
    return read(array)


@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_a_block_sums_in_dynamic_shared_memory(threads):
    x, out = to_device(np.ones(5000, np.float32)), to_device(np.zeros(1, np.float32))
    with accelrt.compile(TOTAL) as module:
        kernel = module.function("total", "const float* x, float* out, int n")
        kernel[-(-5000 // threads), threads, None, 4 * threads](x, out, 5000)
    assert read(out).tolist() == [5000]


def test_places_are_those_of_three_axes():
    source = r"""
    extern "C" __global__ void k(int* at) {
        const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        at[block * (blockDim.x * blockDim.y * blockDim.z) + thread] +=
            1 + threadIdx.z + 10 * threadIdx.y + 100 * threadIdx.x + 1000 * blockIdx.z;
    }"""
    found = launched(source, np.zeros(2 * 3 * 4 * 5 * 6 * 7, np.int32), grid=(2, 3, 4), block=(5, 6, 7))
    z, y, x = np.meshgrid(range(7), range(6), range(5), indexing="ij")
    one = (1 + z + 10 * y + 100 * x).ravel()
    blocks = np.repeat(1000 * np.arange(4), 6)
    assert (found.reshape(24, -1) == one[None] + blocks[:, None]).all()


def test_static_shared_memory_is_transposed_across_a_barrier():
    source = r"""
    extern "C" __global__ void k(int* at) {
        __shared__ int tile[16][17];
        tile[threadIdx.y][threadIdx.x] = at[threadIdx.y * 16 + threadIdx.x];
        __syncthreads();
        at[threadIdx.y * 16 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
    }"""
    values = np.arange(256, dtype=np.int32)
    assert (launched(source, values, block=(16, 16)).reshape(16, 16) == values.reshape(16, 16).T).all()


def test_threads_that_returned_count_as_arrived():
    source = r"""
    extern "C" __global__ void k(int* at) {
        __shared__ int count;
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        if (threadIdx.x % 3 == 0) return;
        atomicAdd(&count, 1);
        __syncthreads();
        at[threadIdx.x] = count;
    }"""
    found = launched(source, np.zeros(96, np.int32), block=96)
    assert (found == np.where(np.arange(96) % 3 == 0, 0, 64)).all()


def test_barriers_count_predicates():
    source = r"""
    extern "C" __global__ void k(int* at) {
        const int t = threadIdx.x, count = __syncthreads_count(t % 5 == 0);
        at[t] = count * 100 + (__syncthreads_and(t < 100) != 0) * 10 + (__syncthreads_or(t == 99) != 0);
    }"""
    assert (launched(source, np.zeros(100, np.int32), block=100) == 2011).all()


def test_warps_shuffle_vote_match_and_reduce():
    source = r"""
    extern "C" __global__ void k(long long* at) {
        const int lane = threadIdx.x & 31;
        const unsigned all = 0xffffffff;
        long long* mine = at + threadIdx.x * 10;
        mine[0] = __shfl_sync(all, lane * 2, 5);
        mine[1] = __shfl_up_sync(all, lane, 1);
        mine[2] = __shfl_down_sync(all, lane, 2, 8);
        mine[3] = (long long)__shfl_xor_sync(all, lane + 0.5, 1);
        mine[4] = __ballot_sync(all, lane & 1);
        mine[5] = __any_sync(all, lane == 3) + 2 * __all_sync(all, lane < 32);
        mine[6] = __match_any_sync(all, lane / 8);
        mine[7] = __reduce_add_sync(all, lane);
        if (lane < 16)
            mine[8] = __shfl_sync(0x0000ffff, lane, 15);
        else
            mine[8] = __shfl_sync(0xffff0000, lane, 16);
        __syncwarp();
        if (lane % 3 == 0) {
            const unsigned together = __activemask();
            mine[9] = __shfl_down_sync(together, lane, 3) + __popc(together);
        }
    }"""
    found = launched(source, np.zeros(64 * 10, np.int64), block=64).reshape(2, 32, 10)
    lane = np.arange(32)
    expected = np.stack(
        [
            np.full(32, 10),
            np.maximum(lane - 1, 0),
            np.where(lane % 8 < 6, lane + 2, lane),
            lane ^ 1,
            np.full(32, 0xAAAAAAAA),
            np.full(32, 3),
            0xFF << (lane // 8 * 8),
            np.full(32, 496),
            np.where(lane < 16, 15, 16),
            np.where(lane % 3, 0, np.minimum(lane + 3, 30) + 11),
        ],
        axis=1,
    )
    assert (found == expected).all()


def test_atomics_of_every_kind_are_counted_once():
    source = r"""
    extern "C" __global__ void k(int* i, unsigned* u, unsigned long long* w, float* f, double* d) {
        const int t = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(i, 2); atomicSub(i + 1, 1); atomicMin(i + 2, -t); atomicMax(i + 3, t);
        atomicExch(i + 4, 7); atomicXor(i + 5, t);
        atomicAdd(u, 1u); atomicInc(u + 1, 9u); atomicDec(u + 2, 9u); atomicOr(u + 3, 1u << (t % 32));
        atomicAnd(u + 4, ~(1u << (t % 32)));
        atomicAdd(w, 3ull); atomicMax(w + 1, (unsigned long long)t << 32);
        atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
        unsigned long long seen = w[2], before;
        do {
            before = seen;
            seen = atomicCAS(w + 2, before, before + 5);
        } while (seen != before);
    }"""
    n = 32 * 64
    arrays = [np.zeros(6, np.int32), np.array([0, 0, 0, 0, 0xFFFFFFFF], np.uint32), np.zeros(3, np.uint64)]
    arrays = [to_device(each) for each in [*arrays, np.zeros(1, np.float32), np.zeros(1)]]
    with accelrt.compile(source) as module:
        module.function("k")[32, 64](*arrays)
    i, u, w, f, d = map(read, arrays)
    assert i.tolist() == [2 * n, -n, 1 - n, n - 1, 7, 0]
    assert u.tolist() == [n, n % 10, (-n) % 10, 0xFFFFFFFF, 0]
    assert w.tolist() == [3 * n, (n - 1) << 32, 5 * n]
    assert (f.tolist(), d.tolist()) == ([n / 2], [n / 4])


def test_threads_of_a_block_may_wait_for_a_lock_and_for_each_other():
    source = r"""
    extern "C" __global__ void k(int* at) {
        __shared__ int lock;
        __shared__ volatile int sum;
        if (threadIdx.x == 0) { lock = 0; sum = 0; }
        __syncthreads();
        while (atomicCAS(&lock, 0, 1) != 0) {}
        sum = sum + 1;
        __threadfence();
        atomicExch(&lock, 0);
        while (sum < (int)blockDim.x) __nanosleep(100);
        at[threadIdx.x] = sum;
    }"""
    assert (launched(source, np.zeros(64, np.int32), block=64) == 64).all()


def test_templates_are_instantiated_by_name_expressions():
    source = r"""
    namespace scaled { template <typename T, int by> __global__ void k(T* at, int n) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) at[i] = at[i] * T(by);
    } }
    __global__ void plain(float* at) { at[threadIdx.x] += 1; }
    """
    names = ["scaled::k<float, 3>", "scaled::k<int, -2>", "plain"]
    with accelrt.compile(source, name_expressions=names) as module:
        one, other = to_device(np.ones(5, np.float32)), to_device(np.arange(5, dtype=np.int32))
        module.function(names[0], "float*, int")[1, 8](one, 5)
        module.function(names[2])[1, 5](one)
        module.function(names[1])[1, 8](other, 5)
        assert (read(one) == 4).all()
        assert (read(other) == -2 * np.arange(5)).all()
        with pytest.raises(
            accelrt.CudaError, match=r'no kernel of that name; .*declare (it|one in CUDA C) extern "C"'
        ):
            module.function("missing")


def test_a_module_says_which_kernels_it_has():
    source = """
    extern "C" __global__ void saxpy(float a, float* x) { x[threadIdx.x] *= a; }
    extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }
    template<typename T> __global__ void shift(T* x) { x[threadIdx.x] += 1; }
    """
    with accelrt.compile(source, name_expressions=["shift<int>"]) as module:
        with pytest.raises(AttributeError) as told:
            module.saxpyy  # noqa: B018
        assert str(told.value) == (
            "'accelrt.Module' object has no attribute 'saxpyy'; module.function(name) returns a kernel, of "
            "'saxpy', 'scale', 'shift<int>'; did you mean 'saxpy'?"
        )
        with pytest.raises(AttributeError, match=r"'saxpy'; module.function\('saxpy'\) returns the kernel$"):
            module.saxpy  # noqa: B018
        with pytest.raises(AttributeError, match=r"no attribute '__len__'$"):
            module.__len__  # noqa: B018
        with pytest.raises(
            accelrt.CudaError, match="it has 'saxpy', 'scale', 'shift<int>'; did you mean 'scale'"
        ):
            module.function("scales")
    with pytest.raises(AttributeError, match=r"no attribute 'saxpyy'$"):
        module.saxpyy  # noqa: B018


PTX = ".version 6.4\n.target sm_50\n.address_size 64\n" + "".join(
    f".visible .entry kernel{number} () {{ ret; }}\n" for number in range(12)
)


def test_kernels_are_found_in_every_kind_of_image(tmp_path):
    path = tmp_path / "kernels.ptx"
    path.write_text(PTX)
    names = sorted(f"kernel{number}" for number in range(12))
    assert kernels_in(PTX.encode(), {}) == kernels_in(path, {}) == names
    cubin = b"\x7fELF" + b"\2\1\1".ljust(12, b"\0") + b"\2\0\xbe\0" + b"\0.text.scale\0.nv.constant0.scale\0"
    assert kernels_in(cubin, {"scale<int>": "scale"}) == ["scale<int>"]
    assert kernels_in(tmp_path / "gone", {}) == kernels_in(b"\x7fELF", {}) == []
    text = no_kernel_text(True, "kernel", path, {})
    assert "'kernel0', 'kernel1', 'kernel10', 'kernel11', 'kernel2', " in text
    assert "'kernel7' and 2 more; did you mean 'kernel" in text


@pytest.mark.host
def test_macros_headers_and_several_sources_make_one_module(tmp_path):
    (tmp_path / "beside.cuh").write_text(
        "#pragma once\n__device__ int shifted(int x) { return x + SHIFT; }\n"
    )
    path = tmp_path / "first.cu"
    path.write_text(
        '#include "beside.cuh"\n#include <virtual/deep.h>\n__device__ int of_the_second(int);\n'
        '#define KERNEL(name, f) extern "C" __global__ void name(int* at) '
        "{ at[threadIdx.x] = f(at[threadIdx.x]); }\n"
        "KERNEL(k, shifted)\nKERNEL(deep, DEEP)\nKERNEL(second, of_the_second)\n"
    )
    given = {
        "headers": {"virtual/deep.h": "#define DEEP(x) ((x) * 100)\n"},
        "options": ["--define-macro=SHIFT=5", "-lineinfo", "--std=c++20"],
    }
    sources = [path, "__device__ int of_the_second(int x) { return -x; }"]
    with accelrt.compile(sources, **given) as module:
        for name, expected in (("k", [5, 6]), ("deep", [0, 100]), ("second", [0, -1])):
            array = to_device(np.arange(2, dtype=np.int32))
            module.function(name)[1, 2](array)
            assert read(array).tolist() == expected
    (tmp_path / "beside.cuh").write_text("__device__ int shifted(int x) { return x - SHIFT; }\n")
    array = to_device(np.arange(2, dtype=np.int32))
    with accelrt.compile(sources, **given) as module:
        module.function("k")[1, 2](array)
    assert read(array).tolist() == [-5, -4]


@pytest.mark.host
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            'extern "C" __global__ void k() {\n    missing();\n}',
            r"t.cu, line 2, column 5: error: 'missing' was not",
        ),
        ('extern "C" __global__ void k(int* x) { *x = 1 }', r"t.cu, line 1, column \d+: error: expected ';'"),
        (
            '__device__ int f(int);\nextern "C" __global__ void k(int* x) { *x = f(1); }',
            r"t.cu, line 1, column 16: error: f",
        ),
        (
            'extern "C" __global__ void k() {\n  asm("bar.sync 0;"); }',
            r"t.cu, line 2, column \d+: error: inline assembly is PTX",
        ),
        ("#include <missing.h>", r"t.cu, line 1, column 10: fatal error: missing.h"),
        ('extern "C" __global__ int k() { return 1; }', r"error"),
    ],
)
def test_what_cannot_be_compiled_is_told_with_its_place(source, said):
    with pytest.raises(accelrt.CompileError, match=said) as caught:
        accelrt.compile(source, name="t.cu")
    assert caught.value.source_name == "t.cu"


def launch_alone(source):
    array = accelrt.zeros(64, "i4")
    kernel = accelrt.compile(source, cache=False).function("k")
    tell_loss(lambda: kernel[2, 32](array))


@pytest.mark.host
@pytest.mark.own_process
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("assert(threadIdx.x < 20);", "thread: [20,0,0] Assertion `threadIdx.x < 20` failed."),
        ("if (threadIdx.x == 3) __trap();", "__trap() was called"),
        (
            "if (threadIdx.x) __syncthreads(); else __syncwarp();",
            "wait at a barrier or in a warp's operation for others",
        ),
        (
            "volatile char room[700000]; for (int i = 0; i < 700000; i += 8) room[i] = 1; __syncthreads();",
            "bytes of stack",
        ),
    ],
)
def test_a_kernel_that_fails_loses_the_device_and_says_why(body, said):
    printed = in_child(
        launch_alone, f'#include <cassert>\nextern "C" __global__ void k(int* at) {{ {body} }}'
    )
    assert said in printed
    assert "told" in printed


@pytest.mark.host
def test_a_kernel_prints(capfd):
    source = r"""
    extern "C" __global__ void k(int* at) {
        at[threadIdx.x] = printf("thread %d of %u\n", threadIdx.x, blockDim.x);
    }"""
    assert launched(source, np.zeros(2, np.int32), block=2).tolist() == [2, 2]
    assert capfd.readouterr().out == "thread 0 of 2\nthread 1 of 2\n"


@pytest.mark.host
def test_a_saved_image_is_loaded_again(tmp_path):
    image = accelrt.compile_image(TOTAL)
    assert (image.kind, image.names) == ("so", {})
    image.save(tmp_path / "total.so")
    x, out = to_device(np.ones(64, np.float32)), to_device(np.zeros(1, np.float32))
    with accelrt.Module(tmp_path / "total.so") as module:
        module.function("total")[1, 64, None, 256](x, out, 64)
    assert read(out).tolist() == [64]
    damaged = bytearray(bytes(image))
    damaged[len(damaged) // 3] ^= 4
    with pytest.raises(ValueError, match="is not what accelrt compiled; it is damaged: compile it again"):
        accelrt.Module(bytes(damaged))


@pytest.mark.host
def test_modules_with_the_same_templates_and_names_keep_apart():
    source = r"""
    template <class T> struct Counter { static T value; };
    template <class T> T Counter<T>::value = BASE;
    __device__ int plain = BASE;
    extern "C" __global__ void k(int* at) { at[0] = Counter<int>::value++; at[1] = plain++; }
    """
    for base in (10, 20):
        assert (
            launched(source, np.zeros(2, np.int32), block=1, options=[f"-DBASE={base}"]).tolist()
            == [base] * 2
        )


@pytest.mark.host
def test_kinds_of_a_gpu_are_refused():
    with pytest.raises(ValueError, match="kind='ptx' is for a GPU; the host device loads shared objects"):
        accelrt.compile_image(TOTAL, kind="ptx")
    with pytest.raises(ValueError, match="leads out of a folder"):
        accelrt.compile(TOTAL, headers={"../outside.h": ""})


HALVES = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuComplex.h>
#include <math_constants.h>
extern "C" __global__ void k(float* at) {
    const __half a = __float2half(1.0f / 3), b = __hfma(a, __half(3.0f), __half(0.5f));
    const __nv_bfloat16 c = __float2bfloat16(1.0f / 3);
    at[0] = __half2float(a); at[1] = __half2float(b); at[2] = __bfloat162float(c);
    at[3] = __half2float(__float2half(65520.0f)); at[4] = __half2float(__float2half(1e-7f));
    at[5] = __half_as_ushort(a); at[6] = __hgt(a, b) ? 1 : 0; at[7] = __half2float(hsqrt(__half(2.0f)));
    const cuFloatComplex z = cuCdivf(make_cuFloatComplex(1, 2), make_cuFloatComplex(3, -4));
    at[8] = cuCrealf(z); at[9] = cuCimagf(z); at[10] = cuCabsf(make_cuFloatComplex(3, 4));
    at[11] = CUDART_PI_F;
}
"""


@pytest.mark.host
def test_numbers_of_16_bits_and_complex_ones_have_cudas_names():
    found = launched(HALVES, np.zeros(12, np.float32), block=1)
    third = np.float16(1 / 3)
    expected = [third, np.float16(1.5), 0.333984375, np.inf, np.float16(1e-7), third.view(np.uint16), 0]
    assert found[:8].tolist() == [np.float32(each) for each in (*expected, np.float16(2**0.5))]
    assert found[8:].tolist() == pytest.approx([-0.2, 0.4, 5, np.pi])


@pytest.mark.host
def test_groups_within_a_block_synchronise_and_shuffle():
    source = r"""
    #include <cooperative_groups.h>
    #include <cuda/std/type_traits>
    namespace cg = cooperative_groups;
    static_assert(cuda::std::is_same<int, int>::value, "of the standard library");
    extern "C" __global__ void k(int* at) {
        __shared__ int parts[8];
        const cg::thread_block block = cg::this_thread_block();
        const auto tile = cg::tiled_partition<8>(block);
        int value = block.thread_rank();
        for (int by = tile.size() / 2; by; by /= 2)
            value += tile.shfl_down(value, by);
        if (tile.thread_rank() == 0)
            parts[tile.meta_group_rank()] = value;
        block.sync();
        at[threadIdx.x] = parts[threadIdx.x % 8] + 10000 * __popc(tile.ballot(tile.thread_rank() < 3));
        if (threadIdx.x % 5 == 0) {
            const cg::coalesced_group group = cg::coalesced_threads();
            at[threadIdx.x] = 1000000 * group.shfl((int)threadIdx.x, 1) + group.thread_rank();
        }
    }"""
    found = launched(source, np.zeros(64, np.int32), block=64)
    sums = np.arange(64).reshape(8, 8).sum(1)
    expected = np.tile(sums, 8) + 30000
    for lane in range(0, 64, 5):
        others = [each for each in range(0, 64, 5) if each // 32 == lane // 32]
        expected[lane] = 1000000 * others[1] + others.index(lane)
    assert found.tolist() == expected.tolist()


def test_elementwise_operations_add_to_raw_arrays_atomically():
    kernel = accelrt.elementwise("int32 x", "raw int32 counts", "atomicAdd(&counts[x], 1)", name="histogram")
    x, counts = np.arange(100000, dtype=np.int32) % 7, to_device(np.zeros(7, np.int32))
    kernel(to_device(x), out=counts)
    assert read(counts).tolist() == np.bincount(x).tolist()


CONDITIONS = r"""
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle condition, unsigned int value);
extern "C" __global__ void decide(cudaGraphConditionalHandle condition, unsigned int value) {
    cudaGraphSetConditional(condition, value);
}
extern "C" __global__ void repeat(cudaGraphConditionalHandle condition, int* left) {
    cudaGraphSetConditional(condition, --*left > 0);
}
"""


@pytest.mark.host
def test_a_kernel_sets_the_condition_of_a_branch():
    with accelrt.compile(CONDITIONS) as module:
        launch = Launcher(module, ["decide"])
        assert [rounds(launch, IF, after=[np.uint32(value)]) for value in (0, 1, 0, 9)] == [0, 1, 0, 1]


@pytest.mark.host
def test_a_kernel_in_the_body_of_a_loop_ends_it():
    with accelrt.compile(CONDITIONS) as module:
        launch = Launcher(module, ["repeat"])
        assert [rounds(launch, WHILE, after=[np.array([left], np.int32)]) for left in (1, 6)] == [1, 6]


@pytest.mark.host
def test_kernels_that_depend_on_each_other_run_in_the_order_of_their_stream():
    source = r"""
    #include <cuda_device_runtime_api.h>
    #include <driver_types.h>
    extern "C" __global__ void first(int* at) { cudaTriggerProgrammaticLaunchCompletion(); at[0] = 5; }
    extern "C" __global__ void second(int* at) { cudaGridDependencySynchronize(); at[1] = at[0] + 1; }
    """
    array = to_device(np.zeros(2, np.int32))
    with accelrt.compile(source) as module:
        module.function("first").launch(1, 1, (array,))
        module.function("second").launch(1, 1, (array,), programmatic=True)
        assert read(array).tolist() == [5, 6]


@pytest.mark.host
@pytest.mark.parametrize("returned", [0, 31])
def test_the_last_thread_of_a_block_sleeps(returned):
    source = r"""
    extern "C" __global__ void k(long long* at) {
        if (threadIdx.x) return;
        __syncthreads();
        const long long began = clock64();
        for (int i = 0; i < 5; i++) __nanosleep(3000000000u);
        at[0] = clock64() - began;
    }"""
    assert launched(source, np.zeros(1, np.int64), block=1 + returned)[0] >= 5_000_000


@pytest.mark.host
def test_a_grid_tells_its_blocks_apart():
    source = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void k(unsigned int* at) {
        const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
        const dim3 size = grid.dim_blocks(), place = grid.block_index();
        at[grid.block_rank()] = place.x + 10 * place.y + 100 * place.z
            + 1000 * (size.x + 10 * size.y + 100 * size.z);
    }"""
    found = launched(source, np.zeros(24, np.uint32), grid=(2, 3, 4), block=1)
    z, y, x = np.meshgrid(range(4), range(3), range(2), indexing="ij")
    assert found.tolist() == (432000 + x + 10 * y + 100 * z).ravel().tolist()
