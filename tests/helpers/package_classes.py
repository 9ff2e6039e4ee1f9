"""Every class that the package defines, found by walking it."""

import importlib
import pkgutil

import accelrt

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement of Python's


def modules():
    """Every module of the package, but for programs that run when they are imported."""
    yield accelrt
    for found in pkgutil.walk_packages(accelrt.__path__, "accelrt."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def classes():
    """Every class that the package defines, by its full name."""
    found = {}
    for module in modules():
        for thing in vars(module).values():
            if isinstance(thing, type) and thing.__module__.startswith("accelrt"):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return dict(sorted(found.items()))


CLASSES = classes()
EXTENSION = {name for name, kind in CLASSES.items() if not kind.__flags__ & HEAP_TYPE}


def derives_from_others(kind):
    """Whether a class has a compiled one of another library as its base, as cuda_core.MemoryResource has."""
    return any(
        not base.__flags__ & HEAP_TYPE and base.__module__.partition(".")[0] not in ("accelrt", "builtins")
        for base in kind.__mro__
    )


def without_init(kind):
    """An object whose __init__ was never called; handles has an argument that it cannot do without."""
    if derives_from_others(kind):  # the __new__ that it inherits is none of its own
        return type(kind.__name__, (kind,), {"__init__": lambda self: None})()
    return kind.__new__(kind, 4) if kind.__name__ == "Handles" else kind.__new__(kind)
