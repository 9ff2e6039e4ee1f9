"""The part of sleep_engine.py's stand-in that one device has, of torch's tensors: on accelrt, or on torch's
own allocator with a package that has it sleep, torch_memory_saver or vLLM's."""

import contextlib
import time

import numpy as np
from bench_sleep import check
from engine_parts import MIB, PIECE, Engine, counts_of, value_of

import accelrt

WIDTH = 1024
KEPT = {"weights": True, "cache": False, "graphs": True}  # whether a peer keeps the contents


class TorchEngine(Engine):
    """Weights and a cache in MemPools of torch's, and graphs of matrix products by cuBLAS."""

    def __init__(self, device: int):
        import torch

        accelrt.interop.torch.install(pinned=True, sleepable=True)
        self.torch, self.device, self.captures = torch, device, 0
        with torch.cuda.device(device):
            self.pools = {name: torch.cuda.MemPool() for name in ("weights", "cache")}
            self.stream = torch.cuda.Stream()  # torch's own for captures is of one device alone
        self.pools["graphs"] = torch.cuda.graph_pool_handle()

    def load(self) -> None:
        with self.torch.cuda.device(self.device):
            (self.torch.zeros(16, device="cuda") * 2 + 1).cpu()

    def start_libraries(self) -> None:
        with self.torch.cuda.device(self.device):
            square = self.torch.ones(64, 64, device="cuda")
            (square @ square).cpu()

    def within(self, name: str) -> contextlib.AbstractContextManager:
        """Allocates in that pool."""
        return self.torch.cuda.use_mem_pool(self.pools[name])

    def recorded(self, graph: object) -> contextlib.AbstractContextManager:
        """Captures into the graph."""
        return self.torch.cuda.graph(graph, pool=self.pools["graphs"], stream=self.stream)

    def fill(self, size: int) -> None:
        torch = self.torch
        counts = counts_of(size)
        with torch.cuda.device(self.device), self.within("weights"):
            self.weights = [
                torch.empty(count * PIECE // 4, dtype=torch.int32, device="cuda") for count in counts
            ]
            numbers = torch.arange(MIB // 4, dtype=torch.float32)
            self.input = numbers.reshape(-1, WIDTH).cuda()
            self.matrix = (torch.eye(WIDTH) * 2).cuda()
        with torch.cuda.device(self.device), self.within("cache"):
            self.cache = torch.empty(size - sum(counts) * PIECE, dtype=torch.uint8, device="cuda")
        for number, weights in enumerate(self.weights):
            for piece, part in enumerate(weights.split(PIECE // 4)):
                part.fill_(value_of(number, piece))

    def capture(self, graphs: int, shapes: int) -> None:
        torch = self.torch
        self.graphs = []
        with torch.cuda.device(self.device):
            for number in range(graphs):
                result = self.input[: len(self.input) * (number % shapes + 1) // shapes]
                graph = torch.cuda.CUDAGraph()
                with self.recorded(graph):
                    for _ in range(4):
                        result = result @ self.matrix + 1
                self.graphs.append((graph, result))
                self.captures += 1

    def addresses(self) -> list[int]:
        tensors = [*self.weights, self.cache, self.input, self.matrix, *(result for _, result in self.graphs)]
        return [tensor.data_ptr() for tensor in tensors]

    def replay(self) -> None:
        with self.torch.cuda.device(self.device):
            for graph, result in self.graphs:
                result.zero_()
                graph.replay()
                wanted = np.arange(result.numel(), dtype=np.float32) * 16 + 15
                same = bool((result.cpu().numpy().ravel() == wanted).all())
                check(same, "a replay after the wake is wrong")

    def verify(self) -> None:
        for number, weights in enumerate(self.weights):
            for piece, part in enumerate(weights.split(PIECE // 4)):
                same = bool((part == value_of(number, piece)).all())
                check(same, f"part {number} of the weights has other contents in piece {piece}")

    def sleep(self) -> dict:
        results = {
            name: accelrt.memory.sleep(pool, "discard" if name == "cache" else "host", self.device)
            for name, pool in self.pools.items()
        }
        return {**results, "default memory": accelrt.interop.torch.sleep(pools=[(0, 0)])}

    def wake(self) -> dict:
        results = {name: accelrt.memory.wake(pool, self.device) for name, pool in self.pools.items()}
        return {**results, "default memory": accelrt.interop.torch.wake([(0, 0)])}


class PeerEngine(TorchEngine):
    """The same on torch's own allocator, where another package puts what it manages to sleep."""

    def __init__(self, device: int):
        import torch

        self.torch, self.device, self.captures = torch, device, 0
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()
        self.pools = {"graphs": torch.cuda.graph_pool_handle()}
        self.begin()

    def begin(self) -> None:
        """Imports the package."""
        raise NotImplementedError

    def timed(self, call: object, *arguments: object) -> accelrt.memory.SleepResult:
        """How long a sleep or a wake took, and how many bytes it moved; both packages tell neither."""
        names = arguments if arguments and isinstance(arguments[0], str) else tuple(KEPT)
        sizes = {"weights": sum(weights.nbytes for weights in self.weights), "cache": self.cache.nbytes}
        start = time.perf_counter()
        call(*arguments)
        self.torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        moved = sum(sizes.get(name, 0) for name in names)
        copied = sum(sizes.get(name, 0) for name in names if KEPT[name])
        return accelrt.memory.SleepResult(moved, copied, seconds, seconds, 0.0)

    def reserved(self) -> int:
        return self.torch.cuda.memory_reserved(self.device)

    def shrink_stacks(self) -> int:
        return 0

    def restore_stacks(self, size: int) -> None:
        """Nothing was given back."""


class SaverEngine(PeerEngine):
    """torch_memory_saver pauses and resumes what has a tag, graphs too."""

    def begin(self) -> None:
        from torch_memory_saver import torch_memory_saver

        self.saver = torch_memory_saver

    def within(self, name: str) -> contextlib.AbstractContextManager:
        return self.saver.region(tag=name, enable_cpu_backup=KEPT[name])

    def recorded(self, graph: object) -> contextlib.AbstractContextManager:
        options = {"tag": "graphs", "enable_cpu_backup": True}
        return self.saver.cuda_graph(graph, pool=self.pools["graphs"], stream=self.stream, **options)

    def sleep(self) -> dict:
        return {name: self.timed(self.saver.pause, name) for name in KEPT}

    def wake(self) -> dict:
        return {name: self.timed(self.saver.resume, name) for name in KEPT}


class CumemEngine(PeerEngine):
    """vLLM's CuMemAllocator puts what has a tag to sleep, all in one call; graphs' memory is torch's."""

    def begin(self) -> None:
        from vllm.device_allocator.cumem import CuMemAllocator

        self.cumem = CuMemAllocator.get_instance()

    def within(self, name: str) -> contextlib.AbstractContextManager:
        return self.cumem.use_memory_pool(tag=name)

    def sleep(self) -> dict:
        return {"weights": self.timed(self.cumem.sleep, ("weights",))}

    def wake(self) -> dict:
        return {"weights": self.timed(self.cumem.wake_up)}
