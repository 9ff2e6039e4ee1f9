"""Mistakes that torch.cuda and accelrt both refuse: the same expression on either module.

Run as a program it prints, for torch.cuda and as JSON, the families of what each raises.
"""

import json
import warnings

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
    ("cuda.Stream(stream_id=0, device_index=99, device_type=1)", "RuntimeError", "", True),
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


def families(error):
    return [] if error is None else [kind.__name__ for kind in type(error).__mro__]


def main():
    import torch

    there = torch.cuda.is_available()
    found = {}
    for expression, _, _, gpu in MISTAKES:
        if there or not gpu:
            error = raised(expression, torch.cuda)
            found[expression] = families(error), str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
