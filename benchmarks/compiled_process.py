"""The process of one allocator and one model that torch.compile(mode="reduce-overhead") compiles: trains it,
has it infer, and says what that took (words.py), by turns (turns.py).

    python compiled_process.py COLUMN resnet|gpt STEPS INFERENCES

torch_training.py --compiled starts it, with the environment that the allocator needs.
"""

import gc
import importlib
import statistics
import sys
from collections.abc import Iterator
from time import perf_counter

from training_process import PLUGGED, VOCABULARY, WARM, Batches, ResNet, digest, main, repeatable
from words import say

SLICE = 10  # steps in a turn
TRAINED = {"resnet": (32, 160), "gpt": (4, 512)}  # the one shape of training
INFERRED = {  # batch, and side or length
    "resnet": [(batch, 160) for batch in (1, 2, 4, 6, 8, 12, 16, 24)],
    "gpt": [(2, length) for length in (64, 128, 192, 256, 320, 384, 448, 512)],
}


class Gpt:
    """The 12-layer GPT under autocast to bfloat16, by AdamW."""

    def __init__(self, device: str, **sizes: int):
        import torch
        from peers.gpt import GPT

        self.torch, self.device = torch, device
        self.model = GPT(vocabulary=VOCABULARY, **sizes).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)

    def step(self, tokens, following) -> object:
        """Trains on a batch; the loss."""
        torch = self.torch
        self.optimizer.zero_grad(set_to_none=True)
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with torch.autocast(self.device, dtype=torch.bfloat16), math:
            scores = self.model(tokens)
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), following.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        return loss


def compiled(torch, model, device: str, *, dynamic: bool):
    """The model, compiled; without a GPU by the part of torch.compile that needs no compiler."""
    if device == "cuda":
        return torch.compile(model, mode="reduce-overhead", dynamic=dynamic)
    return torch.compile(model, backend="eager", dynamic=dynamic)


def timed(work, *arguments) -> tuple[float, str]:
    """Milliseconds of a step to its number, which waits for the device, and that, bit for bit."""
    import torch

    torch.compiler.cudagraph_mark_step_begin()
    start = perf_counter()
    number = work(*arguments).item().hex()
    return (perf_counter() - start) * 1000, number


class Run:
    """One model on one allocator: the turns, and the cells that come out."""

    def __init__(self, model: str, device: str, steps: int, inferences: int, **sizes: int):
        import torch

        self.torch, self.model, self.device, self.sizes = torch, model, device, sizes
        self.steps, self.inferences = steps, inferences
        self.cells: dict[str, dict] = {}

    def batch(self, shape: tuple[int, int], seed: int) -> list:
        """A step's batch, on the device."""
        batches = Batches(self.model, [shape] * (seed + 1))
        return [part.to(self.device) for part in batches[seed]]

    def keep(self, part: str, results: list[tuple[float, str]], weights: str) -> None:
        """Fills the cells of training or of inference."""
        times = [time for time, _ in results]
        warm = min(WARM if part == "train" else 0, len(times) - 1)
        self.cells[f"{part}.median"] = {"value": statistics.median(times[warm:]), "times": times}
        losses = [number for _, number in results]
        self.cells[f"{part}.losses"] = {"value": float(len(losses)), "losses": losses, "weights": weights}
        if self.device == "cuda":
            peak = self.torch.cuda.max_memory_reserved(0)
            self.cells[f"{part}.reserved"] = {"value": peak / 2**30, "bytes": peak}

    def train(self) -> Iterator[str]:
        """All steps of training.  The first turn compiles."""
        trainer = (Gpt if self.model == "gpt" else ResNet)(self.device, **self.sizes)
        plain = trainer.model
        trainer.model = compiled(self.torch, plain, self.device, dynamic=False)
        results = []
        for number in range(self.steps):
            results.append(timed(trainer.step, *self.batch(TRAINED[self.model], number)))
            if number == 2 or (number > 2 and number % SLICE == 0):
                yield "train"
        self.keep("train", results, digest(plain))
        self.trained = plain.eval()

    def infer(self) -> Iterator[str]:
        """All inferences, each shape in turn.  The first turn compiles, and captures every shape."""
        torch, model = self.torch, compiled(self.torch, self.trained, self.device, dynamic=True)
        shapes = INFERRED[self.model]
        inputs = [self.prepared(self.batch(shape, number)[0]) for number, shape in enumerate(shapes)]
        results = []

        def work(batch):
            with torch.no_grad(), torch.autocast(self.device, torch.bfloat16, enabled=self.model == "gpt"):
                return model(batch).float().sum()

        for batch in inputs * 3:
            timed(work, batch)
        yield "captured"
        for number in range(self.inferences):
            results.append(timed(work, inputs[number % len(inputs)]))
            if number % (SLICE * len(shapes)) == SLICE * len(shapes) - 1:
                yield "infer"
        self.keep("infer", results, "")

    def prepared(self, batch):
        """What the model takes."""
        return batch if self.model == "gpt" else batch.float().div_(127.5).sub_(1)

    def turns(self) -> Iterator[str]:
        """All of it."""
        yield from self.train()
        counters = self.torch._dynamo.utils.counters["inductor"]
        self.torch._dynamo.reset()
        gc.collect()
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats(0)
        yield from self.infer()
        self.cells["skips"] = {"value": float(counters["cudagraph_skips"])}


def turns_of(column: str, model: str, steps: int, inferences: int) -> Iterator[str]:
    """The whole program, by turns."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU")
    if column == PLUGGED:
        importlib.import_module("accelrt").interop.torch.install()
    repeatable()
    run = Run(model, "cuda", steps, inferences)
    yield from run.turns()
    say(cells={f"{model}.{key}": cell for key, cell in run.cells.items()})


if __name__ == "__main__":
    column, model, *counts = sys.argv[1:]
    main(f"{model}.train.losses", turns_of(column, model, *map(int, counts)))
