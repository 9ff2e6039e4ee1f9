"""Compiled kernels in memory and in files: what is found again, what is not, and what stays."""

import os
import subprocess
import sys

import pytest
from beside import on_a_thread
from child import in_child

import accelrt
from accelrt.kernels import cache, known_compiler, nvrtc

pytestmark = pytest.mark.nvrtc
SOURCE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n'
OTHER = SOURCE.replace("2", "3")


@pytest.fixture
def compiled(monkeypatch):
    """The sources that the compiler was given, in order."""
    given = []
    compile_program = nvrtc.compile_program

    def count(program):
        given.append(program.text)
        return compile_program(program)

    monkeypatch.setattr(nvrtc, "compile_program", count)
    return given


def kernels(folder):
    return sorted(path for path in folder.glob("*.kernel") if not path.name.startswith("compiler-"))


def test_the_same_is_compiled_once(compiled):
    first = accelrt.compile_image(SOURCE, arch=90)
    assert accelrt.compile_image(SOURCE, arch="sm_90") is first
    cache.forget()
    again = accelrt.compile_image(SOURCE, arch=90)
    assert again is not first
    assert (again.data, again.kind, again.arch) == (first.data, "cubin", "sm_90")
    assert compiled == [SOURCE]


def test_names_and_log_come_back_from_the_file(compiled):
    source = "#warning \u00fc\ntemplate <class T> __global__ void f(T*) {}"
    arguments = {"arch": 90, "name_expressions": ["f<int>", "f<float>"]}
    first = accelrt.compile_image(source, **arguments)
    cache.forget()
    again = accelrt.compile_image(source, **arguments)
    assert (again.names, again.log, again.compiler) == (first.names, first.log, first.compiler)
    assert "\u00fc" in again.log
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"source": OTHER},
        {"arch": 80},
        {"kind": "ptx"},
        {"options": ["-lineinfo"]},
        {"headers": {"a.h": ""}},
        {"name_expressions": ["scale"]},
        {"name": "other.cu"},
        {"include_paths": ["/nowhere"]},
    ],
)
def test_all_that_matters_is_in_the_key(arguments, compiled):
    accelrt.compile_image(SOURCE, arch=90)
    given = {"source": SOURCE, "arch": 90} | arguments
    accelrt.compile_image(given.pop("source"), **given)
    assert len(compiled) == 2


def test_another_compiler_compiles_anew(compiled, monkeypatch):
    accelrt.compile_image(SOURCE, arch=90)
    known = known_compiler.current_compiler()
    newer = nvrtc.Compiler(known.version, known.path, b"another file", known.numbers)
    monkeypatch.setattr(known_compiler, "_known", newer)
    monkeypatch.setattr(nvrtc, "_loaded", newer)
    accelrt.compile_image(SOURCE, arch=90)
    assert len(compiled) == 2


def test_headers_are_looked_for_once_and_where_there_is_an_include(compiled, monkeypatch):
    searched = []
    monkeypatch.setattr(nvrtc, "toolkit_folders", lambda compiler: searched.append(compiler) or [])
    monkeypatch.setattr(known_compiler, "_folders", {})
    accelrt.compile_image(SOURCE, arch=90)
    assert searched == []
    source = '#include "a.h"\n' + SOURCE
    accelrt.compile_image(source, arch=90, headers={"a.h": ""})
    monkeypatch.setattr(known_compiler, "_folders", {})  # as in another process
    accelrt.compile_image(source, arch=90, headers={"a.h": "//"})
    assert len(compiled) == 3
    assert searched == [nvrtc.load()]


def test_a_header_that_changes_compiles_anew(compiled, tmp_path):
    source = '#include "outer.h"\n' + SOURCE
    (tmp_path / "outer.h").write_text("/* */ #  include <in\\\nner.h>\n")
    inner = tmp_path / "inner.h"
    inner.write_text("#define A 1\n")
    for times, text in ((1, "#define A 1\n"), (2, "#define A 2\n"), (2, "#define A 1\n")):
        inner.write_text(text)
        accelrt.compile_image(source, arch=90, include_paths=[tmp_path])
        assert len(compiled) == times
    nearer = tmp_path / "nearer"
    nearer.mkdir()
    accelrt.compile_image(source, arch=90, include_paths=[nearer, tmp_path])
    (nearer / "outer.h").write_text("")
    accelrt.compile_image(source, arch=90, options=["-I", str(nearer)], include_paths=[tmp_path])
    accelrt.compile_image(source, arch=90, include_paths=[nearer, tmp_path])
    assert len(compiled) == 5


@pytest.mark.parametrize(
    ("first_line", "options"),
    [
        ('#define NAME "a.h"\n#include NAME\n', []),
        ('#if __has_include("b.h")\n#endif\n', []),
        ("", ["--pre-include=a.h"]),
    ],
)
def test_what_depends_on_unknown_files_is_not_kept(first_line, options, compiled, tmp_path, kernel_cache):
    (tmp_path / "a.h").write_text("")
    for _ in range(2):
        accelrt.compile_image(first_line + SOURCE, arch=90, options=options, include_paths=[tmp_path])
    assert len(compiled) == 2
    assert kernels(kernel_cache) == []


def test_without_the_cache_nothing_is_kept(compiled, kernel_cache):
    accelrt.compile_image(SOURCE, arch=90, cache=False)
    accelrt.compile_image(SOURCE, arch=90, cache=False)
    assert len(compiled) == 2
    assert kernels(kernel_cache) == []


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(cache.MAGIC) + 5],
        lambda data: data + b"\0",
        lambda data: flip(data, 0),
        lambda data: flip(data, len(cache.MAGIC)),
        lambda data: flip(data, len(data) // 2),
        lambda data: flip(data, len(data) - 1),
        lambda data: b"a file of another program\n" * 40,
    ],
)
def test_a_damaged_file_is_compiled_anew_and_replaced(damage, compiled, kernel_cache):
    first = accelrt.compile_image(SOURCE, arch=90)
    (path,) = kernels(kernel_cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    cache.forget()
    assert accelrt.compile_image(SOURCE, arch=90).data == first.data
    assert len(compiled) == 2
    assert path.read_bytes() == whole


def test_another_kernels_file_is_not_taken(compiled, kernel_cache):
    accelrt.compile_image(SOURCE, arch=90)
    (path,) = kernels(kernel_cache)
    accelrt.compile_image(OTHER, arch=90)
    (other,) = set(kernels(kernel_cache)) - {path}
    path.write_bytes(other.read_bytes())
    cache.forget()
    accelrt.compile_image(SOURCE, arch=90)
    assert compiled == [SOURCE, OTHER, SOURCE]


def test_what_is_no_file_of_the_users_own_is_not_taken(compiled, kernel_cache, tmp_path):
    accelrt.compile_image(SOURCE, arch=90)
    (path,) = kernels(kernel_cache)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    cache.forget()
    accelrt.compile_image(SOURCE, arch=90)
    assert len(compiled) == 2
    assert not path.is_symlink()
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        cache.forget()
        accelrt.compile_image(SOURCE, arch=90)
        assert len(compiled) == 3
    path.unlink()
    os.mkfifo(path)  # reading it would wait for ever
    cache.forget()
    accelrt.compile_image(SOURCE, arch=90)
    assert path.is_file()


@pytest.mark.parametrize("folder", ["/dev/null/kernels", "/proc/kernels"])
def test_a_folder_that_cannot_be_written_is_no_error(folder, compiled, monkeypatch):
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE", folder)
    first = accelrt.compile_image(SOURCE, arch=90)
    assert accelrt.compile_image(SOURCE, arch=90) is first
    assert len(compiled) == 1


def test_a_bound_of_0_keeps_nothing_on_disk(monkeypatch, kernel_cache):
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "0")
    accelrt.compile_image(SOURCE, arch=90)
    assert not kernel_cache.exists()


def test_a_wrong_bound_names_the_variable(monkeypatch):
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "many")
    with pytest.raises(ValueError, match="ACCELRT_KERNEL_CACHE_MB='many' is no number from 0 to"):
        accelrt.compile_image(SOURCE, arch=90)


def test_the_files_that_were_used_longest_ago_go(monkeypatch, kernel_cache):
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "1")
    data = bytes(300 << 10)
    for name in ("first", "second", "third"):
        cache.write_fields(name, [data])
        os.utime(cache.path_of(name), (len(name), len(name)))  # first is the older of the two others
    os.utime(cache.path_of("first"))  # as a reader does
    cache.write_fields("fourth", [data])
    assert {path.stem for path in kernel_cache.iterdir()} == {"first", "second", "fourth"}
    assert cache.read_fields("first") == [data]
    cache.write_fields("large", [bytes(1 << 20)])
    assert cache.read_fields("large") is None


def test_a_read_counts_as_a_use(kernel_cache):
    cache.write_fields("one", [b"data"])
    os.utime(cache.path_of("one"), (1, 1))
    cache.read_fields("one")
    assert os.stat(cache.path_of("one")).st_mtime > 1


def test_what_a_killed_writer_left_goes(kernel_cache):
    cache.write_fields("one", [b"data"])
    left = [kernel_cache / f"one.kernel.{number}.tmp" for number in range(2)]
    for path in left:
        path.write_bytes(b"half")
    os.utime(left[0], (1, 1))
    cache.write_fields("two", [b"data"])
    assert [path.exists() for path in left] == [False, True]


def test_memory_is_bounded_too(monkeypatch):
    monkeypatch.setattr(cache, "MEMORY_BOUND", 100)
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "0")
    for name in "abc":
        cache.store(name, accelrt.ModuleImage(bytes(40), "cubin", "sm_90"))
    assert [cache.lookup(name) is not None for name in "abc"] == [False, True, True]
    cache.lookup("b")
    cache.store("d", accelrt.ModuleImage(bytes(40), "cubin", "sm_90"))
    assert [cache.lookup(name) is not None for name in "bcd"] == [True, False, True]
    assert cache._held == 80


def test_a_signals_handler_looks_for_kernels_while_its_thread_does(monkeypatch):
    image = accelrt.ModuleImage(bytes(40), "cubin", "sm_90")
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "0")

    def look():
        with cache._lock:  # where the handler may come
            cache.store("a", image)
            return cache.lookup("a")

    assert on_a_thread(look, 60) is image


def test_a_second_process_loads_no_compiler():
    def program(found):
        return in_child(second_process, found)

    assert program(False) == "loaded\n"
    assert program(True) == ""


def second_process(found):
    accelrt.compile_image(SOURCE, arch=90)
    with open("/proc/self/maps") as maps:
        if "libnvrtc.so" in maps.read():
            print("loaded")
        else:
            assert found


PARALLEL = """
import sys, accelrt
from accelrt.kernels import cache
number = int(sys.argv[1])
for turn in range(12):
    which = (number + turn) % 6
    text = 'extern "C" __global__ void f%d(float* x) { *x = %d; }' % (which, which)
    image = accelrt.compile_image(text, arch=90)
    assert b"f%d" % which in image.data, which
    cache.forget()
    cache.write_fields("large%d" % which, [bytes(300 << 10)])
    read = cache.read_fields("large%d" % which)
    assert read is None or read == [bytes(300 << 10)]
"""


def test_parallel_processes_share_a_folder(kernel_cache):
    settings = {"ACCELRT_KERNEL_CACHE_MB": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PARALLEL, str(number)],
            env=os.environ | settings,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    said = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    assert list(kernel_cache.glob("*.tmp")) == []
    assert all(cache.read_fields(path.stem) is not None for path in kernel_cache.glob("*.kernel"))
    assert sum(path.stat().st_size for path in kernel_cache.iterdir()) <= 1 << 20
