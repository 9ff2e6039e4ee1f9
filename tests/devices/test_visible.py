"""The lists of visible devices, read as the drivers read them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelrt import nvml
from accelrt.errors import ReadingError
from accelrt.visible import LONGEST, device_order, resolve, resolve_amd, resolve_hip, resolve_rocr

TABLE = json.loads((Path(__file__).parent / "visible_cases.json").read_text())
UUIDS = TABLE["uuids"]
FIRST, SECOND = UUIDS
NO_DEVICE, INVALID_DEVICE = 100, 101

MIG = "MIG-5d7ad1b7-94b6-5c1f-8e6f-0a0f5a1b2c3d"
OTHER_MIG = "MIG-5d7ad1b7-0000-5c1f-8e6f-0a0f5a1b2c3d"
PLACES = [None, (FIRST, 1, 0), (FIRST, 2, 0)]

AMD = ["GPU-1a2b3c4d5e6f7081", "GPU-1a2b000000000000", "GPU-ffff3c4d5e6f7081"]

ATOMS = st.one_of(
    st.sampled_from(
        ["0", "1", "2", "-1", "+1", " 0", "0x1", "4294967297", "18446744073709551617", "", " ", "x"]
    ),
    st.sampled_from(["GPU-", "MIG-", "GPU-0", "GPU-3", FIRST, SECOND, FIRST[:12], f"{FIRST}x", MIG, "GPU"]),
    st.sampled_from([f"MIG-{FIRST}/1/0", "\udcff", "\ud800"]),
)
TEXTS = st.one_of(st.lists(ATOMS, max_size=6).map(",".join), st.text(max_size=40))


def test_the_table_holds_many_strings_and_the_driver_that_answered():
    assert sum(len(answer["texts"]) for answer in TABLE["answers"]) >= 600
    assert TABLE["driver"] == "580.159.04"
    assert {len(answer["devices"]) for answer in TABLE["answers"]} == {0, 1, 2}


def test_every_string_names_what_the_driver_said():
    for answer in TABLE["answers"]:
        code, order = answer["code"], answer.get("order")
        assert (answer["devices"] == []) == (code in (NO_DEVICE, INVALID_DEVICE)), code
        for text in answer["texts"]:
            named = resolve(text, UUIDS) if device_order(order) else []
            assert named == answer["devices"], (text, order)


@given(
    TEXTS,
    st.lists(st.one_of(st.sampled_from([FIRST, SECOND, MIG, OTHER_MIG]), st.text(max_size=12)), max_size=5),
)
def test_it_never_raises_and_names_no_device_twice(text, uuids):
    for read in (resolve, resolve_rocr, resolve_hip):
        found = read(text, uuids)
        assert len(set(found)) == len(found)
        assert all(0 <= index < len(uuids) for index in found)
    found = resolve_amd(text, text, uuids)
    assert len(set(found)) == len(found)


@given(st.lists(st.integers(0, 5), max_size=8))
def test_ordinals_alone_are_a_selection_or_nothing(ordinals):
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(6)]
    expected = ordinals if len(set(ordinals)) == len(ordinals) else []
    assert resolve(",".join(map(str, ordinals)), uuids) == expected


def test_unset_is_everything_and_so_is_what_is_too_long():
    assert resolve(None, UUIDS) == [0, 1]
    assert resolve(None, []) == resolve("0", []) == []
    assert resolve("1" + " " * (LONGEST - 1), UUIDS) == [1]
    assert resolve("1" + " " * LONGEST, UUIDS) == [0, 1]
    assert resolve("1" + "\udcff" * (LONGEST - 1), UUIDS) == [1]  # bytes of no UTF-8 count one each


def test_a_prefix_of_several_names_none():
    uuids = ["GPU-abc11111", "GPU-abc22222", "GPU-def33333"]
    assert resolve("GPU-abc", uuids) == []
    assert resolve("GPU-abc1", uuids) == [0]
    assert resolve("GPU-def,GPU-abc,GPU-abc1", uuids) == [2]
    assert resolve("GPU-d,GPU-abc2", uuids) == [2, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MIG, [1]),
        ("MIG-5d7ad1b7-9", [1]),
        ("MIG-5d7ad1b7", []),
        (f"MIG-{FIRST}/1/0", [1]),
        (f"MIG-{FIRST}/2/0", [2]),
        (f"MIG-{FIRST}/2/1", []),
        (f"MIG-{SECOND}/1/0", []),
        (f"MIG-{FIRST}", []),
        (f"{OTHER_MIG},{MIG}", [2]),
        (f"{MIG},{MIG}", []),
        (f"{FIRST},{MIG}", [1]),
        ("0", [0]),
        ("2", [2]),
    ],
)
def test_a_mig_device_goes_by_its_uuid_or_its_place_and_is_alone(text, expected):
    assert resolve(text, [FIRST, MIG, OTHER_MIG], PLACES) == expected


def test_older_names_of_mig_devices_may_be_the_identifiers_themselves():
    names = [f"MIG-{FIRST}/1/0", f"MIG-{FIRST}/11/0", f"MIG-{SECOND}/1/0"]
    assert resolve(names[0], names) == [0]
    assert resolve(names[1], names) == [1]
    assert resolve(names[2], names) == [2]
    assert resolve(f"MIG-{FIRST}/3/0", names) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "FASTEST_FIRST"),
        ("FASTEST_FIRST", "FASTEST_FIRST"),
        ("PCI_BUS_ID", "PCI_BUS_ID"),
        ("", None),
        ("pci_bus_id", None),
        ("PCI_BUS_ID ", None),
        ("1", None),
    ],
)
def test_any_other_order_makes_the_driver_fail(text, expected):
    assert device_order(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0,2", [0, 2]),
        (" 2 , 0 ", [2, 0]),
        ("0x1,02", [1, 2]),
        ("08", []),
        ("-0", [0]),
        ("-1", []),
        ("1,1,0", [1]),
        ("0,x,1", [0]),
        ("0,,1", [0]),
        ("3,0", []),
        ("4294967297", [1]),
        ("2147483648", []),
        (AMD[2], [2]),
        (AMD[2].lower(), [2]),
        ("GPU-1a2b3", [0]),
        ("GPU-1A2B", []),
        ("GPU-", []),
        (AMD[0] + "0", []),
        (f"{AMD[1]},0", [1, 0]),
        ("0,1,2,x", [0, 1, 2]),
    ],
)
def test_rocr_reads_its_own_list(text, expected):
    assert resolve_rocr(text, AMD) == expected


def test_hip_chooses_among_what_rocr_leaves():
    assert resolve_amd("2,0", "1", AMD) == [0]
    assert resolve_amd("2,0", None, AMD) == [2, 0]
    assert resolve_amd(None, f"{AMD[1]},0", AMD) == [1, 0]
    assert resolve_amd("1", "1", AMD) == []
    assert resolve_amd("", "0", AMD) == []


def test_without_uuids_a_list_names_this_machines_devices(monkeypatch):
    def listing(*names, lost=0):
        cards = [
            nvml.Card(uuid, f"0000:0{index}:00.0", index, name, 1 << 30)
            for index, (uuid, name) in enumerate(zip(UUIDS, names, strict=False))
        ]
        monkeypatch.setattr(nvml, "listing", lambda: (cards, lost))

    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    listing("one", "one")
    assert resolve("1,0") == [1, 0]
    assert resolve(None) == [0, 1]
    assert resolve(SECOND) == [1]
    listing("one", "other")
    with pytest.raises(ValueError, match="pass uuids, those of the physical devices"):
        resolve("0,1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert resolve("0,1") == [0, 1]
    listing("one", "one", lost=1)
    with pytest.raises(ValueError, match="NVML cannot tell in which order"):
        resolve("0")


def test_without_uuids_and_without_nvml_a_list_names_nothing(monkeypatch):
    def listing():
        raise ReadingError("there is no NVML")

    monkeypatch.setattr(nvml, "listing", listing)
    assert resolve("0,1") == []
