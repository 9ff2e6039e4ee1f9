"""accelrt as an allocator object of torch's own class, compiled for the torch that is installed: what a
plugged allocator cannot do, each scenario in a process of its own (torch_whole.py)."""

import torch_whole
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(
    torch_whole, torch_whole.ALONE, torch_whole.KERNELS, many=lambda name: "device" in name
)
