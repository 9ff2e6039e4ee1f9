"""Shared objects with changed bytes: refused before the dynamic linker follows them."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from compiled import compile_image
from kernel_sources import SOURCE

import accelrt
from accelrt.kernels.elf_image import check_shared_object

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def whole():
    return compile_image(SOURCE)


def entries(data):
    """Where the dynamic section's entries are: tag -> offset of the value."""
    start, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    headers = [struct.unpack_from("<IIQQQQQQ", data, start + 56 * number) for number in range(count)]
    (dynamic,) = [each for each in headers if each[0] == 2]
    tags = [
        (struct.unpack_from("<Q", data, at)[0], at + 8)
        for at in range(dynamic[2], dynamic[2] + dynamic[5], 16)
    ]
    return dict(reversed(tags))


def test_objects_of_the_system_are_whole(whole):
    check_shared_object(whole)
    found = 0
    for path in Path(accelrt.__file__).parent.rglob("*.so"):
        check_shared_object(path.read_bytes())
        found += 1
    assert found > 20


@pytest.mark.parametrize("tag", [2, 5, 6, 7, 8, 10, 12, 23, 25, 27, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE])
def test_a_table_that_lies_elsewhere_is_refused(whole, tag):
    at = entries(whole).get(tag)
    if at is None:
        pytest.skip("this linker writes no such table")
    damaged = bytearray(whole)
    damaged[at + 4] ^= 1  # by 4 GiB
    with pytest.raises(
        ValueError, match=r"the image is a shared object that is damaged: .*; compile it again"
    ):
        accelrt.Module(bytes(damaged))


def test_a_relocation_that_points_elsewhere_is_refused(whole):
    tags = entries(whole)
    place, size = (struct.unpack_from("<Q", whole, tags[tag])[0] for tag in (7, 8))
    for at in range(place, place + size, 24):
        for byte in (at + 5, at + 15):  # of where it writes, and of the symbol that it names
            damaged = bytearray(whole)
            damaged[byte] ^= 0x40
            with pytest.raises(ValueError, match="a relocation"):
                check_shared_object(bytes(damaged))


def test_headers_and_the_wrong_machine_are_refused(whole, tmp_path):
    for at, text in ((18, "none of this machine"), (54, "program headers"), (16, "none of this machine")):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path = tmp_path / "damaged.so"
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=text):
            accelrt.Module(path)


def test_changed_bytes_are_refused_or_leave_the_tables_as_they_were(whole):
    """Whatever is changed, the check itself answers."""
    draw = random.Random(5)
    place = struct.unpack_from("<Q", whole, entries(whole)[7])[0]
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(place)] = draw.randrange(256)  # what is before the code
        try:
            check_shared_object(bytes(damaged))
        except ValueError as error:
            refused += "damaged" in str(error)
    assert refused > 100


def test_what_accelrt_compiled_is_compared_with_its_digest(tmp_path):
    image = bytes(accelrt.compile_image('extern "C" __global__ void k(int* at) { *at = 5; }'))
    draw = random.Random(7)
    for _ in range(100):
        damaged = bytearray(image)
        at = draw.randrange(64, len(image) - 60)
        damaged[at] ^= 1 << draw.randrange(8)
        with pytest.raises(ValueError, match="damaged"):
            accelrt.Module(bytes(damaged))
    array = accelrt.zeros(1, "i4")
    with accelrt.Module(image) as module:
        module.function("k")[1, 1](array)
    assert (array.numpy() == np.int32(5)).all()
