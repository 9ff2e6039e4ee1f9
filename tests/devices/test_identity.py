"""One row for every device: by NVML before init, checked against the driver after it."""

import os

import pytest
from cards import FIRST_MIG, SECOND_MIG, A, B, C, beside_cards, libraries, without_proc

import accelrt

pytestmark = pytest.mark.own_process
PLACES = {A: "0000:41:00.0", B: "0000:07:00.0", C: "0001:00:00.0"}
INDICES = {C: 0, A: 1, B: 2}


def uuids():
    return [row.uuid for row in accelrt.identity.table()]


@beside_cards
def test_before_init_a_row_has_every_name_of_its_device(card_libraries):
    without_proc()
    for ordinal, row in enumerate(accelrt.identity.table()):
        uuid = (B, A, C)[ordinal]
        assert row == accelrt.identity.Identity(
            ordinal, uuid, PLACES[uuid], INDICES[uuid], None, None, "Stand-in", 80 << 30
        )
    assert len(accelrt.identity.table()) == accelrt.device_count() == 3
    assert "libcuda.so" not in libraries()
    assert not accelrt.is_initialized()


@beside_cards
def test_after_init_the_drivers_devices_are_found_again(card_libraries):
    without_proc()
    before = accelrt.identity.table()
    accelrt.init()
    after = accelrt.identity.table()
    assert [row.memory for row in after] == [(79 << 30) + ordinal for ordinal in range(3)]
    for one, other in zip(before, after, strict=True):
        assert (one.uuid, one.nvml_index, one.pci_bus_id) == (other.uuid, other.nvml_index, other.pci_bus_id)
    assert accelrt.get_device_properties(1).uuid.hex == A[4:].replace("-", "")


@beside_cards
def test_rows_go_with_the_list_of_visible_devices(card_libraries):
    without_proc()
    for text, order, expected in (
        ("2,0", None, [C, B]),
        (f"{C},GPU-aaaaaaaa", None, [C, A]),
        ("GPU-aaaa", None, []),
        ("0,0", None, []),
        ("", None, []),
        ("1", "PCI_BUS_ID", [A]),
        ("1", "pci_bus_id", []),
    ):
        os.environ["CUDA_VISIBLE_DEVICES"] = text
        os.environ.pop("CUDA_DEVICE_ORDER", None)
        if order is not None:
            os.environ["CUDA_DEVICE_ORDER"] = order
        assert uuids() == expected, text
        assert accelrt.device_count() == len(expected), text
        assert {row.uuid for row in accelrt.identity.physical()} == {A, B, C}
        ordinals = {row.uuid: row.ordinal for row in accelrt.identity.physical()}
        assert [uuid for uuid in expected if ordinals[uuid] is None] == []


@pytest.mark.parametrize(("driver", "expected"), [("CBA", (C, B, A)), ("ABC", (A, B, C))])
@beside_cards(FAKE_UNLIKE="1", FAKE_DRIVER="{driver}")
def test_the_driver_says_in_which_order_unlike_cards_come(card_libraries, driver, expected):
    """The order of cards of different models is the driver's to say; a process of its own asks it."""
    without_proc()
    assert uuids() == list(expected)
    assert "libcuda.so" not in libraries()
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert uuids() == [B, A, C]


@beside_cards(FAKE_MIG="1", FAKE_DRIVER="M")
def test_a_mig_device_names_its_card_and_instances(card_libraries):
    without_proc()
    (row,) = accelrt.identity.table()
    assert (row.uuid, row.mig_parent, row.mig_instance, row.nvml_index) == (FIRST_MIG, A, (1, 0), 1)
    physical = accelrt.identity.physical()
    assert [one.uuid for one in physical] == [C, A, FIRST_MIG, SECOND_MIG, B]
    assert [one.ordinal for one in physical] == [None, None, 0, None, None]
    assert accelrt.device_count() == 1
    accelrt.init()
    assert uuids() == [FIRST_MIG]


def mismatch(*parts):
    without_proc()
    accelrt.init()
    with pytest.raises(accelrt.IdentityError) as caught:
        accelrt.identity.table()
    for part in parts:
        assert part in str(caught.value)
    with pytest.raises(accelrt.IdentityError):
        accelrt.temperature(0)


@beside_cards(FAKE_NVML_INIT="9")
def test_without_nvml_the_driver_alone_answers(card_libraries):
    without_proc()
    assert [row.uuid for row in accelrt.identity.table()] == [B, A, C]
    assert accelrt.device_count() == 3
    assert "libcuda.so" not in libraries()
    accelrt.init()
    assert [row.nvml_index for row in accelrt.identity.table()] == [None, None, None]
    assert accelrt.identity.physical() == []


@beside_cards(ACCELRT_DRIVER="host", ACCELRT_HOST_DEVICES="3", ACCELRT_HOST_MEMORY="64MiB")
def test_host_devices_have_rows_too(card_libraries):
    rows = accelrt.identity.table()
    assert [row.pci_bus_id for row in rows] == ["host:0", "host:1", "host:2"]
    assert {row.memory for row in rows} == {64 << 20}
    assert not accelrt.is_initialized()
    accelrt.init()
    assert accelrt.identity.table() == rows == accelrt.identity.physical()


@pytest.mark.parametrize(
    ("driver", "parts"),
    [
        (
            "ABC",
            (
                "their orders differ",
                f"0: {A} at 0000:41:00.0; 1: {B}",
                f"NVML: {B} at 0000:07:00.0 (index 2)",
            ),
        ),
        ("BAX", ("NVML knows no device with the UUID of device 2", "2: GPU-eeeeeeee", C)),
        ("BaC", ("different PCI bus ids", f"1: {A} at 0009:09:00.0", f"{A} at 0000:41:00.0")),
        ("BA", ("their orders differ", C)),
    ],
)
def test_a_mismatch_of_driver_and_nvml_shows_both(on_cards, driver, parts):
    on_cards(mismatch, *parts, FAKE_DRIVER=driver)
