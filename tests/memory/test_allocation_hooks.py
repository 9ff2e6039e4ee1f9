"""Functions before and after each allocation and free, and tags within tags."""

import pytest

import accelrt
from accelrt import memory


class Recorder:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


NAMES = ("before_allocate", "after_allocate", "before_free", "after_free")


def hooks_of(recorder):
    return memory.AllocationHooks(**{name: getattr(recorder, name) for name in NAMES})


def test_each_allocation_and_free_is_told_before_and_after():
    recorder = Recorder()
    with hooks_of(recorder):
        buffer = accelrt.Buffer(1000)
        address, stream = buffer.ptr, buffer.stream.handle
        buffer.free()
        raw = accelrt.caching_allocator_alloc(512)
        accelrt.caching_allocator_delete(raw)
    accelrt.Buffer(10)
    assert recorder.calls == [
        ("before_allocate", 0, 1000, stream),
        ("after_allocate", 0, address, 1000, stream),
        ("before_free", 0, address),
        ("after_free", 0, address),
        ("before_allocate", 0, 512, stream),
        ("after_allocate", 0, raw, 512, stream),
        ("before_free", 0, raw),
        ("after_free", 0, raw),
    ]


def test_hooks_nest_and_end_by_themselves():
    outer, inner = Recorder(), Recorder()
    registered = hooks_of(outer).register()
    with hooks_of(inner):
        accelrt.Buffer(8)
    accelrt.Buffer(8)
    registered.remove()
    registered.remove()
    assert "not in force" in repr(registered)
    assert (len(outer.calls), len(inner.calls)) == (8, 4)


def test_what_a_hook_raises_before_an_allocation_is_raised_and_nothing_is_allocated():
    def refuse(device, size, stream):
        raise PermissionError(f"{size} bytes are too many")

    with memory.AllocationHooks(before_allocate=refuse), pytest.raises(PermissionError, match="64 bytes"):
        accelrt.Buffer(64)
    assert accelrt.memory_allocated() == 0


def test_what_a_hook_raises_after_an_allocation_is_raised_and_the_memory_goes_back():
    def refuse(device, address, size, stream):
        raise PermissionError("no")

    with memory.AllocationHooks(after_allocate=refuse), pytest.raises(PermissionError):
        accelrt.Buffer(64)
    assert accelrt.memory_allocated() == 0


def test_what_a_hook_raises_at_a_free_is_reported_and_the_memory_goes(monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_type))

    def fail(device, address):
        raise LookupError("lost")

    buffer = accelrt.Buffer(64)
    with memory.AllocationHooks(before_free=fail, after_free=fail):
        buffer.free()
    assert reported == [LookupError, LookupError]
    assert accelrt.memory_allocated() == 0


def test_what_a_hook_allocates_calls_none():
    sizes = []

    def work(device, address, size, stream):
        sizes.append(size)
        accelrt.Buffer(128).free()

    with memory.AllocationHooks(after_allocate=work):
        accelrt.Buffer(64)
    assert sizes == [64]


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="before_free is 3"):
        memory.AllocationHooks(before_free=3)


def figures():
    stats = accelrt.memory_stats()
    names = [
        key.split(".")[1] for key in stats if key.startswith("tag.") and key.endswith("allocation.current")
    ]
    keys = ("requested_bytes.current", "requested_bytes.peak", "allocation.current")
    return {name: tuple(stats[f"tag.{name}.{key}"] for key in keys) for name in names}


def test_memory_of_a_tag_within_another_counts_for_both():
    with memory.tag("model a"):
        first = accelrt.Buffer(1000)
        with memory.tag("layer a", nested=True):
            second = accelrt.Buffer(3000)
            with memory.tag("weight a", nested=True), memory.tag("layer a", nested=True):
                third = accelrt.Buffer(500)
        with memory.tag("other a"):
            fourth = accelrt.Buffer(100)
    tags = figures()
    assert tags["model a"] == (4500, 4500, 3)
    assert tags["layer a"] == (3500, 3500, 2)
    assert tags["weight a"] == (500, 500, 1)
    assert tags["other a"] == (100, 100, 1)
    blocks = {
        b["requested_size"]: b["tag"] for s in accelrt.memory_snapshot() for b in s["blocks"] if b["tag"]
    }
    assert blocks == {1000: "model a", 3000: "layer a", 500: "weight a", 100: "other a"}
    second.free()
    third.free()
    assert figures()["model a"] == (1000, 4500, 1)
    assert figures()["layer a"] == (0, 3500, 0)
    memory.audit()
    del first, fourth


def test_a_nested_tag_by_itself_is_one_like_others():
    with memory.tag("alone b", nested=True):
        buffer = accelrt.Buffer(700)
    assert figures()["alone b"][0] == 700
    with memory.tag("outside b"):
        another = accelrt.Buffer(20)
    assert figures()["outside b"][0] == 20
    del buffer, another
