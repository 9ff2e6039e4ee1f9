"""ACCELRT_LEAKS=1: what is still live when the process has ended is on stderr, and how much was reachable."""

import re

import pytest
from child import run_code

pytestmark = [pytest.mark.own_process]
KEEP = "import accelrt, ctypes\nkeep = lambda thing: ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))\n"
MIB = 1 << 20
REACHABLE = "  still reachable when the exit began, and freed by it: "


def leaks(code, **environment):
    """The report of a program; its standard error goes to its output."""
    redirect = "import os\nos.dup2(1, 2)\n"
    return run_code(redirect + KEEP + code, ACCELRT_LEAKS="1", **environment)


def test_a_program_that_leaves_only_variables_behind_leaks_nothing():
    out = leaks(
        "class Keeper:\n    pass\n"
        "keeper = Keeper()\nkeeper.me = keeper\nkeeper.buffer = accelrt.Buffer(64)\n"
        "buffer, pinned, pool = accelrt.Buffer(1 << 20), accelrt.PinnedBuffer(4096), accelrt.MemPool()\n"
        "stream, event, graph = accelrt.Stream(), accelrt.Event(), accelrt.CUDAGraph()\n"
        "event.record(stream)\naccelrt.set_stream(stream)\n"
        "with accelrt.graph(graph):\n    buffer.fill(1)\n    kept = accelrt.Buffer(512)\n"
        "graph.replay()\naccelrt.record_stream(buffer.ptr, accelrt.Stream())\n"
        "import atexit\nlate = [accelrt.caching_allocator_alloc(64)]\n"
        "atexit.register(lambda: accelrt.caching_allocator_delete(late.pop()))\n"
        "print('end')\n"
    )
    lines = out.splitlines()
    assert lines[0] == "end"
    assert re.fullmatch(r"accelrt: nothing is live at the end of process \d+ \(ACCELRT_LEAKS\)", lines[1])
    assert lines[2] == f"{REACHABLE}1.00 MiB of memory in 3 blocks"
    held = {line.split(", stream ")[0].split(" at ")[0].strip(): line for line in lines[3:]}
    assert held.keys() == {"1.00 MiB", "512 bytes"}
    assert "Buffer, held by `buffer` of __main__" in held["1.00 MiB"]
    assert any(
        "Buffer, held by attribute `buffer` of a Keeper, `keeper` of __main__" in line for line in lines[3:]
    )
    assert len(lines) == 6


def test_who_holds_what_is_reachable_is_told():
    out = leaks(
        "import types\n"
        "app = types.ModuleType('app')\nimport sys\nsys.modules['app'] = app\n"
        "app.cache = {'weights': [accelrt.Buffer(4 << 20)]}\n"
        "class Model:\n    shared = accelrt.Buffer(3 << 20)\n"
        "def closed(buffer):\n    return lambda: buffer\n"
        "later = closed(accelrt.zeros(2 << 20, 'u1'))\n"
    )
    lines = {line.split(" at ")[0].strip(): line for line in out.splitlines()}
    assert ": Buffer, held by a list, key 'weights' of a dict, `cache` of app, " in lines["4.00 MiB"]
    assert ": Buffer, held by `shared` of class Model" in lines["3.00 MiB"]
    assert (
        ": Array, held by the closure of closed.<locals>.<lambda>, `later` of __main__" in lines["2.00 MiB"]
    )


def test_what_is_live_and_what_was_reachable_are_told_apart():
    out = leaks("kept = accelrt.Buffer(1000)\nlost = accelrt.caching_allocator_alloc(2000)\n")
    lines = out.splitlines()
    assert "still live at the end of process" in lines[0]
    assert lines[1] == "  device 0: 2048 bytes of memory in 1 block"
    assert lines[-2] == f"{REACHABLE}1024 bytes of memory in 1 block"
    assert lines[-1].startswith("    1024 bytes at ")
    assert "Buffer, held by `kept` of __main__" in lines[-1]


def test_a_program_that_leaves_nothing_is_told_so():
    out = leaks("accelrt.Buffer(1000).free()\n")
    assert re.fullmatch(r"accelrt: nothing is live at the end of process \d+ \(ACCELRT_LEAKS\)\n", out)


def test_memory_is_listed_with_its_owner_the_largest_first():
    out = leaks(
        "raw = accelrt.caching_allocator_alloc(3 << 20)\n"
        "buffer = accelrt.Buffer(5 << 20)\nkeep(buffer)\n"
        "array = accelrt.zeros((1024, 1024))\nkeep(array)\n"
        "accelrt.caching_host_allocator_alloc(4096)\n"
        "accelrt.Buffer(1 << 20).free()\n"
    )
    lines = out.splitlines()
    assert re.match(r"accelrt: still live at the end of process \d+ \(ACCELRT_LEAKS\):", lines[0])
    assert lines[1] == "  device 0: 16.00 MiB of memory in 3 blocks"
    assert re.fullmatch(r"    8.00 MiB at 0x[0-9a-f]+, stream 0: Array.*", lines[2])
    assert re.fullmatch(r"    5.00 MiB at 0x[0-9a-f]+, stream 0: Buffer.*", lines[3])
    assert re.fullmatch(r"    3.00 MiB at 0x[0-9a-f]+, stream 0.*", lines[4])
    assert lines[5:] == ["  page-locked memory: 4096 bytes in 1 block"]


def test_streams_events_graphs_and_pools_are_counted():
    out = leaks(
        "stream, event, graph = accelrt.Stream(), accelrt.Event(), accelrt.CUDAGraph()\n"
        "pool = accelrt.MemPool()\n"
        "event.record()\n"
        "with accelrt.graph(graph):\n"
        "    buffer = accelrt.Buffer(1 << 20)\n    buffer.fill(0)\n    buffer.free()\n"
        "for thing in (stream, event, graph, pool): keep(thing)\n"
        "print(*graph.pool(), *pool.id)\n"
    )
    lines = out.splitlines()
    graph_pool, pool = ("({}, {})".format(*lines[0].split()[place : place + 2]) for place in (0, 2))
    assert f"  device 0, pool {graph_pool}: 1 graphs, 0 MemPools; reserved 2.00 MiB, live 0 bytes" in lines
    assert f"  device 0, pool {pool}: 0 graphs, 1 MemPools; reserved 0 bytes, live 0 bytes" in lines
    assert "  streams: 1" in lines
    assert "  events: 1" in lines


def test_memory_of_a_graph_that_is_gone_is_still_its_pools():
    out = leaks(
        "graph = accelrt.CUDAGraph()\n"
        "with accelrt.graph(graph):\n    kept = accelrt.Buffer(1 << 20)\n    kept.fill(0)\n"
        "print(*graph.pool())\nkeep(kept)\ngraph.reset()\n"
    )
    lines = out.splitlines()
    pool = "({}, {})".format(*lines[0].split())
    assert f"  device 0, pool {pool}: 0 graphs, 0 MemPools; reserved 2.00 MiB, live 1.00 MiB" in lines
    assert any("Buffer" in line and f"pool {pool}" in line for line in lines)


def test_stacks_and_tags_are_told():
    out = leaks(
        "def forget():\n    return accelrt.caching_allocator_alloc(3 << 20)\n"
        "with accelrt.memory.tag('cache'):\n    forget()\n"
    )
    assert re.search(r"3.00 MiB at \S+ stream 0: tag 'cache', forget \(<string>:\d\) < <module>", out)


@pytest.mark.host
def test_memory_of_the_drivers_pools_is_listed_with_the_rest():
    out = leaks(
        "def forget(pool):\n    return pool.allocate(3 << 20)\n"
        "pool = accelrt.memory.DriverPool(managed=True)\n"
        "with accelrt.memory.tag('staging'):\n    keep(forget(pool))\n"
        "kept = pool.allocate(1 << 20)\n"
        "accelrt.resources.DriverPoolResource(pool=pool).allocate(2 << 20)\n"
        "accelrt.Buffer(1000).free()\n"
    )
    lines = out.splitlines()
    assert lines[1] == "  device 0: 5.00 MiB of memory in 2 blocks"
    kind, place = "managed memory of a driver's pool", r"at 0x[0-9a-f]+, stream 0"
    assert re.fullmatch(rf"    3.00 MiB {place}: DriverMemory, {kind}, tag 'staging', forget \(.*", lines[2])
    assert re.fullmatch(rf"    2.00 MiB {place}: {kind}, <module> \(.*", lines[3])
    assert f"{REACHABLE}1.00 MiB of memory in 1 block" in lines
    assert re.fullmatch(
        rf"    1.00 MiB {place}: DriverMemory, held by `kept` of __main__, {kind}, .*", lines[-1]
    )


@pytest.mark.host
def test_memory_of_the_drivers_pools_is_listed_where_nothing_else_was_allocated():
    out = leaks("keep(accelrt.memory.DriverPool(managed=True).allocate(3 << 20))\n")
    assert "  device 0: 3.00 MiB of memory in 1 block\n    3.00 MiB at " in out
    assert "<module>" in out


def test_many_blocks_are_summed_up():
    out = leaks("held = [accelrt.caching_allocator_alloc(512 * (1 + n)) for n in range(50)]\n")
    assert "in 50 blocks" in out
    assert "    and 30 smaller ones" in out
    sizes = [int(size) for size in re.findall(r"    (\d+) bytes at", out)]
    assert sizes == [512 * n for n in range(50, 30, -1)]


def test_a_child_of_a_fork_reports_nothing_of_its_parents():
    out = leaks(
        "accelrt.caching_allocator_alloc(3 << 20)\n"
        "import os\n"
        "if os.fork() == 0:\n    raise SystemExit\n"
        "os.wait()\n"
    )
    assert out.count("still live") == 1


def test_it_is_off_by_default_and_needs_a_device_to_be_used():
    assert (
        run_code("import accelrt\naccelrt.caching_allocator_alloc(64)\nprint('end')", ACCELRT_LEAKS="0")
        == "end\n"
    )
    assert leaks("print(accelrt.is_initialized())\n") == "False\n"
    code = "import accelrt\ntry:\n    accelrt.init()\nexcept ValueError as error:\n    print(error)\n"
    assert "ACCELRT_LEAKS='x' is not known" in run_code(code, ACCELRT_LEAKS="x")


@pytest.mark.host
def test_another_backend_is_reported_by_its_totals():
    out = leaks(
        "taken = []\n"
        "def take(size, device, stream):\n    taken.append(size)\n    return 0x1000000 * len(taken)\n"
        "ours = accelrt.memory.CallbackAllocator(take, lambda *freed: None)\n"
        "accelrt.memory.change_current_allocator(ours)\n"
        "accelrt.caching_allocator_alloc(3 << 20)\n"
    )
    assert "  device 0: 3.00 MiB of memory in 1 block" in out
