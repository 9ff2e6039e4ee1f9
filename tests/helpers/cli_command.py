"""The command line in a process of its own, and traces to give it."""

import os
import sys
from pathlib import Path

import numpy as np
from child import server_for

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "benchmarks" / "traces"
RECORDED = {  # name -> events, peak of live bytes, and torch's ratio of reserved to live
    "gnn": (60_857, 4_344_145_576, 4.489),
    "resnet": (82_417, 9_454_178_448, 1.663),
    "gpt2": (142_583, 12_650_429_560, 1.116),
    "lstm_small": (173_795, 133_157_384, 1.008),
    "vit_serve": (55_648, 1_010_956_336, 3.195),
}


def accelrt(*arguments, **environment):
    """Runs python -m accelrt, on the host device and without audits unless told; None unsets a setting.

    It is a fork of an interpreter that has accelrt, and the libraries that most commands import.
    """
    settings = {"ACCELRT_DRIVER": "host", "ACCELRT_DEBUG": "0", "ACCELRT_HOST_MEMORY": None, **environment}
    variables = {name: value for name, value in (os.environ | settings).items() if value is not None}
    asked = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [str(ROOT), *filter(None, asked + sys.path)]
    variables["PYTHONPATH"] = os.pathsep.join(places)
    words = ["accelrt", *map(str, arguments)]
    code = f"import sys; sys.path[:], sys.argv = {places}, {words}; "
    code += "from accelrt.tools.cli.main import main; sys.exit(main())"
    server = server_for(variables, "argparse, json, numpy, cuda.bindings.driver")
    return server.run(code, variables, 300, ROOT, apart=True)


def write_trace(path, events, **replaced):
    """Writes (op, id, size, stream) rows as a trace, some arrays replaced, or left out where None."""
    rows = np.array(events, dtype=np.int64).reshape(-1, 4)
    columns = dict(zip(("op", "id", "size", "stream"), rows.T, strict=True)) | replaced
    np.savez(path, **{name: column for name, column in columns.items() if column is not None})
    return path
