"""Processes that are stopped, killed, interrupted and without descriptors while they share memory."""

import shared_memory_storm as storm


def test_a_storm_leaves_nothing_and_blocks_nobody():
    told = storm.Storm(700, seed=5, a_turn=60).run()
    storm.judge(told)
    assert told["found"]["opened"] > 233
    assert all(told["trouble"][kind] for kind in storm.OFTEN), told["trouble"]
