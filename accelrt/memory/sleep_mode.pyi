from typing import NamedTuple

class SleepResult(NamedTuple):
    bytes: int
    copied: int
    seconds: float
    copy_seconds: float
    host_seconds: float
