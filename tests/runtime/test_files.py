"""Files are whole or are not there, nothing is written through links, and reading has bounds."""

import ast
import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

import accelrt
from accelrt.core import files
from accelrt.kernels import build_process, compiler
from accelrt.kernels.image import ModuleImage
from accelrt.memory.history.snapshot_file import dump_snapshot, load_snapshot
from accelrt.tools.viewer import chrome_trace, html_page
from accelrt.tunable import results_file

ROOT = Path(accelrt.__file__).parent
OTHER_WRITERS = {
    "core/files.py",
    "core/stubgen.py",  # when the package is built, as the next two
    "driver/rowgen.py",  # when the package is built
    "include/headergen.py",
    "tools/cli/main.py",  # /dev/null
    "kernels/build_process.py",  # in a folder that it has just made for itself
    "memory/history/drain.py",  # a recording grows; its file is made with O_EXCL
    "tunable/results_file.py",  # the file that is locked, which is there before its content
}
EMPTY = {"segments": [], "device_traces": [[]], "allocator_settings": {}, "external_annotations": []}
WRITERS = {
    "snapshot": lambda path: dump_snapshot(path),
    "page": lambda path: html_page.write_page(EMPTY, path),
    "trace": lambda path: chrome_trace.write_trace(EMPTY, path),
    "image": lambda path: ModuleImage(b"code", "ptx", "sm_90").save(path),
    "results": lambda path: results_file.merge(str(path), {}, {}, {}),
}
READERS = {
    "snapshot": load_snapshot,
    "results": lambda path: results_file.read(str(path)),
    "untuned": lambda path: results_file.read_untuned(str(path)),
    "module": lambda path: accelrt.Module(str(path)),
    "image": lambda path: compiler.image_of(path),
    "sources": lambda path: compiler.read_sources(path, None),
}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EBADF])
def test_a_file_system_without_locks_takes_results_and_folders_of_compilers(tmp_path, monkeypatch, code):
    def refuse(file, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "results.csv"
    results_file.merge(str(path), {"driver": "1"}, {}, {})
    assert "driver" in path.read_text()
    assert build_process.run_compiler(["true"], {"source.c": ""}, "nothing").code == 0


def test_a_file_is_replaced_and_keeps_who_may_read_it(tmp_path):
    path = tmp_path / "file"
    files.write(path, [b"one"])
    path.chmod(0o640)
    files.write(path, [b"tw", b"o"])
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    files.write(path, [b"three"], private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_writing_that_ends_early_leaves_what_was_there(tmp_path, error):
    def parts():
        yield b"begin"
        raise error

    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(error):
        files.write(path, parts())
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"before"


def test_an_error_names_the_file_that_was_to_be_written(tmp_path):
    """The unfinished one's name, which is random, says nothing to anybody."""
    with pytest.raises(FileNotFoundError) as raised:
        files.write(tmp_path / "missing" / "file", [b"x"])
    assert str(raised.value) == f"[Errno 2] No such file or directory: '{tmp_path}/missing/file'"

    def full():
        yield b"begin"
        raise OSError(errno.ENOSPC, "No space left on device")

    def elsewhere():
        yield b"begin"
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "other")

    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        files.write(tmp_path / "file", full())
    with pytest.raises(FileNotFoundError, match="'other'"):
        files.write(tmp_path / "file", elsewhere())
    assert names(tmp_path) == []


def test_an_interruption_at_any_line_leaves_no_other_file_and_no_descriptor(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    at = 0
    while True:
        seen = 0

        def interrupt(frame, event, argument, at=at):
            nonlocal seen
            if frame.f_code is not files.write.__code__ and frame.f_code is not files.remove.__code__:
                return None
            if event in ("line", "return"):
                seen += 1
                if seen == at + 1:
                    raise KeyboardInterrupt
            return interrupt

        before = len(os.listdir("/proc/self/fd"))
        sys.settrace(interrupt)
        try:
            files.write(path, [b"after"])
            ended = True
        except KeyboardInterrupt:
            ended = False
        finally:
            sys.settrace(None)
        assert len(os.listdir("/proc/self/fd")) <= before  # what others kept may be closed meanwhile
        assert names(tmp_path) == ["file"]
        if ended:
            break
        at += 1
    assert at > 5
    assert path.read_bytes() == b"after"


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_link(tmp_path, writer):
    target = tmp_path / "target"
    target.write_bytes(b"")
    for name in (f"out.pickle.{os.getpid()}.new", f".out.pickle.{os.getpid()}.new", "out.pickle.new"):
        (tmp_path / name).symlink_to(target)
    path = tmp_path / "out.pickle"
    WRITERS[writer](path)
    assert target.read_bytes() == b""
    assert not path.is_symlink()
    assert path.stat().st_size or writer == "results"


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_regular_file_is_not_replaced(tmp_path, writer):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/full")
    for path in (pipe, link):
        with pytest.raises(OSError, match="not a regular file"):
            WRITERS[writer](path)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert names(tmp_path) == ["link", "pipe"]


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_and_a_device_are_not_read(tmp_path, reader):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/full")):
        with pytest.raises((OSError, ValueError), match="regular file"):
            READERS[reader](path)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes") as caught:
        files.read(path, 4)
    assert caught.value.errno == errno.EFBIG
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 67,108,864 bytes"):
        results_file.read(str(path))
    with pytest.raises(OSError, match="more than 67,108,864 bytes"):
        results_file.append_lines(str(path), ["operation,arguments"])


def writes(path):
    """The calls in a module that may open a file for writing."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        texts = [text for text in constants if isinstance(text, str)]
        opens = any(set(text) <= set("wxab+t") and set(text) & set("wxa+") for text in texts)
        others = (".write_text", ".write_bytes", "os.replace", "os.rename")
        if (name == "open" and opens) or name.endswith(others) or "os.O_CREAT" in ast.unparse(node):
            yield name


def test_files_are_written_by_one_function():
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if any(True for _ in writes(path))}
    assert found - OTHER_WRITERS == set()
