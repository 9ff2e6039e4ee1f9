"""How torch's allocator object is compiled and kept, with a compiler that is a script."""

import os
import types
from pathlib import Path

import pytest
from beside import on_threads

from accelrt.interop import torch_build

COMPILER = """#!/bin/sh
for each in "$@"; do
    if [ "$each" = --version ]; then echo compiler {number}; exit 0; fi
done
echo run >> {log}
{body}
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def torch(tmp_path):
    """A torch as far as torch_build looks at it."""
    headers = tmp_path / "torch" / "include" / "c10" / "cuda"
    headers.mkdir(parents=True)
    (headers / "CUDACachingAllocator.h").touch()
    return types.SimpleNamespace(
        __file__=str(tmp_path / "torch" / "__init__.py"),
        __version__="2.11.0+cu130",
        version=types.SimpleNamespace(git_version="abc"),
        _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True),
    )


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Writes the script; what it was run for is in the file log."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(body="", number=1):
        path = tmp_path / "compiler"
        path.write_text(COMPILER.format(log=log, body=body, number=number))
        path.chmod(0o700)
        monkeypatch.setenv("CXX", str(path))
        return log

    return write


def runs(log):
    return len(log.read_text().splitlines())


def test_it_is_compiled_once_for_what_it_depends_on(torch, compiler, tmp_path):
    log = compiler()
    first = torch_build.library(torch, "1.0")
    assert first.parent == tmp_path / "cache" / "accelrt" / "torch"
    assert first.name.startswith("torch-2.11.0-")
    assert first.read_text() == "library\n"
    assert torch_build.library(torch, "1.0") == first
    assert runs(log) == 1
    others = {first, torch_build.library(torch, "1.1")}
    compiler(number=2)
    others.add(torch_build.library(torch, "1.0"))
    torch.version.git_version = "def"
    others.add(torch_build.library(torch, "1.0"))
    torch.__version__ = "2.12.0"
    others.add(torch_build.library(torch, "1.0"))
    assert len(others) == 5
    assert runs(log) == 5


def test_several_at_once_leave_one_whole_file(torch, compiler):
    compiler(body="sleep 0.2")
    paths = []
    on_threads(lambda _: paths.append(torch_build.library(torch, "1")), range(4))
    assert len(set(paths)) == 1
    assert os.listdir(paths[0].parent) == [paths[0].name]


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(torch, compiler, tmp_path):
    compiler(body="echo 'x.cpp:1: error: no such thing' >&2; exit 3")
    with pytest.raises(torch_build.CannotCompile, match=r"failed with 3: x.cpp:1: error: no such thing"):
        torch_build.library(torch, "1")
    assert os.listdir(tmp_path / "cache" / "accelrt" / "torch") == []


def test_what_is_missing_is_named(torch, compiler, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(torch_build.CannotCompile, match=r"/nowhere/c\+\+ does not run"):
        torch_build.library(torch, "1")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(torch_build.CannotCompile, match=r"no C\+\+ compiler .*set CXX"):
        torch_build.library(torch, "1")
    torch.__file__ = "/nowhere/torch/__init__.py"
    with pytest.raises(torch_build.CannotCompile, match="headers are not in /nowhere/torch/include"):
        torch_build.library(torch, "1")
    torch.__version__ = "2.7.1"
    with pytest.raises(torch_build.CannotCompile, match=r"torch 2\.7\.1 is not one of 2.8 to 2\.15"):
        torch_build.library(torch, "1")


def test_without_a_cache_it_is_compiled_for_the_process(torch, compiler, tmp_path, monkeypatch):
    log = compiler()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = torch_build.library(torch, "1")
    assert path.read_text() == "library\n"
    assert tmp_path not in path.parents
    path.unlink()
    path.parent.rmdir()
    assert runs(log) == 1


def test_the_standard_follows_torch(torch):
    assert "-std=c++17" in torch_build.flags_of(torch, 13, Path("/include"))
    assert "-std=c++20" in torch_build.flags_of(torch, 14, Path("/include"))
