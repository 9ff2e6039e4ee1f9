"""The demo's whole path with call 1 failing, then call 2, ..., until it succeeds.

After each failure the error says what failed, nothing has leaked, and the process still works.
"""

import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What an error may name beside a row of the driver table: operations that stand on several rows.
OPERATIONS = {"allocate", "capture_begin", "empty_cache", "record_stream"}
OUT_OF_MEMORY, UNKNOWN = 2, 999
EVENTS = 200  # of the trace
SETTINGS = {"ACCELRT_DRIVER": "host", "ACCELRT_HOST_MEMORY": "1GiB", "ACCELRT_DEBUG": "2"}


class Sweep:
    """One process's sweep: every call of the path fails in its turn, in one mode, with one code."""

    def __init__(self, mode, code):
        import accelrt
        from accelrt.cli import demo
        from accelrt.driver import faults
        from accelrt.driver.registry import ROW_NAMES

        faults.wrap("host")
        accelrt.init(driver="faults")
        self.accelrt, self.demo, self.faults = accelrt, demo, faults
        self.mode, self.code = mode, code
        self.calls = OPERATIONS | set(ROW_NAMES)
        self.trace = demo.load_trace().prefix(EVENTS).shrunk(256)
        self.raised = self.absorbed = 0

    def path(self):
        """A short demo; raises what fails, and answers with the figures of a path that got through."""
        replayed = self.demo.replay_part(self.trace)
        piped = self.demo.pipeline_part(nbytes=1 << 12, replays=2)
        self.demo.release_everything()
        return replayed, piped

    def run(self):
        self.check_success(*self.path())
        level = self.settled()
        for call in itertools.count(1):
            self.faults.arm(call=call, code=self.code, mode=self.mode)
            failed = self.attempt()
            made = self.faults.fired()
            self.faults.disarm()
            after = self.settled()
            self.compare(level, after, call)
            level = after
            if made < call:
                assert not failed
                break
        self.check_success(*self.path())
        assert self.settled() == level
        print(call, self.raised, self.absorbed)

    def attempt(self):
        """Whether the path failed; that it failed as it may is checked here."""
        try:
            replayed, piped = self.path()
        except self.accelrt.CudaError as error:
            self.check_error(error)
            self.raised += 1
            return True
        # What was absorbed has left no trace, but that a replay counts what did not fit.
        assert replayed.ooms == 0 or self.code == OUT_OF_MEMORY
        assert piped.passed, piped
        self.absorbed += 1
        return False

    def check_error(self, error):
        from accelrt.status import name_of

        assert error.call in self.calls, error
        assert (error.code, error.name) == (self.code, name_of(self.code)), error
        assert isinstance(error, self.accelrt.OutOfMemoryError) == (self.code == OUT_OF_MEMORY), error
        assert error.call in str(error) or isinstance(error, self.accelrt.OutOfMemoryError), error

    def check_success(self, replayed, piped):
        assert replayed.ooms == 0
        assert piped.passed, piped

    def settled(self):
        """What is alive once everything was dropped; nothing may be allocated, captured or broken then."""
        from accelrt.driver import host

        accelrt = self.accelrt
        gc.collect()
        accelrt.synchronize()
        accelrt.empty_cache()
        accelrt.memory.audit()
        assert accelrt.memory_allocated() == accelrt.memory_reserved() == 0
        assert accelrt.current_stream() == accelrt.default_stream()
        assert not accelrt.is_current_stream_capturing()
        return host.live_objects()

    def compare(self, before, after, call):
        """Nothing more than before; a stream that could not be asked whether it is idle is left for later."""
        more = {kind: after[kind] - before[kind] for kind in after if after[kind] > before[kind]}
        assert more in ({}, {"streams": 1}), f"call {call}, {self.mode}, {self.code}: leaked {more}"


@pytest.mark.own_process
@pytest.mark.parametrize("mode", ["once", "onward", "late"])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
def test_every_call_of_the_demo_may_fail(mode, code):
    done = subprocess.run(
        [sys.executable, "-c", f"from test_fault_sweep import Sweep; Sweep({mode!r}, {code}).run()"],
        env=os.environ | SETTINGS | {"PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls, raised, absorbed = map(int, done.stdout.split())
    assert calls > 100
    assert raised + absorbed == calls
    assert raised > calls // 4
