"""For people who test their own extensions: a device that may fail and stop, and what is left behind.

Importing accelrt does not import it.  The plug-in for pytest, accelrt.pytest_plugin, makes fixtures of it.

device          use_device(), which initialises accelrt so that calls of the driver can fail and stop
leaks           check_leaks(): what a block left alive, with stacks and with who holds it; audits
faults          calls of the driver that fail: one, or each in turn
threads         threads that run at once, streams that wait, a thread that stands at a call of the driver
interleavings   two operations at once, the first stopped at each of its calls
"""

from accelrt.errors import InterleavingError, LeakError, StuckError
from accelrt.testing.device import use_device
from accelrt.testing.faults import calls_of, failing, failing_calls
from accelrt.testing.interleavings import Interleaver, Outcome, interleave
from accelrt.testing.leaks import LeakCheck, audit, check_leaks, count_misuses, live_objects, settle
from accelrt.testing.threads import Caller, Gate, go_on, on_a_thread, on_threads, park

__all__ = [
    "Caller",
    "Gate",
    "Interleaver",
    "InterleavingError",
    "LeakCheck",
    "LeakError",
    "Outcome",
    "StuckError",
    "audit",
    "calls_of",
    "check_leaks",
    "count_misuses",
    "failing",
    "failing_calls",
    "go_on",
    "interleave",
    "live_objects",
    "on_a_thread",
    "on_threads",
    "park",
    "settle",
    "use_device",
]
