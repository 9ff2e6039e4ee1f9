"""What the tests of other libraries share."""

import pytest

from accelrt.interop import peers


@pytest.fixture
def on_host_memory(monkeypatch):
    """Lets a library have the host device's memory, of which its own work on a device can use none."""
    monkeypatch.setattr(peers, "prepare_memory", lambda call: None)
