"""AllocationProfile and LineProfile."""

import io
import re

import pytest

from accelrt import resources


def test_parts_of_a_program_are_counted_by_name():
    profile = resources.AllocationProfile()
    assert "No data" in profile.report()

    @profile.part()
    def make():
        first, second = resources.DeviceBuffer(10), resources.DeviceBuffer(10)
        del first
        return second

    @profile.part("outer")
    def outer():
        held = resources.DeviceBuffer(10)
        with profile.part("inner"):
            other = resources.DeviceBuffer(10)
            del held
        return other

    make()  # nothing counts yet
    assert profile.entries == {}
    with resources.use_resource(resources.StatisticsAdaptor(resources.DeviceResource())) as statistics:
        kept = [make(), make()]
        outer()
        outer()
        assert statistics.depth == 1
    del kept
    name = next(name for name in profile.entries if name.endswith("make)"))
    assert name.startswith(f"{__file__}:")
    assert profile.entries[name] == resources.ProfileEntry(calls=2, total_bytes=40, peak_bytes=20)
    assert profile.entries["outer"] == resources.ProfileEntry(calls=2, total_bytes=40, peak_bytes=20)
    assert profile.entries["inner"] == resources.ProfileEntry(calls=2, total_bytes=20, peak_bytes=10)
    assert profile.report("calls").splitlines()[1].endswith(name)


def test_a_part_counts_when_it_raises_too():
    statistics = resources.StatisticsAdaptor(resources.DeviceResource())
    profile = resources.AllocationProfile(statistics)
    with pytest.raises(LookupError), profile.part("failing"):
        statistics.buffer(8)
        raise LookupError
    assert profile.entries["failing"] == resources.ProfileEntry(1, 8, 8)
    assert statistics.depth == 1
    with pytest.raises(ValueError, match="needs a name"), profile.part():
        pass
    with pytest.raises(TypeError, match="resource is 7"):
        resources.AllocationProfile(7)


def test_lines_are_a_tree_of_calls():
    lines = resources.LineProfile()
    device = resources.HooksAdaptor(resources.DeviceResource(), after_allocate=lines.acquired)
    inner = resources.PoolResource(device)
    pool = resources.HooksAdaptor(
        inner,
        after_allocate=lambda address, nbytes, stream: lines.used(address, inner.rounded(nbytes), stream),
    )
    held = pool.buffer(1000)
    held2 = pool.buffer(2000)
    del held
    again = pool.buffer(1000)
    file = io.StringIO()
    text = lines.report(file)
    assert file.getvalue() == text
    assert re.match(r"_root \(4\.00 KiB, 3\.00 KiB\)\n", text)
    assert re.search(r"test_profiles\.py:\d+:test_lines_are_a_tree_of_calls \(1\.00 KiB, 0 bytes\)", text)
    assert re.search(r"test_profiles\.py:\d+:test_lines_are_a_tree_of_calls \(2\.00 KiB, 2\.00 KiB\)", text)
    del held2, again


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_tree_has_as_many_levels_as_were_asked_for(depth):
    lines = resources.LineProfile(depth)
    pool = resources.HooksAdaptor(resources.DeviceResource(), after_allocate=lines.used)
    pool.buffer(1000)
    assert len(lines.report().splitlines()) == depth
