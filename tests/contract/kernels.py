"""One kernel for every driver: each thread writes a value plus its own number into 32 bits of memory."""

import ctypes

import numpy as np
from compiled import compile_source

BLOCKS, THREADS = 4, 64
ARGUMENTS = ("at", 8), ("value", 4)
PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 total = 7;
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
SOURCE = """
#include <stddef.h>
#include <stdint.h>
typedef struct {
    uint32_t grid[3], block[3], index[3];
    uint32_t shared_bytes;
    void *shared;
    int *failed;
} accelrt_block;

const size_t number_parameters[] = {8, 4, 0};
void number(const accelrt_block *where, void **arguments) {
    uint32_t *at = *(uint32_t **)arguments[0], value = *(uint32_t *)arguments[1];
    uint32_t first = where->index[0] * where->block[0];
    for (uint32_t thread = 0; thread < where->block[0]; thread++)
        at[first + thread] = first + thread + value;
}
void unsized(const accelrt_block *where, void **arguments) {}
"""


def image_for(driver, folder):
    """What module_load takes: PTX, or a shared object's bytes."""
    return PTX if driver == "cuda" else compile_source(SOURCE, folder, "number").read_bytes()


def launch(rows, function, stream, at, value, grid=(BLOCKS, 1, 1), block=(THREADS, 1, 1), shared=0):
    """Launches the kernel; the arguments are read before the row returns."""
    return with_arguments(
        at,
        value,
        lambda pointers: rows.kernel_launch(0, stream, function, *grid, *block, shared, pointers),
    )


def with_arguments(at, value, call):
    values = ctypes.c_uint64(at), ctypes.c_uint32(value)
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    return call(ctypes.addressof(pointers))


def numbers(value, count=BLOCKS * THREADS):
    return np.arange(value, value + count, dtype=np.uint32)


def read(rows, at, count=BLOCKS * THREADS):
    return rows.read(at, 4 * count).view(np.uint32)
