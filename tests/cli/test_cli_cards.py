"""What the command line says of NVIDIA cards, on a stand-in for NVML: MIG, missing readings, lost cards."""

import json

import pytest
from cards import FIRST_MIG, A, B, C, without_proc

import accelrt
from accelrt.tools.cli.main import main

pytestmark = pytest.mark.own_process
PAGE = {"COLUMNS": "140", "PYTHONUTF8": "1"}


def command(*arguments):
    """The command in this process, which has to leave the driver alone unless it is info."""
    without_proc()
    assert main(arguments) == 0
    assert accelrt.is_initialized() == (arguments[0] == "info")


def looked_at(on_cards, **environment):
    found = json.loads(on_cards(command, "top", "--once", "--json", **environment))
    return {one["uuid"]: one for one in found["devices"]}, found["processes"]


def test_every_card_is_there_with_its_own_readings(on_cards):
    devices, processes = looked_at(on_cards)
    assert {uuid: (one["ordinal"], one["nvml_index"]) for uuid, one in devices.items()} == {
        A: (1, 1),
        B: (0, 2),
        C: (2, 0),
    }
    for uuid, number in ((A, 1), (B, 2)):
        readings = devices[uuid]["readings"]
        assert readings["temperature"] == 30 + number
        assert readings["power_draw"] == 70000 + number
        assert readings["device_memory_info"]["used"] == (9 << 30) + number
        assert readings["pcie_throughput"]["sent"] > 0
    assert devices[C]["readings"]["temperature"] == 33
    assert devices[C]["readings"]["power_draw"] is None  # it lacks the sensor; the others are not hurt
    assert all(one["problem"] is None for one in devices.values())
    assert len(processes) == 41
    assert {one["uuid"] for one in processes} == {B}
    first = min(processes, key=lambda one: one["pid"])
    assert (first["pid"], first["memory"], first["reserved"]) == (1000, 1 << 20, None)


def test_cards_that_this_process_does_not_see_are_shown_without_an_ordinal(on_cards):
    devices, _ = looked_at(on_cards, CUDA_VISIBLE_DEVICES=C)
    assert {uuid: one["ordinal"] for uuid, one in devices.items()} == {A: None, B: None, C: 0}


def test_mig_devices_say_who_uses_them_in_place_of_their_card(on_cards):
    devices, processes = looked_at(on_cards, FAKE_MIG="1", FAKE_DRIVER="BMC")
    assert devices[FIRST_MIG]["mig_parent"] == A
    assert {one["uuid"] for one in processes} > {FIRST_MIG}
    assert A not in {one["uuid"] for one in processes}


def test_a_lost_card_has_its_problem_beside_it(on_cards):
    devices, _ = looked_at(on_cards, FAKE_NVML_LOST="A", FAKE_DRIVER="BC")
    assert sorted(devices) == sorted([B, C])


def test_without_nvml_it_says_so_and_how_to_see_host_devices(on_cards):
    out = on_cards(command, "top", "--once", FAKE_NVML_INIT="9", FAKE_DRIVER="", **PAGE)
    assert "0 devices" in out
    assert "no NVIDIA device was found" in out
    assert "ACCELRT_DRIVER=host" in out


def test_the_picture_holds_the_figures(on_cards):
    lines = on_cards(command, "top", "--once", **PAGE).splitlines()
    card = next(line for line in lines if " 1 Stand-in" in line)
    for figure in ("51%", "9.0/80.0 GiB", "31C", "70/700 W", "1101 MHz", "41%", "sw_power_cap"):
        assert figure in card
    assert "3 devices  41 processes" in lines[0]


def test_the_exporter_has_prometheus_units(on_cards):
    pytest.importorskip("prometheus_client")
    text = on_cards(command, "export", "--once")
    labels = f'{{device="1",name="Stand-in",uuid="{A}"}}'
    assert f"accelrt_device_temperature_celsius{labels} 31.0" in text
    assert f"accelrt_device_power_watts{labels} 70.001" in text
    assert f"accelrt_device_utilization_ratio{labels} 0.51" in text
    assert 'accelrt_device_clock_hertz{clock="sm",device="1"' in text
    assert "1.101e+09" in text
    assert f"accelrt_device_energy_joules_total{labels}" in text
    assert (
        f'accelrt_device_throttled{{device="1",name="Stand-in",reason="sw_power_cap",uuid="{A}"}} 1.0' in text
    )
    assert f'accelrt_device_power_watts{{device="2",name="Stand-in",uuid="{C}"}}' not in text
    assert text.count("accelrt_process_memory_bytes{") == 40  # of one, NVML does not tell


def test_the_report_says_which_card_is_which_and_how_it_is(on_cards):
    found = json.loads(on_cards(command, "info", "--json"))
    assert [(row["ordinal"], row["uuid"], row["nvml_index"]) for row in found["identity"]["rows"]] == [
        (2, C, 0),
        (1, A, 1),
        (0, B, 2),
    ]
    state = {one["uuid"]: one for one in found["state"]}
    assert state[A]["temperature"] == 31
    assert "power_draw" not in state[C]
    assert found["driver"]["version"] == "13.0"
    assert found["driver"]["complaints"] == []
    text = on_cards(command, "info", FAKE_VERSION="12080", FAKE_CAPABILITY="61")
    assert text.count("\n  old ") == 2
    assert "Upgrade it to branch 580" in text
    assert "compute capability 6.1" in text
    assert A in text


def test_a_driver_that_disagrees_with_nvml_is_in_the_report(on_cards):
    found = json.loads(on_cards(command, "info", "--json", FAKE_DRIVER="AX"))
    assert found["identity"]["rows"] == []
    assert "disagree" in found["identity"]["problem"]
