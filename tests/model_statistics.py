"""The figures of memory_stats, kept by the model of the allocator."""

import itertools

FIGURES = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
)
NOTHING = (0,) * len(FIGURES)
PARTS = ("current", "peak", "allocated", "freed")
UNUSED_FIGURES = ("oversize_allocations", "oversize_segments")
COUNTERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")


class Statistics:
    """The flat dict of memory_stats, kept as segments change."""

    def __init__(self):
        names = [f"{figure}.{kind}" for figure in FIGURES for kind in ("all", "small_pool", "large_pool")]
        self.keys = {name: [f"{name}.{part}" for part in PARTS] for name in [*names, *UNUSED_FIGURES]}
        self.flat = dict.fromkeys([*itertools.chain(*self.keys.values()), *COUNTERS], 0)

    def change(self, kind, before, after):
        """Counts the net of what became of a segment."""
        for figure, old, new in zip(FIGURES, before, after, strict=True):
            net = new - old
            self.add(f"{figure}.all", net)
            self.add(f"{figure}.{kind}_pool", net)

    def add(self, name, net):
        current, peak, allocated, freed = self.keys[name]
        self.flat[current] += net
        self.flat[peak] = max(self.flat[peak], self.flat[current])
        self.flat[allocated if net > 0 else freed] += abs(net)

    def reset_peaks(self):
        for current, peak, _, _ in self.keys.values():
            self.flat[peak] = self.flat[current]

    def reset_accumulated(self):
        for _, _, allocated, freed in self.keys.values():
            self.flat[allocated] = self.flat[freed] = 0
        self.flat.update(dict.fromkeys(COUNTERS, 0))
