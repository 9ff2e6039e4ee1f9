"""Rows on threads without a device, and what rows cost."""

import time

from asking import MIB, ask, pageable
from gate import Mark


@ask("current_device: of a fresh thread, after a row there, after set_device, after a bad set_device")
def _(case):
    def answers():
        first = case.current_device()
        case.must("memory_free", 0, case.memory(64))
        return (
            first,
            case.current_device(),
            case.set_device(0),
            case.current_device(),
            case.set_device(99),
            case.current_device(),
        )

    return case.in_thread(answers)


@ask("on a thread without a device: rows on a stream and event that exist")
def _(case):
    stream, event, other, memory, mark = case.stream(), case.event(), case.event(), case.memory(), Mark()
    exec_ = case.must("graph_instantiate", 0, case.graph(lambda on: None), 0)

    def answers():
        return {
            "event_record": case.event_record(0, event, stream),
            "stream_wait_event": case.stream_wait_event(0, stream, event),
            "event_query": case.event_query(0, other),
            "event_synchronize": case.event_synchronize(0, event),
            "event_elapsed": case.event_elapsed(event, event)[0],
            "stream_query": case.stream_query(0, stream),
            "stream_synchronize": case.stream_synchronize(0, stream),
            "stream_priority": case.stream_priority(0, stream)[0],
            "stream_host_func": mark.put(case, stream),
            "graph_upload": case.graph_upload(0, exec_, stream),
            "graph_launch": case.graph_launch(0, exec_, stream),
            "capture_status": case.capture_status(0, stream)[0],
            "capture_begin": case.capture_begin(0, stream, 2),
            "capture_end": case.capture_end(0, stream)[0],
            "pointer_device": case.pointer_device(memory),
            "async_alloc": case.async_alloc(0, stream, MIB)[0],
            "event_destroy": case.event_destroy(0, other),
            "stream_destroy": case.stream_destroy(0, case.stream()),
            "current_device": case.current_device(),
        }

    return [f"{name} {code}" for name, code in case.in_thread(answers).items()]


@ask("on a thread without a device: virtual memory rows, graph rows")
def _(case):
    graph = case.graph(lambda on: None)
    size = case.must("granularity", 0)

    def answers():
        code, at = case.address_reserve(size, 0)
        made, handle = case.physical_create(0, size)
        exec_ = case.must("graph_instantiate", 0, graph, 0)
        return (
            code,
            made,
            case.memory_map(at, size, handle),
            case.memory_access(at, size, 0),
            case.memory_unmap(at, size),
            case.physical_release(handle),
            case.address_free(at, size),
            case.graph_update(exec_, graph),
            case.graph_exec_destroy(exec_),
            case.graph_node_count(graph),
            case.capture_mode_exchange(0),
            case.graph_destroy(graph),
            case.async_trim(0, 0),
            case.async_get(0, 4),
        )

    return case.in_thread(answers)


@ask("rows on stream 0 from a thread without a device: fill, record, query, sync; current_device after")
def _(case):
    memory, event = case.memory(), case.event()
    return case.in_thread(
        lambda: (
            case.fill(0, 0, memory, 1, 1, 64),
            case.event_record(0, event, 0),
            case.stream_wait_event(0, 0, event),
            case.stream_query(0, 0) in (0, 600),
            case.stream_synchronize(0, 0),
            case.current_device(),
        )
    )


@ask("open, open, close, open, driver_version after close")
def _(case):
    return case.call("open"), case.close(), case.call("open"), case.driver_version()


def cost(call, rounds=100_000):
    """Nanoseconds of a call in a Python loop, the best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(rounds // 5):
            call()
        best = min(best, time.perf_counter_ns() - start)
    return best / (rounds // 5)


@ask("nanoseconds, less those of the loop and of an empty row", alone=True)
def _(case):
    rows, stream, memory, pinned = case.rows, case.stream(), case.memory(), case.pinned()
    event, done, (keep, host) = case.event(2), case.event(2), pageable()
    case.must("event_record", 0, done, stream)
    case.must("device_synchronize", 0)
    empty = cost(lambda: rows.device_count())
    calls = {
        "driver_version": lambda: rows.driver_version(),
        "current_device": lambda: rows.current_device(),
        "set_device": lambda: rows.set_device(0),
        "event_query": lambda: rows.event_query(0, done),
        "stream_query": lambda: rows.stream_query(0, stream),
        "stream_query 0": lambda: rows.stream_query(0, 0),
        "capture_status": lambda: rows.capture_status(0, stream),
        "event_record": lambda: rows.event_record(0, event, stream),
        "event create and destroy": lambda: rows.event_destroy(0, rows.event_create(0, 2)[1]),
        "wait for a complete event": lambda: rows.stream_wait_event(0, stream, done),
        "capture_mode_exchange": lambda: rows.capture_mode_exchange(0),
        "pointer_device of memory": lambda: rows.pointer_device(memory),
        "pointer_device of pinned": lambda: rows.pointer_device(pinned),
        "pointer_device of pageable": lambda: rows.pointer_device(host),
        "memory_info": lambda: rows.memory_info(0),
    }
    rounds = {"memory_info": 2000}
    figures = [f"{name} {cost(call, rounds.get(name, 100_000)) - empty:.0f}" for name, call in calls.items()]
    return [
        f"empty {empty:.0f}",
        *figures,
        f"copy in of 1 KiB pinned {copy_cost(rows, stream, memory, pinned):.0f}",
        f"of 1 KiB pageable {copy_cost(rows, stream, memory, host):.0f}",
        len(keep) and "net",
    ]


def copy_cost(rows, stream, memory, source):
    """Nanoseconds of a copy in, the stream emptied every hundred."""
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(100):
            rows.copy(0, stream, memory, source, 1024)
        best = min(best, time.perf_counter_ns() - start)
        rows.stream_synchronize(0, stream)
    return best / 100
