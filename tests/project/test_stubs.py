"""The shipped stubs say what the compiled modules have: every public name, every signature."""

import ast
import functools
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from child import run_python

import accelrt
from accelrt.core import names

pytestmark = pytest.mark.own_process
ROOT = Path(accelrt.__file__).parent

# What a stub cannot say of a compiled module: what Cython adds, buffers, for which Python has a method from
# 3.12 on, and operators that Arrays have only to name what computes: checkers are to refuse them.
ALLOWED = r"""
.*\.__pyx_capi__
.*\.__test__
.*\.?__reduce_cython__
.*\.?__setstate_cython__
.*\.(PinnedBuffer|PoolBlock)\.__buffer__
accelrt\.arrays\.array\.Array\.__(add|sub|mul|floordiv|mod|matmul|and|or|xor|lshift|rshift|truediv|pow)__
"""


@pytest.fixture(scope="module")
def mypy():
    """Runs a module of mypy: the process that ended."""
    if importlib.util.find_spec("mypy") is None:
        pytest.fail("the stubs are checked by mypy, which is not installed: pip install -e '.[test]'")
    return functools.partial(run_python, "-m", cwd=ROOT.parent)


def stubbed():
    """The modules that have a stub, as names."""
    return sorted(
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.pyi")
    )


def test_every_public_compiled_module_has_a_stub():
    public = {
        getattr(accelrt, name).__module__
        for name in accelrt.__all__
        if hasattr(getattr(accelrt, name), "__module__")
    }
    compiled = {name for name in public if importlib.import_module(name).__file__.endswith(".so")}
    assert compiled <= set(stubbed())


def test_stubs_and_modules_agree(mypy, tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED.strip())
    stubs = [name.removesuffix(".__init__") for name in stubbed()]
    packages = {path.parent for path in ROOT.rglob("*/__init__.pyi")}
    # A package with a stub brings all that it holds; the root would bring what is not for users too.
    modules = [
        name
        for name in stubs
        if name != "accelrt"
        and not any(
            name.startswith(f"accelrt.{package.relative_to(ROOT)}.".replace("/", ".")) for package in packages
        )
    ]
    options = ("--ignore-disjoint-bases", "--ignore-unused-allowlist", "--allowlist", str(allowed))
    done = mypy("mypy.stubtest", *options, *modules)
    assert done.returncode == 0, done.stdout + done.stderr


def told_and_shown():
    """(name, docstring of a compiled module, its class or function; docstring in the stub) of all stubs."""
    for path in ROOT.rglob("*.pyi"):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        tree, value = ast.parse(path.read_text()), importlib.import_module(module)
        yield module, value, ast.get_docstring(tree)
        last = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for name, node in last.items():
            if not name.startswith("_"):  # for checkers alone, or another's name
                yield f"{module}.{name}", getattr(value, name), ast.get_docstring(node)


def test_stubs_carry_the_docstrings():
    missing = []
    for name, value, shown in told_and_shown():
        told = re.sub(r"^\w+\([^\n]*(?:\n[^\n]+)*\)\n--\n\n", "", value.__doc__ or "")
        is_made = told.startswith(f"{name.rpartition('.')[2]}(")  # by namedtuple
        if inspect.cleandoc(told) != (shown or "") and not (is_made and shown is None):
            missing.append(name)
    assert missing == []


def test_pyright_knows_the_type_of_every_public_name():
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed; .ci/run installs it")
    done = run_python("-m", "pyright", "--ignoreexternal", "--verifytypes", "accelrt", cwd=ROOT.parent)
    assert "Type completeness score: 100%" in done.stdout, done.stdout[-3000:] + done.stderr


CASES = Path(__file__).with_name("typing_cases.py")
PUBLIC = [f"accelrt.{name}" for name in accelrt.__all__]
PUBLIC += [f"accelrt.{name}" for name in (names.MODULES + " " + names.UNLISTED).split()]
PUBLIC += [f"accelrt.memory.{name}" for name in accelrt.memory.__all__]


@pytest.fixture(scope="module")
def said(mypy, tmp_path_factory):
    """What mypy said of users' code, by file: of a use of every public name, and of what is wrong."""
    uses = tmp_path_factory.mktemp("users") / "uses_all.py"
    text = "import accelrt\n" + "".join(f"reveal_type({name})\n" for name in PUBLIC)
    text += "from accelrt import *\n" + "".join(f"reveal_type({name})\n" for name in accelrt.__all__)
    uses.write_text(text)
    options = ("--strict", "--no-incremental", "--no-error-summary", "--warn-unreachable")
    done = mypy("mypy", *options, "--enable-error-code", "possibly-undefined", str(uses), str(CASES))
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    by_file = {path: [line for line in lines if f"{path.name}:" in line] for path in (uses, CASES)}
    assert sum(map(len, by_file.values())) == len(lines), done.stdout
    return by_file[uses], by_file[CASES]


def test_type_checkers_see_every_public_name(said):
    lines, _ = said
    assert [line for line in lines if ": note: Revealed type is " not in line] == []
    assert len(lines) == len(PUBLIC) + len(accelrt.__all__)
    assert [line for line in lines if '"Any"' in line] == []


def test_the_package_is_marked_as_typed():
    assert (ROOT / "py.typed").exists()


def test_type_checkers_find_what_is_wrong_in_users_code_and_nothing_else(said):
    expected = {
        (number, code)
        for number, line in enumerate(CASES.read_text().splitlines(), 1)
        if not line.startswith('"""')
        for code in re.findall(r"\[[a-z-]+\]", line.partition("# error:")[2])
    }
    text = "\n".join(said[1])
    found = {
        (int(number), code)
        for number, code in re.findall(r"typing_cases\.py:(\d+): error: .*(\[[a-z-]+\])$", text, re.M)
    }
    assert found == expected, text
    assert text.count(": error:") == len(expected), text


def test_every_any_of_a_stub_is_one_that_cannot_be_said_better():
    """What remains: dicts of mixed values, arrays of any dtype, what readings of other vendors' modules are,
    what an elementwise kernel answers, and elements as Python's numbers."""
    found = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.rglob("*.pyi")
        for line in path.read_text().splitlines()
        if re.search(r"\bAny\b", line) and not line.startswith("from typing")
    }
    kinds = (
        r"dict\[str, Any\]|NDArray\[Any\]|_Results|"
        r"(read_memory|target_for|item|tolist)\(.*-> Any"
    )
    assert [line for line in sorted(found) if not re.search(kinds, line)] == []
