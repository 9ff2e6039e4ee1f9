"""libaccelrt.so: the functions of accelrt.h, called as C calls them."""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
from beside import on_a_thread
from child import in_child, in_fork, in_fresh_interpreter, in_own_process, wrap_host
from compiled import COMPILER, SANITIZE, compile_against, compile_program, compile_source, typed

import accelrt

INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE, NOT_ALLOCATED, NOT_INITIALIZED, FORKED = 1, 101, 400, -4, 3, -2
NOT_SUPPORTED, INIT_FAILED = 801, -1
OUT_OF_MEMORY, DEINITIALIZED, CAP_REACHED = 2, 4, -3
HANDLE, POINTER = ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"
DRIVER = {"ACCELRT_DRIVER": os.environ.get("ACCELRT_DRIVER", "host")}


class Library:
    """A few of the functions with their types."""

    def __init__(self, path=None, mode=ctypes.CDLL):
        loaded = mode(path or accelrt.get_library())
        integer, size = ctypes.c_int, ctypes.c_size_t
        self.allocate = typed(loaded, "accelrt_allocate", integer, [integer, size, HANDLE, POINTER])
        self.release = typed(loaded, "accelrt_release", integer, [integer, HANDLE])
        self.allocated = typed(loaded, "accelrt_memory_allocated", ctypes.c_int64, [integer])
        self.begin_pool = typed(loaded, "accelrt_begin_pool", integer, [integer, *[ctypes.c_uint64] * 2])
        self.capture_begin = typed(
            loaded,
            "accelrt_capture_begin",
            integer,
            [integer, size, integer, *[ctypes.c_uint64] * 2, POINTER],
        )
        self.current_stream = typed(loaded, "accelrt_current_stream", integer, [integer, POINTER])
        self.version = typed(loaded, "accelrt_api_version", integer)
        self.name = typed(loaded, "accelrt_status_name", ctypes.c_char_p, [integer])
        self.text = typed(loaded, "accelrt_status_text", ctypes.c_char_p, [integer])
        self.raise_failure = typed(loaded, "accelrt_raise_failure", integer, [integer, ctypes.c_char_p])

    def take(self, device, size, stream=0):
        """(status code, address)."""
        address = ctypes.c_size_t()
        return self.allocate(device, size, stream, ctypes.byref(address)), address.value


@pytest.fixture(scope="module")
def library():
    return Library()


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    return load_door(tmp_path_factory.mktemp("door"))


def load_door(folder):
    loaded = ctypes.CDLL(compile_against("c_door", folder))
    loaded.on_threads.argtypes = [ctypes.c_int] * 3 + [ctypes.c_size_t, ctypes.POINTER(ctypes.c_long)]
    return loaded


def test_paths_are_absolute_and_there():
    assert Path(accelrt.get_library()).is_absolute()
    assert Path(accelrt.get_library()).is_file()
    assert Path(accelrt.get_include(), "accelrt.h").is_file()
    assert Path(accelrt.get_include()).is_absolute()


def test_memory_is_of_the_pool_that_python_uses(library):
    code, address = library.take(0, 1000)
    assert (code, address % 512) == (0, 0)
    assert library.allocated(0) == accelrt.memory_allocated(0) == 1024
    accelrt.caching_allocator_delete(address)
    assert library.release(0, address) == NOT_ALLOCATED
    assert library.release(0, 0) == 0


def test_a_refusal_is_explained_in_as_many_bytes_as_there_are(library):
    explain = typed(
        ctypes.CDLL(accelrt.get_library()),
        "accelrt_explain_refusal",
        ctypes.c_size_t,
        [ctypes.c_int, ctypes.c_size_t, HANDLE, ctypes.c_char_p, ctypes.c_size_t],
    )
    text = ctypes.create_string_buffer(1 << 16)
    length = explain(0, 1 << 50, 0, text, len(text))
    assert length == len(text.value) < len(text)
    assert "Tried to allocate 1048576.00 GiB" in text.value.decode()
    short = ctypes.create_string_buffer(b"x" * 20)
    assert explain(0, 1 << 50, 0, short, 10) >= 9
    assert short.raw[:11] == text.value[:9] + b"\0x"
    assert explain(0, 1 << 50, 0, None, 0) > 0
    assert explain(accelrt.device_count(), 1, 0, short, 10) == 0
    assert short.value == b""


@pytest.fixture
def explain_last():
    loaded = ctypes.CDLL(accelrt.get_library())
    function = typed(
        loaded, "accelrt_explain_last_refusal", ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]
    )

    def explain():
        text = ctypes.create_string_buffer(1 << 16)
        length = function(text, len(text))
        assert length == len(text.value)
        return text.value.decode()

    explain.function = function
    return explain


def test_the_last_refusal_of_the_calling_thread_is_explained(library, explain_last):
    def on_its_own():
        before = explain_last()
        assert library.take(0, 1 << 50)[0] == OUT_OF_MEMORY
        first = explain_last()
        code, address = library.take(0, 1000)  # what succeeds changes nothing
        library.release(0, address)
        assert (code, library.take(0, 1 << 49)[0]) == (0, OUT_OF_MEMORY)
        return before, first, explain_last()

    before, first, last = on_a_thread(on_its_own)
    assert before == ""
    assert "Tried to allocate 1048576.00 GiB" in first
    assert "Tried to allocate 524288.00 GiB" in last
    short = ctypes.create_string_buffer(b"x" * 20)
    assert library.take(0, 1 << 50)[0] == OUT_OF_MEMORY
    assert explain_last.function(short, 10) >= 9
    assert short.raw[9:11] == b"\0x"
    assert explain_last.function(None, 0) > 0


def test_a_limit_is_explained_as_one(library, explain_last):
    total = accelrt.mem_get_info()[1]
    accelrt.set_per_process_memory_fraction((8 << 20) / total, 0)
    try:
        assert library.take(0, 32 << 20)[0] == CAP_REACHED
        assert "set_per_process_memory_fraction" in explain_last()
    finally:
        accelrt.set_per_process_memory_fraction(1.0, 0)


@in_own_process
def test_page_locked_memory_that_is_refused_is_explained_as_such():
    faults, text, address = wrap_host(), ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
    loaded = ctypes.CDLL(accelrt.get_library())
    explain = typed(loaded, "accelrt_explain_last_refusal", HANDLE, [ctypes.c_char_p, ctypes.c_size_t])
    faults.arm(call=1, code=OUT_OF_MEMORY, mode="onward", rows=["host_alloc"])
    assert loaded.accelrt_allocate_pinned(ctypes.c_size_t(64 << 20), ctypes.byref(address)) == OUT_OF_MEMORY
    faults.disarm()
    assert explain(text, len(text)) == len(text.value)
    assert text.value.startswith(b"Host out of memory. Tried to allocate 64.00 MiB of page-locked memory.")


def test_the_current_stream_is_that_of_the_calling_thread(library):
    found, stream = ctypes.c_size_t(1), accelrt.Stream()
    with accelrt.stream(stream):
        assert library.current_stream(0, ctypes.byref(found)) == 0
        assert found.value == stream.cuda_stream
        on_a_thread(lambda: library.current_stream(0, ctypes.byref(found)))
    assert found.value == 0


def test_failures_are_codes_and_bad_ordinals_no_crash(library):
    for device in (-1, 1000, 2**31 - 1):
        assert library.take(device, 64) == (INVALID_DEVICE, 0)
        assert library.release(device, 512) == INVALID_DEVICE
        assert library.allocated(device) == 0
    assert library.name(INVALID_DEVICE) == b"INVALID_DEVICE"
    if accelrt.device_count() > 1:
        assert library.take(0, 64, accelrt.Stream(1).cuda_stream)[0] == INVALID_HANDLE


def test_default_streams_are_streams_of_each_device(library):
    for device in range(accelrt.device_count()):
        for stream in (0, 1, 2):
            code, address = library.take(device, 64, stream)
            assert (code, library.release(device, address)) == (0, 0)


def test_a_failure_is_raised_in_an_extension_that_holds_the_gil():
    with pytest.raises(accelrt.OutOfMemoryError, match=r"^allocate\(\) answered OUT_OF_MEMORY"):
        Library(mode=ctypes.PyDLL).raise_failure(2, b"allocate")


@pytest.mark.parametrize("device", [0, 1])
def test_threads_that_python_never_sees(door, device):
    if device >= accelrt.device_count():
        pytest.skip("one device")
    wrong = ctypes.c_long(-1)
    assert door.import_accelrt() == 0
    assert door.on_threads(device, 8, 100, 4096, ctypes.byref(wrong)) == 0
    assert wrong.value == 0
    accelrt.synchronize(device)


@in_own_process(**DRIVER)
def test_the_first_call_imports_and_the_first_use_initialises():
    import sys

    library = Library(accelrt.get_library())
    assert "accelrt.api" not in sys.modules
    assert library.version() == 1
    assert "accelrt.api" in sys.modules
    assert not accelrt.is_initialized()
    code, address = library.take(0, 512)
    assert accelrt.is_initialized()
    assert (code, library.release(0, address)) == (0, 0)


@in_own_process(**DRIVER)
def test_first_calls_with_the_gil_and_an_exception_of_the_callers(tmp_path):
    path = compile_against("c_door", tmp_path)
    holding = ctypes.PyDLL(path)
    holding.call_with_exception.argtypes = [ctypes.c_void_p, ctypes.py_object]
    with pytest.raises(ValueError, match="of the caller"):
        holding.call_with_exception(
            ctypes.cast(ctypes.pythonapi.PyErr_SetString, ctypes.c_void_p), ValueError
        )
    library = Library(mode=ctypes.PyDLL)
    code, address = library.take(0, 512)  # initialises
    assert (code, library.release(0, address)) == (0, 0)


@in_own_process(**DRIVER)
def test_the_first_calls_of_sixteen_threads_at_once(tmp_path):
    wrong = ctypes.c_long(-1)
    assert load_door(tmp_path).on_threads(0, 16, 20, 512, ctypes.byref(wrong)) == 0
    assert wrong.value == 0
    accelrt.memory.audit()


def not_importable(path):
    import sys

    sys.modules["accelrt.api"] = None
    library, holding = Library(path), Library(path, mode=ctypes.PyDLL)
    assert library.take(0, 64) == (NOT_INITIALIZED, 0)
    assert (library.version(), library.allocated(0)) == (0, 0)
    assert library.name(NOT_INITIALIZED) == b"NOT_INITIALIZED"
    with pytest.raises(ImportError, match="accelrt's C API cannot be used"):
        holding.raise_failure(NOT_INITIALIZED, b"allocate")
    del sys.modules["accelrt.api"]
    from accelrt.runtime import init

    init._imported.pop("accelrt.api", None)
    assert library.version() == 1  # the next call tries again


@pytest.mark.own_process
def test_an_import_that_fails_is_told_and_tried_again():
    said = in_child(not_importable, accelrt.get_library(), **DRIVER)
    assert "accelrt.api" in said
    assert "ModuleNotFoundError" in said or "ImportError" in said


@pytest.mark.skipif(not ON_HOST, reason="there is a driver")
@in_own_process(ACCELRT_DRIVER="cuda", CUDA_VISIBLE_DEVICES="")
def test_a_first_use_that_fails_is_a_code_whose_text_says_where_its_error_is():
    library = Library()
    assert library.take(0, 64)[0] == INIT_FAILED
    text = library.text(INIT_FAILED).decode()
    assert "accelrt.init() raises" in text
    with pytest.raises(RuntimeError, match="driver"):
        accelrt.init()


@pytest.mark.parametrize(("macro", "number"), [("VERSION", 2), ("VERSION", 0), ("REVISION", 1000)])
def test_a_header_of_another_version_is_refused(tmp_path, macro, number):
    text = Path(accelrt.get_include(), "accelrt.h").read_text()
    other, count = re.subn(rf"(#define ACCELRT_API_{macro}) \d+", rf"\1 {number}", text)
    assert count == 1
    (tmp_path / "accelrt.h").write_text(other)
    loaded = ctypes.CDLL(compile_against("c_door", tmp_path, include=tmp_path))
    assert loaded.import_accelrt() == NOT_SUPPORTED


@pytest.mark.own_process
def test_a_program_without_python_is_told_so(tmp_path):
    program = compile_program("no_python", tmp_path)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    first, text, last = done.stdout.splitlines()
    assert first == "3 3 NOT_INITIALIZED"
    assert "no Python runs in this process" in text
    assert last == "0 0 SUCCESS"


@in_own_process(**DRIVER)
def test_a_library_without_an_rpath_finds_the_one_that_is_loaded(tmp_path):
    path = compile_against(
        "c_door", tmp_path, links=["-L", str(Path(accelrt.get_library()).parent), "-laccelrt"]
    )
    with pytest.raises(OSError, match=r"libaccelrt\.so"):
        ctypes.CDLL(path)
    ctypes.CDLL(accelrt.get_library())
    assert ctypes.CDLL(path).import_accelrt() == 0


@in_own_process(**DRIVER)
def test_a_forked_child_is_told_so():
    library = Library()
    code, address = library.take(0, 512)
    assert in_fork(lambda: library.take(0, 512) != (FORKED, 0)) == 0
    assert (code, library.release(0, address)) == (0, 0)


ROOM = """
#include <accelrt.h>
int take_and_give(int device, size_t size) {
    uintptr_t address = 0;
    int code = accelrt_import();
    if (code == ACCELRT_SUCCESS)
        code = accelrt_allocate(device, size, 0, &address);
    return code == ACCELRT_SUCCESS ? accelrt_release(device, address) : code;
}
"""


def take_and_give_alone(path):
    room = ctypes.CDLL(path)
    room.take_and_give.argtypes = [ctypes.c_int, ctypes.c_size_t]
    assert room.take_and_give(0, 1000) == 0
    assert room.take_and_give(0, 1 << 50) == OUT_OF_MEMORY
    assert accelrt.memory_stats()["allocation.all.allocated"] == 1
    with open("/proc/self/maps") as maps:
        print("libaccelrt" in maps.read())


def test_a_project_that_compiles_the_functions_in_needs_no_library(tmp_path):
    (tmp_path / "room.c").write_text(ROOM)
    (tmp_path / "part.c").write_text("#include <accelrt_static.h>\n")
    flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", *SANITIZE, "-I", accelrt.get_include()]
    sources = ["room.c", "part.c", "-ldl"]
    subprocess.run([*COMPILER, *flags, "-o", "libroom.so", *sources], cwd=tmp_path, check=True)
    assert in_child(take_and_give_alone, str(tmp_path / "libroom.so"), **DRIVER) == "False\n"
    loaded = ctypes.CDLL(str(tmp_path / "libroom.so"))
    assert hasattr(loaded, "take_and_give")
    assert not hasattr(loaded, "accelrt_allocate")


def test_the_pool_of_a_reservation_serves_neither_a_thread_nor_a_capture(library):
    with accelrt.reserve(1) as cache:
        cache.commit()
        segments = accelrt.memory_snapshot()
        pool = next(each["segment_pool_id"] for each in segments if each["address"] == cache.ptr)
        graph = ctypes.c_size_t()
        assert library.begin_pool(cache.device_index, *pool) == INVALID_VALUE
        stream = accelrt.Stream()
        assert (
            library.capture_begin(cache.device_index, stream.cuda_stream, 0, *pool, ctypes.byref(graph))
            == INVALID_VALUE
        )
        assert graph.value == 0
        assert not accelrt.is_current_stream_capturing()


LATE = """
#include <stdio.h>
#include <stdlib.h>
#include <accelrt_static.h>
static uintptr_t kept;
static void late(void) {
    char text[64] = "?";
    uintptr_t more = 0;
    printf("late %d", accelrt_release(0, kept) == ACCELRT_SUCCESS || kept == 0);
    printf(" %d", accelrt_allocate(0, 4096, 0, &more));
    accelrt_release(0, more);
    accelrt_allocate(0, (size_t)1 << 50, 0, &more);
    printf(" %zu", accelrt_explain_last_refusal(text, 64));
    printf(" %zu%s\\n", accelrt_explain_refusal(0, 1, 0, text, 64), text);
}
int begin_late(size_t size) {
    atexit(late);
    return accelrt_import() || (size && accelrt_allocate(0, size, 0, &kept));
}
"""


def called_late(path, size):
    """C's atexit functions, and destructors of C++, run when there is no interpreter any more."""
    accelrt.memory.record_history()
    loaded = ctypes.CDLL(path)
    loaded.begin_late.argtypes = [ctypes.c_size_t]
    assert loaded.begin_late(size) == 0


def test_calls_behind_the_interpreters_end(tmp_path):
    (tmp_path / "late.c").write_text(LATE)
    flags = ["-shared", "-fPIC", *SANITIZE, "-I", accelrt.get_include(), "-o", "late.so", "late.c", "-ldl"]
    subprocess.run([*COMPILER, *flags], cwd=tmp_path, check=True)
    path = str(tmp_path / "late.so")
    assert "late 1 0 0 0\n" in in_fresh_interpreter(called_late, path, 1000, **DRIVER)
    assert f"late 1 {DEINITIALIZED} 0 0\n" in in_fresh_interpreter(called_late, path, 0, **DRIVER)


AGAIN = """
#include <stdlib.h>
void Py_InitializeEx(int);
int PyRun_SimpleString(const char *);
static void again(void) {
    Py_InitializeEx(0);
    PyRun_SimpleString("try: import accelrt\\nexcept ImportError as error: print(error)");
}
int begin_again(void) { return atexit(again); }
"""


def imported_again(path):
    assert ctypes.CDLL(path).begin_again() == 0


def test_a_second_interpreter_behind_the_first_ones_end_is_told_what_to_do(tmp_path):
    path = str(compile_source(AGAIN, tmp_path, "again"))
    assert "keep one interpreter" in in_fresh_interpreter(imported_again, path, **DRIVER)
