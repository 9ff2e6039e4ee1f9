"""Finds why a request was refused and what helps, and writes the text that says so, from the figures of one
moment.

A cause is looked for in the figures, never guessed: it is named where its bytes would have served the
request, alone or with the device's free memory.  Advice names no option that is in force already.
"""

from __future__ import annotations

import os

from accelrt.allocator.settings.settings import merge, parse
from accelrt.core import printable
from accelrt.devices.context_limits import USUAL_STACK

TYPE_CHECKING = False  # typing's, which takes long to import
if TYPE_CHECKING:
    from typing import Any


PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/"
MOST_LINES = 25
MOST_CAUSES = 4
MOST_NAMED = 3  # pools, streams, processes, stacks, tags that a text names of each
MIB = 1 << 20
DRIVERS_OWN = 768 * MIB  # what contexts take of a device at most, roughly: no sign of another user of it
UNUSABLE = 32 * MIB  # of a GPU's free memory: the last of it is refused
UNITS = ("KiB", "MiB", "GiB")  # torch has no larger one, and programs look for it


class Cause:
    """One reason for a refusal.

    Attributes:
        name: str, such as "pending" or "fragmented".
        text: str, what is the matter.
        advice: tuple of str, each a thing to do.
        settles: bool, whether the request would be served once the advice was followed, by the figures.
    """

    __slots__ = ("advice", "name", "settles", "text")

    def __init__(self, name: str, text: str, *advice: str, settles: bool = True) -> None:
        self.name: str = name
        self.text: str = text
        self.advice: tuple[str, ...] = advice
        self.settles: bool = settles


def size_text(size: int) -> str:
    """Bytes as torch writes them: "512 bytes", "20.00 MiB"."""
    return printable.size_text(size, UNITS)


def callers(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The frames of a stack from the one on that called accelrt; all of them where there are no others.

    Frames of the interpreter's own functions between the two are left out as well.
    """
    for number, frame in enumerate(frames):
        file: str = frame["filename"]
        is_program = file.startswith(PACKAGE + "tools/cli/")
        is_own = file == "accelrt" or (file.startswith(PACKAGE) and not is_program)
        is_interpreter = not frame["line"] and file.rpartition("/")[2].startswith(("python", "libpython"))
        if not is_own and not is_interpreter:
            return frames[number:]
    return frames


def stack_text(frames: list[dict[str, Any]]) -> str:
    """The innermost frames of a stack on one line, from the one on that called accelrt."""
    called = callers(frames)[:3]
    shown = [f"{one['name']} ({one['filename'].rpartition('/')[2]}:{one['line']})" for one in called]
    return printable.printable(" < ".join(shown)) or "no stack was recorded"


def count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def names_of(parts: list[str], total: int) -> str:
    """Some of a list's entries, and how many more there are."""
    more = total - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def stream_text(stream: int) -> str:
    return "the default stream" if stream == 0 else f"stream {stream:#x}"


def pool_text(pool: tuple[int, int]) -> str:
    return "the common pool" if tuple(pool) == (0, 0) else f"pool ({pool[0]}, {pool[1]})"


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def with_settings(text: str, *changes: str) -> str:
    """A settings text with changes; the changes alone where the two cannot be merged."""
    try:
        return merge(parse(text), ",".join(changes)).text
    except ValueError:
        return ",".join(change for change in changes if not change.endswith(":default"))


class Case:
    """The figures of one refusal, and what follows from them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        # Of managed memory the device has back whatever others need.
        on_device = [
            pool for pool in facts["by_pool"] if not pool.get("managed") or pool["id"] == facts["pool"]
        ]
        self.facts: dict[str, Any] = {**facts, "by_pool": on_device}
        self.size: int = facts["rounded"]
        self.granule: int = facts.get("granule") or 2 * MIB
        self.need: int = round_up(self.size, self.granule)  # of the device
        self.limit: int | None = facts["limit"]
        allowed = facts["free"]
        if facts["driver"] == "cuda":
            allowed = max(allowed - UNUSABLE, 0)
        if self.limit is not None:
            allowed = min(allowed, self.limit - facts["reserved"] + facts["managed"])
        # What can still be reserved; below 0 where the limit was lowered since.
        self.room: int = allowed // self.granule * self.granule
        self.own: dict[str, Any] = next(
            (pool for pool in facts["by_pool"] if pool["id"] == facts["pool"]), {}
        )
        self.own_free: int = self.block_in(facts["pool"])
        self.paged: bool = facts["virtual_memory"]  # segments are made of pages

    def block_in(self, pool: tuple[int, int]) -> int:
        """The largest free block that a pool would hand out for this stream and kind of size; 0 where a limit
        on splitting decides which.
        """
        kind = "largest_small" if self.size <= MIB else "largest_large"
        sizes = (
            stream[kind]
            for stream in self.facts["by_stream"]
            if stream["pool"] == pool and stream["stream"] == self.facts["stream"]
        )
        return max(sizes, default=0) if self.facts["splits"] else 0

    @property
    def most(self) -> int:
        """The largest request that would be served now."""
        more = 0 if self.facts["capturing"] else self.own.get("releasable", 0)
        room, limit = self.room, self.own.get("limit")
        if limit is not None:
            room = min(room, limit - self.own["reserved"])
        return max(self.own_free, room + more, 0)

    def fits_with(self, more: int) -> bool:
        """Tells whether so many bytes, given back to the device, would serve the request with the device's
        own."""
        return self.room + more >= self.need


def causes_of(facts: dict[str, Any]) -> list[Cause]:
    """Returns what kept a request from being served; those first whose advice settles it.

    Arguments:
        facts: dict, the fields of an OutOfMemoryError.
    Returns:
        list of Cause, at least one.
    """
    case = Case(facts)
    if case.own.get("managed") and facts["refused_by"] == "device":
        return [managed(case)]
    if 0 < facts["capacity"] < case.size and not facts["external"]:  # another backend may have managed memory
        return [huge(case)]
    causes = sorted(filter(None, (look(case) for look in LOOKS)), key=lambda cause: not cause.settles)
    if not facts["external"] and not any(cause.settles for cause in causes):
        causes.append(live(case))
    return causes[:MOST_CAUSES]


def huge(case: Case) -> Cause:
    capacity = size_text(case.facts["capacity"])
    return Cause(
        "huge",
        f"the request alone is larger than the whole device, which has {capacity}",
        f"ask for less: {size_text(case.most)} would be served now; split the work, or check how the size is "
        "computed",
        settles=False,
    )


def managed(case: Case) -> Cause:
    """Explains a refusal of managed memory, for which the device need not have room."""
    available = case.facts["available"]
    advice = [f"free live managed memory ({size_text(case.own['live'])})"]
    if available is not None and available < case.need:
        text = f"the host, where what has no room on the device lies, has {size_text(available)} available"
        advice.append(f"free memory of the host, or ask for {size_text(available)} at most")
    else:
        text = "the driver refused managed memory, and gives no reason"
    return Cause("managed", case.facts["driver_cause"] or text, *advice, settles=False)


def addresses(case: Case) -> Cause | None:
    cause = case.facts["driver_cause"]
    return Cause("addresses", cause, "give the process more addresses, or free memory") if cause else None


def pool_limit(case: Case) -> Cause | None:
    if case.facts["refused_by"] != "pool" or not case.own:
        return None
    pool, limit = pool_text(case.facts["pool"]), case.own["limit"] or 0
    reserved, held = case.own["reserved"], case.own["live"]
    advice = []
    if case.room >= case.need:
        least = round_up(reserved + case.need, case.granule)
        advice.append(f"make the pool with more: MemPool(limit={least}) or no limit")
        advice.append(f"leave use_mem_pool for this request: {size_text(case.room)} can be reserved yet")
    settles = bool(advice)
    if case.size <= limit and held:
        advice.append(f"free {size_text(min(case.size, held))} of the pool's live memory")
    return Cause(
        "pool limit",
        f"{pool} has a limit of {size_text(limit)}, of which {size_text(reserved)} are reserved and "
        f"{size_text(held)} live (MemPool(limit=...))",
        *advice,
        settles=settles,
    )


def limit(case: Case) -> Cause | None:
    facts = case.facts
    if case.limit is None or facts["refused_by"] == "pool":
        return None
    reserved = facts["reserved"] - facts["managed"]
    if facts["refused_by"] != "limit" and case.limit - reserved >= case.need:
        return None
    fraction = min(-(-(reserved + case.need) * 10000 // max(facts["capacity"], 1)) / 10000, 1.0)
    text = (
        f"this process may reserve {size_text(case.limit)} of the device (set_per_process_memory_fraction), "
        f"and has reserved {size_text(reserved)}"
    )
    if facts["free"] < case.need:
        return Cause("limit", text, settles=False)
    call = f"accelrt.set_per_process_memory_fraction({fraction}, {facts['device']})"
    return Cause("limit", text, f"raise the limit: {call}; the device has {size_text(facts['free'])} free")


def pending(case: Case) -> Cause | None:
    facts = case.facts
    held = facts["pending"]
    if held == 0 or facts["external"]:
        return None
    later = sum(pool["releasable_later"] for pool in facts["by_pool"] if not pool["graphs"])
    settles = case.fits_with(later) or case.own.get("largest_freeable", 0) >= case.size
    waiting = sorted(facts["pending_events"], key=lambda one: -one["bytes"])
    named = [
        ("events of free_after" if one["offers"] else stream_text(one["stream"]))
        + f" ({count_text(one['events'], 'event')}, {size_text(one['bytes'])})"
        for one in waiting[:MOST_NAMED]
    ]
    deferred = facts["deferred"]
    if deferred:
        named.append(f"captures under way ({size_text(deferred)})")
    steps = []
    if deferred:
        steps.append("end the captures that use it")
    if waiting:
        one = len(waiting) == 1 and not waiting[0]["offers"]
        call = "synchronize that stream" if one else "accelrt.synchronize()"
        steps.append(f"wait for that work ({call})")
    return Cause(
        "pending",
        f"{size_text(held)} are freed, but other streams that used them are still at work: "
        + names_of(named, len(waiting) + bool(deferred)),
        f"{', '.join(steps)} and try again",
        settles=settles,
    )


def others_pools(case: Case, graphs: bool) -> tuple[list[dict[str, Any]], int, str]:
    """The private pools of a kind with idle memory that this request may not have, the most first, how much
    that is, and their names; no pools where the limit of a pool refused it."""
    pools = [
        pool
        for pool in case.facts["by_pool"]
        if pool["id"] not in ((0, 0), case.facts["pool"])
        and pool["uses"]
        and pool["graphs"] == graphs
        and pool["idle"]
        and case.facts["refused_by"] != "pool"
    ]
    pools.sort(key=lambda pool: -pool["idle"])
    named = [f"{pool_text(pool['id'])} {size_text(pool['idle'])}" for pool in pools[:MOST_NAMED]]
    return pools, sum(pool["idle"] for pool in pools), names_of(named, len(pools))


def graph_pools(case: Case) -> Cause | None:
    pools, idle, names = others_pools(case, True)
    if not pools:
        return None
    return Cause(
        "graph pool",
        f"{size_text(idle)} are idle in pools that graphs use, which their replays need: {names}",
        "drop graphs that are replayed no more (CUDAGraph.reset()), or capture graphs into one pool "
        "(graph(..., pool=...))",
        settles=case.fits_with(idle),
    )


def mempools(case: Case) -> Cause | None:
    pools, idle, names = others_pools(case, False)
    if not pools:
        return None
    text = (
        f"{size_text(idle)} are idle in MemPools, beside live memory of the same pages or segments: {names}"
    )
    best = max(pools, key=lambda pool: case.block_in(pool["id"]))
    block = case.block_in(best["id"])
    if block >= case.size:
        inside = f"use_mem_pool of {pool_text(best['id'])}"
        advice = f"allocate inside {inside}, whose largest free block for this stream has {size_text(block)}"
        return Cause("mempool", text, advice)
    enough = [
        pool
        for pool in pools
        if case.fits_with(pool["reserved"]) and pool["live"] <= pool["idle"] and not pool["pending"]
    ]
    if not enough:
        return None
    best = min(enough, key=lambda pool: pool["live"])
    held = size_text(best["live"])
    advice = f"free the live memory of {pool_text(best['id'])} ({held}): then all of it goes back"
    return Cause("mempool", text, advice)


def capture(case: Case) -> Cause | None:
    facts = case.facts
    idle = sum(pool["idle"] for pool in facts["by_pool"] if not pool["graphs"])
    if not facts["capturing"] or not case.fits_with(idle) or idle == 0:
        return None
    return Cause(
        "capture",
        f"a capture is under way, beside which the device cannot be waited for: {size_text(idle)} that are "
        "idle stay as they are",
        "end the capture and try again, or call accelrt.synchronize() and accelrt.empty_cache() before it "
        "begins",
    )


def meanwhile(case: Case) -> Cause | None:
    facts = case.facts
    if facts["capturing"] or facts["refused_by"] == "pool" or facts["external"] or case.most < case.size:
        return None
    return Cause(
        "freed meanwhile",
        f"memory became free while the request was refused: {size_text(case.most)} would be served now",
        "try again",
    )


def fragmented(case: Case) -> Cause | None:
    facts, idle = case.facts, case.own.get("idle", 0)
    if facts["capturing"] or idle == 0 or not case.fits_with(idle) or case.most >= case.size:
        return None
    largest = size_text(case.own["largest_free"])
    if not case.paged:
        text = f"{size_text(idle)} are idle in pieces between live memory, the largest {largest}"
        text += " (segments are whole: they neither grow nor move)"
        if not facts["pageable"]:
            advice = "free live memory between them, or ask for smaller pieces"
            return Cause("fragmented", text, advice, settles=False)
        whole = ("max_split_size_mb:default", "max_non_split_rounding_mb:default")
        conf = with_settings(facts["settings"], "expandable_segments:True", *whole)
        return Cause("fragmented", text, f"start the program with ACCELRT_ALLOC_CONF={conf}")
    text = f"{size_text(idle)} are idle in pages of which other parts are live, the largest piece {largest}"
    if facts["largest_page"] > facts["granule"]:
        conf = with_settings(facts["settings"], f"piece_size_mb:{facts['granule'] // MIB}")
        return Cause("fragmented", text, f"start the program with ACCELRT_ALLOC_CONF={conf} (smaller pages)")
    return Cause("fragmented", text, "free the small live blocks that keep these pages", settles=False)


def rounding(case: Case) -> Cause | None:
    exact = round_up(case.facts["requested"], 512)
    if exact >= case.size or case.most < exact:
        return None
    return Cause(
        "rounding",
        f"the settings round the request up by {size_text(case.size - exact)} (roundup_power2_divisions); "
        "as it is it would be served",
        "accelrt.memory.set_allocator_settings('roundup_power2_divisions:0')",
    )


def others(case: Case) -> Cause | None:
    facts = case.facts
    used = facts["used_by_others"]
    own = DRIVERS_OWN if facts["driver"] == "cuda" else 0
    if facts["refused_by"] != "device" or used <= own or facts["free"] + used < case.need:
        return None
    if case.limit is not None and case.limit - facts["reserved"] < case.need:
        return None
    processes = sorted(facts["processes"] or (), key=lambda one: -(one["memory"] or 0))
    here = [one for one in processes if one["this"]]
    rest = [one for one in processes if not one["this"]]
    named = [
        f"process {one['pid']} {'an unknown amount' if one['memory'] is None else size_text(one['memory'])}"
        for one in rest[:MOST_NAMED]
    ]
    known = facts["reserved"] + facts.get("arrays", 0) + facts.get("driver_pools", {}).get("device", 0)
    outside = sum(one["memory"] or 0 for one in here) - known
    if here and outside > own:
        named.append(f"this process outside of accelrt {size_text(outside)}")
    if rest:
        advice = "end those processes or have them free memory"
    elif here:
        advice = "have other libraries of this process free memory"
    else:
        advice = "see nvidia-smi for who uses it; end other processes, or have other libraries free memory"
    return Cause(
        "others",
        f"{size_text(used)} of the device are used by others than accelrt"
        + (f": {names_of(named, len(rest) + (len(named) > len(rest[:MOST_NAMED])))}" if named else ""),
        advice + ("" if facts["devices"] < 2 else ", or use another device"),
    )


def stacks(case: Case) -> Cause | None:
    """Stacks of GPU threads that became larger than a new context's."""
    each, count = case.facts["thread_stacks"]
    more = max(each - USUAL_STACK, 0) * count
    if case.facts["refused_by"] != "device" or not more or not case.fits_with(more):
        return None
    return Cause(
        "stacks",
        f"the device's context keeps {size_text(each * count)} for its threads' stacks, {size_text(each)} "
        "each, which a kernel needed, or a limit says",
        f"accelrt.set_limit('stack_size', {USUAL_STACK}) gives {size_text(more)} back; do not replay graphs "
        "of the kernel that needed it then",
    )


def sleeping(case: Case) -> Cause | None:
    held = case.facts["sleeping"]
    waking = case.facts["waking"]
    if held == 0 or not waking:
        return None
    return Cause(
        "sleeping", waking, "free memory, or let other memory sleep, and wake it again", settles=False
    )


def sleepable(case: Case) -> Cause | None:
    """Pools whose sleep would make room; graphs' pools are left alone, for their replays need them."""
    facts = case.facts
    if not case.paged or facts["capturing"] or facts["refused_by"] == "pool":
        return None
    pools = [
        pool
        for pool in facts["by_pool"]
        if pool["id"] not in ((0, 0), facts["pool"]) and pool["uses"] and not pool["graphs"]
    ]
    best = max(pools, key=lambda pool: pool["reserved"], default=None)
    if best is None or best["live"] == 0 or not case.fits_with(best["reserved"]):
        return None
    held = size_text(best["reserved"])
    return Cause(
        "sleepable",
        f"{pool_text(best['id'])}, which no graph uses, holds {held}",
        f"let it sleep until it is needed: accelrt.memory.sleep({best['id']}) gives {held} back",
    )


def backend(case: Case) -> Cause | None:
    if not case.facts["external"] or case.facts["refused_by"] != "device":
        return None
    name = case.facts["backend"]
    return Cause(
        "backend",
        f"the memory comes from the backend {name!r}, which refused; accelrt keeps no idle memory of it",
        f"free live memory ({size_text(case.facts['live'])}), or give the backend's own allocator more",
        settles=False,
    )


def live(case: Case) -> Cause:
    facts = case.facts
    lacking = max(case.need - case.room - case.own.get("releasable", 0), case.granule)
    text = f"{size_text(live_here(facts))} are live, and what is idle would not suffice"
    less = f", or ask for {size_text(case.most)} at most" if case.most > 0 else ""
    advice = [f"free {size_text(lacking)} of live memory{less}"]
    if not facts["recording"]:
        calls = "accelrt.memory.record_history() early on, then accelrt.memory.report()"
        advice.append(f"to see what holds it: {calls}")
    return Cause("live", text, *advice, settles=False)


LOOKS = (
    addresses,
    meanwhile,
    pool_limit,
    limit,
    rounding,
    pending,
    capture,
    graph_pools,
    mempools,
    fragmented,
    stacks,
    others,
    backend,
    sleeping,
    sleepable,
)


# --- the text ---------------------------------------------------------------------------------------------


def first_line(facts: dict[str, Any]) -> str:
    # torch's words, for programs that look for them; the host device is no CUDA.
    cuda = facts["driver"] != "host"
    return (
        f"{'CUDA' if cuda else 'Host device'} out of memory. "
        f"Tried to allocate {size_text(facts['requested'])}. "
        f"{'GPU' if cuda else 'Device'} {facts['device']} has a total capacity of "
        f"{size_text(facts['capacity'])} of which {size_text(facts['free'])} is free."
    )


def live_here(facts: dict[str, Any]) -> int:
    """Live bytes on the device, without what is asleep."""
    held: int = facts["reserved"] - facts["pending"] - facts["idle"]
    return held


def held_lines(facts: dict[str, Any]) -> list[str]:
    request = f"Requested: {facts['requested']} bytes"
    if facts["rounded"] != facts["requested"]:
        request += f", rounded up to {facts['rounded']}"
    line = (
        f"{request}. accelrt reserved {size_text(facts['reserved'])}: {size_text(live_here(facts))} live, "
        + (f"{size_text(facts['pending'])} freed but in use on a stream, " if facts["pending"] else "")
        + f"{size_text(facts['idle'])} idle, the largest free block {size_text(facts['largest_free'])}"
    )
    if facts["sleeping"]:
        line += f"; {size_text(facts['sleeping'])} more are asleep, and not on the device"
    if facts["managed"]:
        managed_text = size_text(facts["managed"])
        line += f"; {managed_text} of it is managed, and leaves the device where others need room"
    if facts.get("arrays"):
        line += f"; CUDA arrays have {size_text(facts['arrays'])} beside it"
    pools = facts.get("driver_pools", {})
    if pools.get("device"):
        line += f"; DriverPools gave {size_text(pools['device'])} beside it"
    if pools.get("managed"):
        line += f"; DriverPools gave {size_text(pools['managed'])} of managed memory beside it"
    if facts["stitched"]:
        line += f"; {size_text(facts['stitched'])} mapped by stitching"
    lines = [line + "."]
    held = (pool for pool in facts["by_pool"] if pool["reserved"])
    pools = sorted(held, key=lambda pool: -pool["reserved"])
    if any(pool["id"] != (0, 0) for pool in pools):
        named = [
            f"{pool_text(pool['id'])} {size_text(pool['reserved'])} ({size_text(pool['live'])} live)"
            for pool in pools[:MOST_NAMED]
        ]
        lines.append("By pool: " + names_of(named, len(pools)) + ".")
    if facts["by_tag"]:
        tags = sorted(facts["by_tag"].items(), key=lambda pair: -pair[1])
        named = [f"{name!r} {size_text(held)}" for name, held in tags[:MOST_NAMED]]
        lines.append("By tag: " + names_of(named, len(tags)) + ".")
    return lines


def cause_lines(causes: list[Cause]) -> list[str]:
    lines = [f"{'Because' if number == 0 else 'Also'} {cause.text}." for number, cause in enumerate(causes)]
    for settles, title in ((True, "What makes it fit, any of:"), (False, "What helps:")):
        advice = [each for cause in causes if cause.settles == settles for each in cause.advice]
        lines += [title, *(f"  - {each}" for each in advice)] if advice else []
    return lines


def text_of(facts: dict[str, Any], causes: list[Cause]) -> str:
    """The text of a refusal, of at most 25 lines.

    Arguments:
        facts: as causes_of.
        causes: what it answered.
    """
    lines = [first_line(facts), *held_lines(facts), *cause_lines(causes)]
    stacks = [
        f"  {size_text(held)} in {count_text(count, 'block')}: {stack_text(frames)}"
        for frames, held, count in facts["stacks"]
    ]
    if stacks:
        lines += ["Most live memory was allocated by:", *stacks[:MOST_NAMED]]
    if facts["settings"] and len(lines) < MOST_LINES:
        lines.append(f"Settings: {facts['settings']}")
    return "\n".join(lines[:MOST_LINES])


def pinned_cause(facts: dict[str, Any]) -> tuple[str, str]:
    """Tells why the driver refused page-locked memory, and what to do; empty where there is nothing to do."""
    available, lockable = facts["available"], facts["lockable"]
    if facts["driver_cause"]:
        return facts["driver_cause"], ""
    if available is not None and available < facts["requested"]:
        room = size_text(available)
        return (
            f"the host has {room} available, and page-locked memory cannot be swapped out",
            f"free memory of the host, or ask for {room} at most",
        )
    if lockable is not None and facts["requested"] + facts["reserved"] > lockable:
        return (
            f"this process may lock {size_text(lockable)} (ulimit -l)",
            "let the process lock more memory (ulimit -l)",
        )
    return "the driver refused, and gives no reason", ""


def pinned_text(facts: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The text of a refusal of page-locked memory, and the advice in it.

    Arguments:
        facts: dict: requested, reserved, live, idle; lockable (bytes of ulimit -l; None: no limit), available
            (bytes of the host's memory; None: unknown), driver_cause (str), capturing (bool), driver_pools
            (bytes that DriverPools gave).
    """
    requested, pools = facts["requested"], facts.get("driver_pools", 0)
    cause, first = pinned_cause(facts)
    advice = [first] if first else []
    if facts["idle"]:
        advice.append("accelrt.host_empty_cache() gives back what is idle and not beside live memory")
    if facts["live"]:
        advice.append("drop page-locked buffers that are not needed, then accelrt.host_empty_cache()")
    if facts["capturing"]:
        advice.append("end the capture under way, beside which nothing goes back, and try again")
    lines = [
        f"Host out of memory. Tried to allocate {size_text(requested)} of page-locked memory.",
        f"{requested} bytes. accelrt holds {size_text(facts['reserved'])} of it, of which "
        f"{size_text(facts['live'])} are in use and {size_text(facts['idle'])} idle"
        + (f"; DriverPools gave {size_text(pools)} beside it." if pools else "."),
        f"Because {cause}.",
        "What helps:",
        *(f"  - {each}" for each in advice or ["ask for less, or use ordinary memory"]),
    ]
    return "\n".join(lines), tuple(advice)
