"""Rows between processes, rows on threads that chose no device, and the end of a process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from beside import on_a_thread

from accelrt.driver.registry import Rows

MIB = 1 << 20
DISABLE_TIMING, INTERPROCESS = 2, 4
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, NOT_SUPPORTED = 1, 201, 400, 600, 801

OPENED = """
import sys
import numpy as np
from accelrt.driver.registry import Rows

def must(answer):
    code, *written = answer if isinstance(answer, tuple) else (answer,)
    assert code == 0, code
    return written[0] if written else None

rows = Rows(sys.argv[1])
must(rows.open())
"""

OTHER_PROCESS = """
event = must(rows.ipc_event_open(0, bytes.fromhex(sys.argv[2])))
memory = must(rows.ipc_memory_open(0, bytes.fromhex(sys.argv[3])))
must(rows.event_synchronize(0, event))
seen = np.zeros(4096, np.uint8)
must(rows.copy(0, 0, seen.ctypes.data, memory, seen.nbytes))
must(rows.fill(0, 0, memory, 8, 1, seen.nbytes))
must(rows.device_synchronize(0))
must(rows.ipc_memory_close(0, memory))
must(rows.event_destroy(0, event))
print(set(seen.tolist()))
"""

END_OF_PROCESS = """
import sys
from accelrt.driver.registry import Rows

rows = Rows(sys.argv[1])
assert rows.close() in (0, 3)  # there is nothing to end yet
assert [rows.open(), rows.open()] == [0, 0]
assert rows.device_synchronize(0) == 0
assert rows.close() == 0
"""


def child(text, *arguments, keep=()):
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        pass_fds=keep,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_memory_and_events_are_opened_by_another_process(rows):
    event = rows.kept("event_create", 0, DISABLE_TIMING | INTERPROCESS)
    memory = rows.kept("memory_alloc", 0, 2 * MIB)
    rows.ok("fill", 0, 0, memory, 7, 1, 4096)
    rows.ok("event_record", 0, event, 0)
    shared_event = rows.ok("ipc_event_export", 0, event)
    shared_memory = rows.ok("ipc_memory_export", 0, memory)
    assert child(OPENED + OTHER_PROCESS, rows.driver, shared_event.hex(), shared_memory.hex()) == "{7}"
    assert (rows.read(memory, 4096) == 8).all()


def test_an_event_made_for_one_process_is_not_shared(rows):
    event = rows.kept("event_create", 0, DISABLE_TIMING)
    code, handle = rows.ipc_event_export(0, event)
    assert code in (INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED)
    assert handle == bytes(64)


IMPORTER = """
size = int(sys.argv[3])
handle = must(rows.physical_import(0, int(sys.argv[2])))
address = must(rows.address_reserve(size, size))
must(rows.memory_map(address, size, handle))
must(rows.physical_release(handle))
must(rows.memory_access(address, size, 0, 3))
seen = np.zeros(4096, np.uint8)
must(rows.copy(0, 0, seen.ctypes.data, address, seen.nbytes))
must(rows.fill(0, 0, address, 8, 1, seen.nbytes))
must(rows.device_synchronize(0))
must(rows.memory_unmap(address, size))
must(rows.address_free(address, size))
print(set(seen.tolist()))
"""


def test_pages_are_opened_by_another_process_that_got_a_descriptor(rows):
    size = rows.ok("granularity", 0)
    handle = rows.kept("physical_create", 0, size, True)
    address = rows.kept("address_reserve", size, size)
    rows.ok("memory_map", address, size, handle)
    rows.ok("memory_access", address, size, 0, 3)
    rows.ok("fill", 0, 0, address, 7, 1, 4096)
    rows.ok("device_synchronize", 0)
    file = rows.ok("physical_export", handle)
    assert not os.get_inheritable(file)
    os.set_inheritable(file, True)
    assert child(OPENED + IMPORTER, rows.driver, file, size, keep=(file,)) == "{7}"
    os.close(file)
    assert (rows.read(address, 4096) == 8).all()
    rows.ok("memory_unmap", address, size)


def test_pages_stay_while_another_handle_of_them_is_alive(rows):
    size = rows.ok("granularity", 0)
    handle = rows.ok("physical_create", 0, size, True)
    file = rows.ok("physical_export", handle)
    rows.ok("physical_release", handle)
    again = rows.ok("physical_import", 0, file)
    os.close(file)
    address = rows.kept("address_reserve", size, size)
    rows.ok("memory_map", address, size, again)
    rows.ok("physical_release", again)
    rows.ok("memory_access", address, size, 0, 3)
    rows.ok("fill", 0, 0, address, 3, 1, 4096)
    assert (rows.read(address, 4096) == 3).all()
    rows.ok("memory_unmap", address, size)


def test_pages_made_for_one_process_are_not_exported(rows):
    size = rows.ok("granularity", 0)
    handle = rows.kept("physical_create", 0, size, False)
    code, file = rows.physical_export(handle)
    assert code != 0
    assert file == -1


def test_a_file_of_something_else_is_not_imported(rows, on_host, tmp_path):
    size = rows.ok("granularity", 0)
    with (tmp_path / "short").open("wb") as short:
        assert rows.physical_import(0, short.fileno()) == (INVALID_VALUE, 0)
    assert rows.physical_import(0, 999_999)[0] == INVALID_VALUE
    assert rows.physical_create(0, size + 1, True)[0] == INVALID_VALUE


def test_handles_of_this_process_or_of_nothing_are_refused(rows, on_host):
    event = rows.kept("event_create", 0, DISABLE_TIMING | INTERPROCESS)
    memory = rows.kept("memory_alloc", 0, 4096)
    for kind, shared in (
        ("event", rows.ok("ipc_event_export", 0, event)),
        ("memory", rows.ok("ipc_memory_export", 0, memory)),
    ):
        opener = getattr(rows, f"ipc_{kind}_open")
        assert opener(0, shared)[0] == INVALID_CONTEXT
        assert opener(0, bytes(64))[0] == INVALID_HANDLE
    assert rows.ipc_memory_export(0, memory + 512)[0] == INVALID_VALUE
    assert rows.ipc_memory_close(0, memory) == INVALID_VALUE


RECORDER = """
import sys, time
from accelrt.driver.registry import Rows
import ctypes
rows = Rows("host")
rows.open()
event = rows.event_create(0, 6)[1]
rows.event_record(0, event, 0)
rows.stream_synchronize(0, 0)
print(rows.ipc_event_export(0, event)[1].hex(), flush=True)
sys.stdin.readline()
nap = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(600))
rows.stream_host_func(0, 0, ctypes.cast(nap, ctypes.c_void_p).value, 0)
rows.event_record(0, event, 0)
print("recorded", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_dies_lets_those_go_that_wait_for_its_event(rows, on_host):
    with subprocess.Popen(
        [sys.executable, "-c", RECORDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        event = rows.ok("ipc_event_open", 0, bytes.fromhex(other.stdout.readline()))
        assert rows.event_query(0, event) == 0
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "recorded\n"
        stream = rows.stream()
        rows.ok("stream_wait_event", 0, stream, event)
        assert rows.event_query(0, event) == rows.stream_query(0, stream) == NOT_READY
        other.kill()
        rows.ok("event_synchronize", 0, event)
        rows.ok("stream_synchronize", 0, stream)
        rows.ok("stream_destroy", 0, stream)
        rows.ok("event_destroy", 0, event)


def test_the_end_of_a_process(rows):
    child(END_OF_PROCESS, rows.driver)


def test_rows_work_on_a_thread_that_chose_no_device(rows):
    stream, event = rows.stream(), rows.ok("event_create", 0, DISABLE_TIMING)
    memory, answers = rows.ok("memory_alloc", 0, 4096), {}

    def work():
        for name, *arguments in (
            ("event_record", 0, event, stream),
            ("stream_wait_event", 0, stream, event),
            ("event_synchronize", 0, event),
            ("event_query", 0, event),
            ("fill", 0, stream, memory, 5, 1, 4096),
            ("fill", 0, 0, memory, 5, 1, 4096),
            ("stream_synchronize", 0, stream),
            ("stream_query", 0, stream),
            ("stream_priority", 0, stream),
            ("capture_status", 0, stream),
            ("pointer_device", memory),
            ("memory_info", 0),
            ("device_synchronize", 0),
            ("current_device",),
        ):
            answers[name, *arguments] = getattr(rows, name)(*arguments)

    on_a_thread(work)
    codes = {call: answer[0] if isinstance(answer, tuple) else answer for call, answer in answers.items()}
    assert len(codes) == 14
    assert set(codes.values()) == {0}, codes
    assert answers["current_device",] == (0, -1)
    assert (rows.read(memory, 4096) == np.uint8(5)).all()
    rows.ok("memory_free", 0, memory)
    rows.ok("event_destroy", 0, event)
    rows.ok("stream_destroy", 0, stream)


def test_every_row_is_called_by_a_contract_test():
    folder = Path(__file__).parent
    tests = "".join(path.read_text() for path in (*folder.glob("test_*.py"), folder / "made_graphs.py"))
    shared = (folder / "conftest.py").read_text()
    untested = [
        row
        for row in Rows.names
        if f"rows.{row}(" not in tests and f'"{row}"' not in tests and f'self.ok("{row}"' not in shared
    ]
    assert untested == []


def test_memory_that_was_imported_is_not_exported(rows):
    size = rows.ok("granularity", 0)
    code, handle = rows.physical_create(0, size, True)
    if code == 801:
        pytest.skip("the device makes no memory for other processes")
    file = rows.ok("physical_export", handle)
    imported = rows.ok("physical_import", 0, file)
    os.close(file)
    assert rows.physical_export(imported)[0] == INVALID_VALUE
    rows.ok("physical_release", imported)
    rows.ok("physical_release", handle)
