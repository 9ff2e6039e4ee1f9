"""Rows between processes, rows on threads that chose no device, and the end of a process."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from accelrt.driver.registry import Rows

MIB = 1 << 20
DISABLE_TIMING, INTERPROCESS = 2, 4
INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED = 1, 400, 801

OTHER_PROCESS = """
import sys
import numpy as np
from accelrt.driver.registry import Rows

def must(answer):
    code, *written = answer if isinstance(answer, tuple) else (answer,)
    assert code == 0, code
    return written[0] if written else None

rows = Rows(sys.argv[1])
must(rows.open())
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


def child(text, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_memory_and_events_are_opened_by_another_process(rows):
    event = rows.ok("event_create", 0, DISABLE_TIMING | INTERPROCESS)
    memory = rows.ok("memory_alloc", 0, 2 * MIB)
    rows.ok("fill", 0, 0, memory, 7, 1, 4096)
    rows.ok("event_record", 0, event, 0)
    code, shared_event = rows.ipc_event_export(0, event)
    if code == NOT_SUPPORTED:
        assert rows.driver == "host"
        assert rows.ipc_memory_export(0, memory)[0] == NOT_SUPPORTED
        assert rows.ipc_event_open(0, bytes(64))[0] == NOT_SUPPORTED
        assert rows.ipc_memory_open(0, bytes(64))[0] == NOT_SUPPORTED
        assert rows.ipc_memory_close(0, memory) == NOT_SUPPORTED
    else:
        assert code == 0
        shared_memory = rows.ok("ipc_memory_export", 0, memory)
        assert child(OTHER_PROCESS, rows.driver, shared_event.hex(), shared_memory.hex()) == "{7}"
        assert (rows.read(memory, 4096) == 8).all()
    rows.ok("memory_free", 0, memory)
    rows.ok("event_destroy", 0, event)


def test_an_event_made_for_one_process_is_not_shared(rows):
    event = rows.ok("event_create", 0, DISABLE_TIMING)
    code, handle = rows.ipc_event_export(0, event)
    assert code in (INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED)
    assert handle == bytes(64)
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

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
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
    tests = "".join(path.read_text() for path in folder.glob("test_*.py"))
    shared = (folder / "conftest.py").read_text()
    untested = [
        row
        for row in Rows.names
        if f"rows.{row}(" not in tests and f'"{row}"' not in tests and f'self.ok("{row}"' not in shared
    ]
    assert untested == []
