"""Two parties of torch programs at once on accelrt, a process for each scenario (torch_at_once.py)."""

import torch_at_once
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(torch_at_once, torch_at_once.AT_ONCE)
