"""Where Python has no memory for what a row answers, what the row made is given back."""

import os

import pytest
from child import in_own_process

from accelrt.driver.registry import Rows
from accelrt.driver.rowgen import UNDONE_BY, read_rows

_testcapi = pytest.importorskip("_testcapi")

MIB = 1 << 20
MAKERS = {
    "memory_alloc": (0, MIB),
    "managed_alloc": (0, MIB, 1),
    "async_alloc": (0, 0, MIB),
    "managed_pool_alloc": (0, 0, MIB),
    "host_alloc": (0, MIB),
    "address_reserve": (2 * MIB, 0),
    "address_reserve_at": (2 * MIB, 0, 0),
    "physical_create": (0, 2 * MIB, True),
    "stream_create": (0, 1, 0),
    "event_create": (0, 2),
    "graph_create": (0,),
    "pool_create": (0, MIB, True),
    "pinned_pool_create": (2, 0, MIB, False),
    "managed_pool_create": (0, 2, 0),
}


def held(live_objects):
    return live_objects(), len(os.listdir("/proc/self/fd"))


def give_back(rows, name, arguments, answer):
    row = next(row for row in read_rows() if row.name == name)
    taken = [argument.name for argument in row.arguments if not argument.is_out]
    values = {**dict(zip(taken, arguments, strict=True)), row.arguments[-1].name: answer[1]}
    undo, _, passed = UNDONE_BY[name].removesuffix(")").partition("(")
    assert getattr(rows, undo)(*(values[each] for each in passed.split(", "))) == 0


def refusals(rows, name, arguments, live_objects):
    """How many of a call's allocations of Python's can fail; each is made to, and nothing may be left."""
    row = getattr(rows, name)
    for failing in range(1, 100):
        before = held(live_objects)
        _testcapi.set_nomemory(failing, failing + 1)
        try:
            row_answer = row(*arguments)
        except MemoryError:
            row_answer = None
        finally:
            _testcapi.remove_mem_hooks()
        if row_answer is not None:
            give_back(rows, name, arguments, row_answer)
            return failing - 1
        assert held(live_objects) == before, (name, failing)
    raise AssertionError(f"{name} fails without end")


@pytest.mark.host
@pytest.mark.parametrize("name", MAKERS)
@in_own_process
def test_what_a_row_made_goes_back_where_its_answer_has_no_memory(name):
    from accelrt.driver.host.driver import live_objects

    rows = Rows("host")
    assert rows.open() == 0
    give_back(rows, name, MAKERS[name], getattr(rows, name)(*MAKERS[name]))  # what is made once is there
    assert refusals(rows, name, MAKERS[name], live_objects) > 0


def test_every_row_that_makes_something_says_what_takes_it_back():
    rows = {row.name: {argument.name for argument in row.arguments} for row in read_rows()}
    makers = {
        name
        for name, arguments in rows.items()
        if arguments
        & {"out_handle", "out_file", "out_pool", "out_array", "out_mipmap", "out_texture", "out_exec"}
        or name.endswith(("_alloc", "_create", "_open", "_import", "_reserve", "_clone"))
    }
    others = {
        "conditional_create": "its graph owns it",
        "graph_find_in_clone": "a node that is there",
        "default_pool": "the driver's own",
        "mipmap_level": "its mipmap owns it",
    }
    assert makers - set(UNDONE_BY) - set(others) == set()
    for name, call in UNDONE_BY.items():
        undo = call.partition("(")[0]
        assert undo == "close" or undo in rows, name
