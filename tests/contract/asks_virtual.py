"""Virtual memory: reservations, physical handles, mappings."""

import ctypes

from asking import MIB, ask


def page(case):
    return case.must("granularity", 0)


def mapped(case, pages=1):
    """(page size, address) of so many pages, each with a handle of its own, mapped with access."""
    size = page(case)
    at = case.must("address_reserve", pages * size, 0)
    for index in range(pages):
        handle = case.must("physical_create", 0, size)
        case.must("memory_map", at + index * size, size, handle)
        case.must("physical_release", handle)
    case.must("memory_access", at, pages * size, 0)
    return size, at


@ask("granularity")
def _(case):
    return page(case)


@ask("address_reserve of 0, 1, page + 1, 2^46, 2^50, 2^60 bytes")
def _(case):
    return [case.address_reserve(size, 0)[0] for size in (0, 1, page(case) + 1, 1 << 46, 1 << 50, 1 << 60)]


@ask("address_reserve with alignment 1, 3, 4096, page, 3 pages, 2^30: code and whether it is aligned")
def _(case):
    size = page(case)
    answers = []
    for alignment in (1, 3, 4096, size, 3 * size, 1 << 30):
        code, address = case.address_reserve(size, alignment)
        answers.append((code, code == 0 and address % alignment == 0))
    return answers


@ask("address_free: inside, a part, more, 0 bytes, right, twice, of 0")
def _(case):
    size = page(case)
    at = case.must("address_reserve", 4 * size, 0)
    calls = (
        (at + size, size),
        (at, size),
        (at, 8 * size),
        (at, 0),
        (at, 4 * size),
        (at, 4 * size),
        (0, size),
    )
    return [case.address_free(*call) for call in calls]


@ask("physical_create of 0, 1, page + 1, page - 1, 2^60 bytes; release of 0")
def _(case):
    size = page(case)
    codes = [case.physical_create(0, bytes_)[0] for bytes_ in (0, 1, size + 1, size - 1, 1 << 60)]
    return codes, case.physical_release(0)


@ask("physical_create: what it takes of memory_info for 1 and 3 pages; what release gives back")
def _(case):
    size = page(case)
    before = case.must("memory_info", 0)[0]
    one = case.must("physical_create", 0, size)
    after = case.must("memory_info", 0)[0]
    three = case.must("physical_create", 0, 3 * size)
    last = case.must("memory_info", 0)[0]
    case.must("physical_release", one)
    case.must("physical_release", three)
    return before - after, after - last, case.must("memory_info", 0)[0] == before


@ask("physical_create of more than is free; then of a page")
def _(case):
    size = page(case)
    free, total = case.must("memory_info", 0)
    return (
        case.physical_create(0, (free // size + 1) * size)[0],
        case.physical_create(0, size)[0],
        total > free,
    )


@ask("physical_release twice")
def _(case):
    handle = case.must("physical_create", 0, page(case))
    return case.physical_release(handle), case.physical_release(handle)


@ask("memory_map after release of the handle")
def _(case):
    size = page(case)
    at, handle = case.must("address_reserve", size, 0), case.must("physical_create", 0, size)
    return case.physical_release(handle), case.memory_map(at, size, handle)


@ask(
    "memory_map: a part of the handle, more, 0 bytes, unaligned, outside, handle 0, right, twice, over, after"
)
def _(case):
    size = page(case)
    at, handle = case.must("address_reserve", 4 * size, 0), case.must("physical_create", 0, 2 * size)
    answers = [
        case.memory_map(at, size, handle),
        case.memory_map(at, 3 * size, handle),
        case.memory_map(at, 0, handle),
        case.memory_map(at + 512, 2 * size, handle),
        case.memory_map(at + 3 * size, 2 * size, handle),
        case.memory_map(at, size, 0),
    ]
    calls = ((at, 2 * size), (at, 2 * size), (at + size, 2 * size), (at + 2 * size, 2 * size))
    return answers, [case.memory_map(address, bytes_, handle) for address, bytes_ in calls]


@ask(
    "one handle at two addresses: codes; a byte written at one, read at the other; unmap one, read the other"
)
def _(case):
    size, pinned, stream = page(case), case.pinned(), case.stream()
    at, handle = case.must("address_reserve", 2 * size, 0), case.must("physical_create", 0, size)
    codes = (
        case.memory_map(at, size, handle),
        case.memory_map(at + size, size, handle),
        case.physical_release(handle),
    )
    case.must("memory_access", at, 2 * size, 0)
    case.must("fill", 0, stream, at, 7, 1, 64)
    case.must("copy", 0, stream, pinned, at + size, 64)
    case.must("stream_synchronize", 0, stream)
    first = ctypes.string_at(pinned, 1).hex()
    unmapped = case.memory_unmap(at, size)
    case.must("copy", 0, stream, pinned, at + size, 64)
    return codes, first, unmapped, case.stream_synchronize(0, stream), ctypes.string_at(pinned, 1).hex()


@ask("release a handle while it is mapped: memory_info before and after, and after unmap: bytes back")
def _(case):
    size = page(case)
    at = case.must("address_reserve", size, 0)
    before = case.must("memory_info", 0)[0]
    handle = case.must("physical_create", 0, size)
    case.must("memory_map", at, size, handle)
    case.must("physical_release", handle)
    held = before - case.must("memory_info", 0)[0]
    case.must("memory_unmap", at, size)
    return held, before - case.must("memory_info", 0)[0]


@ask("memory_access: of a reservation, part of a mapping, two mappings, a hole, twice, device 99, 0 bytes")
def _(case):
    size = page(case)
    at = case.must("address_reserve", 8 * size, 0)
    unmapped = case.memory_access(at, size, 0)
    case.must("memory_map", at, 2 * size, case.must("physical_create", 0, 2 * size))
    case.must("memory_map", at + 2 * size, 2 * size, case.must("physical_create", 0, 2 * size))
    calls = (
        (at, size, 0),
        (at, 4 * size, 0),
        (at, 6 * size, 0),
        (at, 4 * size, 0),
        (at, 4 * size, 99),
        (at, 0, 0),
    )
    return unmapped, [case.memory_access(*call) for call in calls]


@ask("memory_unmap: a part, inside, two mappings at once, twice, a reservation, with a hole, 0 bytes")
def _(case):
    size, at = mapped(case, 2)
    big = case.must("address_reserve", 4 * size, 0)
    case.must("memory_map", big, 2 * size, case.must("physical_create", 0, 2 * size))
    parts = case.memory_unmap(big, size), case.memory_unmap(big + size, size), case.memory_unmap(big, 0)
    both = case.memory_unmap(at, 2 * size), case.memory_unmap(at, 2 * size), case.memory_unmap(at, size)
    return parts, both, case.memory_unmap(big, 4 * size)


@ask("address_free while it is mapped; memory_free of a mapped address; then use; unmap; address_free")
def _(case):
    size, at = mapped(case)
    codes = case.address_free(at, size), case.memory_free(0, at)
    used = case.fill(0, 0, at, 1, 1, 64), case.device_synchronize(0)
    return codes, used, case.memory_unmap(at, size), case.address_free(at, size)


for what in ("reserved", "mapped without access"):

    @ask(f"fill, copy of {what} memory; sync")
    def _(case, what=what):
        size = page(case)
        stream, pinned, at = case.stream(), case.pinned(), case.must("address_reserve", size, 0)
        if what != "reserved":
            case.must("memory_map", at, size, case.must("physical_create", 0, size))
        codes = case.fill(0, stream, at, 1, 1, 64), case.copy(0, stream, pinned, at, 64)
        return codes, case.stream_synchronize(0, stream)


@ask("fill and copy over two mappings side by side; sync; over the end of the last")
def _(case):
    size, at = mapped(case, 2)
    stream, pinned = case.stream(), case.pinned()
    codes = case.fill(0, stream, at, 3, 1, 2 * size), case.copy(0, stream, pinned, at + size - 512, 1024)
    synced = case.stream_synchronize(0, stream)
    return (
        codes,
        synced,
        case.copy(0, stream, pinned, at + 2 * size - 512, 1024),
        case.stream_synchronize(0, stream),
    )


@ask("map, access, unmap other pages while work runs: codes; whether the work is still running")
def _(case):
    size, at = mapped(case)
    stream = case.stream()
    case.gate.hold(case, stream)
    case.must("fill", 0, stream, at, 1, 1, MIB)
    other = case.must("address_reserve", size, 0)
    handle = case.must("physical_create", 0, size)
    codes = (
        case.memory_map(other, size, handle),
        case.memory_access(other, size, 0),
        case.memory_unmap(other, size),
        case.physical_release(handle),
    )
    running = case.stream_query(0, stream)
    case.gate.open()
    return codes, running, case.stream_synchronize(0, stream)


@ask("unmap and map another handle before queued work reaches it: code of unmap; which handle the work wrote")
def _(case):
    size = page(case)
    stream, pinned, at = case.stream(), case.pinned(), case.must("address_reserve", 2 * size, 0)
    old, new = case.must("physical_create", 0, size), case.must("physical_create", 0, size)
    case.must("memory_map", at, size, old)
    case.must("memory_map", at + size, size, old)
    case.must("memory_access", at, 2 * size, 0)
    case.must("fill", 0, stream, at, 0, 1, 64)
    case.must("stream_synchronize", 0, stream)
    case.gate.hold(case, stream)
    case.must("fill", 0, stream, at, 9, 1, 64)
    unmapped = case.memory_unmap(at, size)
    codes = case.memory_map(at, size, new), case.memory_access(at, size, 0)
    case.gate.open()
    synced = case.stream_synchronize(0, stream)
    case.copy(0, stream, pinned, at, 64)
    case.copy(0, stream, pinned + 64, at + size, 64)
    case.stream_synchronize(0, stream)
    return (
        unmapped,
        codes,
        synced,
        "new",
        ctypes.string_at(pinned, 1).hex(),
        "old",
        ctypes.string_at(pinned + 64, 1).hex(),
    )
