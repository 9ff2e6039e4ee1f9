"""A stand-in for NVIDIA's runtime and driver libraries, on accelrt's host device: enough of them for torch to
make streams, copy, capture copies into graphs and replay them.  Kernels do nothing, and nothing here says
how a GPU behaves.

The C functions are generated, compiled and put before the real library by LD_PRELOAD.  Those of DIRECT call
the driver's rows themselves, for torch calls them under locks of its own, for which a thread with the GIL may
wait; each other calls the Python function of its name below, if there is one, and else answers 0.
"""

import atexit
import ctypes
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

from compiled import COMPILER

U = ctypes.c_size_t
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, U, U, U, U, U, U)
I32, U64 = ctypes.c_int32, ctypes.c_uint64
SILENT = """
    DeviceEnablePeerAccess DeviceGetAttribute EventElapsedTime PeekAtLastError LaunchKernel
    LaunchKernelExC StreamGetPriority HostRegister HostUnregister
"""
DRIVER = """
    cuCtxGetCurrent cuCtxSetCurrent cuDeviceGet cuDeviceGetAttribute cuDevicePrimaryCtxRetain
    cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuGetErrorString cuLaunchCooperativeKernel
    cuLaunchKernel cuLinkAddData_v2 cuLinkComplete cuLinkCreate_v2 cuModuleGetFunction cuModuleLoad
    cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuPointerGetAttribute cuTensorMapEncodeTiled
"""


DEVICES = int(os.environ.get("STANDIN_DEVICES", "1"))
FIRST_ROW = 3  # words of the driver's table before it
# By name: an expression of C of the arguments a to f, the thread's device and rows of the driver's.
DIRECT = {
    "GetDevice": "(*(int *)a = device, 0)",
    "SetDevice": "(device = (int)a, 0)",
    "GetLastError": "0",
    "Malloc": "ROW(memory_alloc)(device, b, a, 0, 0, 0)",
    "Free": "a ? ROW(memory_free)(device, a, 0, 0, 0, 0) : 0",
    "HostAlloc": "ROW(host_alloc)(device, b, a, 0, 0, 0)",
    "FreeHost": "ROW(host_free)(device, a, 0, 0, 0, 0)",
    "MemGetInfo": "ROW(memory_info)(device, a, b, 0, 0, 0)",
    "MemcpyAsync": "ROW(copy)(device, e, a, b, c, 0)",
    "MemsetAsync": "ROW(fill)(device, d, a, b & 255, 1, c)",
    "DeviceSynchronize": "ROW(device_synchronize)(device, 0, 0, 0, 0, 0)",
    "StreamCreateWithPriority": "ROW(stream_create)(device, 1, 0, a, 0, 0)",
    "StreamBeginCapture": "ROW(capture_begin)(device, a, b, 0, 0, 0)",
    "GraphLaunch": "ROW(graph_launch)(device, a, b, 0, 0, 0)",
    "GraphDestroy": "ROW(graph_destroy)(a, 0, 0, 0, 0, 0)",
    "GraphExecDestroy": "ROW(graph_exec_destroy)(a, 0, 0, 0, 0, 0)",
    "StreamQuery": "ROW(stream_query)(device, a, 0, 0, 0, 0)",
    "StreamSynchronize": "ROW(stream_synchronize)(device, a, 0, 0, 0, 0)",
    "StreamWaitEvent": "ROW(stream_wait_event)(device, a, b, 0, 0, 0)",
    "StreamIsCapturing": "ROW(capture_status)(device, a, b, (U)&nowhere, 0, 0)",
    "StreamGetCaptureInfo": "ROW(capture_status)(device, a, b, c ? c : (U)&nowhere, 0, 0)",
    "StreamGetCaptureInfo_v2": "ROW(capture_status)(device, a, b, c ? c : (U)&nowhere, 0, 0)",
    "ThreadExchangeStreamCaptureMode": "ROW(capture_mode_exchange)(*(int *)a, a, 0, 0, 0, 0)",
    "EventCreateWithFlags": "ROW(event_create)(device, b, a, 0, 0, 0)",
    "EventDestroy": "ROW(event_destroy)(device, a, 0, 0, 0, 0)",
    "EventRecord": "ROW(event_record)(device, a, b, 0, 0, 0)",
    "EventRecordWithFlags": "ROW(event_record)(device, a, b, 0, 0, 0)",
    "EventQuery": "ROW(event_query)(device, a, 0, 0, 0, 0)",
    "EventSynchronize": "ROW(event_synchronize)(device, a, 0, 0, 0, 0)",
}
thread_device = None  # the library's function


def on():
    """The thread's current device."""
    return thread_device()


def direct_lines():
    """The C functions of DIRECT; without the driver, before and after it, they answer 0."""
    from accelrt.driver.registry import Rows

    yield from ("static __thread int device;", "static __thread U nowhere;", "U *standin_rows;")
    yield "int standin_device(void) { return device; }"
    for name, expression in DIRECT.items():
        called = re.sub(
            r"ROW\((\w+)\)",
            lambda row: f"((int (*)(U, U, U, U, U, U))standin_rows[{FIRST_ROW + Rows.names.index(row[1])}])",
            expression,
        )
        wants = "1" if called == expression else "standin_rows"
        yield f"int cuda{name}(U a, U b, U c, U d, U e, U f) {{ return {wants} ? ({called}) : 0; }}"


def build(folder):
    """Compiles both libraries into a folder; the environment that a process needs to run on them."""
    lines = ["#include <stdint.h>", "typedef uintptr_t U;", "struct Handle { char bytes[64]; };"]
    lines += direct_lines()
    for name in [*(name for name in HANDLERS if name not in BY_VALUE), *SILENT.split()]:
        lines += [
            f"int (*standin_{name})(U, U, U, U, U, U);",
            f"int cuda{name}(U a, U b, U c, U d, U e, U f)",
            f"{{ return standin_{name} ? standin_{name}(a, b, c, d, e, f) : {AT_THE_END.get(name, 0)}; }}",
        ]
    for name, rest in BY_VALUE.items():
        lines += [
            f"int (*standin_{name})(U, U, U, U, U, U);",
            f"int cuda{name}(U a, struct Handle handle{rest})",
            f"{{ return standin_{name} ? standin_{name}(a, (U)&handle, 0, 0, 0, 0) : 0; }}",
        ]
    for name in ("GetErrorString", "GetErrorName"):
        lines.append(f'const char *cuda{name}(int code) {{ return "an error of the stand-in"; }}')
    runtime = Path(folder, "standin_cudart.so")
    compile_library(runtime, "\n".join(lines), [])
    driver = ["int cuInit(unsigned f) { return 0; }"]
    driver += ["int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { *f = 0; *a = 1; return 0; }"]
    driver += [f"int {name}(void) {{ return 801; }}" for name in DRIVER.split()]
    compile_library(Path(folder, "libcuda.so.1"), "\n".join(driver), ["-Wl,-soname,libcuda.so.1"])
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_PRELOAD": str(runtime), "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def compile_library(path, source, flags):
    path.with_suffix(".c").write_text(source + "\n")
    command = [*COMPILER, "-shared", "-fPIC", "-O1", "-o", path, path.with_suffix(".c"), *flags]
    subprocess.run(command, check=True)


def write(address, value, kind):
    if address:
        kind.from_address(address).value = value


def give(answer, *places):
    """Writes what a row answered to (address, type) pairs; its code."""
    code, *values = answered(answer)
    if code == 0:
        for (address, kind), value in zip(places, values, strict=True):
            write(address, value, kind)
    return code


class Standin:
    """The functions, over the host driver's rows: device 0, and as many more as STANDIN_DEVICES says."""

    def __init__(self):
        import accelrt
        from accelrt.driver.registry import Rows

        global thread_device
        accelrt.init(driver="host")
        self.rows, self.kept = Rows("host"), []
        library = ctypes.CDLL(os.environ["LD_PRELOAD"].partition(":")[0])
        thread_device = library.standin_device
        table = ctypes.c_void_p.from_address(id(self.rows) + object.__basicsize__).value
        assert ctypes.string_at(ctypes.c_void_p.from_address(table + 16).value) == b"host"
        direct = ctypes.c_void_p.in_dll(library, "standin_rows")
        direct.value = table
        atexit.register(setattr, direct, "value", None)
        for name, handler in HANDLERS.items():
            function = FUNCTION(guarded(handler, self.rows))
            self.kept.append(function)
            place = ctypes.c_void_p.in_dll(library, f"standin_{name}")
            place.value = ctypes.cast(function, ctypes.c_void_p).value
            atexit.register(
                setattr, place, "value", None
            )  # what torch destroys at the very end finds no Python


def guarded(handler, rows):
    def call(*arguments):
        try:
            return int(handler(rows, *arguments))
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            return 999

    return call


def properties_of_12(rows, place, device, *_):
    """cudaDeviceProp of CUDA 12, which has deviceOverlap before the number of multiprocessors."""
    ctypes.memset(place, 0, 1032)
    properties(rows, place, device)
    write(place + 384, 0, I32)
    return put(place + 388, 16)


def properties(rows, place, device, *_):
    """cudaDeviceProp of CUDA 13, as far as torch reads it here."""
    ctypes.memset(place, 0, 1008)
    ctypes.memmove(place, b"stand-in", 9)
    for offset, value, kind in (
        (288, rows.device_memory(0)[1], U64),
        (308, 32, I32),
        (320, 1024, I32),
        (360, 9, I32),
        (384, 16, I32),
    ):
        write(place + offset, value, kind)
    return 0


def export(answer, place):
    """Writes the 64 bytes of a handle that a row answered with."""
    code, handle = answer
    if code == 0:
        ctypes.memmove(place, handle, 64)
    return code


def attributes(rows, place, address, *_):
    """cudaPointerAttributes: whether memory is page-locked (1), a device's (2), or neither (0)."""
    code, *device = answered(rows.pointer_device(address))
    ctypes.memset(place, 0, 24)
    if code == 0:
        write(place, 1 if device[0] < 0 else 2, I32)
        write(place + 4, max(device[0], 0), I32)
        write(place + 8, address, U64)
        write(place + 16, address if device[0] < 0 else 0, U64)
    return 0


def answered(answer):
    return answer if isinstance(answer, tuple) else (answer,)


def put(place, value, kind=I32):
    write(place, value, kind)
    return 0


AT_THE_END = {"GetDeviceCount": "(*(int *)a = 1, 0)"}  # without Python
# Functions whose second argument is a handle of 64 bytes, by value, and their further arguments.
BY_VALUE = {"IpcOpenEventHandle": "", "IpcOpenMemHandle": ", unsigned flags"}
HANDLERS = {
    "GetDeviceCount": lambda rows, place, *_: put(place, DEVICES),
    "DeviceCanAccessPeer": lambda rows, place, *_: put(place, 1),
    "GetDeviceProperties": properties,
    "GetDeviceProperties_v2": properties_of_12,
    "DriverGetVersion": lambda rows, place, *_: put(place, 13000),
    "RuntimeGetVersion": lambda rows, place, *_: put(place, 13000),
    "DeviceGetStreamPriorityRange": lambda rows, a, b, *_: put(a, 0) or put(b, -3),
    "PointerGetAttributes": attributes,
    "IpcGetMemHandle": lambda rows, place, address, *_: export(rows.ipc_memory_export(on(), address), place),
    "IpcOpenMemHandle": lambda rows, place, handle, *_: give(
        rows.ipc_memory_open(on(), ctypes.string_at(handle, 64)), (place, U64)
    ),
    "IpcCloseMemHandle": lambda rows, address, *_: rows.ipc_memory_close(on(), address),
    "MemcpyPeerAsync": lambda rows, to, to_device, of, of_device, size, stream: rows.copy_across(
        on(), stream, to_device, to, of_device, of, size
    ),
    "IpcGetEventHandle": lambda rows, place, event, *_: export(rows.ipc_event_export(on(), event), place),
    "IpcOpenEventHandle": lambda rows, place, handle, *_: give(
        rows.ipc_event_open(on(), ctypes.string_at(handle, 64)), (place, U64)
    ),
    "StreamEndCapture": lambda rows, stream, place, *_: give(rows.capture_end(on(), stream), (place, U64)),
    "GraphGetNodes": lambda rows, graph, nodes, place, *_: give(rows.graph_node_count(graph), (place, U64)),
    "GraphInstantiateWithFlags": lambda rows, place, graph, *_: give(
        rows.graph_instantiate(on(), graph, 0), (place, U64)
    ),
}
