"""Every two public operations on one object at once: the first stops at a call of the driver's.

Which operations there are is read from the public classes (public_operations.py); what is judged is in
two_at_once.py.  The suite tries each pair at one place, the same in every run; the mark full_sweep has them
tried at all:

    pytest -m full_sweep tests/interleavings          or          python tests/helpers/two_at_once.py
"""

import pytest
from public_operations import ARGUMENTS, SUBJECTS, operations, pairs
from two_at_once import sweep

pytestmark = [pytest.mark.host, pytest.mark.own_process]
PARTS = 4


def try_part(tmp_path, part, quick):
    figures, found = sweep(tmp_path / "sweep", quick, part, PARTS)
    print(figures)
    assert not found, "\n".join(found)
    return figures


@pytest.mark.parametrize("part", range(PARTS))
def test_two_operations_at_once_are_as_one_after_the_other(tmp_path, part):
    figures = try_part(tmp_path, part, True)
    assert figures["points"] > 1000


@pytest.mark.full_sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_two_operations_at_once_at_every_place(tmp_path, part):
    figures = try_part(tmp_path, part, False)
    assert figures["points"] > 8_000


def test_every_class_with_objects_to_share_has_operations():
    found = operations()
    assert len(found) > 300
    assert len(pairs(found)) > 25_000
    touched = set().union(*(each.touches for each in found))
    assert touched >= {*SUBJECTS.values(), "address", "allocator", "recorder", "settings"}


def test_an_operation_without_a_recipe_is_named(monkeypatch):
    monkeypatch.delitem(ARGUMENTS, "axes")
    with pytest.raises(LookupError, match=r"Array\.permute needs an argument 'axes': add a recipe"):
        operations()
    monkeypatch.undo()
    monkeypatch.delitem(SUBJECTS, "PinnedBuffer")
    with pytest.raises(LookupError, match=r"accelrt\.PinnedBuffer: say in SUBJECTS how one is made"):
        operations()
