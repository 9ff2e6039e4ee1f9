"""Recorded work on a device that has little more memory than the work has live at its peak."""

import json

import numpy as np
import pytest
from cli_command import RECORDED, TRACES, accelrt

ROOM = dict.fromkeys(RECORDED, 1.05) | {"vit_serve": 1.15}  # five streams, whose free memory lies apart


def peak_live(path):
    """The most bytes that a trace's events have allocated and not yet freed."""
    trace = np.load(path)
    live, total, peak = {}, 0, 0
    for op, number, size in zip(*(trace[name].tolist() for name in ("op", "id", "size")), strict=True):
        if op == 1:
            live[number] = size
            total += size
        else:
            total -= live.pop(number)
        peak = max(peak, total)
    return peak


@pytest.mark.parametrize("name", RECORDED)
def test_a_trace_fits_in_little_more_than_it_has_live(name):
    path = TRACES / f"{name}.npz"
    peak = peak_live(path)
    memory = int(ROOM[name] * peak)
    done = accelrt("replay", path, "--json", ACCELRT_HOST_MEMORY=str(memory))
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["driver"], answer["peak_live"], answer["ooms"]) == ("host", peak, 0)
    assert peak <= answer["peak_reserved"] <= memory
