"""The collectives that bench_nccl.py measures: accelrt's and torch.distributed's."""


class Ours:
    """accelrt's collectives on a stream of their own."""

    name = "accelrt"

    def __init__(self, comm, most):
        import accelrt

        self.accelrt, self.comm = accelrt, comm
        self.stream = accelrt.Stream(comm.device_index)
        self.whole = accelrt.full(most // 4, 1.0, "float32", comm.device_index)
        self.other = accelrt.zeros(most // 4, "float32", comm.device_index)

    def wait(self):
        self.accelrt.synchronize(self.comm.device_index)

    def barrier(self):
        """All ranks are past it, on the host too."""
        self.comm.all_reduce(self.other[:1], stream=self.stream)
        self.wait()

    def mean(self, value):
        """Over the ranks."""
        array = self.accelrt.full(1, value, "float64", self.comm.device_index)
        self.wait()
        self.comm.all_reduce(array, op="avg", stream=self.stream)
        self.wait()
        return float(array.numpy()[0])

    def check(self):
        array = self.accelrt.full(1000, self.comm.rank + 1.0, "float32", self.comm.device_index)
        self.wait()
        self.comm.all_reduce(array, stream=self.stream)
        self.wait()
        assert (array.numpy() == sum(range(1, self.comm.size + 1))).all(), "all_reduce is wrong"

    def calls(self, call, size):
        """A function that puts one such call into the stream."""
        comm, stream = self.comm, self.stream
        count = size // 4 // comm.size * comm.size
        whole, other, part = self.whole[:count], self.other[:count], self.other[: count // self.comm.size]
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

        def exchange():
            with self.accelrt.nccl.group():
                comm.send(whole, after, stream)
                comm.recv(other, before, stream)

        return {
            "all_reduce": lambda: comm.all_reduce(whole, None, "sum", stream),
            "all_gather": lambda: comm.all_gather(part, whole, stream),
            "reduce_scatter": lambda: comm.reduce_scatter(whole, part, "sum", stream),
            "broadcast": lambda: comm.broadcast(whole, 0, None, stream),
            "exchange": exchange,
        }[call]


class Torchs:
    """torch.distributed's, by its NCCL backend."""

    name = "torch"

    def __init__(self, comm, most, port):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.comm = torch, dist, comm
        torch.cuda.set_device(comm.device_index)
        dist.init_process_group(
            "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=comm.rank, world_size=comm.size
        )
        self.whole = torch.ones(most // 4, device="cuda")
        self.other = torch.zeros(most // 4, device="cuda")

    def wait(self):
        self.torch.cuda.synchronize()

    def calls(self, call, size):
        dist, count = self.dist, size // 4 // self.comm.size * self.comm.size
        whole, other, part = self.whole[:count], self.other[:count], self.other[: count // self.comm.size]
        after, before = (self.comm.rank + 1) % self.comm.size, (self.comm.rank - 1) % self.comm.size

        def exchange():
            pair = [dist.P2POp(dist.isend, whole, after), dist.P2POp(dist.irecv, other, before)]
            for each in dist.batch_isend_irecv(pair):
                each.wait()

        return {
            "all_reduce": lambda: dist.all_reduce(whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "broadcast": lambda: dist.broadcast(whole, 0),
            "exchange": exchange,
        }[call]
