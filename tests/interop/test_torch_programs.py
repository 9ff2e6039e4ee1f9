"""torch programs of all kinds on accelrt, a process for each scenario (torch_programs.py)."""

import torch_programs
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(
    torch_programs, torch_programs.PROGRAMS, many=lambda name: "device" in name
)
