"""Plain, host and stream-ordered memory."""

from asking import MIB, ask, pageable


@ask("memory_alloc of 0, 1, 2^60, 2^64 - 1 bytes; then 1 MiB")
def _(case):
    return [case.memory_alloc(0, size)[0] for size in (0, 1, 1 << 60, (1 << 64) - 1, MIB)]


@ask("memory_alloc of all that is free and 1 GiB more; what is free after; then 1 MiB")
def _(case):
    free, _ = case.must("memory_info", 0)
    code = case.memory_alloc(0, free + (1 << 30))[0]
    return code, case.must("memory_info", 0)[0] == free, case.memory_alloc(0, MIB)[0]


@ask("memory_info as 512 B, 512 B, 1 MiB, 2 MiB, 3 MiB are allocated: bytes that each took")
def _(case):
    case.memory(512)
    answers, before = [], case.must("memory_info", 0)[0]
    for size in (512, 512, MIB, 2 * MIB, 3 * MIB):
        case.memory(size)
        after = case.must("memory_info", 0)[0]
        answers.append(before - after)
        before = after
    return answers


@ask("memory_alloc: alignment of ten of 1 byte, least common")
def _(case):
    together = 0
    for _ in range(10):
        together |= case.memory(1)
    return together & -together


@ask("memory_free of 0")
def _(case):
    return case.memory_free(0, 0)


@ask("memory_free of an address inside; of a stranger; of pinned memory; then of the right one")
def _(case):
    memory, pinned, (keep, host) = case.memory(), case.pinned(), pageable()
    wrong = case.memory_free(0, memory + 512), case.memory_free(0, host), case.memory_free(0, pinned)
    return wrong, case.memory_free(0, memory), len(keep)


@ask("memory_free twice")
def _(case):
    memory = case.memory(4 * MIB)
    return case.memory_free(0, memory), case.memory_free(0, memory)


@ask("memory_free of garbage 0x1234")
def _(case):
    return case.memory_free(0, 0x1234)


@ask("host_alloc of 0 bytes, 2^60; host_free of 0, of an address inside, of a stranger, twice")
def _(case):
    pinned, (keep, host) = case.pinned(), pageable()
    codes = [case.host_alloc(0, size)[0] for size in (0, 1 << 60)]
    wrong = case.host_free(0, 0), case.host_free(0, pinned + 512), case.host_free(0, host)
    return codes, wrong, case.host_free(0, pinned), case.host_free(0, pinned), len(keep)


@ask("host_register: 0 bytes, odd, twice, overlapping, a part, pinned, 0; unregister: inside, right, twice")
def _(case):
    keep, host = pageable(4 * MIB)
    pinned = case.pinned()
    start = (host + 4095) // 4096 * 4096
    codes = [
        case.host_register(0, start, 0),
        case.host_register(0, start + 1, 100),
        case.host_register(0, start + MIB, MIB),
        case.host_register(0, start + MIB, MIB),
        case.host_register(0, start + MIB + MIB // 2, MIB),
        case.host_register(0, start + MIB + 4096, 4096),
        case.host_register(0, pinned, 4096),
        case.host_register(0, 0, 4096),
    ]
    return codes, [
        case.host_unregister(0, start + MIB + 4096),
        case.host_unregister(0, start + MIB),
        case.host_unregister(0, start + MIB),
        case.host_unregister(0, pinned),
        case.host_unregister(0, 0),
        len(keep),
    ]


@ask("pointer_device: memory, inside, its last byte, one past, pinned, pageable, registered, 0, freed")
def _(case):
    memory, pinned, (keep, host), gone = (
        case.memory(2 * MIB),
        case.pinned(),
        pageable(),
        case.memory(64 * MIB),
    )
    other, registered = pageable()
    case.must("host_register", 0, registered, MIB)
    case.must("memory_free", 0, gone)
    places = (
        memory,
        memory + 512,
        memory + 2 * MIB - 1,
        memory + 2 * MIB,
        pinned,
        host,
        registered + 8,
        0,
        gone,
    )
    return [case.pointer_device(place) for place in places], len(keep) + len(other)


@ask("pointer_device: reserved, mapped, mapped with access, unmapped again")
def _(case):
    size = case.must("granularity", 0)
    at, handle = case.must("address_reserve", size, 0), case.must("physical_create", 0, size)
    answers = [case.pointer_device(at)]
    case.must("memory_map", at, size, handle)
    answers.append(case.pointer_device(at + 512))
    case.must("memory_access", at, size, 0)
    answers.append(case.pointer_device(at + 512))
    case.must("memory_unmap", at, size)
    return [*answers, case.pointer_device(at)]


@ask(
    "async: alloc 0 bytes, 2^60, 1 MiB; free, free twice, free 0, free of plain memory; memory_free of async"
)
def _(case):
    stream, plain = case.stream(), case.memory()
    codes = case.async_alloc(0, stream, 0)[0], case.async_alloc(0, stream, 1 << 60)[0]
    code, address = case.async_alloc(0, stream, MIB)
    frees = (
        case.async_free(0, stream, address),
        case.async_free(0, stream, address),
        case.async_free(0, stream, 0),
    )
    code_2, other = case.async_alloc(0, stream, MIB)
    return codes, code, frees, case.async_free(0, stream, plain), code_2, case.memory_free(0, other)


@ask("async: attributes 1 to 8 before use; set 4 to 2^40 and read; trim; a bad attribute")
def _(case):
    before = [case.async_get(0, attribute) for attribute in range(1, 9)]
    changed = case.async_set(0, 4, 1 << 40), case.async_get(0, 4), case.async_set(0, 4, 0)
    return before, changed, case.async_trim(0, 0), case.async_get(0, 99), case.async_set(0, 99, 0)


@ask(
    "device -1, 99: alloc, stream, event, info, granularity, create, set, synchronize, attribute, name, fill"
)
def _(case):
    return [
        (
            case.memory_alloc(device, 64)[0],
            case.stream_create(device, 0, 0)[0],
            case.event_create(device, 0)[0],
            case.memory_info(device)[0],
            case.granularity(device)[0],
            case.physical_create(device, 2 * MIB)[0],
            case.set_device(device),
            case.device_synchronize(device),
            case.device_attribute(device, 1)[0],
            case.device_name(device)[0],
            case.fill(device, 0, 0, 0, 1, 0),
        )
        for device in (-1, 99)
    ]


@ask("attributes 0, -1, 16, 41, 75, 76, 88, 89, 102, 115, 999")
def _(case):
    return [case.device_attribute(0, number) for number in (0, -1, 16, 41, 75, 76, 88, 89, 102, 115, 999)]


@ask("peers: device 0 with itself: can, enable; with 1, when there: can, enable, enable again")
def _(case):
    answers = [
        case.can_access_peer(0, 0),
        case.enable_peer(0, 0),
        case.can_access_peer(0, 99),
        case.enable_peer(0, 99),
    ]
    if case.must("device_count") > 1:
        answers += [case.can_access_peer(0, 1), case.enable_peer(0, 1), case.enable_peer(0, 1)]
    return answers
