"""KeyboardInterrupt at every place of a compilation: no descriptor, folder, thread or process stays."""

import fcntl
import os
import tempfile

import pytest
from every_bytecode import Held, children, interrupt_everywhere
from nvrtc_found import NVJITLINK_MISSING, NVRTC_MISSING
from waiting import wait_until

import accelrt
from accelrt.kernels import (
    apart,
    build_process,
    cache,
    compiler,
    diagnostics,
    host_compiler,
    host_cuda,
    image,
    jitlink,
    known_compiler,
    nvrtc,
)

MODULES = [apart, build_process, cache, compiler, diagnostics, host_compiler, host_cuda, image]
SOURCE = 'extern "C" __global__ void k(int* at) { at[threadIdx.x] = 1; }\n'


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The cache's folder and the temporary one."""
    kernels, temporary = tmp_path / "kernels", tmp_path / "temporary"
    kernels.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE", str(kernels))
    monkeypatch.setenv("ACCELRT_KERNEL_CACHE_MB", "64")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    cache.forget()
    yield kernels, temporary
    cache.forget()


@pytest.fixture
def quick_compiler(tmp_path, monkeypatch):
    """A C++ compiler that writes the same few bytes for every source, after a moment."""
    path = tmp_path / "c++"
    path.write_text(
        '#!/bin/sh\nfor last; do case "$out" in -o) break;; esac; out=$last; done\necho made > "$last"\n'
    )
    path.chmod(0o755)
    monkeypatch.setattr(host_compiler, "_compiler", host_compiler.Compiler(str(path), (), b"quick"))
    return path


def interrupt_compilations(operation, modules, folders, most=None):
    kernels, temporary = folders
    before = children()
    operation(None)
    held = Held(temporary)

    def prepare():
        cache.forget()
        for path in kernels.iterdir():
            path.unlink()

    def check(_):
        wait_until(lambda: children() == before)  # one that was killed may be about to be collected
        held.check()
        assert [path.name for path in kernels.iterdir() if path.suffix != ".kernel"] == []

    return interrupt_everywhere(operation, modules, prepare=prepare, check=check, places=most)


@pytest.mark.host
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("first", [1, 8])
def test_interrupted_compilers_of_the_host_leave_nothing(first, folders):
    """A place takes two processes, so of fifteen in a row one is chosen in each case."""

    def compile_once(_):
        assert accelrt.compile_image(SOURCE, arch="host").data.startswith(b"made")

    reached, escaped = interrupt_compilations(compile_once, MODULES, folders, range(first, 10000, 15))
    assert reached > 10
    assert escaped > 0.8 * reached


@pytest.mark.skipif(bool(NVRTC_MISSING or NVJITLINK_MISSING), reason=NVRTC_MISSING or NVJITLINK_MISSING)
def test_interrupted_nvrtc_and_nvjitlink_leave_nothing(folders, monkeypatch):
    programs = []
    call = nvrtc.call

    def counted(name, *arguments):
        results = call(name, *arguments)
        programs.append({"nvrtcCreateProgram": 1, "nvrtcDestroyProgram": -1}.get(name, 0))
        return results

    monkeypatch.setattr(nvrtc, "call", counted)
    sources = [SOURCE, "__device__ int two = 2;"]
    modules = [*MODULES, nvrtc, jitlink, known_compiler]
    places = range(5, 400, 13)  # a place takes a compilation

    def compile_both(_):
        accelrt.compile_image(sources, arch=90)

    reached, _ = interrupt_compilations(compile_both, modules, folders, places)
    assert reached > 5
    assert sum(programs) == 0


@pytest.mark.host
def test_a_compiler_under_way_is_killed_with_what_it_started(folders, tmp_path, monkeypatch):
    """The exception comes while the caller waits for a process that would not end by itself."""
    path, begun = tmp_path / "c++", tmp_path / "begun"
    path.write_text(f"#!/bin/sh\nsleep 600 &\necho $$ > {begun}.part; mv {begun}.part {begun}; wait\n")
    path.chmod(0o755)
    monkeypatch.setattr(host_compiler, "_compiler", host_compiler.Compiler(str(path), (), b"slow"))
    acquire = apart.Call.wait

    def interrupted(call):
        wait_until(begun.exists)
        monkeypatch.setattr(apart.Call, "wait", acquire)
        raise KeyboardInterrupt

    monkeypatch.setattr(apart.Call, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        accelrt.compile_image(SOURCE, arch="host")
    assert list(folders[1].iterdir()) == []
    group = int(begun.read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{group}"))


@pytest.mark.host
@pytest.mark.usefixtures("quick_compiler")
def test_folders_of_killed_processes_go_with_the_next_compilation(folders):
    _, temporary = folders
    killed, at_work, new = (
        temporary / f"{build_process.PREFIX}{name}" for name in ("killed", "at_work", "new")
    )
    for folder in (killed, at_work, new):
        folder.mkdir()
        (folder / "source.cpp").write_text("")
    for folder in (killed, at_work):
        os.utime(folder, (1, 1))
    lock = os.open(at_work, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    accelrt.compile_image(SOURCE, arch="host")
    assert sorted(path.name for path in temporary.iterdir()) == [at_work.name, new.name]
    os.close(lock)
    accelrt.compile_image(SOURCE + "\n", arch="host")
    assert [path.name for path in temporary.iterdir()] == [new.name]
