"""Asks a driver what it does where the documents are silent: python tests/contract/ask_device.py cuda|host

Prints a line a situation: the status code of the call, and whether a capture under way survived it.  Where
a GPU and the host device differ, the GPU is right.
"""

import ctypes
import sys
import time

from accelrt.driver.registry import Rows
from accelrt.testing import on_a_thread

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
STATES = {0: "no capture", 1: "capture goes on", 2: "capture broken"}


class Asked:
    """A driver, and the things that the questions are about."""

    def __init__(self, driver):
        self.rows = Rows(driver)
        assert self.rows.open() == 0
        self.rows.set_device(0)
        self.stream = self.made("stream_create", 0, 1, 0)
        self.other = self.made("stream_create", 0, 1, 0)
        self.event = self.made("event_create", 0, 2)
        self.memory = self.made("memory_alloc", 0, 4 << 20)
        self.rows.event_record(0, self.event, self.other)
        self.rows.stream_synchronize(0, self.other)

    def made(self, row, *arguments):
        code, handle = getattr(self.rows, row)(*arguments)
        assert code == 0, (row, code)
        return handle

    def begin(self, stream):
        return self.rows.capture_begin(0, stream, GLOBAL)

    def end(self, stream):
        """The code; the graph is left alone."""
        return self.rows.capture_end(0, stream)[0]

    def state(self, stream, device=0):
        return STATES[self.rows.capture_status(device, stream)[1]]

    def captured_event(self):
        """An event that was recorded in a capture, which is still under way."""
        event = self.made("event_create", 0, 2)
        self.begin(self.stream)
        self.rows.event_record(0, event, self.stream)
        return event

    def graph(self):
        assert self.rows.capture_begin(0, self.stream, GLOBAL) == 0
        assert self.rows.fill(0, self.stream, self.memory, 1, 1, 64) == 0
        return self.made("capture_end", 0, self.stream)

    def during(self, name, call, mode=GLOBAL, exchanged=None, thread=False):
        """One call beside a capture in a mode, by this thread or another, in its own mode."""
        rows, answers = self.rows, []

        def ask():
            rows.set_device(0)
            before = rows.capture_mode_exchange(exchanged)[1] if exchanged is not None else None
            answers.append(call())
            if exchanged is not None:
                rows.capture_mode_exchange(before)

        assert rows.capture_begin(0, self.stream, mode) == 0
        if thread:
            on_a_thread(ask)
        else:
            ask()
        state = self.state(self.stream)
        code, graph = rows.capture_end(0, self.stream)
        if graph:
            rows.graph_destroy(graph)
        first = answers[0][0] if isinstance(answers[0], tuple) else answers[0]
        where = ("global", "thread_local", "relaxed")[mode]
        own = "" if exchanged is None else ", caller " + ("global", "thread_local", "relaxed")[exchanged]
        who = ", another thread" if thread else ""
        print(f"{name} [{where}{own}{who}]: {first}; {state}; end {code}")


def calls(asked):
    """Name -> a call that may or may not be permitted beside a capture; each makes what it needs before."""
    rows = asked.rows
    spare_events = [asked.made("event_create", 0, 2) for _ in range(16)]
    spare_memory = [asked.made("memory_alloc", 0, 2 << 20) for _ in range(16)]
    spare_pinned = [asked.made("host_alloc", 0, 4096) for _ in range(16)]
    spare_graphs = [asked.graph() for _ in range(32)]
    spare_execs = [asked.made("graph_instantiate", 0, graph, 0) for graph in spare_graphs[:16]]
    room = asked.made("address_reserve", 2 << 20, 0)
    return {
        "memory_alloc": lambda: rows.memory_alloc(0, 2 << 20),
        "memory_free": lambda: rows.memory_free(0, spare_memory.pop()),
        "host_alloc": lambda: rows.host_alloc(0, 4096),
        "host_free": lambda: rows.host_free(0, spare_pinned.pop()),
        "event_create": lambda: rows.event_create(0, 2),
        "event_destroy": lambda: rows.event_destroy(0, spare_events.pop()),
        "event_query": lambda: rows.event_query(0, asked.event),
        "event_synchronize": lambda: rows.event_synchronize(0, asked.event),
        "event_record on another stream": lambda: rows.event_record(0, asked.event, asked.other),
        "stream_query of another": lambda: rows.stream_query(0, asked.other),
        "stream_synchronize of another": lambda: rows.stream_synchronize(0, asked.other),
        "stream_create": lambda: rows.stream_create(0, 1, 0),
        "device_synchronize": lambda: rows.device_synchronize(0),
        "graph_instantiate": lambda: rows.graph_instantiate(0, spare_graphs[-1], 0),
        "graph_destroy": lambda: rows.graph_destroy(spare_graphs.pop()),
        "graph_exec_destroy": lambda: rows.graph_exec_destroy(spare_execs.pop()),
        "graph_launch on another stream": lambda: rows.graph_launch(0, spare_execs[0], asked.other),
        "fill on another stream": lambda: rows.fill(0, asked.other, asked.memory, 1, 1, 64),
        "fill on the legacy stream": lambda: rows.fill(0, 0, asked.memory, 1, 1, 64),
        "memory_info": lambda: rows.memory_info(0),
        "pointer_device": lambda: rows.pointer_device(asked.memory),
        "physical_create": lambda: rows.physical_create(0, 2 << 20, False),
        "memory_map and unmap": lambda: map_and_unmap(rows, room),
        "capture_status of the legacy stream": lambda: rows.capture_status(0, 0),
        "wait for an event recorded outside": lambda: rows.stream_wait_event(0, asked.stream, asked.event),
        "managed_alloc": lambda: rows.managed_alloc(0, 2 << 20, 1),
        **moves(asked),
    }


def moves(asked):
    """The same about managed memory: on the capturing stream itself, and on another."""
    rows = asked.rows
    managed = asked.made("managed_alloc", 0, 2 << 20, 1)
    asked.moved = (ctypes.c_size_t * 3)(managed, 2 << 20, 1)  # to device 0; the row reads it during the call
    place = ctypes.addressof(asked.moved)
    return {
        "managed_prefetch": lambda: rows.managed_prefetch(0, asked.stream, place, 1),
        "managed_prefetch on another stream": lambda: rows.managed_prefetch(0, asked.other, place, 1),
        "managed_discard": lambda: rows.managed_discard(0, asked.stream, place, 1, False),
        "managed_discard on another stream": lambda: rows.managed_discard(0, asked.other, place, 1, False),
        "managed_advise": lambda: rows.managed_advise(0, managed, 2 << 20, 1, 1, 0),
    }


def map_and_unmap(rows, room):
    code, handle = rows.physical_create(0, 2 << 20, False)
    for step in (
        lambda: rows.memory_map(room, 2 << 20, handle),
        lambda: rows.memory_access(room, 2 << 20, 0, 3),
        lambda: rows.memory_unmap(room, 2 << 20),
        lambda: rows.physical_release(handle),
    ):
        code = code or step()
    return code


def captures(asked):
    """Captures that are begun, ended, launched into and joined in odd ways."""
    rows, stream = asked.rows, asked.stream
    begin, end, state = asked.begin, asked.end, asked.state
    print("begin twice:", begin(stream), begin(stream), state(stream), end(stream))
    print("end without begin:", end(stream))
    begin(stream)
    wrong = on_a_thread(lambda: rows.capture_end(0, stream))
    print("end on the wrong thread:", wrong, state(stream), end(stream))
    exec_ = asked.made("graph_instantiate", 0, asked.graph(), 0)
    begin(stream)
    code, graph = rows.graph_launch(0, exec_, stream), rows.capture_end(0, stream)[1]
    print("launch into a capture:", code, "nodes", rows.graph_node_count(graph))
    dying = asked.made("stream_create", 0, 1, 0)
    begin(dying)
    print("destroy a capturing stream:", rows.stream_destroy(0, dying))
    captured = asked.captured_event()
    rows.graph_destroy(rows.capture_end(0, stream)[1])
    query, synchronize = rows.event_query(0, captured), rows.event_synchronize(0, captured)
    wait = rows.stream_wait_event(0, asked.other, captured)
    print("captured event after the capture: query", query, "synchronize", synchronize, "wait", wait)
    blocking = asked.made("stream_create", 0, 0, 0)
    begin(blocking)
    code, before = rows.capture_status(0, 0)[0], state(blocking)
    wait, after = rows.stream_wait_event(0, 0, captured), state(blocking)
    text = "status of the legacy stream beside a blocking capture:"
    print(text, code, before, "wait", wait, after, end(blocking))
    rows.stream_wait_event(0, asked.other, asked.captured_event())
    joined = rows.capture_end(0, asked.other)
    print("joined without work: end on it", joined, state(stream), "then on the first", end(stream))
    rows.stream_wait_event(0, asked.other, asked.captured_event())
    print("joined without work: end", end(stream))
    begin(stream)
    queries = rows.stream_query(0, stream), "again", rows.stream_query(0, stream)
    code, filled = rows.memory_alloc(0, 2 << 20)[0], rows.fill(0, stream, asked.memory, 1, 1, 4)
    print("beside a broken capture: query", *queries, "alloc", code, "fill", filled, end(stream))
    begin(stream)
    rows.copy(0, stream, asked.memory, asked.memory + 4096, 0)
    print("nodes of an empty copy:", rows.graph_node_count(rows.capture_end(0, stream)[1]))


def arguments(asked):
    """Sizes and addresses that are odd or bad."""
    rows, stream = asked.rows, asked.stream
    for name, size in (("1", 1), ("2 MiB + 1", (2 << 20) + 1)):
        print(f"reserve {name}:", rows.address_reserve(size, 0)[0])
    for size in (0, 1):
        print(f"create {size}:", rows.physical_create(0, size, False)[0])
    print("alloc 1:", rows.memory_alloc(0, 1)[0])
    print("fill width 3:", rows.fill(0, stream, asked.memory, 0, 3, 4))
    print("fill misaligned:", rows.fill(0, stream, asked.memory + 1, 0, 4, 4))
    print("fill nothing:", rows.fill(0, stream, asked.memory, 0, 1, 0))
    print("host func NULL:", rows.stream_host_func(0, stream, 0, 0))
    print("free 0:", rows.memory_free(0, 0))
    small = asked.made("memory_alloc", 0, 1000)
    print("copy past a small allocation:", rows.copy(0, stream, asked.memory, small, 2000))


def cost(asked):
    start = time.perf_counter_ns()
    for _ in range(100_000):
        asked.rows.current_device()
    middle = time.perf_counter_ns()
    for _ in range(100_000):
        asked.rows.driver_version()
    print(f"current_device less driver_version: {(2 * middle - start - time.perf_counter_ns()) / 1e5:.1f} ns")


def between_devices(asked):
    rows, last = asked.rows, asked.rows.device_count()[1] - 1
    if last == 0:
        return
    far = asked.made("memory_alloc", last, 4096)
    for on in (0, last):
        stream = asked.made("stream_create", on, 1, 0)
        calls = {
            "copy_across": lambda size, on=on, stream=stream: rows.copy_across(
                on, stream, last, far, 0, asked.memory, size
            ),
            "copy": lambda size, on=on, stream=stream: rows.copy(on, stream, far, asked.memory, size),
        }
        for name, call in calls.items():
            for size in (4096, 0):
                rows.capture_begin(on, stream, RELAXED)
                text = f"{name} of {size} bytes between devices, captured on device {on}:"
                print(text, call(size), asked.state(stream, on), "again", call(size), end=" ")
                print("end", rows.capture_end(on, stream)[0])


def attributes(asked):
    """What a new stream has, whether it is set and read back, and whether beside a capture too."""
    rows, (_, greatest) = asked.rows, asked.rows.stream_priority_range(0)[1:]
    names = {3: "synchronization policy", 8: "priority", 9: "domain map", 10: "domain"}
    for number, first, second in ((3, 4, 0), (8, greatest, 0), (9, 0, 0), (9, 1, 0), (9, 200, 0), (10, 1, 0)):
        before = rows.stream_attribute_get(0, asked.stream, number)
        code = rows.stream_attribute_set(0, asked.stream, number, first, second)
        after = rows.stream_attribute_get(0, asked.stream, number)
        print(f"{names[number]}: is", before, "set to", (first, second), code, "and is", after)
        rows.stream_attribute_set(0, asked.stream, number, *before[1:])
        rows.capture_begin(0, asked.stream, RELAXED)
        code = rows.stream_attribute_set(0, asked.stream, number, *before[1:])
        state = asked.state(asked.stream)
        print(f"{names[number]} set while the stream captures:", code, state)
        rows.graph_destroy(rows.capture_end(0, asked.stream)[1])
    print("stream_priority after it was set by attribute:", rows.stream_priority(0, asked.stream))


def blocking(asked):
    """Blocking streams beside a capture of one of them."""
    rows = asked.rows
    one, other = (asked.made("stream_create", 0, 0, 0) for _ in range(2))
    for name, call in {
        "fill on the legacy stream": lambda: rows.fill(0, 0, asked.memory, 1, 1, 64),
        "fill on another blocking stream": lambda: rows.fill(0, other, asked.memory, 1, 1, 64),
        "query of another blocking stream": lambda: rows.stream_query(0, other),
    }.items():
        rows.capture_begin(0, one, RELAXED)
        code, state = call(), asked.state(one)
        print(f"{name}, while a blocking stream captures:", code, state)
        code, graph = rows.capture_end(0, one)
        if code == 0:
            rows.graph_destroy(graph)
    for stream in (one, other):
        rows.stream_destroy(0, stream)


def contexts(asked):
    print("contexts:", [asked.rows.context_active(device) for device in range(asked.rows.device_count()[1])])


def main(driver):
    asked = Asked(driver)
    for name, call in calls(asked).items():
        asked.during(name, call)
        asked.during(name, call, exchanged=RELAXED)
        asked.during(name, call, mode=THREAD_LOCAL, thread=True)
        asked.during(name, call, mode=GLOBAL, thread=True)
        asked.during(name, call, mode=RELAXED)
    captures(asked)
    arguments(asked)
    cost(asked)
    between_devices(asked)
    attributes(asked)
    blocking(asked)
    contexts(asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
