"""What kernels of other libraries' tests compute, by their names and parameters; peer_texts.py runs them.

Expected values are NumPy's.  A check's launches are of the sizes that are usual in those tests.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from device_arrays import read, to_device

import accelrt
from accelrt.driver.registry import Rows

HANDLE = "cudaGraphConditionalHandle"
IF, WHILE = 0, 1
CHECKS = {}  # a kernel's key -> its check


class Check(NamedTuple):
    """How a kernel is compiled and run.

    Attributes:
        run: function of a Launcher, which asserts.
        expressions: names to compile the kernel by, or a function of the text that answers them.
        options: the compiler's.
        companions: bool, whether the file's device functions are linked with it.
    """

    run: object
    expressions: object
    options: tuple
    companions: bool

    def expressions_in(self, code):
        return tuple(self.expressions(code)) if callable(self.expressions) else self.expressions


class Launcher:
    """The module of a text, and the names by which a kernel's function is asked for."""

    def __init__(self, module, expressions):
        self.module = module
        self.expressions = expressions

    def __call__(self, grid, block, *arguments, expression=None, stream=None):
        """Launches with NumPy arrays on the device; their values afterwards."""
        held = [to_device(each) if isinstance(each, np.ndarray) else each for each in arguments]
        self.kernel(expression)[grid, block, stream](*held)
        return [read(each) for each in held if isinstance(each, accelrt.Array)]

    def kernel(self, expression=None):
        return self.module.function(expression or self.expressions[0])


def check(key, expressions=(), options=(), companions=False):
    def keep(run):
        CHECKS[key] = Check(run, expressions or (key.partition("(")[0],), options, companions)
        return run

    return keep


def group_of(key, code):
    """Whether a kernel counts: "counted", "not CUDA", or "broken" where its text is meant to be refused."""
    if key == "test_addf_scalar(cuComplex*,cuComplex,cuComplex*)":  # valid after CuPy's translation only
        return "not CUDA"
    if key == "i_am_broken()" or (key == "A()" and "Z()" in code):
        return "broken"
    return "counted"


def run_kernel(code, key, keys, companions):
    """(compiled, agreed, why not) of a kernel of a text, whose kernels are keys."""
    known = [CHECKS[each] for each in keys if each in CHECKS]
    expressions = dict.fromkeys(name for each in known for name in each.expressions_in(code))
    options = dict.fromkeys(option for each in known for option in each.options)
    sources = [code, *companions] if any(each.companions for each in known) else code
    try:
        module = accelrt.compile(sources, name_expressions=tuple(expressions), options=tuple(options))
    except accelrt.CompileError as error:
        lines = [line for line in str(error).splitlines() if "error:" in line]
        return False, False, (lines or [str(error)])[0]
    if key not in CHECKS:
        return True, False, "no check is known for it"
    found = CHECKS[key]
    try:
        found.run(Launcher(module, found.expressions_in(code)))
        accelrt.synchronize()
    except (AssertionError, accelrt.CudaError, RuntimeError) as error:
        return True, False, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return True, True, ""


def run_elementwise(arguments):
    """The same of ElementwiseKernel's texts, which those tests expect to be refused with a ValueError.

    A name that is none is refused when the kernel is made, an output of another shape when it is called.
    """
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    try:
        kernel = accelrt.ElementwiseKernel(*arguments)
    except ValueError:
        return True, len(arguments) > 3 and not arguments[3].isidentifier(), "it is refused when it is made"
    try:
        kernel(to_device(x), out=to_device(np.arange(4, dtype=np.float32)))
        return True, False, "an output of another shape is taken"
    except ValueError:
        pass
    return True, True, ""


def near(found, expected):
    eps = np.finfo(np.asarray(expected).dtype).eps
    np.testing.assert_allclose(found, expected, rtol=16 * eps, atol=16 * eps)


def same(found, expected):
    np.testing.assert_array_equal(found, expected)


def numbers(count, dtype, seed=0):
    random = np.random.default_rng(seed)
    values = random.random(count) + (1j * random.random(count) if np.dtype(dtype).kind == "c" else 0)
    return values.astype(dtype)


# --- CuPy's tests of raw kernels -------------------------------------------------------------------------


def pairwise(key, dtype, operation, options=()):
    @check(key, options=options)
    def run(launch):
        x, y = np.arange(100).astype(dtype), np.full(100, 3, dtype)
        near(launch(10, 10, x, y, np.zeros(100, dtype), np.uint32(100))[2], operation(x, y))


FLOATS = "(float*,float*,float*,unsignedint)"
pairwise("test_sum" + FLOATS, np.float32, np.add)
pairwise("test_op" + FLOATS, np.float32, np.add, ("-DOP=+",))
pairwise("test_multiply" + FLOATS, np.float32, np.multiply)
pairwise("test_div" + FLOATS, np.float32, lambda x, y: x / (y + np.float32(1)))
pairwise("test_sum" + FLOATS.replace("float", "TYPE"), np.float64, np.add, ("-DPRECISION=2",))
pairwise("test_multiply" + FLOATS.replace("float", "TYPE"), np.float64, np.multiply, ("-DPRECISION=2",))


@check("test_kernel_inner(float*,int)")
def _(launch):
    same(launch(1, 13, np.zeros(13, np.float32), 13)[0], 1)


@check("test_kernel(float*,int,int)")
def _(launch):
    same(launch(1, 13, np.zeros(169, np.float32), 169, 13)[0], 1)


def of_complex(name, inputs, operation, suffix=""):
    """A kernel of 100 complex numbers, by the type that cuComplex.h has for them."""
    named = {"": "cuDoubleComplex", "f": "cuComplex", "F": "cuFloatComplex"}[suffix]
    dtype = np.complex128 if suffix == "" else np.complex64
    out = np.asarray(operation(*[np.ones(1, dtype)] * inputs)).dtype
    written = {"complex128": "cuDoubleComplex", "complex64": named if suffix else "cuComplex"}
    written |= {"float64": "double", "float32": "float"}
    types = [f"{named}*"] * inputs + [f"{written[out.name]}*"]

    @check(f"{name}{suffix.lower()}({','.join(types)})")
    def run(launch):
        values = [numbers(100, dtype, seed) for seed in range(inputs)]
        near(launch(4, 32, *values, np.zeros(100, out))[-1], operation(*values))


for suffix in ("", "f"):
    of_complex("test_add", 2, np.add, suffix)
    of_complex("test_sub", 2, np.subtract, suffix)
    of_complex("test_mul", 2, np.multiply, suffix)
    of_complex("test_div", 2, np.divide, suffix)
    of_complex("test_conj", 1, np.conj, suffix)
for suffix in ("", "F"):
    of_complex("test_abs", 1, np.abs, suffix)
    of_complex("test_fma", 3, lambda x, y, z: x * y + z, suffix)
of_complex("test_downcast", 1, lambda x: x.astype(np.complex64))


@check("test_upcast(cuComplex*,cuDoubleComplex*)")
def _(launch):
    x = numbers(100, np.complex64)
    same(launch(4, 32, x, np.zeros(100, np.complex128))[1], x)


@check("test_make(cuDoubleComplex*)")
def _(launch):
    near(launch(4, 32, np.zeros(100, np.complex128))[0], np.full(100, 1.8 - 8.7j))


@check("test_makef(cuComplex*)")
def _(launch):
    near(launch(4, 32, np.zeros(100, np.complex64))[0], np.full(100, 1.8 - 8.7j, np.complex64))


@check("test_add_scalar(cuDoubleComplex*,cuDoubleComplex,cuDoubleComplex*)")
def _(launch):
    x = numbers(100, np.complex128)
    for scalar in (np.complex128(2 + 3j), 2 + 3j):
        same(launch(4, 32, x, scalar, np.zeros(100, np.complex128))[1], x + scalar)


@check("multiply_by_const(float*,int)")
def _(launch):
    address, size = launch.module.global_address("some_array")
    assert size == 400
    values = np.arange(100, dtype=np.float32)
    rows = Rows(None)
    assert rows.copy(0, 0, address, values.ctypes.data, size) == 0
    accelrt.synchronize()
    same(launch(1, 100, np.ones(100, np.float32), 100)[0], values)


@check("my_sqrt(T*,int)", ("my_sqrt<int>", "my_sqrt<float>", "my_sqrt<complex<double>>"))
def _(launch):
    for name, dtype in zip(launch.expressions, (np.int32, np.float32, np.complex128), strict=True):
        x = (10 * numbers(10, np.complex128 if dtype is np.complex128 else np.float64)).astype(dtype)
        near(launch(1, 10, x, 10, expression=name)[0].astype(np.complex128), (x * x).astype(np.complex128))


@check("my_func(double*,int)")
def _(launch):
    x = numbers(10, np.float64)
    same(launch(1, 10, x, 10)[0], x * x)


@check("my_func(void*,int)")
def _(launch):
    same(launch(1, 100, np.ones(100), 100)[0], -5.0)


@check("test_grid_sync(float*,float*,float*,int)")
def _(launch):
    for n in (10, 100, 1000):
        for block in (64, 256):
            x, one = np.arange(n * n, dtype=np.float32), np.ones(n * n, np.float32)
            held = [to_device(each) for each in (x, one, np.zeros_like(x))]
            launch.kernel().launch(-(-n * n // block), block, (*held, n * n), cooperative=True)
            same(read(held[2]), x + 1)


@check("shift(T*,int)", ("shift<int>",))
def _(launch):
    x = np.arange(256, dtype=np.int32)
    same(launch(1, 256, x, 256)[0], x + 100)


def of_nothing(key, *expressions, arguments=()):
    """A kernel that has only to be found, and to end."""

    @check(key, expressions)
    def run(launch):
        for name in launch.expressions:
            launch(1, 1, *arguments, expression=name)


of_nothing("multi_param()", "multi_param<float, double>", "multi_param<float,double>")
of_nothing(
    "ptr_param(T*)",
    *("ptr_param<float *>", "ptr_param<float*>", "ptr_param<unsigned long>", "ptr_param<size_t>"),
    arguments=(np.zeros(1),),
)
of_nothing("non_type_param()", "non_type_param<float, (int)3>", "non_type_param<float, 3>")
of_nothing("enum_param()", "enum_param<(mylib::Tag)1>", "enum_param<mylib::Tag::B>")
of_nothing("bare_cubin_probe()", "bare_cubin_probe<float, double>")

# --- cuda.core's tests and examples ----------------------------------------------------------------------

for name in (
    "my_kernel",
    "test_kernel",
    "test_kernel_alt",
    "k",
    "ABC",
    "kernel",
    "empty_kernel",
    "test_grid_sync",
):
    of_nothing(f"{name}()")
of_nothing("foo(int)", arguments=(1,))
of_nothing("foo2(int,int)", arguments=(1, 2))

SCALARS = {
    "bool": np.bool_(True),
    "signed char": np.int8(-42),
    "signed short": np.int16(-1234),
    "signed int": np.int32(-123456),
    "signed long long": np.int64(-123456789),
    "unsigned char": np.uint8(200),
    "unsigned short": np.uint16(60000),
    "unsigned int": np.uint32(4000000000),
    "unsigned long long": np.uint64(2**32 + 1),
    "float": np.float32(3.14),
    "double": np.float64(2.718),
}
MORE_SCALARS = {
    "half": np.float16(0.78),
    "cuda::std::complex<float>": np.complex64(1 + 2j),
    "cuda::std::complex<double>": np.complex128(-3 - 4j),
}


def written_scalars(code):
    return [f"write_scalar<{name}>" for name in SCALARS | (MORE_SCALARS if "cuda_fp16.h" in code else {})]


@check("write_scalar(T*,T)", written_scalars)
def _(launch):
    for name in launch.expressions:
        value = (SCALARS | MORE_SCALARS)[name.removeprefix("write_scalar<").removesuffix(">")]
        same(launch(1, 1, np.zeros(1, value.dtype), value, expression=name)[0], value)


@check("memory_ops(float*,size_t)")
def _(launch):
    x = numbers(1024, np.float32)
    same(launch(4, 256, x, np.uint64(1024))[0], x * np.float32(3))


@check("memory_ops(float*,float*,size_t)")
def _(launch):
    x, pinned = numbers(1024, np.float32), accelrt.pinned_empty(1024, np.float32)
    pinned[:] = x
    same(launch(4, 256, x, pinned.ctypes.data, np.uint64(1024))[0], x + np.float32(1))
    same(pinned, x * np.float32(3))


@check("saxpy(T,T*,T*,T*,size_t)", ("saxpy<float>", "saxpy<double>"))
def _(launch):
    for name, dtype in zip(launch.expressions, (np.float32, np.float64), strict=True):
        x, y = numbers(64, dtype), numbers(64, dtype, 1)
        found = launch(2, 32, dtype(10), x, y, np.zeros(64, dtype), np.uint64(64), expression=name)[2]
        near(found, dtype(10) * x + y)


def vector(name, operation):
    @check(f"{name}(T*,T*,T*,size_t)", (f"{name}<float>",))
    def run(launch):
        x, y = numbers(50000, np.float32), numbers(50000, np.float32, 1)
        same(launch(196, 256, x, y, np.zeros_like(x), np.uint64(50000))[2], operation(x, y))


def vector_of_floats(name, operation):
    @check(f"{name}(float*,float*,float*,size_t)")
    def run(launch):
        x, y = numbers(50000, np.float32), numbers(50000, np.float32, 1)
        same(launch(196, 256, x, y, np.zeros_like(x), np.uint64(50000))[2], operation(x, y))


vector("vector_add", np.add)
vector("vector_multiply", np.multiply)
vector("vector_subtract", np.subtract)
vector_of_floats("vector_add", np.add)
vector_of_floats("vector_sub", np.subtract)


@check("fill(int*,int,int)")
def _(launch):
    same(launch(4, 32, np.zeros(128, np.int32), 42, 100)[0], [42] * 100 + [0] * 28)


@check("check_cluster_info(unsignedint*,unsignedint*,unsignedint*)")
def _(launch):
    held = [to_device(np.zeros(3, np.uint32)) for _ in range(3)]
    launch.kernel().launch(8, 32, held, cluster=2)
    same([read(each) for each in held], [[8, 1, 1], [4, 1, 1], [32, 1, 1]])


@check("A()", companions=True)
def _(launch):
    launch(1, 1)


def released(launch, *more):
    """A kernel that waits until the CPU writes a flag."""
    flag, other, waiting = to_device(np.zeros(1, np.int32)), accelrt.Stream(), accelrt.Stream()
    accelrt.synchronize()
    launch.kernel()[1, 1, waiting](flag, *more)
    time.sleep(0.05)
    assert not waiting.query()
    accelrt.copy(flag.base, np.ones(1, np.int32).view(np.uint8), stream=other)
    waiting.synchronize()


@check("wait(int*)")
def _(launch):
    released(launch)


@check("latch(int*,unsignedlonglong)")
def _(launch):
    released(launch, np.uint64(2**62))
    launch(1, 1, np.zeros(1, np.int32), np.uint64(1))


@check("nanosleep_kernel()")
def _(launch):
    began = time.monotonic()
    launch(1, 1)
    accelrt.synchronize()
    assert time.monotonic() - began > 0.01, "the kernel sleeps for less than half of what it says"


def of_one(key, before, after, dtype=np.int32, grid=1, block=1):
    """A kernel that changes one number, or two."""

    @check(key)
    def run(launch):
        found = launch(grid, block, *[np.array([each], dtype) for each in before])
        near(np.concatenate(found).astype(np.float64), np.array(after, dtype).astype(np.float64))


of_one("add_one(int*)", [41], [42])
of_one("write_launch_dims(int*)", [0], [2003], grid=2, block=3)
of_one("increment(int*)", [0], [1], grid=4, block=32)
of_one("negate_it(int*)", [42], [-42])
of_one("double_it(int*)", [42], [84])
of_one("square_it(int*)", [42], [1764])
of_one("update_hi(float*,float*)", [0, 2], [0, 1], np.float32)
of_one("update_lo(float*,float*)", [0, 2], [1, 2], np.float32)
of_one("newton_refine(float*,float*)", [1, 2], [1.5 - 0.25 / 3] * 2, np.float32)
of_one("secondary_kernel(int*)", [0], [1])
of_one("primary_kernel(int*,int*)", [0, 0], [0, 0])


@check("set_zero(char*,size_t)")
def _(launch):
    same(launch(1, 1, np.full(64, 7, np.int8), np.uint64(64))[0], 0)


@check("add_one(char*,size_t)")
def _(launch):
    x = np.arange(64, dtype=np.int8)
    same(launch(2, 8, x, np.uint64(64))[0], x + 1)


@check("heat_step(float*,float*,int,float)")
def _(launch):
    x, alpha = numbers(32, np.float32), np.float32(0.4)
    expected = x.copy()
    expected[1:-1] += alpha * (x[:-2] - 2 * x[1:-1] + x[2:])
    near(launch(1, 32, np.zeros_like(x), x, 32, alpha)[0], expected)


# --- kernels that set a graph's condition ----------------------------------------------------------------


class Conditional:
    """A graph with a conditional node, whose body counts its rounds."""

    def __init__(self, kind):
        self.rows, self.kind = Rows(None), kind
        self.stream, self.body_stream = accelrt.Stream(), accelrt.Stream()
        self.rounds = to_device(np.zeros(1, np.int32))
        self.first = to_device(np.ones(1, np.int32))
        accelrt.synchronize()

    def ok(self, name, *arguments):
        answer = getattr(self.rows, name)(*arguments)
        code, *values = answer if isinstance(answer, tuple) else (answer,)
        if code:
            raise RuntimeError(f"{name} answered {code}")
        return values[0] if values else None

    def run(self, launch, count, before=(), after=()):
        """The rounds; the kernel's arguments lie around the condition, and count adds 1 to an int."""
        stream, body = self.stream.handle, self.body_stream.handle
        self.ok("capture_begin", 0, stream, 0)
        condition = self.ok("conditional_create", 0, stream)
        arguments = (*before, np.uint64(condition), *after)
        if self.kind == WHILE:
            self.ok("conditional_set", 0, stream, condition, self.first.ptr)
        else:
            launch.kernel()[1, 1, self.stream](*arguments)
        self.ok("capture_begin_to", 0, body, self.ok("conditional_add", 0, stream, condition, self.kind), 0)
        count[1, 1, self.body_stream](self.rounds)
        if self.kind == WHILE:
            launch.kernel()[1, 1, self.body_stream](*arguments)
        self.ok("capture_end", 0, body)
        graph = self.ok("capture_end", 0, stream)
        exec_ = self.ok("graph_instantiate", 0, graph, 0)
        self.ok("graph_launch", 0, exec_, stream)
        self.stream.synchronize()
        self.ok("graph_exec_destroy", exec_)
        self.ok("graph_destroy", graph)
        return int(read(self.rounds)[0])


def rounds(launch, kind, before=(), after=()):
    count = accelrt.compile('extern "C" __global__ void count(int* rounds) { *rounds += 1; }').function(
        "count"
    )
    held = [
        [
            to_device(np.array([each.item()], each.dtype)) if isinstance(each, np.ndarray) else each
            for each in part
        ]
        for part in (before, after)
    ]
    return Conditional(kind).run(launch, count, *held)


@check(f"set_handle({HANDLE},unsignedint)")
def _(launch):
    for value, expected in ((0, 0), (1, 1), (0, 0), (7, 1)):
        assert rounds(launch, IF, after=[np.uint32(value)]) == expected


@check(f"loop_kernel({HANDLE})")
def _(launch):
    assert rounds(launch, WHILE) == 10


@check(f"countdown({HANDLE},int*)")
def _(launch):
    assert rounds(launch, WHILE, after=[np.array([50], np.int32)]) == 50


@check(f"bisect_eval(float*,float*,{HANDLE})")
def _(launch):
    for high, expected in ((2, 0), (4, 1)):
        assert rounds(launch, IF, before=[np.zeros(1, np.float32), np.array([high], np.float32)]) == expected


@check(f"check_refine(float*,float*,{HANDLE})")
def _(launch):
    assert rounds(launch, IF, before=[np.ones(1, np.float32), np.array([2], np.float32)]) == 1
