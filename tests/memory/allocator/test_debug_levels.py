"""What runs at ACCELRT_DEBUG 1 and 2 is what runs at 0: the audits look, and change nothing."""

import os
import sys

import pytest
from child import in_child, in_own_process
from compiled import compile_extension

import accelrt
from accelrt.memory.caching import audited_hits

pytestmark = pytest.mark.own_process

MIB = 1 << 20
alloc, delete = accelrt.caching_allocator_alloc, accelrt.caching_allocator_delete


@pytest.mark.parametrize("level", ["1", "2"])
@pytest.mark.parametrize("settings", ["", "expandable_segments:False"], ids=["pages", "plain"])
@pytest.mark.parametrize("audits", [False, True], ids=["", "audited by the user too"])
@in_own_process(ACCELRT_DEBUG="{level}", ACCELRT_ALLOC_CONF="{settings}")
def test_audited_calls_take_the_fast_path(level, settings, audits):
    keep = [alloc(3000 * (1 + index % 7)) for index in range(40)]
    hits = audited_hits()[0]
    assert hits >= 39
    for address in keep[::2]:
        delete(address)
    assert audited_hits()[0] == hits + 20
    before = audited_hits()
    for _ in range(100):
        delete(alloc(700))
        if audits:
            accelrt.memory.audit()
    hits, cached = (after - was for after, was in zip(audited_hits(), before, strict=True))
    assert (hits, cached) == (200, 197)
    for address in keep[1::2]:
        delete(address)


@in_own_process(printing="(0, 0) (0, 0)\n", ACCELRT_DEBUG="0")
def test_nothing_is_counted_without_audits():
    for _ in range(100):
        delete(alloc(700))
    print(audited_hits(), audited_hits(1))


def tell_places():
    stream = accelrt.Stream()
    live = []
    for step in range(600):
        size = (step * 7919 % 61 + 1) * 1000 if step % 5 else (step % 11 + 1) * MIB
        address = alloc(size, 0, stream if step % 3 else None)
        live.append(address)
        if step % 2:
            delete(live.pop(step * 31 % len(live)))
        if step % 50 == 0:
            delete(alloc(1500))
            delete(alloc(1500))
            print(accelrt.memory_allocated(), accelrt.memory_reserved())
    for segment in accelrt.memory_snapshot():
        print(segment["serial"], [(block["size"], block["state"]) for block in segment["blocks"]])
    print(accelrt.memory_stats())
    for address in live:
        delete(address)


@pytest.mark.parametrize("settings", ["", "expandable_segments:False"], ids=["pages", "plain"])
def test_blocks_and_figures_are_the_same_at_every_level(settings):
    told = {in_child(tell_places, ACCELRT_DEBUG=level, ACCELRT_ALLOC_CONF=settings) for level in "012"}
    assert len(told) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("corrupt")
    compile_extension("corrupt", made)
    return str(made)


def damage(folder, function, level, turns):
    sys.path.insert(0, folder)
    import corrupt

    live, freed, _, last = (alloc(5000) for _ in range(4))
    arguments = (live,)
    if turns:
        for _ in range(3):
            turning = alloc(900)
            delete(turning)
        arguments = (turning, live) if function == "turn_another" else (turning,)
    else:
        delete(freed)
    getattr(corrupt, function)(*arguments)
    with pytest.raises(accelrt.CudaError, match="BROKEN"):
        if turns:
            alloc(900)
        else:
            delete(last)
    with pytest.raises(AssertionError) as told:
        accelrt.memory.audit()
    print(told.value)
    sys.stdout.flush()
    os._exit(0)


@pytest.mark.parametrize(
    ("function", "level", "turns", "text"),
    [
        ("forget_last_freed", "2", False, "exactly one free list"),
        ("list_without_a_bit", "2", False, "which free lists are not empty"),
        ("say_that_one_is_listed", "2", False, "which free lists are not empty"),
        ("count_one_more", "2", False, "what the walk counts"),
        ("rise_above_ceiling", "1", False, "above its limit"),
        ("raise_sum_of_ceilings", "1", False, "add up to no more than the peak"),
        ("turn_another", "2", True, "cached block"),
        ("lose_room_to_turn", "1", True, "passes no limit"),
    ],
)
def test_damage_is_found_by_the_audit_of_a_hit(folder, function, level, turns, text):
    assert text in in_child(damage, folder, function, level, turns, ACCELRT_DEBUG=level)
