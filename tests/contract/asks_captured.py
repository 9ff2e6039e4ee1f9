"""What a capture records, and its events."""

from asking import MIB, ask, pageable
from gate import Mark


@ask("copies in a capture, pinned in, out, pageable in, out, host to host: code, status, end")
def _(case):
    memory, pinned = case.memory(), case.pinned()
    keep, host = pageable(2 * MIB)
    answers = []
    for to, source in (
        (memory, pinned),
        (pinned, memory),
        (memory, host),
        (host, memory),
        (host, host + MIB),
    ):
        stream = case.capturing()
        answers.append((case.copy(0, stream, to, source, 64), case.status(stream), case.end(stream)))
    return answers, len(keep) and "kept"


@ask("pageable copy in, captured: what a launch copies, the bytes of then or of now")
def _(case):
    memory, (keep, host) = case.memory(), pageable()
    keep[0] = b"a"
    graph = case.graph(lambda stream: case.must("copy", 0, stream, memory, host, 64))
    keep[0] = b"b"
    exec_, stream = case.must("graph_instantiate", 0, graph, 0), case.stream()
    case.must("graph_launch", 0, exec_, stream)
    case.must("copy", 0, stream, host + 64, memory, 1)
    case.must("stream_synchronize", 0, stream)
    return keep[64].decode()


@ask("node counts: empty, record, record twice, wait unrecorded, copy 0 bytes, fill 0, host func, fill")
def _(case):
    memory, event, mark = case.memory(), case.event(), Mark()
    fillings = (
        lambda stream: None,
        lambda stream: case.must("event_record", 0, event, stream),
        lambda stream: [case.must("event_record", 0, event, stream) for _ in range(2)],
        lambda stream: case.must("stream_wait_event", 0, stream, case.event()),
        lambda stream: case.must("copy", 0, stream, memory, memory + 512, 0),
        lambda stream: case.must("fill", 0, stream, memory, 0, 1, 0),
        lambda stream: mark.put(case, stream),
        lambda stream: case.must("fill", 0, stream, memory, 0, 1, 64),
    )
    answers = []
    for fill in fillings:
        try:
            answers.append(case.must("graph_node_count", case.graph(fill)))
        except AssertionError as error:
            answers.append(str(error))
    return answers


@ask("node count of a fork and join: without work, with a fill on each side")
def _(case):
    answers = []
    memory = case.memory()
    for fills in (0, 1):
        first, second, event, back = case.capturing(), case.stream(), case.event(), case.event()
        case.must("event_record", 0, event, first)
        case.must("stream_wait_event", 0, second, event)
        for _ in range(fills):
            case.must("fill", 0, first, memory, 1, 1, 64)
            case.must("fill", 0, second, memory + 512, 1, 1, 64)
        case.must("event_record", 0, back, second)
        case.must("stream_wait_event", 0, first, back)
        answers.append(case.end(first))
    return answers


@ask("wait in a capture for an event of outside: complete, pending, never recorded: code, status, end")
def _(case):
    other, done, pending, fresh = case.stream(), case.event(), case.event(), case.event()
    case.must("event_record", 0, done, other)
    case.must("stream_synchronize", 0, other)
    case.gate.hold(case, other)
    case.must("event_record", 0, pending, other)
    answers = []
    for event in (done, pending, fresh):
        stream = case.capturing()
        answers.append((case.stream_wait_event(0, stream, event), case.status(stream), case.end(stream)))
    case.gate.open()
    return answers


@ask("an event recorded in a capture: query, synchronize, elapsed, status; again after the end")
def _(case):
    stream, event, outside = case.capturing("relaxed"), case.event(), case.event()
    case.must("event_record", 0, event, stream)
    during = (
        case.event_query(0, event),
        case.event_synchronize(0, event),
        case.event_elapsed(event, outside)[0],
    )
    state = case.status(stream), case.end(stream)
    after = case.event_query(0, event), case.event_synchronize(0, event), case.event_elapsed(event, event)[0]
    free = case.stream()
    again = case.event_record(0, event, free), case.event_synchronize(0, event), case.event_query(0, event)
    return during, state, after, again


@ask("wait for an event of a capture that ended: own stream, stream 0, another capture; its status")
def _(case):
    stream, event = case.capturing(), case.event()
    case.must("event_record", 0, event, stream)
    case.end(stream)
    free, other = case.stream(), case.capturing()
    waits = case.stream_wait_event(0, free, event), case.stream_wait_event(0, 0, event)
    return waits, case.stream_wait_event(0, other, event), case.status(other), case.end(other)


@ask("wait for an event of a running capture: stream 0, blocking stream, another capture; statuses, ends")
def _(case):
    answers = []
    for kind in ("stream 0", "blocking", "other capture"):
        stream, event = case.capturing("relaxed"), case.event()
        case.must("event_record", 0, event, stream)
        waiter = (
            0 if kind == "stream 0" else case.stream(0) if kind == "blocking" else case.capturing("relaxed")
        )
        code = case.stream_wait_event(0, waiter, event)
        answers.append((code, case.status(stream), case.status(waiter), case.end(stream), case.end(waiter)))
    return answers


@ask("an event recorded in a capture, destroyed, its wait made before: end")
def _(case):
    first, second, event, back = case.capturing(), case.stream(), case.event(), case.event()
    case.must("event_record", 0, event, first)
    case.must("stream_wait_event", 0, second, event)
    destroyed = case.event_destroy(0, event)
    case.must("fill", 0, second, case_memory(case), 1, 1, 64)
    case.must("event_record", 0, back, second)
    case.must("stream_wait_event", 0, first, back)
    return destroyed, case.event_destroy(0, back), case.end(first)


def case_memory(case):
    before = case.must("capture_mode_exchange", 2)
    memory = case.memory()
    case.must("capture_mode_exchange", before)
    return memory


@ask("wait twice for the same event in a capture; wait in the stream that recorded it: nodes")
def _(case):
    stream, event = case.capturing(), case.event()
    case.must("fill", 0, stream, case_memory(case), 1, 1, 64)
    case.must("event_record", 0, event, stream)
    return (
        case.stream_wait_event(0, stream, event),
        case.stream_wait_event(0, stream, event),
        case.end(stream),
    )


@ask("launch and upload onto a capturing stream: code, status; end")
def _(case):
    memory = case.memory()
    graph = case.graph(lambda stream: [case.must("fill", 0, stream, memory, 1, 1, 64) for _ in range(3)])
    exec_ = case.must("graph_instantiate", 0, graph, 0)
    stream = case.capturing("relaxed")
    launched = case.graph_launch(0, exec_, stream), case.status(stream)
    return launched, case.graph_upload(0, exec_, stream), case.status(stream), case.end(stream)


@ask("in a capture: instantiate another graph, launch it elsewhere, destroy it, by mode of the capture")
def _(case):
    graph = case.graph(lambda stream: None)
    answers = []
    for mode in ("global", "thread_local", "relaxed"):
        other = case.stream()
        stream = case.capturing(mode)
        code, exec_ = case.graph_instantiate(0, graph, 0)
        launched = case.graph_launch(0, exec_, other) if code == 0 else "-"
        destroyed = case.graph_exec_destroy(exec_) if code == 0 else "-"
        answers.append((mode, code, launched, destroyed, case.status(stream), case.end(stream)))
    return answers


@ask("async_alloc and async_free in a capture: codes, end, instantiate, launch twice")
def _(case):
    answers = []
    for freed in (True, False):
        stream = case.capturing()
        code, address = case.async_alloc(0, stream, MIB)
        free = case.async_free(0, stream, address) if code == 0 and freed else "-"
        made, graph = case.capture_end(0, stream)
        if made == 0:
            code_i, exec_ = case.graph_instantiate(0, graph, 0)
            launches = [case.graph_launch(0, exec_, stream) for _ in range(2)] if code_i == 0 else "-"
            answers.append((code, free, made, code_i, launches, case.stream_synchronize(0, stream)))
        else:
            answers.append((code, free, made))
    return answers


@ask("in a capture: copy out of range, fill of width 3, misaligned fill: code, status, end")
def _(case):
    memory = case.memory()
    stream = case.capturing()
    codes = (
        case.copy(0, stream, memory, memory + MIB - 16, 64),
        case.status(stream),
        case.fill(0, stream, memory, 1, 3, 16),
        case.status(stream),
        case.fill(0, stream, memory + 1, 1, 4, 16),
        case.status(stream),
        case.stream_host_func(0, stream, 0, 0),
        case.status(stream),
    )
    return codes, case.end(stream)


@ask("stream_priority, priority range of a capturing stream; status after")
def _(case):
    stream = case.capturing()
    return (
        case.stream_priority(0, stream),
        case.stream_priority_range(0),
        case.status(stream),
        case.end(stream),
    )


@ask("stream_query, stream_synchronize of the capturing stream: code, status, again, end")
def _(case):
    answers = []
    for row in ("stream_query", "stream_synchronize"):
        stream = case.capturing()
        answers.append(
            (row, case.call(row, 0, stream), case.status(stream), case.call(row, 0, stream), case.end(stream))
        )
    return answers
