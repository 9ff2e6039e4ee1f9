"""A child of a fork that comes while another thread is in the middle of an operation hangs in none.

The operations are those of public_operations.py; forked_beside.py says what the child does.  The suite has
each operation stopped at one place, the same in every run; the mark full_sweep at all.
"""

import pytest
from forked_beside import sweep

pytestmark = [pytest.mark.host, pytest.mark.own_process]


def test_every_operation_ends_in_a_child_of_a_fork_beside_each(tmp_path):
    tried, found = sweep(tmp_path / "sweep")
    assert not found, "\n".join(found)
    assert tried > 120


@pytest.mark.full_sweep
def test_every_operation_ends_in_a_child_of_a_fork_at_every_place(tmp_path):
    tried, found = sweep(tmp_path / "sweep", quick=False)
    assert not found, "\n".join(found)
    assert tried > 1000
