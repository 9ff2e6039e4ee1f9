"""Which device is which, and how it is: what is kept, and readings beside NVML's own calls in C.

A reading costs what NVML takes for it, much of it in the kernel, and differs from card to card.
"""

import peers
from rows import Goal, Row
from suite import run

READING = Goal(300, plus="raw C", scale=1.2)

ROWS = [
    Row("device_count", "device_count()", Goal(60), batch=2000),
    Row("get_properties", "get_device_properties(0)", Goal(100), batch=2000),
    Row("memory_used", "device_memory_used(0)", READING, batch=50),
]
SENSORS = [  # which the host device has none of
    Row("temperature", "temperature(0)", READING, batch=50),
    Row("power_draw", "power_draw(0)", READING, batch=50),
    Row("utilization", "utilization(0)", READING, batch=50),
    Row("clock_rate", "clock_rate(0)", READING, batch=50),
]

if __name__ == "__main__":
    run("readings", ROWS if peers.on_host() else ROWS + SENSORS, ["torch"])
