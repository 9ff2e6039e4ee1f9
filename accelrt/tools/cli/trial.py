"""One trial of accelrt tune: a trace under the settings of the environment, in this fresh process.

The settings that matter most cannot change once memory was allocated, so each trial has a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from accelrt.devices.device import mem_get_info
from accelrt.memory.caching import set_per_process_memory_fraction
from accelrt.memory.statistics import memory_stats
from accelrt.tools.cli.choice import open_driver
from accelrt.tools.cli.commands.replay import host_capacity, replay
from accelrt.tools.traces.npz_archive import load

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Prints the figures of one pass as JSON.

    Arguments:
        arguments: the trace's npz archive, the driver ("" for the environment's), and the bytes of memory
            that the device has (0 for what it takes).
    """
    path, driver, capacity = arguments[0], arguments[1] or None, int(arguments[2])
    trace = load(path)
    chosen = open_driver(driver, None, capacity or host_capacity(trace))
    if capacity and chosen.name != "host":
        set_per_process_memory_fraction(min(1.0, capacity / mem_get_info()[1]))
    figures = replay(trace)
    stats = memory_stats()
    calls = stats["num_device_alloc"] + stats["num_device_free"] + stats["virtual_memory_calls"]
    answer = {
        "driver": chosen.line,
        "peak_reserved": figures.peak_reserved,
        "driver_calls": calls,
        "ns_per_event": figures.ns_per_event,
        "ooms": figures.ooms,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
