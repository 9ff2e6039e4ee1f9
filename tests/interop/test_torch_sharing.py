"""CUDA tensors through torch.multiprocessing, where accelrt is torch's allocator: each scenario in processes of
its own (torch_sharing.py)."""

import ast
from pathlib import Path

import pytest
import torch_whole
from test_torch_whole import standin  # noqa: F401  a fixture

pytestmark = pytest.mark.own_process
PROGRAM = str(Path(torch_whole.__file__).with_name("torch_sharing.py"))
