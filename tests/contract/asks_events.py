"""Streams, events, copies and fills."""

import ctypes

from asking import MIB, ask, pageable


@ask("stream flags 2, 3, 4")
def _(case):
    return [case.stream_create(0, flags, 0)[0] for flags in (2, 3, 4)]


@ask("priority range; what streams made with -100, -6, -5, -1, 0, 1, 100 say")
def _(case):
    made = [case.stream_create(0, 1, priority) for priority in (-100, -6, -5, -1, 0, 1, 100)]
    return case.stream_priority_range(0), [
        (code, case.stream_priority(0, stream)) for code, stream in made if not code
    ]


@ask("stream_priority of stream 0, 1, 2")
def _(case):
    return [case.stream_priority(0, stream) for stream in range(3)]


for stream in range(3):

    @ask(f"stream_destroy of stream {stream}")
    def _(case, stream=stream):
        return case.stream_destroy(0, stream)


@ask("stream_query, stream_synchronize, fill on stream 0, 1, 2")
def _(case):
    memory = case.memory()
    return [
        (
            case.fill(0, stream, memory, 1, 1, 64),
            case.stream_synchronize(0, stream),
            case.stream_query(0, stream),
        )
        for stream in range(3)
    ]


for row in ("stream_query", "stream_synchronize", "stream_destroy", "stream_priority"):

    @ask(f"{row} of a destroyed stream")
    def _(case, row=row):
        stream = case.stream()
        case.must("stream_destroy", 0, stream)
        return case.call(row, 0, stream)


for row in ("event_query", "event_synchronize", "event_destroy"):

    @ask(f"{row} of a destroyed event; of 0")
    def _(case, row=row):
        event = case.event()
        case.must("event_destroy", 0, event)
        return case.call(row, 0, 0), case.call(row, 0, event)


@ask("stream_wait_event of event 0; event_record of event 0; host func 0")
def _(case):
    stream = case.stream()
    return (
        case.stream_wait_event(0, stream, 0),
        case.event_record(0, 0, stream),
        case.stream_host_func(0, stream, 0, 0),
    )


@ask("event flags 3, 4, 6, 7, 8, 16")
def _(case):
    return [case.event_create(0, flags)[0] for flags in (3, 4, 6, 7, 8, 16)]


@ask("an event never recorded: query, synchronize, wait")
def _(case):
    event = case.event()
    return (
        case.event_query(0, event),
        case.event_synchronize(0, event),
        case.stream_wait_event(0, case.stream(), event),
    )


@ask("elapsed: never recorded, one recorded, no timing, no timing and not recorded, with itself, with 0")
def _(case):
    stream, fresh, fresher = case.stream(), case.event(), case.event()
    timed, untimed, idle = case.event(), case.event(2), case.event(2)
    for event in (timed, untimed):
        case.must("event_record", 0, event, stream)
    case.must("stream_synchronize", 0, stream)
    pairs = (fresh, fresher), (timed, fresh), (fresh, timed), (timed, untimed), (idle, timed), (timed, 0)
    return [case.event_elapsed(*pair)[0] for pair in pairs], case.event_elapsed(timed, timed)


@ask("elapsed: the end pending; both pending; the wrong way round: code and sign")
def _(case):
    stream, first, second, third = case.stream(), case.event(), case.event(), case.event()
    case.must("event_record", 0, first, stream)
    case.must("stream_synchronize", 0, stream)
    case.gate.hold(case, stream)
    case.must("event_record", 0, second, stream)
    case.must("event_record", 0, third, stream)
    pending = (
        case.event_elapsed(first, second)[0],
        case.event_elapsed(second, third)[0],
        case.event_elapsed(second, first)[0],
    )
    case.gate.open()
    case.must("stream_synchronize", 0, stream)
    code, milliseconds = case.event_elapsed(third, first)
    return pending, code, milliseconds < 0


@ask("an event recorded anew while the first record is pending: what a wait made before it waits for")
def _(case):
    slow, quick, waiter, event = case.stream(), case.stream(), case.stream(), case.event()
    case.gate.hold(case, slow)
    case.must("event_record", 0, event, slow)
    case.must("stream_wait_event", 0, waiter, event)
    case.must("event_record", 0, event, quick)
    case.must("stream_synchronize", 0, quick)
    answers = case.event_query(0, event), case.stream_query(0, waiter)
    case.gate.open()
    return answers, case.stream_synchronize(0, waiter)


@ask("copy: 0 bytes, 0 bytes of 0, null source, null target")
def _(case):
    stream, memory = case.stream(), case.memory()
    return (
        case.copy(0, stream, memory, memory + 64, 0),
        case.copy(0, stream, 0, 0, 0),
        case.copy(0, stream, memory, 0, 64),
        case.copy(0, stream, 0, memory, 64),
        case.stream_synchronize(0, stream),
    )


@ask("copy: source out of range, target out of range; sync")
def _(case):
    stream, memory, other = case.stream(), case.memory(2 * MIB), case.memory(2 * MIB)
    codes = (
        case.copy(0, stream, memory, other + 2 * MIB - 16, 64),
        case.copy(0, stream, memory + 2 * MIB - 16, other, 64),
    )
    return codes, case.stream_synchronize(0, stream), case.device_synchronize(0)


@ask("copy: far out of range; sync")
def _(case):
    stream, memory = case.stream(), case.memory(2 * MIB)
    return case.copy(0, stream, memory, memory, 1 << 40), case.stream_synchronize(0, stream)


@ask("copy: from freed memory; sync")
def _(case):
    stream, memory, other = case.stream(), case.memory(32 * MIB), case.memory()
    case.must("memory_free", 0, memory)
    return case.copy(0, stream, other, memory, 64), case.stream_synchronize(0, stream)


@ask("copy: overlapping; to itself; host to host pinned; host to host pageable")
def _(case):
    stream, memory, pinned, (keep, host) = case.stream(), case.memory(), case.pinned(), pageable()
    return (
        case.copy(0, stream, memory + 32, memory, 64),
        case.copy(0, stream, memory, memory, 64),
        case.copy(0, stream, pinned + 512, pinned, 64),
        case.copy(0, stream, host + 512, host, 64),
        case.stream_synchronize(0, stream),
        len(keep),
    )


@ask("copy_peer with itself; with a bad device; out of range")
def _(case):
    stream, memory, other = case.stream(), case.memory(2 * MIB), case.memory(2 * MIB)
    return (
        case.copy_peer(0, memory, 0, other, 64, stream),
        case.copy_peer(99, memory, 0, other, 64, stream),
        case.copy_peer(0, memory, 0, other + 2 * MIB - 16, 64, stream),
        case.stream_synchronize(0, stream),
    )


@ask("fill: misaligned by 1 at width 1, 2, 4; by 2 at width 4")
def _(case):
    stream, memory = case.stream(), case.memory()
    return (
        [case.fill(0, stream, memory + 1, 1, width, 16) for width in (1, 2, 4)],
        case.fill(0, stream, memory + 2, 1, 4, 16),
        case.stream_synchronize(0, stream),
    )


@ask("fill: width 3, 0, 8; count 0; count 0 at 0; at 0; out of range")
def _(case):
    stream, memory = case.stream(), case.memory(2 * MIB)
    return (
        [case.fill(0, stream, memory, 1, width, 16) for width in (3, 0, 8)],
        case.fill(0, stream, memory, 1, 1, 0),
        case.fill(0, stream, 0, 1, 1, 0),
        case.fill(0, stream, 0, 1, 1, 16),
        case.fill(0, stream, memory + 2 * MIB - 16, 1, 1, 64),
        case.stream_synchronize(0, stream),
    )


@ask("fill: value 0x1234 at width 1, 0x12345678 at width 2: the bytes")
def _(case):
    stream, memory, pinned = case.stream(), case.memory(), case.pinned()
    case.must("fill", 0, stream, memory, 0x1234, 1, 2)
    case.must("fill", 0, stream, memory + 16, 0x12345678, 2, 1)
    case.must("copy", 0, stream, pinned, memory, 32)
    case.must("stream_synchronize", 0, stream)
    return ctypes.string_at(pinned, 2).hex(), ctypes.string_at(pinned + 16, 2).hex()


@ask("fill of pinned memory, of registered memory: code, sync, byte")
def _(case):
    stream, pinned, (keep, host) = case.stream(), case.pinned(), pageable(2 * MIB)
    case.host_register(0, host, MIB)
    answers = case.fill(0, stream, pinned, 7, 1, 64), case.fill(0, stream, host, 7, 1, 64)
    return answers, case.stream_synchronize(0, stream), ctypes.string_at(pinned, 1).hex(), keep[0].hex()


@ask("fill of pageable memory: code, sync")
def _(case):
    stream, (keep, host) = case.stream(), pageable()
    return case.fill(0, stream, host, 7, 1, 64), case.stream_synchronize(0, stream), keep[0].hex()


@ask("host func that calls rows: memory_alloc, event_query, stream_query, event_record, driver_version")
def _(case):
    stream, event, codes, memory = case.stream(), case.event(), [], case.memory()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def call(_):
        codes.extend(
            (
                case.memory_alloc(0, MIB)[0],
                case.event_query(0, event),
                case.stream_query(0, stream),
                case.event_record(0, event, stream),
                case.driver_version()[0],
                case.current_device(),
                case.capture_mode_exchange(0)[0],
                case.pointer_device(memory),
            )
        )

    case.must("stream_host_func", 0, stream, ctypes.cast(call, ctypes.c_void_p).value, 0)
    return case.stream_synchronize(0, stream), codes


@ask("legacy order: a blocking stream waits for stream 0 and it for that; a non-blocking one does not")
def _(case):
    blocking, free = case.stream(0), case.stream()
    case.gate.hold(case, 0)
    event, other = case.event(), case.event()
    case.must("event_record", 0, event, blocking)
    case.must("event_record", 0, other, free)
    answers = case.event_query(0, event), case.event_query(0, other)
    case.gate.open()
    case.must("device_synchronize", 0)
    case.gate.hold(case, blocking)
    case.must("event_record", 0, event, 0)
    answers += (case.event_query(0, event), case.stream_query(0, 0))
    case.gate.open()
    return answers
