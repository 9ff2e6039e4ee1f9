"""The process of one allocator and one model: trains it with torch by turns (turns.py), and says what it took
(words.py).

    python training_process.py COLUMN resnet|gpt STEPS [STACKS]

STACKS has memory recorded, with stacks of that kind ("python", "all").  torch_training.py starts it, with the
environment that the allocator needs.
"""

import hashlib
import importlib
import random
import statistics
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import peers  # noqa: F401 - its import lets an accelrt that is not installed be found
import turns
from words import say

WARM = 10  # first steps that the median leaves out
SLICE = 5  # steps in a turn
PLUGGED = "torch on accelrt"
MODELS = ("resnet", "gpt")
VOCABULARY = 16384
HISTORY = 100_000  # events that are kept


def image_shapes(count: int) -> list[tuple[int, int]]:
    """Batch and side of each step's images."""
    choice = random.Random(50)
    return [(choice.randrange(16, 49, 4), choice.randrange(128, 225, 16)) for _ in range(count)]


def token_shapes(count: int) -> list[tuple[int, int]]:
    """Batch and length of each step's sentences."""
    choice = random.Random(12)
    return [(choice.randint(2, 8), choice.randrange(128, 897, 32)) for _ in range(count)]


def repeatable() -> None:
    """Lets torch choose deterministic kernels only, and the same ones in every process."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(50)


class Batches:
    """A data set of which each item is a step's batch: the item's number is the seed."""

    def __init__(self, model: str, shapes: list[tuple[int, int]]):
        self.model, self.shapes = model, shapes

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> tuple:
        import numpy as np
        import torch

        batch, size = self.shapes[index]
        numbers = np.random.default_rng(index)
        if self.model == "gpt":
            tokens = torch.from_numpy(numbers.integers(VOCABULARY, size=(batch, size + 1)))
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        pixels = np.frombuffer(numbers.bytes(batch * 3 * size * size), np.uint8)
        labels = torch.from_numpy(numbers.integers(1000, size=batch))
        return torch.from_numpy(pixels.copy()).view(batch, 3, size, size), labels


class ResNet:
    """ResNet-50 in float32, by SGD with momentum."""

    def __init__(self, device: str):
        import torch
        from peers.resnet50 import resnet50

        self.torch, self.model = torch, resnet50().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step(self, pixels, labels) -> object:
        """Trains on a batch; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        images = pixels.float().div_(127.5).sub_(1)
        loss = self.torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss


class Gpt:
    """A 12-layer GPT under autocast to bfloat16, by AdamW; clipping and the optimizer's step are a graph."""

    EAGER = 3  # steps before the capture, which make the gradients and the optimizer's state

    def __init__(self, device: str, **sizes: int):
        import torch
        from peers.gpt import GPT

        self.torch, self.device = torch, device
        self.model = GPT(vocabulary=VOCABULARY, **sizes).to(device)
        on_gpu = device == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True, capturable=on_gpu)
        self.taken, self.graph = 0, None

    def update(self) -> None:
        """Clips the gradients, applies them and sets them to 0, all in memory that stays."""
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def captured(self) -> None:
        """Captures update, and replays it: a capture does no work."""
        if self.graph is None:
            self.graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(self.graph):
                self.update()
        self.graph.replay()

    def step(self, tokens, following) -> object:
        """Trains on a batch; the loss."""
        torch = self.torch
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with torch.autocast(self.device, dtype=torch.bfloat16), math:
            scores = self.model(tokens)
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
        loss.backward()
        self.taken += 1
        if self.device == "cuda" and self.taken > self.EAGER:
            self.captured()
        else:
            self.update()
        return loss


def digest(model) -> str:
    """Of every weight and every running mean, bit for bit."""
    made = hashlib.sha256()
    for tensor in model.state_dict().values():
        made.update(tensor.cpu().numpy().tobytes())
    return made.hexdigest()


def train(trainer, batches, device: str, workers: int, cells: dict[str, dict]) -> Iterator[str]:
    """All steps, a slice of them at each turn.  Fills the cells of what does not depend on the allocator.

    The data come from workers through page-locked memory, and a step's time begins when its batch is there.
    """
    from torch.utils.data import DataLoader

    pinned = device == "cuda"
    loader = DataLoader(batches, batch_size=None, shuffle=False, num_workers=workers, pin_memory=pinned)
    losses, times = [], []
    for batch in loader:
        start = perf_counter()
        parts = [part.to(device, non_blocking=True) for part in batch]
        losses.append(trainer.step(*parts).item().hex())
        times.append((perf_counter() - start) * 1000)
        if len(times) % SLICE == 0:
            yield "steps"
    cells["median"] = {"value": statistics.median(times[min(WARM, len(times) - 1) :]), "times": times}
    cells["total"] = {"value": sum(times) / 1000}
    cells["losses"] = {"value": float(len(losses)), "losses": losses, "weights": digest(trainer.model)}


def turns_of(column: str, model: str, count: int, stacks: str = "") -> Iterator[str]:
    """The training of one model on one allocator, by turns.  Says all cells, each with the model in front."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
    if column == PLUGGED:
        importlib.import_module("accelrt").interop.torch.install()
    if stacks:
        torch.cuda.memory._record_memory_history(stacks=stacks, max_entries=HISTORY)
    repeatable()
    shapes = (token_shapes if model == "gpt" else image_shapes)(count)
    trainer = (Gpt if model == "gpt" else ResNet)("cuda")
    cells: dict[str, dict] = {}
    yield from train(trainer, Batches(model, shapes), "cuda", 2, cells)
    if stacks == "python":  # torch takes minutes to name C++ frames
        events = torch.cuda.memory._snapshot(0)["device_traces"][0]
        cells["events"] = {"value": float(len(events))}
    peaks = {"reserved": torch.cuda.max_memory_reserved(0), "live": torch.cuda.max_memory_allocated(0)}
    for key, peak in peaks.items():
        cells[key] = {"value": peak / 2**30, "bytes": peak}
    say(cells={f"{model}.{key}": cell for key, cell in cells.items()})


def main(row: str, work: Iterator[str]) -> None:
    """A process that trains by turns; row is where it failed, if it does."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        say(absent=f"{type(error).__name__}: {error}")
        return
    say(version=torch.__version__)
    try:
        turns.serve(work)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        say(row=row, error=f"{type(error).__name__}: {error} ({where})")


if __name__ == "__main__":
    main(f"{sys.argv[2]}.losses", turns_of(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
