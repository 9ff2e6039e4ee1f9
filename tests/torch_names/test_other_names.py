"""Deprecated names, nested figures, and names that begin with an underscore: torch's behaviour."""

import os
import pickle

import pytest
from child import in_fork, in_own_process

import accelrt
from accelrt import memory

MIB = 1 << 20


@pytest.mark.parametrize(
    ("old", "new"), [("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")]
)
def test_a_renamed_figure_warns_and_answers(old, new):
    with accelrt.Buffer(3 * MIB):
        with pytest.warns(FutureWarning, match=f"{old}.*call `accelrt.{new}`") as told:
            found = getattr(accelrt, old)(0)
        assert found == getattr(accelrt, new)(0) >= 3 * MIB
    assert told[0].filename == __file__


@pytest.mark.parametrize("old", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_an_old_reset_warns_and_resets_every_peak(old):
    accelrt.Buffer(3 * MIB).free()
    with pytest.warns(FutureWarning, match="resets every peak") as told:
        getattr(memory, old)(0)
    assert told[0].filename == __file__
    assert accelrt.max_memory_allocated(0) == 0
    assert memory.memory_stat("active.all.peak", 0) == 0


def flat(figures, prefix=""):
    """As torch.cuda.memory_stats makes its keys of the nested dict."""
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_nested_figures_are_the_flat_ones():
    with memory.tag("a.b c"), accelrt.Buffer(1000), accelrt.PinnedBuffer(1000):
        nested = accelrt.memory_stats_as_nested_dict(0)
        assert dict(flat(nested)) == accelrt.memory_stats(0)
        assert nested["requested_bytes"]["all"]["current"] == 1000
        assert nested["tag"]["a.b c"]["allocated_bytes"]["current"] == 1024
        host = accelrt.host_memory_stats_as_nested_dict()
        assert dict(flat(host)) == accelrt.host_memory_stats()
        assert host["active_bytes"]["current"] >= 1000


def test_the_limit_is_read_back():
    assert accelrt.get_per_process_memory_fraction() == 1.0
    accelrt.set_per_process_memory_fraction(0.25, 0)
    try:
        assert accelrt.get_per_process_memory_fraction(0) == pytest.approx(0.25, abs=1e-6)
    finally:
        accelrt.set_per_process_memory_fraction(1.0, 0)
    assert accelrt.memory.get_per_process_memory_fraction(0) == 1.0


@in_own_process(ACCELRT_ALLOC_CONF="per_process_memory_fraction:0.5")
def test_the_settings_limit_is_read_back_before_memory_is_used():
    assert accelrt.get_per_process_memory_fraction(0) == pytest.approx(0.5, abs=1e-6)


def test_what_both_modules_have_is_one_object():
    both = (set(accelrt.__all__) & set(memory.__all__)) - {"sleep"}  # a kernel there, a pool here
    assert {"mem_get_info", "list_gpu_processes", "get_allocator_backend", "CUDAPluggableAllocator"} <= both
    assert all(getattr(accelrt, name) is getattr(memory, name) for name in both)
    assert accelrt.get_allocator_backend() == "native"


def test_torchs_recorder_and_snapshots_by_their_names(tmp_path):
    memory._record_memory_history(max_entries=100, stacks="python")
    try:
        accelrt.Buffer(4096).free()
        found = memory._snapshot()
        memory._dump_snapshot(os.fspath(tmp_path / "now.pickle"))
    finally:
        memory._record_memory_history(None)
    actions = [event["action"] for event in found["device_traces"][accelrt.current_device()]]
    assert "alloc" in actions
    assert "free_completed" in actions
    written = pickle.loads((tmp_path / "now.pickle").read_bytes())
    assert written.keys() >= {"segments", "device_traces"}
    memory.record_history(None, clear_history=True)


@in_own_process
def test_settings_by_torchs_old_name():
    with pytest.warns(FutureWarning) as told:
        memory._set_allocator_settings("garbage_collection_threshold:0.75")
    assert len(told) == 1
    assert memory.allocator_settings()["garbage_collection_threshold"] == 0.75


@in_own_process
def test_seeds_run_before_other_queued_calls_and_the_latest_of_a_kind_is_kept():
    ran = []

    def queue(name, **kind):
        accelrt._lazy_call(lambda: ran.append(name), **kind)

    queue("first")
    queue("seed 1", seed=True)
    queue("all 1", seed_all=True)
    queue("seed 2", seed=True)
    queue("last")
    queue("all 2", seed_all=True)
    accelrt._lazy_init()
    queue("now", seed=True)
    assert ran == ["seed 2", "all 2", "first", "last", "now"]


@in_own_process
def test_a_bad_fork_is_a_child_of_a_process_that_had_initialised():
    assert in_fork(accelrt._is_in_bad_fork) == 0
    accelrt._lazy_init()
    assert in_fork(accelrt._is_in_bad_fork) == 1
    assert not accelrt._is_in_bad_fork()
