"""Values of every key of the settings string, allowed and refused, for the tests that go through all keys."""

MIB = 1 << 20
BOOLEANS = {"True": True, "False": False}
NOT_BOOLEAN = ["", "true", "1", "Yes", "True]", "True:False"]
NOT_WHOLE = ["", "-1", "+64", "6_4", "64.0", "0x40", "many", "64MiB", "٦٤", "9" * 5000, str((1 << 40) + 1)]
NOT_FRACTION = ["", "half", "-0.5", "1.5", "nan", "inf", "1e999", "0.5.5", "0_5", "½", "[0.5]", "e"]


def sizes(*numbers):
    return {str(number): number * MIB for number in numbers}


# By key: each text that is allowed with the value it becomes.
GOOD = {
    "backend": {"native": "native", "cudaMallocAsync": "cudaMallocAsync"},
    "max_split_size_mb": sizes(21, 30, 1 << 40),
    "roundup_power2_divisions": {
        "0": (0,) * 16,
        "1": (1,) * 16,
        "64": (64,) * 16,
        "[>:4]": (4,) * 16,
        "[1:2]": (2,) + (0,) * 15,
        "[32768:8]": (8,) * 16,
        "[256:1,512:2,>:4]": (1,) * 9 + (2,) + (4,) * 6,
        "[ 4 : 2 , 32 : 8 ]": (2, 2, 2, 0, 0, 8) + (0,) * 10,
    },
    "garbage_collection_threshold": {"0.8": 0.8, "1e-3": 0.001, ".5": 0.5},
    "expandable_segments": BOOLEANS,
    "large_segment_size_mb": sizes(12, 20, 40),
    "max_non_split_rounding_mb": sizes(20, 64),
    "per_process_memory_fraction": {"0.5": 0.5, "1": 1.0, "1.0": 1.0},
    "release_lock_on_cudamalloc": BOOLEANS,
    "pinned_use_cuda_host_register": BOOLEANS,
    "pinned_num_register_threads": {"1": 1, "8": 8, "128": 128},
    "pinned_use_background_threads": BOOLEANS,
    "pinned_max_round_threshold_mb": sizes(0, 1, 1024),
    "pinned_max_cached_size_mb": sizes(0, 1, 1024),
    "graph_capture_record_stream_reuse": BOOLEANS,
    "stitching": BOOLEANS,
    "growth_slack": {"auto": -1.0, "0": 0.0, "0.25": 0.25, "1": 1.0},
    "piece_size_mb": {"auto": 0, **sizes(2, 6, 512)},
    "throw_on_cudamalloc_oom": BOOLEANS,
    "pinned_reserve_segment_size_mb": sizes(0, 2, 64),
    "pinned_free_catch_all": BOOLEANS,
    "expandable_segments_reserve": {
        "auto": -1.0,
        "0.5": 0.5,
        "1": 1.0,
        "40G": 40 << 30,
        "0.5G": 512 * MIB,
        "2.0G": 2 << 30,
        "0.3G": 322122547,
        "1000.5G": 2001 << 29,
    },
}

# By key: texts that are refused.
BAD = {
    "backend": ["", "pluggable", "cudamallocasync", "Native", "hipMallocAsync"],
    "max_split_size_mb": ["0", "20", *NOT_WHOLE],
    "roundup_power2_divisions": [
        "", "3", "128", "-2", "[]", "[256]", "[256:3]", "[3:2]", "[0:2]", "[65536:2]", "[512:2,256:1]",
        "[256:1,256:2]", "[>:4,256:1]", "[>:4,>:4]", "[256:1", "256:1]", "[256:1]x", "[[256:1]]", "[256:1,]",
        "[,256:1]", "[256:1:2]", "[<:1]", "[:1]", "[256:]",
    ],
    "garbage_collection_threshold": ["0", "1", "1e-999", *NOT_FRACTION],
    "expandable_segments": NOT_BOOLEAN,
    "large_segment_size_mb": ["0", "10", "13", *NOT_WHOLE],
    "max_non_split_rounding_mb": ["0", "19", *NOT_WHOLE],
    "per_process_memory_fraction": ["0", "1.01", *NOT_FRACTION],
    "release_lock_on_cudamalloc": NOT_BOOLEAN,
    "pinned_use_cuda_host_register": NOT_BOOLEAN,
    "pinned_num_register_threads": ["0", "3", "256", *NOT_WHOLE],
    "pinned_use_background_threads": NOT_BOOLEAN,
    "pinned_max_round_threshold_mb": NOT_WHOLE,
    "pinned_max_cached_size_mb": NOT_WHOLE,
    "graph_capture_record_stream_reuse": NOT_BOOLEAN,
    "stitching": NOT_BOOLEAN,
    "growth_slack": ["1.01", "-0", "-1.0", "Auto", *NOT_FRACTION],
    "piece_size_mb": ["0", "3", "514", "Auto", *NOT_WHOLE],
    "throw_on_cudamalloc_oom": NOT_BOOLEAN,
    "pinned_reserve_segment_size_mb": NOT_WHOLE,
    "pinned_free_catch_all": NOT_BOOLEAN,
    "expandable_segments_reserve": [
        "0", "1.01", "40", "G", "0G", "-1G", "1e3G", "inf", "infG", "40GB", "40 G", "1.2.3G",
        "9999999999999G", f"{'9' * 400}G", *NOT_FRACTION,
    ],
}  # fmt: skip

# A key that does nothing without another: with what it is tried.
COMPANION = {
    "max_non_split_rounding_mb": "max_split_size_mb:64",
    "pinned_num_register_threads": "pinned_use_cuda_host_register:True",
}


def attributes(settings):
    """Every setting by the name of its attribute."""
    return {name: getattr(settings, name) for name in settings.__slots__ if name not in ("named", "text")}
