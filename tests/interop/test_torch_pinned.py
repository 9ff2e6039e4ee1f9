"""torch's page-locked memory from accelrt's cache, a process for each scenario (torch_pinned.py)."""

import torch_pinned
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(torch_pinned, torch_pinned.SCENARIOS)
