"""Memory of NCCL's and symmetric memory in torch's MemPools, on two GPUs (torch_symmetric.py)."""

import re
from pathlib import Path

import pytest
import torch_alone

pytestmark = pytest.mark.own_process
PROGRAM = Path(torch_alone.__file__).with_name("torch_symmetric.py")  # which imports torch
NAMES = re.findall(r"^@scenario\ndef (\w+)\(", PROGRAM.read_text(), re.MULTILINE)


def test_every_scenario_is_found():
    assert len(NAMES) == PROGRAM.read_text().count("@scenario\n") > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_two_gpus(name):
    print(torch_alone.run(str(PROGRAM), "gpu", name, ACCELRT_DRIVER="cuda"))
