"""A call that the driver refuses while work is under way does not mean that the work is done.

Each row that a case calls answers each code, at its first, its second and every call; what is looked at
after it is in refusals_while_busy.py.
"""

import pytest
from child import in_child
from refusals_while_busy import CASES, CODES, try_case

pytestmark = [pytest.mark.host, pytest.mark.own_process]
FEW = (2, 101, 400, 999)  # of each meaning one


def run(name, codes, **environment):
    out = in_child(try_case, name, codes, **environment)
    assert int(out) > 10 * len(codes)


@pytest.mark.parametrize("name", CASES)
def test_what_is_in_use_is_kept_whatever_is_refused(name):
    run(name, FEW)


@pytest.mark.parametrize("name", ["Free", "FreeAndAllocate"])
def test_plain_segments_in_use_are_kept_whatever_is_refused(name):
    run(name, FEW, ACCELRT_ALLOC_CONF="expandable_segments:False")


@pytest.mark.full_sweep
@pytest.mark.parametrize("conf", ["", "expandable_segments:False"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_in_use_is_kept_whatever_code_is_answered(name, conf):
    run(name, CODES, ACCELRT_ALLOC_CONF=conf)
