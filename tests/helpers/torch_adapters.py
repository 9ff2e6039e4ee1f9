"""The interfaces of torch_memory_saver and vLLM's CuMemAllocator over accelrt: each scenario in a process of
its own, which tests/interop/test_torch_adapters.py starts.

    python torch_adapters.py gpu|standin NAME
"""

import gc
import sys

from torch_setting import Scenarios, holds, numbers, refused
from torch_sleep import MIB, captured

SCENARIOS = scenario = Scenarios()


def reserved():
    import accelrt

    return accelrt.memory.memory_reserved(0)


@scenario
def a_region_pauses_and_resumes_by_its_tag(interop, torch):
    import accelrt

    interop.install()
    accelrt.interop.torch_memory_saver.install_as()
    import torch_memory_saver as package
    from torch_memory_saver import torch_memory_saver as saver

    assert package is accelrt.interop.torch_memory_saver
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = numbers(torch, 3 * MIB).cuda()
        with saver.region(tag="cache"):
            cache = torch.empty(5 * MIB, device="cuda")
        with saver.disable():
            beside = numbers(torch, MIB, 2).cuda()
        more = numbers(torch, 1000, 4).cuda()
    outside = numbers(torch, 1000).cuda()
    address, before = cache.data_ptr(), reserved()
    saver.pause("cache")
    assert before - reserved() >= 4 * 5 * MIB
    assert holds(weights, numbers(torch, 3 * MIB))
    saver.pause("cache")
    saver.pause()
    assert before - reserved() >= 4 * 8 * MIB
    assert holds(beside, numbers(torch, MIB, 2))
    assert holds(outside, numbers(torch, 1000))
    saver.resume("weights")
    assert holds(weights, numbers(torch, 3 * MIB))
    assert holds(more, numbers(torch, 1000, 4))
    with refused(RuntimeError), saver.region(tag="cache"):
        torch.empty(1000, device="cuda")
    saver.resume()
    saver.resume()
    assert reserved() == before
    assert cache.data_ptr() == address
    cache.copy_(numbers(torch, 5 * MIB, 1))
    assert holds(cache, numbers(torch, 5 * MIB, 1))
    del weights, cache, beside, more, outside
    accelrt.memory.audit()


@scenario
def graphs_pause_with_a_tag(interop, torch):
    from accelrt.interop.torch_memory_saver import TorchMemorySaver

    interop.install()
    saver = TorchMemorySaver()
    saver.hook_mode = "preload"
    assert saver.enabled
    with saver.region(enable_cpu_backup=True):
        source = numbers(torch, 2 * MIB).cuda()
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph"):
        middle = torch.empty_like(source).copy_(source, non_blocking=True)
        output = torch.empty_like(source).copy_(middle, non_blocking=True)
    second = torch.cuda.CUDAGraph()
    with saver.cuda_graph(second, pool=graph.pool(), tag="graph"):
        last = torch.empty_like(source).copy_(source, non_blocking=True)
    before = reserved()
    for _ in range(2):
        saver.pause("graph")
        assert before - reserved() >= 3 * 8 * MIB
        saver.resume("graph")
        for each, result in ((graph, output), (second, last)):
            each.replay()
            torch.cuda.synchronize()
            assert holds(result, numbers(torch, 2 * MIB))
    saver.pause()
    saver.resume()
    graph.replay()
    torch.cuda.synchronize()
    assert holds(output, numbers(torch, 2 * MIB))
    del graph, second, middle, output, last
    gc.collect()
    torch.cuda.empty_cache()
    saver.pause()
    saver.resume()
    assert holds(source, numbers(torch, 2 * MIB))


@scenario
def what_it_does_not_support_is_refused(interop, torch):
    import accelrt
    from accelrt.interop import torch_memory_saver as package

    saver = package.torch_memory_saver
    with refused(RuntimeError, "call accelrt.interop.torch.install() before"), saver.region():
        pass
    with refused(RuntimeError, "call accelrt.interop.torch.install() before"):
        accelrt.interop.vllm.CuMemAllocator.get_instance()
    interop.install()
    with refused(accelrt.NotSupportedError, "enable_disk_backup"), saver.region(enable_disk_backup=True):
        pass
    with refused(ValueError, "requires enable_cpu_backup"), saver.region(cpu_backup_backend="pinned"):
        pass
    tape = saver.region(enable_cpu_backup=True, cpu_backup_backend="tape")
    with refused(ValueError, "it may be 'pinned', 'mmap'"), tape:
        pass
    with saver.region(enable_cpu_backup=True, cpu_backup_backend="pinned"):
        kept = torch.empty(1000, device="cuda")
    with refused(accelrt.NotSupportedError, "get_cpu_backup"):
        saver.get_cpu_backup(kept)
    with refused(accelrt.NotSupportedError, "set_per_process_memory_fraction"):
        saver.memory_margin_bytes = MIB
    saver.memory_margin_bytes = 0
    with refused(accelrt.NotSupportedError, "retain_cpu_backup"):
        saver.retain_cpu_backup = True
    with refused(accelrt.NotSupportedError, "set_disk_backup_dir"):
        saver.set_disk_backup_dir("/nowhere")
    with refused(ValueError, "hook_mode is 'other'"):
        saver.hook_mode = "other"
    with refused(RuntimeError, "outside of region()"), saver.disable():
        pass
    sys.modules["another_saver"] = sys
    with refused(RuntimeError, "another_saver is imported already"):
        package.install_as("another_saver")
    with package.configure_subprocess():
        pass


@scenario
def an_engine_sleeps_at_both_levels(interop, torch):
    import types

    import accelrt

    interop.install()
    sys.modules["engine"] = types.ModuleType("engine")
    sys.modules["engine"].__path__ = []
    accelrt.interop.vllm.install_as("engine.cumem")
    accelrt.interop.vllm.install_as("engine.cumem")
    import engine
    from engine.cumem import CuMemAllocator

    assert engine.cumem is accelrt.interop.vllm
    allocator = CuMemAllocator.get_instance()
    assert allocator is CuMemAllocator.get_instance() is CuMemAllocator.instance
    assert allocator.get_current_usage() == 0
    with allocator.use_memory_pool(tag="weights"):
        assert allocator.current_tag == "weights"
        weights = numbers(torch, 4 * MIB).cuda()
        scratch = torch.empty(6 * MIB, device="cuda")
        del scratch
    assert allocator.current_tag == "default"
    usage = allocator.get_current_usage()
    assert 16 * MIB <= usage < 24 * MIB, "what was idle went back"
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = torch.empty(8 * MIB, device="cuda")
    with allocator.use_cudagraph_pool() as pool:
        graph, output = captured(torch, weights, pool)
    before, addresses = reserved(), [each.data_ptr() for each in (weights, cache, output)]
    usage = allocator.get_current_usage()
    allocator.sleep(offload_tags=("weights",))
    assert before - reserved() >= 64 * MIB
    assert allocator.get_current_usage() == usage
    allocator.wake_up(tags=["weights"])
    assert holds(weights, numbers(torch, 4 * MIB))
    assert before - reserved() >= 32 * MIB
    allocator.wake_up(tags=["kv_cache"])
    assert reserved() == before
    assert [each.data_ptr() for each in (weights, cache, output)] == addresses
    graph.replay()
    torch.cuda.synchronize()
    assert holds(output, numbers(torch, 4 * MIB))
    allocator.sleep(offload_tags=())
    assert before - reserved() >= 64 * MIB
    allocator.wake_up()
    weights.copy_(numbers(torch, 4 * MIB, 3))
    graph.replay()
    torch.cuda.synchronize()
    assert holds(output, numbers(torch, 4 * MIB, 3))
    allocator.discard("kv_cache")
    assert holds(weights, numbers(torch, 4 * MIB, 3))
    allocator.sleep("weights")
    allocator.wake_up()
    assert holds(weights, numbers(torch, 4 * MIB, 3))
    with allocator.use_cudagraph_pool(torch.cuda.graph_pool_handle()) as pool:
        second, last = captured(torch, weights, pool)
    with allocator.use_memory_pool():
        plain = numbers(torch, MIB, 8).cuda()
    allocator.sleep()
    allocator.wake_up(["weights"])
    assert holds(plain, numbers(torch, MIB, 8)), "the default tag wakes with any, and was kept"
    allocator.wake_up()
    second.replay()
    torch.cuda.synchronize()
    del graph, output, second, last
    gc.collect()
    allocator.release_cudagraph_pool()
    accelrt.memory.audit()


if __name__ == "__main__":
    from torch_whole import main

    main(*sys.argv[1:], SCENARIOS)
