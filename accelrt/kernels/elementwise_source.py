"""The text of elementwise kernels: parameter declarations read, and CUDA C++ or C written for given types.

A kernel's first parameter is the number of elements, or for a strided kernel a struct of that number, the
length of each axis, and for each array its stride in bytes along each axis, all of 64 bits.  The inputs and
outputs follow in the order of their declarations, an array as the pointer to its first element, a scalar by
value.

Names of the text's own begin with accelrt_, those made of a parameter's name with accelrt_arg_,
accelrt_held_ and so on, so that no parameter's name can meet another one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from accelrt.core.dtypes import BY_NAME, DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BLOCK = 256  # threads
UNROLLED = 2  # vectors for each thread, whose loads are under way at the same time
VECTOR_BYTES = 16  # the widest load of a thread
CHUNK = 1 << 16  # elements of a block on the host device
MOST_AXES = 8
MOST_PARAMETERS = 32

# NumPy's name of a type -> how it is stored; what the body computes with is the same, but for small floats.
STORED = {dtype.name: dtype.stored for dtype in DTYPES if dtype.stored}
COMPLEX = tuple(name for name in STORED if BY_NAME[name].kind == "complex")
FLOATS = tuple(name for name in STORED if BY_NAME[name].kind == "float")
IN_FLOAT = tuple(name for name in FLOATS if BY_NAME[name].conversions)  # computed with in 32 bits
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
WORDS = """
    i n alignas and auto bitand bitor bool break case catch char class compl const constexpr continue
    decltype default delete do double else enum explicit export extern false float for friend goto if
    inline int long mutable namespace new not operator or private protected public register restrict
    return short signed sizeof static struct switch template this throw true try typedef typeid typename
    union unsigned using virtual void volatile while xor
"""
RESERVED = frozenset(WORDS.split())  # of C and C++, and what a body may use

CUDA_START = """\
#define accelrt_inline static __device__ __forceinline__ __attribute__((unused))
"""
HOST_START = '#include "accelrt_functions.hpp"\n'
# Complex numbers by C's names: creal, cimag, conj, cabs, carg, exp, log, sqrt; and make_complex(re, im).
COMPLEX_NUMBERS = """\
template <bool> struct accelrt_if {};
template <> struct accelrt_if<true> { typedef int type; };
template <class T> struct accelrt_complex {
    T re, im;
    accelrt_complex() = default;
    __device__ accelrt_complex(T real, T imaginary = 0) : re(real), im(imaginary) {}
    template <class U, typename accelrt_if<(sizeof(U) < sizeof(T))>::type = 0>
    __device__ accelrt_complex(const accelrt_complex<U>& from) : re(from.re), im(from.im) {}
    template <class U, typename accelrt_if<(sizeof(U) > sizeof(T))>::type = 0>
    __device__ explicit accelrt_complex(const accelrt_complex<U>& from) : re((T)from.re), im((T)from.im) {}
    template <class U> __device__ accelrt_complex& operator=(const accelrt_complex<U>& from) {
        re = (T)from.re;
        im = (T)from.im;
        return *this;
    }
    __device__ accelrt_complex operator+() const { return *this; }
    __device__ accelrt_complex operator-() const { return accelrt_complex(-re, -im); }
    friend __device__ accelrt_complex operator+(const accelrt_complex& a, const accelrt_complex& b) {
        return accelrt_complex(a.re + b.re, a.im + b.im);
    }
    friend __device__ accelrt_complex operator-(const accelrt_complex& a, const accelrt_complex& b) {
        return accelrt_complex(a.re - b.re, a.im - b.im);
    }
    friend __device__ accelrt_complex operator*(const accelrt_complex& a, const accelrt_complex& b) {
        return accelrt_complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
    }
    friend __device__ accelrt_complex operator/(const accelrt_complex& a, const accelrt_complex& b) {
        if (fabs(b.re) >= fabs(b.im)) {  /* so that no square leaves the range */
            const T ratio = b.im / b.re, scale = b.re + b.im * ratio;
            return accelrt_complex((a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale);
        }
        const T ratio = b.re / b.im, scale = b.re * ratio + b.im;
        return accelrt_complex((a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale);
    }
    friend __device__ bool operator==(const accelrt_complex& a, const accelrt_complex& b) {
        return a.re == b.re && a.im == b.im;
    }
    friend __device__ bool operator!=(const accelrt_complex& a, const accelrt_complex& b) {
        return !(a == b);
    }
    __device__ accelrt_complex& operator+=(const accelrt_complex& b) { return *this = *this + b; }
    __device__ accelrt_complex& operator-=(const accelrt_complex& b) { return *this = *this - b; }
    __device__ accelrt_complex& operator*=(const accelrt_complex& b) { return *this = *this * b; }
    __device__ accelrt_complex& operator/=(const accelrt_complex& b) { return *this = *this / b; }
};
typedef accelrt_complex<float> accelrt_complex64;
typedef accelrt_complex<double> accelrt_complex128;
template <class T> accelrt_inline T creal(const accelrt_complex<T>& z) { return z.re; }
template <class T> accelrt_inline T cimag(const accelrt_complex<T>& z) { return z.im; }
template <class T> accelrt_inline T cabs(const accelrt_complex<T>& z) { return hypot(z.re, z.im); }
template <class T> accelrt_inline T carg(const accelrt_complex<T>& z) { return atan2(z.im, z.re); }
template <class T> accelrt_inline accelrt_complex<T> conj(const accelrt_complex<T>& z) {
    return accelrt_complex<T>(z.re, -z.im);
}
template <class T> accelrt_inline accelrt_complex<T> exp(const accelrt_complex<T>& z) {
    const T size = exp(z.re);
    return accelrt_complex<T>(size * cos(z.im), size * sin(z.im));
}
template <class T> accelrt_inline accelrt_complex<T> log(const accelrt_complex<T>& z) {
    return accelrt_complex<T>(log(cabs(z)), carg(z));
}
template <class T> accelrt_inline accelrt_complex<T> sqrt(const accelrt_complex<T>& z) {
    if (z.re == 0 && z.im == 0)
        return accelrt_complex<T>(0, z.im);
    const T size = sqrt((fabs(z.re) + cabs(z)) / 2), other = fabs(z.im) / (2 * size);
    if (z.re < 0)
        return accelrt_complex<T>(other, copysign(size, z.im));
    return accelrt_complex<T>(size, copysign(other, z.im));
}
template <class T, class U> accelrt_inline auto make_complex(T real, U imaginary)
    -> accelrt_complex<decltype(real + imaginary + 0.0f)> {
    typedef decltype(real + imaginary + 0.0f) accelrt_part;
    return accelrt_complex<accelrt_part>((accelrt_part)real, (accelrt_part)imaginary);
}
"""


class Parameter(NamedTuple):
    """One declaration: the type is a name of STORED, or a placeholder such as "T"; raw where it says so."""

    type: str
    name: str
    raw: bool = False


class Operand(NamedTuple):
    """A parameter of a kernel that is written.

    Attributes:
        name: str.  dtype: str, a name of STORED.
        is_array: bool, False for a scalar.  is_output: bool.
        raw: bool, an array that the operation indexes by itself.
    """

    name: str
    dtype: str
    is_array: bool
    is_output: bool
    raw: bool = False

    @property
    def is_walked(self) -> bool:
        """Tells whether it has one element for each that is computed."""
        return self.is_array and not self.raw

    @property
    def pointer(self) -> str:
        """The type of a pointer to its elements."""
        return f"{'' if self.is_output else 'const '}{self.stored}*"

    @property
    def stored(self) -> str:
        return STORED[self.dtype]

    @property
    def computed(self) -> str:
        return "float" if self.dtype in IN_FLOAT else STORED[self.dtype]

    def load(self, text: str) -> str:
        return f"accelrt_load_{self.dtype}({text})" if self.dtype in IN_FLOAT else text

    def store(self, text: str) -> str:
        return f"accelrt_store_{self.dtype}({text})" if self.dtype in IN_FLOAT else text


class Text(NamedTuple):
    """The pieces that a kernel is written of.

    Attributes:
        name: str, of the kernel.
        operands: tuple of Operand.
        types: dict from each placeholder to the type that the body computes with.
        body: str.  preamble: str.
    """

    name: str
    operands: tuple[Operand, ...]
    types: dict[str, str]
    body: str
    preamble: str


class Marks(NamedTuple):
    """Directives around the parts of a text that a user wrote, which messages call by names of their own."""

    preamble: str = ""
    operation: str = ""
    behind: str = ""


NO_MARKS = Marks()


def read_parameters(text: str, what: str) -> tuple[Parameter, ...]:
    """The declarations of a text such as "T x, float32 scale".

    Raises:
        TypeError: it is no str.
        ValueError: a declaration is not a type and a name.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"{what} is a str of declarations such as 'T x, float32 y', not {type(text).__name__}"
        )
    parameters = []
    for part in text.split(",") if text.strip() else []:
        words = part.split()
        raw = len(words) == 3 and words[0] == "raw"
        if len(words) != 2 + raw or not all(NAME.fullmatch(word) for word in words):
            raise ValueError(
                f"{what}: {part.strip()!r} is no declaration; write a type and a name, as in 'T x' or "
                "'raw T x'"
            )
        type_, name = words[raw:]
        if type_ not in STORED and not (type_[0].isupper() and type_ not in RESERVED):
            raise ValueError(
                f"{what}: {type_!r} is no type; it may be {', '.join(STORED)}, or a placeholder that begins "
                "with a capital letter, such as T"
            )
        if name in RESERVED or name.startswith("accelrt_"):
            raise ValueError(f"{what}: {name!r} is no parameter's name; it means something else in the body")
        parameters.append(Parameter(type_, name, raw))
    return tuple(parameters)


def support(text: Text) -> str:
    """Returns what the kernel needs for its types: functions between small floats and float, complex
    numbers."""
    types = {each.dtype for each in text.operands}
    conversions = "".join(BY_NAME[name].conversions for name in sorted(types))
    return conversions + (COMPLEX_NUMBERS if types & {*COMPLEX} else "")


def operation(text: Text, marks: Marks = NO_MARKS) -> str:
    """The typedefs of the placeholders, the preamble, and a function that computes one element.

    Arguments:
        marks: what comes before the preamble, the operation, and what is behind each.
    """
    operands = text.operands
    lines = [f"typedef {computed} {placeholder};" for placeholder, computed in text.types.items()]
    takes = ["const long long i", "const long long n"]
    takes += [
        f"{each.pointer} const {each.name}" if each.raw else f"const {each.computed} {each.name}"
        for each in operands
        if each.raw or not each.is_output
    ]
    outputs = [each for each in operands if each.is_output and not each.raw]
    takes += [f"{each.computed}* accelrt_out_{each.name}" for each in outputs]
    lines += [f"{marks.preamble}{text.preamble}{marks.behind}"]
    lines += [f"accelrt_inline void accelrt_operation({', '.join(takes)}) {{"]
    lines += [f"    {each.computed} {each.name} = 0;" for each in outputs]
    lines += ["    {", f"{marks.operation}{text.body}{marks.behind}", "    ;}"]
    lines += [f"    *accelrt_out_{each.name} = {each.name};" for each in outputs]
    return "\n".join([*lines, "}\n"])


def parameters(operands: Sequence[Operand], axes: int) -> list[tuple[str, str]]:
    """Type and name of each of a kernel's parameters; axes is 0 for a contiguous kernel."""
    first = ("accelrt_axes", "accelrt_layout") if axes else ("long long", "accelrt_n")
    return [
        first,
        *((one.pointer if one.is_array else one.computed, f"accelrt_arg_{one.name}") for one in operands),
    ]


def signature(operands: Sequence[Operand], axes: int) -> list[str]:
    """Lists the types of a kernel's parameters, as signatures write them."""
    arrays = sum(each.is_walked for each in operands)
    first = f"struct[{8 * (1 + axes + arrays * axes)}]" if axes else "long long"
    kinds = [
        f"{'' if each.is_output else 'const '}{each.dtype}*"
        if each.is_array
        else each.dtype
        if each.dtype in COMPLEX
        else each.computed
        for each in operands
    ]
    return [first, *kinds]


def layout_type(operands: Sequence[Operand], axes: int) -> str:
    """The struct of a strided kernel's first parameter."""
    strides = "".join(f" long long stride_{each.name}[{axes}];" for each in operands if each.is_walked)
    return (
        f"typedef struct {{ long long n; long long length[{axes}];{strides} }} accelrt_axes;\n"
        if axes
        else ""
    )


def call(operands: Sequence[Operand], index: str, at: Mapping[str, str]) -> list[str]:
    """Statements that compute one element; `at` says where each array's element is."""
    outputs = [each for each in operands if each.is_output and not each.raw]
    lines = [f"{each.computed} accelrt_new_{each.name};" for each in outputs]
    arguments = [index, "accelrt_n"]
    for each in operands:
        if each.raw or not each.is_output:
            arguments.append(each.load(at[each.name]) if each.is_walked else f"accelrt_arg_{each.name}")
    arguments += [f"&accelrt_new_{each.name}" for each in outputs]
    lines.append(f"accelrt_operation({', '.join(arguments)});")
    return lines + [f"{at[each.name]} = {each.store(f'accelrt_new_{each.name}')};" for each in outputs]


def indented(lines: Iterable[str], depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in lines)


def cuda_source(text: Text, axes: int, vector: int, wide: bool) -> str:
    """CUDA C++ of one kernel.

    Arguments:
        axes: int, of the arrays; 0 for the contiguous kernel, which takes `vector` elements at a time, or
            for 0 one that is aligned as its parts only.
        wide: bool, whether a strided kernel counts elements in 64 bits.
    """
    listed = ", ".join(f"{kind} const {called}" for kind, called in parameters(text.operands, axes))
    head = f'extern "C" __global__ void __launch_bounds__({BLOCK}) {text.name}({listed}) {{\n'
    inner = cuda_strided(text.operands, axes, wide) if axes else cuda_contiguous(text.operands, vector)
    start = CUDA_START + support(text) + layout_type(text.operands, axes)
    return start + operation(text) + head + inner + "}\n"


def cuda_contiguous(operands: Sequence[Operand], vector: int) -> str:
    arrays = [each for each in operands if each.is_walked]
    read = [each for each in arrays if not each.is_output]
    vectors = {each.name: f"accelrt_vector_{each.name}" for each in arrays}
    alignment = "alignas(sizeof({stored}) * {vector}) " if vector else ""
    vector = max(vector, 1)
    lines = [f"const long long accelrt_whole = accelrt_n / {vector};"]
    for each in arrays:
        aligned = alignment.format(stored=each.stored, vector=vector)
        lines.append(f"struct {aligned}{vectors[each.name]} {{ {each.stored} at[{vector}]; }};")
        lines.append(f"{vectors[each.name]} accelrt_held_{each.name}[{UNROLLED}];")
    lines.append(f"const long long accelrt_first = (long long)blockIdx.x * {BLOCK * UNROLLED} + threadIdx.x;")
    step = [
        "#pragma unroll",
        f"for (int accelrt_u = 0; accelrt_u < {UNROLLED}; ++accelrt_u) {{",
        f"    const long long accelrt_k = accelrt_first + accelrt_u * {BLOCK};",
        "    if (accelrt_k < accelrt_whole) {",
    ]
    lines += step
    for each in read:
        source = f"reinterpret_cast<const {vectors[each.name]}*>(accelrt_arg_{each.name})[accelrt_k]"
        lines.append(f"        accelrt_held_{each.name}[accelrt_u] = {source};")
    lines += [
        "    }",
        "}",
        *step,
        "        #pragma unroll",
        f"        for (int accelrt_v = 0; accelrt_v < {vector}; ++accelrt_v) {{",
    ]
    at = {each.name: f"accelrt_held_{each.name}[accelrt_u].at[accelrt_v]" for each in arrays}
    lines += ["            " + line for line in call(operands, f"accelrt_k * {vector} + accelrt_v", at)]
    lines.append("        }")
    for each in arrays:
        if each.is_output:
            target = f"reinterpret_cast<{vectors[each.name]}*>(accelrt_arg_{each.name})[accelrt_k]"
            lines.append(f"        {target} = accelrt_held_{each.name}[accelrt_u];")
    lines += ["    }", "}"]
    # The last elements, fewer than a vector, are those of the first threads of the last block.
    lines += [
        f"const long long accelrt_k = accelrt_whole * {vector} + threadIdx.x;",
        "if (blockIdx.x == gridDim.x - 1 && accelrt_k < accelrt_n) {",
    ]
    at = {each.name: f"accelrt_arg_{each.name}[accelrt_k]" for each in arrays}
    lines += ["    " + line for line in call(operands, "accelrt_k", at)]
    return indented([*lines, "}"], 1)


def cuda_strided(operands: Sequence[Operand], axes: int, wide: bool) -> str:
    kind = "unsigned long long" if wide else "unsigned int"
    arrays = [each for each in operands if each.is_walked]
    lines = [
        "const long long accelrt_n = accelrt_layout.n;",
        f"for ({kind} accelrt_k = blockIdx.x * ({kind}){BLOCK} + threadIdx.x; accelrt_k < ({kind})accelrt_n;",
        f"     accelrt_k += gridDim.x * ({kind}){BLOCK}) {{",
        f"    {kind} accelrt_rest = accelrt_k;",
    ]
    lines += [f"    long long accelrt_offset_{each.name} = 0;" for each in arrays]
    for axis in reversed(range(axes)):
        lines.append("    {")
        if axis:
            lines.append(
                f"        const {kind} accelrt_next = accelrt_rest / ({kind})accelrt_layout.length[{axis}];"
            )
            position = f"(accelrt_rest - accelrt_next * ({kind})accelrt_layout.length[{axis}])"
        else:
            position = "accelrt_rest"
        lines.append(f"        const long long accelrt_at = {position};")
        lines += [
            f"        accelrt_offset_{each.name} += accelrt_at * accelrt_layout.stride_{each.name}[{axis}];"
            for each in arrays
        ]
        lines += ["        accelrt_rest = accelrt_next;", "    }"] if axis else ["    }"]
    lines += ["    " + line for line in call(operands, "(long long)accelrt_k", strided_elements(arrays))]
    return indented([*lines, "}"], 1)


def strided_elements(arrays: Iterable[Operand]) -> dict[str, str]:
    texts = {}
    for each in arrays:
        const, char = ("", "char") if each.is_output else ("const ", "const char")
        address = f"({char}*)accelrt_arg_{each.name} + accelrt_offset_{each.name}"
        texts[each.name] = f"(*({const}{each.stored}*)({address}))"
    return texts


def host_source(text: Text, axes: int) -> tuple[str, dict[str, str]]:
    """C++ of one kernel, which is called for each block of CHUNK elements (kernels/DESIGN.md).

    Returns:
        (text, dict from the names that messages have for the parts that a user wrote to these parts).
    """
    listed, name = parameters(text.operands, axes), text.name
    sizes = ", ".join(f"sizeof({kind})" for kind, _ in listed)
    head = [
        'extern "C" {',
        f"extern const size_t {name}_parameters[];",
        f"const size_t {name}_parameters[] = {{{sizes}, 0}};",
        f"void accelrt_block_{name}(const accelrt_block* accelrt_where, void** accelrt_arguments) {{",
    ]
    lines = [
        f"{kind} const {called} = *({kind} const*)accelrt_arguments[{number}];"
        for number, (kind, called) in enumerate(listed)
    ]
    lines += ["const long long accelrt_n = accelrt_layout.n;"] if axes else []
    lines += [
        f"const long long accelrt_begin = (long long)accelrt_where->index[0] * {CHUNK};",
        f"const long long accelrt_last = accelrt_begin + {CHUNK};",
        "const long long accelrt_end = accelrt_last < accelrt_n ? accelrt_last : accelrt_n;",
    ]
    lines += host_strided(text.operands, axes) if axes else host_contiguous(text.operands)
    start = HOST_START + support(text) + layout_type(text.operands, axes)
    sources = {f"preamble of {name}": text.preamble, f"operation of {name}": text.body}
    preamble, body = (f'#line 1 "{part}"\n' for part in sources)
    # What is behind a part belongs to the kernel's own text, whichever line it is on.
    marks = Marks(preamble, body, f'\n#line 1 "{name}"\n')
    return start + operation(text, marks) + indented(head, 0) + indented(lines, 1) + "}\n}\n", sources


def host_contiguous(operands: Sequence[Operand]) -> list[str]:
    at = {each.name: f"accelrt_arg_{each.name}[accelrt_k]" for each in operands}
    lines = ["for (long long accelrt_k = accelrt_begin; accelrt_k < accelrt_end; ++accelrt_k) {"]
    return [*lines, *("    " + line for line in call(operands, "accelrt_k", at)), "}"]


def host_strided(operands: Sequence[Operand], axes: int) -> list[str]:
    # Positions and offsets of the block's first element are divided out, and then counted on.
    arrays = [each for each in operands if each.is_walked]
    lines = ["long long accelrt_rest = accelrt_begin;"]
    lines += [f"long long accelrt_offset_{each.name} = 0;" for each in arrays]
    for axis in reversed(range(axes)):
        length = f"accelrt_layout.length[{axis}]"
        lines.append(f"long long accelrt_at{axis} = accelrt_rest % {length};")
        lines.append(f"accelrt_rest /= {length};")
        for each in arrays:
            lines.append(
                f"accelrt_offset_{each.name} += accelrt_at{axis} * accelrt_layout.stride_{each.name}[{axis}];"
            )
    lines.append("for (long long accelrt_k = accelrt_begin; accelrt_k < accelrt_end; ++accelrt_k) {")
    lines += ["    " + line for line in call(operands, "accelrt_k", strided_elements(arrays))]
    depth = "    "
    for axis in reversed(range(axes)):
        length = f"accelrt_layout.length[{axis}]"
        for each in arrays:
            lines.append(f"{depth}accelrt_offset_{each.name} += accelrt_layout.stride_{each.name}[{axis}];")
        lines.append(f"{depth}if (++accelrt_at{axis} == {length}) {{")
        depth += "    "
        lines.append(f"{depth}accelrt_at{axis} = 0;")
        for each in arrays:
            lines.append(
                f"{depth}accelrt_offset_{each.name} -= {length} * accelrt_layout.stride_{each.name}[{axis}];"
            )
    lines += ["    " * level + "}" for level in range(axes, 0, -1)]
    return [*lines, "}"]
