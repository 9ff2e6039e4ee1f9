"""What help(), dir() and inspect find: names, signatures and texts of what is public."""

import ast
import importlib
import inspect
import pydoc
import re
import rlcompleter
import sys
from pathlib import Path

import pytest
from child import run_code

import accelrt
from accelrt.core import names

PACKAGE = Path(accelrt.__file__).parent
OF_INTEROP = ("cuda_core", "cupy", "numba", "rmm", "torch", "torch_memory_saver", "vllm")
MODULES = (
    *("accelrt", "accelrt.annotations", "accelrt.errors", "accelrt.include"),
    *("accelrt.tools.traces", "accelrt.traces"),
    *(f"accelrt.{name}" for name in (names.MODULES + " " + names.UNLISTED).split()),
    *(f"accelrt.interop.{name}" for name in OF_INTEROP),
)


def public_classes():
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", ()):
            thing = getattr(module, each, None)  # None: of what is not installed
            if isinstance(thing, type) and thing.__module__.startswith("accelrt"):
                found.setdefault(thing, f"{name}.{each}")
    return found


CLASSES = public_classes()


def public_names(module):
    """A module's public names: those that it lists, or those of accelrt that it has."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if getattr(module, name, None) is not None]  # of what is installed
    return [
        name
        for name, value in inspect.getmembers(module)
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("accelrt")
    ]


@pytest.mark.parametrize("name", MODULES)
def test_dir_and_tab_have_the_public_names(name):
    module = importlib.import_module(name)
    public = public_names(module)
    assert public or name == "accelrt.interop"
    assert set(public) <= set(dir(module))
    completer = rlcompleter.Completer({"module": module})
    completed = {match.partition("(")[0] for match in completer.attr_matches("module.")}
    assert {f"module.{each}" for each in public if not each.startswith("_")} <= completed


@pytest.mark.parametrize("name", MODULES)
def test_help_shows_the_public_names(name):
    module = importlib.import_module(name)
    text = pydoc.plain(pydoc.render_doc(module))
    shown = set(re.findall(r"^    (?:class |async )?(\w+)(?=\(| = |$| \(package\))", text, re.M))
    shown |= set(re.findall(r"^    (\w+) = ", text, re.M))
    assert set(public_names(module)) - shown == set()


def test_the_packages_modules_are_the_ones_that_are_asked():
    listed = {f"accelrt.{path.stem}" for path in PACKAGE.glob("*.py*") if not path.name.startswith("_")}
    listed |= {f"accelrt.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    own = {name for name in listed if hasattr(importlib.import_module(name), "__all__")}
    assert own <= set(MODULES)


@pytest.mark.parametrize("kind", CLASSES, ids=CLASSES.values())
def test_a_class_tells_its_signature_and_what_it_is(kind):
    assert inspect.signature(kind)
    text = inspect.getdoc(kind)
    assert text
    assert "--" not in text.splitlines()[0]


def stub_parameters():
    """Class -> the names of its __init__'s parameters, as the stubs of compiled modules have them."""
    for path in PACKAGE.rglob("*.pyi"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            inits = [
                each
                for each in getattr(node, "body", ())
                if isinstance(node, ast.ClassDef) and getattr(each, "name", "") == "__init__"
            ]
            if inits:
                yield module, node.name, inits


def test_signatures_of_compiled_classes_are_those_of_the_stubs():
    compared = 0
    for module, name, inits in stub_parameters():
        kind = getattr(importlib.import_module(module), name, None)
        if kind not in CLASSES or not getattr(kind, "__text_signature__", None):
            continue
        told = inspect.signature(kind).parameters.values()
        names = [each.name for each in told if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        stubs = [
            [each.arg for each in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs)][1:]
            for init in inits
        ]
        assert any(set(stub) <= set(names) for stub in stubs), (name, names, stubs)
        assert set(names) <= {each for stub in stubs for each in stub}, (name, names, stubs)
        compared += 1
    assert compared > 12


def test_methods_and_properties_of_python_have_texts():
    missing = [
        f"{name}.{attribute}"
        for kind, name in CLASSES.items()
        for attribute, value in vars(kind).items()
        if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        if not value.__doc__
    ]
    assert missing == []


def test_a_module_for_a_library_that_is_not_there_can_be_looked_at():
    code = """
import inspect, pydoc, sys
sys.modules["cuda.core"] = None
from accelrt.interop import cuda_core
assert getattr(cuda_core, "MemoryResource", None) is None
assert "MemoryResource" in dir(cuda_core)
assert "from_resource" in pydoc.render_doc(cuda_core)
inspect.getmembers(cuda_core)
try:
    cuda_core.MemoryResource
except AttributeError as error:
    print(error)
"""
    told = run_code(code, ACCELRT_DRIVER="host")
    assert told.startswith("accelrt.interop.cuda_core.MemoryResource cannot be made: ")
    assert "pip install cuda-core brings it" in told


def test_help_renders_every_class():
    for kind, name in CLASSES.items():
        assert kind.__name__ in pydoc.plain(pydoc.render_doc(kind)), name
    assert "accelrt" in sys.modules
