"""Tells whether a shared object is whole, as far as the dynamic linker follows what stands in it.

The linker trusts an object's tables, and a changed byte of them crashes the process.  Here each address,
offset and index that it would follow has to lie where it should (ELF-64 Object File Format; System V
ABI, "Dynamic Linking").  What the object's code does is not looked at: its first functions run when it
is loaded.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

MACHINES = {"x86_64": 62, "aarch64": 183}
MOST_ADDRESS = 1 << 40
DYN, LOAD, DYNAMIC, TLS, DYNSYM = 3, 1, 2, 7, 11
EXECUTABLE, WRITABLE = 1, 2
NULL, NEEDED, PLTRELSZ, HASH, STRTAB, SYMTAB, RELA, RELASZ, RELAENT, STRSZ = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10
SYMENT, INIT, FINI, SONAME, RPATH, JMPREL, RUNPATH = 11, 12, 13, 14, 15, 23, 29
INIT_ARRAY, FINI_ARRAY, INIT_ARRAYSZ, FINI_ARRAYSZ, RELRSZ, RELR = 25, 26, 27, 28, 35, 36
GNU_HASH, VERSYM, VERNEED, VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
KNOWN = {*range(17), *range(20, 31), *range(35, 38)}  # tags; those of GNU begin with 0x6FFFF
RELATIVE = {62: 8, 183: 1027}
INDIRECT = {62: 37, 183: 1032}


class Segment(NamedTuple):
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int
    alignment: int

    def has(self, address: int, size: int = 1) -> bool:
        return self.address <= address and address + size <= self.address + self.size


class Damaged(ValueError):
    """Says what does not fit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the image is a shared object that is damaged: {what}; compile it again")


class Object:
    """A shared object's tables."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.machine: int = struct.unpack_from("<H", data, 18)[0]
        self.segments: list[Segment] = read_segments(data)
        self.loads: list[Segment] = [each for each in self.segments if each.kind == LOAD]
        self.tags: dict[int, int] = self.read_dynamic()
        self.strings: bytes = self.table(STRTAB, STRSZ, 1)
        self.symbols: list[tuple[int, int, int, int, int, int]] = self.read_symbols()

    def need(self, holds: bool, what: str) -> None:
        if not holds:
            raise Damaged(what)

    def is_mapped(self, address: int, size: int = 1, flags: int = 0) -> bool:
        return any(each.has(address, size) and each.flags & flags == flags for each in self.loads)

    def at(self, address: int, size: int, what: str) -> bytes:
        """Bytes of the file that are mapped at an address."""
        for each in self.loads:
            if each.address <= address and address + size <= each.address + each.file_size:
                start = each.offset + address - each.address
                return self.data[start : start + size]
        raise Damaged(f"{what} lies outside of it")

    def read_dynamic(self) -> dict[int, int]:
        segments = [each for each in self.segments if each.kind == DYNAMIC]
        self.need(len(segments) == 1, "it has no dynamic section")
        (dynamic,) = segments
        self.need(dynamic.file_size % 16 == 0, "its dynamic section has parts of an entry")
        content = self.at(dynamic.address, dynamic.file_size, "its dynamic section")
        self.need(
            content == self.data[dynamic.offset : dynamic.offset + dynamic.file_size], "two dynamic sections"
        )
        tags: dict[int, int] = {}
        needed = []
        for tag, value in struct.iter_unpack("<QQ", content):
            if tag == NULL:
                break
            self.need(
                tag in KNOWN or tag >> 12 == 0x6FFFF, f"its dynamic section has the unknown tag {tag:#x}"
            )
            if tag == NEEDED:
                needed.append(value)
            tags[tag] = value
        else:
            raise Damaged("its dynamic section has no end")
        for tag in (STRTAB, STRSZ, SYMTAB):
            self.need(tag in tags, "its dynamic section lacks names or symbols")
        self.need(
            tags.get(SYMENT, 24) == 24 and tags.get(RELAENT, 24) == 24, "its tables' entries have odd sizes"
        )
        for value in (*needed, *(tags[tag] for tag in (SONAME, RPATH, RUNPATH) if tag in tags)):
            self.need(value < tags[STRSZ], "a name lies outside of its names")
        for tag in (INIT, FINI):
            self.need(
                tag not in tags or self.is_mapped(tags[tag], 1, EXECUTABLE), "its first function is no code"
            )
        return tags

    def table(self, start: int, size: int, entry: int) -> bytes:
        if start not in self.tags and self.tags.get(size, 0) == 0:
            return b""
        self.need(start in self.tags and size in self.tags, "a table has no size, or no place")
        self.need(self.tags[size] % entry == 0, "a table has parts of an entry")
        return self.at(self.tags[start], self.tags[size], "a table")

    def read_symbols(self) -> list[tuple[int, int, int, int, int, int]]:
        """(name, info, other, section, value, size) of each."""
        offset, each, count = (
            struct.unpack_from("<Q", self.data, 40)[0],
            *struct.unpack_from("<HH", self.data, 58),
        )
        self.need(each == 64, "its section headers have an odd size")
        for number in range(count):
            header = struct.unpack_from("<IIQQQQIIQQ", self.data, offset + 64 * number)
            if header[1] == DYNSYM:
                self.need(
                    header[3] == self.tags[SYMTAB] and header[5] % 24 == 0,
                    "its symbols are not where they were",
                )
                symbols = list(struct.iter_unpack("<IBBHQQ", self.at(header[3], header[5], "its symbols")))
                break
        else:
            raise Damaged("it has no symbols")
        tls = next((each.size for each in self.segments if each.kind == TLS), 0)
        for name, info, _, section, value, size in symbols:
            self.need(name < len(self.strings), "a symbol's name lies outside of its names")
            self.need(
                info >> 4 in (0, 1, 2, 10) and info & 15 in (0, 1, 2, 3, 4, 6, 10),
                "a symbol is of no known kind",
            )
            if section and section < 0xFF00:
                inside = value + size <= tls if info & 15 == 6 else self.is_mapped(value, 0) or value == 0
                self.need(inside, "a symbol lies outside of it")
        self.need(self.strings[-1:] == b"\0", "its names have no end")
        return symbols

    def check_relocations(self) -> None:
        starts = [
            (self.tags.get(tag, 0), self.tags.get(size, 0))
            for tag, size in ((INIT_ARRAY, INIT_ARRAYSZ), (FINI_ARRAY, FINI_ARRAYSZ))
        ]
        for address, size in starts:
            self.need(
                size % 8 == 0 and (size == 0 or self.is_mapped(address, size)),
                "its first functions lie outside of it",
            )
        most = 43 if self.machine == 62 else 1033
        for start, size in ((RELA, RELASZ), (JMPREL, PLTRELSZ)):
            for offset, info, addend in struct.iter_unpack("<QQQ", self.table(start, size, 24)):
                kind, symbol = info & 0xFFFFFFFF, info >> 32
                self.need(self.is_mapped(offset, 8, WRITABLE), "a relocation changes what it may not")
                self.need(symbol < len(self.symbols) and 0 < kind < most, "a relocation names nothing")
                if kind in (RELATIVE[self.machine], INDIRECT[self.machine]):
                    runs = kind == INDIRECT[self.machine] or any(
                        at <= offset < at + size for at, size in starts
                    )
                    self.need(
                        self.is_mapped(addend, 0, EXECUTABLE if runs else 0),
                        "a relocation points outside of it",
                    )
        self.table(RELR, RELRSZ, 8)

    def check_hashes(self) -> None:
        if GNU_HASH in self.tags:
            buckets, first, words, shift = struct.unpack(
                "<IIII", self.at(self.tags[GNU_HASH], 16, "its hash table")
            )
            count = len(self.symbols)
            self.need(
                0 < buckets <= 8 * count + 8 and 0 < words <= 8 * count + 8 and shift < 64, "its hash table"
            )
            self.need(words & (words - 1) == 0 and first <= count, "its hash table")
            buckets_offset = self.tags[GNU_HASH] + 16 + 8 * words
            chains = self.at(buckets_offset + 4 * buckets, 4 * (count - first), "its hash table")
            ends = [
                number for number, (value,) in enumerate(struct.iter_unpack("<I", chains), first) if value & 1
            ]
            for (value,) in struct.iter_unpack("<I", self.at(buckets_offset, 4 * buckets, "its hash table")):
                self.need(value == 0 or (first <= value <= (ends[-1] if ends else -1)), "its hash table")
        if HASH in self.tags:
            buckets, count = struct.unpack("<II", self.at(self.tags[HASH], 8, "its hash table"))
            self.need(buckets > 0 and count <= len(self.symbols) + 1, "its hash table")
            values = self.at(self.tags[HASH] + 8, 4 * (buckets + count), "its hash table")
            self.need(all(value <= count for (value,) in struct.iter_unpack("<I", values)), "its hash table")

    def check_versions(self) -> None:
        versions = {0, 1}
        start = self.tags.get(VERNEED)
        for _ in range(self.tags.get(VERNEEDNUM, 0) if start is not None else 0):
            assert start is not None
            version, count, file, aux, following = struct.unpack("<HHIII", self.at(start, 16, "its versions"))
            self.need(version == 1 and file < len(self.strings), "its versions name nothing")
            at = start + aux
            for _ in range(count):
                _, _, other, name, after = struct.unpack("<IHHII", self.at(at, 16, "its versions"))
                self.need(name < len(self.strings), "its versions name nothing")
                versions.add(other & 0x7FFF)
                at += after
            start += following
        if VERSYM in self.tags:
            values = self.at(self.tags[VERSYM], 2 * len(self.symbols), "its versions")
            if 0x6FFFFFFC not in self.tags:  # it defines none of its own
                self.need(
                    all(value & 0x7FFF in versions for (value,) in struct.iter_unpack("<H", values)),
                    "its versions",
                )


def read_segments(data: bytes) -> list[Segment]:
    start, each, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    if each != 56 or not 0 < count < 256 or start + each * count > len(data):
        raise Damaged("its program headers lie outside of it")
    segments = []
    last = -1
    for number in range(count):
        kind, flags, offset, address, _, file_size, size, alignment = struct.unpack_from(
            "<IIQQQQQQ", data, start + 56 * number
        )
        if kind in (LOAD, DYNAMIC, TLS):
            if (
                offset + file_size > len(data)
                or file_size > size
                or address + size > MOST_ADDRESS
                or alignment > 1 << 24
            ):
                raise Damaged("a segment lies outside of it")
            if kind == LOAD and (
                address <= last or alignment & (alignment - 1) or (address - offset) % max(alignment, 1)
            ):
                raise Damaged("its segments overlap")
            last = address + size - 1 if kind == LOAD else last
        segments.append(Segment(kind, flags, offset, address, file_size, size, alignment))
    return segments


def check_shared_object(data: bytes) -> None:
    """Raises ValueError where a shared object is damaged in what this machine's dynamic linker follows."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None or len(data) < 64:
        return
    kind, of = struct.unpack_from("<HH", data, 16)
    if data[4:7] != b"\2\1\1" or kind != DYN or of != machine:
        raise Damaged(f"it is none of this machine, {os.uname().machine}")
    try:
        read = Object(data)
        read.check_relocations()
        read.check_hashes()
        read.check_versions()
    except struct.error:
        raise Damaged("a table lies outside of it") from None


def exported_names(data: bytes) -> set[str]:
    """The names that a shared object of the host's defines; none of another image.

    Raises:
        ValueError: it is damaged.
    """
    if data[:4] != b"\x7fELF" or len(data) < 64 or struct.unpack_from("<HH", data, 16)[0] != DYN:
        return set()
    try:
        shared = Object(data)
        starts = [name for name, _, _, section, _, _ in shared.symbols if section]
    except struct.error:
        raise Damaged("a table lies outside of it") from None
    return {shared.strings[start : shared.strings.index(0, start)].decode() for start in starts}
