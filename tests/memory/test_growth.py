"""What report(since=mark) and compare_snapshots say: what came, what went, and who allocated it."""

import pytest

import accelrt

MIB = 1 << 20
mark, report, report_data = accelrt.memory.mark, accelrt.memory.report, accelrt.memory.report_data


@pytest.fixture(autouse=True)
def stacks():
    accelrt.memory.record_history("state", "state", stacks="python")
    yield
    accelrt.memory.record_history(None)


def leak(size):
    with accelrt.memory.tag("cache"):
        return accelrt.Buffer(size)


def test_nothing_grew_where_nothing_happened():
    kept = accelrt.Buffer(MIB)
    data = report_data(since=mark())
    assert data["live"][0] == data["live"][1] >= kept.nbytes
    assert (data["tags"], data["streams"], data["stacks"], data["blocks"]) == ([], [], [], [])
    assert (data["new_blocks"], data["gone_blocks"]) == (0, 0)


def test_what_came_is_told_by_tag_stream_and_stack():
    stream, gone = accelrt.Stream(), accelrt.Buffer(MIB)
    moment = mark()
    kept = [leak(3 * MIB) for _ in range(2)]
    with accelrt.stream(stream):
        kept.append(accelrt.Buffer(5 * MIB))
    address = gone.ptr
    gone.free()
    data = report_data(since=moment)
    assert data["live"][1] - data["live"][0] == 10 * MIB
    assert data["live_blocks"][1] - data["live_blocks"][0] == 2
    assert data["tags"] == [("cache", 6 * MIB, 2), ("", 4 * MIB, 0)]
    assert data["streams"] == [(0, 5 * MIB, 1), (stream.cuda_stream, 5 * MIB, 1)]
    assert [(size, count) for _, size, count in data["stacks"]] == [(6 * MIB, 2), (5 * MIB, 1), (-MIB, -1)]
    assert "leak" in [frame["name"] for frame in data["stacks"][0][0]]
    assert [block["address"] for block in data["blocks"]] == [
        each.ptr for each in (kept[2], *sorted(kept[:2], key=lambda buffer: buffer.ptr))
    ]
    assert address in moment.holding.blocks
    assert (data["new_blocks"], data["new_bytes"]) == (3, 11 * MIB)
    assert (data["gone_blocks"], data["gone_bytes"]) == (1, MIB)
    text = report(since=moment, top=1)
    assert "+6.00 MiB in +2 blocks: cache" in text
    assert "... and 2 more" in text
    assert "3 blocks of 11.00 MiB came, 1 block of 1.00 MiB went" in text
    assert "5.00 MiB at " in text


def test_memory_that_was_freed_and_allocated_anew_in_a_loop_is_no_growth():
    leak(MIB).free()
    kept = leak(MIB)
    moment = mark()
    for _ in range(5):
        kept.free()
        kept = leak(MIB)
    data = report_data(since=moment)
    assert data["live"][0] == data["live"][1]
    assert [size for _, size, _ in data["tags"]] == []


def test_page_locked_memory_is_compared():
    moment = mark()
    kept = accelrt.PinnedBuffer(MIB)
    before, now = report_data(since=moment)["page_locked"]["live"]
    assert now - before == kept.nbytes
    assert "page-locked, live" in report(since=moment)


def test_the_text_says_that_stacks_are_missing():
    accelrt.memory.record_history(None)
    moment = mark()
    kept = accelrt.Buffer(MIB)
    assert "no stack was recorded" in report(since=moment)
    del kept


def test_a_mark_is_of_one_device():
    if accelrt.device_count() < 2:
        pytest.skip("it takes two devices")
    moment = mark(1)
    kept = accelrt.Buffer(MIB, device=0)
    assert report_data(since=moment)["device"] == 1
    assert report_data(since=moment)["new_blocks"] == 0
    assert repr(moment).startswith("<accelrt.memory.Mark of device 1: ")
    with pytest.raises(ValueError, match="device is 0, and since a mark of device 1"):
        report(0, since=moment)
    with pytest.raises(TypeError, match="since is of type int"):
        report(since=3)
    del kept


def test_two_snapshots_are_compared_device_by_device():
    kept = [leak(MIB)]
    before = accelrt.memory.snapshot()
    kept.append(leak(3 * MIB))
    after = accelrt.memory.snapshot()
    text = accelrt.memory.compare_snapshots(before, after)
    assert text.startswith("Memory of device 0, compared with the earlier snapshot")
    assert "+3.00 MiB in +1 block: cache" in text
    assert "1 block of 3.00 MiB came, 0 blocks of 0 bytes went" in text
    assert "-3.00 MiB in -1 block: cache" in accelrt.memory.compare_snapshots(after, before)
    assert accelrt.memory.compare_snapshots({}, {}) == "neither snapshot has memory of a device\n"
    with pytest.raises(TypeError, match="after is of type int; pass a snapshot"):
        accelrt.memory.compare_snapshots({}, 3)


@pytest.mark.host
def test_torchs_snapshots_are_compared():
    def snapshot(*sizes):
        blocks = [
            {"address": 4096 * at, "size": size, "state": "active_allocated", "frames": []}
            for at, size in enumerate(sizes, 1)
        ]
        return {"segments": [{"device": 3, "total_size": 2 * MIB, "stream": 0, "blocks": blocks}]}

    text = accelrt.memory.compare_snapshots(snapshot(512), snapshot(512, 1024))
    assert "Memory of device 3" in text
    assert "1 block of 1024 bytes came" in text or "1 block of 1.00 KiB came" in text
