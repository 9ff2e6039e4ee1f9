"""What torch's own allocator does and accelrt does alike, so that programs need not notice which of them is
torch's: each scenario in a process of its own, which tests/interop/test_torch_alike.py starts.

    python torch_alike.py gpu|standin NAME

It prints "done" where nothing went wrong.  "standin" is cudart_standin, which has copies and no kernels.
"""

import os
import sys
import threading

import torch_whole
from torch_setting import MIB, Scenarios, refused

ALIKE = alike = Scenarios()
SETTINGS = {}  # torch's settings in the environment, by the scenario's name


def with_settings(text):
    def decorate(function):
        SETTINGS[function.__name__] = text
        return alike(function)

    return decorate


def taken(torch, size):
    """By how much an allocation raises what is active and what was asked for, in bytes."""
    torch.cuda.init()
    figures = [torch.cuda.memory_stats()]
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    figures.append(torch.cuda.memory_stats())
    del tensor
    keys = ("active_bytes.all.allocated", "requested_bytes.all.allocated")
    return [figures[1][key] - figures[0][key] for key in keys]


def set_settings(torch, text):
    torch.cuda.memory._set_allocator_settings(text)


# --- settings -----------------------------------------------------------------------------------------------


@alike
def sizes_are_rounded_as_torchs_settings_say(interop, torch):
    interop.install()
    some = 84 * MIB
    assert taken(torch, some) == [some, some]
    set_settings(torch, "roundup_power2_divisions:4")
    assert taken(torch, some) == [96 * MIB, some]
    set_settings(torch, "garbage_collection_threshold:0.5,max_split_size_mb:40")
    assert taken(torch, some) == [some, some]
    text = " roundup_power2_divisions : [64:8,128:2,256:2,512:2,1024:1,>:1], expandable_segments:True"
    set_settings(torch, text)
    assert taken(torch, some) == [88 * MIB, some]
    assert taken(torch, 200 * MIB) == [256 * MIB, 200 * MIB]
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["roundup_power2_divisions"]["64"] == 8
    assert settings["PYTORCH_CUDA_ALLOC_CONF"].endswith("expandable_segments:True")
    set_settings(torch, "")
    assert taken(torch, some) == [some, some]


@alike
def settings_that_torch_refuses_change_nothing(interop, torch):
    interop.install()
    set_settings(torch, "roundup_power2_divisions:4")
    for wrong in ("foo:1", "garbage_collection_threshold:1.2", "roundup_power2_divisions:3"):
        with refused((ValueError, RuntimeError)):
            set_settings(torch, wrong)
    with refused(TypeError):
        set_settings(torch, None)
    assert taken(torch, 84 * MIB) == [96 * MIB, 84 * MIB]


@with_settings("roundup_power2_divisions:4,garbage_collection_threshold:0.9")
def settings_of_the_environment_hold_until_uninstall(interop, torch):
    import accelrt

    interop.install()
    assert taken(torch, 84 * MIB) == [96 * MIB, 84 * MIB]
    in_force = accelrt.memory.settings_in_force()
    assert in_force.garbage_collection_threshold == 0.9
    accelrt.memory.set_allocator_settings("growth_slack:0.1")
    interop.uninstall()
    in_force = accelrt.memory.settings_in_force()
    assert str(in_force) == "growth_slack:0.1", in_force


@alike
def keys_of_accelrts_own_variable_are_accelrts_alone(interop, torch):
    import accelrt

    os.environ["ACCELRT_ALLOC_CONF"] = "roundup_power2_divisions:2"
    interop.install()
    set_settings(torch, "roundup_power2_divisions:8,garbage_collection_threshold:0.7")
    assert taken(torch, 84 * MIB) == [96 * MIB, 84 * MIB]
    assert accelrt.memory.settings_in_force().garbage_collection_threshold == 0.7
    accelrt.memory.set_allocator_settings("garbage_collection_threshold:0.6")
    set_settings(torch, "roundup_power2_divisions:8")
    assert accelrt.memory.settings_in_force().garbage_collection_threshold == 0
    assert taken(torch, 84 * MIB) == [96 * MIB, 84 * MIB]


@with_settings("per_process_memory_fraction:0.25")
def the_fraction_of_the_environment_limits(interop, torch):
    interop.install()
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    _, total = torch.cuda.mem_get_info()
    with refused(torch.OutOfMemoryError, "The limit is"):
        torch.empty(total // 3, dtype=torch.uint8, device="cuda")
    kept = torch.empty(total // 5, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    another = torch.empty(total // 5, dtype=torch.uint8, device="cuda")
    del kept, another


@with_settings("per_process_memory_fraction:1.5")
def a_fraction_that_torch_refuses_is_refused_at_the_first_use(interop, torch):
    interop.install()
    with refused((ValueError, RuntimeError), "per_process_memory_fraction is invalid"):
        torch.empty(1, device="cuda")
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ""
    torch.empty(1, device="cuda")


@alike
def a_limit_outlives_a_late_installation(interop, torch):
    before = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(0.25)
    interop.install()
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    with refused(torch.OutOfMemoryError, "The limit is"):
        torch.empty(torch.cuda.mem_get_info()[1] // 3, dtype=torch.uint8, device="cuda")
    del before


# --- tools that follow memory -------------------------------------------------------------------------------


@alike
def tracers_hear_of_memory_that_is_no_tensors_too(interop, torch):
    from torch.cuda import _gpu_trace

    interop.install()
    torch._C._activate_gpu_trace()
    heard = []
    _gpu_trace.register_callback_for_memory_allocation(lambda address: heard.append(address))
    _gpu_trace.register_callback_for_memory_deallocation(lambda address: heard.append(-address))
    tensor, nothing = torch.empty(10, device="cuda"), torch.empty(0, device="cuda")
    address = torch.cuda.caching_allocator_alloc(1000)
    wanted = [tensor.data_ptr(), address, -address, -tensor.data_ptr()]
    torch.cuda.caching_allocator_delete(address)
    del tensor, nothing
    assert heard == wanted, (heard, wanted)
    heard.clear()
    torch.cuda.caching_allocator_enable(False)
    address, tensor = torch.cuda.caching_allocator_alloc(1000), torch.empty(10, device="cuda")
    wanted = [address, tensor.data_ptr(), -address, -tensor.data_ptr()]
    torch.cuda.caching_allocator_delete(address)
    del tensor
    torch.cuda.caching_allocator_enable(True)
    assert heard == wanted, (heard, wanted)


# --- pools --------------------------------------------------------------------------------------------------


def sizes(pool):
    return [segment["total_size"] for segment in pool.snapshot()]


@alike
def empty_cache_leaves_what_mempools_hold(interop, torch):
    interop.install()
    pools = [torch.cuda.MemPool() for _ in range(4)]

    def use(pool):
        with torch.cuda.use_mem_pool(pool):
            torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()

    threads = [threading.Thread(target=use, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.empty_cache()
    held = [sum(sizes(pool)) for pool in pools]
    assert min(held) >= 3 * MIB, held
    with torch.cuda.use_mem_pool(pools[0]):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert sum(sizes(pools[0])) == held[0]
    pools.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


# --- history ------------------------------------------------------------------------------------------------


NAMES = {"segment_alloc": "segment_map", "segment_free": "segment_unmap"}  # of memory that does not grow


def takes(torch):
    return torch.empty(3000, device="cuda")


def lets_go(held):
    held.clear()


def functions_of(event):
    """The functions of this file and of torch's memory that an event's frames name; None without frames."""
    if "frames" not in event:
        return None
    names = {frame["name"] for frame in event["frames"]}
    return names & {"takes", "lets_go", "empty_cache", "lacks"}


def recorded(torch, context):
    """What each action's frames name, and what the frames of the segment and of the block do."""

    def lacks():
        with refused(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(context=context)
    held = [takes(torch)]
    (segment,) = torch.cuda.memory._snapshot()["segments"]
    block = next(each for each in segment["blocks"] if each["state"] == "active_allocated")
    lets_go(held)
    torch.cuda.empty_cache()
    lacks()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    named = {NAMES.get(event["action"], event["action"]): functions_of(event) for event in trace}
    named.pop("snapshot", None)
    return named, functions_of(segment), functions_of(block)


@alike
def events_have_the_frames_that_torch_gives_them(interop, torch):
    interop.install()
    taker, freer, emptier, loser = ({name} for name in ("takes", "lets_go", "empty_cache", "lacks"))
    actions = ("segment_map", "alloc", "free_requested", "free_completed", "segment_unmap", "oom")
    wanted = {
        "all": (taker, taker, freer, freer, emptier, loser),
        "alloc": (taker, taker, taker, taker, None, loser),
        "state": (None, None, None, None, None, None),
    }
    for context, frames in wanted.items():
        named, segment, block = recorded(torch, context)
        assert named == dict(zip(actions, frames, strict=True)), (context, named)
        assert (segment, block) == (set() if context == "state" else taker, taker), (context, segment, block)
    named, segment, block = recorded(torch, None)
    assert (set(named.values()), segment, block) == ({None}, set(), set()), (named, segment, block)


def main(kind, name):
    if name in SETTINGS:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[name]
    torch_whole.main(kind, name, ALIKE)


if __name__ == "__main__":
    main(*sys.argv[1:])
