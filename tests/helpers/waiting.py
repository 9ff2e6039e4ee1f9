"""A wait with a limit for what another thread or process does; it needs nothing of accelrt."""

import time

SECONDS = 300  # far away: what is awaited comes at once, but on a machine that has much else to do


def wait_until(holds, what="it did not come to pass"):
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.001)
