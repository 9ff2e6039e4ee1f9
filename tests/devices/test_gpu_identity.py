"""On a GPU: the real driver's reading of visible devices, which library counting opens, readings beside
nvidia-smi.
"""

import csv
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from child import in_child, in_fork, in_own_process

import accelrt
from accelrt import visible
from accelrt.core import procfs
from accelrt.devices import discovery

pytestmark = [pytest.mark.own_process, pytest.mark.gpu]
STRINGS, SEED, FORKS = 200, 580, 100
VISIBLE = "CUDA_VISIBLE_DEVICES"
QUERY = (
    "uuid,pci.bus_id,name,temperature.gpu,power.draw,memory.used,memory.total,clocks.sm,clocks.mem,"
    "utilization.gpu"
)


def driver_says(text):
    """UUIDs, as digits, of the devices that the driver has with this list of visible devices."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    if text is not None:
        environment[VISIBLE] = text
    command = [sys.executable, "-I", "-S", "-c", discovery.SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("device ")]


def random_strings(uuids):
    choose = random.Random(SEED)
    first, last = uuids[0], uuids[-1]
    atoms = [
        "0",
        "1",
        "2",
        "00",
        "01",
        "-0",
        "-1",
        "+1",
        " 1",
        "1 ",
        "0x1",
        "4294967296",
        "4294967297",
        "",
        " ",
        "x",
    ]
    atoms += [
        first,
        last,
        first[:9],
        last[:14],
        f"{first}x",
        f"{last} ",
        f" {first}",
        f"{first[:12]}x",
        "GPU-",
        "MIG-",
    ]
    atoms += [
        f"MIG-{first}",
        f"MIG-{first}/1/0",
        f"MIG-{last[4:]}",
        first.lower(),
        last.upper(),
        "18446744073709551617",
    ]
    strings = [",".join(choose.choices(atoms, k=choose.randint(1, 5))) for _ in range(STRINGS - 60)]
    strings += ["".join(choose.choices("01+-x, \tGPU-9", k=choose.randint(1, 9))) for _ in range(50)]
    strings += [
        "0" + " " * (length - 1) for length in (1000, 1021, 1022, 1023, 1024, 1025, 1500, 2047, 2048, 4096)
    ]
    return strings


def test_random_lists_name_what_the_driver_says():
    every = [f"GPU-{digits}" for digits in driver_says(None)]
    strings = random_strings([dashed(uuid) for uuid in every])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(driver_says, strings))
    wrong = []
    for text, answer in zip(strings, answers, strict=True):
        found = [every[index][4:] for index in visible.resolve(text, every)]
        if found != answer:
            wrong.append((text[:60], len(text), found, answer))
    assert wrong == []
    print(f"{len(strings)} strings on {len(every)} devices")


def dashed(uuid):
    digits = uuid[4:]
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@in_own_process(ACCELRT_DRIVER="cuda")
def test_counting_opens_no_library_at_all():
    from cards import libraries

    assert procfs.listed(), "this machine's kernel lists no card"
    assert accelrt.device_count() > 0
    assert accelrt.is_available()
    assert libraries() == []
    assert not accelrt.is_initialized()


@in_own_process(ACCELRT_DRIVER="cuda")
def test_rows_before_and_after_init_name_the_same_devices():
    before = accelrt.identity.table()
    count = accelrt.device_count()
    assert not accelrt.is_initialized()
    accelrt.init()
    after = accelrt.identity.table()
    assert len(before) == len(after) == count == accelrt.device_count()
    for one, other in zip(before, after, strict=True):
        assert (one.ordinal, one.uuid, one.pci_bus_id, one.nvml_index, one.name) == (
            other.ordinal,
            other.uuid,
            other.pci_bus_id,
            other.nvml_index,
            other.name,
        )
        assert str(accelrt.get_device_properties(other.ordinal).uuid) == other.uuid[4:]


@in_own_process(ACCELRT_DRIVER="cuda")
def test_a_hundred_children_read_for_themselves_and_one_uses_the_device():
    accelrt.temperature(0)
    accelrt.device_count()
    for _ in range(FORKS):
        assert in_fork(lambda: not (0 < accelrt.temperature(0) < 120 and accelrt.device_count())) == 0
    assert in_fork(lambda: accelrt.init() or accelrt.Buffer(4096).nbytes != 4096) == 0


def agrees_with_nvidia_smi(uuid, used):
    # Other processes allocate and free in between, so both are asked again.
    command = ["nvidia-smi", f"--id={uuid}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    for _ in range(30):
        if abs(accelrt.device_memory_used(uuid) / (1 << 20) - used) <= 64:
            return True
        used = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return False


def beside_nvidia_smi():
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = list(csv.reader(text.splitlines(), skipinitialspace=True))
    assert rows
    for uuid, place, name, temperature, power, used, total, sm, memory, busy in rows:
        row = next(row for row in accelrt.identity.physical() if row.uuid == uuid)
        assert (row.pci_bus_id, row.name) == (procfs.pci_bus_id(place), name)
        info = accelrt.device_memory_info(uuid)
        assert abs(info.total / (1 << 20) - int(total)) <= 1
        assert agrees_with_nvidia_smi(uuid, int(used))
        assert abs(accelrt.temperature(uuid) - int(temperature)) <= 5
        assert abs(accelrt.power_draw(uuid) / 1000 - float(power)) <= 0.5 * float(power)
        assert 0 <= accelrt.utilization(uuid) <= 100
        assert 0 <= int(busy) <= 100
        clocks = accelrt.clock_rates(uuid)
        assert clocks["memory"] == int(memory)
        assert 0 < clocks["sm"] <= accelrt.max_clock_rates(uuid)["sm"]
        assert 0 < int(sm) <= accelrt.max_clock_rates(uuid)["sm"]
    print_every_reading(rows[0][0])


def print_every_reading(uuid):
    for reading in (name for name in accelrt.readings.__all__ if name.islower()):
        refusal = None
        try:
            print(reading, getattr(accelrt, reading)(uuid))
        except accelrt.NotSupportedError as error:
            refusal = str(error)
        if refusal is not None:
            assert uuid in refusal
            print(refusal)


def test_readings_agree_with_nvidia_smi():
    print(in_child(beside_nvidia_smi, ACCELRT_DRIVER="cuda"))
