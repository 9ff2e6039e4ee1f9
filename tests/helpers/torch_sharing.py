"""CUDA tensors between processes, where accelrt is torch's allocator: each scenario in a process of its own,
which tests/interop/test_torch_sharing.py starts, and that starts others by torch.multiprocessing.

    python torch_sharing.py gpu|standin NAME

It prints "done" where nothing went wrong.  Every wait for another process ends.
"""

import contextlib
import gc
import os
import signal
import sys
import time

import torch
from torch_peers import CONTEXT, LIMIT, Peer, kept, set_up, until
from torch_setting import Scenarios, holds, refused

import accelrt
import accelrt.sharing
from accelrt.interop import torch as interop

scenario = Scenarios()
MIB = 1 << 20


def numbers(count, first=0):
    return torch.arange(first, first + count, dtype=torch.float32)


def on_device(count, first=0):
    return numbers(count, first).cuda()


def collected():
    gc.collect()
    torch.cuda.ipc_collect()
    return torch.cuda.memory_allocated()


def counter_files():
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")}


# --- what other processes do --------------------------------------------------------------------------------


def keep(name, value):
    kept[name] = value


def drop(name):
    del kept[name]
    gc.collect()
    until(lambda: figures()["opened"] <= sum(map(torch.is_tensor, kept.values())), "it is still open")


def read(name):
    return kept[name].cpu()


def read_now(tensor):
    return tensor.cpu()


def fill(name, value):
    kept[name].copy_(torch.full(kept[name].shape, float(value)))
    torch.cuda.synchronize()


def make(name, count, first=0):
    """A tensor of the process's own."""
    kept[name] = on_device(count, first)
    torch.cuda.synchronize()
    return kept[name]


def address_of(name):
    return kept[name].data_ptr()


def figures():
    return accelrt.sharing.statistics()


def allocated():
    return collected()


def from_queue_to_queue(count):
    there, back = kept["queues"]
    for index in range(count):
        tensor = there.get(timeout=LIMIT)
        assert holds(tensor, numbers(1000 + index, index)), index
        tensor.copy_(numbers(1000 + index, index + 1))
        torch.cuda.synchronize()
        del tensor
        kept["sent", index] = on_device(500 + index, index)
        back.put(kept["sent", index])
    return count


def send(name):
    kept["queues"][0].put(kept[name])


def take(name):
    kept[name] = kept["queues"][0].get(timeout=LIMIT)


# --- scenarios ----------------------------------------------------------------------------------------------


@scenario
def queues_both_ways():
    there, back = CONTEXT.Queue(), CONTEXT.Queue()
    peer = Peer(there, back)
    count = 20
    peer.tell(from_queue_to_queue, count)
    sent = []
    for index in range(count):
        sent.append(on_device(1000 + index, index))
        there.put(sent[-1])
        answer = back.get(timeout=LIMIT)
        assert holds(answer, numbers(500 + index, index)), index
        assert holds(sent[-1], numbers(1000 + index, index + 1)), "it is the same memory"
    assert peer.answer() == count
    del answer
    sent.clear()
    until(lambda: collected() == 0, "its receiver has let go of all")
    peer.stop()


@scenario
def views_of_one_page_are_mapped_once():
    peer = Peer()
    base = on_device(3000)
    others = [on_device(100, 10 * index) for index in range(30)]
    views = [base, base[1000:2000], base.view(3, 1000).t(), base[::3]]
    for index, tensor in enumerate([*views, *others]):
        peer.call(keep, index, tensor)
    for index, tensor in enumerate([*views, *others]):
        assert torch.equal(peer.call(read, index), tensor.cpu()), index
    there = [peer.call(address_of, index) for index in range(len(views) + len(others))]
    here = [tensor.data_ptr() for tensor in (*views, *others)]
    assert len({a - b for a, b in zip(there, here, strict=True)}) == 1, "the page is mapped once"
    told = peer.call(figures)
    assert told["mapped"] == 1, told
    assert told["opened"] == 1 + len(others), "views of one storage are one"
    peer.call(fill, 1, 7)
    assert holds(base[1000:2000], torch.full((1000,), 7.0))
    for index in range(len(views) + len(others)):
        peer.call(keep, index, None)
    peer.call(gc.collect)
    until(lambda: peer.call(figures)["mapped"] == 0, "it is mapped still")
    peer.stop()


@scenario
def large_tensors_lie_side_by_side():
    peer = Peer()
    peer.call(figures)
    holes = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda") for _ in range(40)]
    del holes[::2]
    gc.collect()
    times = []
    for count in (3 * MIB, 16 * MIB, 40 * MIB):
        tensor = on_device(count)
        if count == 3 * MIB:
            assert accelrt.memory_stats()["stitched_bytes"] > 0, "its pages lie apart"
        torch.cuda.synchronize()
        begun = time.perf_counter()
        peer.call(keep, count, tensor)
        times.append((count * 4 // MIB, round(1e3 * (time.perf_counter() - begun), 2)))
        assert holds(tensor, peer.call(read, count))
        peer.call(fill, count, 3)
        assert holds(tensor, torch.full((count,), 3.0))
        peer.call(drop, count)
    print("hand-overs (MiB, ms):", times)
    peer.stop()


@scenario
def the_receiver_waits_for_the_senders_work():
    import threading

    peer = Peer()
    peer.call(figures)
    gate = threading.Event()
    tensor, source = on_device(1000), on_device(1000, 5)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    accelrt.Stream.from_any(stream).launch_host_func(gate.wait)
    with torch.cuda.stream(stream):
        tensor.copy_(source)
        peer.tell(read_now, tensor)
    assert not peer.pipe.poll(0.5), "the sender's stream is held"
    gate.set()
    assert torch.equal(peer.answer(), numbers(1000, 5))
    event = torch.cuda.Event(interprocess=True)
    gate.clear()
    accelrt.Stream.from_any(stream).launch_host_func(gate.wait)
    event.record(stream)
    assert peer.call(query, event) is False
    gate.set()
    stream.synchronize()
    assert peer.call(query, event) is True
    peer.stop()


@scenario
def other_devices_reach_what_is_received():
    if torch.cuda.device_count() < 2:
        print("there is one device alone")
        return
    peer = Peer()
    square = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024)
    tensors = [square.to(f"cuda:{device}") for device in range(2)]
    for device, tensor in enumerate(tensors):
        torch.cuda.synchronize(device)
        peer.call(keep, device, tensor)
    assert peer.call(copy_across)
    for device, tensor in enumerate(tensors):
        torch.cuda.synchronize(device)
        assert torch.equal(tensor.cpu(), square.t() + 1 - device), device
    peer.stop()


def copy_across():
    """From each device's received tensor to the other's memory, and into it, by copies and by kernels."""
    here, there = kept[0], kept[1]
    square = here.cpu()
    right = torch.equal(here.to("cuda:1").cpu(), square) and torch.equal(
        there.t().to("cuda:0").cpu(), square.t()
    )
    here.copy_((square.to("cuda:1") + 1).t())
    there.copy_(square.to("cuda:0").t())
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return right


@scenario
def a_device_that_only_receives_reaches_another():
    if torch.cuda.device_count() < 2:
        print("there is one device alone")
        return
    peer = Peer()
    tensor = on_device(1 << 20)
    torch.cuda.synchronize()
    peer.call(keep, "it", tensor)
    assert peer.call(copy_there_and_back) == [1.0, 2.0]
    assert holds(tensor, numbers(1 << 20) + 1)
    peer.stop()


def copy_there_and_back():
    """From the received tensor to another device, whose memory is accelrt's, and from there into it."""
    received = kept["it"]
    there = received.to("cuda:1")
    seen = there.cpu()
    received.copy_((seen + 1).to("cuda:1"))
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return [seen[1].item() + 1 - numbers(2)[1].item(), received.cpu()[1].item() + 1 - numbers(2)[1].item()]


def query(event):
    return event.query()


@scenario
def the_sender_keeps_what_is_received():
    queue = CONTEXT.Queue()
    peer = Peer(queue)
    tensor = on_device(2000, 3)
    peer.call(keep, "it", tensor)
    del tensor
    assert collected() == 8192, "it waits for its receiver"
    assert torch.equal(peer.call(read, "it"), numbers(2000, 3))
    peer.call(drop, "it")
    until(lambda: collected() == 0, "its receiver let go of it")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    tensor = on_device(2000, 4)
    queue.put(tensor)
    until(lambda: figures()["unopened"] == 1, "it is not pickled")
    del tensor
    assert collected() == 8192, "nobody opened it yet"
    peer.call(take, "late")
    assert torch.equal(peer.call(read, "late"), numbers(2000, 4))
    assert figures()["unopened"] == 0
    peer.call(drop, "late")
    until(lambda: collected() == 0, "its receiver let go of it")
    peer.stop()


@scenario
def the_same_storage_is_received_once():
    peer = Peer()
    tensor = on_device(2000)
    for name in range(5):
        peer.call(keep, name, tensor)
    assert peer.call(figures)["opened"] == 1
    assert len({peer.call(address_of, name) for name in range(5)}) == 1
    for name in range(5):
        peer.call(keep, name, None)
    peer.call(gc.collect)
    del tensor
    until(lambda: collected() == 0, "its receiver let go of it")
    peer.stop()


@scenario
def a_receiver_is_killed():
    peer, other = Peer(), Peer()
    tensors = [on_device(2000, index) for index in range(4)]
    for index, tensor in enumerate(tensors):
        peer.call(keep, index, tensor)
    other.call(keep, 0, tensors[0])
    peer.call(drop, 3)
    del tensors, tensor
    until(lambda: collected() == 3 * 8192, "one was given back")
    peer.kill()
    until(lambda: torch.cuda.memory_allocated() == 8192, "a dead process has tensors")
    assert torch.equal(other.call(read, 0), numbers(2000))
    queue = CONTEXT.Queue()
    queue.put(on_device(2000))
    until(lambda: figures()["unopened"] == 1, "it is not pickled")
    other.kill()
    until(lambda: collected() == 8192, "a dead process has a tensor")
    assert accelrt.sharing.cancel_unopened() == 1
    assert collected() == 0
    until(lambda: figures()["lent"] == 0 == figures()["borrowers"], "something is lent")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@scenario
def a_sender_is_killed():
    peer = Peer()
    first, second = peer.call(make, "a", 2000, 1), peer.call(make, "b", 3 * MIB, 2)
    files = {each for each in os.listdir("/dev/shm") if each.startswith(f"torch_{peer.process.pid}_")}
    assert files
    peer.kill()
    assert holds(first, numbers(2000, 1))
    assert holds(second, numbers(3 * MIB, 2))
    first.copy_(numbers(2000, 9))
    assert holds(first, numbers(2000, 9))
    del first, second
    gc.collect()
    until(lambda: figures()["mapped"] == 0 == figures()["opened"], "a dead process's memory is mapped")
    until(lambda: not files & set(os.listdir("/dev/shm")), "its counters are there")
    queue = CONTEXT.Queue()
    other = Peer(queue)
    other.call(make, "c", 2000)
    other.call(send, "c")
    time.sleep(0.2)
    other.kill()
    with refused(RuntimeError, "cannot be opened", f"process {other.process.pid}"):
        queue.get(timeout=LIMIT)


@scenario
def a_sender_is_stopped():
    os.environ["ACCELRT_SHARING_TIMEOUT"] = "1"
    peer = Peer()
    peer.tell(make, "a", 2000)
    assert peer.pipe.poll(LIMIT)
    peer.kill(signal.SIGSTOP)
    begun = time.monotonic()
    with refused(accelrt.PeerTimeoutError, "did not hand over its memory within 1 s", "which is stopped"):
        peer.pipe.recv()
    assert time.monotonic() - begun < 10
    peer.kill(signal.SIGCONT)
    assert holds(peer.call(make, "b", 2000), numbers(2000))
    peer.kill(signal.SIGSTOP)
    gc.collect()
    peer.kill(signal.SIGCONT)
    until(lambda: figures()["opened"] == 0, "it is open still")
    peer.stop()


@scenario
def received_tensors_are_not_sent_on():
    peer = Peer()
    tensor = peer.call(make, "a", 2000)
    with refused(RuntimeError, "received from another process"):
        peer.pipe.send((read_now, (tensor,)))
    assert torch.equal(peer.call(read_now, tensor.clone()), numbers(2000))
    tensor.record_stream(torch.cuda.Stream())
    del tensor
    gc.collect()
    until(lambda: figures()["opened"] == 0, "it is open still")
    peer.stop()


@scenario
def pools_and_sleep():
    peer = Peer()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside, other = on_device(3000), on_device(3000, 1)
    peer.call(keep, "inside", inside)
    assert torch.equal(peer.call(read, "inside"), numbers(3000))
    with refused(RuntimeError, "other processes"):
        pool.sleep()
    peer.call(drop, "inside")
    del inside
    until(lambda: collected() <= 12288 and figures()["lent"] == 0, "its receiver let go of it")
    pool.sleep()
    with refused(RuntimeError, "the memory belongs to a pool that sleeps"):
        peer.pipe.send((read_now, (other,)))
    pool.wake()
    assert torch.equal(peer.call(read_now, other), numbers(3000, 1))
    graph = torch.cuda.CUDAGraph()
    source = on_device(1000)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = torch.empty_like(source).copy_(source, non_blocking=True)
    graph.replay()
    peer.call(keep, "captured", captured)
    source.copy_(numbers(1000, 8))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(peer.call(read, "captured"), numbers(1000, 8))
    peer.call(drop, "captured")
    peer.stop()


@scenario
def past_the_cache_nothing_is_shared():
    peer = Peer()
    torch.cuda.init()
    torch.cuda.memory.caching_allocator_enable(False)
    tensor = on_device(1000)
    torch.cuda.memory.caching_allocator_enable(True)
    with refused(RuntimeError, "cannot be shared with other processes"):
        peer.pipe.send((read_now, (tensor,)))
    peer.stop()


@scenario
def a_handle_comes_by_any_way():
    import pickle

    from torch.multiprocessing.reductions import reduce_tensor

    peer = Peer()
    tensor = on_device(1000)
    torch.cuda.synchronize()
    pickled = pickle.dumps(reduce_tensor(tensor))
    peer.call(take_another_key)
    assert peer.call(rebuild_pickled, pickled) == numbers(1000).tolist()
    _, arguments = reduce_tensor(tensor)
    handle, counter, offset = arguments[7], arguments[11], arguments[12]
    again = torch.UntypedStorage._new_shared_cuda(*arguments[6:10], counter, offset, b"", False)
    assert holds(torch.empty(0, device="cuda").set_(again)[:1000], numbers(1000)), "its own handle"
    del again
    with refused(ValueError, "no handle"):
        torch.UntypedStorage._new_shared_cuda(
            arguments[6], handle[:30], *arguments[8:10], counter, offset, b"", False
        )
    peer.stop()


def take_another_key():
    import multiprocessing

    multiprocessing.current_process().authkey = b"another"


def rebuild_pickled(pickled):
    import pickle

    function, arguments = pickle.loads(pickled)
    kept["rebuilt"] = function(*arguments)
    return kept["rebuilt"].tolist()


@scenario
def without_accelrt_there_the_error_says_so():
    peer = Peer(installs=False)
    tensor = on_device(1000)
    peer.tell(read_now, tensor)
    done, text = (peer.pipe.poll(LIMIT) and peer.pipe.recv()) or (None, "")
    assert not done
    assert "call accelrt.interop.torch.install() in this process too" in text, text
    peer.stop()


@scenario
def torchs_own_handles_are_its_former_allocators():
    interop.uninstall()
    old = on_device(2000, 1)
    native = Peer(installs=False)
    received = native.call(make, "a", 2000, 5)
    assert holds(received, numbers(2000, 5))
    del received
    interop.install()
    peer = Peer()
    new = on_device(2000, 2)
    peer.call(keep, "old", old)
    peer.call(keep, "new", new)
    assert torch.equal(peer.call(read, "old"), numbers(2000, 1))
    assert torch.equal(peer.call(read, "new"), numbers(2000, 2))
    assert torch.equal(native.call(read_now, old), numbers(2000, 1))
    again = native.call(make, "b", 2000, 7)
    assert holds(again, numbers(2000, 7))
    del again
    gc.collect()
    peer.call(keep, "old", None)
    peer.call(drop, "new")
    peer.stop()
    native.stop()


@scenario
def a_fork_has_nothing_of_it():
    peer = Peer()
    tensor = on_device(2000)
    peer.call(keep, "a", tensor)
    received = peer.call(make, "b", 2000, 4)
    for ending in (os._exit, sys.exit):
        child = os.fork()
        if child == 0:
            gc.collect()
            with contextlib.suppress(SystemExit):
                ending(0)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert holds(received, numbers(2000, 4))
    assert torch.equal(peer.call(read, "a"), numbers(2000))
    peer.stop()


@scenario
def processes_end_in_any_order():
    queue = CONTEXT.Queue()
    sender, peer = Peer(queue), Peer(queue)
    sender.call(make, "a", 2000, 1)
    sender.call(send, "a")
    peer.call(take, "a")
    sender.process.terminate()
    sender.process.join(LIMIT)
    assert torch.equal(peer.call(read, "a"), numbers(2000, 1))
    peer.stop()
    other = Peer()
    tensor = on_device(2000)
    other.call(keep, "a", tensor)
    other.stop()
    del tensor
    until(lambda: collected() == 0, "an ended process has a tensor")


@scenario
def many_hand_overs_leave_nothing():
    peers = [Peer() for _ in range(2)]
    for peer in peers:
        peer.call(figures)
    times = []
    for round in range(150):
        tensor = on_device(1000 + 5000 * (round % 7), round)
        torch.cuda.synchronize()
        for peer in peers:
            begun = time.perf_counter()
            peer.call(keep, "it", tensor)
            times.append(time.perf_counter() - begun)
    times.sort()
    print(f"hand-overs: median {1e3 * times[len(times) // 2]:.2f} ms, 99th {1e3 * times[-4]:.2f} ms")
    for peer in peers:
        peer.call(drop, "it")
        until(lambda peer=peer: peer.call(figures)["mapped"] == 0, "something is mapped")
    del tensor
    until(lambda: collected() == 0, "their receivers let go of all")
    until(lambda: figures()["lent"] == 0, "something is lent")
    for peer in peers:
        peer.stop()


@scenario
def much_memory_goes_to_many_processes():
    on_gpu = kept["kind"] == "gpu"
    size, count, processes = (512 * MIB, 60, 8) if on_gpu else (8 * MIB, 30, 2)
    peers = [Peer() for _ in range(processes)]
    for peer in peers:
        peer.call(figures)
    tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    for index, tensor in enumerate(tensors):
        tensor[-1:].copy_(torch.tensor([index], dtype=torch.uint8))
    torch.cuda.synchronize()
    firsts, others = [], []
    for peer in peers:
        for index, tensor in enumerate(tensors):
            begun = time.perf_counter()
            peer.call(keep, index, tensor)
            (firsts if peer is peers[0] else others).append(1e3 * (time.perf_counter() - begun))
        assert peer.call(last_bytes, count) == list(range(count))
    for what, times in (("first process", firsts), ("others", others)):
        times.sort()
        print(f"{what}, ms a hand-over: median {times[len(times) // 2]:.2f}, most {times[-1]:.2f}")
    for peer in peers[1:]:
        peer.kill()
    until(lambda: figures()["lent"] == count, "a dead process has memory")
    del tensors, tensor
    assert collected() == count * size, "one process has it all still"
    assert peers[0].call(last_bytes, count) == list(range(count))
    peers[0].kill()
    until(lambda: collected() == 0, "dead processes have memory")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def last_bytes(count):
    return [int(kept[index][-1:].cpu()) for index in range(count)]


@scenario
def receivers_are_killed_at_any_moment():
    import random

    random.seed(7)
    for round in range(5):
        queue = CONTEXT.Queue()
        queue.cancel_join_thread()
        peer = Peer(queue)
        peer.call(figures)
        peer.tell(receive_for_ever)
        end = time.monotonic() + random.uniform(0.002, 0.15)
        count = 0
        while time.monotonic() < end or count < 20:
            queue.put(on_device(1000 + 700_000 * (count % 3), count))
            count += 1
        peer.kill()
        gc.collect()
        until(lambda: taken_back() == 0, f"{torch.cuda.memory_allocated()} bytes are left in round {round}")
        queue.close()
    assert figures()["borrowers"] == 0


def taken_back():
    accelrt.sharing.cancel_unopened()
    return collected()


def receive_for_ever():
    while True:
        kept["it"] = kept["queues"][0].get(timeout=LIMIT)


@scenario
def the_benchmark_of_hand_overs_finds_nothing_left():
    from functools import partial
    from pathlib import Path

    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # processes that it starts have it too
    import handover_process

    plan = handover_process.QUICK
    cells = handover_process.measure(plan, partial(set_up, kept["kind"]))
    assert cells["receivers"]["bytes"] == 0
    assert len(cells["first"]["times"]) == len(cells["later"]["times"]) == plan.tensors
    if kept["kind"] == "standin":  # other processes use a GPU's memory meanwhile
        assert cells["sender"]["bytes"] == 0
        assert cells["addresses"]["bytes"] >= plan.tensors * plan.size


def main(kind, name):
    set_up(kind)
    scenario[name]()
    gc.collect()
    until(lambda: figures()["opened"] == 0 == figures()["mapped"], f"something is open: {figures()}")
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    accelrt.memory.audit()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
