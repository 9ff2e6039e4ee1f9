"""Stream.attributes and set_attributes: priorities, memory synchronisation domains, waits."""

import gc

import pytest
from child import in_own_process, wrap_host
from compiled import compile_libcuda

import accelrt
from accelrt.driver.registry import Rows

DOMAINS = "mem_sync_domain_count"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_libcuda(tmp_path_factory.mktemp("libcuda"))


def domains():
    return max(1, accelrt.get_device_properties(0).attributes.get(DOMAINS, 1))


def test_a_new_stream_has_the_defaults():
    attributes = accelrt.Stream().attributes
    assert attributes == (None, 0, "auto", "default", (0, min(1, domains() - 1)))
    assert attributes._fields == (
        "access_policy_window",
        "priority",
        "synchronization_policy",
        "memory_sync_domain",
        "memory_sync_domain_map",
    )


def test_what_is_set_is_read_back_and_the_rest_stays():
    _, greatest = accelrt.Stream.priority_range()
    stream = accelrt.Stream()
    before = stream.attributes
    stream.set_attributes()
    assert stream.attributes == before
    stream.set_attributes(synchronization_policy="blocking", memory_sync_domain="remote")
    assert stream.attributes == before._replace(
        synchronization_policy="blocking", memory_sync_domain="remote"
    )
    stream.set_attributes(priority=-1000, memory_sync_domain_map=(domains() - 1, 0))
    assert stream.priority == stream.attributes.priority == greatest
    assert stream.attributes.memory_sync_domain_map == (domains() - 1, 0)
    assert stream.attributes.memory_sync_domain == "remote"
    with accelrt.Buffer(64) as buffer, stream:
        buffer.fill(1)
        stream.synchronize()


@in_own_process()  # whose idle streams are this one alone
def test_a_stream_that_dies_leaves_no_attribute_to_the_next():
    stream = accelrt.Stream()
    before, handle = stream.attributes, stream.cuda_stream
    for policy in ("spin", "yield"):
        stream.set_attributes(priority=-1000, synchronization_policy=policy, memory_sync_domain="remote")
    del stream
    gc.collect()
    accelrt.synchronize()
    again = [other for other in [accelrt.Stream() for _ in range(64)] if other.cuda_stream == handle]
    assert again[0].attributes == before
    assert Rows().stream_priority(0, handle) == (0, 0)


def test_streams_of_others_have_them_too_and_keep_them():
    code, handle = Rows().stream_create(0, 1, 0)
    assert code == 0
    accelrt.ExternalStream(handle).set_attributes(synchronization_policy="spin")
    assert accelrt.ExternalStream(handle).attributes.synchronization_policy == "spin"
    assert Rows().stream_destroy(0, handle) == 0


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"priority": "high"}, TypeError, "priority is 'high' of type str"),
        (
            {"synchronization_policy": 1},
            TypeError,
            "synchronization_policy is 1 of type int; pass one of auto, spin",
        ),
        ({"synchronization_policy": "sleep"}, ValueError, "it may be auto, spin, yield, blocking"),
        ({"memory_sync_domain": "near"}, ValueError, "it may be default, remote"),
        ({"memory_sync_domain_map": 1}, TypeError, "pass two ints, what default and remote stand for"),
        ({"memory_sync_domain_map": (0, 1, 2)}, TypeError, "pass two ints"),
        ({"memory_sync_domain_map": (0, 1000)}, ValueError, "has domains 0 to"),
        ({"memory_sync_domain_map": (-1, 0)}, ValueError, "has domains 0 to"),
    ],
)
def test_bad_values_are_named_and_change_nothing(given, error, text):
    stream = accelrt.Stream()
    before = stream.attributes
    with pytest.raises(error, match=text):
        stream.set_attributes(**{"memory_sync_domain": "remote", **given})
    assert stream.attributes == before


@pytest.mark.host
@in_own_process
def test_what_the_driver_refuses_leaves_all_as_it_was():
    faults = wrap_host()
    stream = accelrt.Stream()
    before = stream.attributes
    faults.arm(2, 1, "once", ["stream_attribute_set"])
    with pytest.raises(accelrt.CudaError, match="stream_attribute_set"):
        stream.set_attributes(synchronization_policy="spin", memory_sync_domain="remote")
    assert stream.attributes == before


@in_own_process(LD_LIBRARY_PATH="{library}")
def test_the_cuda_driver_passes_each_on(library):
    rows = Rows("cuda")
    assert rows.open() == 0
    for attribute, numbers in ((3, (4, 0)), (8, (-2, 0)), (9, (3, 2)), (10, (1, 0))):
        assert rows.stream_attribute_set(0, 0x300, attribute, *numbers) == 0
    for attribute, numbers in ((3, (4, 0)), (8, (-2, 0)), (9, (3, 2)), (10, (1, 0))):
        assert rows.stream_attribute_get(0, 0x300, attribute) == (0, *numbers)
    assert rows.stream_attribute_get(0, 0x301, 9) == (0, 0, 0)
    assert rows.stream_attribute_set(0, 0x300, 9, 256, 0) == rows.stream_attribute_set(0, 0x300, 2, 1, 0) == 1
