"""Which calls wait for work that is under way, and when host memory is read and written."""

from asking import MIB, ask, code_of, pageable
from asks_graphs import fills

KIB = 1024


def calls(case):
    """Name -> a call to make while a stream is held."""
    memory, spare, pinned, idle = case.memory(), case.memory(), case.pinned(), case.pinned()
    busy, gone, other, event = case.stream(), case.stream(), case.stream(), case.event()
    case.busy = busy
    keep, host = pageable(16 * MIB)
    registered_keep, registered = pageable()
    case.kept += keep, registered_keep
    case.must("host_register", 0, registered, MIB)
    size = case.must("granularity", 0)
    at, handle = case.must("address_reserve", 2 * size, 0), case.must("physical_create", 0, size)
    more = case.must("physical_create", 0, size)
    case.must("memory_map", at, size, handle)
    graph, spare_graph = fills(case, 1), fills(case, 1)
    exec_ = case.must("graph_instantiate", 0, graph, 0)
    return {
        "memory_alloc": lambda: case.memory_alloc(0, 64 * MIB),
        "memory_free": lambda: case.memory_free(0, spare),
        "host_alloc": lambda: case.host_alloc(0, 64 * MIB),
        "host_free": lambda: case.host_free(0, idle),
        "host_register": lambda: case.host_register(0, host, MIB),
        "host_unregister": lambda: case.host_unregister(0, registered),
        "memory_info": lambda: case.memory_info(0),
        "physical_create": lambda: case.physical_create(0, 32 * size),
        "physical_release": lambda: case.physical_release(handle),
        "memory_map": lambda: case.memory_map(at + size, size, more),
        "memory_access": lambda: case.memory_access(at, size, 0),
        "memory_unmap": lambda: case.memory_unmap(at, size),
        "async_alloc": lambda: case.async_alloc(0, other, 64 * MIB),
        "async_trim": lambda: case.async_trim(0, 0),
        "stream_create": lambda: case.stream_create(0, 1, 0),
        "stream_destroy": lambda: case.stream_destroy(0, gone),
        "stream_destroy of the held": lambda: case.stream_destroy(0, busy),
        "stream_synchronize elsewhere": lambda: case.stream_synchronize(0, other),
        "event_create": lambda: case.event_create(0, 0),
        "event_destroy of a pending": lambda: (
            case.must("event_record", 0, event, busy),
            case.event_destroy(0, event),
        )[1],
        "device_synchronize": lambda: case.device_synchronize(0),
        "stream_synchronize 0": lambda: case.stream_synchronize(0, 0),
        "graph_instantiate": lambda: case.graph_instantiate(0, graph, 0),
        "graph_launch elsewhere": lambda: case.graph_launch(0, exec_, other),
        "graph_upload elsewhere": lambda: case.graph_upload(0, exec_, other),
        "graph_destroy": lambda: case.graph_destroy(spare_graph),
        "fill on the held": lambda: case.fill(0, busy, memory, 1, 1, 64),
        "fill of pinned on the held": lambda: case.fill(0, busy, pinned, 1, 1, 64),
        "copy pinned in on the held": lambda: case.copy(0, busy, memory, pinned, 64),
        "copy pinned to pinned on the held": lambda: case.copy(0, busy, pinned + 512, pinned, 64),
        "copy pageable to pageable on the held": lambda: case.copy(0, busy, host + 512, host, 64),
        "copy pageable to pinned on the held": lambda: case.copy(0, busy, pinned, host, 64),
        "copy pageable out on the held": lambda: case.copy(0, busy, host, memory, 64),
        "copy pageable out elsewhere": lambda: case.copy(0, other, host, memory, 64),
        "copy pageable in elsewhere": lambda: case.copy(0, other, memory, host, 64),
        "module_load": lambda: case.module_load(0, b"garbage"),
    }


CALLS = (
    "memory_alloc",
    "memory_free",
    "host_alloc",
    "host_free",
    "host_register",
    "host_unregister",
    "memory_info",
    "physical_create",
    "physical_release",
    "memory_map",
    "memory_access",
    "memory_unmap",
    "async_alloc",
    "async_trim",
    "stream_create",
    "stream_destroy",
    "stream_destroy of the held",
    "stream_synchronize elsewhere",
    "event_create",
    "event_destroy of a pending",
    "device_synchronize",
    "stream_synchronize 0",
    "graph_instantiate",
    "graph_launch elsewhere",
    "graph_upload elsewhere",
    "graph_destroy",
    "fill on the held",
    "fill of pinned on the held",
    "copy pinned in on the held",
    "copy pinned to pinned on the held",
    "copy pageable to pageable on the held",
    "copy pageable to pinned on the held",
    "copy pageable out on the held",
    "copy pageable out elsewhere",
    "copy pageable in elsewhere",
    "module_load",
)


def while_held(name):
    def answer(case):
        call = calls(case)[name]
        case.must("device_synchronize", 0)
        case.gate.hold(case, case.busy)
        code = case.in_thread(lambda: code_of(call()), 2)
        case.gate.open()
        return code

    return answer


for name in CALLS:
    ask(f"while a stream is held, {name}")(while_held(name))

for size in (8, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, 8 * MIB):

    @ask(f"pageable copy in of {size} bytes behind a held stream: waits or not; the bytes of then or of now")
    def _(case, size=size):
        stream, memory = case.stream(), case.memory(8 * MIB)
        (keep, host), (seen, target) = pageable(size), pageable(8)
        keep[0] = keep[size - 1] = b"a"
        case.gate.hold(case, stream)
        answer = case.in_thread(lambda: case.copy(0, stream, memory, host, size), 2)
        if answer == 0:
            keep[0] = keep[size - 1] = b"b"
        case.gate.open()
        case.must("stream_synchronize", 0, stream)
        case.must("copy", 0, stream, target, memory, 1)
        case.must("copy", 0, stream, target + 1, memory + size - 1, 1)
        return answer, seen[:2].decode()


for size in (8, MIB, 64 * MIB):

    @ask(f"pageable copy out of {size} bytes: is its last byte there when the row returns")
    def _(case, size=size):
        stream, memory = case.stream(), case.memory(size)
        keep, host = pageable(size)
        case.must("fill", 0, stream, memory, 7, 1, size)
        code = case.copy(0, stream, host, memory, size)
        return code, keep[size - 1].hex(), case.stream_query(0, stream)
