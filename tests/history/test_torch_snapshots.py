"""Snapshots of torch's own on a GPU, and of torch on accelrt's memory, read by both."""

import json
import os
import pickle
import sys

import pytest
from child import in_child, in_own_process
from cli_command import TRACES, accelrt

from accelrt import memory
from accelrt.memory import load_snapshot
from accelrt.tools.cli.commands.demo import load_trace
from accelrt.tools.cli.commands.replay import replay
from accelrt.tools.traces import load

pytestmark = [pytest.mark.gpu, pytest.mark.own_process]
GPU = {"ACCELRT_DRIVER": "cuda", "ACCELRT_DEBUG": "0"}
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _torch():
    pytest.importorskip("torch")


def open_with_torch(path):
    """What torch's own viewer makes of a file, without an error."""
    from torch.cuda import _memory_viz as viewer

    with open(path, "rb") as file:
        found = pickle.load(file)
    pages = [view(found, format_flamegraph=str) for view in (viewer.segments, viewer.memory)]
    pages += [viewer.segsum(found), viewer.trace(found)]
    pages += [viewer.trace_plot(found), viewer.segment_plot(found)]
    assert all(pages)
    return found


def torch_dumps(path):
    import torch

    torch.cuda.memory._record_memory_history()
    kept = [torch.empty(number * MIB, dtype=torch.uint8, device="cuda") for number in range(1, 9)]
    del kept[2:5]
    torch.cuda.memory._dump_snapshot(path)


def read_both(path):
    assert load_snapshot(path) == open_with_torch(path)
    trace = load(path)
    assert trace.peak_live >= 36 * MIB
    assert len(trace.left) == 5


def test_a_snapshot_of_torchs_is_read_as_torch_reads_it(tmp_path):
    path = str(tmp_path / "torch.pickle")
    in_child(torch_dumps, path, **GPU)
    in_child(read_both, path)
    assert '"ooms": 0' in accelrt("replay", path, "--json").stdout


@in_own_process(**GPU)
def test_torchs_viewer_opens_snapshots_of_torch_on_accelrts_memory(tmp_path):
    import torch

    import accelrt
    import accelrt.interop.torch

    path = f"{tmp_path}/torch.pickle"
    accelrt.interop.torch.install()
    accelrt.memory._record_memory_history()  # torch's own records torch's allocations alone
    torch_dumps(path)
    accelrt.memory.dump_snapshot(path + ".ours.pickle")
    accelrt.memory._record_memory_history(None)
    for each in (path, path + ".ours.pickle"):
        open_with_torch(each)
        accelrt.memory.load_snapshot(each)
    torch.cuda.memory._record_memory_history(None)


@in_own_process(**GPU)
def test_torchs_viewer_opens_a_snapshot_of_the_gpt2_trace(tmp_path):
    path = f"{tmp_path}/gpt2.pickle"
    memory.record_history("all", context="all")
    replay(load_trace())
    memory.dump_snapshot(path)
    found = open_with_torch(path)
    assert len(found["device_traces"][0]) > 200_000


PROGRAM = """
import torch, accelrt.interop.torch
accelrt.interop.torch.install()
layer = torch.nn.Linear(1024, 1024, device="cuda")
for _ in range(20):
    layer(torch.randn(512, 1024, device="cuda")).sum().backward()
torch.cuda.synchronize()
"""


def test_a_program_of_torchs_is_recorded_replayed_and_tuned(tmp_path):
    output, script = tmp_path / "torch.accelrt", tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = accelrt("record", "-o", output, "--stacks", "python", "--", sys.executable, script, **GPU)
    assert done.returncode == 0, done.stderr
    assert os.path.getsize(output) > 100 * 64
    for driver in ("cuda", "host"):
        done = accelrt("replay", output, "--json", ACCELRT_DRIVER=driver)
        assert done.returncode == 0, done.stderr
        assert '"ooms": 0' in done.stdout


def test_tune_keeps_its_promise_on_a_gpu():
    path = TRACES / "gnn.npz"
    done = accelrt("tune", path, "--keys", "stitching,growth_slack", "--json", **GPU)
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout)["runs"][0]["best"]
    again = accelrt("replay", path, "--json", **GPU, ACCELRT_ALLOC_CONF=best["settings"])
    assert json.loads(again.stdout)["peak_reserved"] == pytest.approx(best["peak_reserved"], rel=0.01)
