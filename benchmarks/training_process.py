"""The process of one allocator: trains ResNet-50 with torch and says what it took (words.py).

    python training_process.py COLUMN [--quick]

torch_training.py starts it, with the environment that the allocator needs.
"""

import ctypes
import hashlib
import importlib
import random
import statistics
import sys
import traceback
from pathlib import Path
from time import perf_counter

import peers  # noqa: F401 - its import lets an accelrt that is not installed be found
from words import say

STEPS, QUICK_STEPS = 50, 8
WARM = 5  # first steps that the median leaves out
PLUGGED = "torch on accelrt"


def shapes(count: int) -> list[tuple[int, int]]:
    """Batch and side of each step's images."""
    choice = random.Random(50)
    return [(choice.randint(16, 64), choice.randint(128, 256)) for _ in range(count)]


def plug_in() -> None:
    """Makes accelrt torch's allocator.  CUDA may not have been used yet."""
    import torch

    import accelrt

    path = str(accelrt.memory.library_path())
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "accelrt_torch_alloc", "accelrt_torch_free")
    used_on = getattr(ctypes.CDLL(path), "accelrt_torch_record_stream", None)
    if used_on is not None:
        address = ctypes.cast(used_on, ctypes.c_void_p).value
        allocator.allocator().set_record_stream_fn(address)
    torch.cuda.memory.change_current_allocator(allocator)


def repeatable() -> None:
    """Lets torch choose deterministic kernels only, and the same ones in every process."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(50)


class Trainer:
    """The model, its optimizer and the source of its data."""

    def __init__(self, device: str):
        import torch
        from peers.resnet50 import resnet50

        self.torch, self.device = torch, device
        self.model = resnet50().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        self.data = torch.Generator(device).manual_seed(50)

    def step(self, batch: int, side: int) -> float:
        """Trains on random images.  Answers the loss, and so waits for the device."""
        place = {"device": self.device, "generator": self.data}
        images = self.torch.randn(batch, 3, side, side, **place)
        labels = self.torch.randint(1000, (batch,), **place)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def digest(self) -> str:
        """Of every weight and every running mean, bit for bit."""
        made = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            made.update(tensor.cpu().numpy().tobytes())
        return made.hexdigest()


def train(device: str, count: int) -> dict[str, dict]:
    """All steps.  Answers the cells of what does not depend on the allocator."""
    trainer = Trainer(device)
    losses, times = [], []
    for batch, side in shapes(count):
        start = perf_counter()
        losses.append(trainer.step(batch, side).hex())
        times.append((perf_counter() - start) * 1000)
    return {
        "median": {"value": statistics.median(times[min(WARM, count - 1) :]), "times": times},
        "total": {"value": sum(times) / 1000},
        "losses": {"value": float(count), "losses": losses, "weights": trainer.digest()},
    }


def measure(column: str, count: int) -> dict[str, dict]:
    """The training on one allocator.  Answers all cells."""
    import torch

    if column == PLUGGED:
        plug_in()
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
    repeatable()
    cells = train("cuda", count)
    memory = importlib.import_module("accelrt").memory if column == PLUGGED else torch.cuda.memory
    for key, peak in (("reserved", memory.max_memory_reserved(0)), ("live", memory.max_memory_allocated(0))):
        cells[key] = {"value": peak / 2**30, "bytes": peak}
    return cells


def main(column: str, quick: bool) -> None:
    """The whole program."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        say(absent=f"{type(error).__name__}: {error}")
        return
    say(version=torch.__version__)
    try:
        say(cells=measure(column, QUICK_STEPS if quick else STEPS))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        say(row="losses", error=f"{type(error).__name__}: {error} ({where})")


if __name__ == "__main__":
    main(sys.argv[1], "--quick" in sys.argv[2:])
