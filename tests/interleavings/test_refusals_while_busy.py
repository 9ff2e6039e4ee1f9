"""A call that the driver refuses while work is under way does not mean that the work is done.

Each row that a case calls answers each code, at its first, its second and every call; what is looked at
after it is in refusals_while_busy.py.
"""

import pytest
from child import in_child
from compiled import compile_libcuda
from refusals_while_busy import CASES, CODES, LOST, try_case, try_ordered

pytestmark = [pytest.mark.host, pytest.mark.own_process]
FEW = (2, 101, 400, 999)  # of each meaning one
OF_LIBRARIES = {name for name in CASES if "Give" in name}


@pytest.fixture
def run(request):
    def run(name, codes, sweep=False, **environment):
        if name in OF_LIBRARIES:
            environment["BOOKS"] = request.getfixturevalue("pluggable")
        assert int(in_child(try_case, name, codes, sweep, **environment)) >= 2 * len(codes)

    return run


@pytest.mark.parametrize("name", CASES)
def test_what_is_in_use_is_kept_whatever_is_refused(run, name):
    run(name, (*FEW, LOST[2]))


@pytest.mark.parametrize("name", ["Free", "FreeAndAllocate"])
def test_plain_segments_in_use_are_kept_whatever_is_refused(run, name):
    run(name, FEW, ACCELRT_ALLOC_CONF="expandable_segments:False")


@pytest.mark.full_sweep
@pytest.mark.parametrize("name", CASES)
def test_what_is_in_use_is_kept_whatever_code_is_answered(run, name):
    run(name, (*CODES, *LOST), True)


@pytest.mark.full_sweep
@pytest.mark.parametrize("name", [name for name in CASES if name != "Sleep"])  # which plain segments refuse
def test_plain_segments_in_use_are_kept_whatever_code_is_answered(run, name):
    run(name, (*CODES, *LOST), True, ACCELRT_ALLOC_CONF="expandable_segments:False")


@pytest.mark.parametrize(
    ("codes", "sweep"),
    [((*FEW, LOST[2]), False), pytest.param((*CODES, *LOST), True, marks=pytest.mark.full_sweep)],
    ids=["few", "all"],
)
def test_the_stream_ordered_pool_hears_of_no_free_before_the_work(tmp_path, codes, sweep):
    stand_in = {"LD_LIBRARY_PATH": compile_libcuda(tmp_path), "ACCELRT_DRIVER": "cuda", "FAKE_POOL": "8"}
    assert int(in_child(try_ordered, codes, sweep, **stand_in)) >= 3 * len(codes)
