"""The soak and the sweep of sizes: growth is seen, and every figure is there.  No time is ever looked at."""

import json
import subprocess
import sys

import pytest
from test_benchmarks import FOLDER, modules, start

__all__ = ["modules"]  # the fixture
pytestmark = pytest.mark.own_process
LEAKY = """
import os, sys
sys.path.insert(0, {folder!r})
import soak, soak_figures, soak_steps

class Leaky(soak_steps.Walker):
    kept = []

    def {method}(self):
        {leak}
        super().{method}()

soak_steps.Walker = Leaky
soak_steps.WEIGHTS.update(step_share_with_the_dying=0, step_failure=1000)
soak_figures.GIVE_BACK_SECONDS = 1
sys.argv = ["soak.py", "--seconds", "1", "--every", "0.1", "--processes", "1", "--threads", "2", "--json"]
if __name__ == "__main__":
    soak.main()
"""


def sample(modules, **figures):
    soak = modules("soak")
    return soak.Figures(
        **{"memory": 50 << 20, "files": 9, "handles": 9, "threads": 9, "live": 0, "reserved": 0, **figures}
    )


def test_a_short_soak_leaves_nothing_that_grows():
    one_arena = {"MALLOC_ARENA_MAX": "1"}  # of the C library's, each of which settles at its own pace
    done = start("soak", "--seconds", "8", "--every", "0.5", "--json", ACCELRT_DEBUG="2", **one_arena)
    said = json.loads(done.stdout)
    assert said["wrong"] == []
    assert done.returncode == 0, done.stderr
    assert len(said["samples"]) == 2
    assert all(len(samples) >= 4 for samples in said["samples"])
    assert all(each["live"] == each["reserved"] == 0 for samples in said["samples"] for each in samples)
    steps = {
        "allocate",
        "capture",
        "replay",
        "broken_capture",
        "streams",
        "share",
        "pool",
        "page_locked",
        "refused",
    }
    assert steps <= set(said["steps"])


@pytest.mark.parametrize(
    ("method", "leak", "said"),
    [
        ("drop", "[os.dup(0) for _ in range(10)]", "files grew"),
        ("drop", "self.kept.append(bytearray(8 << 20))", "memory grew"),
        ("drop", 'self.kept.append(__import__("accelrt").Buffer(1))', "bytes are live"),
        ("step_failure", "raise ZeroDivisionError", "ZeroDivisionError"),
    ],
)
def test_a_soak_sees_what_leaks(tmp_path, method, leak, said):
    """What leaks does so once a rest, however fast the machine is."""
    program = tmp_path / "leaky.py"
    program.write_text(LEAKY.format(folder=str(FOLDER), method=method, leak=leak))
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    assert said in "\n".join(json.loads(done.stdout)["wrong"])


def test_growth_is_what_stays_above_the_time_after_the_warm_up(modules):
    growth = modules("soak").growth
    rising = [sample(modules, files=9 + 3 * number) for number in range(40)]
    assert growth(rising) == ["files grew from 66 to 99; 20 more are allowed"]
    peaks = [sample(modules, files=9 + 90 * (number % 3 == 0)) for number in range(40)]
    assert growth(peaks) == []
    warm = [sample(modules, memory=number << 20) for number in (1, 30, 50, 50, 51, 50, 52, 51)]
    assert growth(warm) == []
    assert growth(rising[:3]) == []


def test_the_sweep_fills_every_row_of_every_column(modules, tmp_path):
    page = tmp_path / "SCALE.md"
    done = start("scale", "--quick", "--out", str(page))
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    scale = modules("scale")
    assert text.startswith("# How costs grow\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {subject.capitalize()}" for subject in scale.SWEEPS
    ]
    rows = [
        line.split("|")[2:-2] for line in text.splitlines() if line.startswith("| ") and "---" not in line
    ]
    assert len(rows) > 40
    assert all(float(cell.replace(",", "")) >= 0 for cells in rows for cell in cells)


def test_a_column_that_fails_ends_the_sweep(modules):
    scale = modules("scale")
    with pytest.raises(RuntimeError, match="65 devices"):
        scale.measure("devices", 65, 1)


def test_the_page_has_all_that_the_sweep_measures(modules):
    scale = modules("scale")
    text = scale.PAGE.read_text()
    for subject, (_, counts, _) in scale.SWEEPS.items():
        assert f"| {subject} | " + " | ".join(f"{count:,}" for count in counts) + " | last / first |" in text
