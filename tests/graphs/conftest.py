"""Which drivers make graphs by hand."""

import pytest

import accelrt


@pytest.fixture
def by_hand():
    """Skips a test where the driver has no definitions of graphs."""
    try:
        accelrt.GraphDefinition()
    except accelrt.NotSupportedError:
        pytest.skip("the driver makes no graphs by hand")
