"""What the scenarios of torch_scenarios.py share: how they are registered, torch itself, and checks."""

import contextlib
import gc
import os
import threading

KERNELS = set()
MIB = 1 << 20
PLUGGED = {"CXX": "/nowhere/c++", "ACCELRT_TORCH_OBJECT": "compiled"}  # install() then plugs accelrt in


class Scenarios(dict):
    """Functions by name; as a decorator it takes one in."""

    def __call__(self, function):
        self[function.__name__] = function
        return function


SCENARIOS = scenario = Scenarios()


def numbers(torch, count, first=0):
    return torch.arange(first, first + count, dtype=torch.float32)


def holds(tensor, values):
    return bool((tensor.cpu() == values).all())


def kernels(function):
    KERNELS.add(function.__name__)
    return scenario(function)


class Torch:
    """torch and accelrt, and what the scenarios share."""

    def __init__(self, on_gpu):
        import torch

        import accelrt
        from accelrt.allocator.external import torch_table
        from accelrt.interop import torch as interop

        self.torch, self.accelrt, self.interop, self.hooks = torch, accelrt, interop, torch_table
        self.on_gpu = on_gpu
        self.is_plugged = os.environ.get("CXX") == PLUGGED["CXX"]
        if on_gpu:
            interop.install()
        else:
            from cudart_standin import Standin

            self.standin = Standin()
            interop.require_cuda = lambda torch: None
            interop.install()

    def tensor(self, values):
        """A tensor on the GPU, filled by a copy."""
        return self.torch.as_tensor(values).to("cuda")

    def numbers(self, count, first=0):
        return numbers(self.torch, count, first)

    def holds(self, tensor, values):
        return holds(tensor, values)

    def is_tidy(self):
        """Raises unless everything went back."""
        gc.collect()
        self.torch.cuda.synchronize()
        uses = [use for use in self.hooks.open_uses() if use[3] != "ended"]
        assert uses == [], uses
        self.torch.cuda.empty_cache()
        self.accelrt.memory.audit()

    def figures(self):
        cuda, ours = self.torch.cuda, self.accelrt
        theirs = (
            cuda.memory_allocated(),
            cuda.memory_reserved(),
            cuda.max_memory_allocated(),
            cuda.max_memory_reserved(),
        )
        assert theirs == (
            ours.memory_allocated(0),
            ours.memory_reserved(0),
            ours.max_memory_allocated(0),
            ours.max_memory_reserved(0),
        )
        return theirs


@contextlib.contextmanager
def refused(kind, *words):
    """Raises unless the body raises that, with the words in its text."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"{missing} not in: {error}") from error
        return
    raise AssertionError(f"no {kind.__name__}")


def within(tensor, segments):
    """Whether a tensor begins in one of the segments of a snapshot."""
    at = tensor.data_ptr()
    return any(each["address"] <= at < each["address"] + each["total_size"] for each in segments)


@contextlib.contextmanager
def held(t, stream):
    """Inside, work on a stream of torch's does not go on."""
    gate = threading.Event()
    t.accelrt.Stream.from_any(stream).launch_host_func(gate.wait)
    try:
        yield
    finally:
        gate.set()
