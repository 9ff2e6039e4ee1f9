"""Copies, fills, elementwise kernels, random numbers: what a call costs, and how much moves in a large one.

What is within the device is read and written, so its bytes count twice; where a kernel computes, raw C copies
as many, and where one draws, raw C fills as many.  With --quick the large copies are small, and their rates
mean nothing.
"""

from rows import Goal, Row
from suite import run

ROWS = [
    Row("h2d_1kib", "host to device, 1 KiB, pinned, the call", Goal(120, plus="raw C"), batch=100),
    Row("fill_1kib", "fill of 1 KiB, the call", batch=100),
    Row(
        "many_16kib",
        "4,096 copies of 16 KiB, pinned to device, by addresses: each",
        Goal(30, plus="raw C"),
        batch=1,
    ),
    Row(
        "many_16kib_rate",
        "4,096 copies of 16 KiB, pinned to device",
        Goal(0.95, ">=", times="raw C"),
        unit="GB/s",
        batch=4,
    ),
    Row("many_loop", "4,096 copies of 16 KiB, one call each: each", batch=1),
    Row(
        "many_mixed",
        "4,096 copies of 8 to 32 KiB, pinned to device, by addresses: each",
        Goal(30, plus="raw C"),
        batch=1,
    ),
    Row(
        "many_mixed_rate",
        "4,096 copies of 8 to 32 KiB, pinned to device",
        Goal(0.95, ">=", times="raw C"),
        unit="GB/s",
        batch=4,
    ),
    Row("many_objects", "256 copies of 16 KiB, sequences of Buffers: each", batch=4),
    Row("commit_2mib", "commit and decommit of a page that is ready", Goal(10_000), batch=100),
    Row("h2d_rate", "host to device, 64 MiB, pinned", unit="GB/s", batch=10),
    Row("d2d_rate", "within the device, 256 MiB", unit="GB/s", batch=10),
    Row(
        "elementwise_rate",
        "elementwise z = 2 * x of 2**28 floats",
        Goal(0.95, ">=", times="raw C"),
        unit="GB/s",
        batch=10,
    ),
    Row("uniform_1kib", "256 uniform floats, the call", batch=100),
    Row("uniform_rate", "2**28 uniform floats", Goal(0.8, ">=", times="raw C"), unit="GB/s", batch=10),
    Row("normal_rate", "2**28 normal floats", unit="GB/s", batch=10),
]

if __name__ == "__main__":
    run("copy", ROWS, ["torch", "CuPy", "cuda.core"])
