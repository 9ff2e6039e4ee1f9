"""The program of libraries on one pool: on the host device of accelrt alone, on a GPU of all there are."""

import json
from pathlib import Path

import pytest
from child import output_of
from mixed_adapters import ADAPTERS

pytestmark = pytest.mark.own_process
PROGRAM = Path(__file__).parent / "mixed_libraries.py"


def run_program(driver, *arguments):
    debug = "2" if driver == "host" else "0"
    printed = output_of(PROGRAM, *arguments, ACCELRT_DRIVER=driver, ACCELRT_DEBUG=debug)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.host
def test_steps_on_the_host_device():
    told = run_program("host", "--steps", "1000", "--threads", "4")
    assert told["ok"]
    assert told["made"] + sum(told["handed_over"].values()) == told["steps"] == 1000
    assert told["audits"] == told["requested_too"] == 10
    assert min(told["freed_by_another_thread"], told["bytes_read"], told["bytes_compared"]) > 0
    assert (told["left_bytes"], told["reserved_at_end"]) == (0, 0)


@pytest.mark.gpu
def test_steps_of_the_libraries_that_are_installed():
    told = run_program("cuda", "--steps", "1000")
    assert told["ok"]
    assert told["audits"] == 10
    assert (told["left_bytes"], set(told["libraries"]) <= set(ADAPTERS)) == (0, True)
