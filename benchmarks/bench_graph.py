"""Graphs of ten copies of 1 KiB within the device, from Python.

Capture and instantiation are one figure, and the old graph's destruction is part of it.  Replay is the call
alone; the work itself takes the device longer.
"""

from rows import Goal, Row
from suite import run

ROWS = [
    Row("replay_10", "replay() of 10 nodes", Goal(100, plus="raw C"), batch=50),
    Row("capture_10", "capture and instantiate 10 nodes", Goal(1.2, times="raw C"), batch=20),
]

if __name__ == "__main__":
    run("graph", ROWS, ["torch", "CuPy", "cuda.core"])
