"""Each test of tunable operations has files, switches and results of its own."""

import pytest

from accelrt.tunable import switches


@pytest.fixture(autouse=True)
def tunable(fresh_tunable):
    """The folder in which files are written; few calls of each candidate."""
    switches.values["MAX_TUNING_ITERATIONS"] = 3
    return fresh_tunable
