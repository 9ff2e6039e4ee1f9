"""Which prebuilt object serves a torch, how the two are checked, and what happens where they disagree."""

import ctypes
import json
import os
import platform
import resource
import runpy
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from child import in_own_process, run_python
from compiled import CXX

from accelrt.interop import torch as interop
from accelrt.interop import torch_build, torch_prebuilt, torch_sources

ROOT = Path(__file__).parents[2]
MAKER = ROOT / ".ci" / "torch_objects"
TORCH = """
namespace torch::cuda::CUDAPluggableAllocator {
struct CUDAPluggableAllocator {
  virtual void *raw_alloc(unsigned long size);
  __attribute__((visibility("hidden"))) virtual void hidden();
  virtual bool initialized() const;
};
void *CUDAPluggableAllocator::raw_alloc(unsigned long) { return 0; }
void CUDAPluggableAllocator::hidden() {}
bool CUDAPluggableAllocator::initialized() const { return true; }
}
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """objects.json with a row for torch 2.11; called with what is to be otherwise."""
    monkeypatch.setattr(torch_prebuilt, "FOLDER", tmp_path)

    def write(**changes):
        row = {"file": "torch_2_11.so", "versions": {"abc": "2.11.0"}, "slots": ["raw_alloc"]}
        whole = {
            "machine": platform.machine(),
            "sources": torch_sources.digest_of_all(),
            "objects": {"11": row},
        }
        (tmp_path / "objects.json").write_text(json.dumps(whole | changes))
        (tmp_path / "torch_2_11.so").write_text("no library")
        return row

    return write


def torch_of(version="2.11.0+cu130", revision="abc", **of_c):
    return types.SimpleNamespace(
        __file__="/nowhere/torch/__init__.py",
        __version__=version,
        version=types.SimpleNamespace(git_version=revision),
        _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True, **of_c),
    )


def test_an_object_serves_the_releases_that_it_was_made_for(table, tmp_path):
    row = table()
    assert torch_prebuilt.path_for(torch_of()) == (tmp_path / "torch_2_11.so", row)
    others = (("2.11.1", "abcd"), ("2.12.0", "abc"), ("2.11.0a0+git1", None), ("3.11.0", "abc"))
    for version, revision in others:
        with pytest.raises(torch_prebuilt.NoObject, match=f"none was made for .* of revision {revision}"):
            torch_prebuilt.path_for(torch_of(version, revision))
    (tmp_path / "torch_2_11.so").unlink()
    with pytest.raises(torch_prebuilt.NoObject, match="none was made"):
        torch_prebuilt.path_for(torch_of())


def test_objects_for_others_are_left(table, tmp_path):
    table(machine="m68k")
    with pytest.raises(torch_prebuilt.NoObject, match="are for m68k"):
        torch_prebuilt.path_for(torch_of())
    table(sources="0")
    with pytest.raises(torch_prebuilt.NoObject, match="other sources than accelrt's"):
        torch_prebuilt.path_for(torch_of())
    for damaged in ("", "{"):
        (tmp_path / "objects.json").write_text(damaged)
        with pytest.raises(torch_prebuilt.NoObject, match="without prebuilt objects"):
            torch_prebuilt.path_for(torch_of())


def test_functions_have_to_stand_where_the_object_has_them():
    check = torch_prebuilt.check_functions
    check(["raw_alloc", None, "name"], ["raw_alloc", "enable", "name"])
    for names, text in (
        (["raw_alloc", None], "torch's table has 2 functions, and the object's 3"),
        (["raw_alloc", "name", None], "torch has name as function 1, and the object enable"),
        ([None, None, None], "no function of torch's table has a symbol"),
    ):
        with pytest.raises(torch_prebuilt.Unsuitable, match=text):
            check(names, ["raw_alloc", "enable", "name"])


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_the_table_is_read_from_the_running_library(tmp_path):
    library = tmp_path / "lib" / "libtorch_cuda.so"
    torch = types.SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    with pytest.raises(torch_prebuilt.Unsuitable, match="table of functions was not found"):
        torch_prebuilt.functions_of(torch)
    library.parent.mkdir()
    (tmp_path / "torch.cpp").write_text(TORCH)
    subprocess.run(
        [*CXX, "-shared", "-fPIC", "-std=c++17", "-o", library, tmp_path / "torch.cpp"], check=True
    )
    kept = ctypes.CDLL(str(library))
    assert torch_prebuilt.functions_of(torch) == ["raw_alloc", None, "initialized"]
    assert kept


def answering(**changes):
    """A torch whose functions answer as the probe does, for those that are named otherwise."""
    stats, snapshot = torch_prebuilt.expected_stats(), torch_prebuilt.expected_snapshot(11)
    answers = {
        "_cuda_getAllocatorBackend": "probe",
        "_cuda_getMemoryFraction": 0.625,
        "_cuda_isHistoryEnabled": True,
        "_cuda_memoryStats": {**stats, "more": 1},
        "_cuda_memorySnapshot": snapshot,
        "_cuda_getCheckpointState": object(),
    }
    functions = {name: lambda *_, name=name: (answers | changes)[name] for name in answers}
    live = {torch_prebuilt.FIRST, torch_prebuilt.FIRST + 1024}
    functions["_cuda_checkPoolLiveAllocations"] = lambda device, pool, blocks: blocks == live
    return torch_of(**functions)


def library_that(does=lambda: None):
    return types.SimpleNamespace(accelrt_torch_probe=does)


@in_own_process
def test_a_child_compares_answers():
    ask = torch_prebuilt.ask_child
    assert ask(answering(), library_that()) == ""
    snapshot = torch_prebuilt.expected_snapshot(11)
    snapshot["segments"][0]["blocks"][2]["size"] = 7
    told = ask(answering(_cuda_memorySnapshot=snapshot, _cuda_memoryStats={}), library_that())
    assert "statistics.num_ooms is None, not 1117" in told
    assert "snapshot.segments[0].blocks[2].size is 7, not 512" in told
    assert "division" in ask(answering(), library_that(lambda: 1 // 0))
    crash = library_that(lambda: os.kill(os.getpid(), 11))
    assert ask(answering(), crash) == "a process that asked ended with -11"
    torch_prebuilt.LIMIT = 0.2
    assert ask(answering(), library_that(signal.pause)) == "a process that asked ended with -9"


@in_own_process
def test_a_process_of_many_descriptors_is_asked_too():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < 2000:
        pytest.skip(f"a process may have {most} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, most))
    while os.open(os.devnull, os.O_RDONLY) < 1024:
        pass
    assert torch_prebuilt.ask_child(answering(), library_that()) == ""


def test_what_disagrees_is_told_and_another_way_is_taken(table, monkeypatch, caplog):
    table()
    torch = torch_of()
    monkeypatch.setattr(interop, "_native", None)
    monkeypatch.setattr(torch_build, "library", lambda torch, version: "compiled")
    monkeypatch.setattr(interop, "open_library", lambda path: path)
    with pytest.warns(RuntimeWarning, match="does not use the object .* 2.11.0.*, and compiles another"):
        assert interop.load(torch, "auto") == "compiled"
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("accelrt.interop", "WARNING")
    assert record.accelrt == {"event": "torch_compiled"}
    monkeypatch.setattr(interop, "_native", None)
    with pytest.raises(torch_build.CannotCompile, match="TORCH_OBJECT is prebuilt, and torch's table"):
        interop.load(torch, "prebuilt")
    monkeypatch.setattr(torch_prebuilt, "check", lambda torch, library, row: None)
    assert interop.load(torch, "auto").name == "torch_2_11.so"
    monkeypatch.setattr(interop, "_native", None)
    assert interop.load(torch, "compiled") == "compiled"
    monkeypatch.setattr(interop, "_native", None)
    assert interop.load(torch_of(revision="dev"), "auto") == "compiled", "and nothing is told of it"
    monkeypatch.setattr(interop, "_native", None)
    with pytest.raises(torch_build.CannotCompile, match="is prebuilt, and none was made"):
        interop.load(torch_of(revision="dev"), "prebuilt")


def test_the_maker_reads_what_gcc_says_of_classes():
    classes = """
Vtable for {anonymous}::Allocator
{anonymous}::Allocator::_ZTVN12_GLOBAL__N_19AllocatorE: 5 entries
0     (int (*)(...))0
8     (int (*)(...))(& _ZTIN12_GLOBAL__N_19AllocatorE)
16    (int (*)(...)){anonymous}::Allocator::~Allocator
24    (int (*)(...))c10::Allocator::is_simple_data_ptr
32    (int (*)(...)){anonymous}::Allocator::raw_alloc

Class c10::DataPtr
   size=32 align=8
Class c10::cuda::CUDACachingAllocator::SnapshotInfo
   size=224 align=8
Class c10::Other
   size=1 align=1
"""
    made = runpy.run_path(str(MAKER))
    assert made["functions_of"](classes) == ["~Allocator", "is_simple_data_ptr", "raw_alloc"]
    assert made["sizes_of"](classes) == {"DataPtr": 32, "SnapshotInfo": 224}


WHOLE = """
import sys, torch
from accelrt.interop import torch as interop, torch_prebuilt
from cudart_standin import Standin
from pathlib import Path

torch_prebuilt.FOLDER = Path(sys.argv[1])
kept = Standin()
path, row = torch_prebuilt.path_for(torch)
library = interop.open_library(path)
names = torch_prebuilt.functions_of(torch)
assert len([name for name in names if name]) > 20, names
torch_prebuilt.check(torch, library, row)
try:
    torch_prebuilt.check(torch, library, row | {"slots": row["slots"][1:] + row["slots"][:1]})
except torch_prebuilt.Unsuitable as error:
    assert "as function" in str(error), error
else:
    raise AssertionError("functions in another order were taken")
interop.require_cuda = lambda torch: None
for _ in range(2):
    interop.install()
    assert interop._native._name == str(path)
    kept = torch.arange(500, dtype=torch.float32).cuda()
    assert bool((kept.cpu() == torch.arange(500, dtype=torch.float32)).all())
    interop.uninstall()
print("done")
"""


@pytest.mark.host
@pytest.mark.own_process
@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_an_object_that_was_made_for_this_torch_serves_it(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None or not torch.version.cuda.startswith("13"):
        pytest.skip("the stand-in has the functions of CUDA 13's runtime; this torch is built for another")
    from cudart_standin import build

    command = [sys.executable, MAKER, "--any-libc", "--to", tmp_path, Path(torch.__file__).parents[1]]
    subprocess.run(command, check=True, env=os.environ | {"CXX": " ".join(CXX)})
    paths = os.pathsep.join([str(ROOT / "tests" / "helpers"), *filter(None, sys.path)])
    settings = {"PYTHONPATH": paths, "ACCELRT_DRIVER": "host", "ACCELRT_TORCH_OBJECT": "prebuilt"}
    done = run_python("-P", "-c", WHOLE, tmp_path, **settings, **build(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done\n"
    assert "Warning" not in done.stderr, done.stderr
