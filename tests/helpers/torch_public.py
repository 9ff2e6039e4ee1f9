"""Prints, as JSON, the public names of torch.cuda and of its modules, and the parameters of functions."""

import importlib
import inspect
import json
import types

MODULES = (
    "torch.cuda",
    *(f"torch.cuda.{name}" for name in ("memory", "graphs", "random", "streams", "nvtx", "profiler", "comm")),
    *(f"torch.cuda.{name}" for name in ("nccl", "tunable", "gds", "green_contexts")),
)


def is_own(name, value):
    """Whether it is torch.cuda's, and not what its module imports for itself."""
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith("torch.cuda.")
    home = getattr(value, "__module__", None)
    if isinstance(home, str) and callable(value):
        return home == "torch" or home.startswith("torch.cuda")
    return name.isupper() and isinstance(value, dict)


def public_names(module):
    listed = set(getattr(module, "__all__", ()))
    if module.__name__ == "torch.cuda":
        return listed | {
            name for name, value in vars(module).items() if name[0] != "_" and is_own(name, value)
        }
    return listed | {
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    }


def parameters(value):
    """The names of a function's parameters; None where it does not tell, and for classes."""
    if not isinstance(value, types.FunctionType):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, each in inspect.signature(value).parameters.items() if each.kind not in kinds]


def main():
    found = {}
    modules = {name: importlib.import_module(name) for name in MODULES}  # each becomes a name of torch.cuda
    for name, module in modules.items():
        found[name] = {one: parameters(getattr(module, one, None)) for one in sorted(public_names(module))}
    print(json.dumps([modules["torch.cuda"].torch.__version__, found]))


if __name__ == "__main__":
    main()
