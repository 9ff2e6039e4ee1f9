"""Tuning later what a program recorded: the files, and accelrt tune offline."""

import os
import sys

import pytest
from child import run_code
from cli_command import accelrt as run

import accelrt
from accelrt import tunable
from accelrt.tunable import operation as registered

UNTUNED = "accelrt_untuned0.csv"


@pytest.fixture
def recorded(tunable):
    """A file of what a program with two operations did not tune."""
    tunable_module = accelrt.tunable
    tunable_module.enable()
    tunable_module.tuning_enable(False)
    tunable_module.record_untuned_enable()
    first = tunable_module.Operation("first", lambda x, n: None)
    for _ in range(3):
        first(accelrt.zeros((2, 3), "float32"), 4)
        first(accelrt.zeros((2, 3), "float32"), n=4)
    tunable_module.Operation("second", lambda x: None)(accelrt.zeros(5, "int64"))
    return tunable


def test_each_line_is_recorded_once(recorded):
    assert (recorded / UNTUNED).read_text().splitlines() == [
        "first,float32[2x3];4",
        "first,float32[2x3];n=4",
        "second,int64[5]",
    ]
    assert os.listdir(recorded) == [UNTUNED]
    assert tunable.get_results() == ()


def test_what_a_file_names_is_tuned(recorded):
    seen = []
    first = tunable.Operation("first", lambda x, n: seen.append((x.shape, x.dtype.name, n)))
    registered.operations.pop("second")
    with pytest.warns(RuntimeWarning, match=r"second,.* is not tuned: .* is registered; there are: first"):
        made = tunable.tune_in_file(UNTUNED)
    assert [result[:3] for result in made] == [
        ("first", "float32[2x3];4", "Default"),
        ("first", "float32[2x3];n=4", "Default"),
    ]
    assert set(seen) == {((2, 3), "float32", 4)}
    assert first.candidates == ("Default",)
    registered.operations.pop("first")
    with pytest.warns(RuntimeWarning, match="there are: none"):
        assert tunable.tune_in_file(UNTUNED) == []
    assert tunable.tune_gemm_in_file(UNTUNED) == []


def test_every_kind_of_argument_is_made_again():
    operation = tunable.Operation("op", lambda *args, **kwargs: None)
    with accelrt.Buffer(64) as buffer:
        params = operation.params_of(
            buffer,
            accelrt.zeros((), "float16"),
            accelrt.zeros((2, 0), "bool"),
            7,
            0.5,
            None,
            False,
            "a",
            k=-3,
        )
    args, kwargs = operation.arguments_for(params)
    assert operation.params_of(*args, **kwargs) == params
    assert args[3:] == (7, 1.0, None, False, "a")
    assert kwargs == {"k": -3}
    for wrong in ("int16[4x3]s", "x", "(1 2)", "float99[3]"):
        with pytest.raises(ValueError, match=r"no arguments can be made of .* Operation\(\.\.\., arguments="):
            operation.arguments_for(wrong)


def test_a_type_whose_package_is_not_installed_is_refused_with_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    operation = tunable.Operation("op", lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match=r"'float99\[3\]' is not known \(.*ml_dtypes"):
        operation.arguments_for("float99[3]")


def test_an_operation_makes_its_own_arguments(tunable):
    operation = accelrt.tunable.Operation(
        "mine", lambda n: None, key=lambda n: f"n_{n}", arguments=lambda params: ((int(params[2:]),), {})
    )
    (tunable / "file.csv").write_text("mine,n_5\nmine,n_6,extra\n\nmine,n_5\n")
    assert [result.params for result in accelrt.tunable.tune_in_file("file.csv")] == ["n_5", "n_6"]
    wrong = accelrt.tunable.Operation(
        "mine", operation.default, key=lambda n: f"n_{n}", arguments=lambda params: ((1,), {})
    )
    (tunable / "file.csv").write_text("mine,n_7\n")
    with pytest.warns(RuntimeWarning, match="the arguments that were made for it are called 'n_1'"):
        assert accelrt.tunable.tune_in_file("file.csv") == []
    assert wrong.name == "mine"
    (tunable / "file.csv").write_text("mine\n")
    (tunable / "bytes.csv").write_bytes(b"mine,\xff")
    with pytest.raises(ValueError, match=r"bytes.csv is no text in UTF-8"):
        accelrt.tunable.tune_in_file("bytes.csv")
    with pytest.raises(ValueError, match=r"file.csv, line 1: 'mine' is no line OPERATION,PARAMETERS"):
        accelrt.tunable.tune_in_file("file.csv")


PROGRAM = """
from accelrt import tunable
from accelrt.tunable import operation as registered
operation = tunable.Operation("doubling", lambda x: x.fill_(1))
operation.candidate("another", lambda x: x.fill_(1))
"""


@pytest.mark.own_process
def test_the_command_tunes_what_a_program_recorded(tunable, monkeypatch):
    (tunable / "mine.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") + os.pathsep + str(tunable))
    settings = {"ENABLED": "1", "TUNING": "0", "RECORD_UNTUNED": "1"}
    run_code(
        "import accelrt, mine\nmine.operation(accelrt.zeros(12))\n",
        ACCELRT_DRIVER="host",
        **{f"ACCELRT_TUNABLE_{name}": value for name, value in settings.items()},
    )
    with open(tunable / UNTUNED, "a") as file:
        file.write("unknown,1\n")
    command = ("tune", "offline", tunable / UNTUNED, "--driver", "host", "-o", tunable / "found.csv")
    done = run(*command, "--import", tunable / "mine.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"1 tuned, 0 known before, 1 left out; results in {tunable / 'found.csv'}" in done.stdout
    assert "doubling  float64[12]" in done.stdout
    assert "unknown,1 is not tuned: no operation of that name is registered" in done.stderr
    assert (tunable / "found.csv").read_text().count("doubling,float64[12],") == 1
    again = run(*command, "--import", "mine")
    assert "0 tuned, 1 known before, 1 left out" in again.stdout
    missing = run(*command, "--import", "missing.py")
    assert missing.returncode == 2
    assert "missing.py is not there; pass a module's name or a file of Python" in missing.stderr
