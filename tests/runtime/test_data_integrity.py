"""No byte is ever wrong, whatever threads do to memory, streams and graphs at the same time."""

import os
import sys
from pathlib import Path

import pytest
from child import output_of

PROGRAM = Path(__file__).parents[1] / "helpers" / "data_integrity.py"
SECONDS = 2


def run_program(*arguments, **environment):
    path = os.pathsep.join(filter(None, sys.path))
    return output_of(PROGRAM, "--seconds", SECONDS, *arguments, PYTHONPATH=path, **environment)


HOST = {"ACCELRT_HOST_MEMORY": "2GiB", "ACCELRT_DEBUG": "0"}


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("seed", "environment"),
    [
        (1, HOST),
        (2, HOST | {"ACCELRT_HOST_DEVICES": "1"}),
        (3, HOST | {"ACCELRT_HOST_DELAY_US": "200"}),
        (4, HOST | {"ACCELRT_ALLOC_CONF": "expandable_segments:False"}),
        (5, HOST | {"ACCELRT_DEBUG": "1"}),
    ],
    ids=["two devices", "one device", "slow streams", "plain segments", "audited"],
)
def test_every_byte_is_right_under_threads(seed, environment):
    assert '"check"' in run_program("--seed", str(seed), **environment)
