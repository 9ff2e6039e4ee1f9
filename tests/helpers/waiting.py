"""A wait with a limit for what another thread or process does; it needs nothing of accelrt."""

import time

SECONDS = 60


def wait_until(holds, what="it did not come to pass"):
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.001)
