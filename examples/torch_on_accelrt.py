"""torch with accelrt as its allocator: a training step that is captured, and what accelrt then counts.

The tensors, the gradients and what the capture allocates lie in accelrt's pool, beside a buffer of accelrt's
own, and torch.cuda's statistics are accelrt's.  It needs a GPU and torch, and says so where one is missing.
"""

import gc
import importlib.util

import accelrt

STEPS, WARM = 60, 3


def train(torch):
    """Fits two linear layers to the sine; the first loss and the last."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, capturable=True)
    x = torch.zeros(256, 1, device="cuda")  # where each batch is put: a graph reads the same memory each time

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - torch.sin(3 * x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses, graph = [], torch.cuda.CUDAGraph()
    warm = torch.cuda.Stream()
    for index in range(STEPS):
        x.copy_(torch.rand(256, 1) * 2 - 1)
        if index < WARM:
            warm.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warm):
                loss = step()
            torch.cuda.current_stream().wait_stream(warm)
        elif index == WARM:
            with torch.cuda.graph(graph):  # what it allocates comes from a private pool of accelrt's
                captured = step()
        if index >= WARM:
            graph.replay()
            loss = captured
        losses.append(loss.item())
    return losses[0], losses[-1]


def main():
    if not accelrt.is_available() or importlib.util.find_spec("torch") is None:
        print("torch or a GPU is missing, so nothing was trained; 0 bytes are still allocated")
        return
    import torch

    try:
        accelrt.interop.torch.install()  # before torch's first use of CUDA
    except accelrt.NotSupportedError as error:
        print(f"{error}; 0 bytes are still allocated")
        return

    with accelrt.Buffer(1 << 20) as ours:
        tensor = torch.ones(1000, device="cuda")
        assert torch.cuda.memory_allocated() == accelrt.memory_allocated() == ours.nbytes + 4096
        del tensor
        first, last = train(torch)
        assert last < first / 3, (first, last)
        assert torch.cuda.memory_reserved() == accelrt.memory_reserved()
        print(f"the loss went from {first:.4f} to {last:.4f}; of {STEPS} steps {STEPS - WARM} were replayed")
        print(f"accelrt held {accelrt.max_memory_reserved() >> 20} MiB for torch and itself at most")

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # which torch keeps for the next product of matrices
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print(f"{accelrt.memory_allocated()} bytes are still allocated")


if __name__ == "__main__":
    main()
