"""A wait with a limit for what another thread or process does; it needs nothing of accelrt."""

import sys
import time

SECONDS = 300  # far away: what is awaited comes at once, but on a machine that has much else to do


def wait_until(holds, what="it did not come to pass"):
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.001)


def wait_until_asleep(thread):
    """Waits until a thread that was started waits for something in its function, as looks in a row say."""
    looks = 0

    def is_asleep():
        nonlocal looks
        frame = sys._current_frames().get(thread.ident)
        with open(f"/proc/self/task/{thread.native_id}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
        waits = state == b"S" and frame is not None and "bootstrap" not in frame.f_code.co_name
        looks = looks + 1 if waits else 0
        return looks > 20

    wait_until(is_asleep, "the thread waits for nothing")
