"""What torch holds in accelrt sleeps and wakes, a process for each scenario (torch_sleep.py)."""

import torch_sleep
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(torch_sleep, torch_sleep.SCENARIOS)
