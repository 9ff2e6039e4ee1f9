"""KeyboardInterrupt at every place of what draws a snapshot: a file is whole, or not there."""

import json

import pytest
from every_bytecode import Held, interrupt_everywhere, some_places
from made_snapshot import make_snapshot

from accelrt.core import files
from accelrt.tools.viewer import chrome_trace, html_page, plots

pytestmark = pytest.mark.own_process
SNAPSHOT = make_snapshot(20)
MODULES = [files, html_page, chrome_trace, plots]


def sweep(tmp_path, write, is_whole, places):
    path = tmp_path / "drawn"
    write(path)
    assert is_whole(path)
    path.unlink()
    held = Held(tmp_path)

    def check(_):
        if path.exists():
            assert is_whole(path)
            path.unlink()
        held.check()

    return interrupt_everywhere(write, MODULES, lambda: path, check, places)


def test_a_file_that_is_written_beside_its_place(tmp_path):
    (tmp_path / "drawn").write_bytes(b"before")

    def write(path):
        files.write(path, [b"one", b"two"])

    def check(path):
        assert path.read_bytes() in (b"before", b"onetwo")
        held.check()

    held = Held(tmp_path)
    reached, escaped = interrupt_everywhere(write, [files], lambda: tmp_path / "drawn", check)
    assert reached == escaped > 10


@some_places(61)
def test_a_page(tmp_path, places):
    reached, escaped = sweep(
        tmp_path,
        lambda path: html_page.write_page(SNAPSHOT, path, "a snapshot"),
        lambda path: path.read_text().rstrip().endswith("</html>"),
        places,
    )
    assert escaped == reached > 5


@some_places(151)
def test_a_trace(tmp_path, places):
    reached, escaped = sweep(
        tmp_path,
        lambda path: chrome_trace.write_trace(SNAPSHOT, path, 10),
        lambda path: json.loads(path.read_text()),
        places,
    )
    assert escaped == reached > 5


@pytest.mark.parametrize("places", [range(first, 1 << 30, 401) for first in (1, 200)])
def test_a_plot_leaves_no_figure(tmp_path, places):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="Matplotlib is not installed")
    reached, escaped = sweep(
        tmp_path,
        lambda path: (
            plots.write_plot(SNAPSHOT, path.with_suffix(".png"), "timeline", 0)
            or path.with_suffix(".png").rename(path)
        ),
        lambda path: path.read_bytes().endswith(b"IEND\xaeB`\x82") and not pyplot.get_fignums(),
        places,
    )
    assert pyplot.get_fignums() == []
    assert escaped == reached > 3
