"""Flame graphs that torch's names write: every byte is in a box, and every box in the one below it."""

import re
import xml.etree.ElementTree
from pathlib import Path

import pytest
from child import in_own_process

from accelrt import memory
from accelrt.memory.history import flame_svg

pytestmark = pytest.mark.own_process
HOSTILE = "<script>\x1b[2J&"


def boxes_of(text):
    root = xml.etree.ElementTree.fromstring(text)
    found = []
    for group in root:
        title, box, _ = group
        name, _, size = title.text.rpartition(": ")
        numbers = [float(box.get(key)) for key in ("x", "y", "width")]
        found.append((name, int(size.removesuffix(" bytes").replace(",", "")), *numbers))
    return found


def allocate_here(size):
    return memory.caching_allocator_alloc(size)


@in_own_process
def test_live_memory_and_segments_are_drawn(tmp_path):
    memory.record_history()
    kept = [allocate_here(1 << 20), allocate_here(3 << 20)]
    memory._save_memory_usage(f"{tmp_path}/memory.svg")
    memory._save_segment_usage(f"{tmp_path}/segments.svg", memory._snapshot())
    live = boxes_of(Path(tmp_path, "memory.svg").read_text())
    sizes = {name: size for name, size, *_ in live}
    assert sizes["live memory"] == sizes["stream 0x0"] == 4 << 20
    assert sum(size for name, size, *_ in live if name.startswith("allocate_here (")) == 4 << 20
    segments = boxes_of(Path(tmp_path, "segments.svg").read_text())
    assert segments[0][:2] == ("segments", memory.memory_reserved())
    assert {"active_allocated"} <= {name for name, *_ in segments}
    for address in kept:
        memory.caching_allocator_delete(address)


def test_boxes_stand_above_what_they_are_in_and_names_are_text():
    paths = [(("a", "b"), 30), (("a", HOSTILE), 50), (("c",), 20)]
    text = flame_svg.flame_graph(paths, "all")
    assert "<script" not in text
    assert not re.search("[\\x00-\\x09\\x0b-\\x1f]", text)
    found = {name: rest for name, *rest in boxes_of(text)}
    assert {name: rest[0] for name, rest in found.items()} == {
        **{"all": 100, "a": 80, "b": 30, "c": 20},
        "<script>\\x1b[2J&": 50,
    }
    assert found["a"][1:] == [0.0, flame_svg.HEIGHT, flame_svg.WIDTH * 0.8]
    assert found["b"][2] == 0
    assert found["c"][1:] == [flame_svg.WIDTH * 0.8, flame_svg.HEIGHT, flame_svg.WIDTH * 0.2]


def test_nothing_is_a_picture_too():
    assert boxes_of(flame_svg.flame_graph([], "nothing")) == []
