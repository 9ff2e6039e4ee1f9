"""What torch.cuda and accelrt both do, by the same expressions on either module: answers before the first use
of a device, and mistakes that both refuse.

Run as a program it prints as JSON what torch.cuda answers, with its warnings, what it raises, and which of
the answers initialised it.
"""

import json
import warnings

# Before the first use of a device: an expression, and what it answers.  A name that ends in "cached" warns.
ANSWERS = (
    ("cuda.is_initialized()", "False"),
    ("cuda._is_in_bad_fork()", "False"),
    ("cuda.memory_allocated()", "0"),
    ("cuda.memory_allocated(1)", "0"),
    ("cuda.memory.max_memory_allocated()", "0"),
    ("cuda.memory_reserved('cuda')", "0"),
    ("cuda.max_memory_reserved()", "0"),
    ("cuda.memory_cached()", "0"),
    ("cuda.max_memory_cached(0)", "0"),
    ("dict(cuda.memory_stats())", "{}"),
    ("cuda.memory_stats_as_nested_dict(0)", "{}"),
    ("dict(cuda.host_memory_stats())", "{}"),
    ("cuda.host_memory_stats_as_nested_dict()", "{}"),
    ("cuda.memory_snapshot()", "[]"),
    ("cuda.memory_snapshot((1, 2))", "[]"),
    ("cuda.empty_cache()", "None"),
    ("cuda.get_allocator_backend()", "'native'"),
    ("cuda.stream(None).__enter__()", "None"),
    ("cuda.set_stream(None)", "None"),
    ("cuda.Event().query()", "True"),
    ("cuda.Event().cuda_event", "0"),
    ("cuda.Event().event_id", "0"),
    ("cuda.Event().device", "None"),
    ("cuda.is_initialized()", "False"),
)

# Expression, what torch raises, what programs look for in its text, whether torch needs a GPU for it.
MISTAKES = (
    ("cuda.device('cuda:x')", "RuntimeError", "Invalid device string", False),
    ("cuda.device('cuda:-3')", "RuntimeError", "Invalid device string", False),
    ("cuda.device('no such')", "RuntimeError", "", False),
    ("cuda.device('cpu')", "ValueError", "", False),
    ("cuda.set_device('cpu')", "ValueError", "", False),
    ("cuda.set_device(None)", "ValueError", "", False),
    ("cuda.caching_allocator_delete(5)", "RuntimeError", "invalid device pointer", False),
    ("cuda.Event().elapsed_time(cuda.Event())", "ValueError", "", False),
    (
        "cuda.Event(enable_timing=True).elapsed_time(cuda.Event(enable_timing=True))",
        *("ValueError", "", False),
    ),
    ("cuda.Event().elapsed_time(3)", "RuntimeError", "", False),
    ("cuda.make_graphed_callables(print, (1,))", "AssertionError", "", False),
    ("cuda.memory.CUDAPluggableAllocator('/none/at/all.so', 'a', 'b')", "OSError", "", False),
    ("cuda.memory._record_memory_history('x')", "RuntimeError", "", False),
    ("cuda.memory._set_allocator_settings('no_such_key:1')", "ValueError", "", False),
    ("cuda.set_device(99)", "RuntimeError", "", True),
    ("cuda.memory_stats(99)", "RuntimeError", "Invalid device", True),
    ("cuda.current_stream(99)", "RuntimeError", "", True),
    ("cuda.get_device_properties(99)", "AssertionError", "Invalid device id", True),
    ("cuda.can_device_access_peer(0, 99)", "AssertionError", "Invalid peer device id", True),
    ("cuda.set_per_process_memory_fraction(2.0)", "ValueError", "", True),
    ("cuda.set_per_process_memory_fraction('all')", "TypeError", "", True),
    ("cuda.set_sync_debug_mode('x')", "RuntimeError", "", True),
    ("cuda.caching_allocator_alloc(1 << 46)", "RuntimeError", "Tried to allocate", True),
    ("cuda.Event(interprocess=True, enable_timing=True).record()", "RuntimeError", "", True),
    ("cuda.Event().ipc_handle()", "RuntimeError", "", True),
    ("cuda.CUDAGraph().replay()", "RuntimeError", "", True),
)


def raised(expression, cuda):
    """The exception that an expression raises; None where it raises none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eval(expression, {"cuda": cuda})
        except Exception as error:
            return error
    return None


def answered(expression, cuda):
    """(repr of what it answers, the names of its warnings' kinds)"""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = repr(eval(expression, {"cuda": cuda}))
    return found, [each.category.__name__ for each in told]


def families(error):
    return [] if error is None else [kind.__name__ for kind in type(error).__mro__]


def main():
    import torch

    answers, initialised_by = {}, None
    for expression, _ in ANSWERS:
        answers[expression] = answered(expression, torch.cuda)
        if initialised_by is None and torch.cuda.is_initialized():
            initialised_by = expression
    there = torch.cuda.is_available()
    if there:
        torch.cuda.init()
    found = {}
    for expression, _, _, gpu in MISTAKES:
        if there or not gpu:
            error = raised(expression, torch.cuda)
            found[expression] = families(error), str(error)
    print(json.dumps([answers, found, initialised_by]))


if __name__ == "__main__":
    main()
