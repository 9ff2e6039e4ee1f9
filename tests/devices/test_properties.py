"""A device's constants: torch's fields, and the driver's attributes by name."""

import copy
import pickle

import pytest

import accelrt
from accelrt.devices.attributes import ADDED, ATTRIBUTES, known_to

TORCH_FIELDS = [
    "name",
    "major",
    "minor",
    "is_multi_gpu_board",
    "is_integrated",
    "multi_processor_count",
    "total_memory",
    "max_threads_per_multi_processor",
    "max_threads_per_block",
    "warp_size",
    "regs_per_multiprocessor",
    "shared_memory_per_block",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "L2_cache_size",
    "uuid",
    "gcnArchName",
    "clock_rate",
    "memory_clock_rate",
    "memory_bus_width",
    "pci_bus_id",
    "pci_device_id",
    "pci_domain_id",
]


@pytest.mark.parametrize("field", TORCH_FIELDS)
def test_every_field_of_torchs_is_there(field):
    assert getattr(accelrt.get_device_properties(0), field) is not None


def test_the_drivers_attributes_go_by_their_names():
    found = accelrt.get_device_properties(0)
    assert found.attributes.keys() <= ATTRIBUTES.keys()
    assert len(found.attributes) > 100
    assert found.attributes["warp_size"] == found.warp_size == 32
    assert found.max_block_dim_x == found.attributes["max_block_dim_x"]
    assert found.multiprocessor_count == found.multi_processor_count > 0
    with pytest.raises(AttributeError, match="has no 'max_elephants'"):
        _ = found.max_elephants


def test_a_newer_driver_is_asked_for_more_attributes():
    counts = {driver: len(known_to(driver)) for driver in (12000, 12040, 12090, 13000, 13050, 14000)}
    # as many as each release's cuda.h has numbers
    assert counts == {12000: 128, 12040: 134, 12090: 143, 13000: 147, 13050: 161, 14000: 161}
    assert sorted(ATTRIBUTES.values()) == list(range(1, 162))
    added = [number for numbers in ADDED.values() for number in numbers]
    assert len(added) == len(set(added))
    assert set(added) <= set(ATTRIBUTES.values())


def test_the_object_is_one_and_the_same_and_cannot_be_changed():
    found = accelrt.get_device_properties(0)
    for name in (0, "cuda:0", accelrt.device(0), None):
        assert accelrt.get_device_properties(name) is found
    with pytest.raises(AttributeError):
        found.name = "another"


def test_it_can_go_to_another_process():
    found = accelrt.get_device_properties(0)
    for copied in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert copied == found
        assert copied.attributes == found.attributes
        assert copied.max_block_dim_x == found.max_block_dim_x
