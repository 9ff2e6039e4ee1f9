"""Files of results: torch's format, what is not used of one, and processes that share one."""

import os
import subprocess
import sys

import pytest
from beside import on_threads
from child import in_child, run_code

import accelrt
from accelrt import env, tunable
from accelrt.tunable import results_file
from accelrt.tunable.results_file import Result

FILE = "accelrt_tunable0.csv"


def operation(name="op", *candidates):
    made = tunable.Operation(name, lambda n: None)
    for candidate in candidates:
        made.candidate(candidate, lambda n: None)
    return made


def validators():
    return "".join(f"Validator,{name},{value}\n" for name, value in tunable.get_validators())


def test_a_file_has_torchs_lines(tunable):
    result = operation().tune(3)
    *lines, last = (tunable / FILE).read_text().splitlines()
    assert "\n".join(lines) + "\n" == validators()
    assert lines[0] == f"Validator,VERSION,{accelrt.__version__}"
    assert last.split(",")[:3] == ["op", "3", "Default"]
    assert float(last.split(",")[3]) == pytest.approx(result.time, rel=1e-4)
    assert os.listdir(tunable) == [FILE]


def test_what_a_file_says_is_used_with_and_without_a_time(tunable):
    lines = "op,3,fast,0.5\nop,4,fast\nop,5,Default,,blas\n\nother,1,x,2\n"
    (tunable / FILE).write_text(validators() + lines)
    made = operation("op", "fast")
    accelrt.tunable.enable()
    assert [made.chosen((n,), {}) is made.default for n in (3, 4, 5)] == [False, False, True]
    assert accelrt.tunable.get_results()[:2] == (("op", "3", "fast", 0.5), ("op", "4", "fast", 0.0))
    made.chosen((6,), {})
    assert len((tunable / FILE).read_text().splitlines()) == 4 + 5


def test_a_candidate_that_is_no_more_is_told_and_tuned_anew(tunable):
    (tunable / FILE).write_text(validators() + "op,3,gone,0.5\n")
    accelrt.tunable.enable()
    with pytest.warns(RuntimeWarning, match="op has no candidate 'gone', .* for 3; it has Default"):
        operation()(3)
    assert accelrt.tunable.get_results()[0].candidate == "Default"
    assert "gone" not in (tunable / FILE).read_text()


def test_a_file_of_other_validators_is_not_used_and_is_kept(tunable):
    old = validators().replace(accelrt.__version__, "0.0.9") + "op,3,fast,0.5\n"
    (tunable / FILE).write_text(old)
    made = operation("op", "fast")
    with pytest.warns(RuntimeWarning, match="not used: VERSION is 0.0.9 there and 0.1.0 here"):
        assert not accelrt.tunable.read_file()
    accelrt.tunable.enable()
    with pytest.warns(RuntimeWarning, match="not used"):
        made(3)
    assert (tunable / f"{FILE}.rejected").read_text() == old
    assert (tunable / FILE).read_text().startswith(validators())


def test_results_depend_on_what_users_say_too(tunable):
    accelrt.tunable.register_validator("MYLIB", lambda: "1.2")
    operation().tune(3)
    assert "Validator,MYLIB,1.2\n" in (tunable / FILE).read_text()
    accelrt.tunable.register_validator("MYLIB", lambda: "1.3")
    with pytest.warns(RuntimeWarning, match="MYLIB is 1.2 there and 1.3 here"):
        assert not accelrt.tunable.read_file()
    with pytest.raises(ValueError, match="validator of accelrt's own"):
        accelrt.tunable.register_validator("DEVICE", lambda: "x")
    with pytest.raises(TypeError, match="function is 'x'"):
        accelrt.tunable.register_validator("X", "x")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("op,3", "line 5: 'op,3' is no result"),
        ("op,3,fast,soon", "line 5: 'soon' is no number of milliseconds"),
        ("op,3,fast,-1", "line 5: '-1' is no number"),
        ("op,,fast,1", "is no result"),
        ("a,b,c,1,d,e", "is no result"),
    ],
)
def test_a_malformed_line_is_named(tunable, line, text):
    (tunable / FILE).write_text(validators() + line + "\n")
    with pytest.raises(ValueError, match=text):
        accelrt.tunable.read_file()
    with pytest.warns(RuntimeWarning, match=f"are not read: .*{text}"):
        assert accelrt.tunable.get_results() == ()
    operation().tune(3)
    assert line in (tunable / f"{FILE}.rejected").read_text()


def test_a_file_has_the_name_that_was_chosen(tunable):
    assert accelrt.tunable.get_filename() == FILE
    accelrt.tunable.set_filename("mine.csv")
    assert accelrt.tunable.get_filename() == "mine.csv"
    accelrt.tunable.set_filename("mine.csv", insert_device_ordinal=True)
    assert accelrt.tunable.get_filename() == "mine0.csv"
    accelrt.tunable.set_filename("of_%d_.csv")
    assert accelrt.tunable.get_filename() == "of_0_.csv"
    with pytest.raises(ValueError, match="filename is empty"):
        accelrt.tunable.set_filename("")
    with pytest.raises(TypeError, match="filename is 3"):
        accelrt.tunable.set_filename(3)
    operation().tune(3)
    assert os.listdir(tunable) == ["of_0_.csv"]
    assert accelrt.tunable.write_file("copy.csv")
    assert (tunable / "copy.csv").read_text() == (tunable / "of_0_.csv").read_text()


def test_results_are_written_when_they_are_asked_for(tunable):
    assert not accelrt.tunable.write_file()
    accelrt.tunable.write_file_on_exit(False)
    operation().tune(3)
    assert os.listdir(tunable) == []
    assert accelrt.tunable.write_file()
    assert os.listdir(tunable) == [FILE]
    assert not accelrt.tunable.read_file("missing.csv")


def test_a_file_that_cannot_be_written_is_told_and_results_stay(tunable):
    accelrt.tunable.set_filename("missing/folder.csv")
    with pytest.warns(RuntimeWarning, match="are not written: .*missing/folder.csv"):
        operation().tune(3)
    assert len(accelrt.tunable.get_results()) == 1
    (tunable / "missing").mkdir()
    assert accelrt.tunable.write_file()


def test_threads_that_write_one_file_lose_nothing(tunable):
    def write(writer):
        for number in range(10):
            key = f"op{writer}", str(number)
            results_file.merge("shared.csv", {"V": "1"}, {}, {key: Result(*key, "Default", 1.0)})

    on_threads(write, range(6))
    assert len(results_file.read("shared.csv")[1]) == 60
    assert os.listdir(tunable) == ["shared.csv"]


PROGRAM = """
import sys
from accelrt import tunable
tunable.enable()
tunable.set_max_tuning_iterations(1)
operation = tunable.Operation("op", lambda n: None)
for number in range(6):
    operation(f"of{sys.argv[1]}.{number}")
operation("both")
print(len(tunable.get_results()))
"""


@pytest.mark.own_process
def test_processes_that_tune_at_once_merge_their_results(tunable):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "ACCELRT_DRIVER": "host"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number)], env=environment, stdout=subprocess.PIPE
        )
        for number in range(3)
    ]
    for process in started:
        assert 7 <= int(process.communicate(timeout=100)[0]) <= 19
        assert process.returncode == 0
    _, found = results_file.read(FILE)
    assert len(found) == 19
    assert os.listdir(tunable) == [FILE]


@pytest.mark.own_process
def test_the_environment_decides_over_the_functions(tunable):
    out = run_code(
        "from accelrt import tunable\n"
        "tunable.enable(False); tunable.set_max_tuning_iterations(9); tunable.tuning_enable(False)\n"
        "print(tunable.is_enabled(), tunable.get_max_tuning_iterations(), tunable.tuning_is_enabled())\n"
        "print(tunable.get_rotating_buffer_size(), tunable.get_filename())\n"
        "from accelrt.tunable.switches import get_numerical_check_tolerances as check\nprint(check())",
        ACCELRT_DRIVER="host",
        ACCELRT_TUNABLE_ENABLED="1",
        ACCELRT_TUNABLE_MAX_TUNING_ITERATIONS="5",
        ACCELRT_TUNABLE_ROTATING_BUFFER_SIZE="2",
        ACCELRT_TUNABLE_NUMERICAL_CHECK="1e-3_0.5",
        ACCELRT_TUNABLE_FILENAME="r_%d.csv",
    )
    assert out.splitlines() == ["True 5 False", "2097152 r_0.csv", "Tolerances(atol=0.001, rtol=0.5)"]


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("NUMERICAL_CHECK", "1e-3", "0, 1, or two numbers from 0 on, as in 1e-5_1e-3"),
        ("NUMERICAL_CHECK", "-1_1", "0, 1, or two numbers"),
        ("ROTATING_BUFFER_SIZE", "-2", "no number of MiB from 0 to 1048575, nor -1"),
        ("VERBOSE", "4", "no number from 0 to 3"),
        ("ENABLED", "maybe", "1, true, yes or on"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(monkeypatch, name, text, allowed):
    monkeypatch.setenv(f"ACCELRT_TUNABLE_{name}", text)
    with pytest.raises(ValueError, match=f"^ACCELRT_TUNABLE_{name}={text!r} is .*{allowed}"):
        env.value(f"ACCELRT_TUNABLE_{name}")


def tune_with_torch():
    import torch

    theirs = torch.cuda.tunable
    ours = set(accelrt.tunable.__all__)
    assert {name for name in theirs.__all__ if not name.startswith("mgpu")} <= ours
    theirs.set_filename("torch.csv")
    theirs.enable(True)
    theirs.tuning_enable(True)
    torch.mm(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda"))
    torch.cuda.synchronize()
    print(*[",".join(map(str, result)) for result in theirs.get_results()], sep="\n")


@pytest.mark.gpu
@pytest.mark.own_process
def test_torchs_results_are_read(tunable):
    pytest.importorskip("torch")
    told = in_child(tune_with_torch, ACCELRT_DRIVER="cuda").splitlines()
    lines = [line for line in told if line.startswith("Gemm")]
    told_by_torch = tunable / "told by torch"
    told_by_torch.write_text("\n".join(lines))
    _, found = results_file.read(str(told_by_torch))
    assert len(found) == len(lines)
    for path in tunable.glob("torch*.csv"):  # written by torch at its exit
        validators, results = results_file.read(str(path))
        assert "PT_VERSION" in validators
        assert results.keys() >= found.keys()


def test_a_file_that_another_process_keeps_locked_is_waited_for_until_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    monkeypatch.setenv("ACCELRT_SHARING_TIMEOUT", "0.2")
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    kept = rf"process {holder.pid} kept {path} locked for more than 0\.2 s"
    with pytest.raises(accelrt.PeerTimeoutError, match=kept):
        results_file.append_lines(str(path), ["a line"])
    holder.communicate()
    results_file.append_lines(str(path), ["a line"])
    assert path.read_text() == "a line\n"
