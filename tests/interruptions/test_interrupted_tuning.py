"""KeyboardInterrupt at every place of tuning: no file, process, mark or memory stays."""

import gc
import subprocess
import tempfile
from types import SimpleNamespace

import pytest
from cli_command import write_trace
from every_bytecode import Held, interrupt_everywhere, some_places

import accelrt
from accelrt.core import files
from accelrt.driver.registry import Rows
from accelrt.tools.cli.commands import tune
from accelrt.tools.traces import npz_archive
from accelrt.tunable import arguments, operation, results, results_file, switches, timing

pytestmark = pytest.mark.host
OPERATIONS = [arguments, operation, results, results_file, switches, timing, files]
ANSWER = '{"driver": "host", "peak_reserved": 9, "ooms": 0, "driver_calls": 1, "ns_per_event": 1.0}'


@some_places(41)
def test_tuning_an_operation(fresh_tunable, places):
    """No events or copies of arguments stay, nor the mark that an operation is being tuned."""
    switches.values["MAX_TUNING_ITERATIONS"] = 1

    def add(array):
        array.fill_(2)

    def work(array):
        chosen = operation.Operation("fill", add)
        chosen.candidate("other", lambda array: array.fill_(2))
        chosen.tune(array)
        results.write_file(str(fresh_tunable / "results.csv"))

    array = accelrt.full(64, 1, "f4")
    work(array)
    gc.collect()
    before = accelrt.memory_allocated()
    held = Held()

    def prepare():
        operation.operations.clear()
        return array

    def check(_):
        assert not operation._tuning
        assert Rows().capture_mode_exchange(0) == (0, 0)
        accelrt.synchronize()
        held.check()
        assert accelrt.memory_allocated() == before

    reached, escaped = interrupt_everywhere(work, OPERATIONS, prepare, check, places)
    assert escaped == reached > 3
    assert (array.numpy() == 1).all()  # tuning leaves the arguments alone


@some_places(41)
def test_the_tune_command_leaves_no_folder(tmp_path, monkeypatch, places):
    """Its trials are processes, which subprocess.run ends; here they answer at once."""
    trace = tmp_path / "trace.npz"
    write_trace(trace, [(1, 0, 4096, 0), (0, 0, 0, 0)])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(
        tune, "subprocess", SimpleNamespace(run=lambda *a, **b: subprocess.CompletedProcess(a, 0, ANSWER, ""))
    )

    def run(_):
        assert tune.run(str(trace), "host", [], keys="expandable_segments", as_json=True) == 0

    run(None)
    held = Held(tmp_path)
    reached, escaped = interrupt_everywhere(run, [tune, npz_archive, files], check=held.check, places=places)
    assert escaped == reached > 0
