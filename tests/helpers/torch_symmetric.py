"""Memory that NCCL or torch's symmetric memory gave, in torch's MemPools, between two GPUs: each scenario
runs first on torch's own allocator, then on accelrt, in two processes each.

    python torch_symmetric.py gpu NAME

It prints "done" where nothing went wrong.  What torch itself cannot do on this machine is printed, and asks
nothing of accelrt.  NVLink multicast stays off.
"""

import os
import sys
import tempfile
import traceback

import torch
from torch_setting import Scenarios, within

SCENARIOS = scenario = Scenarios()
MIB = 1 << 20
LIMIT = 150  # seconds until a process counts as stuck
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def on_rank(count, rank):
    return torch.full((count,), float(rank + 1), device="cuda")


def sums_right(dist, tensor):
    """Sums a tensor over both ranks, whose values are 1 and 2."""
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return bool((tensor == 3).all())


@scenario
def nccl_registers_a_pool_of_its_own_memory(dist, rank):
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensors = [on_rank(count, rank) for count in (MIB, 5 * MIB, 300)]
    assert all(within(tensor, pool.snapshot()) for tensor in tensors)
    backend.register_mem_pool(pool)
    assert all(sums_right(dist, tensor) for tensor in tensors)
    with torch.cuda.use_mem_pool(pool):
        later = on_rank(40 * MIB, rank)  # a segment that comes while the pool is registered
    assert sums_right(dist, later)
    backend.deregister_mem_pool(pool)
    assert sums_right(dist, on_rank(MIB, rank))
    del tensors, later, pool


@scenario
def nccl_registers_a_pool_of_the_allocators_memory(dist, rank):
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = on_rank(5 * MIB, rank)
    backend.register_mem_pool(pool)
    assert sums_right(dist, tensor)
    backend.deregister_mem_pool(pool)


@scenario
def graphs_over_registered_memory(dist, rank):
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    pool, graph = torch.cuda.MemPool(backend.mem_allocator), torch.cuda.CUDAGraph()
    with torch.cuda.use_mem_pool(pool):
        tensor = on_rank(MIB, rank)
    backend.register_mem_pool(pool)
    assert sums_right(dist, tensor)
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    for _ in range(3):
        tensor.fill_(float(rank + 1))
        graph.replay()
        torch.cuda.synchronize()
        assert bool((tensor == 3).all())
    del graph
    backend.deregister_mem_pool(pool)


@scenario
def symmetric_tensors_are_written_by_the_peer(dist, rank):
    from torch.distributed import _symmetric_memory as symmetric

    pool = symmetric.get_mem_pool(torch.device("cuda", rank))
    for count in (1000, 3 * MIB):
        tensor = symmetric.empty(count, dtype=torch.float32, device=f"cuda:{rank}").fill_(-1)
        handle = symmetric.rendezvous(tensor, dist.group.WORLD)
        handle.barrier()
        handle.get_buffer(1 - rank, (count,), torch.float32).fill_(float(rank))
        handle.barrier()
        torch.cuda.synchronize()
        assert bool((tensor == 1 - rank).all()), "the peer wrote it"
    with torch.cuda.use_mem_pool(pool):
        inside = on_rank(MIB, rank)
    handle = symmetric.rendezvous(inside, dist.group.WORLD)
    handle.barrier()
    seen = handle.get_buffer(1 - rank, (MIB,), torch.float32).clone()
    handle.barrier()
    torch.cuda.synchronize()
    assert bool((seen == 2 - rank).all())
    summed = torch.ops.symm_mem.one_shot_all_reduce(inside, "sum", dist.group.WORLD.group_name)
    torch.cuda.synchronize()
    assert bool((summed == 3).all())
    others = torch.empty(MIB, device="cuda")
    assert not within(others, pool.snapshot())


def work(rank, name, installs, meeting, answers):
    """One rank's process."""
    import torch.distributed as dist

    try:
        if installs:
            from accelrt.interop import torch as interop

            interop.install()
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
        dist.init_process_group(
            "nccl", init_method=f"file://{meeting}", rank=rank, world_size=2, device_id=device
        )
        dist.all_reduce(torch.ones(1, device="cuda"))
        SCENARIOS[name](dist, rank)
        torch.cuda.synchronize()
        dist.barrier()
        dist.destroy_process_group()
        if installs:
            import accelrt

            accelrt.memory.audit()
        answers.put((rank, ""))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
        answers.close()
        answers.join_thread()
        os._exit(1)  # the other rank may wait for this one for ever


def outcome(name, installs):
    """What went wrong in both processes; "" where nothing did."""
    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        processes = [
            context.Process(target=work, args=(rank, name, installs, f"{folder}/meeting", answers))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        try:
            wrong = []
            for _ in processes:
                _, text = answers.get(timeout=LIMIT)
                wrong += [text] if text else []
                if text:
                    break
            for process in processes if not wrong else ():
                process.join(LIMIT)
                wrong += [f"exit status {process.exitcode}"] if process.exitcode != 0 else []
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
    return "\n".join(wrong)


def main(kind, name):
    if torch.cuda.device_count() < 2:
        print("there is one device alone")
    else:
        os.environ.update(QUIET)
        natively = outcome(name, False)
        if natively:
            print(f"torch itself cannot do it here: {natively}")
        else:
            ours = outcome(name, True)
            assert not ours, ours
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
