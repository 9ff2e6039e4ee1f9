"""What a capture allows, and what breaks it."""

from functools import partial

from asking import MODES, ask
from gate import Mark


@ask("begin a capture on stream 0, 1, 2, in mode 0, 1, 2")
def _(case):
    return [[case.capture_begin(0, stream, mode) for mode in range(3)] for stream in range(3)]


@ask("begin: twice, then status and end")
def _(case):
    stream = case.capturing()
    return case.capture_begin(0, stream, 0), case.status(stream), case.end(stream)


@ask("begin with mode 3, -1")
def _(case):
    return case.capture_begin(0, case.stream(), 3), case.capture_begin(0, case.stream(), -1)


@ask("begin on a stream whose work is pending; end")
def _(case):
    stream = case.stream()
    case.gate.hold(case, stream)
    codes = case.capture_begin(0, stream, 0), case.end(stream)
    case.gate.open()
    return codes


@ask("end without begin on an own stream, on stream 0; twice")
def _(case):
    stream = case.capturing()
    return case.end(case.stream()), case.end(0), case.end(stream), case.end(stream)


@ask("end from another thread, by mode; status; then end from the first")
def _(case):
    answers = []
    for mode in MODES:
        stream = case.capturing(mode)
        answers.append(
            (mode, case.in_thread(partial(case.end, stream)), case.status(stream), case.end(stream))
        )
    return answers


@ask("end on a stream that joined; status; end on the first; status of both")
def _(case):
    first, second, event = case.capturing(), case.stream(), case.event()
    case.must("event_record", 0, event, first)
    case.must("stream_wait_event", 0, second, event)
    ended = case.end(second), case.status(first), case.end(first)
    return ended, case.status(first), case.status(second)


@ask("unjoined with work: end, status of both, fill on the second, sync")
def _(case):
    memory = case.memory()
    first, second, event = case.capturing(), case.stream(), case.event()
    case.must("event_record", 0, event, first)
    case.must("stream_wait_event", 0, second, event)
    case.must("fill", 0, second, memory, 1, 1, 64)
    ended = case.end(first), case.status(first), case.status(second)
    return ended, case.fill(0, second, memory, 1, 1, 64), case.stream_synchronize(0, second)


@ask("unjoined without work since the fork: end (fork before any node; after one)")
def _(case):
    answers = []
    memory = case.memory()
    for nodes in (0, 1):
        first, second, event = case.capturing(), case.stream(), case.event()
        for _ in range(nodes):
            case.must("fill", 0, first, memory, 1, 1, 64)
        case.must("event_record", 0, event, first)
        case.must("stream_wait_event", 0, second, event)
        answers.append(case.end(first))
    return answers


@ask("joined, then more work on the second: end")
def _(case):
    memory = case.memory()
    first, second, event, back = case.capturing(), case.stream(), case.event(), case.event()
    case.must("event_record", 0, event, first)
    case.must("stream_wait_event", 0, second, event)
    case.must("fill", 0, second, memory, 1, 1, 64)
    case.must("event_record", 0, back, second)
    case.must("stream_wait_event", 0, first, back)
    case.must("fill", 0, second, memory, 2, 1, 64)
    return case.end(first)


@ask("destroy the capturing stream; capture anew; sync")
def _(case):
    memory = case.memory()
    stream = case.capturing()
    case.must("fill", 0, stream, memory, 1, 1, 64)
    destroyed = case.stream_destroy(0, stream)
    return destroyed, case.end(case.capturing()), case.device_synchronize(0)


@ask("destroy a stream that joined: code, status of the first, end")
def _(case):
    memory = case.memory()
    first, second, event = case.capturing(), case.stream(), case.event()
    case.must("event_record", 0, event, first)
    case.must("stream_wait_event", 0, second, event)
    case.must("fill", 0, second, memory, 1, 1, 64)
    return case.stream_destroy(0, second), case.status(first), case.end(first)


@ask("destroy an event recorded in the capture: code, status, end")
def _(case):
    stream, event = case.capturing(), case.event()
    case.must("event_record", 0, event, stream)
    return case.event_destroy(0, event), case.status(stream), case.end(stream)


@ask("two captures of one thread, by modes: begin the second, ends")
def _(case):
    answers = []
    for mode in MODES:
        first = case.capturing(mode)
        second = case.stream()
        answers.append((mode, case.capture_begin(0, second, 0), case.end(second), case.end(first)))
    return answers


@ask("an invalidated capture: fill, record, wait, host func, query, status, end, end")
def _(case):
    memory, event, mark = case.memory(), case.event(), Mark()
    stream = case.capturing()
    case.stream_synchronize(0, stream)
    return (
        case.fill(0, stream, memory, 1, 1, 64),
        case.event_record(0, event, stream),
        case.stream_wait_event(0, stream, event),
        mark.put(case, stream),
        case.stream_query(0, stream),
        case.status(stream),
        case.end(stream),
        case.end(stream),
    )


@ask("ids: of two captures, of a stream that joined, after the end")
def _(case):
    first, other, second, event = case.capturing(), case.capturing(), case.stream(), case.event()
    case.must("event_record", 0, event, first)
    case.must("stream_wait_event", 0, second, event)
    ids = [case.must("capture_status", 0, stream)[1] for stream in (first, other, second)]
    case.end(first)
    return ids[0] != ids[1], ids[0] == ids[2], case.capture_status(0, first)


@ask("capture mode: first, exchanged, of another thread, bad ones")
def _(case):
    first = case.capture_mode_exchange(2)
    other = case.in_thread(lambda: case.capture_mode_exchange(1))
    return (
        first,
        case.capture_mode_exchange(0),
        other,
        case.capture_mode_exchange(3),
        case.capture_mode_exchange(-1),
    )
