"""Malformed files in the folder of those who publish: each is left out with a warning, and ends nothing."""

import json
import os
import random
import socket
import warnings

import pytest
from child import run_code
from cli_command import accelrt
from published_files import pool, record

from accelrt.core import procfs
from accelrt.tools import publish

pytestmark = pytest.mark.own_process


def mine(place):
    return place / f"{os.getpid()}.json"


def told(place):
    """What is published, and the warnings of two looks: a file is named once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        found = publish.published()
        assert publish.published() == found
    texts = [str(one.message) for one in caught]
    assert all(text.startswith(f"{place}/") and len(text.splitlines()) == 1 for text in texts)
    return found, texts


MALFORMED = {
    "empty": "",
    "cut": "{",
    "list": "[]",
    "object": "{}",
    "number": "7",
    "deep list": "[" * 200_000,
    "deep object": '{"a":' * 100_000,
    "deep pools": record().replace("[{", "[" * 50_000 + "{"),
    "no text": b"\xff\xfe\0",
    "long number": record(pid=0).replace('"pid": 0', '"pid": ' + "9" * 10_000),
    "huge": record(namespace="x" * publish.SIZE_LIMIT),
    "more": record(more=1),
    "less": record().replace('"driver": "cuda", ', ""),
    "pid list": record(pid=[1]),
    "pid bool": record(pid=True),
    "pid text": record(pid=str(os.getpid())),
    "pid of another": record(pid=os.getpid() + 1),
    "pid float": record(pid=float(os.getpid())),
    "started null": record(started=None),
    "started object": record(started={}),
    "namespace list": record(namespace=["x"]),
    "namespace long": record(namespace="x" * 1000),
    "driver number": record(driver=3),
    "driver control": record(driver="\x1b[2J"),
    "time nan": record(time=float("nan")),
    "time infinite": record(time=float("inf")),
    "time large": record(time=10**400),
    "time text": record(time="now"),
    "pools number": record(pools=3),
    "pools object": record(pools={"0": pool()}),
    "pool empty": record(pools=[{}]),
    "pool list": record(pools=[[]]),
    "pool null": record(pools=[None]),
    "pool more": record(pools=[pool(more=1)]),
    "ordinal text": record(pools=[pool(ordinal="0")]),
    "ordinal negative": record(pools=[pool(ordinal=-1)]),
    "uuid number": record(pools=[pool(uuid=7)]),
    "uuid short": record(pools=[pool(uuid="0" * 31)]),
    "uuid letters": record(pools=[pool(uuid="g" * 32)]),
    "name list": record(pools=[pool(name=["x"])]),
    "name newline": record(pools=[pool(name="x\ny")]),
    "name surrogate": record(pools=[pool(name="\ud800")]),
    "reserved text": record(pools=[pool(reserved="2")]),
    "reserved float": record(pools=[pool(reserved=2.5)]),
    "reserved large": record(pools=[pool(reserved=1 << 63)]),
    "live null": record(pools=[pool(live=None)]),
    "live bool": record(pools=[pool(live=True)]),
    "peak list": record(pools=[pool(peak_reserved=[])]),
    "used alone": record(pools=[pool(used=1)]),
    "used above total": record(pools=[pool(used=2, total=1)]),
    "total text": record(pools=[pool(used=1, total="2")]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_left_out_and_named(place, name):
    content = MALFORMED[name]
    mine(place).write_bytes(content if isinstance(content, bytes) else content.encode())
    parent = record(pid=os.getppid(), started=procfs.started(os.getppid()))
    (place / f"{os.getppid()}.json").write_text(parent)
    found, texts = told(place)
    assert [one.pid for one in found] == [os.getppid()]
    assert len(texts) == 1
    assert texts[0].startswith(f"{mine(place)} is left out: ")


def test_a_file_of_another_version_and_files_of_others_are_left_out_without_a_word(place):
    mine(place).write_text(record(format=99))
    (place / "other.json").write_text("{")
    (place / f"{os.getpid()}.txt").write_text("{")
    (place / f"{os.getpid()}.new").write_text("{")
    assert told(place) == ([], [])
    assert len(list(place.iterdir())) == 4


def make_directory(path):
    path.mkdir()
    (path / "x").touch()


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_link(path):
    target = path.with_name("target")
    target.write_text(record())
    path.symlink_to(target)


KINDS = {
    "directory": make_directory,
    "fifo": os.mkfifo,
    "socket": make_socket,
    "link": make_link,
    "loop": lambda path: path.symlink_to(path),
    "dangling": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pid", [os.getpid, lambda: 999_999_999], ids=["living", "gone"])
@pytest.mark.parametrize("suffix", [".json", ".new"])
def test_what_is_no_regular_file_is_left_out_and_left_alone(place, monkeypatch, kind, pid, suffix):
    monkeypatch.chdir(place)
    path = place / f"{pid()}{suffix}"
    KINDS[kind](path.relative_to(place) if kind == "socket" else path)
    found, texts = told(place)
    assert found == []
    assert len(texts) == (suffix == ".json" and pid is os.getpid)
    assert os.path.lexists(path)


def test_an_unreadable_file_of_a_process_that_is_gone_is_removed(place):
    path = place / "999999999.json"
    path.write_text("{")
    assert told(place) == ([], [])
    assert not path.exists()


def write_once(place):
    """What the writer thread does once, in this very process."""
    import accelrt as package

    package.init()
    publish.write(mine(place), publish.reading())


@pytest.mark.parametrize("kind", ["fifo", "link", "socket"])
def test_a_writer_is_not_led_astray_by_what_stands_in_its_way(place, monkeypatch, kind):
    monkeypatch.chdir(place)
    beside = mine(place).with_suffix(".new")
    KINDS[kind](beside.relative_to(place) if kind == "socket" else beside)
    write_once(place)
    assert [one.pid for one in publish.published()] == [os.getpid()]
    if kind == "link":
        assert (place / "target").read_text() == record()


def spoiled(chance, value):
    """A JSON value with some parts replaced."""
    if chance.random() < 0.15:
        return chance.choice([None, True, -1, 1 << 70, 1.5, "", "x" * 40, [], {}, [[1]], {"a": 1}])
    if isinstance(value, dict):
        return {
            key if chance.random() > 0.03 else key + "x": spoiled(chance, one) for key, one in value.items()
        }
    return [spoiled(chance, one) for one in value] if isinstance(value, list) else value


def test_of_random_files_none_ends_a_reader(place):
    chance = random.Random(30)
    good = json.loads(record())
    kept = 0
    for _ in range(500):
        text = json.dumps(spoiled(chance, good))
        if chance.random() < 0.3:
            cut = chance.randrange(len(text))
            text = text[:cut] + text[cut + chance.randint(1, 9) :]
        mine(place).write_text(text)
        found, texts = told(place)
        assert len(found) + len(texts) <= 1
        kept += len(found)
    assert kept < 400


@pytest.mark.parametrize("command", [("top", "--once"), ("top", "--once", "--json"), ("export", "--once")])
@pytest.mark.parametrize("name", ["pid list", "reserved text", "uuid number", "deep list", "name surrogate"])
def test_commands_leave_it_out_in_one_line(place, command, name):
    mine(place).write_text(MALFORMED[name])
    done = accelrt(*command, XDG_RUNTIME_DIR=str(place.parent))
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr.startswith(f"accelrt: {mine(place)} is left out: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_process_may_be_named_by_any_bytes():
    code = (
        "import os, ctypes\nctypes.CDLL(None).prctl(15, b'\\xff\\xfe) S', 0, 0, 0)\n"
        "from accelrt.core import procfs\nfrom accelrt.tools.cli.sample import command_of\n"
        "print(procfs.started(os.getpid()) is not None, len(command_of(os.getpid())) > 0)\n"
    )
    assert run_code(code) == "True True\n"
