"""A process beside the test's, on the same driver."""

import os

import pytest
from other_process import Other


@pytest.fixture
def other():
    process = Other(ACCELRT_DRIVER=os.environ.get("ACCELRT_DRIVER", "host"))
    yield process
    process.stop()
