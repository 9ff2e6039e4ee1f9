"""The demo's whole path with call 1 failing, then call 2, ..., until it succeeds.

After each failure the error says what failed, nothing has leaked, and the process still works.
"""

import gc
import itertools

import pytest
from child import in_child, wrap_host

pytestmark = pytest.mark.host
# What an error may name beside a row of the driver table: operations that stand on several rows.
OPERATIONS = {
    "graph_instantiate",
    "allocate",
    "allocate_pinned",
    "capture_begin",
    "copy",
    "empty_cache",
    "record_stream",
}
OUT_OF_MEMORY, UNKNOWN = 2, 999
EVENTS = 200  # of the trace


class Sweep:
    """One process's sweep: every call of the path fails in its turn, in one mode, with one code."""

    def __init__(self, mode, code):
        import accelrt
        from accelrt.driver.registry import ROW_NAMES
        from accelrt.tools.cli.commands import demo

        self.accelrt, self.demo, self.faults = accelrt, demo, wrap_host()
        self.mode, self.code, self.rows = mode, code, ROW_NAMES
        self.trace = demo.load_trace().prefix(EVENTS).shrunk(256)
        self.raised = self.absorbed = 0

    def path(self):
        """A short demo; raises what fails, and answers with the figures of a path that got through."""
        replayed = self.demo.replay(self.trace)
        piped = self.demo.pipeline_part(nbytes=1 << 12, replays=2)
        self.demo.release_everything()
        return replayed, piped

    def run(self):
        """Sweeps row by row where an error is to name the row, else over all calls in their order."""
        self.check_success(*self.path())
        self.level = self.settled()
        gc.freeze()  # what the path imported: each failure's collection then visits its own garbage
        self.faults.reset_call_counts()
        self.check_success(*self.path())
        self.level = self.settled()
        called = [row for row, calls in self.faults.call_counts().items() if calls]
        for rows in [[row] for row in called] if self.mode == "once" else [called]:
            self.sweep(rows)
        self.check_success(*self.path())
        assert self.settled() == self.level
        print(len(called), self.raised, self.absorbed)

    def sweep(self, rows):
        for call in itertools.count(1):
            self.faults.arm(call=call, code=self.code, mode=self.mode, rows=rows)
            failed = self.attempt(rows)
            made = self.faults.fired()
            self.faults.disarm()
            self.compare(f"{self.mode}: {self.code} at call {call} of {', '.join(rows)}")
            if made < call:
                assert not failed
                return
            self.raised += failed
            self.absorbed += not failed

    def attempt(self, rows):
        """Whether the path failed; that it failed as it may is checked here."""
        try:
            replayed, piped = self.path()
        except self.accelrt.CudaError as error:
            self.check_error(error, rows if self.mode == "once" else self.rows)
            return True
        # What was absorbed has left no trace, but that a replay counts what did not fit.
        assert replayed.ooms == 0 or self.code == OUT_OF_MEMORY
        assert piped.passed, piped
        return False

    def check_error(self, error, rows):
        from accelrt.status import name_of

        assert error.call in OPERATIONS.union(rows), error
        assert (error.code, error.name) == (self.code, name_of(self.code)), error
        assert isinstance(error, self.accelrt.OutOfMemoryError) == (self.code == OUT_OF_MEMORY), error
        assert error.call in str(error) or isinstance(error, self.accelrt.OutOfMemoryError), error

    def check_success(self, replayed, piped):
        assert replayed.ooms == 0
        assert piped.passed, piped

    def settled(self):
        """What is alive once everything was dropped; nothing may be allocated, captured or broken then."""
        from accelrt.driver.host import driver as host

        accelrt = self.accelrt
        gc.collect()
        accelrt.synchronize()
        accelrt.empty_cache()
        accelrt.host_empty_cache()
        accelrt.memory.audit()
        accelrt.memory.host_audit()
        assert accelrt.memory_allocated() == accelrt.memory_reserved() == 0
        assert accelrt.current_stream() == accelrt.default_stream()
        assert not accelrt.is_current_stream_capturing()
        return host.live_objects()

    def compare(self, what):
        after = self.settled()
        more = {kind: after[kind] - self.level[kind] for kind in after if after[kind] > self.level[kind]}
        assert not more, f"{what}: leaked {more}"


def sweep(mode, code):
    Sweep(mode, code).run()


@pytest.mark.own_process
@pytest.mark.parametrize("mode", ["once", "onward", "late"])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
def test_every_call_of_the_demo_may_fail(mode, code):
    out = in_child(sweep, mode, code, ACCELRT_HOST_MEMORY="1GiB")
    rows, raised, absorbed = map(int, out.split())
    assert rows > 20
    assert raised + absorbed > 170
    assert raised > (90 if mode == "once" else 120)  # some calls are made as often as work is found under way
