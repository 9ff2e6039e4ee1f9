"""Plots: one picture of each kind and format, and what is refused."""

import sys
from xml.etree import ElementTree

import pytest
from made_snapshot import make_snapshot

from accelrt.tools.viewer import plots
from accelrt.tools.viewer.snapshot_columns import Recording

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def snapshot():
    return make_snapshot(5000)


@pytest.fixture
def matplotlib():
    return pytest.importorskip(
        "matplotlib", reason="Matplotlib is not installed; pip install 'accelrt[plot]'"
    )


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("kind", plots.KINDS)
def test_each_kind_is_a_picture(tmp_path, snapshot, kind):
    plots.write_plot(snapshot, tmp_path / "made.png", kind)
    assert (tmp_path / "made.png").read_bytes().startswith(PNG)
    plots.write_plot(snapshot, tmp_path / "made.svg", kind, 0)
    text = "".join(ElementTree.parse(tmp_path / "made.svg").getroot().itertext())
    assert "device 0" in text or "use" in (tmp_path / "made.svg").read_text()


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("kind", plots.KINDS)
@pytest.mark.parametrize("name", ["$x_{$", "</text><script>", "\x00\ud800"])
def test_any_text_and_no_events_are_drawn(tmp_path, kind, name):
    block = {"size": 512, "requested_size": 500, "state": "active_allocated", "tag": name}
    block["frames"] = [{"filename": name, "line": 1, "name": name}]
    segment = {"device": 3, "address": 4096, "total_size": 512, "stream": 0, "blocks": [block]}
    plots.write_plot({"segments": [segment]}, tmp_path / "made.svg", kind)
    assert b"<script" not in (tmp_path / "made.svg").read_bytes()
    plots.write_plot({"segments": []}, tmp_path / "none.png", kind)


def test_the_timeline_adds_up(snapshot):
    made = Recording(snapshot).devices[0]
    every = sum(made.live(made.alloc_size % 3 == part) for part in range(3))
    assert every.tolist() == made.live().tolist()
    events = plots.shown_events(made)
    assert made.live()[events + 1].max() == made.live().max()
    assert len(events) <= plots.POINTS


def test_a_bar_is_cut_where_its_line_ends():
    bars = {}
    plots.put(bars, "red", 7.0, 15.0, 10)
    assert bars == {(0, "red"): [(7.0, 3.0)], (1, "red"): [(0.0, 10)], (2, "red"): [(0.0, 2.0)]}


@pytest.mark.parametrize(
    ("name", "kind", "device", "said"),
    [
        ("made.gif", "timeline", None, r"made\.gif; its name has to end in \.png, \.svg, \.pdf"),
        ("made.png", "pie", None, "kind is 'pie'; it may be timeline, segments, flame"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, snapshot, name, kind, device, said):
    with pytest.raises(ValueError, match=said):
        plots.write_plot(snapshot, tmp_path / name, kind, device)


@pytest.mark.usefixtures("matplotlib")
def test_a_device_that_is_not_there_is_refused(tmp_path, snapshot):
    with pytest.raises(ValueError, match="device 4 is not in the snapshot, which has 0"):
        plots.write_plot(snapshot, tmp_path / "made.png", "timeline", 4)


def test_without_matplotlib_the_extra_is_named(tmp_path, snapshot, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"python -m pip install 'accelrt\[plot\]'"):
        plots.write_plot(snapshot, tmp_path / "made.png")
