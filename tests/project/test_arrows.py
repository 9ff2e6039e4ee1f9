"""Which module may use which: read from the sources' imports and cimports, those inside functions too."""

import ast
import importlib
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import accelrt
from accelrt.core import names

pytestmark = pytest.mark.own_process
ROOT = Path(accelrt.__file__).parent
# Floors from the ground up; a module uses its own floor and those below.  The longest matching name decides.
FLOORS = (
    ("annotations", "errors", "status", "env", "core", "nvtx"),
    ("nvml",),
    ("driver",),
    (
        "visible",
        "devices.discovery",
        "devices.attributes",
        "devices.versions",
    ),  # asked before a driver is open
    ("allocator",),
    ("runtime", "profiler"),
    ("devices",),
    ("streams",),
    ("memory",),
    ("arrays",),
    ("kernels",),
    ("graphs",),
    (
        *(
            "checkpoint",
            "checkpoint_listener",
            "gds",
            "green_contexts",
            "identity",
            "random",
            "readings",
            "resources",
            "interface",
            "interop",
        ),
        *("sanitizer", "sharing", "api", "include", "tunable"),
    ),
    ("nccl", "comm"),
    ("",),
    ("tools", "testing", "pytest_plugin", "__main__", "publish", "traces", "viewer"),
)
# What other packages may use of these; memory/, the allocator's face, may use all of it.
DOORS = {
    "allocator": {
        *("event_ring", "heaps"),
        "pool",
        *("private.routes", "private.sleep"),
        "readers",
        *("external.external_pool", "external.torch_table"),
        *("backing.pages", "pinned.cache"),
        *("settings.apply", "settings.settings"),
    },
    "driver": {
        *("guard", "cuda.driver", "host.driver", "managed", "memory", "node_params", "registry"),
        "textures",
        *("table", "testing"),
    },
}
FACES = {"allocator": ("memory",)}
# Modules that stand for tools under their public names; accelrt imports them when they are asked for.
NAMES_OF_TOOLS = {"accelrt.publish", "accelrt.traces", "accelrt.viewer"}
# What stands above accelrt itself, which imports them when they are asked for.
ABOVE = NAMES_OF_TOOLS | {"accelrt.testing"}
# The plug-in, which pytest imports, makes fixtures of accelrt.testing.
PLUG_IN = "accelrt.pytest_plugin"
# What tools use beside public names, and why.  A module, or a name of a public module.
INSIDE = {
    "accelrt.core.files": "files are whole or are not there, whoever writes them",
    "accelrt.core.instead": "the word that was meant, as errors about names ask",
    "accelrt.core.process": "descriptors with owners; publishing ends with the process",
    "accelrt.core.printable": "texts of others on a terminal, and sizes",
    "accelrt.core.procfs": "which process it is that publishes",
    "accelrt.env": "the table of variables, which info shows; sizes as in them",
    "accelrt.errors": "RecordError, which the readers of traces alone raise",
    "accelrt.runtime.init": "which driver it will be, before one is open, and the advice where there is none",
    "accelrt.kernels.arch": "the version of NVRTC",
    "accelrt.devices.versions": "versions of the driver, and what is too old",
    "accelrt.identity.digits": "a UUID as NVML and the driver both write it",
    "accelrt.readings.amd": "devices that are not NVIDIA's",
    "accelrt.allocator.settings.settings": "tune makes settings of others, without a device",
    "accelrt.tunable.offline": "tune offline prints what it leaves out, which tune_in_file warns of",
    "accelrt.tunable.results_file": "several files are tuned as one",
    "accelrt.memory.explain": "stacks and streams are named as in the text of compare_snapshots",
    "accelrt.memory.growth": "the page has as data what compare_snapshots says as text",
    "accelrt.memory.history.compact_form": "record looks into its file without reading the events",
    "accelrt.memory.history.memory_history": "a recording's events as arrays; dicts are far larger",
    "accelrt.memory.history.snapshot_file": "the same",
    "accelrt.memory.history.snapshot_checks": "a dict's types are checked as load_snapshot checks them",
    "accelrt.memory.history.flame_svg": "the flame graph's boxes, which plots draw too",
}
STATEMENT = re.compile(r"^[ \t]*(?:from[ \t]+(accelrt[\w.]*)[ \t]+)?c?import[ \t]+(\([^)]*\)|[^\n#]+)", re.M)
LATER = re.compile(r"later\(\"(accelrt[\w.]+)\"\)")


def sources():
    """Module -> texts; .pyx and .pxd of one name are one module."""
    found = {}
    for path in sorted(ROOT.rglob("*.p*")):
        if path.suffix in (".py", ".pyx", ".pxd"):
            name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
            found.setdefault(name, []).append(path.read_text())
    return found


def uses():
    """Module -> the modules of the package that it imports or cimports."""
    texts = sources()
    found = {}
    for module, parts in texts.items():
        named = set()
        for text in parts:
            for source, listed in STATEMENT.findall(text):
                items = [item.split(" as ")[0].strip() for item in listed.strip("()\n ").split(",")]
                if source:
                    submodules = {f"{source}.{item}" for item in items} & texts.keys()
                    named |= submodules or {source}
                else:
                    named.update(items)
            named.update(LATER.findall(text))
        found[module] = (named & texts.keys()) - {module}
    public = {*names.NOW, *names.LATER, *names.MODULES.split(), *names.UNLISTED.split()}
    found["accelrt"] |= {f"accelrt.{name}" for name in public}
    return found


def uses_without_names():
    """The same without what accelrt imports when it is asked for what stands above it by its public name."""
    found = uses()
    found["accelrt"] -= ABOVE
    return found


def circle(graph):
    """Modules each of which uses the next, first and last the same; empty where there is no such circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def floor(module):
    name = module.removeprefix("accelrt").removeprefix(".")
    while name not in {known for names in FLOORS for known in names}:
        name = name.rpartition(".")[0]
    return next(number for number, names in enumerate(FLOORS) if name in names)


def test_no_modules_use_each_other():
    assert circle(uses_without_names()) == []


def package_of(module):
    """A module's package, the folder below accelrt; a module with a floor of its own is one by itself."""
    name = module.removeprefix("accelrt").removeprefix(".")
    alone = {known for names in FLOORS for known in names if "." in known}
    return name if name in alone else name.partition(".")[0] if "." in name else ""


def test_no_packages_use_each_other():
    packages = {}
    for module, others in uses().items():
        package = package_of(module)
        packages.setdefault(package, set()).update({package_of(other) for other in others} - {package, ""})
    del packages[""]  # modules beside the packages
    assert len(packages) > 20
    assert circle(packages) == []


def test_modules_use_their_own_floor_and_those_below():
    upwards = [
        f"{module} -> {other}"
        for module, others in uses_without_names().items()
        for other in others
        if floor(other) > floor(module)
    ]
    assert sorted(upwards) == []


def test_nothing_uses_the_tools_but_their_names():
    users = {
        module
        for module, others in uses().items()
        if not f"{module}.".startswith("accelrt.tools.")
        and any(f"{other}.".startswith("accelrt.tools.") for other in others)
    }
    assert users == {"accelrt.__main__", *NAMES_OF_TOOLS}
    assert [module for module, others in uses().items() if others & ABOVE] == ["accelrt", PLUG_IN]


@pytest.mark.parametrize("package", DOORS)
def test_others_use_a_package_by_its_doors(package):
    inside = tuple(f"accelrt.{each}." for each in (package, *FACES.get(package, ())))
    used = {
        (module, other.removeprefix(f"accelrt.{package}."))
        for module, others in uses().items()
        for other in others
        if other.startswith(f"accelrt.{package}.") and not module.startswith(inside)
    }
    assert sorted(use for use in used if use[1] not in DOORS[package]) == []


def test_nothing_uses_the_table_that_is_for_tests_but_what_is_for_them_too():
    users = [module for module, others in uses().items() if "accelrt.driver.testing" in others]
    assert users == ["accelrt.testing.device"]
    of_testing = {
        module
        for module, others in uses().items()
        if any(f"{other}.".startswith("accelrt.testing.") for other in others)
        and not f"{module}.".startswith("accelrt.testing.")
    }
    assert of_testing == {"accelrt", PLUG_IN}


def public_names(module):
    """The names of a module that tools may use; None where it is not public."""
    parts = [*names.MODULES.split(), *names.UNLISTED.split()]
    if module == "accelrt":
        tables = (names.NOW, names.LATER)
        return {"__version__", *parts, *(name for table in tables for name in names.module_of(table))}
    if module == "accelrt.memory":
        return set(names.module_of(names.MEMORY))
    return set(importlib.import_module(module).__all__) if module.removeprefix("accelrt.") in parts else None


def named_in(tree):
    """(module, name) of each name that a source imports of accelrt, or reads of what it imported."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.name: alias.name for alias in node.names if alias.name == "accelrt"}
        elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "accelrt":
            for alias in node.names:
                yield node.module, alias.name
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    known |= {f"accelrt.{name}": f"accelrt.{name}" for name in names.MODULES.split() if "accelrt" in known}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in known:
            yield known[ast.unparse(node.value)], node.attr


def test_tools_use_public_names():
    foreign, inside = set(), set()
    for path in (ROOT / "tools").rglob("*.py"):
        for module, name in named_in(ast.parse(path.read_text())):
            of_tools = f"{module}.{name}.".startswith("accelrt.tools.")
            if of_tools or name.startswith("__") or name in (public_names(module) or ()):
                continue
            listed = {module, f"{module}.{name}"} & INSIDE.keys()
            inside |= listed
            if not listed:
                foreign.add(f"{path.relative_to(ROOT)}: {module}.{name}")
    assert sorted(foreign) == []
    assert inside == INSIDE.keys()


# What one module asks for all: whether memory sleeps, and whether the race detector is on.
ASKED_BY_ACCESS = re.compile(r"\b(sanitizing|has_suspended_pools|is_suspended|refuse_suspended)\b")
OWN_THEM = {"accelrt.runtime.access", "accelrt.allocator.private.sleep"}
# Who has to find out first what it tells the detector, and who looks through a list; they ask access.
PREDICATES = {
    "detects_races": {
        "arrays.copy",
        "arrays.exchange",
        "graphs.graph",
        "graphs.nodes",
        "kernels.kernel",
        "nccl.ranks",
    },
    "any_sleeps": {"arrays.copy", "arrays.exchange", "graphs.graph", "kernels.kernel"},
}


def test_access_alone_asks_whether_memory_sleeps_and_who_watches():
    texts = {module: "\n".join(parts) for module, parts in sources().items()}
    askers = {module for module, text in texts.items() if ASKED_BY_ACCESS.search(text)}
    assert askers == OWN_THEM
    for name, modules in PREDICATES.items():
        askers = {module.removeprefix("accelrt.") for module, text in texts.items() if name in text}
        assert askers == modules | {"runtime.access"}


FUNCTION = re.compile(r"^(?:cdef [^\n=]*?|def )\w+\((.*?)\)[^\n]*:\n(.*?)(?=^\S|\Z)", re.M | re.S)
POINTER = re.compile(r"^ctypedef [\w ]+\(\*(\w+)\)", re.M)
ALIAS = re.compile(r"^cimport accelrt\.([\w.]+) as (\w+)", re.M)
LISTED = re.compile(r"^\| `([\w/]+)`: (`[\w`, ]+`) \|", re.M)


def set_from_above(texts):
    """(module, variable) of what another module sets: functions, modules and the race detector, by a function
    or by an assignment to what was cimported."""
    pointers = "|".join(name for text in texts.values() for name in POINTER.findall(text))
    given_as = re.compile(rf"(\w+): \W?(?:Callable|ModuleType|Detector)|\b(?:{pointers}) (\w+)")
    found = set()
    for module, text in texts.items():
        for parameters, body in FUNCTION.findall(text):
            given = {name or pointer for name, pointer in given_as.findall(parameters)}
            known = set(", ".join(re.findall(r"^    global (.+)", body, re.M)).split(", "))
            for targets, values in re.findall(r"^ {4,8}([\w, ]+) = ([\w, ]+)$", body, re.M):
                pairs = zip(targets.split(", "), values.split(", "), strict=False)
                found |= {(module, name) for name, value in pairs if name in known and value in given}
        for other, alias in ALIAS.findall(text):
            found |= {(f"accelrt.{other}", name) for name in re.findall(rf"^ *{alias}\.(\w+) = ", text, re.M)}
    return found


def test_the_map_lists_what_is_set_from_above():
    texts = {module: "\n".join(parts) for module, parts in sources().items()}
    listed = {
        (f"accelrt.{module.replace('/', '.')}", name)
        for module, names_ in LISTED.findall((ROOT / "DESIGN.md").read_text())
        for name in re.findall(r"\w+", names_)
    }
    assert set_from_above(texts) == listed


def test_a_use_is_seen_wherever_it_stands():
    found = uses()
    assert "accelrt.core.locks" in found["accelrt.allocator.pinned.cache"]  # a cimport
    assert "accelrt.publish" in found["accelrt"]  # a string that is imported later
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b"}, "b": {"c"}, "d": {"a"}}) == []
    assert floor("accelrt.allocator.pool") < floor("accelrt.streams.stream") < floor("accelrt.memory.caching")
