"""Each test of tunable operations has files, switches and results of its own."""

import pytest

from accelrt.tunable import operation, results, results_file, switches


@pytest.fixture(autouse=True)
def tunable(tmp_path, monkeypatch):
    """A folder of its own as the current one; nothing is known or registered, as in a fresh process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(switches, "values", dict(switches.values, MAX_TUNING_ITERATIONS=3))
    for module, names in (
        (results, ("_known", "_unwritten", "_validators", "_paths")),
        (operation, ("operations",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, {})
    for module, name in ((results, "_loaded"), (results_file, "_recorded"), (operation, "_tuning")):
        monkeypatch.setattr(module, name, set())
    for name, value in (("_filename", ""), ("_inserts_ordinal", True), ("_writes_itself", True)):
        monkeypatch.setattr(results, name, value)
    return tmp_path
