"""Managed memory: the host writes a table, the device works on parts of it that were prefetched ahead.

python managed_memory.py
"""

import os

import numpy as np

import accelrt

PARTS, ROWS, COLUMNS = 8, 64, 4096


def run() -> None:
    """Doubles a table part by part."""
    buffer = accelrt.Buffer(PARTS * ROWS * COLUMNS * 4, managed=True)
    table = accelrt.Array(buffer, (PARTS, ROWS, COLUMNS), "float32")
    doubled = accelrt.elementwise("T x", "T y", "y = x + x", name="doubled")

    for_host = np.from_dlpack(table)  # the same bytes, without a copy
    for_host[:] = np.arange(PARTS, dtype=np.float32)[:, None, None]

    ahead, work = accelrt.Stream(), accelrt.current_stream()
    arrived = []
    for part in range(PARTS):
        accelrt.memory.prefetch(table[part], stream=ahead)  # to the device, beside the work
        arrived.append(ahead.record_event())
    for part in range(PARTS):
        work.wait_event(arrived[part])
        doubled(table[part], out=table[part])
        accelrt.memory.prefetch(table[part], "cpu")  # and back, behind the work on it
    work.synchronize()

    assert (for_host == 2 * np.arange(PARTS)[:, None, None]).all()
    last = accelrt.memory.managed_attributes(buffer).last_prefetch_location
    print(f"{PARTS} parts of {ROWS} rows: right, and back on the {last}")
    del for_host


def main() -> None:
    if not accelrt.is_available() or os.environ.get("ACCELRT_DRIVER") == "host":
        accelrt.init(driver="host")  # where prefetches are counted, and nothing moves
    run()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
