"""Settings that several calls make: each keeps what the others set, in either order."""

import itertools

import pytest
from child import in_own_process, run_code

import accelrt

pytestmark = pytest.mark.own_process

MIB = 1 << 20


def limit():
    """Whether a quarter of the device can be had and a half cannot."""
    total = accelrt.mem_get_info()[1]
    accelrt.Buffer(total // 8).free()
    try:
        accelrt.Buffer(total // 2).free()
    except accelrt.OutOfMemoryError:
        return "limited"
    return "unlimited"


# name -> (what sets it, what reads it, what is read then)
SETTERS = {
    "pinned": (
        lambda: accelrt.configure_pinned(pinned_max_cached_size_mb=3, pinned_use_cuda_host_register=True),
        lambda: [
            accelrt.pinned_settings()[key]
            for key in ("pinned_max_cached_size_mb", "pinned_use_cuda_host_register")
        ],
        [3, True],
    ),
    "pinned text": (
        lambda: accelrt.memory.set_allocator_settings("pinned_max_round_threshold_mb:2"),
        lambda: accelrt.pinned_settings()["pinned_max_round_threshold_mb"],
        2,
    ),
    "threshold": (
        lambda: accelrt.memory.set_allocator_settings("garbage_collection_threshold:0.5"),
        lambda: accelrt.memory.allocator_settings()["garbage_collection_threshold"],
        0.5,
    ),
    "fraction": (lambda: accelrt.set_per_process_memory_fraction(0.25), limit, "limited"),
}


@pytest.mark.parametrize("used", [False, True], ids=["", "used"])
@pytest.mark.parametrize("names", list(itertools.permutations(SETTERS, 2)), ids=" ".join)
@in_own_process
def test_two_setters_keep_each_others_values(names, used):
    if used:
        accelrt.Buffer(10).free()
    for name in names:
        SETTERS[name][0]()
    for name in names:
        assert SETTERS[name][1]() == SETTERS[name][2], name
    accelrt.empty_cache()


@in_own_process
def test_the_last_of_two_that_set_one_thing_wins():
    text = "pinned_max_cached_size_mb:8,per_process_memory_fraction:1.0"
    accelrt.memory.set_allocator_settings(text)
    accelrt.configure_pinned(pinned_max_cached_size_mb=4)
    accelrt.set_per_process_memory_fraction(0.25)
    assert (accelrt.pinned_settings()["pinned_max_cached_size_mb"], limit()) == (4, "limited")
    accelrt.memory.set_allocator_settings(text)
    assert (accelrt.pinned_settings()["pinned_max_cached_size_mb"], limit()) == (8, "unlimited")
    accelrt.configure_pinned(pinned_max_cached_size_mb=4, pinned_num_register_threads=4)
    assert accelrt.memory.allocator_settings()["pinned_num_register_threads"] == 4
    accelrt.memory.set_allocator_settings("pinned_max_cached_size_mb:default")
    assert accelrt.pinned_settings()["pinned_max_cached_size_mb"] is None
    assert accelrt.pinned_settings()["pinned_num_register_threads"] == 4


CALLS = {
    "configure_pinned(pinned_max_cached_size_mb=4)": "4 0.5 native",
    "memory.set_allocator_settings('garbage_collection_threshold:0.25')": "9 0.25 native",
    "memory.select_backend('native')": "9 0.5 native",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_before_first_use_wins_over_the_environment(call):
    code = (
        "import accelrt\nfrom accelrt import memory\n"
        f"accelrt.{call}\nprint(accelrt.is_initialized())\naccelrt.Buffer(10)\n"
        "print(accelrt.pinned_settings()['pinned_max_cached_size_mb'],\n"
        "      memory.allocator_settings()['garbage_collection_threshold'], memory.get_allocator_backend())"
    )
    settings = "pinned_max_cached_size_mb:9,garbage_collection_threshold:0.5,backend:native"
    out = run_code(code, ACCELRT_DRIVER="host", ACCELRT_ALLOC_CONF=settings)
    assert out == f"False\n{CALLS[call]}\n"


def test_the_backend_of_the_environment_is_told_before_first_use():
    code = (
        "import accelrt\nprint(accelrt.memory.get_allocator_backend(), accelrt.is_initialized())\n"
        "accelrt.init()\nprint(accelrt.memory.get_allocator_backend())"
    )
    environment = {"ACCELRT_DRIVER": "host", "ACCELRT_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert run_code(code, **environment) == "cudaMallocAsync False\ncudaMallocAsync\n"
    code = (
        "import accelrt\naccelrt.memory.select_backend('native')\n"
        "print(accelrt.memory.get_allocator_backend())\naccelrt.Buffer(10)\n"
        "accelrt.memory.set_allocator_settings('large_segment_size_mb:default')\n"
        "print(accelrt.memory.get_allocator_backend())"
    )
    assert run_code(code, **environment) == "native\nnative\n"
