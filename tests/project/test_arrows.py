"""Which module may use which: read from the sources' imports and cimports, those inside functions too."""

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
    ("uses.events",),
    ("allocator",),
    ("uses",),
    ("runtime", "profiler"),
    ("devices",),
    ("streams",),
    ("memory",),
    ("arrays",),
    ("kernels",),
    ("graphs",),
    (
        *("gds", "green_contexts", "identity", "publish", "random", "readings", "interface", "interop"),
        *("sanitizer", "sharing", "api", "include", "traces", "tunable"),
    ),
    ("nccl", "comm"),
    ("",),
    ("cli", "viewer", "__main__"),
)
# What other packages may use of these; memory/, the allocator's face, may use all of it.
DOORS = {
    "allocator": {
        "heaps",
        "pool",
        *("private.routes", "private.sleep"),
        "readers",
        "external.backends",
        "pinned.cache",
        *("settings.apply", "settings.settings"),
    },
    "driver": {"guard", "cuda.driver", "host.driver", "registry", "table"},
}
FACES = {"allocator": ("memory",)}
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
    assert circle(uses()) == []


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
        for module, others in uses().items()
        for other in others
        if floor(other) > floor(module)
    ]
    assert sorted(upwards) == []


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


def test_nothing_uses_the_table_that_is_for_tests():
    assert "accelrt.driver.testing" in uses()
    assert [module for module, others in uses().items() if "accelrt.driver.testing" in others] == []


def test_a_use_is_seen_wherever_it_stands():
    found = uses()
    assert "accelrt.core.locks" in found["accelrt.allocator.pinned.cache"]  # a cimport
    assert "accelrt.publish" in found["accelrt"]  # a string that is imported later
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b"}, "b": {"c"}, "d": {"a"}}) == []
    assert floor("accelrt.allocator.pool") < floor("accelrt.streams.stream") < floor("accelrt.memory.caching")
