"""Reading the texts of a checkout, and telling which kernels compile and agree."""

import os

import peer_texts
import pytest

CHECKOUT = r'''
preamble = "__device__ int twice(int x);"


class TestSomething:
    def test_one(self):
        code = preamble + r"""
            // __global__ void not_a_kernel() {}
            extern "C" __global__ void __launch_bounds__(128, 2)
            scale(const float* __restrict__ x, unsigned int n) { if (n) { twice(1); } }
            template <typename T> __global__ void shift(T by, T *out) {}
            __global__ void declared(int x);
        """

    def test_two(self, nargs):
        code = f"__global__ void foo{nargs}({args_str}) {{ }}"
        other = "__global__ void of_$cond_type_str() {}".replace("$cond_type_str", "bool")
        unknown = f"__global__ void known_later_{nargs + 1}() {{ }}"
        helper = "__device__ int twice(int x) { return 2 * x; }"
        pattern = "__global__ $signature { for (int i = 0; i < 9; i++) {} }"
        again = f"__global__ void foo{nargs}({args_str}) {{ }}"
        cupy.ElementwiseKernel("T x", "T y", "y = x")
'''


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "test_something.py").write_text(CHECKOUT)
    return peer_texts.read_checkouts([tmp_path])


def test_texts_are_found_with_the_keys_of_their_kernels(texts):
    first, second, third, unread, pattern, elementwise = texts
    assert [kernel.key for kernel in first.kernels] == ["scale(float*,unsignedint)", "shift(T,T*)"]
    assert (first.line, first.code.startswith("__device__ int twice(int x);")) == (7, True)
    assert [kernel.key for kernel in second.kernels] == ["foo2(int,int)"]
    assert third.code == "__global__ void of_unsigned int() {}"
    assert first.companions == ("__device__ int twice(int x) { return 2 * x; }",)
    assert unread.line == CHECKOUT[: CHECKOUT.index("unknown")].count("\n") + 1
    assert pattern == peer_texts.Unread(unread.path, unread.line + 2)
    assert elementwise.arguments == ("T x", "T y", "y = x")


def test_a_kernel_is_cut_out_of_a_text(texts):
    code = peer_texts.without(texts[0].code, texts[0].kernels[:1])
    assert [kernel.name for kernel in peer_texts.kernels_of(code)] == ["shift"]
    assert "twice(int x);" in code
    assert "__launch_bounds__" not in code


@pytest.mark.host
def test_kernels_are_counted_that_compile_and_that_agree(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ACCELRT_DRIVER", os.environ.get("ACCELRT_DRIVER", "host"))
    path = tmp_path / "test_kernels.py"
    path.write_text(
        'right = "__global__ void add_one(int* x) { x[0]++; } __global__ void of_ours(int x) {}"\n'
        'wrong = "__global__ void double_it(int* x) { *x *= 3; }"\n'
        'refused = "__global__ void square_it(int* x) { missing(x); }"\n'
        'broken = "__global__ void i_am_broken() {"\n'
    )
    assert peer_texts.main([str(path), "--json", str(tmp_path / "counts.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "test_kernels.py:1: add_one(int*): agrees"
    assert lines[1] == "test_kernels.py:1: of_ours(int): compiles: no check is known for it"
    assert lines[2].startswith("test_kernels.py:2: double_it(int*): compiles: AssertionError: ")
    assert lines[3].startswith("test_kernels.py:3: square_it(int*): FAILS: kernel.cu, line 1, column 37: ")
    assert lines[4].startswith("test_kernels.py:4: i_am_broken(): not counted: broken on purpose: ")
    assert lines[-1].split() == ["all", "4", "3", "1", "25%"]
    assert '"all": [\n  4,\n  3,\n  1\n ]' in (tmp_path / "counts.json").read_text()
