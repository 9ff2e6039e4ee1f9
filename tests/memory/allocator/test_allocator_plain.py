"""What holds of the allocator with virtual memory holds with plain segments too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.host
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["statistics", "refusals", "threads"])
def test_the_same_file_passes_with_plain_segments(name):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, HERE / f"test_allocator_{name}.py"],
        env=os.environ | {"ACCELRT_ALLOC_CONF": "expandable_segments:False"},
        cwd=HERE.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
