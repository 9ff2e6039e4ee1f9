"""docs/torch_names.md says what is true: of the torch that is installed, and of accelrt."""

import importlib
import importlib.util
import inspect
import json
import runpy
import tomllib
from pathlib import Path

import pytest
import torch_public
from child import output_of

import accelrt

pytestmark = pytest.mark.own_process
DOCS = Path(__file__).parents[2] / "docs"
TABLE = runpy.run_path(str(DOCS / "torch_names.py"))
DATA = tomllib.loads((DOCS / "torch_names.toml").read_text())
ROWS = TABLE["rows"](DATA)
PENDING = tuple(DATA["pending"])


def found(path):
    """What a dotted path names, a module or a name of one; None where there is none."""
    head, _, name = path.rpartition(".")
    if not head:
        return importlib.import_module(path)
    owner = found(head)
    if owner is not None and hasattr(owner, name):
        return getattr(owner, name)
    return importlib.import_module(path) if importlib.util.find_spec(path) is not None else None


def is_pending(path):
    return any(path == name or path.startswith(f"{name}.") for name in PENDING)


def is_there(path):
    try:
        return found(path) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def torchs():
    """Module -> name -> parameters, of the torch that is installed: the one that the table is of."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    version, found = json.loads(output_of(torch_public.__file__).splitlines()[-1])
    if not version.startswith(f"{DATA['torch']}."):
        pytest.skip(f"torch {version} is installed; the table is of {DATA['torch']}")
    return found


def test_the_page_is_made_of_the_data():
    assert (DOCS / "torch_names.md").read_text() == TABLE["page"](ROWS), "python docs/torch_names.py --write"


def test_no_name_stands_twice():
    names = [(row.module, row.name) for row in ROWS]
    assert len(names) == len(set(names))
    assert {row.module for row in ROWS} == set(torch_public.MODULES)


def test_what_the_table_names_is_there():
    missing = [row.here for row in ROWS if row.here and not is_there(row.here)]
    assert [path for path in missing if not is_pending(path)] == []


def test_what_is_left_out_is_not_there_and_says_why():
    left = [row for row in ROWS if row.kind == "left out"]
    assert [row.name for row in left if hasattr(accelrt, row.name)] == []
    assert [row.name for row in ROWS if (row.kind != "same") != bool(row.note)] == []


def test_every_public_name_of_torchs_is_in_the_table_and_no_other(torchs):
    listed = {module: {row.name for row in ROWS if row.module == module} for module in torchs}
    assert {module: set(names) for module, names in torchs.items()} == listed


def test_what_is_the_same_takes_torchs_arguments(torchs):
    """A function's parameters begin with torch's, in torch's order."""
    wrong = []
    for row in ROWS:
        wanted = torchs[row.module][row.name]
        if row.kind != "same" or wanted is None or not is_there(row.here):
            continue
        try:
            given = list(inspect.signature(found(row.here)).parameters)
        except ValueError:  # a compiled class does not tell
            continue
        if given[: len(wanted)] != wanted:
            wrong.append((row.here, wanted, given))
    assert wrong == []


def test_the_script_prints_the_table():
    assert output_of(DOCS / "torch_names.py") == (DOCS / "torch_names.md").read_text()
