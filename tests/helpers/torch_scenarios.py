"""What torch does on accelrt, one function a scenario, all in one process, which tests/interop/test_torch.py
starts.

    python torch_scenarios.py gpu|standin [NAME ...]

A line of JSON a scenario: its name, and null or what went wrong.  With "standin" torch runs on
cudart_standin, where there are copies and no kernels, so the scenarios that need kernels are left out.
"""

import gc
import json
import sys
import traceback

import torch_graph_scenarios  # noqa: F401
import torch_memory_scenarios  # noqa: F401
from torch_setting import KERNELS, SCENARIOS, Torch, scenario


@scenario
def everything_is_given_back_in_the_end(t):
    t.is_tidy()
    if not t.on_gpu:
        assert t.torch.cuda.memory_allocated() == 0
        assert t.torch.cuda.memory_reserved() == 0
        assert t.hooks.open_uses() == []


def main(kind, *names):
    t = Torch(kind == "gpu")
    left_out = set() if t.on_gpu else KERNELS
    for name, function in SCENARIOS.items():
        if name in left_out or (names and name not in names):
            continue
        try:
            function(t)
            wrong = None
        except BaseException:
            wrong = traceback.format_exc()
        gc.collect()
        print(json.dumps({"name": name, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
