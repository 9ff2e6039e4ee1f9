"""KeyboardInterrupt at every place where files of results are locked: no descriptor stays, and no lock."""

import pytest
from every_bytecode import Held, interrupt_everywhere

from accelrt.tunable import results_file

pytestmark = pytest.mark.own_process


def hold(path):
    with results_file.locked(path):
        pass


def test_an_interrupted_lock_is_let_go(tmp_path):
    path = str(tmp_path / "results.csv")
    hold(path)
    held = Held(tmp_path)

    def check(_):
        held.check()
        hold(path)  # which another holder would keep waiting

    reached, escaped = interrupt_everywhere(hold, [results_file], prepare=lambda: path, check=check)
    assert escaped == reached > 5
