"""The checks of accelrt doctor: driver, permissions, versions, limits, pages, NUMA nodes, links, MIG."""

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelrt
from accelrt import env, identity, nvml
from accelrt.allocator.settings.settings import parse
from accelrt.core.printable import size_text
from accelrt.tools.cli import facts
from accelrt.tools.cli.sample import Process, Sampler

DEVICES, MODULE = Path("/dev"), Path("/proc/driver/nvidia/version")
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
NODES, CARDS = Path("/sys/devices/system/node"), Path("/sys/bus/pci/devices")
MOST_OF_A_CONTEXT = 1 << 30  # bytes: a context without memory, its modules included, has less
FEWEST_FILES = 1024  # descriptors: a shared page is one, and so is each connection of a collective
NVIDIA = "0x10de"  # PCI's number of the vendor


@dataclass(frozen=True)
class Finding:
    """The finding of a check.

    Attributes:
        name: str, what was looked at.
        state: str, "ok", "note" (works, but worth knowing) or "fail".
        text: str.  advice: str, what to do; "" where nothing.
    """

    name: str
    state: str
    text: str
    advice: str = ""


def all_findings() -> list[Finding]:
    """All checks, in the order in which one thing needs the next."""
    driver = facts.driver_facts()
    looks: list[Callable[[dict[str, Any]], Iterator[Finding]]] = [
        *(card, module, permissions, chosen, versions, visible, mig, peers, contexts),
        *(locked_memory, descriptors, huge_pages, nodes, settings_of_torch),
    ]
    return [finding for look in looks for finding in look(driver)]


def first_line(path: Path) -> str | None:
    """The first line of a file of the kernel's; None where it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None


# --- the card and its driver ------------------------------------------------------------------------------


def cards_on_bus() -> list[Path]:
    """NVIDIA's graphics cards on the PCI bus."""
    try:
        paths = sorted(CARDS.iterdir())
    except OSError:
        return []
    return [
        path
        for path in paths
        if first_line(path / "vendor") == NVIDIA and (first_line(path / "class") or "").startswith("0x03")
    ]


def card(driver: dict[str, Any]) -> Iterator[Finding]:
    cards = cards_on_bus()
    if cards:
        addresses = ", ".join(path.name for path in cards)
        yield Finding("card", "ok", f"{len(cards)} of NVIDIA's on the PCI bus: {addresses}")
    elif MODULE.exists():
        yield Finding(
            "card", "note", "none on the PCI bus, as in a virtual machine, but the kernel module is loaded"
        )
    else:
        advice = "run on a machine with one, or on the host device: ACCELRT_DRIVER=host"
        yield Finding("card", state_for(driver), "none of NVIDIA's on the PCI bus", advice)


def state_for(driver: dict[str, Any]) -> str:
    """Makes what is missing for a GPU a failure, unless the host device was chosen."""
    return "note" if driver["name"] == "host" else "fail"


def module(driver: dict[str, Any]) -> Iterator[Finding]:
    version = driver["kernel_module"]
    if version:
        yield Finding("kernel module", "ok", f"of NVIDIA's driver {version}")
        return
    inside = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    advice = (
        "start the container with its GPUs: docker run --gpus all, podman run --device nvidia.com/gpu=all"
        if inside
        else "install NVIDIA's driver, 525 or later, and load it: modprobe nvidia"
    )
    yield Finding("kernel module", state_for(driver), "not loaded, or not shown to this process", advice)


def permissions(driver: dict[str, Any]) -> Iterator[Finding]:
    nodes = [DEVICES / "nvidiactl", DEVICES / "nvidia-uvm"]
    nodes += sorted(path for path in DEVICES.glob("nvidia[0-9]*") if path.name[6:].isdigit())
    there = [path for path in nodes if path.exists()]
    if not there:
        if driver["kernel_module"]:
            advice = "nvidia-modprobe -u -c=0 makes them; a container needs them passed in"
            yield Finding("device nodes", "fail", "/dev has none of NVIDIA's", advice)
        return
    closed = [path for path in there if not os.access(path, os.R_OK | os.W_OK)]
    absent = [path for path in nodes[:2] if path not in there]
    if closed:
        names = ", ".join(map(str, closed))
        advice = f"give user {os.geteuid()} read and write permission, by its groups or by udev's rules"
        yield Finding("device nodes", "fail", f"this user may not open {names}", advice)
    elif absent:
        names = ", ".join(map(str, absent))
        yield Finding("device nodes", "fail", f"{names} is missing", "nvidia-modprobe -u -c=0 makes it")
    else:
        yield Finding("device nodes", "ok", f"{len(there)} can be opened")


def chosen(driver: dict[str, Any]) -> Iterator[Finding]:
    if driver["open"]:
        count = accelrt.device_count()
        text = f"{driver['name']}, {driver['why']}; devices: {count}"
        yield Finding(
            "driver", "ok" if count else "fail", text, "" if count else "see the lines about devices"
        )
    else:
        advice = "mend the lines above, or take the host device: ACCELRT_DRIVER=host"
        yield Finding("driver", "fail", f"does not open: {driver['problem']}", advice)


def versions(driver: dict[str, Any]) -> Iterator[Finding]:
    text = f"CUDA {driver['version'] or 'unknown'} by the driver, cuda-bindings of {driver['bindings']}"
    yield Finding("versions", "ok", text)
    for complaint in driver["complaints"]:
        yield Finding(
            "versions", "note", complaint, "a driver or cuda-bindings of the other's version ends it"
        )


def visible(driver: dict[str, Any]) -> Iterator[Finding]:
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return
    total = len(nvml.physical_uuids())
    hidden = "all devices" if not setting.strip() else f"all but {setting}"
    state = "fail" if not setting.strip() and driver["name"] != "host" else "note"
    text = f"CUDA_VISIBLE_DEVICES={setting!r} hides {hidden} of {total}"
    yield Finding("visible devices", state, text, "unset it to see all")


def mig(driver: dict[str, Any]) -> Iterator[Finding]:
    if driver["name"] == "host":
        return
    rows = facts.listed("rows", lambda: list(identity.physical()))["rows"]
    parts = [row for row in rows if row.mig_instance]
    if parts:
        text = f"{len(parts)} MIG devices; a process uses one of them"
        yield Finding("MIG", "note", text, "name it by CUDA_VISIBLE_DEVICES=MIG-<uuid>")


def peers(driver: dict[str, Any]) -> Iterator[Finding]:
    count = accelrt.device_count() if driver["open"] else 0
    apart = []
    for one in range(count):
        for other in range(one + 1, count):
            try:
                if not accelrt.can_device_access_peer(one, other):
                    apart.append(f"{one} and {other}")
            except accelrt.CudaError as error:
                apart.append(f"{one} and {other} ({error})")
    if apart:
        text = f"devices do not reach each other's memory: {', '.join(apart)}; copies go by the host"
        yield Finding("peer access", "note", text, "NVLink, or one PCI switch without ACS, connects them")
    elif count > 1:
        yield Finding("peer access", "ok", f"all {count} devices reach each other's memory")


def contexts(driver: dict[str, Any]) -> Iterator[Finding]:
    """Processes that hold much of one device and little of others, where they may not mean to be."""
    if driver["name"] == "host":
        return
    look = Sampler().sample()
    devices = {each.uuid: each.ordinal if each.ordinal is not None else each.uuid for each in look.devices}
    held: dict[int, list[Process]] = {}
    for each in look.processes:
        if each.kind == "compute" and each.memory is not None:
            held.setdefault(each.pid, []).append(each)
    strays = 0
    for pid, parts in sorted(held.items()):
        most = max(part.memory or 0 for part in parts)
        small = [part for part in parts if (part.memory or 0) <= min(MOST_OF_A_CONTEXT, most // 4)]
        if not small:
            continue
        strays += 1
        where = ", ".join(f"{devices[part.uuid]} ({size_text(part.memory or 0)})" for part in small)
        name, size = small[0].command, size_text(most)
        text = f"process {pid} ({name}) holds {size} of one device, and little of {where}"
        advice = (
            "it may have a context there by mistake: set_device() before any other call, or hide the "
            "device by CUDA_VISIBLE_DEVICES; accelrt.stray_contexts() asks within a process"
        )
        yield Finding("contexts", "note", text, advice)
    if held and not strays:
        yield Finding("contexts", "ok", f"{len(held)} processes, none with a small part of a second device")


# --- the process and the host -----------------------------------------------------------------------------


def locked_memory(driver: dict[str, Any]) -> Iterator[Finding]:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:
        yield Finding("locked memory", "ok", "without limit")
    else:
        advice = (
            "NVIDIA's driver does not count it; for the host device and RDMA raise it: ulimit -l unlimited"
        )
        yield Finding("locked memory", "note", f"this process may lock {size_text(soft)}", advice)


def descriptors(driver: dict[str, Any]) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft <= FEWEST_FILES:
        advice = f"raise it where memory is shared by pages: ulimit -n {hard if hard > soft else 65536}"
        yield Finding("open files", "note", f"{soft} at most", advice)
    else:
        yield Finding(
            "open files", "ok", "without limit" if soft == resource.RLIM_INFINITY else f"{soft} at most"
        )


def huge_pages(driver: dict[str, Any]) -> Iterator[Finding]:
    text = first_line(HUGE)
    if text is None:
        return
    mode = text.partition("[")[2].partition("]")[0] or text
    if mode == "never":
        advice = f"echo madvise > {HUGE}; first writes to much page-locked memory are then faster"
        yield Finding("huge pages", "note", "transparent huge pages are off", advice)
    else:
        yield Finding("huge pages", "ok", mode)


def nodes(driver: dict[str, Any]) -> Iterator[Finding]:
    count = sum(path.name[4:].isdigit() for path in NODES.glob("node*")) if NODES.exists() else 1
    if count < 2:
        yield Finding("NUMA", "ok", "one node")
        return
    near = {path.name: first_line(path / "numa_node") for path in cards_on_bus()}
    cards = ", ".join(f"{name} at node {node}" for name, node in near.items() if node not in (None, "-1"))
    advice = (
        "keep a process's threads at its device's node: numactl --cpunodebind=N --membind=N; page-locked "
        "memory of accelrt's lies there by itself"
    )
    yield Finding("NUMA", "note", f"{count} nodes{'; ' + cards if cards else ''}", advice)


def settings_of_torch(driver: dict[str, Any]) -> Iterator[Finding]:
    """Torch's settings string, whose keys are accelrt's too, but which accelrt does not read."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        text = os.environ.get(name)
        if not text or env.text("ACCELRT_ALLOC_CONF"):
            continue
        try:
            parse(text, name)
        except ValueError as error:
            yield Finding("settings", "note", f"torch's setting is not read, nor could be: {error}")
        else:
            advice = f'ACCELRT_ALLOC_CONF="${name}" sets the same here'
            yield Finding("settings", "note", f"{name} is torch's, and not read", advice)
        return
