"""What torch's own allocator does and accelrt alike, a process for each scenario (torch_alike.py)."""

import torch_alike
from torch_alone import both_tests, standin

__all__ = ["standin"]
test_on_a_gpu, test_on_the_standin = both_tests(
    torch_alike, torch_alike.ALIKE, many=lambda name: "device" in name
)
