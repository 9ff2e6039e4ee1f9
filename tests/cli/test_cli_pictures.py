"""accelrt view, plot and export-trace as commands."""

import json

import pytest
from cli_command import accelrt
from made_snapshot import make_snapshot

pytestmark = pytest.mark.own_process


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    path = tmp_path_factory.mktemp("snapshot") / "taken.json"
    path.write_text(json.dumps(make_snapshot(2000)))
    return path


def test_view_writes_one_page_beside_the_snapshot(snapshot):
    done = accelrt("view", snapshot)
    page = snapshot.with_name("taken.json.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{page} (")
    text = page.read_text()
    assert "<title>taken.json - accelrt memory</title>" in text
    assert "://" not in text


def test_view_prints_what_an_earlier_snapshot_lacks(snapshot, tmp_path):
    later = json.loads(snapshot.read_text())
    segment = later["segments"][0]
    block = {"address": 0xABC000, "size": 4096, "state": "active_allocated", "frames": []}
    segment["blocks"].append(block)
    after = tmp_path / "after.json"
    after.write_text(json.dumps(later))
    done = accelrt("view", after, "--since", snapshot)
    assert done.returncode == 0, done.stderr
    assert "1 block of " in done.stdout
    assert " at 0xabc000" in done.stdout
    assert list(tmp_path.glob("*.html")) == []
    done = accelrt("view", after, "--since", snapshot, "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "<title>after.json since taken.json - accelrt memory</title>" in page
    done = accelrt("view", after, "--since", snapshot, "--open", BROWSER="echo %s")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("after.*.html")] == ["after.json.since.taken.json.html"]
    done = accelrt("view", after, "--since", tmp_path / "none")
    assert done.returncode != 0
    assert "none" in done.stderr


def test_snapshots_of_one_stem_have_pages_of_their_own(snapshot):
    other = snapshot.with_name("taken.txt")
    other.write_bytes(snapshot.read_bytes())
    assert [accelrt("view", path).returncode for path in (snapshot, other)] == [0, 0]
    pages = [snapshot.with_name(f"{path.name}.html").read_text() for path in (snapshot, other)]
    assert ["<title>taken.json - " in page for page in pages] == [True, False]
    assert "<title>taken.txt - " in pages[1]


def test_a_page_of_something_else_is_not_written_over(snapshot, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_bytes(snapshot.read_bytes())
    assert [accelrt("view", mine).returncode for _ in range(2)] == [0, 0]  # an older page of the same
    page = tmp_path / "mine.json.html"
    page.write_text("<title>something else</title>")
    done = accelrt("view", mine)
    assert done.returncode == 2
    assert (
        "mine.json.html is there already, and no page of this snapshot; name another file with -o"
        in done.stderr
    )
    assert page.read_text() == "<title>something else</title>"
    assert accelrt("view", mine, "-o", page).returncode == 0  # who names it means it


def test_open_gives_the_page_to_the_browser(snapshot, tmp_path):
    done = accelrt("view", snapshot, "-o", tmp_path / "made.html", "--open", BROWSER="echo %s")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made.html").as_uri() in done.stdout


def test_export_trace_writes_where_it_is_told(snapshot, tmp_path):
    done = accelrt("export-trace", snapshot, "-o", tmp_path / "made.json", "--largest", 5)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "made.json").read_text())["traceEvents"]
    assert sum(each["ph"] == "b" for each in events) == 5


def test_plot_makes_a_picture(snapshot, tmp_path):
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed; pip install 'accelrt[plot]'")
    done = accelrt("plot", snapshot, "-o", tmp_path / "made.svg", "--kind", "flame")
    assert done.returncode == 0, done.stderr
    assert b"<svg" in (tmp_path / "made.svg").read_bytes()


@pytest.mark.parametrize("command", ["view", "plot", "export-trace"])
def test_what_is_no_snapshot_is_an_error(tmp_path, command):
    foreign = tmp_path / "foreign.json"
    foreign.write_text("[1, 2")
    done = accelrt(command, foreign)
    assert done.returncode == 2
    assert done.stderr.startswith(f"accelrt {command}: ")
    assert "foreign.json" in done.stderr
    folder = accelrt(command, ".")
    assert folder.returncode == 2
    assert "not a regular file: '.'" in folder.stderr
    missing = accelrt(command, tmp_path / "missing.json")
    assert missing.returncode == 2
    assert "No such file" in missing.stderr


def test_the_snapshot_is_not_overwritten(snapshot):
    before = snapshot.read_bytes()
    done = accelrt("export-trace", snapshot, "-o", snapshot)
    assert done.returncode == 2
    assert "is the snapshot itself; name another with -o" in done.stderr
    assert snapshot.read_bytes() == before
