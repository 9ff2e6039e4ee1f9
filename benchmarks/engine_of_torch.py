"""The part of sleep_engine.py's stand-in that one device has, of torch's tensors: on accelrt, or on torch's
own allocator with the package torch_memory_saver."""

import contextlib
import time

import numpy as np
from bench_sleep import check
from engine_parts import MIB, PIECE, Engine, counts_of, value_of

import accelrt

WIDTH = 1024


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


class SaverEngine(TorchEngine):
    """The same on torch's own allocator; torch_memory_saver pauses and resumes what has a tag."""

    def __init__(self, device: int):
        import torch
        from torch_memory_saver import torch_memory_saver

        self.torch, self.saver, self.device, self.captures = torch, torch_memory_saver, device, 0
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()
        self.pools = {"weights": True, "cache": False, "graphs": True}  # whether the contents are kept
        self.handle = torch.cuda.graph_pool_handle()

    def within(self, name: str) -> contextlib.AbstractContextManager:
        return self.saver.region(tag=name, enable_cpu_backup=self.pools[name])

    def recorded(self, graph: object) -> contextlib.AbstractContextManager:
        return self.saver.cuda_graph(
            graph, pool=self.handle, stream=self.stream, tag="graphs", enable_cpu_backup=True
        )

    def moved(self, call: object) -> dict:
        """What each pause or resume took."""
        sizes = {
            "weights": sum(weights.nbytes for weights in self.weights),
            "cache": self.cache.nbytes,
            "graphs": 0,  # it does not tell
        }
        results = {}
        for name, kept in self.pools.items():
            start = time.perf_counter()
            call(name)
            self.torch.cuda.synchronize(self.device)
            seconds, copied = time.perf_counter() - start, sizes[name] if kept else 0
            results[name] = accelrt.memory.SleepResult(sizes[name], copied, seconds, seconds, 0.0)
        return results

    def sleep(self) -> dict:
        return self.moved(self.saver.pause)

    def wake(self) -> dict:
        return self.moved(self.saver.resume)

    def reserved(self) -> int:
        return self.torch.cuda.memory_reserved(self.device)

    def shrink_stacks(self) -> int:
        return 0

    def restore_stacks(self, size: int) -> None:
        """Nothing was given back."""
