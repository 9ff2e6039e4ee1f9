"""The text of the kernels that draw random numbers: CUDA C++ or C++ for one distribution, type and layout.

Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).  Thread t of a launch
counts with t in the counter's upper half and with offset / 4 in its lower one, which it counts up from one
group of numbers to the next.  A group is WIDTH numbers, which are written a grid's width apart: element e is
of thread e % threads. That is how torch's kernels place them, so that the numbers of a seed depend on the
grid.

A kernel takes where the seed and the offset lie (or NULL), a seed and an offset (added to the one that lies
there), the number of elements, the lengths and the strides in bytes of a strided array, the bytes from the
array's start to the first element, the array, and the distribution's own parameters.  Names of the text's own
begin with accelrt_.
"""

from __future__ import annotations

from typing import NamedTuple

from accelrt.core.dtypes import BY_NAME
from accelrt.kernels.elementwise_source import CUDA_START, HOST_START, IN_FLOAT, STORED, indented
from accelrt.random.host_math import HOST_MATH
from accelrt.random.philox_text import (
    CUDA_MATH,
    CUDA_PRODUCT,
    DRAWS,
    HOST_PRODUCT,
    RANKED,
    WALKED,
    WIDTHS,
    WORDS,
)

BLOCK = 256  # threads
SPAN = 4  # threads whose neighbouring numbers one thread of a GPU draws, to write them at once


class Form(NamedTuple):
    """The choice of a kernel: a distribution for elements of a type.

    Attributes:
        name: str, a key of STEPS, "ranked" or "walked".
        dtype: str, a name of STORED.
        number: str, the type of C that is drawn; of permutations that of a place.
        axes: int, of a strided array; 0 where the elements lie one behind the other.
    """

    name: str
    dtype: str
    number: str
    axes: int


# Distribution -> how its numbers are drawn, its parameters' types (None: the drawn one), and the element's
# value.
STEPS: dict[str, tuple[str, tuple[str | None, ...], str]] = {
    "uniform": ("unit", (None, None, None), "accelrt_element = STORE(accelrt_fma(x, q, p));"),
    "normal": ("normal", (None, None), "accelrt_element = STORE(accelrt_fma(x, q, p));"),
    "integers": ("words", (None, "accelrt_long"), "accelrt_element = STORE(INTEGER((p ? x % p : x) + q));"),
    "bernoulli": ("unit", (None,), "accelrt_element = STORE(x < p);"),
}
SIGNS = {"float": "float", "double": "double", "accelrt_word": "uint32_t", "accelrt_long": "uint64_t"}
SIGNED = tuple(name for name in STORED if BY_NAME[name].kind in ("bool", "signed", "float"))


def parameters(form: Form) -> list[str]:
    """The types of the distribution's own parameters."""
    steps = STEPS.get(form.name)
    return [] if steps is None else [kind or form.number for kind in steps[1]]


def signature(form: Form) -> list[str]:
    """Returns what the kernel takes, as signatures write it."""
    own = [SIGNS[kind] for kind in parameters(form)]
    layout = [f"struct[{16 * form.axes}]"] if form.axes else []
    out = ["long long", f"{form.dtype}*"]
    return ["const uint64_t*", "uint64_t", "uint64_t", "long long", *layout, *out, *own]


def declared(form: Form) -> list[tuple[str, str]]:
    """Type and name of each parameter."""
    listed = [
        ("const accelrt_long*", "accelrt_state"),
        ("accelrt_long", "accelrt_seed"),
        ("accelrt_long", "accelrt_offset"),
        ("long long", "accelrt_n"),
        *([("accelrt_axes", "accelrt_layout")] if form.axes else []),
        ("long long", "accelrt_begin"),
        (f"{STORED[form.dtype]}*", "accelrt_out"),
    ]
    return listed + list(zip(parameters(form), "pqr", strict=False))


def placed(form: Form) -> list[str]:
    """The statements that find where element number accelrt_i is to be written."""
    stored = STORED[form.dtype]
    if not form.axes:
        return [f"{stored}* const accelrt_at = accelrt_out + accelrt_i;"]
    count = "unsigned int" if form.name in STEPS else "accelrt_long"
    lines = [f"{count} accelrt_rest = accelrt_i; long long accelrt_step = 0;"]
    for axis in reversed(range(form.axes)):
        length = f"({count})accelrt_layout.length[{axis}]"
        lines += [
            f"accelrt_step += (long long)(accelrt_rest % {length}) * accelrt_layout.stride[{axis}];",
            f"accelrt_rest /= {length};",
        ]
    return [*lines, f"{stored}* const accelrt_at = ({stored}*)((char*)accelrt_out + accelrt_step);"]


def valued(form: Form) -> list[str]:
    """The statements that make accelrt_element of a drawn x or, of a permutation, of the place accelrt_i."""
    stored = STORED[form.dtype]
    store, integer = f"({stored})", "(long long)" if form.dtype in SIGNED else ""
    if form.dtype in IN_FLOAT:
        store, integer = f"accelrt_store_{form.dtype}", "(float)(long long)"
    lines = [f"{stored} accelrt_element;"]
    index = (
        "accelrt_element = STORE(INTEGER(accelrt_place(accelrt_i, accelrt_n, accelrt_count, accelrt_seed)));"
    )
    value = STEPS[form.name][2] if form.name in STEPS else index
    lines.append(value.replace("STORE", store).replace("INTEGER", integer))
    if form.name == "uniform":  # (0, 1] becomes [low, high): what rounds to high is low
        rounded = (
            f"accelrt_load_{form.dtype}(accelrt_element)" if form.dtype in IN_FLOAT else "accelrt_element"
        )
        lines.append(f"if ({rounded} == r) accelrt_element = {store}(p);")
    return lines


def element(form: Form) -> str:
    """The statements that write element number accelrt_i."""
    return indented([*placed(form), *valued(form), "*accelrt_at = accelrt_element;"], 2)


def support(form: Form, product: str, math: str) -> str:
    """Everything that comes before the kernel."""
    text = BY_NAME[form.dtype].conversions + product + WORDS
    if form.axes:
        text += f"typedef struct {{ long long length[{form.axes}], stride[{form.axes}]; }} accelrt_axes;\n"
    if form.name in STEPS:
        return text + math + DRAWS[STEPS[form.name][0], form.number]
    return text + (RANKED if form.name == "ranked" else WALKED)


START = """\
    if (accelrt_state) {
        accelrt_seed = accelrt_state[0];
        accelrt_offset += accelrt_state[1];
    }
    accelrt_long accelrt_count = accelrt_offset >> 2;
    accelrt_out = (OUT*)((char*)accelrt_out + accelrt_begin);
"""


def begun(form: Form) -> str:
    schedule = "    const accelrt_keys accelrt_round_keys = accelrt_schedule(accelrt_seed);\n"
    return START.replace("OUT", STORED[form.dtype]) + (schedule if form.name in STEPS else "")


def cuda_source(form: Form) -> str:
    """CUDA C++ of one kernel."""
    listed = ", ".join(f"{kind} {name}" for kind, name in declared(form))
    spans = form.name in STEPS and not form.axes and WIDTHS[form.number] == 4
    blocks = 4 if spans else 8  # of a multiprocessor: registers for the numbers of SPAN threads
    head = (
        f'extern "C" __global__ void __launch_bounds__({BLOCK}, {blocks}) accelrt_{form.name}({listed}) {{\n'
    )
    text = CUDA_START + support(form, CUDA_PRODUCT, CUDA_MATH) + head + begun(form)
    if form.name not in STEPS:
        loop = f"""\
    for (accelrt_long accelrt_i = blockIdx.x * {BLOCK}ull + threadIdx.x; accelrt_i < accelrt_n;
         accelrt_i += gridDim.x * {BLOCK}ull) {{
"""
        return text + loop + element(form) + "    }\n}\n"
    return text + (spanning_loop(form) if spans else cuda_loop(form))


def cuda_loop(form: Form) -> str:
    """Each thread draws its own numbers."""
    width = WIDTHS[form.number]
    loop = f"""\
    const unsigned int accelrt_thread = blockIdx.x * {BLOCK}u + threadIdx.x;
    const unsigned int accelrt_all = gridDim.x * {BLOCK}u;
    for (unsigned int accelrt_first = accelrt_thread; accelrt_first < accelrt_n;
         accelrt_first += accelrt_all * {width}u, ++accelrt_count) {{
        {form.number} accelrt_numbers[{width}];
        accelrt_draw(accelrt_philox(accelrt_count, accelrt_thread, accelrt_round_keys), accelrt_numbers);
        #pragma unroll
        for (unsigned int accelrt_k = 0; accelrt_k < {width}u; ++accelrt_k) {{
        const unsigned int accelrt_i = accelrt_first + accelrt_k * accelrt_all;
        if (accelrt_i >= accelrt_n)
            break;
        const {form.number} x = accelrt_numbers[accelrt_k];
"""
    return loop + element(form) + "        }\n    }\n}\n"


def spanning_loop(form: Form) -> str:
    """Each thread draws every SPAN-th group of SPAN neighbours, whose numbers lie side by side."""
    stored, width = STORED[form.dtype], WIDTHS[form.number]
    bytes_ = f"{SPAN} * sizeof({stored})"
    loop = f"""\
    struct __align__({bytes_} < 16 ? {bytes_} : 16) accelrt_vector {{ {stored} at[{SPAN}]; }};
    const unsigned int accelrt_all = gridDim.x * {BLOCK}u, accelrt_part = accelrt_all / {SPAN}u;
    const unsigned int accelrt_place = blockIdx.x * {BLOCK}u + threadIdx.x;
    const unsigned int accelrt_group = accelrt_place / accelrt_part;
    const unsigned int accelrt_thread = accelrt_place % accelrt_part * {SPAN}u;
    const unsigned int accelrt_most = (unsigned int)accelrt_n;
    const unsigned int accelrt_whole =  // the elements below have a whole vector
        (accelrt_long)accelrt_out % alignof(accelrt_vector) || accelrt_most < {SPAN}u
        ? 0 : accelrt_most - {SPAN - 1}u;
    accelrt_count += accelrt_group;
    for (unsigned int accelrt_first = accelrt_group * {width}u * accelrt_all + accelrt_thread;
         accelrt_first < accelrt_most;
         accelrt_first += accelrt_all * {width * SPAN}u, accelrt_count += {SPAN}u) {{
        {form.number} accelrt_numbers[{SPAN}][{width}];
        #pragma unroll
        for (unsigned int accelrt_s = 0; accelrt_s < {SPAN}u; ++accelrt_s)
            accelrt_draw(accelrt_philox(accelrt_count, accelrt_thread + accelrt_s, accelrt_round_keys),
                         accelrt_numbers[accelrt_s]);
        #pragma unroll
        for (unsigned int accelrt_k = 0; accelrt_k < {width}u; ++accelrt_k) {{
        const unsigned int accelrt_i = accelrt_first + accelrt_k * accelrt_all;
        accelrt_vector accelrt_made;
        #pragma unroll
        for (unsigned int accelrt_s = 0; accelrt_s < {SPAN}u; ++accelrt_s) {{
        const {form.number} x = accelrt_numbers[accelrt_s][accelrt_k];
"""
    stores = f"""\
        accelrt_made.at[accelrt_s] = accelrt_element;
        }}
        if (accelrt_i < accelrt_whole)
            *(accelrt_vector*)(accelrt_out + accelrt_i) = accelrt_made;
        else
            #pragma unroll
            for (unsigned int accelrt_s = 0; accelrt_s < {SPAN}u; ++accelrt_s)
                if (accelrt_i + accelrt_s < accelrt_most)
                    accelrt_out[accelrt_i + accelrt_s] = accelrt_made.at[accelrt_s];
"""
    return loop + indented(valued(form), 2) + stores + "        }\n    }\n}\n"


def host_source(form: Form) -> str:
    """C++ of one kernel, which is called for each block."""
    name, listed = f"accelrt_{form.name}", declared(form)
    sizes = ", ".join(f"sizeof({kind})" for kind, _ in listed)
    text = HOST_START + support(form, HOST_PRODUCT, HOST_MATH)
    text += f"""\
extern "C" {{
extern const size_t {name}_parameters[];
const size_t {name}_parameters[] = {{{sizes}, 0}};
void {name}(const accelrt_block* accelrt_where, void** accelrt_arguments) {{
"""
    for number, (kind, called) in enumerate(listed):
        text += f"    {kind} {called} = *({kind} const*)accelrt_arguments[{number}];\n"
    text += begun(form)
    first = f"accelrt_where->index[0] * {BLOCK}ull"
    if form.name not in STEPS:
        loop = f"""\
    for (accelrt_long accelrt_from = {first}; accelrt_from < (accelrt_long)accelrt_n;
         accelrt_from += accelrt_where->grid[0] * {BLOCK}ull)
        for (accelrt_long accelrt_i = accelrt_from;
             accelrt_i < accelrt_from + {BLOCK} && accelrt_i < (accelrt_long)accelrt_n; ++accelrt_i) {{
"""
        return text + loop + element(form) + "        }\n}\n}\n"
    width = WIDTHS[form.number]
    # Threads are the inner loop, so that memory is written in the order of addresses.
    loop = f"""\
    const accelrt_long accelrt_thread = {first}, accelrt_all = accelrt_where->grid[0] * {BLOCK}ull;
    for (accelrt_long accelrt_first = accelrt_thread; accelrt_first < (accelrt_long)accelrt_n;
         accelrt_first += accelrt_all * {width}, ++accelrt_count) {{
        accelrt_words accelrt_drawn[{BLOCK}];
        {form.number} accelrt_numbers[{BLOCK}][{width}];
        const accelrt_long accelrt_left = accelrt_n - accelrt_first;
        const int accelrt_used = accelrt_left < {BLOCK} ? (int)accelrt_left : {BLOCK};
        for (int t = 0; t < accelrt_used; ++t)
            accelrt_drawn[t] = accelrt_philox(accelrt_count, accelrt_thread + t, accelrt_round_keys);
        for (int t = 0; t < accelrt_used; ++t)
            accelrt_draw(accelrt_drawn[t], accelrt_numbers[t]);
        for (int k = 0; k < {width}; ++k)
        for (int t = 0; t < {BLOCK}; ++t) {{
        const accelrt_long accelrt_i = accelrt_first + k * accelrt_all + t;
        if (accelrt_i >= (accelrt_long)accelrt_n)
            break;
        const {form.number} x = accelrt_numbers[t][k];
"""
    return text + loop + element(form) + "        }\n    }\n}\n}\n"
