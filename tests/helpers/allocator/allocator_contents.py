"""Marks in live memory: a test can write and read memory of the host device directly."""

import ctypes
import itertools

WORD = 4
STEP = 1 << 20


class Contents:
    """Writes into each block a word that no other block holds: at both ends and at every MiB."""

    def __init__(self):
        self.words = itertools.count(1)
        self.written = {}  # address -> (bytes, word)

    def write(self, address, n):
        word = next(self.words) & 0xFFFFFFFF
        self.written[address] = n, word
        for place in places(address, n):
            ctypes.c_uint32.from_address(place).value = word

    def check(self, address):
        n, word = self.written[address]
        for place in places(address, n):
            found = ctypes.c_uint32.from_address(place).value
            assert found == word, f"{n} bytes at {address:#x}: {place:#x} holds {found}, not {word}"

    def check_all(self):
        for address in self.written:
            self.check(address)

    def forget(self, address):
        self.check(address)
        del self.written[address]


def places(address, n):
    if n < WORD:
        return []
    return [*range(address, address + n - WORD, STEP), (address + n - WORD) & -WORD]
