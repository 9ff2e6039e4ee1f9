"""Settings that torch 2.15 has: early refusals, the page-locked reserve, addresses of a segment."""

import json

import pytest
from child import in_own_process
from cli_command import accelrt as command

import accelrt
from accelrt.allocator.settings.settings import parse

MIB = 1 << 20


def stat(name):
    return accelrt.memory_stats(0)[name]


@in_own_process(ACCELRT_ALLOC_CONF="throw_on_cudamalloc_oom:True")
def test_what_cannot_fit_beside_what_is_live_is_refused_at_once():
    calls = []
    accelrt.memory.register_free_memory_callback(lambda *given: calls.append(given) or False)
    total = accelrt.mem_get_info(0)[1]
    accelrt.set_per_process_memory_fraction(64 * MIB / total, 0)
    live, idle = accelrt.Buffer(40 * MIB), accelrt.Buffer(20 * MIB)
    idle.free()
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(30 * MIB)
    assert (stat("num_oom_rejections"), stat("num_ooms")) == (1, 1)
    assert (calls, stat("num_sync_all_streams"), stat("num_alloc_retries")) == ([], 0, 0)
    with accelrt.Buffer(20 * MIB):  # which does fit
        assert stat("num_oom_rejections") == 1
    accelrt.memory.set_allocator_settings("throw_on_cudamalloc_oom:False")
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(30 * MIB)
    assert (stat("num_oom_rejections"), stat("num_ooms"), len(calls)) == (1, 2, 1)
    accelrt.memory.set_allocator_settings("throw_on_cudamalloc_oom:True")
    live.free()
    with accelrt.Buffer(30 * MIB):
        assert stat("num_oom_rejections") == 1
    accelrt.reset_accumulated_memory_stats(0)
    assert stat("num_oom_rejections") == 0


@in_own_process(ACCELRT_ALLOC_CONF="throw_on_cudamalloc_oom:True")
def test_without_a_limit_nothing_is_refused_early():
    with pytest.raises(accelrt.OutOfMemoryError):
        accelrt.Buffer(1 << 50)
    assert (stat("num_oom_rejections"), stat("num_ooms")) == (0, 1)


def host_figures():
    stats = accelrt.host_memory_stats()
    return stats["num_host_alloc"], stats["num_host_free"], stats["allocated_bytes.current"]


@in_own_process(ACCELRT_ALLOC_CONF="pinned_reserve_segment_size_mb:16")
def test_page_locked_memory_comes_from_the_reserve_until_that_is_used_up():
    small, large = accelrt.PinnedBuffer(1000), accelrt.PinnedBuffer(5 * MIB)
    assert accelrt.pinned_settings()["pinned_reserve_segment_size_mb"] == 16
    assert host_figures()[0] == 1
    assert large.ptr == small.ptr + 2 * MIB  # the two are carved of one
    rest = accelrt.PinnedBuffer(8 * MIB)
    assert host_figures()[0] == 1
    more = accelrt.PinnedBuffer(2 * MIB)  # 15 of 16 are used
    assert host_figures()[0] == 2
    address = rest.ptr
    for buffer in (small, large, rest, more):
        buffer.free()
    accelrt.host_empty_cache()
    assert host_figures() == (2, 1, 15 * MIB)
    again = accelrt.PinnedBuffer(8 * MIB)
    assert again.ptr == address
    again.free()


@in_own_process(ACCELRT_ALLOC_CONF="pinned_reserve_segment_size_mb:4,pinned_max_cached_size_mb:1")
def test_what_is_not_cached_leaves_the_reserve_alone():
    large = accelrt.PinnedBuffer(2 * MIB)
    assert host_figures()[:2] == (1, 0)
    large.free()
    assert host_figures()[:2] == (1, 1)
    with accelrt.PinnedBuffer(64):
        assert host_figures()[0] == 2
    with accelrt.PinnedBuffer(MIB):
        assert host_figures()[0] == 2


@in_own_process(ACCELRT_ALLOC_CONF="pinned_reserve_segment_size_mb:8,pinned_use_cuda_host_register:True")
def test_the_reserve_may_be_registered_memory():
    with accelrt.PinnedBuffer(3 * MIB), accelrt.PinnedBuffer(3 * MIB):
        assert host_figures()[0] == 1
    accelrt.host_empty_cache()
    assert host_figures()[1] == 0


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments_reserve:64G,growth_slack:0")
def test_a_reserve_above_the_devices_memory_is_cut():
    total = accelrt.mem_get_info(0)[1]
    with accelrt.Buffer(MIB):
        assert stat("reserved_addresses") in range(total, 9 * total // 8 + 2 * MIB)


@in_own_process(ACCELRT_ALLOC_CONF="expandable_segments_reserve:0.25")
def test_segments_reserve_as_many_addresses_as_they_are_told():
    total = accelrt.mem_get_info(0)[1]
    with accelrt.Buffer(MIB):
        assert stat("reserved_addresses") == total // 4
    accelrt.empty_cache()
    assert stat("reserved_addresses") == 0
    with accelrt.Buffer(total // 2):  # which needs more
        assert stat("reserved_addresses") == total // 2
    accelrt.empty_cache()
    accelrt.memory.set_allocator_settings("expandable_segments_reserve:default")
    with accelrt.Buffer(MIB):
        assert stat("reserved_addresses") == 4 << 30


def test_torchs_line_is_read_as_it_is():
    text = (
        "expandable_segments:True,expandable_segments_reserve:0.5,throw_on_cudamalloc_oom:True,"
        "per_process_memory_fraction:0.9,pinned_reserve_segment_size_mb:64,pinned_free_catch_all:True"
    )
    settings = parse(text)
    assert (settings.expandable_segments_reserve, settings.pinned_reserve_segment_size) == (0.5, 64 * MIB)
    assert settings.throw_on_cudamalloc_oom
    assert settings.pinned_free_catch_all


@pytest.mark.own_process
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_doctor_tells_of_torchs_variable_which_is_not_read(name):
    def told(**environment):
        done = command("doctor", "--json", ACCELRT_DRIVER="host", **environment)
        checks = json.loads(done.stdout)["checks"]
        return next((each for each in checks if each["name"] == "settings"), None)

    found = told(**{name: "expandable_segments:True"})
    assert (found["state"], found["advice"]) == ("note", f'ACCELRT_ALLOC_CONF="${name}" sets the same here')
    assert "'hip' is not a key" in told(**{name: "hip:1"})["text"].replace("'hip', given '1',", "'hip'")
    assert told(**{name: "expandable_segments:True"}, ACCELRT_ALLOC_CONF="stitching:True") is None
