"""accelrt top: all devices and the processes on them, live."""

from accelrt.cli.top.command import run

__all__ = ["run"]
