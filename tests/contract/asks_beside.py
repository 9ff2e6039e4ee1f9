"""Calls beside a capture that are no part of it: whether they are allowed, and what becomes of it."""

from asking import MIB, MODES, ask, code_of, pageable
from asks_graphs import fills


def operations(case):
    """Name -> a call that is no part of the capture; made before it begins."""
    memory, spare, pinned = case.memory(), case.memory(), case.pinned()
    other, gone = case.stream(), case.stream()
    event, late, idle = case.event(), case.event(), case.event()
    keep, host = pageable()
    registered_keep, registered = pageable()
    case.must("host_register", 0, registered, MIB)
    size = case.must("granularity", 0)
    at = case.must("address_reserve", 2 * size, 0)
    handle, more = case.must("physical_create", 0, size), case.must("physical_create", 0, size)
    case.must("memory_map", at, size, handle)
    case.must("event_record", 0, event, other)
    case.must("stream_synchronize", 0, other)
    case.kept += keep, registered_keep
    graph, spare_graph = fills(case, 1), fills(case, 1)
    exec_, spare_exec = (case.must("graph_instantiate", 0, graph, 0) for _ in range(2))
    return {
        "memory_alloc": lambda: case.memory_alloc(0, MIB),
        "memory_free": lambda: case.memory_free(0, spare),
        "host_alloc": lambda: case.host_alloc(0, MIB),
        "host_free": lambda: case.host_free(0, pinned),
        "host_register": lambda: case.host_register(0, host, MIB),
        "host_unregister": lambda: case.host_unregister(0, registered),
        "memory_info": lambda: case.memory_info(0),
        "pointer_device": lambda: case.pointer_device(memory),
        "address_reserve": lambda: case.address_reserve(size, 0),
        "physical_create": lambda: case.physical_create(0, size),
        "memory_map": lambda: case.memory_map(at + size, size, more),
        "memory_access": lambda: case.memory_access(at, size, 0),
        "memory_unmap": lambda: case.memory_unmap(at, size),
        "async_alloc elsewhere": lambda: case.async_alloc(0, other, MIB),
        "stream_create": lambda: case.stream_create(0, 1, 0),
        "stream_destroy": lambda: case.stream_destroy(0, gone),
        "stream_query elsewhere": lambda: case.stream_query(0, other),
        "stream_synchronize elsewhere": lambda: case.stream_synchronize(0, other),
        "stream_query 0": lambda: case.stream_query(0, 0),
        "stream_synchronize 0": lambda: case.stream_synchronize(0, 0),
        "device_synchronize": lambda: case.device_synchronize(0),
        "set_device": lambda: case.set_device(0),
        "event_create": lambda: case.event_create(0, 0),
        "event_destroy": lambda: case.event_destroy(0, idle),
        "event_record elsewhere": lambda: case.event_record(0, late, other),
        "event_record 0": lambda: case.event_record(0, late, 0),
        "event_query": lambda: case.event_query(0, event),
        "event_synchronize": lambda: case.event_synchronize(0, event),
        "event_elapsed": lambda: case.event_elapsed(event, event),
        "fill elsewhere": lambda: case.fill(0, other, memory, 1, 1, 64),
        "fill 0": lambda: case.fill(0, 0, memory, 1, 1, 64),
        "fill 1": lambda: case.fill(0, 1, memory, 1, 1, 64),
        "fill 2": lambda: case.fill(0, 2, memory, 1, 1, 64),
        "copy pageable in elsewhere": lambda: case.copy(0, other, memory, host, 64),
        "copy pageable out elsewhere": lambda: case.copy(0, other, host, memory, 64),
        "wait 0": lambda: case.stream_wait_event(0, 0, event),
        "capture_status 0": lambda: case.capture_status(0, 0),
        "graph_instantiate": lambda: case.graph_instantiate(0, graph, 0),
        "graph_update": lambda: case.graph_update(spare_exec, graph),
        "graph_upload elsewhere": lambda: case.graph_upload(0, exec_, other),
        "graph_launch elsewhere": lambda: case.graph_launch(0, exec_, other),
        "graph_exec_destroy": lambda: case.graph_exec_destroy(spare_exec),
        "graph_node_count": lambda: case.graph_node_count(graph),
        "graph_destroy": lambda: case.graph_destroy(spare_graph),
        "capture_end elsewhere": lambda: case.capture_end(0, other),
        "enable_peer": lambda: case.enable_peer(0, 0),
    }


OPERATIONS = (
    "memory_alloc",
    "memory_free",
    "host_alloc",
    "host_free",
    "host_register",
    "host_unregister",
    "memory_info",
    "pointer_device",
    "address_reserve",
    "physical_create",
    "memory_map",
    "memory_access",
    "memory_unmap",
    "async_alloc elsewhere",
    "stream_create",
    "stream_destroy",
    "stream_query elsewhere",
    "stream_synchronize elsewhere",
    "stream_query 0",
    "stream_synchronize 0",
    "device_synchronize",
    "set_device",
    "event_create",
    "event_destroy",
    "event_record elsewhere",
    "event_record 0",
    "event_query",
    "event_synchronize",
    "event_elapsed",
    "fill elsewhere",
    "fill 0",
    "fill 1",
    "fill 2",
    "copy pageable in elsewhere",
    "copy pageable out elsewhere",
    "wait 0",
    "capture_status 0",
    "graph_instantiate",
    "graph_update",
    "graph_upload elsewhere",
    "graph_launch elsewhere",
    "graph_exec_destroy",
    "graph_node_count",
    "graph_destroy",
    "capture_end elsewhere",
    "enable_peer",
)


def beside(case, name, mode, where, flags=1):
    """The operation's code beside a capture, and what became of the capture."""
    operation = operations(case)[name]
    stream = case.capturing(mode, flags)
    if where == "thread":
        answer = case.in_thread(lambda: code_of(operation()))
    elif where == "exchanged":
        case.must("capture_mode_exchange", 2)
        answer = code_of(operation())
        case.must("capture_mode_exchange", 0)
    else:
        answer = code_of(operation())
    return answer, case.status(stream), case.end(stream).split(" nodes")[0]


def table_of(name):
    def answers(case):
        return [
            (where or "same", mode, *beside(case, name, mode, where))
            for where in ("", "thread", "exchanged")
            for mode in MODES
        ]

    return answers


for operation in OPERATIONS:
    ask(f"beside a capture, {operation}")(table_of(operation))


def beside_blocking(name):
    def answers(case):
        return [(mode, *beside(case, name, mode, "", flags=0)) for mode in MODES]

    return answers


for operation in (name for name in OPERATIONS if name.endswith((" 0", " 1", " 2"))):
    ask(f"beside a blocking stream's capture, {operation}")(beside_blocking(operation))
