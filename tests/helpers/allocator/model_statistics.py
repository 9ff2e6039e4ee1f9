"""The statistics of memory_stats, kept by the model of the allocator."""

import itertools

PER_HEAP = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
)
STATS = (*PER_HEAP, "segment", "reserved_bytes")
KINDS = ("small", "large")
PARTS = ("current", "peak", "allocated", "freed")
UNUSED_STATS = ("oversize_allocations", "oversize_segments")
COUNTERS = (
    *("num_alloc_retries", "num_ooms", "num_oom_rejections"),
    *("num_sync_all_streams", "num_device_alloc", "num_device_free"),
)
PAGE_COUNTERS = (
    *("virtual_memory_calls", "stitched_bytes", "reserved_addresses", "sleeping_bytes"),
    *("managed_bytes", "cuda_array_bytes", "driver_pool_bytes"),  # of which the model has none
)


class Statistics:
    """The flat dict of memory_stats, kept as segments change."""

    def __init__(self):
        names = [f"{stat}.{kind}" for stat in STATS for kind in ("all", "small_pool", "large_pool")]
        self.keys = {name: [f"{name}.{part}" for part in PARTS] for name in [*names, *UNUSED_STATS]}
        self.flat = dict.fromkeys([*itertools.chain(*self.keys.values()), *COUNTERS, *PAGE_COUNTERS], 0)

    def change(self, stat, kind, net):
        """Adds net to one statistic of a kind, and to that of both kinds."""
        if net:
            self.add(f"{stat}.all", net)
            self.add(f"{stat}.{kind}_pool", net)

    def add(self, name, net):
        current, peak, allocated, freed = self.keys[name]
        flat = self.flat
        flat[current] += net
        if flat[current] > flat[peak]:
            flat[peak] = flat[current]
        if net > 0:
            flat[allocated] += net
        else:
            flat[freed] -= net

    def count(self, name, by=1):
        self.flat[name] += by

    def shown(self, virtual_memory):
        """As memory_stats has it: of shared segments, the small pool has what small blocks occupy."""
        shown = dict(self.flat)
        if virtual_memory:
            small = {part: shown[f"active_bytes.small_pool.{part}"] for part in PARTS}
            small["current"] = min(small["current"], shown["reserved_bytes.all.current"])
            shown.update({f"reserved_bytes.small_pool.{part}": figure for part, figure in small.items()})
            shown["reserved_bytes.large_pool.current"] -= small["current"]
            shown["reserved_bytes.large_pool.allocated"] += small["freed"]
            shown["reserved_bytes.large_pool.freed"] += small["allocated"]
        return shown

    def reset_peaks(self):
        for current, peak, _, _ in self.keys.values():
            self.flat[peak] = self.flat[current]

    def reset_accumulated(self):
        for _, _, allocated, freed in self.keys.values():
            self.flat[allocated] = self.flat[freed] = 0
        self.flat.update(dict.fromkeys([*COUNTERS, "virtual_memory_calls"], 0))
