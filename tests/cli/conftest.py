"""Where the processes of a test publish."""

import pytest

from accelrt.tools import publish


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder in which this test's processes publish."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return publish.folder()
