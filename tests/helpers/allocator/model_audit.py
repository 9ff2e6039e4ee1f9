"""What tests read of the model of the allocator: its blocks, and whether they and the statistics agree."""

import itertools

from model_blocks import FREE, HOLE, LIVE, PENDING, PER_HEAP_KINDS, UNIT
from model_statistics import STATS


class Audited:
    """Snapshots and audits of a model."""

    def snapshot(self):
        """Runs of blocks between holes: [(segment, [Block])], by serial and offset."""
        return [
            (segment, list(run))
            for segment in sorted(self.all_segments(), key=lambda segment: segment.serial)
            for is_hole, run in itertools.groupby(segment.blocks, lambda block: block.state is HOLE)
            if not is_hole
        ]

    def audit(self):
        """Asserts every identity by walking everything."""
        events = [event.block for queue in self.queues.values() for event in queue]
        blocks = [block for segment in self.all_segments() for block in segment.blocks]
        for segment in self.all_segments():
            ends = itertools.accumulate((block.size for block in segment.blocks), initial=0)
            assert [*ends] == [*(block.offset for block in segment.blocks), segment.size]
            assert (FREE, FREE) not in itertools.pairwise(block.state for block in segment.blocks)
        for block in blocks:
            assert block.size >= UNIT
            assert block.size % UNIT == 0
            assert block.events == events.count(block)
            assert (block.state is PENDING) == (block.events > 0)
            assert (block.state in (LIVE, PENDING)) == (block.requested > 0)
            assert (block.state is LIVE) == (self.live.get(block.place) is block)
        assert len(self.live) == sum(block.state is LIVE for block in blocks)
        assert set(events) <= set(blocks)
        free = sum(block.size for block in blocks if block.state is FREE)
        self.audit_statistics(free)

    def audit_statistics(self, free):
        flat = self.statistics.flat
        sums = [sum(values) for values in zip(*(each.stats() for each in self.all_segments()), strict=True)]
        for (stat, kind), total in zip(PER_HEAP_KINDS, sums, strict=bool(sums)):
            assert flat[f"{stat}.{kind}_pool.current"] == total, (stat, kind)
        for stat in STATS:
            assert flat[f"{stat}.all.peak"] >= flat[f"{stat}.all.current"]
        assert flat["reserved_bytes.all.current"] == self.held()
        assert self.held() + flat["sleeping_bytes"] == flat["active_bytes.all.current"] + free
