"""Kernels for every driver; each thread of `number` writes a value plus its own number into memory."""

import ctypes
import os

import numpy as np
import pytest
from compiled import compile_image

BLOCKS, THREADS = 4, 64
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
.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p;
    .reg .f32 %f<4>;
    .reg .u32 %r<6>;
    .reg .u64 %rd<6>;
    ld.param.f32 %f1, [a];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p ret;
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f3, %f1, %f2, %f3;
    st.global.f32 [%rd5], %f3;
    ret;
}
.visible .entry stop()
{
    trap;
    ret;
}
"""
SOURCE = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef struct {
    uint32_t grid[3], block[3], index[3];
    uint32_t shared_bytes;
    void *shared;
    int *failed;
} accelrt_block;

uint32_t total = 7;

const size_t number_parameters[] = {8, 4, 0};
void number(const accelrt_block *where, void **arguments) {
    uint32_t *at = *(uint32_t **)arguments[0], value = *(uint32_t *)arguments[1];
    uint32_t first = where->index[0] * where->block[0];
    for (uint32_t thread = 0; thread < where->block[0]; thread++)
        at[first + thread] = first + thread + value;
}
const size_t saxpy_parameters[] = {4, 8, 8, 4, 0};
void saxpy(const accelrt_block *where, void **arguments) {
    float a = *(float *)arguments[0], *x = *(float **)arguments[1], *y = *(float **)arguments[2];
    uint32_t n = *(uint32_t *)arguments[3], first = where->index[0] * where->block[0];
    for (uint32_t i = first; i < n && i < first + where->block[0]; i++)
        y[i] += a * x[i];
}
const size_t stop_parameters[] = {0};
void stop(const accelrt_block *where, void **arguments) { *where->failed = 1; }
const size_t shared_parameters[] = {8, 0};
void shared(const accelrt_block *where, void **arguments) {
    uint32_t *at = *(uint32_t **)arguments[0], *own = where->shared;
    if (own)
        for (uint32_t i = 0; i < where->shared_bytes / 4; i++)
            own[i] = i;
    at[0] = where->shared_bytes;
    at[1] = own ? own[where->shared_bytes / 4 - 1] : 0;
}
const size_t echo_parameters[] = {8, 1, 2, 4, 8, 16, 24, 0};
void echo(const accelrt_block *where, void **arguments) {
    char *at = *(char **)arguments[0];
    size_t offset = 0;
    for (size_t i = 1; echo_parameters[i]; offset += echo_parameters[i++])
        memcpy(at + offset, arguments[i], echo_parameters[i]);
}
void unsized(const accelrt_block *where, void **arguments) {}
"""


def image_for(driver):
    """What module_load takes: PTX, or a shared object's bytes."""
    return PTX if driver == "cuda" else compile_image(SOURCE)


@pytest.fixture(scope="session")
def image():
    """The same for the driver that the tests run on."""
    return image_for(os.environ.get("ACCELRT_DRIVER", "host"))


def launch(rows, function, stream, at, value, grid=(BLOCKS, 1, 1), block=(THREADS, 1, 1), shared=0):
    """Launches the kernel; the arguments are read before the row returns."""
    return with_arguments(
        at, value, lambda pointers: rows.kernel_launch(0, stream, function, *grid, *block, shared, pointers)
    )


def with_arguments(at, value, call):
    values = ctypes.c_uint64(at), ctypes.c_uint32(value)
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    return call(ctypes.addressof(pointers))


def numbers(value, count=BLOCKS * THREADS):
    return np.arange(value, value + count, dtype=np.uint32)


def written(kernel, value=3, **options):
    """What the kernel `number` writes into a Buffer, which is made with these options."""
    import accelrt

    buffer, out = accelrt.Buffer(4 * BLOCKS * THREADS, **options), np.zeros(BLOCKS * THREADS, np.uint32)
    kernel[BLOCKS, THREADS](buffer, value)
    accelrt.copy(out, buffer)
    return out


def read(rows, at, count=BLOCKS * THREADS):
    return rows.read(at, 4 * count).view(np.uint32)
