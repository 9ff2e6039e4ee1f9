"""The interfaces that engines call for sleep, a process for each scenario (torch_adapters.py)."""

import torch_adapters
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(torch_adapters, torch_adapters.SCENARIOS)
